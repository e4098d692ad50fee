"""Token buckets, and what one process knows of one that many share: never more is allowed than there was, whoever asks when."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.bucket import (
    CONTENTION_WAIT_S,
    HOT_PER_SECOND,
    LEASE_S,
    LONGEST_WAIT_S,
    Bucket,
    Decision,
    Layer,
    Rate,
    Tab,
    Taken,
)

TEN = Rate(1.0, 10)


# --- rates ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("per_second", "burst"),
    [(-1.0, 1), (math.inf, 1), (math.nan, 1), (1.0, 0.5), (1.0, 0), (1.0, -3), (1.0, math.inf), (1.0, math.nan)],
)
def test_R5_a_rate_that_allows_nothing_or_anything_is_refused(per_second: float, burst: float) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        Rate(per_second, burst)


@pytest.mark.parametrize("rate", [Rate(0.0, 5), Rate(5e-324, 5), Rate(1e-9, 5)])
def test_R4_the_wait_is_finite_whatever_the_rate(rate: Rate) -> None:
    assert rate.wait_s(0.0) == LONGEST_WAIT_S
    assert rate.wait_s(1.0) == 0.0


def test_R4_an_empty_bucket_that_is_never_refilled_denies_for_an_hour() -> None:
    never = Rate(0.0, 2)
    bucket, tab = Bucket(never, 0.0), Tab(never, 0.0)
    for moment in range(2):
        assert tab.decide(moment) is None
        (decision,) = tab.answered(1, bucket.take(1, moment), 1, moment)
        assert decision.allowed
    for moment in (2.0, 1000.0):
        assert tab.decide(moment) == Decision(False, 0, 1.0 + LONGEST_WAIT_S - moment, Layer.LOCAL)


@given(st.integers(1, 50), st.floats(0.5, 5000), st.floats(1, 1e6))
def test_the_shares_of_all_replicas_are_no_more_than_the_rate(replicas: int, per_second: float, burst: float) -> None:
    share = Rate(per_second, burst).share_of(replicas)
    assert share.per_second * replicas == pytest.approx(per_second)
    assert share.burst == max(1.0, burst / replicas)


# --- one bucket -----------------------------------------------------------------------------------------------------


def test_a_bucket_gives_what_it_has_and_is_refilled_up_to_its_burst() -> None:
    bucket = Bucket(Rate(2.0, 5), 100.0)
    assert bucket.take(3, 100.0) == Taken(3, 2.0)
    assert bucket.take(3, 100.0) == Taken(2, 0.0)
    assert bucket.take(1, 100.25) == Taken(0, 0.5)
    assert bucket.take(1, 100.5) == Taken(1, 0.0)
    assert bucket.take(9, 900.0) == Taken(5, 0.0)


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(-10, 10), st.integers(1, 4)), max_size=60))
def test_R2_clocks_that_differ_by_ten_seconds_refill_nothing_twice(events: list[tuple[float, float, int]]) -> None:
    """Whoever's clock is ahead may fetch its refill early, once: it is not there a second time for the others."""
    bucket, granted = Bucket(TEN, 0.0), 0
    for moment, skew, want in sorted(events):
        taken = bucket.take(want, moment + skew)
        granted += taken.granted
        assert 0 <= taken.granted <= want
        assert taken.tokens >= 0
        assert granted <= TEN.burst + TEN.per_second * (moment + 10.0) + 1e-6


def test_R2_without_refill_exactly_the_capacity_whatever_the_clocks() -> None:
    bucket = Bucket(Rate(0.0, 10), 0.0)
    granted = sum(bucket.take(1, skew * moment).granted for moment in range(50) for skew in (-10.0, 0.0, 10.0))
    assert granted == 10


# --- what one process knows -----------------------------------------------------------------------------------------


def test_after_a_denial_nobody_is_asked_until_there_can_be_a_token() -> None:
    bucket, tab = Bucket(Rate(2.0, 1), 0.0), Tab(Rate(2.0, 1), 0.0)
    tab.answered(1, bucket.take(1, 0.0), 1, 0.0)
    assert tab.decide(0.1) == Decision(False, 0, pytest.approx(0.4), Layer.LOCAL)
    assert tab.denial(0.4) == Decision(False, 0, pytest.approx(0.1), Layer.LOCAL)
    assert tab.denial(0.5) is None
    assert tab.decide(0.5) is None
    assert bucket.take(1, 0.5).granted == 1


def test_what_several_ask_for_together_is_theirs_in_their_order() -> None:
    bucket, tab = Bucket(Rate(1.0, 3), 0.0), Tab(Rate(1.0, 3), 0.0)
    decisions = tab.answered(5, bucket.take(5, 0.0), 5, 0.0)
    assert [each.allowed for each in decisions] == [True, True, True, False, False]
    assert [each.remaining for each in decisions] == [2, 1, 0, 0, 0]
    assert decisions[3].wait_s == 1.0


def test_who_came_after_the_question_was_sent_asks_again_unless_the_bucket_is_empty() -> None:
    tab = Tab(TEN, 0.0)
    assert [each.allowed for each in tab.answered(1, Taken(1, 8.0), 3, 0.0)] == [True]
    assert [each.allowed for each in tab.answered(2, Taken(1, 0.5), 3, 0.0)] == [True, False, False]


def test_R11_who_asks_often_takes_leases_and_only_he() -> None:
    fast = Rate(1000.0, 5000)
    tab = Tab(fast, 0.0)
    for step in range(HOT_PER_SECOND):
        tab.decide(step / 1000)
    assert tab.want(1, 0.3) == 1
    tab.decide(0.3)
    assert tab.want(1, 0.31) == 1 + math.ceil((HOT_PER_SECOND + 1) * LEASE_S)
    assert tab.want(1, 0.31, share=10) == 1 + math.ceil(fast.per_second * LEASE_S / 10)
    assert tab.want(1, 1.5) > 1, "the second before counts too"
    assert tab.want(1, 2.5) == 1


def test_R11_who_asks_ten_processes_is_as_hot_as_who_asks_one() -> None:
    tab = Tab(Rate(1000.0, 5000), 0.0)
    for step in range(HOT_PER_SECOND // 10):
        tab.decide(step / 100)
    assert tab.want(1, 0.3, share=10) == 1
    tab.decide(0.3)
    assert tab.want(1, 0.31, share=10) == 1 + math.ceil((HOT_PER_SECOND / 10 + 1) * LEASE_S)


def test_R11_leases_leave_a_consumer_within_his_rate_what_he_asks_for() -> None:
    """What is taken ahead and not used is lost: who asks three processes at nine tenths of his rate, in bursts, is refused
    nothing for that, though each of them believes that it is the only one."""
    rate = Rate(3000.0, 3000)
    bucket, tabs = Bucket(rate, 0.0), [Tab(rate, 0.0) for _ in range(3)]
    for tenth in range(40):
        for tab in tabs:
            for _ in range(90):
                decision = tab.decide(tenth / 10)
                if decision is None:
                    want = tab.want(1, tenth / 10)
                    (decision,) = tab.answered(want, bucket.take(want, tenth / 10), 1, tenth / 10)
                assert decision.allowed, f"after {tenth} tenths of a second"


def test_R11_a_lease_is_spent_once_and_lost_when_its_time_is_over() -> None:
    tab = Tab(TEN, 0.0)
    tab.answered(4, Taken(4, 3.0), 1, 0.0)
    assert [tab.decide(0.1) is not None for _ in range(4)] == [True, True, True, False]
    tab.answered(4, Taken(4, 0.0), 1, 1.0)
    assert tab.denial(1.1) is None, "tokens of the lease are left, though the bucket is empty"
    late = tab.decide(1.0 + LEASE_S)
    assert late is not None
    assert not late.allowed


def test_no_more_is_said_to_remain_than_a_bucket_holds() -> None:
    tab = Tab(Rate(1000.0, 60), 0.0)
    tab.answered(60, Taken(60, 0.0), 1, 0.0)
    later = tab.decide(0.1)  # the bucket is full again, and most of the lease is left
    assert later is not None
    assert (later.allowed, later.remaining) == (True, 60)


def test_alone_a_process_keeps_to_its_share() -> None:
    tab = Tab(Rate(4.0, 8), 0.0)
    decisions = [tab.alone(0.0, 4) for _ in range(3)]
    assert [(each.allowed, each.remaining, each.layer) for each in decisions] == [
        (True, 1, Layer.FALLBACK),
        (True, 0, Layer.FALLBACK),
        (False, 0, Layer.FALLBACK),
    ]
    assert decisions[2].wait_s == 1.0
    assert tab.alone(1.0, 4).allowed


def test_R12_who_keeps_his_row_busy_is_denied() -> None:
    assert Tab(TEN, 0.0).contended() == Decision(False, 0, CONTENTION_WAIT_S, Layer.LOCAL)


def test_the_wait_that_is_told_is_the_one_to_the_next_token() -> None:
    tab = Tab(Rate(0.5, 10), 0.0)
    (decision,) = tab.answered(1, Taken(1, 6.25), 1, 0.0)
    assert (decision.remaining, decision.wait_s) == (6, 1.5)
    (decision,) = tab.answered(1, Taken(1, 10.0), 1, 0.0)
    assert (decision.remaining, decision.wait_s) == (10, 0.0)


@pytest.mark.parametrize(
    ("taken", "at", "silent"),
    [(Taken(1, 5.0), 0.0, True), (Taken(0, 0.5), 0.2, False), (Taken(0, 0.5), 0.6, True), (Taken(3, 5.0), 0.1, False)],
)
def test_what_still_says_something_is_not_forgotten(taken: Taken, at: float, silent: bool) -> None:
    tab = Tab(TEN, 0.0)
    tab.answered(3, taken, 1, 0.0)
    assert tab.says_nothing(at) is silent
    tab.asked_at = at
    assert not tab.says_nothing(at)


def test_a_bucket_of_our_own_is_remembered_until_it_is_full() -> None:
    tab = Tab(TEN, 0.0)
    tab.alone(0.0, 1)
    assert not tab.says_nothing(9.0)
    assert tab.says_nothing(10.0)


# --- three processes ------------------------------------------------------------------------------------------------

_RATE = Rate(3.0, 7)
_STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(1, 5), st.integers(0, 9)), min_size=1, max_size=80
)


@given(_STEPS, st.tuples(*[st.integers(-10, 10)] * 3))
def test_R3_over_any_window_no_more_than_the_capacity_and_what_was_refilled(
    steps: list[tuple[int, int, int, int]], skews: tuple[int, int, int]
) -> None:
    """Three processes with clocks of their own on one bucket, which has another. Leases are taken as though they were hot."""
    bucket, now = Bucket(_RATE, 0.0), 0.0
    tabs = [Tab(_RATE, skew) for skew in skews]
    allowed: list[float] = []
    for node, twentieths, waiting, ahead in steps:
        now += twentieths / 20
        tab, here = tabs[node], now + skews[node]
        for _ in range(waiting):
            decision = tab.decide(here)
            if decision is None:
                want = 1 + ahead
                (decision,) = tab.answered(want, bucket.take(want, now), 1, here)
            allowed += [now] * decision.allowed
    assert len(allowed) <= _RATE.burst + _RATE.per_second * now + 1e-6
    for (first, start), (last, end) in combinations(enumerate(allowed), 2):
        carried = 9 * len(tabs)  # of leases taken before
        assert last - first + 1 <= _RATE.burst + _RATE.per_second * (end - start) + carried + 1e-6


@given(_STEPS)
def test_R3_without_leases_over_any_window_exactly(steps: list[tuple[int, int, int, int]]) -> None:
    bucket, now = Bucket(_RATE, 0.0), 0.0
    tabs = [Tab(_RATE, 0.0) for _ in range(3)]
    allowed: list[float] = []
    for node, twentieths, waiting, _ in steps:
        now += twentieths / 20
        for _ in range(waiting):
            decision = tabs[node].decide(now)
            if decision is None:
                (decision,) = tabs[node].answered(1, bucket.take(1, now), 1, now)
            allowed += [now] * decision.allowed
    for (first, start), (last, end) in combinations(enumerate(allowed), 2):
        assert last - first + 1 <= _RATE.burst + _RATE.per_second * (end - start) + 1e-6


@given(st.floats(0.5, 50), st.integers(1, 20), st.lists(st.floats(0, 0.3), min_size=1, max_size=60))
def test_B71_who_waits_as_long_as_he_was_told_is_allowed(per_second: float, burst: int, pauses: list[float]) -> None:
    """And a moment more for rounding, which whole seconds and the way here and back give."""
    rate = Rate(per_second, burst)
    bucket, tab, now = Bucket(rate, 0.0), Tab(rate, 0.0), 0.0

    def ask() -> Decision:
        return tab.decide(now) or tab.answered(1, bucket.take(1, now), 1, now)[0]

    for pause in pauses:
        now += pause
        decision = ask()
        if not decision.allowed:
            now += decision.wait_s + 1e-6
            assert ask().allowed

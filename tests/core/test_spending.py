"""Money: what calls cost, and that no account ever spends more than it may, on whatever, at any moment."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.core.purpose import Errand, Purpose, bare_context, errand, errand_in_hand, for_purpose
from app.core.spending import DAY_S, PRESETS, Account, Cost, Prices, prices_of, share_of
from app.metrics.labels import PURPOSES, UPSTREAM_METHODS

KNOWN = Errand(Purpose.REQUEST, anonymous=False)
ANONYMOUS = Errand(Purpose.REQUEST)
BACKFILL = Errand(Purpose.BACKFILL)
HEAD = Errand(Purpose.HEAD)
NOON = 20_000 * DAY_S + DAY_S / 2

errands = st.builds(Errand, st.sampled_from(Purpose), st.booleans())
prices = st.integers(0, 500).map(float)

# --- prices ---------------------------------------------------------------------------------------------------------


def test_a_batch_costs_what_its_calls_cost() -> None:
    listed = Prices({"eth_getTransactionReceipt": 15.0, "eth_chainId": 0.0}, other=2.0)
    assert listed.of(["eth_getTransactionReceipt"] * 100) == Cost(1500.0, 1500.0)
    assert listed.of(["eth_chainId", "eth_blockNumber"]) == Cost(2.0, 2.0)


@pytest.mark.parametrize(
    ("preset", "method", "cost"),
    [
        ("alchemy", "eth_chainId", Cost(0, 0)),
        ("alchemy", "eth_getBlockByNumber", Cost(20, 20)),
        ("alchemy", "eth_getBlockReceipts", Cost(20, 500)),
        ("infura", "eth_chainId", Cost(5, 5)),
        ("infura", "eth_getBlockByHash", Cost(80, 80)),
        ("infura", "eth_getBlockReceipts", Cost(1000, 1000)),
        ("flat", "eth_getBlockReceipts", Cost(1, 1)),
    ],
)
def test_a_preset_is_a_published_list(preset: str, method: str, cost: Cost) -> None:
    assert prices_of(preset).of([method]) == cost


def test_every_method_that_is_called_has_a_price_of_its_own_where_prices_differ_by_method() -> None:
    announced = {"eth_subscription"}  # called by the node, and paid for all the same
    assert set(PRESETS["alchemy"].units) - announced == set(UPSTREAM_METHODS)


def test_prices_that_are_stated_replace_a_preset() -> None:
    stated = prices_of({"eth_getBlockReceipts": 7})
    assert stated.of(["eth_getBlockReceipts"]) == Cost(7, 7)
    assert stated.of(["eth_blockNumber"]) == Cost(1, 1)


# --- units of a day -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("for_what", "spendable"),
    [(BACKFILL, 80), (ANONYMOUS, 90), (KNOWN, 100), (HEAD, 100), (Errand(Purpose.PROBE), 100)],
)
def test_backfill_stops_at_80_anonymous_requests_at_90_and_everything_at_100_percent(
    for_what: Errand, spendable: int
) -> None:
    account = Account(units_per_day=100.0)
    assert sum(account.charge(1.0, for_what, NOON) for _ in range(200)) == spendable
    assert account.spent_share(NOON) == spendable / 100


def test_who_may_spend_more_is_not_kept_from_it_by_who_may_spend_less() -> None:
    account = Account(units_per_day=100.0)
    assert [account.charge(80.0, BACKFILL, NOON), account.charge(1.0, BACKFILL, NOON)] == [True, False]
    assert [account.charge(10.0, ANONYMOUS, NOON), account.charge(1.0, ANONYMOUS, NOON)] == [True, False]
    assert [account.charge(10.0, KNOWN, NOON), account.charge(1.0, KNOWN, NOON), account.charge(1.0, HEAD, NOON)] == [
        True,
        False,
        False,
    ]


def test_asking_whether_it_may_be_spent_spends_nothing() -> None:
    account = Account(units_per_day=10.0)
    assert all(account.admits(10.0, KNOWN, NOON) for _ in range(5))
    assert account.spent(NOON) == 0


def test_a_new_day_in_utc_begins_with_everything() -> None:
    account = Account(units_per_day=10.0)
    midnight = 20_001 * DAY_S
    assert account.charge(10.0, KNOWN, midnight - 0.5)
    assert account.day_left_s(midnight - 0.5) == 0.5
    assert not account.charge(1.0, KNOWN, midnight - 0.001)
    assert account.charge(10.0, KNOWN, midnight)
    assert not account.charge(1.0, KNOWN, midnight + DAY_S - 1)


def test_a_clock_that_is_set_back_gives_nothing_back() -> None:
    account = Account(units_per_day=10.0)
    assert account.charge(10.0, KNOWN, NOON)
    assert not account.charge(1.0, KNOWN, NOON - 2 * DAY_S)
    assert account.day_left_s(NOON - 2 * DAY_S) == 2.5 * DAY_S


@given(
    cap=st.integers(1, 3000).map(float),
    calls=st.lists(st.tuples(prices, errands, st.integers(0, 90_000)), max_size=80),
)
def test_no_day_costs_more_than_it_may_for_anything(cap: float, calls: list[tuple[float, Errand, int]]) -> None:
    account, wall = Account(units_per_day=cap), NOON
    spent: dict[int, float] = {}
    for units, for_what, passed_s in calls:
        wall += passed_s
        day = int(wall // DAY_S)
        before = spent.get(day, 0.0)
        admitted = account.charge(units, for_what, wall)
        assert admitted == (before + units <= cap * share_of(for_what))
        spent[day] = before + units * admitted
        assert account.spent(wall) == spent[day] <= cap


def test_without_limits_everything_is_counted_and_nothing_refused() -> None:
    account = Account()
    assert account.charge(1e9, BACKFILL, NOON)
    assert account.turn_s(1e9, BACKFILL, 0.0) == 0
    account.queue(1e9, 0.0)
    assert (account.spent(NOON), account.spent_share(NOON)) == (1e9, 0.0)


def test_of_several_limits_of_one_account_the_lowest_hold() -> None:
    account = Account()
    account.narrow(100.0, None)
    account.narrow(None, 500.0)
    account.narrow(50.0, 900.0)
    account.narrow(70.0, 700.0)
    assert (account.units_per_second, account.units_per_day) == (50.0, 500.0)
    assert account.turn_s(51.0, KNOWN, 0.0) == 0
    account.queue(50.0, 0.0)
    assert account.turn_s(25.0, KNOWN, 0.0) == 0.5


def test_a_cool_down_is_never_shortened() -> None:
    account = Account()
    for until in (5.0, 3.0, 7.0, 6.0):
        account.cool(until)
    assert account.cooling_until == 7.0


# --- units of a second ----------------------------------------------------------------------------------------------


def test_a_seconds_worth_may_be_used_at_once_and_then_as_it_comes() -> None:
    account = Account(units_per_second=10.0)
    for _ in range(10):
        assert account.turn_s(1.0, KNOWN, 100.0) == 0
        account.queue(1.0, 100.0)
    waits = []
    for _ in range(3):
        waits.append(account.turn_s(1.0, KNOWN, 100.0))
        account.queue(1.0, 100.0)
    assert waits == pytest.approx([0.1, 0.2, 0.3])
    assert account.turn_s(1.0, KNOWN, 101.0) == 0


def test_who_leaves_the_line_gives_the_place_back() -> None:
    account = Account(units_per_second=10.0)
    account.queue(10.0, 0.0)
    account.queue(5.0, 0.0)
    account.leave(5.0, 0.0)
    assert account.turn_s(5.0, KNOWN, 0.0) == 0.5
    account.leave(10.0, 100.0)
    assert account.turn_s(10.0, KNOWN, 100.0) == 0
    account.queue(10.0, 100.0)
    assert account.turn_s(1.0, KNOWN, 100.0) == pytest.approx(0.1), "no more is in hand than may be used at once"


def test_what_takes_more_than_a_second_gives_waits_for_all_of_it_and_is_made_up_for() -> None:
    account = Account(units_per_second=10.0)
    account.queue(4.0, 0.0)
    assert account.turn_s(35.0, KNOWN, 0.0) == 0.4
    account.queue(35.0, 0.4)
    assert account.turn_s(1.0, KNOWN, 0.4) == pytest.approx(2.6)


def test_backfill_leaves_half_of_it_to_requests_and_waits_while_any_wait() -> None:
    account = Account(units_per_second=10.0)
    assert account.turn_s(5.0, BACKFILL, 0.0) == 0
    assert account.turn_s(6.0, BACKFILL, 0.0) == 0, "what takes more than half waits for all"
    account.queue(1.0, 0.0)
    assert account.turn_s(5.0, BACKFILL, 0.0) == pytest.approx(0.1)
    assert account.turn_s(5.0, KNOWN, 0.0) == 0
    account.queue(29.0, 0.0)
    assert account.turn_s(1.0, BACKFILL, 0.0) > account.turn_s(1.0, KNOWN, 0.0) > 2


@given(
    rate=st.integers(1, 50).map(float),
    calls=st.lists(st.tuples(st.integers(1, 120).map(float), errands, st.floats(0, 5)), min_size=1, max_size=60),
)
@example(rate=10.0, calls=[(35.0, KNOWN, 0.0), (1.0, KNOWN, 0.0), (1.0, KNOWN, 0.0)])
def test_over_any_time_no_more_than_the_rate_and_what_may_be_used_at_once(
    rate: float, calls: list[tuple[float, Errand, float]]
) -> None:
    account, now = Account(units_per_second=rate), 0.0
    started: list[tuple[float, float]] = []
    for units, for_what, passed_s in calls:
        now += passed_s
        wait_s = account.turn_s(units, for_what, now)
        if for_what.purpose is Purpose.BACKFILL and wait_s:
            continue
        account.queue(units, now)
        started.append((now + wait_s, units))
    assert started == sorted(started, key=lambda call: call[0]), "first come, first served"
    largest = max((units for _, units in started), default=0.0)
    for first in range(len(started)):
        for last in range(first, len(started)):
            took_s = started[last][0] - started[first][0]
            used = sum(units for _, units in started[first : last + 1])
            assert used <= rate * took_s + max(rate, largest) + rate * 1e-6


def test_what_costs_nothing_waits_for_nobody() -> None:
    account = Account(units_per_second=10.0)
    account.queue(100.0, 0.0)
    assert account.turn_s(0.0, BACKFILL, 0.0) == 0


# --- purposes -------------------------------------------------------------------------------------------------------


def test_the_purposes_are_the_labels_of_the_metric() -> None:
    assert tuple(Purpose) == PURPOSES


def test_what_nobody_gave_a_purpose_is_for_a_request_of_nobody_in_particular() -> None:
    assert errand_in_hand() == ANONYMOUS
    with for_purpose(Purpose.HEAD):
        assert errand_in_hand() == HEAD
    assert errand_in_hand() == ANONYMOUS


async def test_a_purpose_that_changes_changes_for_everything_that_was_started_for_it() -> None:
    mine = Errand(Purpose.BACKFILL)
    errand.set(mine)
    go_on = asyncio.Event()

    async def call() -> Purpose:
        await go_on.wait()
        return errand_in_hand().purpose

    async with asyncio.TaskGroup() as group:
        begun = group.create_task(call())
        await asyncio.sleep(0)
        mine.purpose = Purpose.REQUEST
        go_on.set()
    assert begun.result() is Purpose.REQUEST


def test_work_that_outlives_whoever_began_it_keeps_its_purpose_and_nothing_else() -> None:
    with for_purpose(Purpose.BACKFILL):
        context = bare_context()
    assert context.run(errand_in_hand) == BACKFILL
    assert list(context) == [errand]

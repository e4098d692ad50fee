"""The fill budget as a state machine: what it decides, for whom, and that nothing is lost on the way."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.core.budget import FillBudget, Granted, Priority, Queued, Refusal, Refused, Ticket, TicketState

REQUEST, BACKFILL = Priority.REQUEST, Priority.BACKFILL


def granted(budget: FillBudget, priority: Priority = REQUEST, **more: Any) -> Ticket:
    decision = budget.request(0.0, priority, **more)
    assert isinstance(decision, Granted)
    return decision.ticket


def queued(budget: FillBudget, priority: Priority = REQUEST, **more: Any) -> Ticket:
    decision = budget.request(0.0, priority, **more)
    assert isinstance(decision, Queued)
    return decision.ticket


def turns(budget: FillBudget, held: Ticket, names: dict[Ticket, str], releases: int) -> list[str]:
    """Who is granted, one after the other, as often as the permit in hand is given back."""
    order = []
    for _ in range(releases):
        (held,) = budget.release(held, 0.0).granted
        order.append(names[held])
    return order


def test_repr_is_the_dashboard() -> None:
    budget = FillBudget(16)
    for priority in (REQUEST, REQUEST, BACKFILL):
        granted(budget, priority)
    assert repr(budget) == "<FillBudget 3/16 running (1 backfill), 0 waiting>"


@pytest.mark.parametrize(("limit", "reserve"), [(1, 0), (2, 1), (3, 1), (4, 1), (7, 1), (8, 2), (16, 4)])
def test_the_default_reserve_is_a_quarter_and_never_everything(limit: int, reserve: int) -> None:
    assert FillBudget(limit).reserve == reserve


@pytest.mark.parametrize(
    ("limit", "reserve", "max_queued"), [(0, None, 1), (-1, None, 1), (4, 4, 1), (4, -1, 1), (4, 1, -1)]
)
def test_limits_that_leave_nothing_are_refused(limit: int, reserve: int | None, max_queued: int) -> None:
    with pytest.raises(ValueError, match=r"must"):
        FillBudget(limit, reserve=reserve, max_queued=max_queued)


def test_P1_backfill_stays_within_its_share() -> None:
    budget = FillBudget(8)
    for _ in range(6):
        granted(budget, BACKFILL)
    queued(budget, BACKFILL)
    assert (budget.running(BACKFILL), budget.waiting(BACKFILL)) == (6, 1)


def test_P1_requests_may_take_everything_and_no_more() -> None:
    budget = FillBudget(3)
    for _ in range(3):
        granted(budget)
    queued(budget)
    assert budget.running() == 3


def test_P2_a_request_starts_on_the_reserve_though_backfill_is_saturated() -> None:
    budget = FillBudget(4)
    for _ in range(3):
        granted(budget, BACKFILL)
    queued(budget, BACKFILL)
    granted(budget)


def test_P2_a_waiting_request_goes_before_backfill_that_came_first() -> None:
    budget = FillBudget(2)
    first, second = granted(budget, BACKFILL), granted(budget)
    backfill = queued(budget, BACKFILL)
    request = queued(budget)
    assert budget.release(first, 0.0).granted == (request,)
    assert budget.release(second, 0.0).granted == (backfill,)


def test_P3_backfill_does_not_start_while_a_request_waits_and_resumes_once_none_does() -> None:
    budget = FillBudget(4, reserve=0)
    running = [granted(budget) for _ in range(4)]
    backfill = queued(budget, BACKFILL)
    requests = [queued(budget) for _ in range(3)]
    woken = [ticket for holder in running for ticket in budget.release(holder, 0.0).granted]
    assert woken == [*requests, backfill]


def test_P3_a_waiting_request_that_leaves_lets_backfill_start() -> None:
    budget = FillBudget(2)
    granted(budget)
    holder = granted(budget)
    backfill, request = queued(budget, BACKFILL), queued(budget)
    budget.cancel(request, 0.0)
    assert budget.release(holder, 0.0).granted == (backfill,)


def test_first_come_first_served_inside_a_class() -> None:
    budget = FillBudget(1)
    holder = granted(budget)
    line = [queued(budget) for _ in range(4)]
    served = []
    while budget.waiting():
        (holder,) = budget.release(holder, 0.0).granted
        served.append(holder)
    assert served == line


def test_P4_cancelling_a_waiter_leaves_nothing_and_a_granted_one_wakes_the_next() -> None:
    budget = FillBudget(1)
    holder = granted(budget)
    second, third = queued(budget), queued(budget)
    assert budget.cancel(second, 0.0).granted == ()
    assert budget.cancel(holder, 0.0).granted == (third,)
    assert budget.cancel(holder, 0.0).granted == ()
    assert budget.cancel(third, 0.0).granted == ()
    assert (budget.running(), budget.waiting()) == (0, 0)


def test_P5_raising_the_limit_wakes_waiters_without_a_release() -> None:
    budget = FillBudget(1)
    granted(budget)
    line = [queued(budget) for _ in range(3)]
    assert budget.set_limit(3, 0.0).granted == tuple(line[:2])
    assert budget.running() == 3


def test_P5_lowering_the_limit_revokes_nothing_and_is_paid_back_by_releases() -> None:
    budget = FillBudget(4)
    holders = [granted(budget) for _ in range(4)]
    waiter = queued(budget)
    assert budget.set_limit(2, 0.0).granted == ()
    assert budget.running() == 4
    assert [budget.release(holder, 0.0).granted for holder in holders[:3]] == [(), (), (waiter,)]
    assert budget.running() == 2


def test_a_reserve_asked_for_shrinks_with_the_limit() -> None:
    budget = FillBudget(8, reserve=6)
    budget.set_limit(2, 0.0)
    assert budget.reserve == 1


def test_promoting_a_running_backfill_counts_it_as_a_request_and_frees_its_share() -> None:
    budget = FillBudget(4)
    holders = [granted(budget, BACKFILL) for _ in range(3)]
    waiter = queued(budget, BACKFILL)
    assert budget.promote(holders[0], 0.0).granted == (waiter,)
    assert (budget.running(REQUEST), budget.running(BACKFILL)) == (1, 3)
    budget.release(holders[0], 0.0)
    assert (budget.running(REQUEST), budget.running(BACKFILL)) == (0, 3)


def test_promoting_a_waiting_backfill_lets_it_use_the_reserve() -> None:
    budget = FillBudget(4)
    for _ in range(3):
        granted(budget, BACKFILL)
    waiter = queued(budget, BACKFILL)
    assert budget.promote(waiter, 0.0).granted == (waiter,)
    assert waiter.state is TicketState.RUNNING
    assert (budget.running(REQUEST), budget.running(BACKFILL)) == (1, 3)


def test_promoting_twice_or_after_the_end_changes_nothing() -> None:
    budget = FillBudget(2)
    ticket = granted(budget, BACKFILL)
    budget.promote(ticket, 0.0)
    budget.promote(ticket, 0.0)
    assert budget.running(REQUEST) == 1
    budget.release(ticket, 0.0)
    budget.promote(ticket, 0.0)
    assert budget.running() == 0


def test_a_full_queue_refuses_at_once() -> None:
    budget = FillBudget(1, max_queued=1)
    granted(budget)
    queued(budget)
    assert budget.request(0.0, REQUEST) == Refused(Refusal.QUEUE_FULL)


def test_without_a_queue_a_request_starts_at_once_or_is_refused() -> None:
    budget = FillBudget(1, max_queued=0)
    holder = granted(budget)
    assert budget.request(0.0, REQUEST) == Refused(Refusal.QUEUE_FULL)
    budget.release(holder, 0.0)
    granted(budget)


def test_work_that_gave_its_permit_back_may_wait_though_the_queue_is_full() -> None:
    budget = FillBudget(1, max_queued=0)
    holder = granted(budget)
    returning = queued(budget, again=True)
    assert budget.request(0.0, REQUEST) == Refused(Refusal.QUEUE_FULL)
    assert budget.release(holder, 0.0).granted == (returning,)


def test_backfill_may_wait_without_a_queue_for_requests_and_takes_no_place_in_it() -> None:
    budget = FillBudget(1, max_queued=0)
    granted(budget)
    queued(budget, BACKFILL)
    assert budget.request(0.0, BACKFILL) == Refused(Refusal.QUEUE_FULL)


def test_who_can_no_longer_finish_is_refused_now_though_a_permit_is_free() -> None:
    budget = FillBudget(1)
    assert budget.request(5.0, REQUEST, cutoff=5.0) == Refused(Refusal.WAIT_TIMEOUT)
    assert budget.running() == 0


def test_expiry_sends_away_exactly_those_whose_cutoff_came() -> None:
    budget = FillBudget(1)
    granted(budget)
    early, late, never = queued(budget, cutoff=1.0), queued(budget, cutoff=2.0), queued(budget)
    assert budget.expire(1.0).refused == (early,)
    assert budget.expire(1.5).refused == ()
    assert budget.expire(9.0).refused == (late,)
    assert (budget.waiting(), never.state) == (1, TicketState.WAITING)


def test_a_waiter_past_its_cutoff_is_not_started_when_its_turn_comes() -> None:
    budget = FillBudget(1)
    holder = granted(budget)
    late, next_one = queued(budget, cutoff=1.0), queued(budget)
    changes = budget.release(holder, 2.0)
    assert (changes.granted, changes.refused) == ((next_one,), (late,))


def test_releasing_twice_is_loud() -> None:
    budget = FillBudget(1)
    ticket = granted(budget)
    budget.release(ticket, 0.0)
    with pytest.raises(RuntimeError, match="holds no permit"):
        budget.release(ticket, 0.0)


def test_consumers_take_turns_and_each_ones_fills_keep_their_order() -> None:
    budget = FillBudget(1)
    held = granted(budget, consumer="a")
    names = {queued(budget, consumer="a"): f"a{index}" for index in range(4)}
    names |= {queued(budget, consumer="b"): f"b{index}" for index in range(2)}
    names |= {queued(budget, consumer="c"): "c0"}
    assert turns(budget, held, names, 7) == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]


def test_a_hundred_fills_of_one_consumer_do_not_precede_the_one_of_another() -> None:
    budget = FillBudget(1, max_queued=200)
    held = granted(budget, consumer="many")
    names = {queued(budget, consumer="many"): "many" for _ in range(100)}
    names[queued(budget, consumer="one")] = "one"
    assert "one" in turns(budget, held, names, 2)


def test_whose_fill_is_cancelled_or_late_loses_no_turn() -> None:
    budget = FillBudget(1)
    held = granted(budget, consumer="a")
    gone = queued(budget, consumer="a")
    queued(budget, consumer="a", cutoff=1.0)
    names = {queued(budget, consumer="a"): "a", queued(budget, consumer="b"): "b"}
    budget.cancel(gone, 0.0)
    changes = budget.release(held, 2.0)
    assert [names[ticket] for ticket in changes.granted] == ["a"]


def test_a_fill_that_another_consumer_waits_for_too_has_the_turns_of_either() -> None:
    budget = FillBudget(1)
    held = granted(budget, consumer="a")
    names = {queued(budget, consumer="a"): f"a{index}" for index in range(5)}
    shared = next(ticket for ticket, name in names.items() if name == "a4")
    budget.share(shared, "b")
    assert turns(budget, held, names, 5) == ["a0", "a4", "a1", "a2", "a3"]
    assert budget.waiting() == 0


def test_a_promoted_fill_waits_in_the_turns_of_who_joined_it() -> None:
    budget = FillBudget(1, reserve=0)
    held = granted(budget, consumer="a")
    names = {queued(budget, consumer="a"): f"a{index}" for index in range(3)}
    filled_ahead = queued(budget, BACKFILL)
    names[filled_ahead] = "b0"
    budget.share(filled_ahead, "b")  # before it counts as a request's: backfill takes no part in turns
    budget.promote(filled_ahead, 0.0)
    budget.share(filled_ahead, "b")
    assert turns(budget, held, names, 4) == ["a0", "b0", "a1", "a2"]
    assert filled_ahead.consumers == {"b": None}


def test_in_a_full_line_who_has_most_gives_a_place_up() -> None:
    budget = FillBudget(1, max_queued=4)
    granted(budget, consumer="a")
    waiting = [queued(budget, consumer="a") for _ in range(4)]
    for leaving in (waiting[3], waiting[2]):
        decision = budget.request(0.0, REQUEST, consumer="b")
        assert isinstance(decision, Queued)
        assert decision.displaced is leaving
        assert leaving.state is TicketState.ENDED
    assert budget.request(0.0, REQUEST, consumer="b") == Refused(Refusal.QUEUE_FULL)  # it has its half
    assert budget.waiting(REQUEST) == 4


@pytest.mark.parametrize("who", ["a", "b", None])
def test_in_a_full_line_nobody_is_sent_away_for_who_has_his_share(who: str | None) -> None:
    budget = FillBudget(1, max_queued=4)
    granted(budget)
    for consumer in ("a", "b", None, who):
        queued(budget, consumer=consumer)
    assert budget.request(0.0, REQUEST, consumer=who) == Refused(Refusal.QUEUE_FULL)


def test_a_place_is_not_given_up_for_who_would_then_have_more() -> None:
    budget = FillBudget(1, max_queued=3)
    granted(budget)
    for consumer in ("a", "a", "b"):
        queued(budget, consumer=consumer)
    assert budget.request(0.0, REQUEST, consumer="b") == Refused(Refusal.QUEUE_FULL)


@given(st.lists(st.sampled_from(("a", "b", "c", None)) | st.just("release"), max_size=60))
def test_nobody_has_two_turns_while_another_waits_for_his(events: list[str | None]) -> None:
    budget = FillBudget(1, max_queued=100)
    held = granted(budget)
    waiting: list[Ticket] = []
    passed: dict[str | None, Counter[str | None]] = {}
    for event in events:
        if event != "release":
            waiting.append(queued(budget, consumer=event))
            passed.setdefault(event, Counter())
        elif waiting:
            (held,) = budget.release(held, 0.0).granted
            waiting.remove(held)
            (who,) = held.consumers
            still = {next(iter(ticket.consumers)) for ticket in waiting}
            passed = {other: passed[other] for other in still}
            for other in still - {who}:
                passed[other][who] += 1
                assert passed[other][who] == 1
            if who in still:
                passed[who] = Counter()


def test_neither_begun_work_nor_what_several_wait_for_is_sent_away() -> None:
    budget = FillBudget(1, max_queued=3)
    granted(budget, consumer="a")
    plain = queued(budget, consumer="a")
    budget.share(queued(budget, consumer="a"), "c")
    queued(budget, consumer="a", again=True)
    decision = budget.request(0.0, REQUEST, consumer="b")
    assert isinstance(decision, Queued)
    assert decision.displaced is plain


class Budget(RuleBasedStateMachine):
    """Any order of events keeps P1-P5 and the turns, and every ticket is accounted for by what the budget said about it."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = FillBudget(4, max_queued=3)
        self.now = 0.0
        self.running: list[Ticket] = []  # in order: examples must replay the same
        self.waiting: list[Ticket] = []
        self.lowered = False
        self.passed: dict[str | None, Counter[str | None]] = {}  # by who waits: the turns that others had meanwhile

    def see(self, changes: Any) -> None:
        for ticket in changes.refused:
            assert ticket.cutoff is not None
            assert ticket.cutoff <= self.now
            self.waiting.remove(ticket)
        for ticket in changes.granted:
            ahead = self.waiting[: self.waiting.index(ticket)]
            alike = [each for each in ahead if each.priority is ticket.priority and each.consumers == ticket.consumers]
            assert not alike, "not first come first served"
            assert ticket.cutoff is None or ticket.cutoff > self.now
            self.waiting.remove(ticket)
            self.running.append(ticket)
            if ticket.priority is BACKFILL:
                assert not [other for other in self.waiting if other.priority is REQUEST], "P3"
            else:
                self.note_turn(ticket)
        self.who_waits()

    def note_turn(self, ticket: Ticket) -> None:
        for who in self.who_waits():
            if who not in ticket.consumers and len(ticket.consumers) == 1:
                self.passed[who].update(tuple(ticket.consumers))
                assert max(self.passed[who].values()) == 1, "somebody had two turns while another waited for his"
            elif who in ticket.consumers:
                self.passed[who].clear()

    def who_waits(self) -> set[str | None]:
        now = {who for ticket in self.waiting if ticket.priority is REQUEST for who in ticket.consumers}
        self.passed = {who: self.passed.get(who, Counter()) for who in now}
        return now

    @rule(
        priority=st.sampled_from(Priority),
        patience_s=st.none() | st.integers(-1, 5),
        again=st.booleans(),
        consumer=st.sampled_from((None, "a", "b", "c")),
    )
    def request(self, priority: Priority, patience_s: int | None, again: bool, consumer: str | None) -> None:
        cutoff = None if patience_s is None else self.now + patience_s
        if priority is BACKFILL:
            consumer = None
        had = sum(consumer in ticket.consumers for ticket in self.waiting if ticket.priority is priority)
        match self.budget.request(self.now, priority, cutoff=cutoff, again=again, consumer=consumer):
            case Granted(ticket):
                assert not [other for other in self.waiting if other.priority in (REQUEST, priority)]
                self.running.append(ticket)
            case Queued(ticket, None):
                self.waiting.append(ticket)
                self.who_waits()
            case Queued(ticket, displaced):
                assert displaced is not None
                (loser,) = displaced.consumers
                lost = sum(loser in other.consumers for other in self.waiting if other.priority is priority)
                assert lost > had + 1, "sent away for somebody who then has more"
                self.waiting.remove(displaced)
                self.waiting.append(ticket)
                self.who_waits()
            case Refused(Refusal.WAIT_TIMEOUT):
                assert cutoff is not None
                assert cutoff <= self.now
            case Refused(Refusal.QUEUE_FULL):
                assert not again
                assert self.budget.waiting(priority) >= min(3, self.budget.limit)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.running))
        self.running.remove(ticket)
        self.see(self.budget.release(ticket, self.now))

    @precondition(lambda self: self.running or self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from([*self.running, *self.waiting]))
        (self.running if ticket in self.running else self.waiting).remove(ticket)
        self.see(self.budget.cancel(ticket, self.now))

    @precondition(lambda self: self.running or self.waiting)
    @rule(data=st.data())
    def promote(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from([*self.running, *self.waiting]))
        if ticket in self.waiting and ticket.priority is BACKFILL:  # goes to the end of the other line
            self.waiting.remove(ticket)
            self.waiting.append(ticket)
        self.see(self.budget.promote(ticket, self.now))
        assert ticket.priority is REQUEST

    @precondition(lambda self: self.running or self.waiting)
    @rule(data=st.data(), consumer=st.sampled_from((None, "a", "b", "c")))
    def share(self, data: st.DataObject, consumer: str | None) -> None:
        ticket = data.draw(st.sampled_from([*self.running, *self.waiting]))
        if ticket in self.waiting and ticket.priority is REQUEST and None in ticket.consumers and consumer is not None:
            self.waiting.remove(ticket)  # what was nobody's goes to the end of his tickets
            self.waiting.append(ticket)
        self.budget.share(ticket, consumer)
        self.who_waits()

    @rule(passed_s=st.integers(0, 3))
    def time_passes(self, passed_s: int) -> None:
        self.now += passed_s
        self.see(self.budget.expire(self.now))
        assert not [ticket for ticket in self.waiting if ticket.cutoff is not None and ticket.cutoff <= self.now]

    @rule(limit=st.integers(1, 6))
    def set_limit(self, limit: int) -> None:
        self.lowered = True
        self.see(self.budget.set_limit(limit, self.now))

    @invariant()
    def every_ticket_is_where_the_budget_said(self) -> None:
        for priority in Priority:
            assert self.budget.running(priority) == sum(ticket.priority is priority for ticket in self.running)
            assert self.budget.waiting(priority) == sum(ticket.priority is priority for ticket in self.waiting)

    @invariant()
    def p1_shares(self) -> None:
        if not self.lowered:
            assert self.budget.running() <= self.budget.limit
            assert self.budget.running(BACKFILL) <= self.budget.limit - self.budget.reserve

    @invariant()
    def nobody_waits_who_could_start(self) -> None:
        free = self.budget.limit - self.budget.running()
        if free > 0:
            assert not self.budget.waiting(REQUEST)
            if self.budget.running(BACKFILL) < self.budget.limit - self.budget.reserve:
                assert not self.budget.waiting(BACKFILL)

    def teardown(self) -> None:
        for ticket in [*self.running, *self.waiting]:
            self.budget.cancel(ticket, self.now)
        assert (self.budget.running(), self.budget.waiting()) == (0, 0)


TestAnyOrderOfEvents = Budget.TestCase
TestAnyOrderOfEvents.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)

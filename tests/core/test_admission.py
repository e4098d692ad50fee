"""The door as a state machine: who gets in, what the refused are told, and that everything is given back."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.core.admission import Door, Lane, Place, Shed
from app.core.saturation import Gate, SaturationWindow

X, Y = 1, 2


def door(process: int | None = 4, chain: int | None = 2, warm: int | None = 3, threshold_s: float = 0) -> Door:
    def gate(limit: int | None) -> Gate:
        return Gate(limit, SaturationWindow(threshold_s))

    return Door(gate(process), {X: gate(chain), Y: gate(chain)}, gate(warm))


def entered(at: Door, chain_key: int | None = X, lane: Lane = Lane.COLD) -> Place:
    place = at.enter(lane, chain_key, 0.0)
    assert isinstance(place, Place)
    return place


def test_A3_a_full_chain_does_not_keep_another_one_out() -> None:
    at = door()
    for _ in range(2):
        entered(at, X)
    assert at.enter(Lane.COLD, X, 0.0) is Shed.CHAIN_OVERLOADED
    entered(at, Y)


def test_A3_the_refused_of_one_chain_never_hold_a_place_of_the_process() -> None:
    at = door(process=3, chain=2)
    for _ in range(2):
        entered(at, X)
    for _ in range(100):
        assert at.enter(Lane.COLD, X, 0.0) is Shed.CHAIN_OVERLOADED
        assert at.process.taken == 2
    entered(at, Y)
    assert at.enter(Lane.COLD, Y, 0.0) is Shed.OVERLOADED
    assert at.chains[Y].taken == 1


def test_a_request_that_names_no_chain_needs_a_place_of_the_process_only() -> None:
    at = door(process=1)
    place = entered(at, None)
    assert (at.process.taken, at.chains[X].taken) == (1, 0)
    assert at.enter(Lane.COLD, None, 0.0) is Shed.OVERLOADED
    at.leave(place, 0.0)
    assert at.process.taken == 0


def test_A8_giving_back_twice_changes_nothing() -> None:
    at = door()
    place, other = entered(at), entered(at)
    for _ in range(2):
        at.leave(place, 0.0)
        assert (at.process.taken, at.chains[X].taken) == (1, 1)
    at.leave(other, 0.0)
    assert (at.process.taken, at.chains[X].taken) == (0, 0)


def test_cold_load_takes_nothing_from_the_warm_lane_and_warm_load_opens_no_window() -> None:
    at = door(process=1, chain=1, warm=2)
    entered(at)
    warm = [entered(at, X, Lane.WARM) for _ in range(2)]
    assert at.enter(Lane.WARM, X, 0.0) is Shed.WARM_LANE
    assert not any(gate.window.is_open(0.0) for gate in (at.process, at.chains[X], at.warm))
    for place in warm:
        at.leave(place, 0.0)
    assert (at.warm.taken, at.process.taken) == (0, 1)


def test_refusals_open_the_window_of_the_gate_that_refused_and_no_other() -> None:
    at = door(process=3, chain=2)
    for _ in range(2):
        entered(at, X)
    at.enter(Lane.COLD, X, 0.0)
    assert (at.process.window.is_open(0.0), at.chains[X].window.is_open(0.0)) == (False, True)
    entered(at, Y)
    at.enter(Lane.COLD, Y, 0.0)
    assert (at.process.window.is_open(0.0), at.chains[Y].window.is_open(0.0)) == (True, False)


def test_a_warm_answer_is_remembered_for_the_threshold_and_a_warm_refusal_is_not() -> None:
    at = door(threshold_s=10)
    assert not at.serves_known_answers(0.0)
    at.leave(entered(at, X, Lane.WARM), 100.0, served=False)
    assert not at.serves_known_answers(100.0)
    at.leave(entered(at, X, Lane.WARM), 100.0)
    assert at.serves_known_answers(109.9)
    assert not at.serves_known_answers(110.0)


def test_a_cold_answer_is_no_known_answer() -> None:
    at = door(threshold_s=10)
    at.leave(entered(at), 0.0)
    batch = entered(at, X, Lane.WARM)
    at.add(batch, 1, 0.0)
    at.leave(batch, 0.0)
    assert not at.serves_known_answers(0.0)


# --- A10: what a batch weighs -----------------------------------------------------------------------------------------


def test_A10_a_batch_weighs_as_many_places_as_it_needs_blocks() -> None:
    at = door(process=8, chain=6)
    batch = entered(at, X, Lane.WARM)
    assert at.add(batch, 5, 0.0) is None
    assert (at.process.taken, at.chains[X].taken, batch.cold) == (5, 5, 5)
    other = entered(at, X, Lane.WARM)
    assert at.add(other, 2, 0.0) is Shed.CHAIN_OVERLOADED
    assert (at.process.taken, at.chains[X].taken, other.cold) == (5, 5, 0)
    at.leave(batch, 0.0)
    assert (at.process.taken, at.chains[X].taken, at.warm.taken) == (0, 0, 1)


def test_A10_a_batch_that_needs_nothing_is_never_refused_for_cold_load() -> None:
    at = door(process=1, chain=1)
    entered(at)
    assert at.add(entered(at, X, Lane.WARM), 0, 0.0) is None


def test_A10_a_batch_larger_than_a_gate_fills_the_gate_and_is_not_refused_for_ever() -> None:
    at = door(process=8, chain=6)
    batch = entered(at, X, Lane.WARM)
    assert at.add(batch, 10, 0.0) is None
    assert (at.process.taken, at.chains[X].taken) == (6, 6)
    assert at.add(batch, 10, 0.0) is None
    assert (at.process.taken, at.chains[X].taken) == (6, 6)


def test_A10_the_process_being_full_refuses_a_batch_too() -> None:
    at = door(process=3, chain=3)
    entered(at, Y)
    assert at.add(entered(at, X, Lane.WARM), 3, 0.0) is Shed.OVERLOADED
    assert at.process.window.is_open(0.0)


def test_A12_without_limits_everybody_comes_in() -> None:
    at = door(None, None, None)
    places = [entered(at, X, lane) for lane in Lane for _ in range(1000)]
    assert at.add(places[-1], 10**9, 0.0) is None
    for place in places:
        at.leave(place, 0.0)
    assert (at.process.taken, at.chains[X].taken, at.warm.taken) == (0, 0, 0)


# --- consumers ----------------------------------------------------------------------------------------------------------


def flood(at: Door, consumer: str, chain_key: int = X) -> tuple[list[Place], set[Shed]]:
    """Everything that one consumer gets, and why not more."""
    outcomes = [at.enter(Lane.COLD, chain_key, 0.0, consumer) for _ in range(100)]
    places = [each for each in outcomes if isinstance(each, Place)]
    return places, {each for each in outcomes if isinstance(each, Shed)}


def test_who_floods_leaves_room_for_everybody_else() -> None:
    at = door(process=64, chain=32)
    got = {}
    for consumer in ("first", "second", "third"):
        places, why_not = flood(at, consumer)
        got[consumer] = len(places)
        assert why_not == ({Shed.CONSUMER} if at.chains[X].has_room() else {Shed.CHAIN_OVERLOADED})
    assert got == {"first": 24, "second": 6, "third": 1}
    assert isinstance(at.enter(Lane.COLD, X, 0.0, "newcomer"), Place)
    assert at.enter(Lane.COLD, X, 0.0, "too late") is Shed.CHAIN_OVERLOADED
    assert at.chains[Y].taken == 0
    assert (len(flood(at, "first", Y)[0]), at.process.taken) == (18, 50), (
        "42 of the process, three times what is left of it"
    )
    assert flood(at, "second", Y)[0]


def test_what_one_consumer_is_refused_is_no_saturation() -> None:
    at = door(process=8, chain=8)
    flood(at, "first")
    assert not at.chains[X].window.is_open(0.0)
    assert not at.process.window.is_open(0.0)


def test_one_request_is_not_too_much_for_anybody() -> None:
    at = door(process=8, chain=8)
    batch = at.enter(Lane.WARM, X, 0.0, "one")
    assert isinstance(batch, Place)
    assert at.add(batch, 5, 0.0) is None
    assert at.add(batch, 3, 0.0) is None
    assert at.chains[X].taken == 8


def test_what_is_given_back_may_be_taken_again() -> None:
    at = door(process=8, chain=8)
    places, _ = flood(at, "one")
    for place in places:
        at.leave(place, 0.0)
        at.leave(place, 0.0)
    assert len(flood(at, "one")[0]) == len(places) == 6


def test_who_is_not_told_apart_fills_the_gate() -> None:
    at = door(process=8, chain=8)
    for _ in range(8):
        entered(at)
    assert not at.chains[X].has_room()


def test_repr_is_the_dashboard() -> None:
    at = door()
    place = entered(at)
    assert repr(place) == "<Place cold chain=1 cold=1 warm=0>"
    assert "process=<Gate 1/4 <SaturationWindow clear>>" in repr(at)


class AnyDoor(RuleBasedStateMachine):
    """Whatever comes, adds and goes: no gate is overdrawn, the gates hold what the places hold, nothing stays behind."""

    def __init__(self) -> None:
        super().__init__()
        self.at = door(process=5, chain=3, warm=4)
        self.inside: list[Place] = []

    @rule(lane=st.sampled_from(Lane), chain=st.sampled_from([X, Y, None]), consumer=st.sampled_from(["a", "b", None]))
    def come(self, lane: Lane, chain: int | None, consumer: str | None) -> None:
        outcome = self.at.enter(lane, chain, 0.0, consumer)
        if isinstance(outcome, Place):
            self.inside.append(outcome)

    @rule(which=st.integers(0, 99), places=st.integers(0, 7))
    def add(self, which: int, places: int) -> None:
        if self.inside:
            self.at.add(self.inside[which % len(self.inside)], places, 0.0)

    @rule(which=st.integers(0, 99), served=st.booleans())
    def go(self, which: int, served: bool) -> None:
        if self.inside:
            self.at.leave(self.inside.pop(which % len(self.inside)), 0.0, served=served)

    @invariant()
    def gates_hold_what_places_hold(self) -> None:
        at = self.at
        assert at.process.taken == sum(place.cold for place in self.inside) <= 5
        assert at.warm.taken == sum(place.warm for place in self.inside) <= 4
        for key, gate in at.chains.items():
            assert gate.taken == sum(place.cold for place in self.inside if place.chain_key == key) <= 3

    @invariant()
    def S3_an_open_window_has_a_holder(self) -> None:
        for gate in (self.at.process, *self.at.chains.values()):
            assert gate.taken or not gate.window.is_open(0.0)

    def teardown(self) -> None:
        while self.inside:
            self.go(0, True)
        assert not self.at._held
        self.gates_hold_what_places_hold()
        self.S3_an_open_window_has_a_holder()


TestAnyDoor = AnyDoor.TestCase

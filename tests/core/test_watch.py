"""When a subscription can be relied on, and when it is given up."""

from __future__ import annotations

from app.core.watch import LATE_S, SILENT_S, Watch


def block(height: int, fork: int = 0) -> tuple[int, bytes]:
    return height, bytes([fork]) + height.to_bytes(31, "big")


def subscribed(now: float = 1000.0) -> Watch:
    watch = Watch()
    watch.begin(now)
    watch.see(*block(100), now)
    return watch


def test_without_a_subscription_nothing_can_be_relied_on() -> None:
    watch = Watch()
    assert not watch.live(0.0)
    assert not watch.silent(10_000.0)


def test_a_chain_that_stands_still_is_no_silence() -> None:
    watch = subscribed()
    watch.see(*block(100), 5000.0)
    assert watch.live(5000.0)
    assert not watch.silent(5000.0)


def test_what_was_not_named_when_asked_is_worth_asking_and_what_was_is_not() -> None:
    watch = subscribed()
    assert not watch.hear(*block(100), 1001.0)
    assert watch.hear(*block(101), 1002.0)
    assert watch.hear(*block(100, fork=1), 1003.0), "another block at the same height"


def test_a_poll_between_a_block_and_its_announcement_is_no_fault() -> None:
    watch = subscribed()
    watch.see(*block(101), 1012.0)
    assert watch.live(1012.0 + LATE_S)
    watch.hear(*block(101), 1012.3)
    assert watch.live(2000.0)


def test_a_block_that_was_not_announced_ends_the_reliance_until_one_is() -> None:
    watch = subscribed()
    watch.see(*block(101), 1012.0)
    assert not watch.live(1012.1 + LATE_S)
    watch.hear(*block(102), 1030.0)
    assert watch.live(1030.0)


def test_old_blocks_announced_again_and_again_are_no_announcement() -> None:
    watch = subscribed()
    watch.see(*block(101), 1012.0)
    for second in range(200):
        watch.hear(*block(90), 1013.0 + second)
    assert not watch.live(1213.0)
    assert watch.silent(1213.0)


def test_silent_for_ninety_seconds_while_the_head_moves_is_given_up() -> None:
    watch = subscribed()
    watch.hear(*block(101), 1012.0)
    watch.see(*block(101), 1012.1)
    watch.see(*block(102), 1024.0)
    assert not watch.silent(1012.0 + SILENT_S - 0.1)
    assert watch.silent(1012.0 + SILENT_S)


def test_a_new_subscription_is_judged_anew() -> None:
    watch = subscribed()
    watch.see(*block(101), 1012.0)
    assert watch.silent(1200.0)
    watch.begin(1200.0)
    assert watch.live(1200.0)
    assert not watch.silent(1200.0)
    watch.see(*block(110), 1201.0)
    assert watch.live(1300.0), "the first block that is seen was made before"
    watch.end()
    assert not watch.live(1300.0)

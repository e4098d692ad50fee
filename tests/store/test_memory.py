"""What is remembered of a backfill while the process lives."""

from __future__ import annotations

from app.core.blocks import Noted
from app.store.memory import MemoryLedger

HASH = b"\x11" * 32


async def test_heights_are_noted_and_forgotten_from_both_ends() -> None:
    ledger = MemoryLedger()
    assert await ledger.done() == ()
    await ledger.forget_from(3)
    await ledger.forget_below(3)
    for height in (5, 7, 6):
        await ledger.note([Noted(height, HASH, HASH * 2)])
    await ledger.note([*(Noted(height, HASH, HASH * 2) for height in (10, 11, 12)), Noted(20, None)])
    assert await ledger.done() == ((5, 7), (10, 12), (20, 20))
    await ledger.forget_from(12)
    assert await ledger.done() == ((5, 7), (10, 11))
    await ledger.forget_below(7)
    assert await ledger.done() == ((7, 7), (10, 11))
    await ledger.forget_below(100)
    assert await ledger.done() == ()

"""Receipts transaction by transaction, for a node that does not give them by block: in batches, or a few at a time.

Only what failed is asked for again; what never comes makes the whole list missing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence

from app.core.hexadecimal import to_hex
from app.core.resting import parted

from .evm import NULL, EvmNode
from .faults import CallFailed, Fault
from .receipts import NULL_PAUSES_S, Ask, ReceiptsMissing, require_place
from .retries import Patience

SINGLES_AT_ONCE = 8
BATCHES_AT_ONCE = 4

METHOD = "eth_getTransactionReceipt"

Outcome = bytes | CallFailed

_HOPELESS = frozenset({Fault.DENIED, Fault.WRONG_CHAIN, Fault.DEADLINE, Fault.INVALID_PARAMS, Fault.SPENT})
_NO_BATCHES = frozenset({Fault.METHOD_NOT_SUPPORTED, Fault.INVALID_PARAMS, Fault.HTTP_4XX})
_TOO_MUCH = frozenset({Fault.TOO_BIG, Fault.BODY_TOO_LARGE})


async def each_receipt(
    node: EvmNode, ask: Ask, patience: Patience, block_hash: bytes, hashes: Sequence[bytes], *, hurried: bool = False
) -> bytes:
    """The JSON text of the list of receipts, one per transaction of `hashes`, in that order. `hurried`: what does not come at
    once is not waited for.

    Raises `ReceiptsMissing` when some never came, `ContentInvalid` when one is of another transaction or block,
    `CallFailed` when the node could not be asked.
    """
    found: list[bytes | None] = [None] * len(hashes)
    missing = list(range(len(hashes)))
    barren = 0
    while missing:
        # One first: a node that lacks one lacks them all, and would be asked for thousands in vain.
        wanted = missing if len(missing) < len(hashes) else missing[:1]
        size = node.batch_size(METHOD) if barren < 2 else 1
        outcomes = await _ask_for(node, ask, hashes, wanted, size)
        failures: list[CallFailed] = []
        for index, outcome in outcomes.items():
            if isinstance(outcome, CallFailed):
                failures.append(outcome)
            elif outcome != NULL:
                require_place(outcome, hashes[index], block_hash)
                found[index] = outcome
        _give_up_if_hopeless(failures)
        left = [index for index in missing if found[index] is None]
        barren = 0 if len(left) < len(missing) else barren + 1
        missing = left
        if barren > (0 if hurried else len(NULL_PAUSES_S)):
            break
        if any(outcome == NULL or isinstance(outcome, CallFailed) for outcome in outcomes.values()):
            await _pause_before_next(patience, failures, barren)
    if not missing:
        return b"[" + b",".join(receipt for receipt in found if receipt is not None) + b"]"
    if failures:
        raise failures[0]
    raise ReceiptsMissing(f"the node has no receipt for {len(missing)} of the block's {len(hashes)} transactions")


def _give_up_if_hopeless(failures: Iterable[CallFailed]) -> None:
    for failure in failures:
        if failure.fault is Fault.METHOD_NOT_SUPPORTED:
            raise ReceiptsMissing("the node gives receipts neither by block nor by transaction")
        if failure.fault is Fault.PRUNED:
            raise ReceiptsMissing("the node no longer keeps the receipts of this block", pruned=True)
        if failure.fault in _HOPELESS:
            raise failure


async def _pause_before_next(patience: Patience, failures: Sequence[CallFailed], barren: int) -> None:
    limits = [failure.retry_after_s or 0.0 for failure in failures if failure.fault is Fault.RATE_LIMITED]
    if limits:
        go_on = await patience.wait(max(limits), whole=True)
    elif failures and all(failure.fault in _TOO_MUCH for failure in failures):
        go_on = True
    else:
        go_on = await patience.wait(NULL_PAUSES_S[min(barren, len(NULL_PAUSES_S) - 1)])
    if not go_on:
        raise failures[0] if failures else CallFailed(Fault.DEADLINE, "the deadline left no time to ask again")


async def _ask_for(
    node: EvmNode, ask: Ask, hashes: Sequence[bytes], wanted: Sequence[int], size: int
) -> dict[int, Outcome]:
    """One round: one outcome for each of `wanted`. Never raises `CallFailed`."""
    size = size if len(wanted) > 1 else 1
    chunks = deque(wanted[start : start + size] for start in range(0, len(wanted), size))
    outcomes: dict[int, Outcome] = {}

    async def work() -> None:
        while chunks:
            chunk = chunks.popleft()
            if len(chunk) == 1:
                outcomes[chunk[0]] = await _single(ask, hashes[chunk[0]])
            else:
                outcomes.update(zip(chunk, await _batch(node, [hashes[index] for index in chunk]), strict=True))

    at_once = min(SINGLES_AT_ONCE if size == 1 else BATCHES_AT_ONCE, len(chunks))
    async with parted(at_once) as ended, asyncio.TaskGroup() as workers:
        for _ in range(at_once):
            workers.create_task(work()).add_done_callback(lambda _: ended())
    return outcomes


async def _single(ask: Ask, tx_hash: bytes) -> Outcome:
    try:
        return await ask(METHOD, [to_hex(tx_hash)])
    except CallFailed as failure:
        return NULL if failure.fault is Fault.NOT_FOUND else failure


async def _batch(node: EvmNode, hashes: Sequence[bytes]) -> list[Outcome]:
    """One batch, split in half where it is too big for the node, which is remembered."""
    outcomes: list[Outcome]
    try:
        outcomes = await node.batch([(METHOD, [to_hex(tx_hash)]) for tx_hash in hashes])
    except CallFailed as failure:
        if failure.fault in _TOO_MUCH and len(hashes) > 1:
            half = len(hashes) // 2
            _limit_batches(node, half)
            return [*await _batch(node, hashes[:half]), *await _batch(node, hashes[half:])]
        if failure.fault in _NO_BATCHES:
            _limit_batches(node, 1)
            failure = CallFailed(Fault.UNAVAILABLE, "the node takes no batches")
        return [failure.again() for _ in hashes]
    if any(isinstance(outcome, CallFailed) and outcome.fault in _TOO_MUCH for outcome in outcomes):
        # The node stopped when the answer grew too large: the rest is asked for again, in smaller batches.
        _limit_batches(node, max(1, len(hashes) // 2))
    return [
        NULL if isinstance(outcome, CallFailed) and outcome.fault is Fault.NOT_FOUND else outcome
        for outcome in outcomes
    ]


def _limit_batches(node: EvmNode, size: int) -> None:
    if size < node.capabilities.batch_limit:
        node.capabilities.note_batch_limit(size, node.now())
        node.observer.on_batch_limit(size)

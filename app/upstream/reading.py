"""What one node says, for the length of one turn: blocks with their receipts, names, heads, positions of transactions.

Nothing is decided here about other nodes. A turn with patience tries again in place what failed in passing, and waits where a
node may have in a moment what it has not yet; a turn in a hurry does neither.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from app.core.blocks import BlockBodies, BlockName, BlockRef, Position
from app.core.errors import ContentInvalid, Doubtful, HeaderHashUnsupported, UnsupportedBlockFormat
from app.core.headers import hash_header, require_hash
from app.core.hexadecimal import encode_quantity, parse_quantity, to_hex
from app.core.journey import RETRY_PAUSE_S
from app.core.resting import parted
from app.core.rpc_json import decode_block, decode_block_name, decode_position

from .decoding import decoded
from .each_receipt import each_receipt
from .evm import NULL, EvmNode
from .faults import ANSWERED, CallFailed, Fault
from .receipts import AskEach, HeightNeeded, ReceiptsMissing, is_empty_list, transaction_hashes, whole_list
from .retries import Patience, RetryBudget

NULL_BLOCK_PAUSES_S = (0.2, 0.4)

REPLACED_TRIES = 3

T = TypeVar("T")


class Absent(Exception):
    """The node answered that it has no such block. `behind`: its head is below the height that was asked for."""

    def __init__(self, message: str, *, behind: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.behind = behind


NO_SUCH_BLOCK = -39001
"""Of the execution APIs: the tag is known, and there is no block under it (yet)."""

_NO_SUCH_TAG = re.compile(
    r"(unknown|invalid|unsupported|unrecogni[sz]ed|unexpected)\s+(default\s+)?(block\s+)?(number\s+)?(tag|parameter|identifier)"
)


def _knows_no_tag(failure: CallFailed) -> bool:
    """Whether the error of a request under a tag says that the node knows no such tag. Everything else does not: that a block
    is missing, or that something broke, is not to hear that there is no such tag."""
    if failure.code == NO_SUCH_BLOCK:
        return False
    if failure.fault in (Fault.INVALID_PARAMS, Fault.METHOD_NOT_SUPPORTED):
        return True
    return _NO_SUCH_TAG.search(failure.excerpt.lower()) is not None


@dataclass(frozen=True, slots=True)
class NodeReader:
    """One turn of one node. `attempts` are those at one call, the first included; 1: no second attempt, and no waiting."""

    node: EvmNode
    patience: Patience
    budget: RetryBudget
    attempts: int = 1

    @property
    def patient(self) -> bool:
        """Whether nobody else is left to ask."""
        return self.attempts > 1

    async def bodies(self, ref: BlockRef, *, singly: bool = False) -> BlockBodies:
        """Block and receipts, the receipts by the hash of the block; None in their place where the node has none. `singly`: the
        receipts one by one, since the list of them was wrong.

        Raises `Absent`, `ContentInvalid`, `CallFailed`.
        """
        if ref.height is None:
            return await self._by_hash(ref.block_hash or b"", singly=singly)
        found = await self._by_height(ref.height, singly=singly)
        if found.receipts_json is not None:
            self.node.state.note_kept(ref.height)
        return found

    async def name_of(self, height: int) -> BlockName:
        """The block that the node has at `height`. Raises as `bodies`."""
        raw = await self._at_height(height, full=False)
        name = decode_block_name(raw)
        if name is None:
            raise Absent(f"upstream {self.node.name} has no block {height}")
        if name.height != height:
            raise ContentInvalid("identity", f"asked for block {height}, got block {name.height}")
        self._require_own_hash(raw, name)
        self.node.state.note_block(height, self.patience.now())
        return name

    async def height_of(self, block_hash: bytes) -> int:
        """Where the node says that the block of this hash is. Raises as `bodies`."""
        raw = await self._ask_or_null("eth_getBlockByHash", [to_hex(block_hash), False])
        name = decode_block_name(raw)
        if name is None:
            raise Absent(f"upstream {self.node.name} knows no block {to_hex(block_hash)}")
        if name.block_hash != block_hash:
            raise ContentInvalid("identity", f"asked for block {to_hex(block_hash)}, got {to_hex(name.block_hash)}")
        self._require_own_hash(raw, name.height)
        self.node.state.note_block(name.height, self.patience.now())
        return name.height

    def _require_own_hash(self, raw: bytes, value: object) -> None:
        """The header hashes to the hash beside it, so that no node can make up which block is where.

        Raises `ContentInvalid`; `Doubtful` with `value` where that cannot be told, since another node's header may be plain.
        """
        family = self.node.family
        if family is None or family == "frontier":
            return
        try:
            hash_header(decode_block(raw), family)
        except (HeaderHashUnsupported, UnsupportedBlockFormat):
            raise Doubtful(value, 0) from None

    async def tagged(self, tag: str) -> BlockName | None:
        """The block under a tag; None when the node answers with null or an error. Raises `ContentInvalid`, `CallFailed`.

        Its header hashes to its hash, where that can be told: nobody's head, and nothing final, rests on a made-up one.
        """
        try:
            raw = await self._ask("eth_getBlockByNumber", [tag, False])
        except CallFailed as failure:
            if failure.fault not in ANSWERED or failure.denied:
                raise
            if _knows_no_tag(failure):
                self.node.unknown_tags.add(tag)
            else:
                self.node.unknown_tags.discard(tag)
            return None
        self.node.unknown_tags.discard(tag)
        name = decode_block_name(raw)
        if name is not None and self.node.family is not None:
            require_hash(raw, self.node.family)
        if name is not None and tag == "latest":
            self.node.note_latest(name, self.patience.now())
        return name

    async def position(self, tx_hash: bytes) -> Position | None:
        """Where the node says the transaction is; None when it knows none. Raises `TxNotMined`, `ContentInvalid`,
        `CallFailed`."""
        raw = await self._ask_or_null("eth_getTransactionByHash", [to_hex(tx_hash)])
        position = decode_position(raw, tx_hash)
        if position is not None:
            self.node.state.note_block(position.height, self.patience.now())
        return position

    async def head(self) -> int:
        """The highest head that the node named lately, asked for now. Raises `CallFailed`."""
        raw = await self._ask("eth_blockNumber", [])
        try:
            height = parse_quantity(msgspec.json.decode(raw, type=str | int))
        except (msgspec.MsgspecError, ValueError):
            raise CallFailed(Fault.MALFORMED, "the node sent a block number that is no number") from None
        if height >> 63:  # no chain comes so far, and no listing or metric could show it
            raise CallFailed(Fault.MALFORMED, "the node sent a block number of more than 63 bits")
        self.node.state.note_head(height, self.patience.now())
        return self.node.state.head or 0

    # --- bodies -----------------------------------------------------------------------------------------------------

    async def _by_height(self, height: int, *, singly: bool) -> BlockBodies:
        for _ in range(REPLACED_TRIES):
            block_json = await self._at_height(height, full=True)
            if block_json == NULL:
                raise Absent(f"upstream {self.node.name} answers null for block {height}, which is below its head")
            name = await self._named(block_json)
            if name.height != height:
                raise ContentInvalid("identity", f"asked for block {height}, got block {name.height}")
            self.node.state.note_block(height, self.patience.now())
            try:
                receipts_json = await self._receipts(
                    block_json, name, await self._whole(name.block_hash, height, singly)
                )
            except ReceiptsMissing as missing:
                raw = await self._ask_or_null("eth_getBlockByNumber", [encode_quantity(height), False])
                canonical = decode_block_name(raw)
                if canonical is None or canonical.block_hash == name.block_hash:
                    return self._lacking(block_json, height, missing)
                # A reorg took the block away while its receipts were asked for: the one that took its place is wanted.
                continue
            return BlockBodies(self.node.name, block_json, receipts_json)
        raise CallFailed(Fault.UNAVAILABLE, f"block {height} was replaced again and again while it was fetched")

    async def _by_hash(self, block_hash: bytes, *, singly: bool) -> BlockBodies:
        async with parted(2) as ended, asyncio.TaskGroup() as calls:
            receipts = calls.create_task(self._whole(block_hash, None, singly))
            receipts.add_done_callback(lambda _: ended())
            block_json: bytes | CallFailed
            try:
                block_json = await self._ask_or_null("eth_getBlockByHash", [to_hex(block_hash), True])
            except CallFailed as failure:
                block_json = failure
            if isinstance(block_json, CallFailed) or block_json == NULL:
                receipts.cancel()
            else:
                ended()
        if isinstance(block_json, CallFailed):
            raise block_json
        if block_json == NULL:
            raise Absent(f"upstream {self.node.name} knows no block {to_hex(block_hash)}")
        name = await self._named(block_json)
        if name.block_hash != block_hash:
            raise ContentInvalid("identity", f"asked for block {to_hex(block_hash)}, got {to_hex(name.block_hash)}")
        self.node.state.note_block(name.height, self.patience.now())
        try:
            receipts_json = await self._receipts(block_json, name, receipts.result())
        except ReceiptsMissing as missing:
            return self._lacking(block_json, name.height, missing)
        return BlockBodies(self.node.name, block_json, receipts_json)

    def _lacking(self, block_json: bytes, height: int, missing: ReceiptsMissing) -> BlockBodies:
        if missing.pruned:
            self.node.state.note_pruned(height)
        return BlockBodies(self.node.name, block_json, None, missing.reason, missing.pruned)

    async def _whole(self, block_hash: bytes, height: int | None, singly: bool = False) -> bytes | Exception:
        """Beside another call in one task group, so every outcome is a value."""
        if singly:
            return AskEach()
        pauses_s = None if self.patient else ()
        try:
            return await whole_list(self.node, self._ask, self.patience, block_hash, height, pauses_s)
        except (AskEach, HeightNeeded, ReceiptsMissing, CallFailed) as outcome:
            return outcome

    async def _receipts(self, block_json: bytes, name: BlockName, outcome: bytes | Exception) -> bytes:
        if isinstance(outcome, HeightNeeded):
            outcome = await self._whole(name.block_hash, name.height)
        if isinstance(outcome, bytes) and not is_empty_list(outcome):
            return outcome
        null = isinstance(outcome, ReceiptsMissing) and outcome.null and self.patient
        if isinstance(outcome, Exception) and not isinstance(outcome, AskEach) and not null:
            raise outcome
        hashes = await transaction_hashes(block_json)
        if isinstance(outcome, ReceiptsMissing):
            try:
                return await each_receipt(self.node, self._ask, self.patience, name.block_hash, hashes, hurried=True)
            except (ReceiptsMissing, CallFailed):
                raise outcome from None
        if not hashes:
            return b"[]"
        # An empty list for a block with transactions is not an answer.
        return await each_receipt(
            self.node, self._ask, self.patience, name.block_hash, hashes, hurried=not self.patient
        )

    async def _named(self, block_json: bytes) -> BlockName:
        name = await decoded(decode_block_name, block_json)
        if name is None:
            raise ContentInvalid("null_block", "null where a block was asked for")
        return name

    async def _at_height(self, height: int, *, full: bool) -> bytes:
        """The block at `height`, or `null` when the node has none there although its head is at or above.

        Raises `Absent` for a height above the head.
        """
        params = [encode_quantity(height), full]
        try:
            raw = await self._ask_or_null("eth_getBlockByNumber", params)
        except CallFailed as failure:
            if failure.fault is Fault.PRUNED:
                self.node.state.note_pruned(height)
            raise
        if raw != NULL:
            return raw
        head = await self.head()
        if height > head:
            raise Absent(f"block {height} is above the head {head} of the source chain", behind=True)
        for pause_s in NULL_BLOCK_PAUSES_S if self.patient else ():
            if not await self.patience.wait(pause_s):
                break
            raw = await self._ask_or_null("eth_getBlockByNumber", params)
            if raw != NULL:
                break
        return raw

    # --- calls ------------------------------------------------------------------------------------------------------

    async def _ask(self, method: str, params: Sequence[object]) -> bytes:
        return await self.retried(lambda: self.node.call(method, params))

    async def _ask_or_null(self, method: str, params: Sequence[object]) -> bytes:
        try:
            return await self._ask(method, params)
        except CallFailed as failure:
            if failure.fault is Fault.NOT_FOUND:
                return NULL
            raise

    async def retried(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Transient failures are tried again, within the deadline and the retry budget. Raises `CallFailed`."""
        self.budget.deposit()
        for attempts_left in reversed(range(self.attempts)):
            try:
                return await attempt()
            except CallFailed as failure:
                if not failure.transient or not attempts_left or not self.budget.take(self.patience.now()):
                    raise
                if not await self.patience.wait(RETRY_PAUSE_S * 2 ** (self.attempts - 1 - attempts_left)):
                    raise
        raise AssertionError("the last attempt returns or raises")

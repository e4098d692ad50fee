"""The upstream of a chain that has one node: retries, fallbacks, and what the node's answers mean for a client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from app.core.blocks import BlockBodies, BlockName, BlockRef, Position
from app.core.errors import (
    BlockNotOnSourceChain,
    ContentInvalid,
    HistoryUnavailable,
    InconsistentSource,
    ProofError,
    RequestTimeout,
    RpcUnavailable,
)
from app.core.hexadecimal import encode_quantity, parse_quantity, to_hex
from app.core.resting import parted
from app.core.rpc_json import decode_block_name, decode_position

from .each_receipt import each_receipt
from .evm import NULL, EvmNode, decoded
from .faults import ANSWERED, CallFailed, Fault
from .receipts import AskEach, HeightNeeded, ReceiptsMissing, is_empty_list, transaction_hashes, whole_list
from .retries import Patience, RetryBudget

ATTEMPTS = 3
"""Attempts at one call, the first included."""

RETRY_PAUSE_S = 0.15
"""Before the second attempt; doubled before each further one."""

NULL_BLOCK_PAUSES_S = (0.2, 0.4)

HEAD_MEMORY_S = 60.0
"""How long the highest head seen speaks against a lower one: nodes behind one address are not all equally far."""

REPLACED_TRIES = 3

T = TypeVar("T")

logger = logging.getLogger("copath.upstream")


class SingleUpstream:
    """Fits the chain's `Upstream` port over one node. `aclose` it."""

    def __init__(self, node: EvmNode, *, patience: Patience | None = None) -> None:
        self.node = node
        self._patience = patience or Patience()
        self._budget = RetryBudget()
        self._head_seen: tuple[int, float] | None = None

    def __repr__(self) -> str:
        return f"<SingleUpstream {self.node!r}>"

    async def aclose(self) -> None:
        """Closes the node's connections."""
        await self.node.aclose()

    @property
    def known_chain_id(self) -> int | None:
        """The chain id that the node proved to serve, or the configured one; None while neither is known."""
        return self.node.chain_id

    def states(self) -> list[dict[str, object]]:
        """The node by name, how it stands in one word, and the highest head it named lately. Never an address."""
        head = None if self._head_seen is None else self._head_seen[0]
        return [{"name": self.node.name, "state": self.node.standing.word(self._patience.now()), "head": head}]

    async def chain_id(self) -> int:
        """The chain id that the node proves to serve. Raises `RpcUnavailable` when it cannot be asked, or fits not."""
        try:
            return await self._retried(self.node.verify_chain)
        except CallFailed as failure:
            raise self._unavailable(failure) from None

    async def greet(self) -> int | None:
        """At start: the node's chain id, or None with a warning: a node that is down does not keep a service down."""
        try:
            return await self.chain_id()
        except ProofError as error:
            logger.warning("upstream %s cannot be used yet: %s", self.node.name, error.message)
            return None

    # --- the port ---------------------------------------------------------------------------------------------------

    async def fetch(self, ref: BlockRef, accept: Callable[[BlockBodies], Awaitable[T]]) -> T:
        """As the port says. Data that fails a check is fetched once more: a balancer may have mixed two nodes."""

        async def once() -> T:
            if ref.height is not None:
                bodies = await self._by_height(ref.height)
            else:
                bodies = await self._by_hash(ref.block_hash or b"")
            return await accept(bodies)

        return await self._believed(once)

    async def name_of(self, height: int) -> BlockName | None:
        """The block now canonical at `height`; None when the node's head is above but it has none there.

        Raises `BlockNotOnSourceChain` for a height above the head.
        """

        async def once() -> BlockName | None:
            raw = await self._at_height(height, full=False)
            name = decode_block_name(raw)
            if name is not None and name.height != height:
                raise ContentInvalid("identity", f"asked for block {height}, got block {name.height}")
            return name

        return await self._believed(once)

    async def tagged(self, tag: str) -> BlockName | None:
        """The block under a tag; None when the node answers with null or an error."""

        async def once() -> BlockName | None:
            try:
                raw = await self._ask("eth_getBlockByNumber", [tag, False])
            except CallFailed as failure:
                if failure.fault in ANSWERED:
                    return None
                raise
            name = decode_block_name(raw)
            if name is not None and tag == "latest":
                self._note_head(name.height)
            return name

        return await self._believed(once)

    async def position(self, tx_hash: bytes) -> Position | None:
        """Where the node says the transaction is; None when it knows none; raises `TxNotMined` when it is pending."""

        async def once() -> Position | None:
            raw = await self._ask_or_null("eth_getTransactionByHash", [to_hex(tx_hash)])
            return decode_position(raw, tx_hash)

        return await self._believed(once)

    # --- bodies -----------------------------------------------------------------------------------------------------

    async def _by_height(self, height: int) -> BlockBodies:
        for _ in range(REPLACED_TRIES):
            block_json = await self._at_height(height, full=True)
            if block_json == NULL:
                raise RpcUnavailable(
                    f"upstream {self.node.name} answers null for block {height}, which is below its head"
                )
            name = await self._named(block_json)
            if name.height != height:
                raise ContentInvalid("identity", f"asked for block {height}, got block {name.height}")
            self._note_head(height)
            try:
                receipts_json = await self._receipts(block_json, name, await self._whole(name.block_hash, height))
            except ReceiptsMissing as missing:
                raw = await self._ask_or_null("eth_getBlockByNumber", [encode_quantity(height), False])
                canonical = decode_block_name(raw)
                if canonical is None or canonical.block_hash == name.block_hash:
                    return BlockBodies(self.node.name, block_json, None, missing.reason)
                # A reorg took the block away while its receipts were asked for: the one that took its place is wanted.
                continue
            return BlockBodies(self.node.name, block_json, receipts_json)
        raise RpcUnavailable(f"block {height} was replaced again and again while it was fetched")

    async def _by_hash(self, block_hash: bytes) -> BlockBodies:
        async with parted(2) as ended, asyncio.TaskGroup() as calls:
            receipts = calls.create_task(self._whole(block_hash, None))
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
            raise BlockNotOnSourceChain(f"the source chain knows no block {to_hex(block_hash)}")
        name = await self._named(block_json)
        if name.block_hash != block_hash:
            raise ContentInvalid("identity", f"asked for block {to_hex(block_hash)}, got {to_hex(name.block_hash)}")
        self._note_head(name.height)
        try:
            receipts_json = await self._receipts(block_json, name, receipts.result())
        except ReceiptsMissing as missing:
            return BlockBodies(self.node.name, block_json, None, missing.reason)
        return BlockBodies(self.node.name, block_json, receipts_json)

    async def _whole(self, block_hash: bytes, height: int | None) -> bytes | Exception:
        """Beside another call in one task group, so every outcome is a value."""
        try:
            return await whole_list(self.node, self._ask, self._patience, block_hash, height)
        except (AskEach, HeightNeeded, ReceiptsMissing, CallFailed) as outcome:
            return outcome

    async def _receipts(self, block_json: bytes, name: BlockName, outcome: bytes | Exception) -> bytes:
        if isinstance(outcome, HeightNeeded):
            outcome = await self._whole(name.block_hash, name.height)
        if isinstance(outcome, bytes) and not is_empty_list(outcome):
            return outcome
        if isinstance(outcome, Exception) and not isinstance(outcome, AskEach):
            raise outcome
        hashes = await transaction_hashes(block_json)
        if not hashes:
            return b"[]"
        # An empty list for a block with transactions is not an answer.
        return await each_receipt(self.node, self._ask, self._patience, name.block_hash, hashes)

    async def _named(self, block_json: bytes) -> BlockName:
        name = await decoded(decode_block_name, block_json)
        if name is None:
            raise ContentInvalid("null_block", "null where a block was asked for")
        return name

    async def _at_height(self, height: int, *, full: bool) -> bytes:
        """The block at `height`, or `null` when the node has none there although its head is at or above.

        Raises `BlockNotOnSourceChain` for a height above the head.
        """
        params = [encode_quantity(height), full]
        raw = await self._ask_or_null("eth_getBlockByNumber", params)
        if raw != NULL:
            return raw
        head = await self._head()
        if height > head:
            raise BlockNotOnSourceChain(f"block {height} is above the head {head} of the source chain")
        for pause_s in NULL_BLOCK_PAUSES_S:
            if not await self._patience.wait(pause_s):
                break
            raw = await self._ask_or_null("eth_getBlockByNumber", params)
            if raw != NULL:
                break
        return raw

    async def _head(self) -> int:
        """The highest head that the node named lately, asked for now."""
        raw = await self._ask("eth_blockNumber", [])
        try:
            self._note_head(parse_quantity(msgspec.json.decode(raw, type=str | int)))
        except (msgspec.MsgspecError, ValueError):
            raise CallFailed(Fault.MALFORMED, "the node sent a block number that is no number") from None
        return self._head_seen[0] if self._head_seen is not None else 0

    def _note_head(self, height: int) -> None:
        now = self._patience.now()
        seen = self._head_seen
        if seen is None or height >= seen[0] or now - seen[1] > HEAD_MEMORY_S:
            self._head_seen = (height, now)

    # --- calls ------------------------------------------------------------------------------------------------------

    async def _ask(self, method: str, params: Sequence[object]) -> bytes:
        return await self._retried(lambda: self.node.call(method, params))

    async def _ask_or_null(self, method: str, params: Sequence[object]) -> bytes:
        try:
            return await self._ask(method, params)
        except CallFailed as failure:
            if failure.fault is Fault.NOT_FOUND:
                return NULL
            raise

    async def _retried(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Transient failures are tried again, within the deadline and the retry budget."""
        self._budget.deposit()
        for attempts_left in reversed(range(ATTEMPTS)):
            try:
                return await attempt()
            except CallFailed as failure:
                if not failure.transient or not attempts_left or not self._budget.take(self._patience.now()):
                    raise
                if not await self._patience.wait(RETRY_PAUSE_S * 2 ** (ATTEMPTS - 1 - attempts_left)):
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _believed(self, once: Callable[[], Awaitable[T]]) -> T:
        """The one door out: failed checks get a second try, failed calls become `ProofError`."""
        for last in (False, True):
            try:
                return await once()
            except CallFailed as failure:
                raise self._unavailable(failure) from None
            except ContentInvalid as invalid:
                self.node.observer.on_content_invalid(invalid.check)
                if last:
                    message = f"the data of upstream {self.node.name} failed a check, {invalid}"
                    raise InconsistentSource(message, check=invalid.check) from None
        raise AssertionError("the second try returns or raises")

    def _unavailable(self, failure: CallFailed) -> ProofError:
        name = self.node.name
        if failure.fault is Fault.DEADLINE:
            return RequestTimeout(f"upstream {name}: {failure.message}", stage="fetch")
        if failure.fault is Fault.PRUNED:
            return HistoryUnavailable(f"upstream {name}: {failure.message}")
        return RpcUnavailable(f"upstream {name}: {failure.message}", retry_after_s=failure.retry_after_s)

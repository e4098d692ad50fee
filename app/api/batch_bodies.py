"""A batch of usc proofs as the bytes that leave, however many they are: in pieces, each checked before the first of them is sent.

    head  {"chainKey":..,"fromHeader":..,"toHeader":..,"continuityProof":{..},"merkleProofs":{
    core    "103":{ "0":{..},"3":{..} },"104":{ "0":{..} }         items, in as many pieces as their size asks for
    tail  },"cached":false,"generatedAt":".."}

A piece is put to the checker between the head and the tail of its batch, so what it accepts is a whole batch of that piece's
items, and a batch of one piece is accepted as it leaves. What does not fit one piece is written a second time when it is sent,
and must then come out the same: no more than a piece is ever held as text. Split, each sub-batch is a batch of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api import second_opinion, wire
from app.api.lobby import ChainFloor, CutContinuity
from app.core.continuity import ContinuityProof, starting_at
from app.core.errors import Internal, PayloadTooLarge, ProofError
from app.core.hexadecimal import to_hex
from app.core.provable_block import LeafProof, ProvableBlock

PIECE_BYTES = 256 * 1024
"""How much text is put to the checker at once, where no single item is larger: three milliseconds of the event loop."""

ASIDE_BYTES = 4 * PIECE_BYTES
"""A piece larger than this, which is one large transaction or a very long continuity proof, is checked beside the loop."""

MAX_LEAVES_BYTES = 32 * 1024 * 1024
"""What the leaves of one batch may come to, as they are held until the last byte. Ten of the largest transactions that a block's
gas pays for come to less, and a verifier takes ten at a time."""


@dataclass(frozen=True, slots=True)
class Item:
    """One transaction of a batch, cut from its block."""

    height: int
    index: int
    tx_hash: bytes
    leaf: LeafProof


class Held:
    """What one batch holds until its last byte has left: the leaves, and not the blocks that they were cut from."""

    def __init__(self) -> None:
        self._bytes = 0

    def cut(self, block: ProvableBlock, index: int) -> Item | ProofError:
        """One more item, or why there is none. Raises `PayloadTooLarge` for more than is held for one answer."""
        try:
            leaf = block.leaf_proof(index)
        except ProofError as refusal:
            return refusal
        self._bytes += len(leaf.leaf)
        if self._bytes > MAX_LEAVES_BYTES:
            raise PayloadTooLarge(
                f"the transactions of this batch come to more than {MAX_LEAVES_BYTES} bytes: ask for fewer at once"
            )
        return Item(block.height, index, block.transaction_hash(index), leaf)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one body says: `items` ascending by height and index, all within [first, last], under one continuity proof."""

    first: int
    last: int
    items: Sequence[Item]
    proof: ContinuityProof


def whole(heights: Sequence[int], items: Sequence[Item], proof: ContinuityProof) -> Batch:
    """The batch of all that was asked for. `heights` ascending, those without items included."""
    return Batch(heights[0], heights[-1], items, proof)


def split(heights: Sequence[int], items: Sequence[Item], proof: ContinuityProof, size: int) -> list[Batch]:
    """Sub-batches of at most `size` transactions, ascending, each with the roots from its own first height on.

    Heights for which no transaction was asked for take no place beside those that a verifier is given: where there are any, they
    are the first sub-batch.
    """
    proven = {item.height for item in items}
    bare = [height for height in heights if height not in proven]
    ranges = [(bare[0], bare[-1], items[:0])] if bare else []
    for start in range(0, len(items), size):
        part = items[start : start + size]
        ranges.append((part[0].height, part[-1].height, part))
    return [Batch(first, last, part, starting_at(proof, heights[0], first)) for first, last, part in ranges]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some items of one batch. `before` and `after` are what is sent around them: frames and joints."""

    batch: Batch
    head: bytes
    tail: bytes
    items: Sequence[Item]
    before: bytes
    after: bytes

    def core(self) -> bytes:
        """The items as text, without the bracket that opens the first height and the one that closes the last."""
        written = bytearray()
        previous: int | None = None
        for item in self.items:
            if previous is not None:
                written += joint(previous, item.height)
            written += b'"%d":%s' % (item.index, wire.batch_item(item.tx_hash, item.leaf))
            previous = item.height
        return bytes(written)

    def framed(self, core: bytes) -> bytes:
        """A whole batch of these items alone."""
        opened = (b'"%d":{' % self.items[0].height, b"}") if self.items else (b"", b"")
        return b"".join((self.head, opened[0], core, opened[1], self.tail))

    def asked(self, chain_key: int) -> dict[str, object]:
        """What the framed text must say."""
        named = {f"merkleProofs.{item.height}.{item.index}.txHash": to_hex(item.tx_hash) for item in self.items}
        return {"chainKey": chain_key, "fromHeader": self.batch.first, "toHeader": self.batch.last, **named}


def pieces(chain_key: int, batch: Batch) -> Iterator[Piece]:
    """The pieces of one batch, in order."""
    head = orjson.dumps({"chainKey": chain_key, "fromHeader": batch.first, "toHeader": batch.last})[:-1]
    head += b',"continuityProof":%s,"merkleProofs":{' % orjson.dumps(wire.continuity_fields(batch.proof))
    tail = b'},"cached":false,"generatedAt":"%s"}' % wire.time_of_day().encode()
    parts = list(_parts(batch.items, max(PIECE_BYTES, len(head)))) or [batch.items]
    for at, part in enumerate(parts):
        if at == 0:
            before = head + (b'"%d":{' % part[0].height if part else b"")
        else:
            before = joint(parts[at - 1][-1].height, part[0].height)
        after = (b"}" if part else b"") + tail if at == len(parts) - 1 else b""
        yield Piece(batch, head, tail, part, before, after)


def joint(height: int, following: int) -> bytes:
    """What stands between an item of one height and the item after it."""
    return b"," if following == height else b'},"%d":{' % following


async def respond(
    scope: Scope,
    chain: ChainFloor,
    batches: Sequence[Batch],
    continuity: CutContinuity,
    frame: Mapping[str, object] | None,
) -> Response:
    """The answer, once every piece of it was accepted. `frame` None: the one batch is the body; else what stands before the list
    of all of them.

    Raises `SelfCheckFailed`.
    """
    opening, closing = (b"", b"") if frame is None else (orjson.dumps(frame)[:-1] + b',"batches":[', b"]}")
    sheaf = _Sheaf(opening, closing)
    for number, batch in enumerate(batches):
        for piece in pieces(chain.key, batch):
            core = piece.core()
            framed = piece.framed(core)
            check = (scope, chain, framed, piece.asked(chain.key), continuity)
            if len(framed) > ASIDE_BYTES:
                await asyncio.to_thread(second_opinion.require_usc_batch, *check)
            else:
                second_opinion.require_usc_batch(*check)
            sheaf.add(piece, core, comma=number > 0 and piece.before.startswith(piece.head))
            await asyncio.sleep(0)
    return sheaf.response()


class _Sheaf:
    """The accepted pieces of one answer. The text of the first is kept while it is the only one."""

    def __init__(self, opening: bytes, closing: bytes) -> None:
        self._opening = opening
        self._closing = closing
        self._size = len(opening) + len(closing)
        self._parts: list[tuple[bytes, Piece, bytes]] = []
        self._only: bytes | None = None

    def add(self, piece: Piece, core: bytes, *, comma: bool) -> None:
        """The next piece and its text; `comma` stands before it."""
        before = (b"," if comma else b"") + piece.before
        self._size += len(before) + len(core) + len(piece.after)
        self._only = None if self._parts else core
        self._parts.append((before, piece, _fingerprint(core)))

    def response(self) -> Response:
        """In one go where there is one piece, else piece by piece."""
        if self._only is not None:
            ((before, piece, _),) = self._parts
            body = b"".join((self._opening, before, self._only, piece.after, self._closing))
            return Response(body, headers=_HEADERS, media_type="application/json")
        return _InPieces(self._texts(), self._size)

    def _texts(self) -> Iterator[bytes]:
        yield self._opening
        for before, piece, fingerprint in self._parts:
            core = piece.core()
            if _fingerprint(core) != fingerprint:
                raise Internal("internal error: a piece of a batch is not what was accepted")
            yield b"".join((before, core, piece.after))
        yield self._closing


class _InPieces(Response):
    """A body that is written while it is sent. Its length is known."""

    def __init__(self, texts: Iterator[bytes], size: int) -> None:
        super().__init__(headers={**_HEADERS, "Content-Length": str(size)}, media_type="application/json")
        self._texts = texts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for text in self._texts:
            await send({"type": "http.response.body", "body": text, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


_HEADERS = {"Cache-Control": "no-store"}


def _parts(items: Sequence[Item], target_bytes: int) -> Iterator[Sequence[Item]]:
    """Runs of items whose text comes to about `target_bytes`, at least one item each."""
    start, size = 0, 0
    for at, item in enumerate(items):
        item_bytes = 2 * len(item.leaf.leaf) + 96 * (len(item.leaf.siblings) + 4)
        if size and size + item_bytes > target_bytes:
            yield items[start:at]
            start, size = at, 0
        size += item_bytes
    if start < len(items):
        yield items[start:]


def _fingerprint(text: bytes) -> bytes:
    return blake2b(text, digest_size=32).digest()

"""Ways to break a proof. Seeded, so that a failure can be seen again; a damaged proof always differs from the whole."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Damaged:
    """A damaged list of nodes; `kind` and `detail` say what was done to it."""

    kind: str
    detail: str
    nodes: tuple[bytes, ...]


def _flip(nodes: tuple[bytes, ...], node: int, offset: int, mask: int) -> tuple[bytes, ...]:
    broken = bytearray(nodes[node])
    broken[offset] ^= mask
    return (*nodes[:node], bytes(broken), *nodes[node + 1 :])


def flip_every_byte(nodes: Sequence[bytes]) -> Iterator[Damaged]:
    """One damaged proof for every byte of every node. The flipped bit moves along: each bit of a byte has its turn."""
    whole = tuple(nodes)
    for node, content in enumerate(whole):
        for offset in range(len(content)):
            mask = 1 << ((node + offset) % 8)
            yield Damaged("flip", f"node {node}, byte {offset}, mask {mask:#04x}", _flip(whole, node, offset, mask))


def flips(nodes: Sequence[bytes], count: int, seed: int) -> Iterator[Damaged]:
    """`count` single flipped bits, anywhere."""
    rng = random.Random(seed)
    whole = tuple(nodes)
    for _ in range(count):
        node = rng.randrange(len(whole))
        offset = rng.randrange(len(whole[node]))
        mask = 1 << rng.randrange(8)
        yield Damaged("flip", f"node {node}, byte {offset}, mask {mask:#04x}", _flip(whole, node, offset, mask))


def drops(nodes: Sequence[bytes]) -> Iterator[Damaged]:
    """The proof without one of its nodes, for each of them."""
    whole = tuple(nodes)
    for node in range(len(whole)):
        yield Damaged("drop", f"node {node}", whole[:node] + whole[node + 1 :])


def rearrangements(nodes: Sequence[bytes], seed: int) -> Iterator[Damaged]:
    """Nodes appended, prepended, repeated and swapped: what a verifier that looks nodes up by hash does not see."""
    rng = random.Random(seed)
    whole = tuple(nodes)
    yield Damaged("append", "an empty string", (*whole, b""))
    yield Damaged("append", "an empty list", (*whole, b"\xc0"))
    yield Damaged("append", "32 random bytes", (*whole, rng.randbytes(32)))
    yield Damaged("append", "the root node", (*whole, whole[0]))
    yield Damaged("prepend", "32 random bytes", (rng.randbytes(32), *whole))
    for node in range(len(whole)):
        yield Damaged("repeat", f"node {node}", (*whole[: node + 1], whole[node], *whole[node + 1 :]))
    for node in range(len(whole) - 1):
        swapped = list(whole)
        swapped[node], swapped[node + 1] = swapped[node + 1], swapped[node]
        yield Damaged("swap", f"nodes {node} and {node + 1}", tuple(swapped))
    cut = rng.randrange(1, len(whole[-1]))
    yield Damaged("cut", f"the last node to {cut} bytes", (*whole[:-1], whole[-1][:cut]))
    yield Damaged("extend", "the last node by a zero byte", (*whole[:-1], whole[-1] + b"\x00"))


def damages(nodes: Sequence[bytes], seed: int, *, count: int = 20) -> list[Damaged]:
    """At least `count` damages of every kind; flips fill what the other kinds leave."""
    done = [*drops(nodes), *rearrangements(nodes, seed)]
    done += flips(nodes, max(count - len(done), 8), seed)
    return done

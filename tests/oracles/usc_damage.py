"""Ways to break a usc body, single or batch: each field that a verifier is handed, and their order. Seeded."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

Body = dict[str, Any]


def usc_damages(body: Body, seed: int) -> Iterator[tuple[str, Body]]:
    """What was done, and the body it was done to. Each differs from the whole one in what is verified."""
    rng = random.Random(seed)
    changes = list(_changes(body, rng))
    for what, change in changes:
        broken = copy.deepcopy(body)
        change(broken)
        assert broken != body, what
        yield what, broken


def _changes(body: Body, rng: random.Random) -> Iterator[tuple[str, Callable[[Body], None]]]:
    yield "another chain", lambda b: b.update(chainKey=b["chainKey"] + 1)
    yield from _of_list("roots", lambda b: b["continuityProof"], "roots", body, rng, _flip)
    yield "lower digest", lambda b: _set(b["continuityProof"], "lowerEndpointDigest", _flip, rng)
    if "merkleProofs" not in body:
        for step in (1, -1):
            yield f"height {step:+}", lambda b, step=step: b.update(headerNumber=b["headerNumber"] + step)  # type: ignore[misc]  # bound now
        yield from _of_item("", lambda b: b, body, rng)
        return
    places = [(height, index) for height, of in body["merkleProofs"].items() for index in of]
    for height, index in places:
        yield from _of_item(f" of {height}/{index}", lambda b, h=height, i=index: b["merkleProofs"][h][i], body, rng)  # type: ignore[misc]  # bound now
    for height in body["merkleProofs"]:
        moved = str(int(height) + 1)
        if moved not in body["merkleProofs"]:
            yield (
                f"height {height} +1",
                lambda b, h=height, m=moved: b["merkleProofs"].update({m: b["merkleProofs"].pop(h)}),
            )  # type: ignore[misc]  # bound now
    if len(places) > 1:
        (one, first), (other, second) = rng.sample(places, 2)

        def exchange(b: Body) -> None:
            left, right = b["merkleProofs"][one][first], b["merkleProofs"][other][second]
            left["txBytes"], right["txBytes"] = right["txBytes"], left["txBytes"]

        yield "the bytes of two transactions exchanged", exchange


def _of_item(
    where: str, item_of: Callable[[Body], Body], body: Body, rng: random.Random
) -> Iterator[tuple[str, Callable[[Body], None]]]:
    for what, edit in (
        ("a bit", _flip),
        ("a byte more", lambda text, _: text + "00"),
        ("a byte less", lambda t, _: t[:-2]),
    ):
        yield f"bytes{where}: {what}", lambda b, edit=edit: _set(item_of(b), "txBytes", edit, rng)  # type: ignore[misc]  # bound now
    yield f"no bytes{where}", lambda b: item_of(b).update(txBytes="0x")
    yield f"root{where}", lambda b: _set(item_of(b)["merkleProof"], "root", _flip, rng)
    yield from _of_list(f"siblings{where}", lambda b: item_of(b)["merkleProof"], "siblings", body, rng, _flip_sibling)
    for at in range(len(item_of(body)["merkleProof"]["siblings"])):
        yield f"side of sibling {at}{where}", lambda b, at=at: _turn(item_of(b)["merkleProof"]["siblings"][at])  # type: ignore[misc]  # bound now


def _of_list(
    what: str,
    holder_of: Callable[[Body], Body],
    name: str,
    body: Body,
    rng: random.Random,
    edit: Callable[[Any, random.Random], Any],
) -> Iterator[tuple[str, Callable[[Body], None]]]:
    whole = holder_of(body)[name]
    for at in range(len(whole)):
        yield f"{what}[{at}]: a bit", lambda b, at=at: _put(holder_of(b)[name], at, edit(whole[at], rng))  # type: ignore[misc]  # bound now
        yield f"{what}[{at}] gone", lambda b, at=at: holder_of(b)[name].pop(at)  # type: ignore[misc]  # bound now
        yield f"{what}[{at}] twice", lambda b, at=at: holder_of(b)[name].insert(at, whole[at])  # type: ignore[misc]  # bound now
        if at and whole[at] != whole[at - 1]:
            yield (
                f"{what}[{at}] before the one below",
                lambda b, at=at: holder_of(b)[name].insert(at - 1, holder_of(b)[name].pop(at)),
            )  # type: ignore[misc]  # bound now


def _flip(text: str, rng: random.Random) -> str:
    data = bytearray.fromhex(text[2:])
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return "0x" + data.hex()


def _flip_sibling(sibling: Body, rng: random.Random) -> Body:
    return {**sibling, "hash": _flip(sibling["hash"], rng)}


def _turn(sibling: Body) -> None:
    sibling["isLeft"] = not sibling["isLeft"]


def _set(holder: Body, name: str, edit: Callable[[str, random.Random], str], rng: random.Random) -> None:
    holder[name] = edit(holder[name], rng)


def _put(holder: list[Any], at: int, value: object) -> None:
    holder[at] = value

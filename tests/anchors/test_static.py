"""Anchors of a file, or of rows: what is right is served, what is not is refused with the place, and changes are seen."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.anchors.static import AnchorFile, AnchorsRefused, Static, parse_anchors
from app.core.anchor_rows import ATTESTATION, CHECKPOINT, GENESIS, AnchorRow
from app.core.errors import BlockNotReady, Internal, RpcUnavailable
from app.core.lasting import StoreUnavailable
from app.store.memory_anchors import MemoryAnchorRows

HEADER = "height,digest,kind\n"


def digest(height: int, mark: int = 0) -> bytes:
    return height.to_bytes(31, "big") + bytes([mark])


def line(height: int, kind: str = ATTESTATION, mark: int = 0) -> str:
    return f"{height},0x{digest(height, mark).hex()},{kind}\n"


def row(height: int, kind: str = ATTESTATION) -> AnchorRow:
    return AnchorRow(height, digest(height), kind)


async def never(height: int) -> bytes:
    raise AssertionError(f"the root of {height} is nothing to anchors of others")


def replace_file(path: Path, text: str) -> None:
    """As an operator does it: another file takes its place."""
    path.with_suffix(".new").write_text(text)
    os.replace(path.with_suffix(".new"), path)


# --- the file -----------------------------------------------------------------------------------------------------------


def test_a_file_is_read_whatever_its_order_comments_and_spelling() -> None:
    text = (
        "\ufeff# of the bridge\n\n height , digest ,kind\r\n"
        + line(20)
        + f"10,{digest(10).hex().upper()}, checkpoint\n"
        + f'" 30","0X{digest(30).hex()}",attestation\n  # 40,later\n'
        + line(5, GENESIS)
        + line(20, CHECKPOINT)
    )
    assert parse_anchors(text.encode()) == (
        row(20),
        row(10, CHECKPOINT),
        row(30),
        row(5, GENESIS),
        row(20, CHECKPOINT),
    )
    assert parse_anchors(HEADER.encode()) == ()


BROKEN = {
    "": "line 0: the first line must be height,digest,kind",
    "# nothing\n": "line 1: the first line must be height,digest,kind",
    "height,digest\n": "line 1: the first line must be height,digest,kind",
    HEADER + line(1) + "2,0x00,attestation\n": "line 3: the digest must be 64 hex digits behind 0x",
    HEADER + line(1).replace("0x", "0x-"): "line 2: the digest must be 64 hex digits behind 0x",
    HEADER + line(1).replace("1,", "0x1,", 1): "line 2: the height must be a whole number below 2^63",
    HEADER + line(1).replace("1,", "-1,", 1): "line 2: the height must be a whole number below 2^63",
    HEADER + line(1).replace("1,", "\u0661,", 1): "line 2: the height must be a whole number below 2^63",
    HEADER + line(2**63): "line 2: the height must be a whole number below 2^63",
    HEADER + "9" * 5000 + line(1)[1:]: "line 2: the height must be a whole number below 2^63",
    HEADER + line(1, "attested"): "line 2: the kind must be one of attestation, checkpoint, genesis",
    HEADER + "1,2\n": "line 2: 2 fields where 3 belong",
    HEADER
    + line(7)
    + line(8)
    + line(7, CHECKPOINT, mark=1): "line 4: another digest for height 7 than on an earlier line",
    HEADER + '1,"0x': "line 2: is not CSV: ",
}


@pytest.mark.parametrize("text", BROKEN, ids=list(BROKEN.values()))
def test_a_file_that_is_not_right_is_refused_with_the_line(text: str) -> None:
    with pytest.raises(ValueError, match="line") as refused:
        parse_anchors(text.encode())
    assert str(refused.value).startswith(BROKEN[text])


async def test_a_file_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "anchors.csv"
    with pytest.raises(AnchorsRefused, match=r"anchors\.csv: cannot be read: No such file or directory"):
        await Static.of_file(7, str(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(AnchorsRefused, match="is not UTF-8"):
        await Static.of_file(7, str(path))
    path.write_text(HEADER + line(1) + "2\n")
    with pytest.raises(AnchorsRefused, match=r"anchors\.csv: line 3: 1 fields where 3 belong"):
        await Static.of_file(7, str(path))


async def test_a_file_is_read_once_until_it_is_another(tmp_path: Path) -> None:
    path = tmp_path / "anchors.csv"
    path.write_text(HEADER + line(1))
    file = AnchorFile(str(path))
    assert await file.read() == (row(1),)
    assert await file.read() is None
    replace_file(path, HEADER + line(2))
    assert await file.read() == (row(2),)
    assert await file.read() is None


# --- what is served -----------------------------------------------------------------------------------------------------


async def of_text(tmp_path: Path, text: str, genesis: int | None = None) -> tuple[Static, Path]:
    path = tmp_path / "anchors.csv"
    path.write_text(HEADER + text)
    return await Static.of_file(7, str(path), genesis), path


async def test_brackets_are_those_of_the_rule_and_nothing_is_retired(tmp_path: Path) -> None:
    text = line(0, GENESIS) + line(10) + line(20, CHECKPOINT) + line(30)
    anchors, _ = await of_text(tmp_path, text)
    assert (anchors.genesis, anchors.attested_height, anchors.checkpoint_height) == (0, 30, 20)
    assert (anchors.heard, anchors.state()) == (True, {"state": "ok"})
    found = [await anchors.find(height, height) for height in (5, 15, 25)]
    assert [(each.lower, each.upper, each.source) for each in found] == [
        (0, 20, "checkpoint"),
        (10, 30, "attestation"),
        (10, 30, "attestation"),
    ]
    assert all(anchors.holds(each) for each in found)
    assert found[0].upper_digest == digest(20)
    with pytest.raises(BlockNotReady):
        anchors.bracket(31, 31)


GENESES = {
    "the lowest anchor where none is named": (line(10) + line(20), None, 10),
    "the one that is named": (line(10, GENESIS) + line(20), None, 10),
    "the one that is configured": (line(10) + line(20), 10, 10),
    "the one that both name": (line(10, GENESIS) + line(20), 10, 10),
    "the configured one while there is no anchor": ("", 10, 10),
    "none while there is no anchor": ("", None, None),
}


@pytest.mark.parametrize("which", GENESES)
async def test_the_genesis_is(tmp_path: Path, which: str) -> None:
    text, configured, expected = GENESES[which]
    anchors, _ = await of_text(tmp_path, text, configured)
    assert anchors.genesis == expected
    assert anchors.attested_height == (20 if text else None)


async def test_the_genesis_alone_is_no_anchor(tmp_path: Path) -> None:
    for kind in (GENESIS, ATTESTATION, CHECKPOINT):
        anchors, _ = await of_text(tmp_path, line(10, kind))
        assert (anchors.genesis, anchors.attested_height, anchors.checkpoint_height) == (10, None, None)


CONTRADICTORY = {
    "two geneses": (line(10, GENESIS) + line(5, GENESIS), None, "two anchors are of kind genesis, at 5 and at 10"),
    "another genesis": (line(10, GENESIS) + line(20), 20, "anchors.genesis is 20, but the anchors start at 10"),
    "no such anchor": (line(10) + line(20), 5, "anchors.genesis is 5, but there is no anchor at that height"),
    "below": (line(10, GENESIS) + line(5), None, "the anchor at 5 is below the genesis, which is 10"),
    "below the configured": (line(10) + line(20), 20, "the anchor at 10 is below the genesis, which is 20"),
}


@pytest.mark.parametrize("which", CONTRADICTORY)
async def test_anchors_that_contradict_the_genesis_are_refused(tmp_path: Path, which: str) -> None:
    text, configured, reason = CONTRADICTORY[which]
    with pytest.raises(AnchorsRefused) as refused:
        await of_text(tmp_path, text, configured)
    assert str(refused.value).endswith(f"anchors.csv: {reason}")


async def test_a_change_is_seen_at_the_next_reading(tmp_path: Path) -> None:
    anchors, path = await of_text(tmp_path, line(0) + line(10) + line(20))
    known, kept = anchors.bracket(15, 15), anchors.bracket(5, 5)
    replace_file(path, HEADER + line(0) + line(10) + line(20, mark=1) + line(30))
    assert anchors.attested_height == 20
    await anchors.advance(None, never)
    assert anchors.attested_height == 30
    assert not anchors.holds(known)
    assert anchors.holds(kept)
    assert anchors.bracket(15, 15).upper_digest == digest(20, mark=1)


async def test_a_file_that_breaks_changes_nothing_until_it_is_mended(tmp_path: Path) -> None:
    anchors, path = await of_text(tmp_path, line(0) + line(10))
    known = anchors.bracket(5, 5)
    replace_file(path, HEADER + line(0) + line(10) + "20,0x12")
    for _ in range(2):
        with pytest.raises(RpcUnavailable, match="the file of anchors: line 4"):
            await anchors.advance(None, never)
        assert anchors.bracket(5, 5) == known
        assert anchors.holds(known)
        state = anchors.state()
        assert state["state"] == "stale"
        assert str(path) not in str(state)
    path.unlink()
    with pytest.raises(RpcUnavailable, match="cannot be read"):
        await anchors.advance(None, never)
    replace_file(path, HEADER + line(0) + line(10) + line(20))
    await anchors.advance(None, never)
    assert (anchors.attested_height, anchors.state()) == (20, {"state": "ok"})


async def test_a_hole_below_is_told_as_one(tmp_path: Path) -> None:
    anchors, _ = await of_text(tmp_path, line(10) + line(20))
    with pytest.raises(Internal):
        anchors.bracket(10, 10)


# --- rows ---------------------------------------------------------------------------------------------------------------


class Rows(MemoryAnchorRows):
    down = False

    async def load(self) -> tuple[AnchorRow, ...]:
        if self.down:
            raise StoreUnavailable
        return await super().load()


async def with_rows(*kept: AnchorRow) -> Rows:
    rows = Rows()
    await rows.add(kept)
    return rows


async def test_rows_are_read_again_and_again() -> None:
    rows = await with_rows(row(0), row(10))
    anchors = await Static.of_rows(7, rows)
    assert (anchors.genesis, anchors.attested_height, anchors.heard) == (0, 10, True)
    await rows.add([row(20)])
    await anchors.advance(100, never)
    assert anchors.attested_height == 20


async def test_rows_that_cannot_be_read_change_nothing() -> None:
    rows = await with_rows(row(0), row(10))
    rows.down = True
    anchors = await Static.of_rows(7, rows)
    assert (anchors.heard, anchors.attested_height) == (False, None)
    assert anchors.state() == {"state": "unread", "reason": "the database cannot be had"}
    rows.down = False
    await anchors.advance(None, never)
    assert (anchors.heard, anchors.attested_height) == (True, 10)
    rows.down = True
    with pytest.raises(StoreUnavailable):
        await anchors.advance(None, never)
    assert anchors.attested_height == 10
    assert anchors.state()["state"] == "stale"


@pytest.mark.parametrize("kept", [(), (row(3), row(9))])
async def test_rows_that_contradict_the_configuration_are_refused(kept: Sequence[AnchorRow]) -> None:
    rows = await with_rows(*kept)
    if not kept:
        assert (await Static.of_rows(7, rows, genesis=4)).genesis == 4
        return
    with pytest.raises(AnchorsRefused, match="there is no anchor at that height"):
        await Static.of_rows(7, rows, genesis=4)

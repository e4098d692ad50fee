"""Anchors that somebody else decided on: in a file, or in the rows of the ledger. Read again whenever they changed.

The file is CSV (RFC 4180) in UTF-8, with a header line; lines that are empty or begin with # say nothing:

    height,digest,kind
    100,0x…,genesis        the lowest end of proofs; heights at or below it are refused. Without one it is the lowest line
    110,0x…,attestation
    200,0x…,checkpoint

The order of the lines is no matter. One height may stand twice, as an attestation and a checkpoint, with one digest. A file that
is not right is refused at the start; one that is broken later changes nothing until it is mended.
"""

from __future__ import annotations

import asyncio
import csv
import io
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Self

from app.core.anchor_rows import ATTESTATION, GENESIS, KINDS
from app.core.continuity import SortedMapping
from app.core.errors import RpcUnavailable
from app.core.hexadecimal import from_hex_exact
from app.core.lasting import StoreUnavailable

from .held import HeldAnchors
from .ports import AnchorRow, AnchorRows

POLL_INTERVAL_S = 5.0

MAX_FILE_BYTES = 64 << 20
"""Some 800,000 anchors."""

_HEADER = ["height", "digest", "kind"]
_HIGHEST = (1 << 63) - 1


class AnchorsRefused(ValueError):
    """Anchors that cannot be used. Its text is one line that names the place and the reason."""


class Static(HeldAnchors):
    """Implements the chain's `Anchors`. `advance` is called by one task alone; everything else only reads."""

    source = "static"

    def __init__(
        self,
        chain_key: int,
        read: Callable[[], Awaitable[Iterable[AnchorRow] | None]],
        genesis: int | None = None,
        *,
        what: str = "the rows of anchors",
        poll_interval_s: float = POLL_INTERVAL_S,
    ) -> None:
        """`read` yields every row; None when nothing changed since it did so last. `genesis` must be that of the rows, if both
        name one. `what` is what is read, in messages."""
        super().__init__(chain_key, genesis)
        self._read = read
        self._wanted_genesis = genesis
        self._what = what
        self.poll_interval_s = poll_interval_s
        self._fault: str | None = None
        self.heard = False

    @classmethod
    async def of_file(cls, chain_key: int, path: str, genesis: int | None = None) -> Self:
        """From a file. Raises `AnchorsRefused`."""
        anchors = cls(chain_key, AnchorFile(path).read, genesis, what="the file of anchors")
        try:
            await anchors._refresh()
        except AnchorsRefused as refused:
            raise AnchorsRefused(f"{path}: {refused}") from None
        return anchors

    @classmethod
    async def of_rows(cls, chain_key: int, rows: AnchorRows, genesis: int | None = None) -> Self:
        """From the rows of a ledger, which may be none yet. Raises `AnchorsRefused`. Where they cannot be read now they are
        read later."""
        anchors = cls(chain_key, rows.load, genesis)
        try:
            await anchors._refresh()
        except StoreUnavailable:
            anchors._fault = "the database cannot be had"
        return anchors

    def __repr__(self) -> str:
        return f"<Static {len(self._attestations)} attestations, {len(self._checkpoints)} checkpoints>"

    def state(self) -> dict[str, object]:
        """`ok`, `unread` (never read yet) or `stale` (what it says now is not right), and why."""
        why = {} if self._fault is None else {"reason": self._fault}
        return {"state": "unread" if not self.heard else "ok" if self._fault is None else "stale", **why}

    async def advance(self, finalized: int | None, root_at: Callable[[int], Awaitable[bytes]]) -> None:
        """Reads what changed. Raises `RpcUnavailable` for what is not right now, and `StoreUnavailable`."""
        try:
            await self._refresh()
        except AnchorsRefused as refused:
            self._fault = f"{self._what}: {refused}"
            raise RpcUnavailable(self._fault) from None
        except StoreUnavailable:
            self._fault = "the database cannot be had"
            raise

    async def _refresh(self) -> None:
        rows = await self._read()
        if rows is not None:
            self._replace(tuple(rows))
        self._fault = None

    def _replace(self, rows: tuple[AnchorRow, ...]) -> None:
        heights = {row.height for row in rows}
        named = sorted({row.height for row in rows if row.kind == GENESIS})
        wanted = self._wanted_genesis
        if len(named) > 1:
            raise AnchorsRefused(f"two anchors are of kind genesis, at {named[0]} and at {named[1]}")
        if wanted is not None and named not in ([], [wanted]):
            raise AnchorsRefused(f"anchors.genesis is {wanted}, but the anchors start at {named[0]}")
        if wanted is not None and heights and wanted not in heights:
            raise AnchorsRefused(f"anchors.genesis is {wanted}, but there is no anchor at that height")
        genesis = named[0] if named else min(heights, default=None) if wanted is None else wanted
        if genesis is not None and heights and min(heights) < genesis:
            raise AnchorsRefused(f"the anchor at {min(heights)} is below the genesis, which is {genesis}")
        self._attestations = SortedMapping((row.height, row.digest) for row in rows if row.kind == ATTESTATION)
        self._checkpoints = SortedMapping((row.height, row.digest) for row in rows if row.kind != ATTESTATION)
        self._genesis = genesis
        self.heard = True


class AnchorFile:
    """A file of anchors, read when it is another than it was."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._seen: tuple[int, int, int] | None = None

    async def read(self) -> tuple[AnchorRow, ...] | None:
        """Its rows; None when nothing changed since they were read last. Raises `AnchorsRefused`."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> tuple[AnchorRow, ...] | None:
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                seen = (status.st_ino, status.st_mtime_ns, status.st_size)
                if seen == self._seen:
                    return None
                content = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise AnchorsRefused(f"cannot be read: {error.strerror}") from None
        if len(content) > MAX_FILE_BYTES:
            raise AnchorsRefused(f"is larger than {MAX_FILE_BYTES} bytes")
        try:
            rows = parse_anchors(content)
        except ValueError as error:
            raise AnchorsRefused(str(error)) from None
        self._seen = seen
        return rows


def parse_anchors(content: bytes) -> tuple[AnchorRow, ...]:
    """The rows of a CSV text. Raises ValueError, which names the line."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[AnchorRow] = []
    digests: dict[int, bytes] = {}
    try:
        said = ([field.strip() for field in line] for line in lines if line and not line[0].lstrip().startswith("#"))
        _require(next(said, None) == _HEADER, f"the first line must be {','.join(_HEADER)}")
        for cells in said:
            row = _row(cells)
            same = digests.setdefault(row.height, row.digest) == row.digest
            _require(same, f"another digest for height {row.height} than on an earlier line")
            rows.append(row)
    except csv.Error as error:
        raise ValueError(f"line {lines.line_num}: is not CSV: {error}") from None
    except ValueError as error:
        raise ValueError(f"line {lines.line_num}: {error}") from None
    return tuple(rows)


def _row(cells: list[str]) -> AnchorRow:
    _require(len(cells) == len(_HEADER), f"{len(cells)} fields where {len(_HEADER)} belong")
    height, digest, kind = cells
    whole = height.isascii() and height.isdigit() and len(height) < 20
    _require(whole and int(height) <= _HIGHEST, "the height must be a whole number below 2^63")
    try:
        digest_bytes = from_hex_exact(digest, 32)
    except ValueError:
        raise ValueError("the digest must be 64 hex digits behind 0x") from None
    _require(kind in KINDS, f"the kind must be one of {', '.join(KINDS)}")
    return AnchorRow(int(height), digest_bytes, kind)


def _require(met: bool, complaint: str) -> None:
    if not met:
        raise ValueError(complaint)

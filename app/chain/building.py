"""The builder of blocks: out of what a node sent, and out of what was packed before."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol

from app.chain.builder import CooperativeBuilder, ProcessBuilder
from app.chain.cpus import usable_cpus
from app.chain.worker import build, build_packed, import_core

if TYPE_CHECKING:
    from app.core.provable_block import BuildRequest, ProvableBlock
    from app.core.reopening import ReopenRequest


def open_builder(
    processes: int | Literal["auto"], on_break: Callable[[], object] = lambda: None
) -> BlockProcesses | BlockThread:
    """The block builder of this process, to be entered: `auto` takes the CPU quota, 0 builds in a thread of this process.

    `on_break` is called whenever a worker process was lost.
    """
    if processes == 0:
        return BlockThread(build)
    count = min(usable_cpus(), 16) if processes == "auto" else processes
    return BlockProcesses(count, build_packed, _unpack, initializer=import_core, on_break=on_break)


def _unpack(data: bytes) -> ProvableBlock:
    from app.core.provable_block import unpack

    return unpack(data)


class _Builds(Protocol):
    async def build(self, request: BuildRequest | ReopenRequest) -> ProvableBlock: ...


class _Reopens:
    async def reopen(self: _Builds, packed: bytes, block_hash: bytes) -> ProvableBlock:
        """The block that was packed, checked as if it were new, where blocks are built. Raises as `build` does."""
        from app.core.reopening import ReopenRequest

        return await self.build(ReopenRequest(packed, block_hash))


class BlockProcesses(_Reopens, ProcessBuilder["BuildRequest | ReopenRequest", "ProvableBlock"]):
    """Builds blocks in worker processes."""


class BlockThread(_Reopens, CooperativeBuilder["BuildRequest | ReopenRequest", "ProvableBlock"]):
    """Builds blocks in a thread of this process."""

"""One worker process: what runs in it, and how this process starts, feeds and ends it.

Workers import this module and the core, nothing of the web. Each is the only process of its own pool.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import BaseContext
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from app.core.errors import ContentInvalid, ProofError

if TYPE_CHECKING:
    from app.core.provable_block import BuildRequest, ProvableBlock
    from app.core.reopening import ReopenRequest

Q = TypeVar("Q")

_FORKED = multiprocessing.get_context("forkserver")
_SPAWNED = multiprocessing.get_context("spawn")
_STARTING = threading.Lock()

SHORT_PLACES = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - for a directory with a random name that only we may enter
"""Where the fork server's socket goes if the directory for temporary files can hold none."""

# --- there ----------------------------------------------------------------------------------------------------------


def import_core() -> None:
    """The initializer of block builders."""
    import app.core.reopening  # noqa: F401 - with all of block_building; paid for before the first request


def build(request: BuildRequest | ReopenRequest) -> ProvableBlock:
    """A checked block, out of what a node sent or out of what was packed before; the core is imported where this runs."""
    from app.core.block_building import build
    from app.core.reopening import ReopenRequest, reopen

    return reopen(request.packed, request.block_hash) if isinstance(request, ReopenRequest) else build(request)


def build_packed(request: BuildRequest | ReopenRequest) -> bytes:
    """A checked block as one `bytes`: the work of block builders."""
    return build(request).pack()


def _begin() -> None:
    """A worker leaves stopping to its parent: signals for the whole process group must not break builds in flight."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, name="follow-parent", daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _prepare(initializer: Callable[[], None] | None) -> int:
    if initializer is not None:
        initializer()
    return os.getpid()


def _perform(work: Callable[[Q], bytes], request: Q) -> tuple[Literal["built", "error", "crash"], bytes]:
    """One job. Only plain bytes cross back: an error that cannot be unpickled would break the pool."""
    try:
        return "built", work(request)
    except (ContentInvalid, ProofError) as error:
        return "error", pickle.dumps(error)
    except BaseException:  # noqa: BLE001 - SystemExit too would be raised again over there, and end the whole program
        return "crash", traceback.format_exc().encode()


# --- here -----------------------------------------------------------------------------------------------------------


class Worker:
    """One worker process, through a pool of one. Owned by one task of the builder; replaced, never repaired."""

    def __init__(self, initializer: Callable[[], None] | None, context: BaseContext | None = None) -> None:
        """`context`: how its process is started; by default as `start_method` says."""
        self._initializer = initializer
        self._context = context
        self._executor: ProcessPoolExecutor | None = None
        self.pid: int | None = None

    def open(self) -> None:
        """Starts the process and waits until it is ready: blocks, for a thread.

        Raises what the initializer raised, `BrokenProcessPool` when there can be no process.
        """
        context = start_method() if self._context is None else self._context
        executor = ProcessPoolExecutor(1, mp_context=context, initializer=_begin)
        try:
            with _STARTING, _without_main():
                ready = executor.submit(_prepare, self._initializer)
            self.pid = ready.result()
        except (OSError, EOFError) as error:
            executor.shutdown(wait=False)
            raise BrokenProcessPool("no worker process can be started") from error
        except BaseException:
            executor.shutdown(wait=False)
            raise
        _close_result_writer(executor)
        self._executor = executor

    @property
    def is_open(self) -> bool:
        return self._executor is not None

    def submit(self, work: Callable[[Q], bytes], request: Q) -> Future[tuple[str, bytes]]:
        if self._executor is None:
            raise BrokenProcessPool("no worker process")
        return self._executor.submit(_perform, work, request)

    def kill(self) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends the process and waits for that: blocks, for a thread."""
        executor, self._executor, self.pid = self._executor, None, None
        if executor is not None:
            executor.shutdown(wait=True)


def start_method(places: Sequence[str] | None = None) -> BaseContext:
    """How workers are started now: forked from a server that has imported what they need, or spawned.

    That server listens on a Unix socket, whose path may have about 100 bytes. If none of the `places` (by default the directory
    for temporary files, then `SHORT_PLACES`) can hold one, each worker is spawned: it needs no socket, and a second or two.
    """
    with _STARTING:
        known = multiprocessing.current_process()._config.get("tempdir")  # type: ignore[attr-defined] # no public way to ask
        if known is None:
            place = next(filter(_holds_sockets, _temporary_places() if places is None else places), None)
            usable = place is not None
            if place is not None:
                _make_directory(place)
        else:
            usable = _holds_sockets(known)
    if not usable:
        return _SPAWNED
    _FORKED.set_forkserver_preload(["app.chain.worker", "app.core.reopening"])  # without effect once the server runs
    return _FORKED


def _temporary_places() -> Iterator[str]:
    with contextlib.suppress(OSError):  # there may be no usable directory at all
        yield tempfile.gettempdir()
    yield from SHORT_PLACES


def _make_directory(place: str) -> None:
    """Where multiprocessing puts its sockets from now on; it removes the directory when this process ends."""
    before, tempfile.tempdir = tempfile.tempdir, place
    try:
        get_temp_dir()
    finally:
        tempfile.tempdir = before


def _holds_sockets(place: str) -> bool:
    """Tries it: a path may be too long, a directory missing or read-only, a file system without sockets."""
    try:
        with tempfile.TemporaryDirectory(prefix="pymp-", dir=place) as folder, socket.socket(socket.AF_UNIX) as probe:
            probe.bind(str(Path(folder) / "listener-xxxxxxxx"))
    except (OSError, ValueError):
        return False
    return True


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hides the program's main module from a worker being started, which would import it: the whole web stack."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _close_result_writer(executor: ProcessPoolExecutor) -> None:
    """Closes this process's copy of the pipe's end into which only the worker writes.

    While it is open, a worker killed in the middle of a result leaves the pool reading for ever, and the job without an end.
    """
    executor._result_queue._writer.close()  # type: ignore[attr-defined] # no public way to this end of the pipe

"""The real program in a process of its own, for tests about how it starts, is told to end, and ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from tests import launching
from tests.acceptance.made_blocks import CHAIN_ID, every_type, small_chain
from tests.scripted_node import ScriptedNode

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 60.0
_MARK = "TESTED_PROCESS"

BLOCKS = small_chain(every_type())
PROOF = "/api/v1/proofs/chain/blocks/2/transactions/1"
OTHER_PROOF = "/api/v1/proofs/chain/blocks/1/transactions/0"

T = TypeVar("T")


async def until(ask: Callable[[], T], what: str) -> T:
    """The first truthy value of `ask`: another process is asked again and again, as there is nothing to wait on."""
    async with asyncio.timeout(PATIENCE_S):
        while not (value := ask()):  # noqa: ASYNC110 - as it says
            await asyncio.sleep(0.01)
        return value
    raise AssertionError(f"not in time: {what}")


# --- a client that sees its connection ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Line:
    """One connection, used for one request after another."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def open(cls, port: int, tls: ssl.SSLContext | None = None) -> Line:
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls))

    async def send(self, path: str) -> None:
        self.writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        await self.writer.drain()

    async def reply(self) -> Reply:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status, *lines = head.rstrip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return Reply(
            int(status.split()[1]), headers, await self.reader.readexactly(int(headers.get("content-length", "0")))
        )

    async def get(self, path: str) -> Reply:
        await self.send(path)
        return await self.reply()

    async def closed_by_peer(self) -> None:
        """Returns when the other side has closed."""
        while await self.reader.read(65536):
            pass

    async def close(self) -> None:
        self.writer.close()


async def get(port: int, path: str, tls: ssl.SSLContext | None = None) -> Reply:
    """One request on a connection of its own."""
    line = await Line.open(port, tls)
    try:
        return await line.get(path)
    finally:
        await line.close()


# --- the process ----------------------------------------------------------------------------------------------------


@dataclass
class Program:
    """`copath` as it was started: what it wrote, and everything that it started itself."""

    process: launching.Launched | subprocess.Popen[bytes]
    out: Path
    err: Path
    mark: str
    port: int = 0
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    @property
    def said(self) -> str:
        """Everything that it wrote."""
        return self.out.read_text(errors="replace") + self.err.read_text(errors="replace")

    @property
    def events(self) -> list[dict[str, Any]]:
        """The structured lines."""
        return [json.loads(line) for line in self.err.read_text().splitlines() if line.startswith("{")]

    @property
    def plain_lines(self) -> list[str]:
        """The other lines on standard error."""
        return [line for line in self.err.read_text().splitlines() if not line.startswith("{")]

    def event(self, name: str) -> dict[str, Any] | None:
        return next((event for event in self.events if event["event"] == name), None)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def get(self, path: str) -> Reply:
        return await get(self.port, path, self.tls)

    async def line(self) -> Line:
        return await Line.open(self.port, self.tls)

    def kill(self) -> None:
        """Nothing of it lives on, whatever became of the test."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for left in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)

    async def ended(self) -> int:
        """The exit code, once there is one: negative for a signal that killed it."""
        await until(lambda: self.process.poll() is not None, f"the process ends\n{self.said}")
        return self.process.returncode

    async def ready(self) -> None:
        """Returns once it says that it can serve: by then it has heard of its node's heads."""
        async with asyncio.timeout(PATIENCE_S):
            while (await self.get("/readyz")).status != 200:  # noqa: ASYNC110 - another process tells nobody
                await asyncio.sleep(0.02)

    def family(self) -> list[int]:
        """The processes that live and were started by this one or its children, itself included."""
        if not Path("/proc").is_dir():
            pytest.skip("no /proc here: whether processes are left behind is not tested")
        found = {self.process.pid} if self.process.poll() is None else set()
        for entry in Path("/proc").iterdir():
            try:
                alive = entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes()
            except OSError:  # it ended, or is another user's
                continue
            if alive:
                found.add(int(entry.name))
        return sorted(found)

    def open_files(self) -> int:
        """How many descriptors it has."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def handles(self, number: signal.Signals) -> bool:
        """Whether a handler for the signal is installed."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
        return False

    async def leaves_nobody_behind(self) -> None:
        await until(lambda: not self.family(), f"no process is left of {self.family()}")


def configuration(url: str, **settings: Any) -> dict[str, Any]:
    """One chain behind `url`, nothing that lasts, and times that suit a test."""
    return {
        "bind_port": 0,
        "database_url": "sqlite+aiosqlite:///:memory:",
        "block_store_url": None,
        "build": {"processes": 1},
        "admission": {"request_timeout_secs": 20},
        "shutdown": {"lame_duck_secs": 0, "drain_secs": 20},
        "chains": [
            {
                "chain_key": 1,
                "name": "chain",
                "chain_id": CHAIN_ID,
                "eth_rpc_url": url,
                "cache": {"merkle_backfill_enabled": False},  # the node is asked for what a test asks for
            }
        ],
        **settings,
    }


def start(
    folder: Path, config: Mapping[str, Any], *, environ: Mapping[str, str] | None = None, prelude: str = ""
) -> Program:
    """`copath serve` with that configuration; `prelude` is Python that runs in the process before it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(dict(config)))
    out, err, mark = folder / "out", folder / "err", uuid.uuid4().hex
    arguments = ["serve", "--config", str(folder / "config.yaml")]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("COPATH_", "PROMETHEUS_"))}
    env = {**inherited, "PYTHONPATH": str(ROOT), _MARK: mark, **(environ or {})}
    process: launching.Launched | subprocess.Popen[bytes]
    with out.open("wb") as out_file, err.open("wb") as err_file, open(os.devnull, "rb") as nothing:
        streams: dict[str, Any] = {"stdin": nothing, "stdout": out_file, "stderr": err_file}
        if prelude or environ:  # what is read as the program is imported is read then
            program = ["-m", "app"] if not prelude else ["-c", f"{prelude}\nfrom app.cli import main; main()"]
            process = subprocess.Popen([sys.executable, *program, *arguments], cwd=folder, env=env, **streams)
        else:
            process = launching.Launched(arguments, cwd=folder, env=env, **streams)
    return Program(process, out, err, mark)


@asynccontextmanager
async def running(
    folder: Path, config: Mapping[str, Any], *, tls: ssl.SSLContext | None = None, **more: Any
) -> AsyncIterator[Program]:
    """A server that listens."""
    program = start(folder, config, **more)
    program.tls = tls
    try:
        listening = await until(
            lambda: program.event("listening") or program.process.poll() is not None, f"it listens\n{program.said}"
        )
        assert isinstance(listening, dict), program.said
        program.port = int(listening["url"].rpartition(":")[2])
        yield program
    finally:
        program.kill()


@asynccontextmanager
async def node(**options: Any) -> AsyncIterator[ScriptedNode]:
    """A node with a small chain of made-up blocks."""
    async with ScriptedNode(chain_id=CHAIN_ID, **options) as running_node:
        for record in BLOCKS:
            running_node.add(record["block"], record["receipts"])
        yield running_node

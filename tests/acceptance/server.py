"""A real Copath: its own process, a free port of the loopback address, a configuration file."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.launching import Launched

_ROOT = Path(__file__).parent.parent.parent
_START_S = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP response, its header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def code(self) -> str | None:
        """The error code of the body; None where there is none."""
        value = self.json if self.body else {}
        return value.get("code") if isinstance(value, dict) else None


class Client:
    """One keep-alive connection. Not for several threads at once."""

    def __init__(self, port: int, timeout_s: float = 60) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request. `path` goes out exactly as given."""
        for attempt in (1, 2):
            try:
                self._connection.request(method, path, body, dict(headers or {}))
                response = self._connection.getresponse()
                content = response.read()
                break
            # An idle connection may have been closed by the server in the meantime: once more on a fresh one.
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                self._connection.close()
                if attempt == 2:
                    raise
        fields = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, fields, content)

    def get(self, path: str) -> Answer:
        """A GET."""
        return self.send("GET", path)

    def post(self, path: str, value: object) -> Answer:
        """A POST of a JSON value."""
        return self.send("POST", path, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()


class Copath:
    """One running server."""

    def __init__(self, port: int, process: Launched | subprocess.Popen[bytes], log: Path) -> None:
        self.port = port
        self.process = process
        self.log = log
        self.client = Client(port)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> Answer:
        """A GET on a shared connection."""
        return self.client.get(path)

    def post(self, path: str, value: object) -> Answer:
        """A POST of a JSON value on a shared connection."""
        return self.client.post(path, value)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of `name` (as the exposition spells it) whose labels include `labels`."""
        total = 0.0
        for line in self.client.send("GET", "/metrics", headers={"Accept": "text/plain"}).body.decode().splitlines():
            sample, _, value = line.rpartition(" ")
            found, _, rest = sample.partition("{")
            if found == name and all(f'{label}="{wanted}"' in rest for label, wanted in labels.items()):
                total += float(value)
        return total

    def tail(self, lines: int = 40) -> str:
        """The end of its log, for messages of failed tests."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def chain(key: int, name: str, chain_id: int, url: str, family: str = "ethereum", **more: object) -> dict[str, object]:
    """The configuration of one chain. It fills nothing that nobody asked for: most tests count what the node is asked."""
    cache = {"merkle_backfill_enabled": False}
    chosen = {
        "chain_key": key,
        "name": name,
        "chain_id": chain_id,
        "family": family,
        "eth_rpc_url": url,
        "cache": cache,
    }
    return {**chosen, **more}


@contextmanager
def running_copath(*chains: dict[str, object], **settings: object) -> Iterator[Copath]:
    """A server with these chains for the length of a `with`. It keeps nothing that outlasts it."""
    with tempfile.TemporaryDirectory(prefix="copath-test-") as folder:
        place = Path(folder)
        port = free_port()
        config: dict[str, object] = {
            "bind_host": "127.0.0.1",
            "bind_port": port,
            "database_url": f"sqlite+aiosqlite:///{place / 'copath.db'}",
            "block_store_url": None,
            "build": {"processes": 1},
            "chains": list(chains),
            **settings,
        }
        (place / "config.yaml").write_text(yaml.safe_dump(config))
        with _running(["serve", "--config", str(place / "config.yaml")], {}, port, place, launched=True) as copath:
            yield copath


@contextmanager
def running_demo() -> Iterator[Copath]:
    """The demo, as it comes: no file, blocks from the package."""
    with tempfile.TemporaryDirectory(prefix="copath-test-") as folder:
        port = free_port()
        with _running(["serve"], {"COPATH_BIND_PORT": str(port)}, port, Path(folder)) as copath:
            yield copath


@contextmanager
def running_from(arguments: list[str], environment: Mapping[str, str], file: str | None = None) -> Iterator[Copath]:
    """A server started by a command line in its own folder; {port} stands for a free port, {file} for a file of that text."""
    with tempfile.TemporaryDirectory(prefix="copath-test-") as folder:
        place, port = Path(folder), free_port()
        path = place / "given.yaml"
        path.write_text((file or "").replace("{port}", str(port)))
        filled = [each.format(port=port, file=path) for each in arguments]
        with _running(["serve", *filled], dict(environment), port, place) as copath:
            yield copath


@contextmanager
def _running(
    arguments: list[str], environment: dict[str, str], port: int, place: Path, *, launched: bool = False
) -> Iterator[Copath]:
    log = place / "log"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("COPATH_")}
    with log.open("wb") as output:
        process = _start(
            arguments,
            launched,
            cwd=place,
            stdout=output,
            stderr=output,
            env=inherited | environment | {"PYTHONPATH": str(_ROOT)},
        )
    copath = Copath(port, process, log)
    try:
        _wait_until_it_listens(copath)
        yield copath
    finally:
        copath.client.close()
        process.send_signal(signal.SIGINT)  # without a lame duck
        try:
            process.wait(timeout=1)
        except subprocess.TimeoutExpired:  # it is draining: nobody is left to drain for
            process.kill()
            process.wait()


def _start(arguments: list[str], launched: bool, **surroundings: Any) -> Launched | subprocess.Popen[bytes]:
    if launched:
        return Launched(arguments, **surroundings)
    return subprocess.Popen([sys.executable, "-m", "app", *arguments], **surroundings)


def _wait_until_it_listens(copath: Copath) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        if copath.process.poll() is not None:
            raise RuntimeError(f"the server ended with {copath.process.returncode}:\n{copath.tail()}")
        try:
            if copath.get("/livez").status == 200:
                return
        except OSError:
            copath.client.close()
        if time.monotonic() > deadline:
            raise RuntimeError(f"the server did not listen within {_START_S} s:\n{copath.tail()}")
        time.sleep(0.05)  # polling another process from outside: there is nothing to wait on

"""A real nginx with the shipped configuration, on a free port of the loopback address."""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.server import Client, free_port

CONFIGURATION = Path(__file__).parent.parent.parent / "deploy" / "nginx" / "copath.conf"
_START_S = 30.0

_AROUND = """\
user {user};
worker_processes 1;
daemon off;
pid {place}/pid;
error_log {place}/error.log warn;
events {{ worker_connections 512; }}
http {{
    client_body_temp_path {place}/body;
    proxy_temp_path {place}/temp;
    fastcgi_temp_path {place}/fastcgi;
    uwsgi_temp_path {place}/uwsgi;
    scgi_temp_path {place}/scgi;
    include {place}/copath.conf;
}}
"""


def nginx_program() -> str:
    """Where nginx is; skips the test that asks where it is not."""
    found = shutil.which("nginx", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin")))
    if found is None:
        pytest.skip("nginx is not installed (Debian and Ubuntu: apt-get install nginx-light)")
    return found


def rendered(values: Mapping[str, str]) -> str:
    """The shipped configuration, its names replaced as envsubst does it: none but these, in the form ${NAME}."""
    text = CONFIGURATION.read_text()
    for name, value in values.items():
        text = text.replace(f"${{{name}}}", value)
    return text


def written(place: Path, upstream: str, listen: str) -> Path:
    """The main configuration file in `place`, around the shipped one with addresses put in."""
    values = {
        "COPATH_UPSTREAM": upstream,
        "COPATH_LISTEN": listen,
        "COPATH_CACHE_DIR": str(place / "cache"),
        "COPATH_CACHE_SIZE": "64m",
        "COPATH_ACCESS_LOG": str(place / "access.log"),
    }
    (place / "copath.conf").write_text(rendered(values))
    user = "root" if os.geteuid() == 0 else "nobody"  # nobody: without root it is not looked at
    (place / "nginx.conf").write_text(_AROUND.format(place=place, user=user))
    return place / "nginx.conf"


@dataclass(frozen=True, slots=True)
class Nginx:
    """One running nginx."""

    port: int
    client: Client
    access_log: Path
    """One JSON object a line, as the shipped configuration writes it."""
    error_log: Path

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def running_nginx(upstream_port: int) -> Iterator[Nginx]:
    """nginx in front of whatever listens, or will listen, on that port of the loopback address, with an empty cache."""
    program = nginx_program()
    with tempfile.TemporaryDirectory(prefix="copath-nginx-") as folder:
        place = Path(folder)
        port = free_port()
        main = written(place, f"127.0.0.1:{upstream_port}", f"127.0.0.1:{port}")
        process = subprocess.Popen(
            [program, "-p", folder, "-c", str(main), "-e", str(place / "error.log")], stderr=subprocess.DEVNULL
        )
        client = Client(port)
        try:
            _wait_until_it_listens(client, process, place / "error.log")
            yield Nginx(port, client, place / "access.log", place / "error.log")
        finally:
            client.close()
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_it_listens(client: Client, process: subprocess.Popen[bytes], error_log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            if client.get("/nginx-health").status == 200:
                return
        except (OSError, http.client.HTTPException):
            client.close()
        if process.poll() is not None or time.monotonic() > deadline:
            said = error_log.read_text(errors="replace") if error_log.exists() else ""
            raise RuntimeError(f"nginx does not listen: {said}")
        time.sleep(0.02)  # polling another process from outside: there is nothing to wait on

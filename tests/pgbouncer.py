"""PgBouncer in transaction mode, before the PostgreSQL of the tests: the next transaction may run on another connection."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL

from tests.postgres import PostgresServer

SERVER_CONNECTIONS = 2

CONFIGURATION = """
[databases]
* = host={socket_folder} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 500
server_round_robin = 1
logfile = {folder}/log
"""


class PgBouncer:
    """Owned by the test process, as the server behind it is."""

    def __init__(self, program: str, server: PostgresServer) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="copath-pgb-"))
        self._folder.chmod(0o777)  # it gives up being root
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        file = self._folder / "ini"
        chosen = {"socket_folder": server.socket_folder, "port": self.port, "size": SERVER_CONNECTIONS}
        file.write_text(CONFIGURATION.format(folder=self._folder, **chosen))
        as_user = ["-u", Path(server.socket_folder).owner()] if os.geteuid() == 0 else []
        self._process = subprocess.Popen([program, "-q", *as_user, str(file)], stderr=subprocess.DEVNULL)
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except ConnectionRefusedError:
                if self._process.poll() is not None:
                    raise RuntimeError(f"pgbouncer ended: {self.log()}") from None

    def url(self, database: str) -> str:
        return URL.create(
            "postgresql+asyncpg", username="postgres", host="127.0.0.1", port=self.port, database=database
        ).render_as_string(hide_password=False)

    def log(self) -> str:
        return (self._folder / "log").read_text()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._folder)


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed")
    started = PgBouncer(program, postgres_server)
    yield started
    started.close()

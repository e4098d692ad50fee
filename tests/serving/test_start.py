"""What cannot start says why in one line, without a stack and without a secret, and ends with a code that is not 0."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.serving.conftest import Certificate, make_certificate
from tests.serving.process import Program, configuration, running, start

CANARY = "C4n4ryS3cr3t"
URL = f"http://user:{CANARY}@127.0.0.1:1/{CANARY}?k={CANARY}"


async def refusal(folder: Path, config: dict[str, Any], code: int, **more: Any) -> str:
    """The one line of a start that fails with `code`."""
    program: Program = start(folder, config, **more)
    try:
        assert await program.ended() == code, program.said
    finally:
        program.kill()
    assert program.out.read_text() == ""
    assert CANARY not in program.said
    assert "Traceback" not in program.said
    assert [event for event in program.events if event["level"] in ("error", "critical")] == []
    await program.leaves_nobody_behind()
    (line,) = program.plain_lines
    assert line.startswith("copath: ")
    return line.removeprefix("copath: ")


async def test_an_address_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        line = await refusal(tmp_path, configuration(URL, bind_port=port), 1)
    assert line == (
        f"cannot listen on 127.0.0.1:{port}: Address already in use; "
        "another port: --port, bind_port or COPATH_BIND_PORT, 0 for a free one"
    )


async def test_a_port_that_takes_a_privilege(tmp_path: Path) -> None:
    refused = """
import errno, socket

def bind(self, address):
    raise PermissionError(errno.EACCES, "Permission denied")

socket.socket = type("socket", (socket.socket,), {"bind": bind})
"""
    line = await refusal(tmp_path, configuration(URL, bind_port=443), 1, prelude=refused)
    assert line == (
        "cannot listen on 127.0.0.1:443: Permission denied; "
        "ports below 1024 take a privilege; another port: --port, bind_port or COPATH_BIND_PORT"
    )


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("192.0.2.1", "Cannot assign requested address"),  # RFC 5737: nobody's
        ("no.such.host.invalid", ""),  # the resolver's own words
        ("a..b", "no such address"),
    ],
)
async def test_an_address_that_is_not_here(tmp_path: Path, host: str, reason: str) -> None:
    line = await refusal(tmp_path, configuration(URL, bind_host=host), 1)
    assert line.startswith(f"cannot listen on {host}:0: {reason}")
    assert line.endswith("; an address of this host: --host, bind_host or COPATH_BIND_HOST")


@pytest.mark.parametrize(
    "change",
    [
        {"bind_prt": 1},
        {"admission": {"max_in_flight_requests": 0}},
        {"shutdown": {"lame_duck_secs": 0, "drain_secs": 0}},
        {"database_url": f"mysql://u:{CANARY}@h/d"},
        {"chains": [{"chain_key": 1, "eth_rpc_url": URL, "anchors": {"source": "nowhere"}}]},
        {"chains": [{"chain_key": 1, "eth_rpc_url": f"gopher://{CANARY}@x/{CANARY}"}]},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_settings_that_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    line = await refusal(tmp_path, configuration(URL, **change), 2)
    assert str(tmp_path / "config.yaml") in line


async def test_a_chain_that_the_demo_does_not_have(tmp_path: Path) -> None:
    line = await refusal(tmp_path, configuration("demo://nowhere"), 2)
    assert line.startswith("chain chain: the demo has no chain of that name; it has mainnet-early, ")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"database_url": f"postgres://u:{CANARY}@h:{CANARY}/d"},
            "database_url: is not the URL of a database: write : / ? # @ % of a user or a password as ",
        ),
        ({"database_url": f"postgres://u:{CANARY}@h/d?nonsense=1"}, "database_url: unknown option nonsense"),
        (
            {"database_url": f"postgres://u:{CANARY}@h/d?sslmode={CANARY}"},
            "database_url: sslmode must be one of disable, ",
        ),
        ({"database_url": f"postgres://u:{CANARY}@h:65536/d"}, "database_url: its port must be 1 to 65535"),
        ({"block_store_url": f"file://{CANARY}/x"}, "block_store_url: names a host: use file:DIRECTORY"),
    ],
    ids=["database", "option", "sslmode", "port", "blocks"],
)
async def test_what_only_the_configuration_can_mend_is_code_2(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    assert (await refusal(tmp_path, configuration(URL, **change), 2)).startswith(said)


async def test_a_database_without_a_user_in_a_container_that_has_none(tmp_path: Path) -> None:
    nobody = """
import os, pwd

for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "PGUSER"):
    os.environ.pop(name, None)

def getpwuid(uid):
    raise KeyError("uid not found")

pwd.getpwuid = getpwuid
"""
    line = await refusal(tmp_path, configuration(URL, database_url="postgres://127.0.0.1:1/d"), 2, prelude=nobody)
    assert line.startswith("database_url: names no user, and this process has none: ")


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("missing/x.db", "unable to open database file"),
        (".", "unable to open database file"),
        ("file", "file is not a database"),
    ],
)
async def test_a_database_file_that_cannot_be_used_is_code_1(tmp_path: Path, place: str, reason: str) -> None:
    (tmp_path / "file").write_text("no database " * 100)
    line = await refusal(tmp_path, configuration(URL, database_url=f"sqlite:///{tmp_path}/{place}"), 1)
    assert line.endswith(f"refuses: {reason}")


@pytest.mark.parametrize(("place", "reason"), [("file/blocks", "Not a directory"), ("file", "Not a directory")])
async def test_a_directory_for_blocks_that_cannot_be_written_is_said_at_the_start(
    tmp_path: Path, place: str, reason: str
) -> None:
    (tmp_path / "file").write_text("")
    config = configuration(URL, block_store_url=f"file:{tmp_path}/{place}")
    async with running(tmp_path, config) as program:
        (said,) = [event for event in program.events if event["event"] == "block_store_unwritable"]
    assert (said["setting"], said["reason"]) == ("block_store_url", reason)


@pytest.mark.parametrize("name", ["PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"])
async def test_B62_metrics_of_several_processes_are_refused(tmp_path: Path, name: str) -> None:
    metrics = tmp_path / "metrics"
    metrics.mkdir()
    line = await refusal(tmp_path, configuration(URL), 2, environ={name: str(metrics)})
    assert line.startswith(f"{name}: must not be set")
    assert list(metrics.iterdir()) == []


async def test_builders_that_cannot_start(tmp_path: Path) -> None:
    # The server that forks them is then a program that ends at once.
    broken = """
import multiprocessing
from multiprocessing import resource_tracker

resource_tracker.ensure_running()
multiprocessing.set_executable("/bin/false")
"""
    line = await refusal(tmp_path, configuration(URL), 1, prelude=broken)
    assert line.startswith("build.processes: the processes that build blocks cannot be started: ")


@pytest.mark.parametrize("key", ["certificate", "private_key"])
@pytest.mark.parametrize(("place", "reason"), [("missing.pem", "No such file or directory"), (".", "Is a directory")])
async def test_tls_files_that_cannot_be_read(
    tmp_path: Path, certificate: Certificate, key: str, place: str, reason: str
) -> None:
    tls = {**certificate.settings, key: str(tmp_path / place)}
    assert await refusal(tmp_path, configuration(URL, tls=tls), 2) == f"tls.{key} cannot be read: {reason}"


async def test_tls_files_that_do_not_belong_together(tmp_path: Path, certificate: Certificate) -> None:
    other = make_certificate(tmp_path / "other")
    tls = {**certificate.settings, "private_key": str(other.private_key)}
    line = await refusal(tmp_path, configuration(URL, tls=tls), 2)
    assert line == "tls.certificate and tls.private_key cannot be used: key values mismatch"


async def test_tls_files_that_are_no_pem(tmp_path: Path, certificate: Certificate) -> None:
    certificate.certificate.write_text("no certificate")
    line = await refusal(tmp_path, configuration(URL, tls=certificate.settings), 2)
    assert line.startswith("tls.certificate and tls.private_key cannot be used: ")


async def test_an_encrypted_key_does_not_ask_the_terminal(tmp_path: Path) -> None:
    encrypted = make_certificate(tmp_path / "encrypted", "-passout", f"pass:{CANARY}")
    line = await refusal(tmp_path, configuration(URL, tls=encrypted.settings), 2)
    assert line == "tls.private_key is encrypted; it must not be"

"""A node, a server over it, and a certificate for those who speak TLS."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.scripted_node import ScriptedNode
from tests.serving.process import node as node_with_blocks


@pytest.fixture
async def node() -> AsyncIterator[ScriptedNode]:
    async with node_with_blocks() as running:
        yield running


@dataclass(frozen=True)
class Certificate:
    """PEM files for 127.0.0.1, and what a client needs to trust them."""

    certificate: Path
    private_key: Path
    client: ssl.SSLContext

    @property
    def settings(self) -> dict[str, str]:
        return {"certificate": str(self.certificate), "private_key": str(self.private_key)}


def make_certificate(folder: Path, *more: str) -> Certificate:
    """A self-signed certificate, made by the openssl program; `more` are further options of it."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("the openssl program is not installed: TLS is not tested")
    folder.mkdir(parents=True, exist_ok=True)
    certificate, private_key = folder / "certificate.pem", folder / "private_key.pem"
    options = [
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    options += ["-addext", "subjectAltName=IP:127.0.0.1", *(more or ["-nodes"])]
    subprocess.run(
        [program, "req", *options, "-out", str(certificate), "-keyout", str(private_key)],
        check=True,
        capture_output=True,
    )
    return Certificate(certificate, private_key, ssl.create_default_context(cafile=str(certificate)))


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    return make_certificate(tmp_path / "tls")

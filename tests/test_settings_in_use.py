"""That every setting is read while a server is composed: what is only parsed would be a promise without effect."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from app.asgi import create_app
from app.house import open_house
from app.settings import Settings, load_settings
from app.settings.shape import all_paths

READ_BEFORE = {"chains.chain_key"}
"""What the loader itself reads, to know the chains apart."""

READ_WHEN_LISTENING = {"bind_host", "bind_port", "tls.certificate", "tls.private_key"}
READ_WHEN_LEAVING = {"shutdown.lame_duck_secs", "shutdown.drain_secs"}


class Noting:
    """Settings that note which of their leaves were read, by path."""

    def __init__(self, model: BaseModel, path: str, read: set[str]) -> None:
        self._model, self._path, self._read = model, path, read

    def __getattr__(self, name: str) -> Any:
        model = object.__getattribute__(self, "_model")
        kind = type(model)
        own = getattr(kind, name, None) if name not in kind.model_fields else None
        if isinstance(own, property):
            assert own.fget is not None
            return own.fget(self)
        if name not in kind.model_fields:
            return getattr(model, name)
        here = f"{self._path}.{name}" if self._path else name
        return noting(getattr(model, name), here, self._read)


def noting(value: Any, path: str, read: set[str]) -> Any:
    if isinstance(value, BaseModel):
        return Noting(value, path, read)
    if isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
        return tuple(Noting(item, path, read) for item in value)
    read.add(path)
    return value


CONFIGURATIONS = {
    "kept": """
database_url: sqlite+aiosqlite:///{folder}/kept.db
block_store_url: "file:{folder}/blocks"
build: {{processes: 0}}
consumers: {{pepper: a pepper of tests, rate: {{enabled: true}}, max_in_flight: 3}}
chains:
  - {{chain_key: 1, name: a, eth_rpc_url: "http://127.0.0.1:9", anchors: {{source: self, genesis: 1}}}}
  - chain_key: 2
    anchors: {{source: creditcoin, url: "http://127.0.0.1:9"}}
    upstreams: [{{name: own, url: "http://127.0.0.1:9/a"}}, {{name: other, url: "http://127.0.0.1:9/b", derives_from: own}}]
""",
    "bucket": """
database_url: "sqlite+aiosqlite:///:memory:"
block_store_url: "s3://bucket/prefix?region=x&endpoint=http://127.0.0.1:9"
block_store: {{local_path: "{folder}/near"}}
build: {{processes: 0}}
chains: [{{chain_key: 1, eth_rpc_url: "http://127.0.0.1:9", anchors: {{source: static, path: "{folder}/anchors.csv"}}}}]
""",
}


@asynccontextmanager
async def composed(text: str, folder: Path, read: set[str]) -> AsyncIterator[None]:
    (folder / "anchors.csv").write_text("height,digest,kind\n1,0x" + "11" * 32 + ",genesis\n")
    file = folder / "config.yaml"
    file.write_text(text.format(folder=folder))
    settings: Settings = Noting(load_settings(str(file), {}).settings, "", read)  # type: ignore[assignment]
    create_app(settings)
    async with open_house(settings):
        yield


async def test_every_setting_is_read_while_a_server_is_composed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "made-up")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "made-up")
    read: set[str] = set()
    for name, text in CONFIGURATIONS.items():
        folder = tmp_path / name
        folder.mkdir()
        async with composed(text, folder, read):
            pass
    leaves = {".".join(path) for path in all_paths()}
    idle = {path for path in leaves - read if not path.endswith("_file")}
    assert idle - READ_BEFORE - READ_WHEN_LISTENING - READ_WHEN_LEAVING == {"logging.level", "logging.format"}

"""What may be shown of the settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import BaseModel

_HIDDEN = "***"
_SHORTEST_SECRET = 8  # shorter pieces of a URL are words such as v2, rpc, mainnet


def redact_url(url: str) -> str:
    """`scheme://host[:port]` and nothing else of a URL."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "<invalid url>"
    if not parts.scheme:
        return "<invalid url>"
    if not host:
        return f"{parts.scheme}:"
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + (f":{port}" if port is not None else "")


def redacted(settings: BaseModel) -> dict[str, Any]:
    """The settings as plain values for the log: URLs by host, secrets and the places they lie in not at all."""
    return _redacted(settings)


def changed(settings: BaseModel) -> dict[str, Any]:
    """Those of `redacted` that differ from their defaults."""
    return _changed(settings)


def _changed(model: BaseModel) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if not field.is_required() and value == field.get_default(call_default_factory=True):
            continue
        if isinstance(value, BaseModel):
            shown[name] = _changed(value)
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            shown[name] = [_changed(item) for item in value]
        else:
            shown[name] = _shown(value) if field.repr else _hidden(name, value)
    return shown


def _redacted(model: BaseModel) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        shown[name] = _shown(value) if field.repr else _hidden(name, value)
    return shown


def _shown(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _redacted(value)
    if isinstance(value, tuple):
        return [_shown(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def _hidden(name: str, value: Any) -> Any:
    if not value:
        return _shown(value)
    if name.endswith("url"):
        return redact_url(value)
    if name.endswith("urls"):
        return [redact_url(url) for url in value]
    return _HIDDEN


def secrets_of(settings: BaseModel) -> frozenset[str]:
    """The pieces of text that must appear in no log line, for whoever filters them out: keys in paths and queries of URLs,
    passwords, header values, the pepper."""
    return frozenset(piece for piece in _pieces(settings) if len(piece) >= _SHORTEST_SECRET)


def _pieces(model: BaseModel) -> Iterator[str]:
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from _pieces(value)
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            for item in value:
                yield from _pieces(item)
        elif field.repr or not value or name.endswith(("_file", "private_key")):
            continue
        elif name.endswith("url"):
            yield from _url_pieces(value)
        elif name.endswith("urls"):
            for url in value:
                yield from _url_pieces(url)
        elif isinstance(value, Mapping):
            for header in value.values():
                yield header
                yield from header.split()
        else:
            yield value


def _url_pieces(url: str) -> Iterator[str]:
    parts = urlsplit(url)
    user = parts.username if parts.username and parts.username not in parts.scheme else None  # no secret: postgres
    pieces = [user, parts.password, *(value for _, value in parse_qsl(parts.query))]
    if parts.scheme in ("http", "https", "ws", "wss"):  # elsewhere the path is a file, a database or a bucket
        pieces += parts.path.split("/")
    for piece in pieces:
        if piece:
            yield piece
            yield unquote(piece)

"""The kinds of values that settings have, each with its check.

No message repeats a value: it may be a secret in the wrong place.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from app.settings import text

_Number = TypeVar("_Number", int, float)

_NAME = re.compile(r"[a-z][a-z0-9-]*", re.ASCII)
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", re.ASCII)
_SIZE_UNITS = {
    "": 1,
    "b": 1,
    **{unit + "b": 1000**power for power, unit in enumerate("kmgt", start=1)},
    **{unit + "ib": 1024**power for power, unit in enumerate("kmgt", start=1)},
}
_HOST = re.compile(rb"[a-z0-9._-]+", re.IGNORECASE)
_ADDRESS_6 = re.compile(r"[0-9a-f:.]+", re.ASCII | re.IGNORECASE)
_LARGEST = 2**63 - 1


def no_boolean(value: object) -> object:
    """Numbers only: pydantic would take `true` for 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not a boolean")  # noqa: TRY004 - pydantic lets a TypeError escape
    return value


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


def _not_below_zero(value: _Number) -> _Number:
    if value < 0:
        raise ValueError("must not be below 0")
    return value


def _above_zero(value: _Number) -> _Number:
    if value <= 0:
        raise ValueError("must be above 0")
    return value


def switch_word(value: object) -> object:
    """YAML 1.1 reads the words off and on as booleans."""
    return {False: "off", True: "on"}[value] if isinstance(value, bool) else value


def parse_size(value: object) -> int:
    """Bytes of `268435456`, "256MiB" (binary, 1024 * 1024) or "768MB" (decimal, 1000 * 1000), in any case."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    unit = _SIZE_UNITS.get(match[2]) if match else None
    if match is None or unit is None:
        raise ValueError("must be a number of bytes or a size such as 256MiB or 768MB")
    size_bytes = Decimal(match[1]) * unit
    if size_bytes != int(size_bytes):
        raise ValueError("must come to a whole number of bytes")
    return int(size_bytes)


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError("must be lower-case letters, digits and hyphens, a letter first")
    return value


def _network_url(*schemes: str) -> AfterValidator:
    def check(url: str) -> str:
        text.url(url)  # first, as urlsplit drops line breaks and tabs
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            raise ValueError("is not a URL") from None
        if parts.scheme not in schemes:
            raise ValueError(f"must begin with {' or '.join(f'{scheme}://' for scheme in schemes)}")
        if not host:
            raise ValueError("names no host")
        if not _is_host(host):
            raise ValueError("names a host that cannot be one")
        return url

    return AfterValidator(check)


def _is_host(host: str) -> bool:
    if ":" in host:
        return _ADDRESS_6.fullmatch(host) is not None
    try:
        return _HOST.fullmatch(host.encode("idna")) is not None
    except UnicodeError:
        return False


def _prefixed(*prefixes: str) -> AfterValidator:
    def check(url: str) -> str:
        if url.startswith("file:"):
            text.file_name(url)
        else:
            text.url(url)
        if not any(url.startswith(prefix) and len(url) > len(prefix) for prefix in prefixes):
            raise ValueError(f"must begin with {' or '.join(prefixes)} and name a place")
        return url

    return AfterValidator(check)


_DRIVERS = {
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
    "sqlite": "sqlite+aiosqlite",
}
"""What platforms and other programs call a database, and the driver that is used for it here."""


def _database_url(url: str) -> str:
    scheme, rest, place = url.partition("://")
    name, _, driver = scheme.lower().partition("+")
    if not rest or name not in _DRIVERS:
        raise ValueError("must begin with postgresql://, postgres:// or sqlite:///, and name a database")
    known = _DRIVERS[name]
    if driver and f"{name}+{driver}" != known:
        raise ValueError(f"must name no driver, or {known}://: no other is used here")
    if name == "sqlite":
        text.file_name(url)
    elif text.url(url) and not place:
        raise ValueError("must name a host and a database, as in postgresql://user:password@host/database")
    return f"{known}://{place}"


def _long_enough(value: str) -> str:
    if len(value) < 16:
        raise ValueError("must have at least 16 characters")
    return value


def _origin(value: str) -> str:
    text.url(value)
    parts = urlsplit(value)
    if value != "*" and (parts.scheme not in ("http", "https") or f"{parts.scheme}://{parts.netloc}" != value):
        raise ValueError('must be "*" or an origin such as https://example.org, without a path')
    return value


def _network(value: str) -> str:
    try:
        return str(ipaddress.ip_network(value, strict=False))
    except ValueError:
        raise ValueError("must be an address or a network such as 10.0.0.0/8") from None


METHODS = (
    "eth_chainId",
    "eth_blockNumber",
    "eth_getBlockByNumber",
    "eth_getBlockByHash",
    "eth_getBlockReceipts",
    "eth_getTransactionByHash",
    "eth_getTransactionReceipt",
    "eth_subscribe",
    "eth_unsubscribe",
    "eth_subscription",
)
"""What may have a price: everything that an upstream is called with, and what it announces."""

_FOREIGN = re.compile(
    r"(?:eth|net|web3|debug|trace|txpool|erigon|engine|admin|parity|bor|zks|arb|alchemy|qn)_\w+", re.ASCII
)


def priced_methods(prices: Mapping[str, float]) -> Mapping[str, float]:
    """Of a whole price list methods that are never called may stand there too; what is close to one that is, is misspelt."""
    for method in prices:
        if method in METHODS:
            continue
        close = difflib.get_close_matches(method, METHODS, n=1, cutoff=0.93)
        if close or not _FOREIGN.fullmatch(method):
            hint = f"did you mean {close[0]}?" if close else f"called are {', '.join(METHODS)}"
            raise ValueError(f"{method} is no method that is called here; {hint}")
    return prices


Count = Annotated[int, BeforeValidator(no_boolean), AfterValidator(_above_zero), Field(le=_LARGEST)]
Height = Annotated[int, BeforeValidator(no_boolean), AfterValidator(_not_below_zero), Field(le=_LARGEST)]
Seconds = Annotated[float, BeforeValidator(no_boolean), AfterValidator(_finite), AfterValidator(_above_zero)]
SecondsOrZero = Annotated[float, BeforeValidator(no_boolean), AfterValidator(_finite), AfterValidator(_not_below_zero)]
Rate = Seconds
Price = SecondsOrZero
Size = Annotated[int, BeforeValidator(parse_size), AfterValidator(_above_zero), Field(le=_LARGEST)]
Name = Annotated[str, AfterValidator(_name)]
File = Annotated[str, Field(min_length=1), AfterValidator(text.file_name)]
Host = Annotated[str, BeforeValidator(text.trimmed), Field(min_length=1), AfterValidator(text.url)]
PepperText = Annotated[str, BeforeValidator(text.secret), AfterValidator(_long_enough)]
Headers = Annotated[Mapping[str, str], BeforeValidator(text.headers)]
Origin = Annotated[str, BeforeValidator(text.trimmed), AfterValidator(_origin)]
Network = Annotated[str, BeforeValidator(text.trimmed), AfterValidator(_network)]
# demo://NAME names a chain whose blocks are shipped with the program.
UpstreamUrl = Annotated[str, BeforeValidator(text.trimmed), _network_url("http", "https", "ws", "wss", "demo")]
SubscriptionUrl = Annotated[str, BeforeValidator(text.trimmed), _network_url("ws", "wss")]
AnchorUrl = Annotated[str, BeforeValidator(text.trimmed), _network_url("http", "https", "ws", "wss")]
DatabaseUrl = Annotated[str, BeforeValidator(text.trimmed), AfterValidator(_database_url)]
BlockStoreUrl = Annotated[str, BeforeValidator(text.trimmed), _prefixed("file:", "s3://", "gs://", "az://")]

"""Variables that are not ours and that every call to a node goes by: proxies and certificates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from app.settings.errors import SettingsError
from app.settings.text import fault_in, trimmed

_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_READ = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_WRITTEN = "SSLKEYLOGFILE"


def require_usable(environ: Mapping[str, str]) -> None:
    """Raises SettingsError for the first variable that would end in a stack when a node is called. No value is repeated."""
    for name, why in _faults(environ):
        raise SettingsError(f"{name}: {why}")


def _faults(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in (each for upper in _PROXIES for each in (upper, upper.lower())):
        if (proxy := environ.get(name, "")) and (why := _proxy_fault(proxy)):
            yield name, why
    for name in ("NO_PROXY", "no_proxy"):
        if why := fault_in(environ.get(name, "")):
            yield name, why
    for name in _READ:
        if (place := environ.get(name)) and not Path(place).exists():
            yield name, "names what is not there: name the certificates of this host, or unset it"
    if place := environ.get(_WRITTEN):
        try:
            with Path(place).open("a"):
                pass
        except (OSError, ValueError):
            yield _WRITTEN, "names a file that cannot be written: unset it, or name another"


def _proxy_fault(proxy: str) -> str | None:
    if fault := fault_in(str(trimmed(proxy))):
        return fault
    try:
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if parts.scheme.startswith("socks"):
        return "names a SOCKS proxy, which cannot be used: name an HTTP proxy as http://host:port, or unset it"
    if parts.scheme not in ("http", "https") or not host or " " in proxy.strip():
        return "must be the URL of an HTTP proxy, http://host:port"
    return None

"""Where a node is, and what of that may be shown."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import httpx2

from .secrecy import scrubbed, secret_parts

HTTP, WEBSOCKET = ("http", "https"), ("ws", "wss")

_HOST = re.compile(rb"[a-z0-9._-]+|[0-9a-f:.]+")


@dataclass(frozen=True, slots=True, repr=False)
class Address:
    """`origin` is `scheme://host[:port]`: all of the URL that may be shown."""

    url: httpx2.URL
    origin: str
    secrets: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<Address {self.origin}>"

    @classmethod
    def of(cls, url: str, headers: Mapping[str, str], schemes: Collection[str]) -> Address:
        """Raises `ValueError`, with nothing of the URL in it."""
        try:
            parsed = httpx2.URL(url)
        except (httpx2.InvalidURL, ValueError):
            raise ValueError("an upstream URL is not a URL") from None
        if parsed.scheme not in schemes or not _HOST.fullmatch(parsed.raw_host):
            raise ValueError(f"an upstream URL must be {' or '.join(f'{each}://' for each in schemes)} with a host")
        host = f"[{parsed.host}]" if ":" in parsed.host else parsed.host
        origin = f"{parsed.scheme}://{host}" + ("" if parsed.port is None else f":{parsed.port}")
        return cls(parsed, origin, secret_parts(parsed, headers))

    def scrub(self, text: str) -> str:
        """`text` without anything secret of the URL and the headers that go with it, cut to a log line.

        Servers like to quote the path they were asked for.
        """
        return scrubbed(text, self.secrets)

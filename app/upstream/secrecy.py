"""Keeping the secrets of upstream URLs and headers out of everything that is shown or logged."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping

import httpx2

LOGGED_CHARACTERS = 120

_SHORTEST_SECRET = 4
"""Shorter pieces are words such as `v2`: replacing them would garble the text and hide nothing."""


def secret_parts(url: httpx2.URL, headers: Mapping[str, str]) -> tuple[str, ...]:
    """Every piece of the URL beyond its host, and of every header value, that a server could quote back; longest first."""
    target = url.raw_path.decode("ascii", "replace")
    parts = {url.userinfo.decode("ascii", "replace"), url.username, url.password, target, url.path, *headers.values()}
    parts.update(url.path.split("/"))
    for value in headers.values():
        # "Bearer <token>" may come back without its first word.
        parts.update(re.split(r"[\s,;]+", value))
    parts.update(value for _, value in url.params.multi_items())
    return tuple(sorted((part for part in parts if len(part) >= _SHORTEST_SECRET), key=len, reverse=True))


def scrubbed(text: str, secrets: Iterable[str]) -> str:
    """`text` without the secrets, cut to a log line; in this order, so that none is cut in half and shown."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text[:LOGGED_CHARACTERS]


class _NoUrls(logging.Filter):
    """httpx2 logs the full URL of every request at INFO; keys are in paths and queries."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING


_no_urls = _NoUrls()


def keep_urls_out_of_logs() -> None:
    """Silences the one line of httpx2 that names the URL, whatever the log level. May be called again and again."""
    logging.getLogger("httpx2").addFilter(_no_urls)

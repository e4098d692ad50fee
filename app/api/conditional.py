"""Validators and freshness: what a cache may keep, for how long, and when a client need not be sent the bytes again
(RFC 9110, 9111)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from itertools import islice

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

IMMUTABLE = "public, max-age=31536000, immutable"
SETTLED = "public, max-age=60"
"""A finalized block under a URL that does not name its hash: the answer will not change, the URL's meaning could be
asked again."""
FRESH = "public, max-age=2"
"""A block that a reorganisation may still replace."""
MAX_ANCHORED_S = 60
"""A usc answer is kept no longer, however long its anchor will stand."""

_ENTITY_TAG = re.compile(r'("[\x21\x23-\x7e\x80-\xff]*")')


MIN_BYTES = 1024
"""A shorter body fits one packet as it is."""

_COMPRESSIBLE = re.compile(r"application/(?:[a-z-]+\+)?json|application/openmetrics-text|text/plain|text/html")
_CODING = re.compile(r"([a-z0-9*-]+)(?:\s*;\s*q\s*=\s*(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?))?", re.IGNORECASE)
"""Of an offer without space around it. No two parts of it take the same characters next to each other, so it never backtracks."""

_MOST_OFFERS = 32
"""What a client says beyond that many is not read."""


def varies(media_type: str, size_bytes: int | None) -> bool:
    """Whether an answer like this is compressed for those who take it. A size of None is not known yet."""
    if size_bytes is not None and size_bytes < MIN_BYTES:
        return False
    return _COMPRESSIBLE.fullmatch(media_type.partition(";")[0].strip().lower()) is not None


def takes_gzip(accept_encoding: Iterable[str]) -> bool:
    """Whether a client wants gzip rather than nothing, by its `Accept-Encoding` lines (RFC 9110, 12.5.3)."""
    weights: dict[str, float] = {}
    for part in ",".join(islice(accept_encoding, _MOST_OFFERS)).split(",", _MOST_OFFERS)[:_MOST_OFFERS]:
        offer = _CODING.fullmatch(part.strip())
        if offer is not None:
            weights[offer[1].lower()] = float(offer[2] or 1)
    gzip = weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0)))
    return gzip > 0 and gzip >= weights.get("identity", 0.0)


def tag_as_sent(tag: str, accept_encoding: Iterable[str], media_type: str, size_bytes: int) -> str:
    """The ETag of an answer in the encoding in which it leaves. A weak tag is the same in all of them."""
    if tag.startswith("W/") or not varies(media_type, size_bytes) or not takes_gzip(accept_encoding):
        return tag
    return f'{tag[:-1]}-gzip"'


def strong_tag(body: bytes) -> str:
    """The ETag of exactly these bytes."""
    return f'"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'


def weak_tag(*parts: bytes) -> str:
    """An ETag of what an answer says, whatever its bytes. Requires parts of fixed length."""
    return f'W/"{hashlib.blake2b(b"".join(parts), digest_size=16).hexdigest()}"'


def anchored(rests_s: float) -> str:
    """`Cache-Control` of a usc answer when no anchor is expected for `rests_s`: the next one may retire that of the answer.
    Without a second of rest it is asked for each time, which its tag makes cheap."""
    max_age_s = min(MAX_ANCHORED_S, int(rests_s))
    return f"public, max-age={max_age_s}" if max_age_s > 0 else "public, no-cache"


def matches(headers: Headers, tag: str) -> bool:
    """Whether `If-None-Match` names `tag` (weak comparison: W/ is ignored; lists, repeated headers and * are
    understood)."""
    opaque = tag.removeprefix("W/")
    lines = headers.getlist("if-none-match")
    return any(line.strip() == "*" or (opaque in line and opaque in _ENTITY_TAG.findall(line)) for line in lines)


def answer(
    request: Request,
    body: bytes,
    tag: str,
    cache_control: str,
    content_location: str | None = None,
    media_type: str = "application/json",
) -> Response:
    """200 with `body`, or 304 with the same headers when the client has it already. A strong tag is that of the encoding in which
    the answer leaves."""
    tag = tag_as_sent(tag, request.headers.getlist("accept-encoding"), media_type, len(body))
    headers = {"ETag": tag, "Cache-Control": cache_control, "Vary": "Accept-Encoding"}
    if content_location is not None:
        headers["Content-Location"] = content_location
    if matches(request.headers, tag):
        return Response(status_code=304, headers=headers)
    return Response(body, 200, headers, media_type)

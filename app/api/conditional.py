"""Validators and freshness: what a cache may keep, for how long, and when a client need not be sent the bytes again
(RFC 9110, 9111)."""

from __future__ import annotations

import hashlib
import re

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from app.api import compression

IMMUTABLE = "public, max-age=31536000, immutable"
SETTLED = "public, max-age=60"
"""A finalized block under a URL that does not name its hash: the answer will not change, the URL's meaning could be
asked again."""
FRESH = "public, max-age=2"
"""A block that a reorganisation may still replace."""
MAX_ANCHORED_S = 60
"""A usc answer is kept no longer, however long its anchor will stand."""

_ENTITY_TAG = re.compile(r'("[\x21\x23-\x7e\x80-\xff]*")')


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
    tag = compression.tag_as_sent(tag, request.headers.getlist("accept-encoding"), media_type, len(body))
    headers = {"ETag": tag, "Cache-Control": cache_control, "Vary": "Accept-Encoding"}
    if content_location is not None:
        headers["Content-Location"] = content_location
    if matches(request.headers, tag):
        return Response(status_code=304, headers=headers)
    return Response(body, 200, headers, media_type)

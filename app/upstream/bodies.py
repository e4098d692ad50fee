"""Reading a response body that may be anything: bounded in what is declared, what arrives and what it inflates to."""

from __future__ import annotations

import asyncio
import zlib

import httpx2

from .faults import CallFailed, Fault

ACCEPT_ENCODING = "gzip"
"""The one content coding we ask for, since it is the one whose expansion is bounded here (RFC 9110, 8.4)."""

INFLATE_STEP_BYTES = 256 * 1024


async def read_body(response: httpx2.Response, cap_bytes: int) -> bytes:
    """The decoded body. The caller closes the response.

    Raises `CallFailed`: `BODY_TOO_LARGE` as soon as more than `cap_bytes` are declared, sent or inflated, `MALFORMED`
    for a coding that was not asked for or is broken.
    """
    declared = response.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > cap_bytes:
        raise _too_large(cap_bytes)
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding in ("identity", ""):
        return await _plain(response, cap_bytes)
    if coding in ("gzip", "x-gzip"):
        return await _inflated(response, cap_bytes)
    raise CallFailed(Fault.MALFORMED, "the node sent a content coding that was not asked for")


async def _plain(response: httpx2.Response, cap_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.aiter_raw():
        size += len(chunk)
        if size > cap_bytes:
            raise _too_large(cap_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


async def _inflated(response: httpx2.Response, cap_bytes: int) -> bytes:
    inflater = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    chunks: list[bytes] = []
    size = 0
    async for sent in response.aiter_raw():
        pending = sent
        while pending and not inflater.eof:
            try:
                chunk = inflater.decompress(pending, INFLATE_STEP_BYTES)
            except zlib.error:
                raise CallFailed(Fault.MALFORMED, "the node sent a broken gzip body") from None
            pending = inflater.unconsumed_tail
            size += len(chunk)
            if size > cap_bytes:
                raise _too_large(cap_bytes)
            chunks.append(chunk)
            if pending:
                # A small piece that inflates to megabytes must not hold the loop.
                await asyncio.sleep(0)
    if not inflater.eof and (size or chunks):
        raise CallFailed(Fault.RESET, "the response broke off")
    return b"".join(chunks)


def _too_large(cap_bytes: int) -> CallFailed:
    return CallFailed(Fault.BODY_TOO_LARGE, f"the response is larger than {cap_bytes} bytes")

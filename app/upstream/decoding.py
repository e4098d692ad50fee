"""Decoding what a node sent without holding the event loop for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

DECODE_INLINE_BYTES = 1024 * 1024
"""Larger texts are decoded in a thread: the loop is never held for longer than a megabyte takes."""

T = TypeVar("T")


async def decoded(decode: Callable[[bytes], T], raw: bytes) -> T:
    """`decode(raw)`, in a thread where `raw` is large. Cancelling the caller does not stop the thread; it is brief."""
    if len(raw) <= DECODE_INLINE_BYTES:
        return decode(raw)
    return await asyncio.to_thread(decode, raw)

"""How calls reach one node: by HTTP, or over a WebSocket that they share with what the node says by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import httpx2

from .address import WEBSOCKET
from .line import Line
from .observer import NoObserver, UpstreamObserver
from .posting import NodeLimits, Poster, Reply


class Ways:
    """Of one node. `aclose` them. `line` may be there for subscriptions alone, beside `poster`.

    Raises `ValueError` for what is no URL, with nothing of it in the message.
    """

    def __init__(
        self,
        url: str,
        ws_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        limits: NodeLimits | None = None,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        observer: UpstreamObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        trust_env: bool = True,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_lost`: the connection over which calls go has ended, and who answers next may be another node."""
        observer, limits = observer or NoObserver(), limits or NodeLimits()
        self.poster: Poster | None = None
        self.line: Line | None = None
        only_line = url.partition(":")[0] in WEBSOCKET
        if not only_line:
            self.poster = Poster(
                url,
                headers or {},
                limits,
                transport=transport,
                observer=observer,
                clock=clock,
                wall_clock=wall_clock,
                trust_env=trust_env,
            )
        if only_line or ws_url is not None:
            self.line = Line(
                url if ws_url is None else ws_url,
                headers,
                limits,
                clock=clock,
                wall_clock=wall_clock,
                trust_env=trust_env,
                on_busy=observer.on_pool_timeout,
                on_lost=on_lost if only_line else lambda: None,
            )

    def __repr__(self) -> str:
        return f"<Ways {self.poster} {self.line}>"

    @property
    def origin(self) -> str:
        """`scheme://host[:port]` of where calls go: all of the URL that may be shown."""
        return self._carrier.address.origin

    @property
    def held(self) -> int:
        """Connections that calls hold at this moment; of those that share one, each holds one."""
        held = 0 if self.poster is None else self.poster.connections_held
        return held + (0 if self.line is None else self.line.calls)

    def scrub(self, text: str) -> str:
        """`text` without anything secret of the URLs and headers, cut to a log line."""
        return self._carrier.address.scrub(text)

    async def carry(self, content: bytes, ids: Sequence[int], *, bulky: bool) -> Reply:
        """One attempt at a call, or a batch, of these ids. `bulky`: the answer may be large. Raises `CallFailed`."""
        if self.poster is not None:
            return await self.poster.post(content)
        assert self.line is not None
        return await self.line.ask(content, ids, bulky=bulky)

    async def aclose(self) -> None:
        """Ends every connection."""
        for way in (self.line, self.poster):
            if way is not None:
                await way.aclose()

    @property
    def _carrier(self) -> Poster | Line:
        found = self.poster or self.line
        assert found is not None
        return found

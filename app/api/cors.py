"""Who may read answers from a browser. Around everything, so that refusals and faults can be read too."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api import problems
from app.core.errors import InvalidParameter

EXPOSED = ("ETag", "Retry-After", "RateLimit", "RateLimit-Policy", "X-Request-Id", "Content-Location")
_METHODS = ("GET", "HEAD", "POST", "OPTIONS")


class Cors(CORSMiddleware):
    """The framework's CORS layer, whose refused preflights wear the one error body."""

    def __init__(self, app: ASGIApp, allow_origins: Sequence[str]) -> None:
        super().__init__(
            app, allow_origins=allow_origins, allow_methods=_METHODS, allow_headers=("*",), expose_headers=EXPOSED
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if all(name != b"origin" for name, _ in scope["headers"]):  # no browser asks: nearly always
            await self.app(scope, receive, _varying(send))
            return
        if scope["method"] == "OPTIONS":
            headers = Headers(scope=scope)
            if "access-control-request-method" in headers:
                await self._preflight(scope, headers)(scope, receive, send)
                return
        await super().__call__(scope, receive, send)

    def _preflight(self, scope: Scope, headers: Headers) -> Response:
        allowed = self.preflight_response(headers)
        if allowed.status_code < 400:
            return allowed
        refusal = InvalidParameter("the cross-origin request would not be allowed from this origin or with this method")
        kept = {
            name: value for name, value in allowed.headers.items() if name not in ("content-length", "content-type")
        }
        return problems.answer(scope, refusal, kept)


def _varying(send: Send) -> Send:
    """`send` that says that the answer would be another for a browser, as the framework's layer does."""

    async def with_vary(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ())]
            for at, (name, value) in enumerate(headers):
                if name == b"vary":
                    headers[at] = (name, value + b", Origin")
                    break
            else:
                headers.append((b"vary", b"Origin"))
            message = {**message, "headers": headers}
        await send(message)

    return with_vary

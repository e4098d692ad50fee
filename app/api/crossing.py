"""The layers between the metrics and the routes: which chain is meant, and which methods a path has."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api import inputs, problems
from app.api.lobby import ChainFloor, open_house_of
from app.api.visit import Visit, visit_of
from app.core.errors import InvalidChainKey, InvalidParameter, MethodNotAllowed, NotFound


class ChainCheck:
    """ASGI layer: on routes that name a chain, finds it, or answers `InvalidChainKey` before anything is spent on the
    request."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            visit = visit_of(scope)
            if visit.sign is not None and visit.method in visit.sign.methods:
                visit.chain = _chain_of(scope, visit)
        await self.app(scope, receive, send)


def _chain_of(scope: Scope, visit: Visit) -> ChainFloor | None:
    text = visit.params.get("chain_key")
    if text is not None:
        house = open_house_of(scope)
        key = inputs.u64("chain_key", text)
        if key not in house.chains:
            raise InvalidChainKey(f"Chain key not configured: {key} (allowed: {list(house.chains)})")
        return house.chains[key]
    text = visit.params.get("chain")
    if text is not None:
        house = open_house_of(scope)
        chain = house.by_name.get(text)
        if chain is None and text.isascii() and text.isdigit():
            chain = house.chains.get(inputs.u64("chain", text))
        elif chain is None and inputs.CHAIN_NAME.fullmatch(text) is None:
            raise InvalidParameter(
                f"chain must be a chain key or a chain name, not {inputs.shown(text)}", about="chain"
            )
        if chain is None:
            configured = ", ".join(f"{each.key} ({each.name})" for each in house.chains.values())
            raise InvalidChainKey(f"Chain not configured: {text} (allowed: {configured})")
        return chain
    return None


class Signpost:
    """ASGI layer: HEAD as GET without a body, OPTIONS with `Allow`, and the refusal of unknown paths and methods."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        visit = visit_of(scope)
        if visit.sign is None:
            raise NotFound("no such route")
        if visit.method not in visit.sign.methods:
            allow = {"Allow": visit.sign.allow}
            if visit.method == "OPTIONS":
                await Response(status_code=204, headers=allow)(scope, receive, send)
                return
            refusal = MethodNotAllowed(f"this route answers {visit.sign.allow}")
            await problems.answer(scope, refusal, allow)(scope, receive, send)
            return
        if visit.method == "HEAD":
            await self.app({**scope, "method": "GET"}, receive, _headers_only(send))
            return
        await self.app(scope, receive, send)


def _headers_only(send: Send) -> Send:
    """`send` that drops the bytes of the body and keeps its announced length."""

    async def without_body(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {"type": "http.response.body", "body": b"", "more_body": message.get("more_body", False)}
        await send(message)

    return without_body

"""The OpenAPI document and the page that shows it. Every asset is served from here: no other host is needed.

The page's scripts and styles are the distribution that the `fastapi-offline` package carries; only its files are used.
"""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import Response

from app.api import conditional
from app.api.openapi import openapi_document

_ASSETS = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}
_ASSET_AGE = "public, max-age=86400"


def add_routes(app: FastAPI, *, keys_required: bool) -> None:
    """Registers the document, the page and its assets. To be called last: the document lists the routes before it."""
    document: list[tuple[bytes, str]] = []
    building = asyncio.Lock()

    def built() -> tuple[bytes, str]:
        body = orjson.dumps(openapi_document(app, keys_required=keys_required))
        return body, conditional.strong_tag(body)

    async def openapi(request: Request) -> Response:
        async with building:
            if not document:
                document.append(await asyncio.to_thread(built))  # a fifth of a second: not on the event loop
        return conditional.answer(request, *document[0], "no-cache")

    async def to_swagger(_: Request) -> Response:
        # Permanent by contract, but not to be remembered: another page may stand here one day.
        return Response(status_code=308, headers={"Location": "/api/swagger", "Cache-Control": "no-store"})

    async def to_page(_: Request) -> Response:
        return Response(status_code=303, headers={"Location": "/api/swagger/", "Cache-Control": "no-store"})

    for path, route in (
        ("/openapi.json", openapi),
        ("/api/swagger/openapi.json", openapi),
        ("/", to_swagger),
        ("/api/swagger", to_page),
        ("/api/swagger/", _page("../../docs/")),
        ("/docs", _page("docs/")),
        *((f"/docs/{name}", _asset(name, media_type)) for name, media_type in _ASSETS.items()),
    ):
        app.add_route(path, route, methods=["GET"], include_in_schema=False)


def _page(assets: str) -> Any:
    html = get_swagger_ui_html(
        # Relative, so that the page also works behind a path prefix.
        openapi_url="openapi.json",
        title="Copath",
        swagger_js_url=f"{assets}swagger-ui-bundle.js",
        swagger_css_url=f"{assets}swagger-ui.css",
        swagger_favicon_url=f"{assets}favicon.png",
    )
    body = bytes(html.body)

    async def page(_: Request) -> Response:
        return Response(body, headers={"Cache-Control": "no-cache"}, media_type="text/html")

    return page


def _asset(name: str, media_type: str) -> Any:
    body = (assets_directory() / name).read_bytes()
    tag = conditional.strong_tag(body)

    async def asset(request: Request) -> Response:
        return conditional.answer(request, body, tag, _ASSET_AGE, media_type=media_type)

    return asset


def assets_directory() -> Path:
    """Where the installed package keeps the page's files. Raises RuntimeError when it is not installed."""
    spec = find_spec("fastapi_offline")
    if spec is None or spec.origin is None:
        raise RuntimeError("the package fastapi-offline, which carries the files of the docs page, is not installed")
    return Path(spec.origin).parent / "static"

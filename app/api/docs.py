"""The OpenAPI document and the page that shows it. Every asset is served from here: no other host is needed.

The page's scripts and styles are the distribution that the `fastapi-offline` package carries; only its files are used.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response

from app.api import conditional, verify
from app.api.problems import PROBLEM_JSON, PROBLEMS
from app.api.schemas import error_schemas
from app.api.visit import COMPATIBLE

_ASSETS = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}
_ASSET_AGE = "public, max-age=86400"

# Which statuses a route can answer beside success, by what it asks for. 405 and 413 are answered anywhere.
_PROOF = (400, 401, 404, 405, 409, 413, 422, 429, 500, 503, 504)
_VERIFY = (400, 401, 405, 413, 415, 429, 500, 503, 504)
_WITH_BODY = (415,)
_KEYED = (400, 405, 413, 500)
_PLAIN = (405, 413, 500)


def add_routes(app: FastAPI) -> None:
    """Registers the document, the page and its assets. To be called last: the document lists the routes before it."""
    document: list[bytes] = []

    async def openapi(_: Request) -> Response:
        if not document:
            document.append(orjson.dumps(openapi_document(app)))
        return Response(document[0], headers={"Cache-Control": "no-cache"}, media_type="application/json")

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


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """The routes as the framework sees them, with the errors that each of them can answer."""
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes, servers=[{"url": "/"}]
    )
    schemas: dict[str, Any] = document.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas |= error_schemas()
    for path, operations in document["paths"].items():
        compatible = path in COMPATIBLE
        media_type = "application/json" if compatible else PROBLEM_JSON
        body = {
            media_type: {"schema": {"$ref": f"#/components/schemas/{'ErrorBody' if compatible else 'ProblemBody'}"}}
        }
        for method, operation in operations.items():
            responses = operation["responses"]
            if method == "get" and path.startswith("/api/v1/proof"):
                responses["304"] = {"description": "What `If-None-Match` names is still the answer."}
            responses.pop("422", None)  # the framework's own, which is never sent
            for status in _statuses(path) + (_WITH_BODY if "requestBody" in operation else ()):
                responses.setdefault(str(status), {"description": _codes_at(status), "content": body})
    return document


def _statuses(path: str) -> tuple[int, ...]:
    if path == verify.PATH:
        return _VERIFY
    if path.startswith("/api/v1/proof"):
        return _PROOF
    return _KEYED if "{" in path else _PLAIN


def _codes_at(status: int) -> str:
    return ", ".join(sorted(code for code, problem in PROBLEMS.items() if problem.status == status))

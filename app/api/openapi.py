"""The OpenAPI document: what the framework knows of the routes, and what it cannot know of their answers.

Which errors a route can answer is a table here, by operation: sets of codes of one status each. The codes of a status are an
enum in the document, so that a generated client knows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app.api.batch_schemas import ProofQuery
from app.api.problems import PROBLEM_JSON, PROBLEMS
from app.api.schemas import ErrorBody, ProblemBody, schemas_of
from app.api.verify_schemas import verify_schemas
from app.api.visit import COMPATIBLE

_AT = "#/components/schemas/"

# --- errors by operation --------------------------------------------------------------------------------------------

_CHAIN = ("InvalidChainKey", "InvalidParameter")
_UNPROVABLE = (
    "HeaderHashUnsupported",
    "HistoryUnavailable",
    "NotCommittedByHeader",
    "UnsupportedBlockFormat",
    "UnsupportedTransactionType",
)
_TRANSACTION = ("BlockNotOnSourceChain", "TxHashNotFound", "TxNotMined")
_USC_BATCH = ("BatchSpanTooLarge", "BlockBeforeOrAtGenesis", *_CHAIN, "MalformedJson", "TxIndexOutOfBounds")

CODES: Mapping[str, tuple[str, ...]] = {
    "BadChain": _CHAIN,
    "BadPosition": (*_CHAIN, "TxIndexOutOfBounds"),
    "BadUscPosition": ("BlockBeforeOrAtGenesis", *_CHAIN, "TxIndexOutOfBounds"),
    "BadUscTransaction": ("BlockBeforeOrAtGenesis", *_CHAIN),
    "BadUscBatch": (*_USC_BATCH, "EmptyProofQueries", "TooManyProofQueries", "TooManyTxQueriesInProofQuery"),
    "BadUscBatchByTransaction": (*_USC_BATCH, "EmptyTxHashes", "TooManyTxHashes"),
    "BadProof": ("InvalidParameter", "MalformedJson"),
    "Unauthorized": ("Unauthorized",),
    "TransactionNotFound": _TRANSACTION,
    "LogNotFound": (*_TRANSACTION, "LogIndexOutOfBounds"),
    "BlockNotFound": ("BlockNotOnSourceChain",),
    "BlockLogNotFound": ("BlockNotOnSourceChain", "LogIndexOutOfBounds"),
    "UscBlockNotFound": ("AttestationsMissing", "BlockNotOnSourceChain"),
    "UscTransactionNotFound": ("AttestationsMissing", *_TRANSACTION),
    "MethodNotAllowed": ("MethodNotAllowed",),
    "BodyTimeout": ("BodyTimeout",),
    "NotFinalized": ("NotFinalized",),
    "PayloadTooLarge": ("PayloadTooLarge",),
    "UnsupportedMediaType": ("UnsupportedMediaType",),
    "Unprovable": ("EmptyBlockTxProof", *_UNPROVABLE),
    "UscUnprovable": ("BlockNotReady", "EmptyBlockTxProof", *_UNPROVABLE),
    "TooManyRequests": ("ConsumerConcurrency", "ConsumerRateLimited"),
    "Internal": ("Internal",),
    "ProofFault": ("Internal", "MerkleError", "SelfCheckFailed"),
    "ProofUnavailable": (
        "ChainOverloaded",
        "Draining",
        "InconsistentSource",
        "Overloaded",
        "RpcUnavailable",
        "UpstreamBudgetExhausted",
    ),
    "VerifierUnavailable": ("Draining", "Overloaded"),
    "RequestTimeout": ("RequestTimeout",),
}
"""Sets of codes that are answered with one status, by name."""

_ANYWHERE = ("MethodNotAllowed", "PayloadTooLarge", "Internal")
_KEYED = ("BadChain", *_ANYWHERE)
_DOOR = ("Unauthorized", "MethodNotAllowed", "PayloadTooLarge", "TooManyRequests", "ProofFault", "RequestTimeout")
_BODY = ("BodyTimeout", "UnsupportedMediaType")
_PROOF = (*_DOOR, "ProofUnavailable")
_NATIVE = (*_PROOF, "NotFinalized", "Unprovable")
_USC = (*_PROOF, "UscUnprovable")

ERRORS: Mapping[str, tuple[str, ...]] = {
    "getTransactionProof": ("BadChain", "TransactionNotFound", *_NATIVE),
    "getReceiptProof": ("BadChain", "TransactionNotFound", *_NATIVE),
    "getLogProof": ("BadChain", "LogNotFound", *_NATIVE),
    "getTransactionProofAt": ("BadPosition", "BlockNotFound", *_NATIVE),
    "getReceiptProofAt": ("BadPosition", "BlockNotFound", *_NATIVE),
    "getLogProofAt": ("BadChain", "BlockLogNotFound", *_NATIVE),
    "getUscProof": ("BadUscPosition", "UscBlockNotFound", *_USC),
    "getUscProofByTransaction": ("BadUscTransaction", "UscTransactionNotFound", *_USC),
    "getUscBatch": ("BadUscBatch", "UscBlockNotFound", *_BODY, *_USC),
    "getUscBatchByTransaction": (
        "BadUscBatchByTransaction",
        "UscTransactionNotFound",
        *_BODY,
        *_USC,
    ),
    "verifyProof": ("BadProof", "VerifierUnavailable", *_BODY, *_DOOR),
    "getAttestedHeight": _KEYED,
    "getChain": _KEYED,
}
"""Which sets an operation can answer; one that is not listed, those that anything can."""

# --- header fields --------------------------------------------------------------------------------------------------

_HEADERS: Mapping[str, tuple[dict[str, Any], str]] = {
    "X-Request-Id": ({"type": "string"}, "The id of the request: the caller's own if it is short and printable."),
    "Cache-Control": ({"type": "string"}, "Who may keep the answer, and for how long."),
    "ETag": ({"type": "string", "pattern": '^(W/)?".*"$'}, "Names this answer; to be sent as `If-None-Match`."),
    "Content-Location": ({"type": "string"}, "Of a final proof: the URL under which it never changes."),
    "Retry-After": (
        {"type": "integer", "minimum": 1},
        "Seconds until a retry makes sense. With every `retriable` error.",
    ),
    "Allow": ({"type": "string"}, "The methods of the path."),
    "WWW-Authenticate": ({"type": "string"}, "How a key is shown."),
    "RateLimit-Policy": ({"type": "string"}, "Of a limited caller: `q` requests at once and again every `w` seconds."),
    "RateLimit": ({"type": "string"}, "Of a limited caller: `r` requests are left; one more after `t` seconds."),
}
_RETRY_AFTER = "Retry-After"
_ALWAYS = frozenset({"X-Request-Id", "Cache-Control", "ETag", "Allow", "WWW-Authenticate"})
"""Fields that are in every answer that is documented to have them."""
_EVERYWHERE = ("X-Request-Id", "Cache-Control")
_LIMITED = ("RateLimit-Policy", "RateLimit")
_SOME_RETRIABLE = frozenset({404, 422})
_ALL_RETRIABLE = frozenset({408, 409, 429, 503, 504})

# --- security -------------------------------------------------------------------------------------------------------

_SCHEMES: Mapping[str, dict[str, str]] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key as `Authorization: Bearer KEY`."},
    "apiKey": {
        "type": "apiKey",
        "in": "header",
        "name": "X-API-Key",
        "description": "An API key in a field of its own.",
    },
}


def openapi_document(app: FastAPI, *, keys_required: bool) -> dict[str, Any]:
    """The document of the routes of an application. `keys_required`: nothing is proven without an API key."""
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes, servers=[{"url": "/"}]
    )
    components: dict[str, Any] = document.setdefault("components", {})
    schemas: dict[str, Any] = components.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas |= schemas_of(ErrorBody, ProblemBody, ProofQuery) | verify_schemas()
    components["examples"] = examples()["examples"]
    components["securitySchemes"] = dict(_SCHEMES)
    components["headers"] = {
        _header_name(name, always): {"description": text, "required": always, "schema": schema}
        for name, (schema, text) in _HEADERS.items()
        for always in ((False, True) if name == _RETRY_AFTER else (name in _ALWAYS,))
    }
    security = [{name: list[str]()} for name in _SCHEMES]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _complete(operation, path, method, schemas)
            if _is_proof(path):
                operation["security"] = security if keys_required else [*security, {}]
    components["schemas"] = {name: _untitled(schema) for name, schema in sorted(schemas.items())}
    document["paths"] = _untitled_paths(document["paths"])
    return document


def _complete(operation: dict[str, Any], path: str, method: str, schemas: dict[str, Any]) -> None:
    """Adds to an operation what it can answer, with examples."""
    name: str = operation["operationId"]
    compatible = path in COMPATIBLE
    responses: dict[str, Any] = operation["responses"]
    responses.pop("422", None)  # the framework's own, which is never sent
    for group in ERRORS.get(name, _ANYWHERE):
        codes = CODES[group]
        (status,) = {PROBLEMS[code].status for code in codes}
        schema = _error_schema(schemas, group, codes, compatible=compatible)
        media_type = "application/json" if compatible else PROBLEM_JSON
        responses[str(status)] = {
            "description": ", ".join(codes),
            "content": {media_type: {"schema": {"$ref": _AT + schema}}},
        }
    tagged = method == "get" and _is_proof(path)
    if tagged:
        responses["304"] = {"description": "What `If-None-Match` names is still the answer."}
    for answered, response in responses.items():
        fields = [*_EVERYWHERE, *(_LIMITED if _is_proof(path) else ())]
        if tagged and answered in ("200", "304"):
            fields += ["ETag"] if compatible else ["ETag", "Content-Location"]
        response["headers"] = {field: _header(field, always=field in _ALWAYS) for field in fields}
        if _is_error(response):
            response["headers"] |= _headers_of_error(int(answered))
        if response["description"] == "Successful Response":
            response["description"] = operation["summary"]
    operation["responses"] = dict(sorted(responses.items()))
    _show(operation)


def _is_proof(path: str) -> bool:
    return path.startswith("/api/v1/proof")


def _is_error(response: Mapping[str, Any]) -> bool:
    """Not a body of the route's own, which probes have under a status of failure too."""
    schemas = (content["schema"].get("$ref", "") for content in response.get("content", {}).values())
    return any(schema.endswith(("Error", "Problem")) for schema in schemas)


def _headers_of_error(status: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if status in _ALL_RETRIABLE | _SOME_RETRIABLE:
        found[_RETRY_AFTER] = _header(_RETRY_AFTER, always=status in _ALL_RETRIABLE)
    if status == 401:
        found["WWW-Authenticate"] = _header("WWW-Authenticate", always=True)
    if status == 405:
        found["Allow"] = _header("Allow", always=True)
    return found


def _header(field: str, *, always: bool) -> dict[str, str]:
    return {"$ref": f"#/components/headers/{_header_name(field, always)}"}


def _header_name(field: str, always: bool) -> str:
    return f"{field}-If-Retriable" if field == _RETRY_AFTER and not always else field


def _error_schema(schemas: dict[str, Any], group: str, codes: tuple[str, ...], *, compatible: bool) -> str:
    """The name of the schema of these errors, which is added if it is not there yet."""
    base, suffix = (ErrorBody, "Error") if compatible else (ProblemBody, "Problem")
    narrowed: dict[str, Any] = {"code": {"type": "string", "enum": sorted(codes)}}
    schemas[group + suffix] = {
        "allOf": [{"$ref": _AT + base.__name__}, {"type": "object", "required": ["code"], "properties": narrowed}]
    }
    return group + suffix


# --- examples -------------------------------------------------------------------------------------------------------


@cache
def examples() -> dict[str, Any]:
    """Requests that the demo answers, and what it answers: by name, with the names that each operation shows."""
    found: dict[str, Any] = orjson.loads((files("app.api") / "examples.json").read_bytes())
    return found


def _show(operation: dict[str, Any]) -> None:
    """Puts the examples into an operation."""
    parameters = examples()["parameters"]
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in parameters:
            parameter["example"] = parameters[parameter["name"]]
    shown = examples()["operations"].get(operation["operationId"])
    if shown is None:
        return
    for names, content in (
        (shown["requests"], operation.get("requestBody", {}).get("content", {})),
        (shown["responses"], operation["responses"]["200"]["content"]),
    ):
        if names:
            content["application/json"]["examples"] = {
                name: {"$ref": f"#/components/examples/{name}"} for name in names
            }


# --- titles ---------------------------------------------------------------------------------------------------------


def _untitled(schema: Any) -> Any:
    """A schema without the titles that the framework derives from names: generators would name types after them."""
    if isinstance(schema, list):
        return [_untitled(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _untitled(inner) for name, inner in value.items()}
        if key in ("properties", "$defs")
        else value
        if key in ("example", "examples", "enum", "const", "default")
        else _untitled(value)
        for key, value in schema.items()
        if key != "title" or not isinstance(value, str)
    }


def _untitled_paths(paths: dict[str, Any]) -> dict[str, Any]:
    cleaned: dict[str, Any] = _untitled(paths)
    for operations in cleaned.values():
        for operation in operations.values():
            for response in operation["responses"].values():
                for content in response.get("content", {}).values():
                    if "anyOf" in content["schema"]:  # alternatives of which an answer is always one
                        content["schema"]["oneOf"] = content["schema"].pop("anyOf")
    return cleaned

"""One request on its way through the layers: who it is, which route it meant, what became of it.

Made by the outermost layer, read and filled in by every other one. It travels in the ASGI scope.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from starlette.convertors import PathConvertor
from starlette.routing import BaseRoute, Route

from app.api.lobby import ChainFloor
from app.core.admission import Place

_KEY = "copath.visit"

REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the request in hand, for every line that is logged on its behalf, whichever room logs it."""

COMPATIBLE = frozenset(
    {
        "/api/v1/proof/{chain_key}/{header_number}/{tx_index}",
        "/api/v1/proof-by-tx/{chain_key}/{tx_hash}",
        "/api/v1/proof-batch/{chain_key}",
        "/api/v1/proof-batch-by-tx/{chain_key}",
        "/api/v1/attested-height/{chain_key}",
        "/api/v1/health",
    }
)
"""Routes that answer in the reference server's shapes, errors included."""

OTHER = "other"


@dataclass(frozen=True, slots=True)
class RouteSign:
    """A route as the layers see it: its template (never a raw path) and the methods it answers, HEAD included."""

    template: str
    methods: frozenset[str]

    @property
    def allow(self) -> str:
        """The value of `Allow`."""
        return ", ".join(sorted({*self.methods, "OPTIONS"}))


@dataclass(slots=True)
class Visit:
    """One request. `sign` is None when no route has its path; `chain` is set once the chain of a keyed route is
    known."""

    request_id: str
    method: str
    sign: RouteSign | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    chain: ChainFloor | None = None
    outcome: str | None = None
    """The code of the error that was answered; None while there was none."""
    cache: str | None = None
    """Where a proof came from, once one was given: `hit`, `miss` or `joined`."""
    status: int | None = None
    sent_bytes: int = 0
    fault_reported: bool = False
    hushed: bool = False
    """One of many that were refused alike: a line that tells how many stands for it in the log."""
    place: Place | None = None
    """What an admitted request holds; only the door changes it."""
    consumer: str | None = None
    """Who asks, where consumers are told apart: a name that tells nothing."""
    key_id: str | None = None
    """The public part of the API key, once it was verified."""
    asked: dict[str, object] = field(default_factory=dict)
    """What a body asks for, as far as it is public; what the path asks for is in `params`."""
    fields: tuple[tuple[bytes, bytes], ...] = ()
    """What every answer to this request says in its header, a refusal too."""

    @property
    def template(self) -> str:
        """The route's template, `other` when there is no route."""
        return self.sign.template if self.sign is not None else OTHER

    @property
    def proof(self) -> bool:
        """Whether a proof was asked for: those requests are admission-controlled and have an outcome metric."""
        return self.sign is not None and self.sign.template.startswith("/api/v1/proof")

    @property
    def controlled(self) -> bool:
        """Whether this asks for a proof in a way that its route answers: all that admission and consumers' limits are about."""
        return self.proof and self.sign is not None and self.method in self.sign.methods

    @property
    def compatible(self) -> bool:
        """Whether errors wear the reference server's shape."""
        return self.sign is not None and self.sign.template in COMPATIBLE


def visit_of(scope: MutableMapping[str, Any]) -> Visit:
    """The visit of a request scope. One is made where no outer layer did, so that each layer can stand alone."""
    visit = scope.get(_KEY)
    if visit is None:
        visit = Visit(request_id="-", method=scope.get("method", "GET"))
        scope[_KEY] = visit
    assert isinstance(visit, Visit)
    return visit


def begin(scope: MutableMapping[str, Any], visit: Visit) -> None:
    """Puts a new visit into a scope."""
    scope[_KEY] = visit


class RouteTable:
    """Paths to routes, once per request and before any layer acts: templates for metrics, methods for HEAD, OPTIONS and
    405."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._fixed: dict[str, RouteSign] = {}
        self._patterns: dict[int, list[tuple[Route, RouteSign]]] = {}  # by how many segments their paths have
        for route in routes:
            if not isinstance(route, Route):
                raise TypeError(f"{route!r} is no plain route: the table knows its path and methods only from those")
            methods = set(route.methods or ())
            if "GET" in methods:
                methods.add("HEAD")
            sign = RouteSign(route.path_format, frozenset(methods))
            if route.param_convertors:
                if any(isinstance(convertor, PathConvertor) for convertor in route.param_convertors.values()):
                    raise TypeError(f"{route!r} has paths of any number of segments")
                self._patterns.setdefault(sign.template.count("/"), []).append((route, sign))
            elif route.path_format in self._fixed:
                raise ValueError(f"two routes at {route.path_format}: give one of them both methods")
            else:
                self._fixed[route.path_format] = sign

    def find(self, path: str) -> tuple[RouteSign | None, Mapping[str, str]]:
        """The route of `path` and its parameters as text."""
        sign = self._fixed.get(path)
        if sign is not None:
            return sign, {}
        for route, pattern_sign in self._patterns.get(path.count("/"), ()):
            found = route.path_regex.match(path)
            if found is not None:
                return pattern_sign, found.groupdict()
        return None, {}

    @property
    def signs(self) -> tuple[RouteSign, ...]:
        """Every route."""
        return (*self._fixed.values(), *(sign for alike in self._patterns.values() for _, sign in alike))

"""One structured line per event, on one stream, with secrets cut out at the root.

Everything that logs through the standard library or structlog passes the same processors, libraries included: a URL is shown as
`scheme://host[:port]`, credentials and the secrets of the configuration not at all. The rooms log with
`logging.getLogger(__name__)` and put facts into `extra=`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Mapping, MutableMapping
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Literal, TextIO

import structlog

REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the request in hand; every line that is written while it is set carries it."""

EventDict = MutableMapping[str, Any]
CountFault = Callable[[str], None]

_HIDDEN = "***"
# Libraries that write a line, with the whole URL, for every call; and uvicorn's access log, which ours stands for.
_QUIET = ("httpx2", "httpcore2", "httpx", "httpcore", "uvicorn.access", "alembic", "websockets")

_URL = re.compile(r"\b([a-z][a-z0-9+.-]*)://([^\s/?#\"'<>\\]*)([^\s\"'<>\\]*)", re.IGNORECASE)
_CREDENTIAL_HEADER = re.compile(
    r"\b((?:proxy-)?authorization|x-api-key|cookie)\b(\W{1,6})(?:(?:bearer|basic|token)\s+)?[^\s\"',;)}\]]+",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer)\s+[a-z0-9._~+/=-]{6,}", re.IGNORECASE)
_PARAMETER = re.compile(
    r"\b(api[-_]?key|access[-_]?token|auth[-_]?token|token|secret|password|passwd|pepper|key)=[^\s&\"'#,;)]+",
    re.IGNORECASE,
)
_SECRET_FIELDS = frozenset(
    {
        "authorization",
        "proxy_authorization",
        "x_api_key",
        "api_key",
        "cookie",
        "password",
        "secret",
        "token",
        "pepper",
        "dsn",
    }
)


def redact_text(text: str, secrets: Collection[str] = ()) -> str:
    """The text without URLs' paths, queries and user names, without credentials, and without the given secrets."""
    for secret in secrets:
        text = text.replace(secret, _HIDDEN)
    if text.isascii() and not _may_hold_any(text.lower()):
        return text
    text = _URL.sub(_short_url, text)
    text = _CREDENTIAL_HEADER.sub(rf"\1\2{_HIDDEN}", text)
    text = _BEARER.sub(rf"\1 {_HIDDEN}", text)
    return _PARAMETER.sub(rf"\1={_HIDDEN}", text)


def _may_hold_any(lower: str) -> bool:
    """Whether one of the patterns may match an ASCII text, given in lower case. Most texts of a line hold none of these, and
    asking all four patterns of each was most of what a request cost that is refused at the door."""
    return (
        "=" in lower
        or "://" in lower
        or "bearer" in lower
        or "authorization" in lower
        or "cookie" in lower
        or "x-api-key" in lower
    )


def _short_url(match: re.Match[str]) -> str:
    scheme, authority, rest = match.groups()
    if "@" in rest:  # a password with a slash in it: where the host begins is anybody's guess
        return f"{scheme}://{_HIDDEN}"
    closing = rest[len(rest.rstrip(").,;:]}")) :]
    return f"{scheme}://{authority.rpartition('@')[2]}{closing}"


class Redaction:
    """The processor that every event passes last before it becomes a line."""

    def __init__(self, secrets: Collection[str] = ()) -> None:
        # Longest first: a secret that contains another goes as a whole.
        self._secrets = sorted(secrets, key=len, reverse=True)

    def __call__(self, _logger: object, _method: str, event: EventDict) -> EventDict:
        return {key: self._shown(key, value) for key, value in event.items()}

    def _shown(self, key: object, value: object) -> object:
        if isinstance(key, str) and key.lower().replace("-", "_") in _SECRET_FIELDS and value is not None:
            return _HIDDEN
        if type(value) is str:  # nearly all are
            return redact_text(value, self._secrets)
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, bytes | bytearray | memoryview):
            return "0x" + bytes(value).hex()
        if isinstance(value, Mapping):
            return {redact_text(str(inner), self._secrets): self._shown(inner, item) for inner, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self._shown(None, item) for item in value]
        return redact_text(str(value), self._secrets)


def configure_logging(
    level: str = "info",
    format: Literal["json", "console"] | None = "json",
    *,
    secrets: Collection[str] = (),
    request_id: ContextVar[str | None] = REQUEST_ID,
    stream: TextIO | None = None,
) -> None:
    """Route the standard library's logging and structlog's into one handler on `stream` (standard error by default).

    Without a `format` it is `console` on a terminal, else `json`. May be called again; the last call counts. `secrets` are
    texts that must not appear anywhere."""
    stream = stream or sys.stderr
    if format is None:
        format = "console" if stream.isatty() else "json"

    def bind_request_id(_logger: object, _method: str, event: EventDict) -> EventDict:
        current = request_id.get()
        if current is not None:
            event.setdefault("request_id", current)
        return event

    def drop_leftovers(_logger: object, _method: str, event: EventDict) -> EventDict:
        # Left on a record by another handler's formatter, and by uvicorn for a coloured terminal.
        for name in ("message", "asctime", "color_message"):
            event.pop(name, None)
        return event

    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        bind_request_id,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if format == "json"
        else structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    )
    handler = logging.StreamHandler(stream)
    handler.set_name("copath")
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder(), drop_leftovers],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.StackInfoRenderer(),
                structlog.processors.format_exc_info,  # the stack without the values of its variables
                Redaction(secrets),
                renderer,
            ],
        )
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    for old in [old for old in root.handlers if old.get_name() == "copath"]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True


def report_fault(source: str, fault: BaseException, count: CountFault) -> None:
    """Count a fault that nobody caught, then log it: its type, where it arose and the stack, without variables.

    Its message is given only for types of this program: others' may quote what a client or an upstream sent."""
    own = type(fault).__module__.partition(".")[0] == "app"
    _report(source, fault, count, str(fault) if own else None)


def _report(source: str, fault: BaseException, count: CountFault, detail: str | None) -> None:
    count(source)
    frames = traceback.extract_tb(fault.__traceback__)
    logging.getLogger("app").critical(
        "unhandled_exception",
        extra={
            "source": source,
            "type": type(fault).__qualname__,
            "where": f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "",
            "stack_frames": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
            "detail": detail,
        },
    )


def install_fault_hooks(count: CountFault) -> None:
    """Make faults of the main thread, of other threads and of finalizers structured lines, counted before they are logged."""

    def in_main(kind: type[BaseException], fault: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, fault, trace)
        else:
            report_fault("main", fault, count)

    def in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            report_fault("thread", args.exc_value, count)

    def in_finalizer(args: sys.UnraisableHookArgs) -> None:
        if args.exc_value is not None:
            report_fault("unraisable", args.exc_value, count)

    sys.excepthook = in_main
    threading.excepthook = in_thread
    sys.unraisablehook = in_finalizer


def loop_fault_handler(count: CountFault) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """For `loop.set_exception_handler`."""

    def handle(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        fault = context.get("exception")
        if isinstance(fault, BaseException):
            report_fault("loop", fault, count)
        else:
            _report("loop", RuntimeError(), count, str(context.get("message")))

    return handle

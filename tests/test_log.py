"""Logs: one line per event, from every library, without a secret in it."""

from __future__ import annotations

import ast
import asyncio
import gc
import io
import itertools
import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
import structlog

from app import log
from app.core.errors import RpcUnavailable
from app.log import REQUEST_ID, configure_logging, install_fault_hooks, loop_fault_handler, redact_text, report_fault

APP = Path(log.__file__).parent

CANARY = "S3cr3tC4n4ry"
URL = f"https://user:{CANARY}@node.example:8545/{CANARY}?k={CANARY}#{CANARY}"


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """A configured log, undone afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
def hooks() -> Iterator[list[str]]:
    """Fault hooks that note what they count, undone afterwards."""
    before = sys.excepthook, threading.excepthook, sys.unraisablehook
    counted: list[str] = []
    install_fault_hooks(counted.append)
    yield counted
    sys.excepthook, threading.excepthook, sys.unraisablehook = before


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_line_with_its_facts(stream: io.StringIO) -> None:
    logging.getLogger("app.chain").info(
        "fill %s", "done", extra={"height": 7, "block_hash": b"\x01\xff", "chain": "ethereum"}
    )
    (line,) = lines(stream)
    assert line["event"] == "fill done"
    assert (line["level"], line["logger"]) == ("info", "app.chain")
    assert (line["height"], line["block_hash"], line["chain"]) == (7, "0x01ff", "ethereum")
    assert line["timestamp"].endswith("Z")


def test_structlog_and_the_standard_library_write_the_same_lines(stream: io.StringIO) -> None:
    structlog.get_logger("app.a").warning("seen", height=1)
    logging.getLogger("app.a").warning("seen", extra={"height": 1})
    first, second = lines(stream)
    assert {**first, "timestamp": ""} == {**second, "timestamp": ""}


def test_lines_carry_the_request_id_while_one_is_set(stream: io.StringIO) -> None:
    token = REQUEST_ID.set("r-1")
    logging.getLogger("app").info("inside")
    REQUEST_ID.reset(token)
    logging.getLogger("app").info("outside")
    inside, outside = lines(stream)
    assert inside["request_id"] == "r-1"
    assert "request_id" not in outside


def test_the_request_id_may_live_elsewhere(stream: io.StringIO) -> None:
    elsewhere: ContextVar[str | None] = ContextVar("elsewhere", default="r-2")
    configure_logging(stream=stream, request_id=elsewhere)
    logging.getLogger("app").info("x")
    assert lines(stream)[0]["request_id"] == "r-2"


def test_configuring_again_replaces_the_handler(stream: io.StringIO) -> None:
    configure_logging("warning", "json", stream=stream)
    logging.getLogger("app").info("quiet")
    logging.getLogger("app").warning("loud")
    assert [line["event"] for line in lines(stream)] == ["loud"]


@pytest.mark.parametrize("name", ["httpx2", "httpcore2.http11", "uvicorn.access"])
def test_libraries_that_log_every_call_are_quiet(stream: io.StringIO, name: str) -> None:
    logging.getLogger(name).info("HTTP Request: POST %s", URL)
    assert stream.getvalue() == ""
    logging.getLogger(name).warning("trouble")
    assert len(lines(stream)) == 1


def events() -> list[Callable[[logging.Logger], None]]:
    def with_exception(log: logging.Logger) -> None:
        try:
            raise ConnectionError(f"cannot reach {URL}")
        except ConnectionError:
            log.exception("failed")

    return [
        lambda log: log.error("calling %s failed", URL),
        lambda log: log.error(f"calling ({URL}), then {URL!r}; '{URL}'"),
        lambda log: log.error("x", extra={"url": URL}),
        lambda log: log.error("x", extra={"fault": ConnectionError(URL)}),
        lambda log: log.error("x", extra={"nested": {"urls": [URL, (URL,)], URL: 1}}),
        lambda log: log.error("x", extra={"headers": {"Authorization": f"Bearer {CANARY}", "X-API-Key": CANARY}}),
        lambda log: log.error("x", extra={"authorization": CANARY, "pepper": CANARY, "token": CANARY}),
        lambda log: log.error("x", extra={"raw": [("authorization", f"Bearer {CANARY}")]}),
        lambda log: log.error(f"Authorization: Basic {CANARY}=="),
        lambda log: log.error(f"x-api-key: {CANARY}"),
        lambda log: log.error(f"token was Bearer {CANARY}"),
        lambda log: log.error(f"GET /v2/x?apikey={CANARY}&token={CANARY}"),
        lambda log: log.error(f"postgresql+asyncpg://copath:{CANARY}@db:5432/copath"),
        lambda log: log.error(f"https://user:{CANARY}/more@node.example/x"),
        lambda log: log.error(f"HTTPS://{CANARY}:@node.example"),
        with_exception,
    ]


@pytest.mark.parametrize("format", ["json", "console"])
@pytest.mark.parametrize("event", events())
def test_no_secret_reaches_a_line(stream: io.StringIO, event: Callable[[logging.Logger], None], format: str) -> None:
    configure_logging("info", format, stream=stream)  # type: ignore[arg-type]
    event(logging.getLogger("httpcore2.connection"))
    assert stream.getvalue().strip()
    assert CANARY not in stream.getvalue()


def test_secrets_of_the_configuration_reach_no_line_wherever_they_stand(stream: io.StringIO) -> None:
    configure_logging(stream=stream, secrets=[CANARY, f"longer-{CANARY}"])
    logging.getLogger("app").error("POST /v3/%s longer-%s", CANARY, CANARY, extra={"path": f"/{CANARY}"})
    (line,) = lines(stream)
    assert (line["event"], line["path"]) == ("POST /v3/*** ***", "/***")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (URL, "https://node.example:8545"),
        (f"at ({URL}).", "at (https://node.example:8545)."),
        ("https://[::1]:8545/x", "https://[::1]:8545"),
        ("GET /api/v1/proof/1/2/3 chain_key=1 key 0x80", "GET /api/v1/proof/1/2/3 chain_key=1 key 0x80"),
        ("a basic check failed", "a basic check failed"),
        ("demo://sepolia", "demo://sepolia"),
    ],
)
def test_what_is_shown_of_a_text(text: str, shown: str) -> None:
    assert redact_text(text) == shown


# --- faults that nobody caught --------------------------------------------------------------------------------------


def raised(fault: Exception) -> Exception:
    try:
        raise fault
    except Exception as caught:  # noqa: BLE001 - to give it a traceback
        return caught


def test_a_text_that_is_passed_over_quickly_holds_nothing_to_hide(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [
        "https",
        "://",
        "u:p@",
        "host",
        "/p?k=",
        "Bearer",
        "bearer",
        "Authorization",
        "COOKIE",
        "x-Api-Key",
        "token",
        ":",
        "=",
        "key",
        "s3cr3tvalue",
        "plain",
        '"',
    ]
    parts += [" ", "\u00e9", "\u212a", "coo\u212aie", "Author\u0130zation"]  # of two of these the lower case is ASCII
    texts = ["".join(chosen) for chosen in itertools.product(parts, repeat=3)]
    shown = [log.redact_text(text) for text in texts]
    monkeypatch.setattr(log, "_may_hold_any", lambda lower: True)
    assert shown == [log.redact_text(text) for text in texts]


def test_a_fault_is_logged_with_its_place_and_without_a_foreign_message(stream: io.StringIO) -> None:
    counted: list[str] = []
    report_fault("task", raised(ValueError(f"payload {CANARY}")), counted.append)
    (line,) = lines(stream)
    assert counted == ["task"]
    assert (line["event"], line["source"], line["type"], line["detail"]) == (
        "unhandled_exception",
        "task",
        "ValueError",
        None,
    )
    assert "test_log.py:" in line["where"]
    assert any("raised" in frame for frame in line["stack_frames"])
    assert CANARY not in stream.getvalue()


def test_our_own_faults_keep_their_message(stream: io.StringIO) -> None:
    report_fault("task", raised(RpcUnavailable("no upstream")), lambda _: None)
    assert lines(stream)[0]["detail"] == "no upstream"


def test_a_fault_is_counted_before_it_is_logged(stream: io.StringIO) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("the log is full")

    counted: list[str] = []
    broken = Broken()
    logging.getLogger("app").addHandler(broken)
    with pytest.raises(OSError, match="full"):
        report_fault("main", raised(ValueError()), counted.append)
    logging.getLogger("app").removeHandler(broken)
    assert counted == ["main"]


def test_faults_of_threads_finalizers_and_the_main_thread_are_caught(stream: io.StringIO, hooks: list[str]) -> None:
    def fail() -> None:
        raise ValueError

    class Unlucky:
        def __del__(self) -> None:
            raise ValueError

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    Unlucky()
    gc.collect()
    fault = raised(ValueError())
    sys.excepthook(type(fault), fault, fault.__traceback__)
    assert hooks == ["thread", "unraisable", "main"]
    assert [line["source"] for line in lines(stream)] == hooks


async def test_faults_of_forgotten_tasks_are_caught(stream: io.StringIO) -> None:
    counted: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(loop_fault_handler(counted.append))
    loop.call_exception_handler({"message": "x", "exception": raised(ValueError())})
    loop.call_exception_handler({"message": "Task was destroyed but it is pending!"})
    assert counted == ["loop", "loop"]
    assert lines(stream)[1]["detail"] == "Task was destroyed but it is pending!"


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("format", "kind", "is_json"),
    [
        (None, Terminal, False),
        (None, io.StringIO, True),
        ("json", Terminal, True),
        ("console", io.StringIO, False),
    ],
)
def test_the_format_is_console_on_a_terminal_unless_another_is_set(
    stream: io.StringIO, format: Any, kind: type[io.StringIO], is_json: bool
) -> None:
    written = kind()
    configure_logging("info", format, stream=written)
    logging.getLogger("app").info("shown", extra={"chain": "ethereum"})
    (line,) = written.getvalue().splitlines()
    assert line.startswith("{") == is_json
    assert "shown" in line
    assert "ethereum" in line


# --- one style for every line --------------------------------------------------------------------------------------

LEVELS = frozenset({"debug", "info", "warning", "warn", "error", "critical", "exception", "fatal", "log"})
SNAKE_CASE = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")


def events_of(call: ast.Call, constants: Mapping[str, str]) -> list[str] | None:
    """The events that a call may log; None if one of them is no literal, and no constant of the module."""
    at = 1 if isinstance(call.func, ast.Attribute) and call.func.attr == "log" else 0
    if len(call.args) != at + 1:
        return None
    given = call.args[at]
    choices = [given.body, given.orelse] if isinstance(given, ast.IfExp) else [given]
    named = [ast.Constant(constants.get(each.id)) if isinstance(each, ast.Name) else each for each in choices]
    literals = [each.value for each in named if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return literals if len(literals) == len(choices) else None


def style_complaints(source: str, path: str = "x.py") -> list[str]:
    """What is wrong with the log calls of a module."""
    tree = ast.parse(source)
    loggers = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and "getLogger" in ast.unparse(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS):
            continue
        owner = node.func.value
        if not ((isinstance(owner, ast.Name) and owner.id in loggers) or "getLogger" in ast.unparse(owner)):
            continue
        where = f"{path}:{node.lineno}"
        events = events_of(node, constants)
        if events is None:
            found.append(f"{where}: the event is one literal, and facts go into extra=")
        elif not all(SNAKE_CASE.fullmatch(event) for event in events):
            found.append(f"{where}: {events} is not snake_case")
        if strange := {str(keyword.arg) for keyword in node.keywords} - {"extra", "exc_info", "stack_info"}:
            found.append(f"{where}: {sorted(strange)}: facts go into extra=")
    return found


@pytest.mark.parametrize(
    "call",
    [
        'log.info("a sentence")',
        'log.info("CamelCase")',
        'log.info("upstream_down %s", name)',
        'log.info(f"upstream_{name}")',
        'log.info("upstream_" + name)',
        "log.info(event)",
        'log.log(20, "a sentence")',
        'log.exception("a crash")',
        'log.warning("fine" if ok else "not fine")',
        'log.warning("fine", reason=1)',
        'logging.getLogger("x").error("a sentence")',
    ],
)
def test_a_log_call_of_another_style_is_found(call: str) -> None:
    assert style_complaints(f"log = logging.getLogger(__name__)\n{call}\n")


def test_every_log_call_names_an_event_in_snake_case_and_puts_facts_into_fields() -> None:
    calls = 0
    found: list[str] = []
    for path in sorted(APP.rglob("*.py")):
        source = path.read_text()
        calls += len(re.findall(r"\blog(?:ger)?\.(?:debug|info|warning|error|critical|exception)\(", source))
        found += style_complaints(source, str(path.relative_to(APP.parent)))
    assert found == []
    assert calls > 50

"""For all tests: no time limits, in which order and by how many processes they are run, and what a skipped test means: a line
per reason, or, where nothing may be, a failure."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Generator

import hypothesis
import pytest

# A slow machine is no fault of the code: examples have no time limit.
hypothesis.settings.register_profile("copath", deadline=None)
hypothesis.settings.load_profile("copath")

REQUIRE_ALL = os.environ.get("COPATH_TESTS_REQUIRE_ALL") == "1"


FIRST = ("acceptance", "deploy", "serving", "store", "test_", "upstream", "oracles")
"""Where real processes are waited for, the longest waits first: what ends a run is short, and keeps every core busy."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """One more than there are cores, as tests wait for other processes: a core that one leaves idle is another's."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return len(usable) + 1


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # not by their number, but in the order of what follows


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays to the end: walking it for garbage takes as long as collecting it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A file is run by one process, so that what its tests share is started once."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(config.rootpath))))
    items.sort(key=lambda item: _place(item.path.relative_to(config.rootpath / "tests").as_posix()))


def _place(path: str) -> int:
    return next((at for at, start in enumerate(FIRST) if path.startswith(start)), len(FIRST))


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def _fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        report.longrepr = f"{report.nodeid} was skipped, and nothing may be: {_reason(report)}"
        report.outcome = "failed"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_skipped(report)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """pytest-xdist calls a test of a group test@group. Under that name `--last-failed` would not find it, and leave it out."""
    name, at, group = report.nodeid.rpartition("@")
    if at and "]" not in group and "PYTEST_XDIST_WORKER" not in os.environ:
        report.nodeid = name


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reason, count in Counter(map(_reason, terminalreporter.stats.get("skipped", ()))).items():
        terminalreporter.write_line(f"{count} skipped: {reason}")

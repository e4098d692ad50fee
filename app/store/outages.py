"""What a database says when it does not do what it should: in one line, and whether waiting will mend it."""

from __future__ import annotations

_LASTING = {
    "28": "the user or its password is wrong",
    "3D": "there is no such database",
    "42": "the user may not do that, or the tables are not ours",
}
_LASTING_SQLITE = ("unable to open database file", "file is not a database", "readonly database", "already exists")
_IN_THE_WAY = ("55P03", "40001", "40P01")
_READ_ONLY = "25006"


def _state(error: BaseException) -> str:
    """What PostgreSQL calls it; nothing for anybody else."""
    return str(getattr(getattr(error, "orig", None), "sqlstate", None) or "")


def somebody_was_in_the_way(error: BaseException) -> bool:
    """Whether the database is there, and another transaction held what this one wanted for too long."""
    return _state(error) in _IN_THE_WAY or "database is locked" in one_line(error)


def refusal(error: BaseException) -> str | None:
    """Why asking again will not help; None when it may."""
    said = one_line(error)
    if meaning := _LASTING.get(_state(error)[:2]):
        return f"{meaning} ({said})"
    return said if any(each in said for each in _LASTING_SQLITE) else None


def is_read_only(error: BaseException) -> bool:
    """Whether the server is the first one no more, and another one takes what is written."""
    return _state(error) == _READ_ONLY


def one_line(error: BaseException) -> str:
    """What the database or the system said, without the statement and its values."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    said = str(getattr(error, "orig", None) or error).strip() or type(error).__name__
    return said.splitlines()[0].removeprefix("<class 'asyncpg.exceptions.").replace("'>: ", ": ")

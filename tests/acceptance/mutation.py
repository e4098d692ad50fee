"""One field of a block, a transaction, a receipt or a log, changed, taken away or set to null."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Mutation:
    """`path` leads from the record to the field; `how` names the change; `value` is what it becomes, or MISSING."""

    path: Path
    how: str
    value: Any

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.path))}-{self.how}"

    @property
    def index(self) -> int | None:
        """The transaction or receipt that the field belongs to; None for a field of the block."""
        for before, step in zip(self.path, self.path[1:], strict=False):
            if before in ("transactions", "receipts") and isinstance(step, int):
                return step
        return None

    def of(self, record: Record) -> Record:
        """A changed copy."""
        changed = copy.deepcopy(record)
        holder: Any = changed
        for step in self.path[:-1]:
            holder = holder[step]
        if self.value is MISSING:
            del holder[self.path[-1]]
        else:
            holder[self.path[-1]] = self.value
        return changed


MISSING = object()


def paths(value: Any, prefix: Path = ()) -> Iterator[Path]:
    """Every field and every list element below `value`, containers first."""
    steps: Any = ()
    if isinstance(value, dict):
        steps = value.items()
    elif isinstance(value, list):
        steps = enumerate(value)
    for step, inner in steps:
        yield (*prefix, step)
        yield from paths(inner, (*prefix, step))


def value_at(record: Record, path: Path) -> Any:
    """What stands there."""
    found: Any = record
    for step in path:
        found = found[step]
    return found


def another(value: Any) -> Any:
    """A value of the same form that says something else."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case None:
            return "0x" + "77" * 20
        case str() if value.startswith("0x"):
            if value == "0x":
                return "0x00"
            last = int(value[-1], 16) ^ 1
            return value[:-1] + f"{last:x}"
        case str():
            return value + "1"
        case list():
            return value[:-1] if value else ["0x" + "77" * 32]
        case _:
            return {}


def changes(record: Record) -> Iterator[Mutation]:
    """Every field and list element of the record, once each, changed to something else of its form."""
    for path in paths(record):
        if isinstance(value_at(record, path), dict):
            continue  # its fields have their turn
        yield Mutation(path, "changed", another(value_at(record, path)))


def removals(record: Record) -> Iterator[Mutation]:
    """Every field and list element taken away, and set to null."""
    for path in paths(record):
        if path in (("block",), ("receipts",)):
            continue
        yield Mutation(path, "absent", MISSING)
        yield Mutation(path, "null", None)

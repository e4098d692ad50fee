"""A Dockerfile as its stages: what a test has to know of one where no container engine is at hand."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, its lines joined."""

    name: str
    """In capitals."""
    text: str

    @property
    def words(self) -> list[str]:
        """The exec form's words; raises ValueError for the shell form."""
        words: list[str] = json.loads(self.text)
        return words


def stages(path: Path) -> list[list[Instruction]]:
    """The instructions of each stage, its FROM first."""
    found: list[list[Instruction]] = []
    for instruction in _instructions(path):
        if instruction.name == "FROM":
            found.append([])
        if found:
            found[-1].append(instruction)
    return found


def arguments(path: Path) -> dict[str, str]:
    """What may be said about the stages from outside, and what holds where nobody does: each ARG before the first FROM."""
    before = takewhile(lambda instruction: instruction.name != "FROM", _instructions(path))
    return dict(instruction.text.split("=", 1) for instruction in before if instruction.name == "ARG")


def _instructions(path: Path) -> Iterator[Instruction]:
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    for line in filter(str.strip, joined.splitlines()):
        name, _, text = line.partition(" ")
        yield Instruction(name, text.strip())


def of(stage: list[Instruction], name: str) -> list[Instruction]:
    """Those of that name, in order."""
    return [instruction for instruction in stage if instruction.name == name]


def environment(stage: list[Instruction]) -> dict[str, str]:
    """What ENV sets, as written."""
    return dict(pair.split("=", 1) for instruction in of(stage, "ENV") for pair in instruction.text.split())

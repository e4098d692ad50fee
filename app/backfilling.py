"""Filling a range of blocks while somebody looks on: progress, what is left of it, and what came of it."""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from app.core.errors import NotFinalized, ProofError
from app.core.purpose import Purpose, for_purpose
from app.house import open_house
from app.settings import ChainSettings, Settings

ERRORS_SHOWN = 5
"""So many heights are named for each code that kept blocks from being filled."""


class RangeRefused(Exception):
    """The range cannot be filled; the message says why."""


@dataclass(slots=True)
class Tally:
    """What became of the heights of a range."""

    outcomes: Counter[str] = field(default_factory=Counter)
    heights: dict[str, list[int]] = field(default_factory=dict)
    seconds: float = 0.0

    def note(self, height: int, outcome: str, code: str) -> None:
        """One height ended; `code` is that of an error, or nothing."""
        self.outcomes[outcome] += 1
        if code:
            self.heights.setdefault(code, []).append(height)

    @property
    def failed(self) -> int:
        """Heights that should have been filled and were not."""
        return self.outcomes["failed"]

    def lines(self) -> list[str]:
        """A summary, then each code with some heights."""
        counts = ", ".join(f"{name} {self.outcomes[name]}" for name in ("filled", "known", "refused", "failed"))
        lines = [f"{counts} of {self.outcomes.total()} blocks in {self.seconds:.1f} s"]
        for code, heights in sorted(self.heights.items()):
            shown = ", ".join(map(str, heights[:ERRORS_SHOWN]))
            lines.append(f"{code}: {shown}{', ...' if len(heights) > ERRORS_SHOWN else ''}")
        return lines


def chain_named(settings: Settings, name: str) -> ChainSettings:
    """The chain of that key or name. Raises `RangeRefused`."""
    for chain in settings.chains:
        if name in (chain.name, str(chain.chain_key)):
            return chain
    raise RangeRefused(f"no chain is called {name}; there are {', '.join(chain.name for chain in settings.chains)}")


async def fill_range(settings: Settings, name: str, first: int, last: int) -> Tally:
    """Fills [first, last] of one chain, with a progress bar on standard error. Raises `RangeRefused`."""
    alone = settings.model_copy(update={"chains": (_quiet(chain_named(settings, name)),)})
    tally, began = Tally(), time.monotonic()
    async with open_house(alone, anchoring=False) as house:
        (chain,) = house.chains.values()
        assert chain.backfill is not None
        try:
            await chain.head.poll(all_tags=True)
            with _progress() as progress:
                task = progress.add_task(chain.name, total=last - first + 1)

                def told(height: int, outcome: str, code: str) -> None:
                    tally.note(height, outcome, code)
                    progress.advance(task)

                with for_purpose(Purpose.BACKFILL):
                    await chain.backfill.fill_range(first, last, told)
        except NotFinalized as error:
            raise RangeRefused(error.message) from None
        except ProofError as error:
            raise RangeRefused(f"the chain's head cannot be had: {error.message}") from None
    tally.seconds = time.monotonic() - began
    return tally


def _quiet(chosen: ChainSettings) -> ChainSettings:
    """The chain without a backfill of its own."""
    cache = chosen.cache.model_copy(update={"merkle_backfill_enabled": False, "merkle_retention_blocks": None})
    return chosen.model_copy(update={"cache": cache})


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("elapsed"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
    )

"""The verdict on each chain, as a table and in words."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from app.core.errors import ProofError
from app.core.hexadecimal import to_hex
from app.core.provable_block import Verdict
from app.core.purpose import Purpose, for_purpose
from app.house import Upstream, open_upstreams
from app.settings import ChainSettings, Settings

from .trial import FIRST_WORD_S, TRIES, Trial, UnknownName, Weight, examine, until

LAG_BLOCKS = 16
"""A node that is further behind the others is not asked for new blocks."""

WIDTH = 200
"""Of the table where nobody looks on: no line is broken."""


@dataclass(slots=True)
class Judgement:
    """One chain: its upstreams, and where they contradict each other."""

    chain: ChainSettings
    trials: list[Trial]
    contradictions: list[str] = field(default_factory=list)

    @property
    def trusted(self) -> bool:
        """One upstream at least is sound, and nothing is wrong with any that will not mend by itself."""
        lasting = any(trial.weight is Weight.LASTING for trial in self.trials)
        return any(trial.sound for trial in self.trials) and not lasting and not self.contradictions

    def line(self) -> str:
        """The verdict in one line."""
        if not self.trusted:
            return f"{self.chain.name}: cannot be trusted"
        sound = [trial for trial in self.trials if trial.sound]
        rebuilt = sum(len(trial.hashes) for trial in sound)
        who = f"{len(sound)} of {len(self.trials)} upstreams" if len(self.trials) > 1 else "its upstream"
        what = "1 block was" if rebuilt == 1 else f"{rebuilt} blocks were"
        return f"{self.chain.name}: can be trusted: {what} rebuilt from {who}"

    def complaints(self) -> Iterator[str]:
        """One line for everything that is not as it should be, the worst first."""
        yield from (f"failure: chain {self.chain.name}: {text}" for text in self.contradictions)
        found = [(finding, trial) for trial in self.trials for finding in trial.findings]
        for finding, trial in sorted(found, key=lambda each: -each[0].weight):
            fails = finding.weight is Weight.LASTING or (finding.weight is Weight.PASSING and not self.trusted)
            word = "failure" if fails else "warning" if finding.weight else "note"
            yield f"{word}: chain {self.chain.name}, upstream {trial.node.name}: {finding.text}"


async def check(settings: Settings, name: str | None, blocks: int) -> bool:
    """Examines the chains of the settings, or one of them, prints what was found, and says whether all can be trusted.

    Raises `UnknownName`.
    """
    chosen = [chain for chain in settings.chains if name in (None, chain.name, str(chain.chain_key))]
    if not chosen:
        raise UnknownName(f"no chain is called {name}; there are {', '.join(chain.name for chain in settings.chains)}")
    # What they say is said below, once.
    logging.getLogger("copath.upstream").setLevel(logging.CRITICAL)
    alone = settings.model_copy(update={"chains": tuple(chosen)})
    with Console(stderr=True).status("asking the upstreams"), for_purpose(Purpose.PROBE):
        judgements = await _judge(alone, blocks)
    out = Console(width=None if Console().is_terminal else WIDTH, highlight=False)
    out.print(_table(judgements))
    for judgement in judgements:
        out.print(judgement.line(), markup=False, soft_wrap=True)
    said = Console(stderr=True, highlight=False)
    for judgement in judgements:
        for line in judgement.complaints():
            said.print(line, markup=False, soft_wrap=True)
    return all(judgement.trusted for judgement in judgements)


async def _judge(settings: Settings, blocks: int) -> list[Judgement]:
    async with open_upstreams(settings) as (builder, upstreams):
        judgements = [
            Judgement(chain, [Trial(chain, node) for node in chain.upstream_list]) for chain in settings.chains
        ]
        async with asyncio.TaskGroup() as group:
            for judgement in judgements:
                for trial in judgement.trials:
                    upstream = upstreams[trial.chain.name, trial.node.name]
                    group.create_task(examine(trial, upstream, builder, settings, blocks))
        for judgement in judgements:
            _note_lags(judgement.trials)
            await _compare(judgement, upstreams)
    return judgements


def _note_lags(trials: Iterable[Trial]) -> None:
    heads = {id(trial): trial.head.height for trial in trials if trial.head is not None}
    newest = max(heads.values(), default=0)
    for trial in trials:
        lag = newest - heads.get(id(trial), newest)
        if lag > LAG_BLOCKS:
            trial.note(Weight.PASSING, f"{lag} blocks behind", f"it is {lag} blocks behind the newest head, {newest}")


async def _compare(judgement: Judgement, upstreams: dict[tuple[str, str], Upstream]) -> None:
    """Whether the upstreams serve the same chain, and have the same block where all of them call it final."""
    served = {trial.node.name: trial.chain_id for trial in judgement.trials if trial.chain_id is not None}
    if len(set(served.values())) > 1:
        told = ", ".join(f"{name} {chain_id}" for name, chain_id in served.items())
        judgement.contradictions.append(f"its upstreams serve different chains: {told}")
        return
    usable = [trial for trial in judgement.trials if trial.finalized is not None]
    if len(usable) < 2:
        return
    height = min(trial.finalized for trial in usable if trial.finalized is not None)
    found: dict[str, bytes] = {}
    for trial in usable:
        block_hash = trial.hashes.get(height)
        if block_hash is None:
            try:
                with until(FIRST_WORD_S):
                    name = await upstreams[trial.chain.name, trial.node.name].name_of(height)
            except ProofError:
                continue
            block_hash = None if name is None else name.block_hash
        if block_hash is not None:
            found[trial.node.name] = block_hash
    if len(set(found.values())) > 1:
        told = ", ".join(f"{name} {to_hex(block_hash)}" for name, block_hash in found.items())
        judgement.contradictions.append(f"its upstreams have different blocks at height {height}, final to all: {told}")


# --- the table ------------------------------------------------------------------------------------------------------


def _table(judgements: Sequence[Judgement]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("chain", "upstream", "chain id", "head", "lag", "finalized", "receipts", "batch", "limits"):
        table.add_column(heading, justify="right" if heading in ("head", "lag", "finalized") else "left")
    for heading in (*TRIES, "verdict"):
        table.add_column(heading)
    for judgement in judgements:
        heads = [trial.head.height for trial in judgement.trials if trial.head is not None]
        for trial in judgement.trials:
            table.add_row(*_row(trial, max(heads, default=0)))
    return table


def _row(trial: Trial, newest: int) -> Iterator[str]:
    head, wanted = trial.head, trial.chain.chain_id
    yield trial.chain.name
    yield trial.node.name
    if trial.chain_id is None:
        yield f"not {wanted}" if trial.word == "wrong chain" else "-"
    else:
        yield f"{trial.chain_id}" if wanted is None else f"{trial.chain_id} fits"
    yield "-" if head is None else f"{head.height} ({_age(time.time() - head.timestamp)})"
    yield "-" if head is None else str(newest - head.height)
    yield "-" if trial.finalized is None else str(trial.finalized)
    yield from _capabilities(trial)
    yield _limits(trial)
    for name in TRIES:
        counts = trial.verdicts[name]
        anchored = name != "leaves" or trial.chain.anchors.source != "none"
        yield f"{counts[Verdict.PROVEN]}/{len(trial.heights)}" if anchored and trial.heights else "-"
    yield trial.word


def _capabilities(trial: Trial) -> Iterator[str]:
    """How receipts come, and the largest batch that passes; neither is known of a node that gave no block."""
    learned = trial.listing.get("capabilities")
    if not trial.hashes or not isinstance(learned, dict):
        yield from ("-", "-")
    elif learned["receipts"] == "by-block":
        yield from (f"by block ({learned['receiptsForm']})", "not needed")
    else:
        yield from ("by transaction", str(learned["batchLimit"]))


def _limits(trial: Trial) -> str:
    node = trial.node
    limits = [f"{node.max_concurrent} at once"] if node.max_concurrent is not None else []
    limits += [f"{node.units_per_second:g}/s"] if node.units_per_second is not None else []
    limits += [f"{node.units_per_day:g}/day"] if node.units_per_day is not None else []
    return ", ".join(limits) or "-"


def _age(seconds: float) -> str:
    for size, unit in ((365 * 86400.0, "y"), (86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} old"
    return f"{max(0.0, seconds):.0f} s old"

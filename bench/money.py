"""Units spent per 1,000 proofs of a mixed day, replayed against a node in this process that meters its calls.

Two hours of a chain with a block every 12 seconds, its head polled every two, and 1,000 requests: 40 % for transactions of the
last minutes, which are not final yet, 30 % for some of the last two hours, a few of them popular, 20 % for logs of old blocks by
height, 10 % for what was asked before. The floor is what the blocks cost that were asked for, each fetched once.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import msgspec
from prometheus_client import CollectorRegistry

from app.chain.building import open_builder
from app.chain.chain import Chain
from app.chain.rules import ChainRules, FinalityRule
from app.core.blocks import BlockRef
from app.core.provable_block import ProvableBlock
from app.core.purpose import Purpose, for_purpose
from app.core.spending import Account, prices_of
from app.metrics import Metrics
from app.store.memory import MemoryLedger
from app.upstream.evm import EvmNode
from app.upstream.failover import Failover
from app.upstream.purse import Purse
from app.upstream.subscription import EVENT
from bench import fleet_money
from tests.acceptance.made_blocks import CHAIN_ID, Outcome, Sent, block_hash, make_block
from tests.fakes import ManualClock
from tests.oracles import signing
from tests.oracles.signing import Call

BLOCK_S, POLL_S = 12, 2
PAST, BLOCKS = 900, 600
PROOFS = 1000
FINAL_AFTER = 64
TRANSACTIONS = 3
PRICE_LISTS = ("alchemy", "infura")
FETCH = ("eth_getBlockByNumber", "eth_getBlockReceipts")


class _Body(httpx2.AsyncByteStream):
    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._content


class Meter(httpx2.AsyncBaseTransport):
    """A node that has the blocks up to `head`, and counts what it is asked for, as a provider would."""

    def __init__(self, records: list[dict[str, Any]]) -> None:
        self.head = PAST
        self.calls: Counter[str] = Counter()
        self._records = records
        self._heights = {record["block"]["hash"]: height for height, record in enumerate(records)}
        self._places = {
            entry["hash"]: (height, index)
            for height, record in enumerate(records)
            for index, entry in enumerate(record["block"]["transactions"])
        }

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """As httpx2 says."""
        call = msgspec.json.decode(await request.aread())
        self.calls[call["method"]] += 1
        result = self._result(call["method"], call["params"])
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": call["id"], "result": result})
        return httpx2.Response(200, headers={"content-type": "application/json"}, stream=_Body(body))

    def _result(self, method: str, params: list[Any]) -> object:
        if method == "eth_chainId":
            return hex(CHAIN_ID)
        if method == "eth_getTransactionByHash":
            height, index = self._places[params[0]]
            entry: object = self._records[height]["block"]["transactions"][index]
            return entry
        if method == "eth_getBlockByNumber":
            tags = {"latest": self.head, "safe": self.head - 32, "finalized": self.head - FINAL_AFTER}
            height = tags[params[0]] if params[0] in tags else int(params[0], 16)
            block = self._records[height]["block"]
            return block if params[1] else block | {"transactions": [entry["hash"] for entry in block["transactions"]]}
        assert method == "eth_getBlockReceipts", method
        receipts: object = self._records[self._heights[params[0]]]["receipts"]
        return receipts


@dataclass(slots=True)
class Day:
    """What one replay came to: units by purpose, the blocks that were asked for, seconds."""

    units: dict[Purpose, float]
    blocks: set[int] = field(default_factory=set)
    calls: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


def run() -> list[tuple[str, str, str]]:
    """Rows of the table."""
    records = made_chain()
    rows = []
    for preset in PRICE_LISTS:
        each = prices_of(preset).of(FETCH).units
        for backfill in (False, True):
            day = asyncio.run(replay(records, preset, backfill=backfill))
            floor = each * len(day.blocks)
            when = "beside backfill" if backfill else "without backfill"
            if not backfill:
                rows.append(
                    (f"floor: {len(day.blocks)} blocks, each once, at the prices of {preset}", units(floor), "1")
                )
            for purpose, what in (
                (Purpose.REQUEST, f"{PROOFS:,} proofs, {when}"),
                (Purpose.BACKFILL, f"backfill of {BLOCKS} blocks meanwhile"),
                (Purpose.HEAD, "following the head for two hours"),
            ):
                if day.units[purpose] and (backfill or purpose is not Purpose.BACKFILL):
                    rows.append((f"{what}, {preset}", units(day.units[purpose]), f"{day.units[purpose] / floor:.2f}"))
        told = asyncio.run(replay(records, preset, backfill=False, announced=True)).units[Purpose.HEAD]
        rows.append((f"following it where blocks are announced, {preset}", units(told), f"{told / floor:.2f}"))
    rows.append(("calls to follow the head of a quiet chain, an hour", *following(records)))
    return rows + fleet_money.run()


def following(records: list[dict[str, Any]]) -> tuple[str, str]:
    """Calls in an hour, polled and announced, and the one as a share of the other."""
    polled, told = (
        sum(asyncio.run(replay(records, "flat", backfill=False, announced=announced, proofs=0)).calls.values()) / 2
        for announced in (False, True)
    )
    return f"{polled:,.0f} polled, {told:,.0f} announced", f"{told / polled:.2f}"


def units(spent: float) -> str:
    """Short."""
    return f"{spent:,.0f} units"


def made_chain() -> list[dict[str, Any]]:
    """Blocks in a row from height 0, of a few transactions each with a log."""
    account, code = signing.Account.numbered(51), b"\x22" * 20
    logs = [(code, [b"\x01" * 32], b"\x2a" * 32)]
    records: list[dict[str, Any]] = []
    for height in range(PAST + BLOCKS + 1):
        sent = [
            Sent(signing.dynamic_fee(account, Call(code), CHAIN_ID), account.address, Outcome(40_000, 1, logs))
            for _ in range(TRANSACTIONS)
        ]
        records.append(make_block(height, block_hash(records[-1]) if records else bytes(32), sent))
    return records


async def replay(
    records: list[dict[str, Any]], preset: str, *, backfill: bool, announced: bool = False, proofs: int = PROOFS
) -> Day:
    """Two hours, with time moved by hand. `announced`: the head is asked for when a block was made, and not every two seconds."""
    meter, clock, chance = Meter(records), ManualClock(), random.Random(7)
    account = Account()
    purse = Purse(prices_of(preset), account, clock=clock.now)
    node = EvmNode("metered", "http://metered", chain_id=CHAIN_ID, transport=meter, purse=purse, clock=clock.now)
    upstream = Failover([node])
    metrics = Metrics(CollectorRegistry())
    metrics.register_chain("made", 1, [node.name])
    rules = ChainRules(
        key=1,
        name="made",
        chain_id=CHAIN_ID,
        family="ethereum",
        finality=FinalityRule(),
        backfill=backfill,
        retention_blocks=PAST,
        head_interval_s=POLL_S,
    )
    began = time.perf_counter()
    async with open_builder(0) as builder:
        chain = Chain(rules, upstream, builder, None, metrics, clock, ledger=MemoryLedger())
        day = Day(purse.spent, calls=meter.calls)
        asked: list[int] = []
        due = [round(BLOCKS * BLOCK_S / proofs * number) for number in range(proofs)]
        try:
            for second in range(0, BLOCKS * BLOCK_S, POLL_S):
                clock.move(POLL_S)
                meter.head = PAST + second // BLOCK_S
                with for_purpose(Purpose.HEAD):
                    if announced and second % BLOCK_S == 0:
                        purse.owe(EVENT)
                    if not announced or second % BLOCK_S == 0:
                        await chain.head.poll()
                if backfill and second % BLOCK_S == 0:
                    await fill_next(chain)
                while due and due[0] <= second:
                    due.pop(0)
                    await ask(chain, meter, records, chance, asked, day)
        finally:
            await chain.aclose()
            await upstream.aclose()
    day.seconds = time.perf_counter() - began
    told = [EVENT] * BLOCKS if announced else []
    metered = prices_of(preset).of([*meter.calls.elements(), *told]).units
    assert account.spent(time.time()) == metered == sum(day.units.values()), "the bill is not what was counted"
    return day


async def fill_next(chain: Chain) -> None:
    """The block that became final last, as backfill would."""
    finalized = chain.head.heads.finalized
    assert chain.backfill is not None
    if finalized is not None:
        with for_purpose(Purpose.BACKFILL):
            await chain.backfill.fill_range(finalized, finalized, lambda *_: None)


async def ask(
    chain: Chain,
    meter: Meter,
    records: list[dict[str, Any]],
    chance: random.Random,
    asked: list[int],
    day: Day,
) -> None:
    """One request of the mix."""
    head, draw = meter.head, chance.random()
    if draw < 0.1 and asked:
        height = chance.choice(asked)
    elif draw < 0.5:
        height = head - chance.randrange(1, 30)
    elif draw < 0.8:
        height = head - FINAL_AFTER - min(int(chance.paretovariate(0.6)), 600)
    else:
        height = chance.randrange(1, head - FINAL_AFTER)
    asked.append(height)
    day.blocks.add(height)
    index = chance.randrange(TRANSACTIONS)
    if draw < 0.8:
        tx_hash = bytes.fromhex(records[height]["block"]["transactions"][index]["hash"][2:])
        block: ProvableBlock = (await chain.transaction(tx_hash)).block
    else:
        block = (await chain.block(BlockRef(height=height))).block
    assert block.receipt_proof(index).value

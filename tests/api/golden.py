"""Bodies of the compatible routes, byte for byte. `python -m tests.api.golden` writes down what is answered now; a change of any
of them is a change of what existing clients are promised, so look at the difference before it is kept."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from tests.api.fakes import RecordedHouse, anchored_chain, plain_chain
from tests.api.serving import serving

GOLDEN = Path(__file__).parent.parent / "golden"
_PASSING = re.compile(rb'("generatedAt":"|"uptime_seconds":)[^",}]+')


@dataclass(frozen=True, slots=True)
class Case:
    """One request, and the status that it is answered with. `again`: asked a second time, the second answer counts."""

    name: str
    path: str
    status: int = 200
    body: Any = None
    again: bool = False


def cases(house: RecordedHouse) -> list[Case]:
    """Every compatible route, and every code that can be had of it without breaking anything."""
    blocks = {block.height: block for block in house.by_name["mainnet-early"].blocks}
    hashes = {
        height: ["0x" + block.transaction_hash(i).hex() for i in range(block.transaction_count)]
        for height, block in blocks.items()
    }
    empty = next(height for height, of in hashes.items() if not of and height > 1000001)
    first, second = hashes[1000004]
    other = next(height for height, of in hashes.items() if of and height > 1000010)
    none, place, by_tx = "0x" + "00" * 32, "/api/v1/proof-batch/2", "/api/v1/proof-batch-by-tx/2"
    entry = {"headerNumber": 1000004, "txIndexes": [1, 0]}
    return [
        Case("proof", "/api/v1/proof/2/1000004/1"),
        Case("proof-by-tx", f"/api/v1/proof-by-tx/2/{first}"),
        Case("proof-by-tx-cached", f"/api/v1/proof-by-tx/2/{first}", again=True),
        Case("proof-batch", place, body=[entry, {"headerNumber": other, "txIndexes": [0]}]),
        Case("proof-batch-roots-alone", place, body=[{"headerNumber": empty}]),
        Case("proof-batch-split", f"{place}?split=2", body=[entry, {"headerNumber": other, "txIndexes": [0]}]),
        Case("proof-batch-by-tx", by_tx, body=[hashes[other][0], second, first]),
        Case("proof-batch-by-tx-split", f"{by_tx}?split=1", body=[first, second]),
        Case("attested-height", "/api/v1/attested-height/2"),
        Case("attested-height-none", "/api/v1/attested-height/11"),
        Case("health", "/api/v1/health"),
        Case("livez", "/livez"),
        Case("readyz", "/readyz"),
        Case("InvalidChainKey", "/api/v1/proof/3/1000004/0", 400),
        Case("InvalidParameter-chain_key", "/api/v1/attested-height/NOT", 400),
        Case("InvalidParameter-header_number", "/api/v1/proof/2/-4/0", 400),
        Case("InvalidParameter-tx_index", "/api/v1/proof/2/1000004/x", 400),
        Case("InvalidParameter-tx_hash-length", "/api/v1/proof-by-tx/2/0xabcd", 400),
        Case("InvalidParameter-tx_hash-hex", "/api/v1/proof-by-tx/2/0xUNEXPECTED", 400),
        Case("InvalidParameter-body", place, 400, {"headerNumber": 1}),
        Case("BlockBeforeOrAtGenesis", "/api/v1/proof/2/1000001/0", 400),
        Case("TxIndexOutOfBounds", "/api/v1/proof/2/1000004/2", 400),
        Case("EmptyProofQueries", place, 400, []),
        Case("TooManyProofQueries", place, 400, [entry] * 11),
        Case("TooManyTxQueriesInProofQuery", place, 400, [{"headerNumber": 1, "txIndexes": [0] * 11}]),
        Case("EmptyTxHashes", by_tx, 400, []),
        Case("TooManyTxHashes", by_tx, 400, [none] * 101),
        Case("AttestationsMissing", "/api/v1/proof/11/22869878/0", 404),
        Case("TxHashNotFound", f"/api/v1/proof-by-tx/2/{none}", 404),
        Case("BlockNotReady", "/api/v1/proof/2/1000019/0", 422),
        Case("EmptyBlockTxProof", f"/api/v1/proof/2/{empty}/0", 422),
    ]


async def answer(client: httpx2.AsyncClient, case: Case) -> httpx2.Response:
    """What the case is answered with."""

    async def ask() -> httpx2.Response:
        if case.body is None:
            return await client.get(case.path)
        content, headers = json.dumps(case.body), {"Content-Type": "application/json"}
        return await client.post(case.path, content=content, headers=headers)

    if case.again:
        await ask()
    return await ask()


def lasting(body: bytes) -> bytes:
    """A body without what tells the time."""
    return _PASSING.sub(rb"\1-", body)


async def _write() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for known in GOLDEN.glob("*.json"):
        known.unlink()
    for number in range(len(cases(RecordedHouse([plain_chain(), anchored_chain()])))):
        house = RecordedHouse([plain_chain(), anchored_chain()])
        case = cases(house)[number]
        async with serving(house) as client:
            response = await answer(client, case)
            assert response.status_code == case.status, (case, response.text)
            (GOLDEN / f"{case.name}.json").write_bytes(lasting(response.content))


if __name__ == "__main__":
    asyncio.run(_write())

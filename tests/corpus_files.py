"""Where the recorded blocks are, and how to read them.

A set is one directory under `tests/corpus`; its README says what each set promises.
"""

from __future__ import annotations

import gzip
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parent / "corpus"
FIXTURES = Path(__file__).parent / "fixtures"
VECTORS = Path(__file__).parent / "vectors"

# What a chain's configuration would say: which codecs may be tried for it. Everything else is plain Ethereum.
_FAMILIES = {
    "arb-sepolia": "arbitrum",
    "arbitrum-one": "arbitrum",
    "bittensor-testnet": "frontier",
    "bsc": "bsc",
    "cronos": "frontier",
    "gnosis": "gnosis",
    "megaeth-testnet": "op-stack",
    "op-sepolia": "op-stack",
    "polygon": "polygon",
    "stable": "frontier",
    "stable-testnet": "frontier",
    "tempo-mainnet": "tempo",
    "tempoModerato": "tempo",
    "unichain-sepolia": "op-stack",
}


def files(*sets: str) -> list[Path]:
    """Every recorded block of the named sets, in a stable order."""
    found: list[Path] = []
    for name in sets:
        of_set = sorted((CORPUS / name).glob("*.json.gz"))
        if not of_set:
            raise FileNotFoundError(f"no recorded blocks in {CORPUS / name}")
        found += of_set
    return found


def load(path: Path) -> dict[str, Any]:
    """One recorded block: `chain`, `chainId`, `block`, `receipts` and where it was recorded."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        record: dict[str, Any] = json.load(stream)
    return record


def recorded(set_name: str, name: str) -> dict[str, Any]:
    """The block `name` (file name without `.json.gz`) of one set."""
    return load(CORPUS / set_name / f"{name}.json.gz")


def block_json(record: dict[str, Any]) -> bytes:
    """The block as a node would send it in `result`."""
    return json.dumps(record["block"]).encode()


def receipts_json(record: dict[str, Any]) -> bytes:
    """The receipts as a node would send them in `result`."""
    return json.dumps(record["receipts"]).encode()


def family(record: dict[str, Any]) -> str:
    """The codec family that a configuration would name for the recorded chain."""
    return _FAMILIES.get(record["chain"], "ethereum")


@lru_cache(maxsize=1)
def fixtures() -> dict[str, dict[str, Any]]:
    """The synthetic blocks, by name: `block`, `receipts` and what to `expect` of them. Their signatures are
    arbitrary.
    """
    listed: list[dict[str, Any]] = json.loads((FIXTURES / "blocks.json").read_text(encoding="utf-8"))
    return {entry["name"]: entry for entry in listed}


def label(path: Path) -> str:
    """The name a parametrised test shows for one file."""
    return f"{path.parent.name}/{path.name.removesuffix('.json.gz')}"

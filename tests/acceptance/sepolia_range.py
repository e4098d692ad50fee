"""The recorded Sepolia blocks in a row."""

from __future__ import annotations

from tests.corpus_files import files, load

SEPOLIA = 11155111
"""The chain id."""

RECORDS = {
    int(record["block"]["number"], 16): record
    for record in (load(path) for path in files("contiguous") if path.name.startswith("sepolia_"))
}
"""Block and receipts, by height."""

FIRST, LAST = min(RECORDS), max(RECORDS)
WITH_TRANSACTIONS = [height for height, record in RECORDS.items() if record["receipts"]]

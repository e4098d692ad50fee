"""Building one block of 301 transactions (Ethereum 22869878, 1.3 MB of JSON): tries, senders, leaves, tree.

The floor is what no builder can avoid: decoding both bodies into typed objects and hashing every leaf and node once.
"""

from __future__ import annotations

import json

from coincurve import PublicKey

from app.core.block_building import build
from app.core.keccak import keccak
from app.core.provable_block import BuildRequest, unpack
from app.core.rpc_json import decode_block, decode_receipts
from app.core.senders import recover_sender
from app.core.transactions import decode_transaction
from tests import corpus_files

from .timing import median_s, ms

NAME = "mainnet_22869878"


def run() -> list[tuple[str, str, str]]:
    """Rows of the table."""
    record = corpus_files.recorded("full", NAME)
    block_json, receipts_json = json.dumps(record["block"]).encode(), json.dumps(record["receipts"]).encode()

    def request(*, anchored: bool) -> BuildRequest:
        return BuildRequest("ethereum", 1, anchored, 22869878, None, block_json, receipts_json)

    block = build(request(anchored=True))
    packed = block.pack()
    transactions = [
        decode_transaction(entry, "ethereum", 1)
        for entry in decode_block(block_json).transactions
        if not isinstance(entry, bytes)
    ]
    hashed = [block.transaction_proof(i).value for i in range(block.transaction_count)]
    hashed += [node for i in range(block.transaction_count) for node in block.transaction_proof(i).nodes[-1:]]
    hashed += [node for i in range(block.receipt_count) for node in block.receipt_proof(i).nodes[-1:]]
    signed = [
        (tx.r.to_bytes(32, "big") + tx.s.to_bytes(32, "big") + bytes([tx.y_parity]), tx.signing_hash)
        for tx in transactions
    ]

    decode_s = median_s(lambda: (decode_block(block_json), decode_receipts(receipts_json)))
    hash_s = median_s(lambda: [keccak(each) for each in hashed])
    floor_s = decode_s + hash_s
    native_s = median_s(lambda: build(request(anchored=False)))
    anchored_s = median_s(lambda: build(request(anchored=True)))
    curve_s = median_s(lambda: [PublicKey.from_signature_and_message(sig, msg, hasher=None) for sig, msg in signed])
    senders_s = median_s(lambda: [recover_sender(tx) for tx in transactions])
    pack_s, unpack_s = median_s(block.pack), median_s(lambda: unpack(packed))
    cut_s = median_s(lambda: [block.receipt_proof(i) for i in range(block.receipt_count)]) / block.receipt_count
    return [
        ("floor: decode both bodies, hash every leaf and node", ms(floor_s), "1"),
        ("both tries, every hash checked", ms(native_s), f"{native_s / floor_s:.1f}"),
        ("the same with senders, usc leaves and tree", ms(anchored_s), f"{anchored_s / floor_s:.1f}"),
        ("floor of senders: public keys alone", ms(curve_s), "1"),
        ("senders of all transactions", ms(senders_s), f"{senders_s / curve_s:.2f}"),
        (
            f"pack and unpack ({len(packed) / 1024:.0f} KiB)",
            ms(pack_s + unpack_s),
            f"{(pack_s + unpack_s) / floor_s:.2f}",
        ),
        ("one receipt proof cut", f"{cut_s * 1e6:.1f} us", f"{cut_s / floor_s:.4f}"),
    ]

"""From the JSON texts of a block and its receipts to a `ProvableBlock`: every check before anything is called proven.

Broken data (the header does not hash to the block's hash, a transaction not to its own, a foreign block hash, counts that differ)
raises `ContentInvalid`: another node may have better. A trie whose root is not met is a verdict, not an exception: the other trie
of the same block may well be served.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from app.core import merkle, trie
from app.core.errors import ContentInvalid, UnsupportedBlockFormat
from app.core.headers import Header, hash_header
from app.core.hexadecimal import to_hex
from app.core.keccak import keccak
from app.core.leaves import encode_leaf
from app.core.provable_block import ENCODER_VERSION, ZERO_HASH, BuildRequest, PackedLeaves, ProvableBlock, Verdict
from app.core.receipts import Receipt, decode_receipt, encodings, noncanonical_encodings
from app.core.rpc_json import RpcBlock, RpcReceipt, RpcTransaction, decode_block, decode_receipts, withdrawals_leaves
from app.core.senders import recover_sender
from app.core.transactions import Transaction, UnsupportedType, decode_transaction

_FOREIGN_WITHDRAWALS_ROOT = frozenset({"op-stack", "celo"})
"""Families whose `withdrawalsRoot` is, since Isthmus, the storage root of a contract and not a trie of the block's list."""

"""What the tries of a block hold, read back: transactions and receipts from their leaves, where no node's words are at hand.

Only what a usc leaf is made of is read. The layouts are those that `transactions_ethereum`, `transactions_optimism` and
`receipts` write (EIP-2718, 155, 2930, 1559, 4844, 7702; the deposits specification of the OP stack).
"""

from __future__ import annotations

from app.core.keccak import keccak
from app.core.receipts import DEPOSIT, Receipt, decode_leaf, parse_log
from app.core.rlp import EMPTY_STRING, RlpError, encode_list_of_encoded, encode_uint, split_list, string_of
from app.core.transaction import AccessList, Authorization, Deposit, Transaction

_ACCESS_LIST, _DYNAMIC_FEE, _BLOB, _SET_CODE = 1, 2, 3, 4

# Fields before the signature, by type.
_SIGNED_FIELDS = {_ACCESS_LIST: 8, _DYNAMIC_FEE: 9, _BLOB: 11, _SET_CODE: 10}

_NOBODY = bytes(20)


def decode_envelope(envelope: bytes) -> Transaction:
    """The transaction that a leaf of the transactions trie encodes. Of a type that has no usc leaf only the type is told.

    Raises RlpError for what is no transaction.
    """
    if not envelope:
        raise RlpError("an empty transaction")
    type_ = envelope[0]
    if type_ >= 0xC0:
        return _legacy(envelope)
    if type_ in _SIGNED_FIELDS:
        return _typed(type_, envelope)
    if type_ == DEPOSIT:
        return _deposit(envelope)
    # With a sender nothing is recovered: what refuses it is the encoding of its leaf, as for one that a node sent.
    return Transaction(type=type_, hash=keccak(envelope), envelope=envelope, sender=_NOBODY)


def decode_receipt_leaf(leaf: bytes) -> Receipt:
    """The receipt that a leaf of the receipts trie encodes. Raises RlpError."""
    type_, fields = decode_leaf(leaf)
    outcome = string_of(fields[0])
    before_byzantium = len(outcome) == 32
    since_canyon = type_ == DEPOSIT and len(fields) == 6
    return Receipt(
        type=type_,
        status=None if before_byzantium else int.from_bytes(outcome, "big"),
        post_state=outcome if before_byzantium else None,
        cumulative_gas_used=_number(fields[1]),
        logs_bloom=string_of(fields[2]),
        logs=tuple([parse_log(log) for log in split_list(fields[3])]),
        deposit_nonce=_number(fields[4]) if since_canyon else None,
        deposit_receipt_version=_number(fields[5]) if since_canyon else None,
    )


def _legacy(envelope: bytes) -> Transaction:
    fields = _fields(envelope, 9)
    v = _number(fields[6])
    chain_id, signing_hash = None, b""
    if v >= 35:
        chain_id = (v - 35) >> 1
        signed = [*fields[:6], encode_uint(chain_id), EMPTY_STRING, EMPTY_STRING]
        signing_hash = keccak(encode_list_of_encoded(signed))
    elif v in (27, 28):
        signing_hash = keccak(encode_list_of_encoded(fields[:6]))
    return Transaction(
        type=0,
        hash=keccak(envelope),
        envelope=envelope,
        nonce=_number(fields[0]),
        gas_price=_number(fields[1]),
        gas_limit=_number(fields[2]),
        to=string_of(fields[3]),
        value=_number(fields[4]),
        input=string_of(fields[5]),
        chain_id=chain_id,
        v=v,
        y_parity=1 - (v & 1) if signing_hash else v & 1,
        r=_number(fields[7]),
        s=_number(fields[8]),
        signing_hash=signing_hash,
    )


def _typed(type_: int, envelope: bytes) -> Transaction:
    signed = _SIGNED_FIELDS[type_]
    fields = _fields(envelope[1:], signed + 3)
    fees = 2 if type_ == _ACCESS_LIST else 3  # where the gas limit stands, less one: one price, or two
    gas_at = fees + 1
    parity = _number(fields[signed])
    return Transaction(
        type=type_,
        hash=keccak(envelope),
        envelope=envelope,
        chain_id=_number(fields[0]),
        nonce=_number(fields[1]),
        gas_price=_number(fields[2]) if type_ == _ACCESS_LIST else 0,
        max_priority_fee_per_gas=0 if type_ == _ACCESS_LIST else _number(fields[2]),
        max_fee_per_gas=0 if type_ == _ACCESS_LIST else _number(fields[3]),
        gas_limit=_number(fields[gas_at]),
        to=string_of(fields[gas_at + 1]),
        value=_number(fields[gas_at + 2]),
        input=string_of(fields[gas_at + 3]),
        access_list=_access_list(fields[gas_at + 4]),
        max_fee_per_blob_gas=_number(fields[9]) if type_ == _BLOB else 0,
        blob_versioned_hashes=tuple([string_of(each) for each in split_list(fields[10])]) if type_ == _BLOB else (),
        authorization_list=_authorizations(fields[9]) if type_ == _SET_CODE else (),
        v=parity,
        y_parity=parity,
        r=_number(fields[signed + 1]),
        s=_number(fields[signed + 2]),
        signing_hash=keccak(bytes((type_,)) + encode_list_of_encoded(fields[:signed])),
    )


def _deposit(envelope: bytes) -> Transaction:
    fields = _fields(envelope[1:], 8)
    sender = string_of(fields[1])
    return Transaction(
        type=DEPOSIT,
        hash=keccak(envelope),
        envelope=envelope,
        to=string_of(fields[2]),
        value=_number(fields[4]),
        gas_limit=_number(fields[5]),
        input=string_of(fields[7]),
        sender=sender,
        deposit=Deposit(string_of(fields[0]), sender, _number(fields[3]), bool(_number(fields[6]))),
    )


def _access_list(encoded: bytes) -> AccessList:
    entries = []
    for entry in split_list(encoded):
        address, keys = _fields(entry, 2)
        entries.append((string_of(address), tuple([string_of(key) for key in split_list(keys)])))
    return tuple(entries)


def _authorizations(encoded: bytes) -> tuple[Authorization, ...]:
    found = []
    for entry in split_list(encoded):
        chain_id, address, nonce, y_parity, r, s = _fields(entry, 6)
        found.append(
            Authorization(
                _number(chain_id), string_of(address), _number(nonce), _number(y_parity), _number(r), _number(s)
            )
        )
    return tuple(found)


def _fields(encoded: bytes, count: int) -> list[bytes]:
    """The items of a list, each still encoded. Raises RlpError when there are more or fewer."""
    fields = split_list(encoded)
    if len(fields) != count:
        raise RlpError(f"{len(fields)} fields where {count} belong")
    return fields


def _number(encoded: bytes) -> int:
    scalar = string_of(encoded)
    if len(scalar) > 32:
        raise RlpError("a number of more than 256 bits")
    return int.from_bytes(scalar, "big")

"""Block headers: from the fields a node sends to the bytes whose Keccak hash is the block's hash.

Which fields a header has depends on the fork, the chain and the node. Nothing of that is configured: every documented
form that the fields at hand allow is encoded, and the one that hashes to the block's hash is the header. A match
cannot be an accident, so a form may be tried for any chain; a mismatch says that the node's answer, or our knowledge
of forms, is incomplete.

Forms: the fifteen fields of the Yellow Paper (4.4), followed by those that forks have appended since (EIP-1559, 4895,
4844, 4788, 7685, 7928, 7843); Authority Round headers, sealed by (step, signature) instead of (mixHash, nonce);
Tempo's, which wrap one in a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from app.core.errors import ContentInvalid, HeaderHashUnsupported, UnsupportedBlockFormat
from app.core.hexadecimal import from_hex, from_hex_exact, parse_quantity, to_hex
from app.core.keccak import keccak
from app.core.rlp import decode, encode_bytes, encode_list_of_encoded, encode_uint
from app.core.rpc_json import RpcBlock, RpcHeader, decode_block, field_names

_RPC_ONLY_FIELDS = frozenset(
    {
        "author",
        "l1BatchNumber",
        "l1BatchTimestamp",
        "l1BlockNumber",
        "milliTimestamp",
        "sendCount",
        "sendRoot",
        "size",
        "timestampMillis",
        "totalDifficulty",
        "transactions",
        "uncles",
        "withdrawals",
    }
)
"""What nodes say about a block beside its header. A name that is neither here nor a header field is taken for a new
header field.
"""

_HEADER_FIELDS = frozenset(field.encode_name for field in msgspec.structs.fields(RpcHeader))

_MAX_NAMED_FIELDS = 8


@dataclass(frozen=True, slots=True)
class Header:
    """A header that hashes to its block's hash; every value stands in `rlp`. `field_count` counts the header's own
    fields.
    """

    rlp: bytes
    hash: bytes
    field_count: int
    number: int
    parent_hash: bytes
    state_root: bytes
    transactions_root: bytes
    receipts_root: bytes
    withdrawals_root: bytes | None
    timestamp: int
    gas_used: int
    logs_bloom: bytes


@dataclass(frozen=True, slots=True)
class _Form:
    """One way to encode a header: its encoded fields, the extra fields among them, and the encoded whole."""

    fields: list[bytes]
    has_withdrawals_root: bool
    rlp: bytes


def hash_header(block: RpcBlock, family: str) -> Header:
    """The header of the block, in the form that hashes to the hash the node gives.

    Raises `ContentInvalid` when no form does; instead `HeaderHashUnsupported` for family `frontier`, whose hashes are
    not of a header that JSON-RPC shows, and `UnsupportedBlockFormat` when there are fields that no known header has.
    """
    rpc = block.header
    try:
        expected = from_hex_exact(_required(rpc.hash, "hash"), 32)
        for form in _forms(rpc):
            if keccak(form.rlp) == expected:
                return _header(rpc, form, expected)
    except _FieldMissingError as missing:
        raise _unmet(block, family, f"the header has no {missing}") from missing
    except ValueError as error:
        raise ContentInvalid("decode", f"a header field: {error}") from error
    raise _unmet(block, family, f"no known form of the header hashes to {to_hex(expected)}")


def require_hash(raw: bytes, family: str) -> None:
    """Whether the header in the `result` of a block request hashes to the hash beside it; raises `ContentInvalid` when not.

    Says nothing where that cannot be told: of family `frontier`, and of headers with fields that are not known here.
    """
    with suppress(HeaderHashUnsupported, UnsupportedBlockFormat):
        hash_header(decode_block(raw), family)


def unknown_fields(block: RpcBlock) -> list[str]:
    """The fields that the node gives a value and that are neither of any known header nor known to be beside it."""
    return [name for name in field_names(block) if name not in _HEADER_FIELDS and name not in _RPC_ONLY_FIELDS]


class _FieldMissingError(ValueError):
    """A field that every header has is absent or null."""


def _unmet(block: RpcBlock, family: str, detail: str) -> Exception:
    if family == "frontier":
        return HeaderHashUnsupported(
            f"the block hash of this chain is not the Keccak hash of a header that can be rebuilt: {detail}"
        )
    unknown = unknown_fields(block)
    if unknown:
        # Names come from the node and go to a client: only what could be a name is repeated.
        shown = [name if name.isidentifier() and len(name) <= 64 else "(not a name)" for name in unknown]
        listed = ", ".join(shown[:_MAX_NAMED_FIELDS])
        return UnsupportedBlockFormat(
            f"the header has {len(unknown)} unknown field(s) and does not hash to the block hash without: {listed}",
            unknown_fields=shown[:_MAX_NAMED_FIELDS],
            unknown_field_count=len(unknown),
        )
    return ContentInvalid("header_hash", detail)


# --- forms ----------------------------------------------------------------------------------------------------------


def _forms(rpc: RpcHeader) -> Iterator[_Form]:
    """Every form that the fields allow, likeliest first.

    Raises `_FieldMissingError` when there is none, ValueError for a bad field that every header has.
    """
    base = _base_fields(rpc)
    extras = _extra_fields(rpc)
    seals = _seals(rpc)
    if not seals:
        raise _FieldMissingError("readable seal, such as mixHash and nonce")
    for seal in seals:
        for count in range(len(extras), -1, -1):
            fields = [*base, *seal, *(encoded for _, encoded in extras[:count])]
            named = any(name == "withdrawals_root" for name, _ in extras[:count])
            encoded = encode_list_of_encoded(fields)
            if rpc.main_block_general_gas_limit is not None:
                for wrapped in _tempo(rpc, encoded):
                    yield _Form(fields, named, wrapped)
            yield _Form(fields, named, encoded)


def _base_fields(rpc: RpcHeader) -> list[bytes]:
    return [
        _hash(rpc.parent_hash, "parentHash"),
        _hash(rpc.sha3_uncles, "sha3Uncles"),
        _bytes(rpc.miner if rpc.miner is not None else rpc.author, 20, "miner"),
        _hash(rpc.state_root, "stateRoot"),
        _hash(rpc.transactions_root, "transactionsRoot"),
        _hash(rpc.receipts_root, "receiptsRoot"),
        _bytes(rpc.logs_bloom, 256, "logsBloom"),
        _number(rpc.difficulty, "difficulty", 256),
        _number(rpc.number, "number", 64),
        _number(rpc.gas_limit, "gasLimit", 256),
        _number(rpc.gas_used, "gasUsed", 64),
        _number(rpc.timestamp, "timestamp", 64),
        encode_bytes(from_hex(_required(rpc.extra_data, "extraData"))),
    ]


_EXTRA_FIELDS: tuple[tuple[str, Callable[[Any, str], bytes]], ...] = (
    ("base_fee_per_gas", lambda value, name: _number(value, name, 256)),
    ("withdrawals_root", lambda value, name: _hash(value, name)),
    ("blob_gas_used", lambda value, name: _number(value, name, 64)),
    ("excess_blob_gas", lambda value, name: _number(value, name, 64)),
    ("parent_beacon_block_root", lambda value, name: _hash(value, name)),
    ("requests_hash", lambda value, name: _hash(value, name)),
    ("block_access_list_hash", lambda value, name: _hash(value, name)),
    ("slot_number", lambda value, name: _number(value, name, 64)),
)
"""Fields appended by forks, in the order of the header."""


def _extra_fields(rpc: RpcHeader) -> list[tuple[str, bytes]]:
    """Name and encoding of the appended fields that are present and readable; zero is present, null is not."""
    found = []
    for name, encode in _EXTRA_FIELDS:
        value = getattr(rpc, name)
        if value is not None:
            # A chain may use the name for something else; then the header hashes without it, or not at all.
            with suppress(ValueError):
                found.append((name, encode(value, name)))
    return found


def _seals(rpc: RpcHeader) -> list[tuple[bytes, bytes]]:
    """The readable pairs that may stand after the extra data."""
    found = []
    for read in (_ethereum_seal, _erigon_seal, _nethermind_seal, _open_ethereum_seal):
        with suppress(ValueError):
            found.append(read(rpc))
    return found


def _ethereum_seal(rpc: RpcHeader) -> tuple[bytes, bytes]:
    return _hash(rpc.mix_hash, "mixHash"), _bytes(rpc.nonce, 8, "nonce")


def _erigon_seal(rpc: RpcHeader) -> tuple[bytes, bytes]:
    return _step(rpc.aura_step), _bytes(rpc.aura_seal, 65, "auraSeal")


def _nethermind_seal(rpc: RpcHeader) -> tuple[bytes, bytes]:
    return _step(rpc.step), _bytes(rpc.signature, 65, "signature")


def _open_ethereum_seal(rpc: RpcHeader) -> tuple[bytes, bytes]:
    """Both fields as encoded items, whatever they are."""
    if not isinstance(rpc.seal_fields, list) or len(rpc.seal_fields) != 2:
        raise ValueError("not two seal fields")
    first, second = (from_hex(_text(field, "sealFields")) for field in rpc.seal_fields)
    decode(first)
    decode(second)
    return first, second


def _step(value: object) -> bytes:
    """The genesis block was sealed by nobody: it has no step."""
    return _number(0 if value is None else value, "step", 64)


def _tempo(rpc: RpcHeader, header: bytes) -> Iterator[bytes]:
    """Tempo's header holds an Ethereum header as its fourth field, and since its consensus upgrade a context as its
    fifth.
    """
    with suppress(ValueError):
        outer = [
            _number(rpc.main_block_general_gas_limit, "mainBlockGeneralGasLimit", 64),
            _number(rpc.shared_gas_limit, "sharedGasLimit", 64),
            _number(rpc.timestamp_millis_part, "timestampMillisPart", 64),
            header,
        ]
        context = rpc.consensus_context
        if isinstance(context, dict):
            fields = [_number(context.get(name), name, 64) for name in ("epoch", "view", "parentView")]
            fields.append(_hash(context.get("proposer"), "proposer"))
            yield encode_list_of_encoded([*outer, encode_list_of_encoded(fields)])
        yield encode_list_of_encoded(outer)


def _header(rpc: RpcHeader, form: _Form, block_hash: bytes) -> Header:
    """The values, read from the same fields that were hashed."""
    return Header(
        rlp=form.rlp,
        hash=block_hash,
        field_count=len(form.fields),
        number=parse_quantity(rpc.number),
        parent_hash=from_hex(rpc.parent_hash or ""),
        state_root=from_hex(rpc.state_root or ""),
        transactions_root=from_hex(rpc.transactions_root or ""),
        receipts_root=from_hex(rpc.receipts_root or ""),
        withdrawals_root=from_hex(rpc.withdrawals_root or "") if form.has_withdrawals_root else None,
        timestamp=parse_quantity(rpc.timestamp),
        gas_used=parse_quantity(rpc.gas_used),
        logs_bloom=from_hex(rpc.logs_bloom or ""),
    )


# --- fields ---------------------------------------------------------------------------------------------------------


def _required(value: str | None, name: str) -> str:
    if value is None:
        raise _FieldMissingError(name)
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is not a string")  # noqa: TRY004  # broken data, not a broken caller
    return value


def _hash(value: object, name: str) -> bytes:
    return _bytes(value, 32, name)


def _bytes(value: object, size_bytes: int, name: str) -> bytes:
    if value is None:
        raise _FieldMissingError(name)
    try:
        return encode_bytes(from_hex_exact(_text(value, name), size_bytes))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _number(value: object, name: str, bits: int) -> bytes:
    if value is None:
        raise _FieldMissingError(name)
    try:
        number = parse_quantity(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if number >> bits:
        raise ValueError(f"{name} of more than {bits} bits")
    return encode_uint(number)

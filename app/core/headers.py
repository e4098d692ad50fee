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
from msgspec.structs import replace

from app.core.errors import ContentInvalid, HeaderHashUnsupported, UnsupportedBlockFormat
from app.core.hexadecimal import from_hex, from_hex_exact, parse_quantity, to_hex
from app.core.keccak import keccak
from app.core.rlp import decode, encode_bytes, encode_list_of_encoded, encode_uint, string_of
from app.core.rpc_json import RpcBlock, RpcHeader, decode_block, field_names
from app.core.rpc_transaction import given

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
    """One way to encode a header: its encoded fields, the withdrawals root if it is among them, and the encoded whole."""

    fields: list[bytes]
    withdrawals_root: bytes | None
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
                return _header(form, expected)
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
    """Every form that the fields allow, likeliest first; then those of what the fields may mean, if they are taken for
    other spellings of nothing, zero, or a number.

    Raises `_FieldMissingError` when there is none, ValueError for a bad field that every header has.
    """
    fault: ValueError | None = None
    try:
        seals = _seals(rpc)
        if not seals:
            raise _FieldMissingError("readable seal, such as mixHash and nonce")
        yield from _combined(rpc, _base_fields(rpc), seals, _extra_fields(rpc))
    except ValueError as error:
        fault = error
    with suppress(ValueError):
        derived = _derived(rpc)
        seals = [*_seals(rpc), _derived_seal(rpc)]
        extras = [_extra_fields(rpc)]
        whole = _extra_fields(rpc, fill=True)
        if whole != extras[0]:
            extras.append(whole)
        for miner in _miners(rpc):
            base = [*derived[:_MINER_AT], miner, *derived[_MINER_AT + 1 :]]
            for each in extras:
                yield from _combined(rpc, base, seals, each)
    if fault is not None:
        raise fault


def _combined(
    rpc: RpcHeader, base: list[bytes], seals: list[tuple[bytes, bytes]], extras: list[tuple[str, bytes]]
) -> Iterator[_Form]:
    for seal in seals:
        for count in range(len(extras), -1, -1):
            fields = [*base, *seal, *(encoded for _, encoded in extras[:count])]
            withdrawals = next((encoded for name, encoded in extras[:count] if name == "withdrawals_root"), None)
            encoded = encode_list_of_encoded(fields)
            if rpc.main_block_general_gas_limit is not None:
                for wrapped in _tempo(rpc, encoded):
                    yield _Form(fields, withdrawals, wrapped)
            yield _Form(fields, withdrawals, encoded)


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


_MINER_AT = 2

_NO_UNCLES = "0x1dcc4de8dec75d7aab85b567b6ccd41ad312451b948a7413f0a142fd40d49347"


def _derived(rpc: RpcHeader) -> list[bytes]:
    """The fields that stand in every header, those that say nothing as what nothing is there; the miner is still to come."""
    return _base_fields(
        replace(
            rpc,
            parent_hash=rpc.parent_hash if given(rpc.parent_hash) else _zeros(32),
            sha3_uncles=rpc.sha3_uncles if given(rpc.sha3_uncles) else _NO_UNCLES,
            miner=_zeros(20),
            logs_bloom=rpc.logs_bloom if given(rpc.logs_bloom) else _zeros(256),
            difficulty=rpc.difficulty if rpc.difficulty not in (None, "") else 0,
            gas_used=rpc.gas_used if rpc.gas_used not in (None, "") else 0,
            extra_data=rpc.extra_data if rpc.extra_data is not None and rpc.extra_data != "0x0" else "0x",
        )
    )


def _miners(rpc: RpcHeader) -> Iterator[bytes]:
    """Who may stand in the place of the miner: a node may show the signer there, and the author beside, where the header
    of a signed chain has zero."""
    for name in dict.fromkeys((rpc.miner, rpc.author, _zeros(20))):
        with suppress(ValueError):
            yield _bytes(name, 20, "miner")


def _zeros(size_bytes: int) -> str:
    return "0x" + "00" * size_bytes


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


def _extra_fields(rpc: RpcHeader, *, fill: bool = False) -> list[tuple[str, bytes]]:
    """Name and encoding of the appended fields that are present and readable; zero is present, null is not.

    `fill`: of those before one that is present and says something, none is missing, and absent is zero.
    """
    values = [(name, encode, getattr(rpc, name)) for name, encode in _EXTRA_FIELDS]
    if fill:
        while values and not given(values[-1][2]):
            values.pop()
    found = []
    for name, encode, value in values:
        if fill and not given(value):
            found.append((name, encode(_zeros(32) if name.endswith(("_root", "_hash")) else 0, name)))
        elif value is not None:
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


def _derived_seal(rpc: RpcHeader) -> tuple[bytes, bytes]:
    """The seal of nodes that write it as numbers: padded; and zero, where they write nothing."""
    mix_hash, nonce = (0 if value in (None, "") else parse_quantity(value) for value in (rpc.mix_hash, rpc.nonce))
    if mix_hash >> 256 or nonce >> 64:
        raise ValueError("a seal that is too long")
    return encode_bytes(mix_hash.to_bytes(32, "big")), encode_bytes(nonce.to_bytes(8, "big"))


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


def _header(form: _Form, block_hash: bytes) -> Header:
    """The values, read from the bytes that were hashed."""
    values = [string_of(field) for field in form.fields[:13]]
    return Header(
        rlp=form.rlp,
        hash=block_hash,
        field_count=len(form.fields),
        number=int.from_bytes(values[8], "big"),
        parent_hash=values[0],
        state_root=values[3],
        transactions_root=values[4],
        receipts_root=values[5],
        withdrawals_root=None if form.withdrawals_root is None else string_of(form.withdrawals_root),
        timestamp=int.from_bytes(values[11], "big"),
        gas_used=int.from_bytes(values[10], "big"),
        logs_bloom=values[6],
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

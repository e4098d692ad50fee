"""A packed block is believed only as far as it can be derived again: whatever is changed in one, checksums aside, is found."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from app.core import merkle, trie
from app.core.block_building import build
from app.core.committed import decode_envelope, decode_receipt_leaf
from app.core.errors import ContentInvalid, HeaderHashUnsupported, UnsupportedBlockFormat
from app.core.provable_block import (
    ENCODER_VERSION,
    BuildRequest,
    PackedLeaves,
    ProvableBlock,
    Verdict,
    pack_offsets,
    unpack,
)
from app.core.reopening import reopen, reopens
from app.core.rlp import RlpError
from app.core.rpc_json import decode_block
from app.core.senders import recover_sender
from app.core.transactions import decode_transaction
from tests import corpus_files

SETS = ("full", "contiguous", "nonstandard", "receipts-only")


def built(record: dict[str, Any], *, anchored: bool = True) -> ProvableBlock:
    return build(
        BuildRequest(
            corpus_files.family(record),
            int(record["chainId"] or 1),
            anchored,
            None,
            None,
            corpus_files.block_json(record),
            corpus_files.receipts_json(record) if record.get("receipts") is not None else None,
        )
    )


@cache
def every_block() -> tuple[tuple[str, ProvableBlock], ...]:
    """Every recorded block that can be built, and the made ones with what is rare."""
    found = []
    for path in corpus_files.files(*SETS):
        try:
            found.append((corpus_files.label(path), built(corpus_files.load(path))))
        except (ContentInvalid, UnsupportedBlockFormat, HeaderHashUnsupported):
            continue
    for name in ("legacy130", "mixed3", "pre_byzantium_1", "zero_receipts_root"):
        made = corpus_files.fixtures()[name]
        found.append((name, built({"chain": "mainnet", "chainId": 1, **made})))
    return tuple(found)


@cache
def sample(name: str) -> ProvableBlock:
    return next(block for label, block in every_block() if label.endswith(name))


def small() -> list[ProvableBlock]:
    """A few blocks of different make, small enough to be tampered with a thousand times."""
    chosen: dict[tuple[object, ...], ProvableBlock] = {}
    for _, block in every_block():
        if reopens(block) and 0 < block.transaction_count <= 12:
            make = (block.chain_id, bool(block.log_count), bool(block.phantom_hashes), block.receipts_verdict)
            chosen.setdefault(make, block)
    return list(chosen.values())


# --- what is as it was built ----------------------------------------------------------------------------------------


def test_every_recorded_block_that_can_be_derived_again_is_reopened() -> None:
    assert len(every_block()) > 100
    reopened = 0
    for label, block in every_block():
        packed = block.pack()
        if reopens(block):
            assert reopen(packed, block.block_hash) == unpack(packed), label
            reopened += 1
        else:
            with pytest.raises(ContentInvalid):
                reopen(packed, block.block_hash)
    assert reopened > 100


def test_blocks_of_every_kind_are_among_them() -> None:
    reopened = [block for _, block in every_block() if reopens(block)]
    verdicts = {(block.receipts_verdict, block.leaves_verdict) for block in reopened}
    assert verdicts >= {
        (Verdict.PROVEN, Verdict.PROVEN),
        (Verdict.PROVEN, Verdict.UNMET),
        (Verdict.PROVEN, Verdict.UNSUPPORTED_TYPE),
        (Verdict.NOT_COMMITTED, Verdict.UNAVAILABLE),
    }
    assert any(block.transaction_count == 0 for block in reopened)
    assert any(block.phantom_hashes for block in reopened)


def test_a_block_without_usc_leaves_stays_one() -> None:
    record = corpus_files.load(corpus_files.files("full")[0])
    block = built(record, anchored=False)
    assert block.leaves is None
    assert reopen(block.pack(), block.block_hash) == block


def test_what_no_header_decides_is_not_reopened() -> None:
    undecided = [block for _, block in every_block() if not reopens(block)]
    assert {block.transactions_verdict for block in undecided} >= {Verdict.UNAVAILABLE, Verdict.CLAIMED_TYPE}


# --- leaves read back -----------------------------------------------------------------------------------------------


def test_envelopes_read_back_are_what_the_node_sent() -> None:
    types = set()
    for path in corpus_files.files("full", "contiguous"):
        record = corpus_files.load(path)
        block = built(record)
        if block.transactions is None or block.transactions_verdict is not Verdict.PROVEN:
            continue
        rpc = decode_block(corpus_files.block_json(record))
        for index in range(block.transaction_count):
            envelope = trie.value(block.transactions, index)
            sent = next(each for each in rpc.transactions if each.hash == block.transaction_hash(index))
            decoded = decode_transaction(sent, corpus_files.family(record), int(record["chainId"] or 1))
            read = decode_envelope(envelope)
            if decoded.deposit is not None:  # a deposit's nonce is what the node says of it: no envelope holds it
                decoded = replace(decoded, nonce=0, deposit=replace(decoded.deposit, nonce=None))
            if decoded.type in (0, 1, 2, 3, 4, 0x7E):
                assert read == decoded
            else:
                assert (read.type, read.hash) == (decoded.type, decoded.hash)
            types.add(decoded.type)
    assert types >= {0, 1, 2, 3, 4, 0x7E}


@pytest.mark.parametrize("envelope", ["", "c0", "02", "02c0", "02c2", "7ec0", "c98080808080801b8080ff", "01" + "c0"])
def test_what_is_no_transaction_is_refused(envelope: str) -> None:
    with pytest.raises(RlpError):
        decode_envelope(bytes.fromhex(envelope))


@pytest.mark.parametrize("leaf", ["", "c0", "c3010203", "02c401010101"])
def test_what_is_no_receipt_is_refused(leaf: str) -> None:
    with pytest.raises(RlpError):
        decode_receipt_leaf(bytes.fromhex(leaf))


# --- what was changed -----------------------------------------------------------------------------------------------


def refused(block: ProvableBlock, block_hash: bytes) -> bool:
    try:
        reopen(block.pack(), block_hash)
    except ContentInvalid:
        return True
    return False


def other_values(value: object, chance: random.Random) -> Iterator[Any]:
    """Values of the same type, near to the one that is there and far from it."""
    if isinstance(value, bytes):
        yield from (value + b"\x00", b"\x00" + value, bytes(32))
        if value:
            at, bit = chance.randrange(len(value)), 1 << chance.randrange(8)
            yield value[:at] + bytes((value[at] ^ bit,)) + value[at + 1 :]
            yield from (value[:-1], value[1:], b"", value[:-4], value[:-32], value[::-1], value * 2)
    elif isinstance(value, Verdict):
        yield from (each for each in Verdict if each is not value)
    elif isinstance(value, str):
        yield from (value + "x", "the chain has no anchors", "")
    elif isinstance(value, int):
        yield from (value + 1, value - 1 if value else 7, 0, 2**32 - 1)
    elif isinstance(value, msgspec.Struct):
        yield None
        for name in value.__struct_fields__:
            for other in other_values(getattr(value, name), chance):
                yield replace(value, **{name: other})
    else:
        assert value is None
        yield trie.build_ordered([])
        yield PackedLeaves(b"", b"", merkle.build([]))


# What a block may say without being refused, because no header decides it: the caller compares it.
UNDECIDED = {"chain_id", "phantom_hashes"}


def test_h_no_field_can_be_changed() -> None:
    chance = random.Random(5)
    tried = 0
    for block in small():
        for name in block.__struct_fields__:
            for other in other_values(getattr(block, name), chance):
                if other == getattr(block, name) or name in UNDECIDED:
                    continue
                try:
                    changed = replace(block, **{name: other})
                    accepted = not refused(changed, block.block_hash)
                except (TypeError, msgspec.ValidationError):
                    continue  # not even a field of that kind
                assert not accepted, (block.height, name, other)
                tried += 1
    assert tried > 1000


def test_h_no_byte_of_a_packed_block_can_be_flipped() -> None:
    chance = random.Random(6)
    for block in small():
        packed = block.pack()
        for _ in range(120):
            at = chance.randrange(len(packed))
            flipped = packed[:at] + bytes((packed[at] ^ (1 << chance.randrange(8)),)) + packed[at + 1 :]
            try:
                accepted = reopen(flipped, block.block_hash)
            except ContentInvalid:
                continue
            told = {name for name in block.__struct_fields__ if getattr(accepted, name) != getattr(block, name)}
            assert told <= UNDECIDED


def test_h_no_packed_block_can_be_cut_or_grow() -> None:
    chance = random.Random(7)
    for block in small():
        packed = block.pack()
        for cut in {0, 1, len(packed) - 1, *(chance.randrange(len(packed)) for _ in range(40))}:
            with pytest.raises(ContentInvalid):
                reopen(packed[:cut], block.block_hash)
        with pytest.raises(ContentInvalid):
            reopen(packed + b"\x00", block.block_hash)


def test_h_another_block_under_this_hash_is_refused() -> None:
    first, second = small()[:2]
    with pytest.raises(ContentInvalid, match="another block"):
        reopen(second.pack(), first.block_hash)
    assert refused(replace(second, block_hash=first.block_hash), first.block_hash)
    assert refused(replace(first, header_rlp=second.header_rlp), first.block_hash)


def test_h_a_field_more_is_refused() -> None:
    block = small()[0]
    fields = msgspec.msgpack.decode(block.pack())
    with pytest.raises(ContentInvalid, match="spelt"):
        reopen(msgspec.msgpack.encode([*fields, 1]), block.block_hash)


def test_h_another_encoder_version_is_refused() -> None:
    block = replace(small()[0], version=ENCODER_VERSION + 1)
    with pytest.raises(ContentInvalid, match="version"):
        reopen(block.pack(), block.block_hash)


def two_or_more() -> ProvableBlock:
    return next(
        block
        for block in small()
        if block.transaction_count > 1 and block.log_count and block.leaves_verdict is Verdict.PROVEN
    )


def values(packed: trie.PackedTrie) -> list[bytes]:
    return [trie.value(packed, index) for index in range(packed.count)]


def test_h_another_order_of_transactions_is_refused_although_all_of_it_fits_together() -> None:
    block = two_or_more()
    assert block.transactions is not None
    swapped = values(block.transactions)[::-1]
    hashes = b"".join(reversed([block.transaction_hash(index) for index in range(block.transaction_count)]))
    forged = replace(block, transactions=trie.build_ordered(swapped), transaction_hashes=hashes)
    with pytest.raises(ContentInvalid, match="do not lead to the root"):
        reopen(forged.pack(), block.block_hash)


def test_h_another_receipt_is_refused_although_all_of_it_fits_together() -> None:
    block = two_or_more()
    assert block.receipts is not None
    leaves = values(block.receipts)
    forged = replace(block, receipts=trie.build_ordered([leaves[1], *leaves[1:]]))
    with pytest.raises(ContentInvalid, match="do not lead to the root"):
        reopen(forged.pack(), block.block_hash)


def test_h_a_trie_under_the_root_of_its_header_with_other_nodes_is_refused() -> None:
    block = two_or_more()
    assert block.receipts is not None
    parents = block.receipts.parents[:-4] + bytes(4)
    forged = replace(block, receipts=replace(block.receipts, parents=parents))
    with pytest.raises(ContentInvalid, match="not that of its values"):
        reopen(forged.pack(), block.block_hash)


def test_h_a_usc_leaf_with_another_sender_is_refused_although_its_tree_is_right() -> None:
    block = two_or_more()
    assert block.leaves is not None
    leaf_values = [block.leaves.value(index) for index in range(block.transaction_count)]
    decoded = decode_envelope(trie.value(block.transactions, 0))  # type: ignore[arg-type] # it is proven
    sender = recover_sender(decoded)
    assert sender in leaf_values[0]
    leaf_values[0] = leaf_values[0].replace(sender, sender[:-1] + bytes((sender[-1] ^ 1,)), 1)
    ends = pack_offsets(accumulate(map(len, leaf_values)))
    forged = replace(block, leaves=PackedLeaves(b"".join(leaf_values), ends, merkle.build(leaf_values)))
    with pytest.raises(ContentInvalid, match="usc leaves"):
        reopen(forged.pack(), block.block_hash)


def test_h_logs_that_are_counted_wrongly_are_refused() -> None:
    block = two_or_more()
    assert refused(replace(block, log_ends=pack_offsets([1] * block.receipt_count)), block.block_hash)


def test_a_phantom_that_the_block_holds_is_refused() -> None:
    block = two_or_more()
    assert refused(replace(block, phantom_hashes=block.transaction_hash(0)), block.block_hash)
    assert refused(replace(block, phantom_hashes=b"\x01" * 31), block.block_hash)
    assert refused(replace(block, phantom_hashes=b"\x02" * 32 + b"\x01" * 32), block.block_hash)


def test_the_error_names_one_check_and_no_payload() -> None:
    block = two_or_more()
    with pytest.raises(ContentInvalid) as invalid:
        reopen(b"", block.block_hash)
    assert (invalid.value.check, invalid.value.detail) == ("stored_block", "not a packed block")

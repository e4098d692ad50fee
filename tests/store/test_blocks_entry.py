"""Entries of the block store: what was put comes back to the byte, and nothing else ever does."""

from __future__ import annotations

import hashlib
import random
import struct
import tracemalloc

import pytest
import zstandard

from app.core.block_building import build
from app.core.provable_block import ENCODER_VERSION, BuildRequest
from app.core.reopening import reopen
from app.store.blocks_entry import (
    FORMAT,
    HEADER_BYTES,
    LARGEST_PACKED_BYTES,
    MAGIC,
    EntryKey,
    Unusable,
    decode_entry,
    encode_entry,
)
from tests import corpus_files

KEY = EntryKey(7, bytes(range(32)))
PACKED = random.Random(1).randbytes(150) + b"all the same " * 20


def why(entry: bytes, key: EntryKey = KEY) -> str:
    with pytest.raises(Unusable) as unusable:
        decode_entry(key, entry)
    return unusable.value.why


def forged(
    *,
    magic: bytes = MAGIC,
    format_: int = FORMAT,
    version: int = ENCODER_VERSION,
    key: EntryKey = KEY,
    packed_size: int = len(PACKED),
    body: bytes | None = None,
    body_size: int | None = None,
) -> bytes:
    """An entry whose checksum is right, whatever else it says."""
    body = zstandard.compress(PACKED) if body is None else body
    size = len(body) if body_size is None else body_size
    fields = struct.pack(">8sHHQQ32sQQ", magic, format_, version, key.chain_key, 5, key.block_hash, packed_size, size)
    return fields + hashlib.blake2b(fields + body, digest_size=32).digest() + body


def test_the_layout_is_the_documented_one() -> None:
    assert decode_entry(KEY, forged()) == PACKED


@pytest.mark.parametrize("path", corpus_files.files("full")[::9], ids=corpus_files.label)
def test_recorded_blocks_come_back_to_the_byte(path: object) -> None:
    record = corpus_files.load(path)  # type: ignore[arg-type] # it is a path, whatever pytest calls it
    block = build(
        BuildRequest(
            corpus_files.family(record),
            int(record["chainId"] or 1),
            True,
            None,
            None,
            corpus_files.block_json(record),
            corpus_files.receipts_json(record),
        )
    )
    key = EntryKey(1, block.block_hash)
    packed = decode_entry(key, encode_entry(key, block.height, block.pack()))
    assert packed == block.pack()
    assert reopen(packed, block.block_hash) == block


def test_h_no_byte_of_an_entry_can_be_flipped() -> None:
    chance = random.Random(2)
    entry = encode_entry(KEY, 5, PACKED)
    for at in range(len(entry)):
        for mask in (1 << chance.randrange(8), 0xFF):
            assert why(entry[:at] + bytes((entry[at] ^ mask,)) + entry[at + 1 :]) == "damaged"


def test_h_no_entry_can_be_cut_or_grow() -> None:
    entry = encode_entry(KEY, 5, PACKED)
    for size in range(len(entry)):
        assert why(entry[:size]) == "damaged"
        assert why(entry[size:] if size else b"") == "damaged"
    assert why(entry + b"\x00") == "damaged"
    assert why(entry + entry) == "damaged"


def test_h_a_file_of_zeros_is_damaged() -> None:
    assert why(bytes(HEADER_BYTES)) == "damaged"
    assert why(bytes(5000)) == "damaged"


def test_h_another_blocks_bytes_under_this_hash_are_foreign() -> None:
    other = EntryKey(7, bytes(32))
    assert why(encode_entry(other, 5, PACKED)) == "foreign"
    assert why(encode_entry(EntryKey(8, KEY.block_hash), 5, PACKED)) == "foreign"


def test_entries_of_other_versions_are_told_apart() -> None:
    assert why(forged(version=ENCODER_VERSION + 1)) == "other_version"
    assert why(forged(format_=FORMAT + 1)) == "other_version"


def test_what_an_entry_says_of_itself_is_compared_although_its_checksum_is_right() -> None:
    assert why(forged(magic=b"copathC\0")) == "damaged"
    assert why(forged(packed_size=len(PACKED) + 1)) == "damaged"
    assert why(forged(body_size=3)) == "damaged"
    assert why(forged(body=b"no frame")) == "damaged"
    assert why(forged(body=zstandard.compress(PACKED) + b"more")) == "damaged"


def test_a_bomb_is_not_unpacked() -> None:
    bomb = zstandard.compress(bytes(2**26))
    tracemalloc.start()
    assert why(forged(body=bomb)) == "damaged"
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    assert why(forged(body=bomb, packed_size=LARGEST_PACKED_BYTES + 1)) == "damaged"
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(2**26))
    assert why(forged(body=unsized)) == "damaged"


def test_what_could_not_be_read_back_is_not_written() -> None:
    with pytest.raises(ValueError, match="a packed block of"):
        encode_entry(KEY, 5, bytes(LARGEST_PACKED_BYTES + 1))


def test_versions_do_not_meet() -> None:
    assert KEY.path == f"7/{ENCODER_VERSION}.{FORMAT}/00/{KEY.block_hash.hex()}"

"""What is settled: bounded in bytes, true under reorgs, and counted."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass

import pytest

from app.chain.cache import ENTRY_OVERHEAD_BYTES, FIRST_GUESS_BYTES, POSITION_BYTES, BlockCache
from app.core.blocks import Position

KIB = 1024


@dataclass(frozen=True)
class Block:
    height: int
    block_hash: bytes
    size_bytes: int = KIB
    proven_hashes: bytes = b""


def word(number: int) -> bytes:
    return number.to_bytes(32, "big")


def block(height: int, *txs: int, size_bytes: int = KIB, fork: int = 0) -> Block:
    return Block(height, word(1_000_000 * fork + height), size_bytes, b"".join(map(word, txs)))


def test_a_landed_block_is_found_by_hash_and_counted() -> None:
    cache: BlockCache[Block] = BlockCache(100 * KIB)
    one = block(1)
    assert cache.get(one.block_hash) is None
    assert cache.land(one)
    assert cache.get(one.block_hash) is one
    assert cache.peek(one.block_hash) is one
    assert (cache.hits, cache.misses, cache.entries) == (1, 1, 1)


def test_F12_an_empty_block_is_an_ordinary_value() -> None:
    cache: BlockCache[Block] = BlockCache(100 * KIB)
    empty = block(1, size_bytes=0)
    cache.land(empty)
    assert cache.get(empty.block_hash) is empty


def test_F13_the_bound_is_in_bytes_and_the_least_recently_used_goes_first() -> None:
    entry_bytes = KIB + ENTRY_OVERHEAD_BYTES
    cache: BlockCache[Block] = BlockCache(4 * entry_bytes)
    blocks = [block(height) for height in range(4)]
    for each in blocks:
        cache.land(each)
    assert (cache.size_bytes, cache.entries) == (4 * entry_bytes, 4)
    cache.get(blocks[0].block_hash)
    cache.land(block(9))
    assert cache.peek(blocks[1].block_hash) is None
    assert cache.peek(blocks[0].block_hash) is blocks[0]
    assert (cache.size_bytes, cache.evictions["capacity"]) == (4 * entry_bytes, 1)


def test_F13_a_busy_block_takes_the_room_of_many_small_ones() -> None:
    cache: BlockCache[Block] = BlockCache(40 * KIB, max_entry_bytes=20 * KIB)
    for height in range(20):
        cache.land(block(height))
    cache.land(block(99, size_bytes=18 * KIB))
    assert cache.size_bytes <= 40 * KIB
    assert cache.evictions["capacity"] == 10


def test_F13_a_block_over_the_entry_cap_is_not_retained_and_counted() -> None:
    cache: BlockCache[Block] = BlockCache(40 * KIB)
    cache.land(block(1))
    large = block(2, 7, size_bytes=10 * KIB)
    assert not cache.land(large)
    assert cache.peek(large.block_hash) is None
    assert cache.position_of(word(7)) is None
    assert (cache.rejected["too_large"], cache.entries) == (1, 1)


def test_landing_the_same_block_again_does_not_count_twice() -> None:
    cache: BlockCache[Block] = BlockCache(40 * KIB)
    cache.land(block(1, 7))
    cache.land(block(1, 7))
    assert (cache.entries, cache.size_bytes) == (1, KIB + ENTRY_OVERHEAD_BYTES + POSITION_BYTES)


def test_F14_a_dropped_block_is_not_kept_alive() -> None:
    cache: BlockCache[Block] = BlockCache(40 * KIB)
    one = block(1, 7, 8)
    alive = weakref.ref(one)
    cache.land(one)
    assert cache.drop(one.block_hash)
    assert not cache.drop(one.block_hash)
    del one
    gc.collect()
    assert alive() is None
    assert (cache.size_bytes, cache.evictions["dropped"]) == (0, 1)


def test_retention_drops_what_is_below() -> None:
    cache: BlockCache[Block] = BlockCache(100 * KIB)
    for height in range(6):
        cache.land(block(height))
    assert cache.retire_below(4) == 4
    assert (cache.entries, cache.evictions["retention"]) == (2, 4)


def test_positions_are_known_only_while_their_block_is_pinned() -> None:
    cache: BlockCache[Block] = BlockCache(40 * KIB)
    one = block(1, 7, 8)
    cache.land(one)
    assert cache.position_of(word(8)) is None
    cache.pin(1, one.block_hash)
    assert cache.position_of(word(8)) == Position(one.block_hash, 1, 1)
    assert cache.position_of(word(9)) is None
    cache.unpin(1)
    assert cache.position_of(word(8)) is None


def test_positions_go_with_their_block() -> None:
    cache: BlockCache[Block] = BlockCache(12 * KIB)
    for height in range(30):
        cache.land(block(height, 2 * height, 2 * height + 1))
        cache.pin(height, word(height))
    assert len(cache._positions) == 2 * cache.entries
    assert cache.position_of(word(0)) is None
    assert cache.position_of(word(59)) == Position(word(29), 29, 1)


def test_B44_a_reorg_unpins_and_the_transaction_is_found_in_the_new_block() -> None:
    cache: BlockCache[Block] = BlockCache(40 * KIB)
    old, new = block(5, 7), block(6, 7, fork=1)
    cache.land(block(4))
    cache.pin(4, word(4))
    cache.land(old)
    cache.pin(5, old.block_hash)
    assert cache.unpin_from(5) == 1
    assert (cache.hash_at(4), cache.hash_at(5), cache.position_of(word(7))) == (word(4), None, None)
    assert cache.get(old.block_hash) is old, "by hash it stays true"
    cache.land(new)
    cache.pin(6, new.block_hash)
    assert cache.position_of(word(7)) == Position(new.block_hash, 6, 0)
    cache.drop(old.block_hash)
    assert cache.position_of(word(7)) == Position(new.block_hash, 6, 0), (
        "the old block's end takes nothing of the new one"
    )


def test_a_pin_follows_the_chain_and_a_final_one_stays_final() -> None:
    cache: BlockCache[Block] = BlockCache(40 * KIB)
    cache.pin(1, word(1))
    assert (cache.hash_at(1), cache.pin_is_final(1), cache.pin_is_final(2)) == (word(1), False, False)
    cache.pin(1, word(1), final=True)
    cache.pin(1, word(1))
    assert cache.pin_is_final(1)
    cache.pin(1, word(2))
    assert (cache.hash_at(1), cache.pin_is_final(1)) == (word(2), False)


def test_pins_are_bounded() -> None:
    cache: BlockCache[Block] = BlockCache(40 * KIB, max_pins=3)
    for height in range(10):
        cache.pin(height, word(height))
    assert [height for height in range(10) if cache.hash_at(height)] == [7, 8, 9]


def test_a_forgotten_position_is_asked_for_again() -> None:
    cache: BlockCache[Block] = BlockCache(40 * KIB)
    cache.land(block(1, 7))
    cache.pin(1, word(1))
    cache.forget_position(word(7))
    cache.forget_position(word(7))
    assert cache.position_of(word(7)) is None


def test_the_gauges_are_in_the_repr() -> None:
    cache: BlockCache[Block] = BlockCache(40 * KIB)
    cache.land(block(1))
    assert repr(cache) == "<BlockCache 1 blocks, 2048/40960 bytes, 0 pins>"


def test_a_bound_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="max_bytes"):
        BlockCache(0)


@pytest.mark.parametrize(("low", "high"), [(3, 5), (0, 10_000)])
def test_heights_that_are_retired_go_with_their_blocks_and_others_stay(low: int, high: int) -> None:
    cache: BlockCache[Block] = BlockCache(100 * KIB)
    for height in range(3, 6):
        cache.land(block(height))
        cache.pin(height, block(height).block_hash)
    away = [block(20_000), block(4, fork=1)]
    for each in away:
        cache.land(each)
    cache.pin(20_000, away[0].block_hash)
    cache.pin(4_000, word(77))  # known and not held
    assert cache.retire(low, high) == 3
    assert [cache.peek(each.block_hash) for each in away] == away, "one is elsewhere, the other was never canonical"
    assert cache.entries == 2
    assert cache.evictions["retention"] == 3


def test_there_is_room_ahead_for_three_quarters_of_the_bytes_at_the_mean_size() -> None:
    cache: BlockCache[Block] = BlockCache(100 * KIB)
    assert cache.room_ahead == int(0.75 * 100 * KIB / FIRST_GUESS_BYTES)
    cache.land(block(1, size_bytes=4 * KIB - ENTRY_OVERHEAD_BYTES))
    assert cache.room_ahead == 18
    cache.land(block(2, size_bytes=8 * KIB - ENTRY_OVERHEAD_BYTES))
    assert cache.room_ahead == 12


def test_there_is_no_more_room_ahead_than_heights_can_be_pinned() -> None:
    cache: BlockCache[Block] = BlockCache(100 * KIB, max_pins=8)
    cache.land(block(1))
    assert cache.room_ahead == 6

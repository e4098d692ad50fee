"""One packed block as it lies in a file or an object: compressed, named, and under a checksum.

    offset  bytes  field (numbers big endian)
         0      8  magic, 'copathB' and a zero byte
         8      2  format of the entry
        10      2  encoder version of the block
        12      8  chain key
        20      8  height
        28     32  block hash
        60      8  length of the packed block
        68      8  length of what follows the checksum
        76     32  BLAKE2b-256 over the 76 bytes before and everything behind
       108         the packed block as one Zstandard frame

The checksum tells decay from what was written. That nobody forged an entry it cannot tell: that is found where a block is
reopened.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import zstandard

from app.core.provable_block import ENCODER_VERSION

MAGIC = b"copathB\0"
FORMAT = 1
LARGEST_PACKED_BYTES = 256 * 2**20
"""Far above any block: what claims to be larger is not unpacked."""

_FIELDS = struct.Struct(">8sHHQQ32sQQ")
_CHECKSUM_BYTES = 32
HEADER_BYTES = _FIELDS.size + _CHECKSUM_BYTES
LARGEST_ENTRY_BYTES = HEADER_BYTES + LARGEST_PACKED_BYTES + 2**16

_LEVEL = 3  # a fifth of the size in 5 ms for the largest blocks; beyond this level time grows faster than space shrinks


class Unusable(Exception):
    """Why an entry is not served: it is dropped, and the block made anew. `why` is a label: damaged, foreign, other_version."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True, slots=True)
class EntryKey:
    """What an entry is asked for by. `path` is where it lies: versions never meet, so that two of them can share a store."""

    chain_key: int
    block_hash: bytes

    @property
    def path(self) -> str:
        name = self.block_hash.hex()
        return f"{self.chain_key}/{ENCODER_VERSION}.{FORMAT}/{name[:2]}/{name}"


def encode_entry(key: EntryKey, height: int, packed: bytes) -> bytes:
    """The entry. Takes milliseconds, without the interpreter's lock. Raises ValueError for what is too large to be read back."""
    if len(packed) > LARGEST_PACKED_BYTES:
        raise ValueError(f"a packed block of {len(packed)} bytes")
    body = zstandard.compress(packed, _LEVEL)
    fields = _FIELDS.pack(MAGIC, FORMAT, ENCODER_VERSION, key.chain_key, height, key.block_hash, len(packed), len(body))
    return b"".join((fields, _checksum(fields, body), body))


def decode_entry(key: EntryKey, entry: bytes) -> bytes:
    """The packed block as it was put. Raises `Unusable`."""
    if len(entry) < HEADER_BYTES:
        raise Unusable("damaged")
    fields, body = entry[: _FIELDS.size], memoryview(entry)[HEADER_BYTES:]
    if _checksum(fields, body) != entry[_FIELDS.size : HEADER_BYTES]:
        raise Unusable("damaged")
    magic, format_, version, chain_key, _, block_hash, packed_size, body_size = _FIELDS.unpack(fields)
    if magic != MAGIC or body_size != len(body) or packed_size > LARGEST_PACKED_BYTES:
        raise Unusable("damaged")
    if (format_, version) != (FORMAT, ENCODER_VERSION):
        raise Unusable("other_version")
    if (chain_key, block_hash) != (key.chain_key, key.block_hash):
        raise Unusable("foreign")
    try:
        # The size is looked at first: a frame must not make us allocate what the entry does not admit to.
        if zstandard.frame_content_size(body) != packed_size:
            raise Unusable("damaged")
        packed = zstandard.ZstdDecompressor().decompress(body, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Unusable("damaged") from error
    if len(packed) != packed_size:
        raise Unusable("damaged")
    return packed


def _checksum(fields: bytes, body: bytes | memoryview) -> bytes:
    digest = hashlib.blake2b(fields, digest_size=_CHECKSUM_BYTES)
    digest.update(body)
    return digest.digest()

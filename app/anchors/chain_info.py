"""Creditcoin's ChainInfo precompile: what is asked of it, and what its answers say. Bytes in, bytes out.

The precompile stands at one address of every Creditcoin chain and is read by plain `eth_call`. The selectors and the layouts
of the answers are those of its published ABI (`chain_info.json` of `@gluwa/cc-next-query-builder`). What the ABI calls a hash of
a height is its digest in the digest chain.
"""

from __future__ import annotations

from dataclasses import dataclass

ADDRESS = "0x0000000000000000000000000000000000000fd3"

ENCODING_V1 = 1
"""The one version of leaf bytes there is."""

_CHAIN_BY_KEY = bytes.fromhex("2d256bfa")
_GENESIS_HEIGHT = bytes.fromhex("0b0bbc8c")
_LATEST_ATTESTATION = bytes.fromhex("809112da")
_LATEST_CHECKPOINT = bytes.fromhex("d773a786")
_BOUNDS = bytes.fromhex("85600e2e")
_HEIGHT_FOR_DIGEST = bytes.fromhex("6e7850bc")
_CHECKPOINT_FOR_HEIGHT = bytes.fromhex("3c4a539e")

_WORD = 32

HEIGHT_BITS = 63
"""No chain comes further, and no column or listing holds more."""


class NotChainInfo(ValueError):
    """The answer is none that the precompile gives: its text says in which way."""


@dataclass(frozen=True, slots=True)
class End:
    """An anchor as the precompile names it; a checkpoint where it is no attestation."""

    height: int
    digest: bytes
    is_attestation: bool


@dataclass(frozen=True, slots=True)
class Bounds:
    """The anchors around a height: the greatest below it, the least at or above it; None where there is none."""

    lower: End | None
    upper: End | None


@dataclass(frozen=True, slots=True)
class Listed:
    """A source chain as Creditcoin knows it."""

    chain_key: int
    chain_id: int
    encoding: int


# --- what is asked ----------------------------------------------------------------------------------------------------


def ask_chain(chain_key: int) -> bytes:
    """`get_chain_by_key(uint64)`."""
    return _CHAIN_BY_KEY + _uint64(chain_key)


def ask_genesis(chain_key: int) -> bytes:
    """`get_attestation_genesis_height(uint64)`."""
    return _GENESIS_HEIGHT + _uint64(chain_key)


def ask_latest_attestation(chain_key: int) -> bytes:
    """`get_latest_attestation_height_and_hash(uint64)`: the newest attestation, or the newest checkpoint where none is above."""
    return _LATEST_ATTESTATION + _uint64(chain_key)


def ask_latest_checkpoint(chain_key: int) -> bytes:
    """`get_latest_checkpoint_height_and_hash(uint64)`."""
    return _LATEST_CHECKPOINT + _uint64(chain_key)


def ask_bounds(chain_key: int, height: int) -> bytes:
    """`get_attestation_bounds(uint64,uint64)`."""
    return _BOUNDS + _uint64(chain_key) + _uint64(height)


def ask_attestation(chain_key: int, digest: bytes) -> bytes:
    """`get_attestation_height_for_digest(uint64,bytes32)`."""
    return _HEIGHT_FOR_DIGEST + _uint64(chain_key) + digest


def ask_checkpoint(chain_key: int, height: int) -> bytes:
    """`get_checkpoint_for_height(uint64,uint64)`."""
    return _CHECKPOINT_FOR_HEIGHT + _uint64(chain_key) + _uint64(height)


def _uint64(number: int) -> bytes:
    return number.to_bytes(8, "big").rjust(_WORD, b"\0")


# --- what is answered. Each raises `NotChainInfo` ------------------------------------------------------------------------


def read_chain(answer: bytes) -> Listed | None:
    """The chain under the key that was asked for; None for a key that Creditcoin does not know."""
    # One dynamic tuple of (a dynamic tuple of key, id, name, encoding; whether it exists).
    result = _integer(answer, 0, 64)
    if not _flag(answer, result + _WORD):
        return None
    info = result + _integer(answer, result, 64)
    chain_key, chain_id = _integer(answer, info, 64), _integer(answer, info + _WORD, 64)
    return Listed(chain_key, chain_id, _integer(answer, info + 3 * _WORD, 8))


def read_genesis(answer: bytes) -> int:
    """The height that attestations begin at; 0 where none was set."""
    return _integer(answer, 0, HEIGHT_BITS)


def read_newest(answer: bytes) -> End | None:
    """A height, its digest, and its kind; None while there is none."""
    end = _end(answer, 0)
    return end if _flag(answer, 3 * _WORD) else None


def read_bounds(answer: bytes) -> Bounds:
    """Both ends. Where one is missing the answer is not marked as attested, and the missing one has a digest of zeros."""
    lower, upper = _end(answer, 0), _end(answer, 3 * _WORD)
    _flag(answer, 6 * _WORD)
    return Bounds(lower if any(lower.digest) else None, upper if any(upper.digest) else None)


def read_attestation(answer: bytes) -> int | None:
    """The height that the digest is attested at; None where it is not."""
    return _integer(answer, 0, HEIGHT_BITS) if _flag(answer, _WORD) else None


def read_checkpoint(answer: bytes) -> bytes | None:
    """The digest of the checkpoint; None where there is none."""
    return _word(answer, 0) if _flag(answer, _WORD) else None


def _end(answer: bytes, at: int) -> End:
    digest = _word(answer, at + _WORD)
    bits = HEIGHT_BITS if any(digest) else 64  # of one that is missing nothing is read
    return End(_integer(answer, at, bits), digest, _flag(answer, at + 2 * _WORD))


def _word(answer: bytes, at: int) -> bytes:
    word = answer[at : at + _WORD]
    if len(word) < _WORD:
        raise NotChainInfo("it answers nothing" if not answer else f"its answer of {len(answer)} bytes is too short")
    return word


def _integer(answer: bytes, at: int, bits: int) -> int:
    number = int.from_bytes(_word(answer, at), "big")
    if number >> bits:
        raise NotChainInfo(f"a number of its answer does not fit {bits} bits")
    return number


def _flag(answer: bytes, at: int) -> bool:
    return bool(_integer(answer, at, 1))

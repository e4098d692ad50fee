"""Keccak-256 as Ethereum uses it: the original padding of the Keccak submission, not that of FIPS 202."""

from __future__ import annotations

import sha3  # type: ignore[import-untyped, unused-ignore]  # a C extension without stubs


def keccak(data: bytes) -> bytes:
    """The 32-byte Keccak-256 digest of `data`."""
    digest: bytes = sha3.keccak_256(data).digest()
    return digest

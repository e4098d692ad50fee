"""Who sent a transaction, from its signature: no root commits to what a node writes into `from`."""

from __future__ import annotations

from coincurve import PublicKey

from app.core.errors import ContentInvalid
from app.core.hexadecimal import to_hex
from app.core.keccak import keccak
from app.core.transaction import Transaction, UnsupportedType
from app.core.transactions_ethereum import SET_CODE


def recover_sender(tx: Transaction) -> bytes:
    """The 20-byte sender (Yellow Paper, appendix F): recovered from the signature, or the one that the envelope names.

    Raises `ContentInvalid` where no key can have made the signature, `UnsupportedType` for a type signed in another
    way.
    """
    if tx.sender:
        return tx.sender
    if not tx.signing_hash:
        if tx.type > SET_CODE:
            raise UnsupportedType(tx.type)
        raise _unrecoverable(tx)
    if tx.y_parity > 1:
        raise _unrecoverable(tx)
    signature = tx.r.to_bytes(32, "big") + tx.s.to_bytes(32, "big") + bytes((tx.y_parity,))
    try:
        key = PublicKey.from_signature_and_message(signature, tx.signing_hash, hasher=None)
    except ValueError as error:
        raise _unrecoverable(tx) from error
    return keccak(key.format(compressed=False)[1:])[12:]


def _unrecoverable(tx: Transaction) -> ContentInvalid:
    return ContentInvalid("signature", f"the signature of transaction {to_hex(tx.hash)} is of no key")

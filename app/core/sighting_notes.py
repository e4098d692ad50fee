"""What nodes showed when they were asked where they stand, as bytes that one process leaves for the others."""

from __future__ import annotations

import msgspec

from app.core.blocks import Sighting

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(tuple[Sighting, ...])


def encode(sightings: tuple[Sighting, ...]) -> bytes:
    """JSON; hashes in base64."""
    return _encoder.encode(sightings)


def decode(note: bytes) -> tuple[Sighting, ...]:
    """The inverse. Raises ValueError for anything else."""
    try:
        return _decoder.decode(note)
    except msgspec.MsgspecError as error:
        raise ValueError("no sightings") from error

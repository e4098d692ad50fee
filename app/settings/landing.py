"""Knobs that are read and checked, and whose machinery has not landed: whoever turns one is told so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from app.settings.models import ChainSettings, Settings

# Dotted paths, chains and upstreams without their place; a path stands for everything below it, `path=value` for that value.
NOT_YET_IN_FORCE: tuple[str, ...] = ()


def not_in_force(settings: Settings) -> list[str]:
    """The knobs of `NOT_YET_IN_FORCE` that are set to something else than their default."""
    return sorted({shown for path, shown, value in _turned(settings, "", "") if _waits(path, value)})


def _waits(path: str, value: Any) -> bool:
    if path.endswith("_file"):
        return False  # its twin, which it filled, tells
    return any(
        f"{path}={value}" == entry or path == entry or path.startswith(f"{entry}.") for entry in NOT_YET_IN_FORCE
    )


def _turned(model: BaseModel, path: str, shown: str) -> Iterator[tuple[str, str, Any]]:
    """Every leaf that differs from its default: its path, the path to show, its value."""
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from _turned(value, f"{path}{name}.", f"{shown}{name}.")
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            for item in value:
                which = f"chain_key {item.chain_key}" if isinstance(item, ChainSettings) else getattr(item, "name", "")
                yield from _turned(item, f"{path}{name}.", f"{shown}{name}[{which}].")
        elif value != field.get_default(call_default_factory=True):
            yield f"{path}{name}", f"{shown}{name}", value

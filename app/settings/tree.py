"""Raw values by path, each with the source that it came from, so that a refusal can name both.

A path is a tuple of keys as in the file, except that a chain stands under its key, `("chains", "1", "cache")`, whatever its
place in the list.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from app.settings.errors import SettingsError

Path = tuple[str, ...]


def dotted(path: Path) -> str:
    """A path as it is shown: admission.request_timeout_secs, chains[chain_key 1].cache.merkle_max_bytes."""
    if path[:1] == ("chains",) and len(path) > 1:
        return ".".join((f"chains[chain_key {path[1]}]", *path[2:]))
    return ".".join(path)


@dataclass
class Tree:
    """Values laid over one another: the source that speaks last wins. `source` is the file's name, where there is one."""

    source: str
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path, str] = field(default_factory=dict)

    def put(self, path: Path, value: object, origin: str) -> None:
        """Set one value; a chain that is not there yet is made."""
        at = self.values
        for depth, key in enumerate(path[:-1], start=1):
            here = path[:depth]
            if at.get(key) is None:
                at[key] = {"chain_key": key} if depth == 2 and path[0] == "chains" else {}
                self.origins[here] = origin
            at = at[key]
            if not isinstance(at, dict):
                raise SettingsError(f"{self.origin(here)}: {dotted(here)}: must be a mapping")
        at[path[-1]] = value
        self.origins[path] = origin

    def get(self, path: Path) -> Any:
        """The value at a path, None where there is none."""
        at: Any = self.values
        for key in path:
            at = at.get(key) if isinstance(at, dict) else None
        return at

    @property
    def chain_keys(self) -> list[str]:
        return list(self.values.get("chains", {}))

    def origin(self, path: Path) -> str:
        """The source of a path, or of the nearest thing around it."""
        while path and path not in self.origins:
            path = path[:-1]
        return self.origins.get(path, self.source)

"""Why settings are refused."""

from __future__ import annotations


class SettingsError(Exception):
    """One clear line that names the source and the key, and never a value."""

    def __init__(self, line: str) -> None:
        """A name in it may hold characters that cannot be seen: they are shown as escapes."""
        super().__init__("".join(each if each.isprintable() else ascii(each)[1:-1] for each in line))


class NoChainsConfigured(SettingsError):
    """There is no file, and nothing else names a chain."""

"""Why settings are refused."""

from __future__ import annotations


class SettingsError(Exception):
    """One clear line that names the source and the key, and never a value."""


class NoChainsConfigured(SettingsError):
    """There is no file, and nothing else names a chain: the operator has said nothing to serve."""

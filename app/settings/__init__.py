"""The settings: a YAML file, overridden by the environment and the command line, as frozen models.

Read once, by whoever composes the server, and handed on as plain values. Everything wrong with them is a `SettingsError` of
one line, at start, that names the source and the key and repeats no value.
"""

from __future__ import annotations

from app.settings.errors import NoChainsConfigured, SettingsError
from app.settings.load import LoadedSettings, demo_settings, load_settings
from app.settings.models import (
    AdmissionSettings,
    AnchorSettings,
    CacheSettings,
    ChainSettings,
    ConsumerSettings,
    FinalitySettings,
    RoutingSettings,
    Settings,
    UpstreamSettings,
)
from app.settings.redaction import changed, redact_url, redacted, secrets_of

__all__ = [
    "AdmissionSettings",
    "AnchorSettings",
    "CacheSettings",
    "ChainSettings",
    "ConsumerSettings",
    "FinalitySettings",
    "LoadedSettings",
    "NoChainsConfigured",
    "RoutingSettings",
    "Settings",
    "SettingsError",
    "UpstreamSettings",
    "changed",
    "demo_settings",
    "load_settings",
    "redact_url",
    "redacted",
    "secrets_of",
]

"""The front door: `copath serve`, `copath prove`, `copath verify`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import httpx2
import typer
import uvicorn

from app import __version__, checker
from app.asgi import create_app
from app.house import open_house
from app.log import configure_logging, install_fault_hooks
from app.settings import (
    LoadedSettings,
    NoChainsConfigured,
    Settings,
    SettingsError,
    demo_settings,
    load_settings,
    redacted,
    secrets_of,
)
from app.upstream.demo import demo_chains, demo_examples

log = logging.getLogger(__name__)

program = typer.Typer(
    name="copath",
    help="Inclusion proofs of EVM transactions, receipts and logs, each checked before it leaves.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="YAML file; without one, the demo is served.")
]


def main() -> None:
    """Entry point of the `copath` command."""
    program()


@program.callback()
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit

"""The front door: `copath serve`, and its sisters `check`, `prove`, `verify`, `backfill`, `migrate` and `keys`."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from http.client import BAD_REQUEST
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from app import __version__
from app.api.visit import REQUEST_ID
from app.backfilling import RangeRefused, chain_named, fill_range
from app.checking import UnknownName
from app.checking import check as check_chains
from app.consumers import OTHER_PEPPER, KeysRefused, create_key, list_keys, revoke_key
from app.core.hexadecimal import parse_hash
from app.house import CannotStart, demo_chains, prepare_logging
from app.migrating import NotMigrated
from app.migrating import migrate as bring_up_to_date
from app.serving import ask_once
from app.serving import serve as run_server
from app.settings import LoadedSettings, NoChainsConfigured, Settings, SettingsError, demo_settings, load_settings
from app.verifying import Outcome, Trust, tell

T = TypeVar("T")

program = typer.Typer(
    name="copath",
    help="Inclusion proofs of EVM transactions, receipts and logs, each checked before it leaves.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

EXIT_REFUSED = 1
"""The configuration is right, and what it names refuses or is not there now: a port in use, a database, a directory."""
EXIT_CONFIGURATION = 2
"""The configuration, the command line, or what was asked for cannot be meant."""

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="YAML file. Without one, and without chains in the environment: the demo."),
]


def main() -> None:
    """Reads the command line and does what it says."""
    gc.freeze()  # what was imported stays to the end: to walk it for garbage there takes as long as some commands do
    program()


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@program.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    del version  # its callback did all there is to do


@program.command()
def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Address to bind; over bind_host.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to bind, 0 for a free one; over bind_port.")] = None,
    eth_rpc_url: Annotated[
        str | None, typer.Option(help="A node's JSON-RPC URL: serves one chain without a file.")
    ] = None,
    chain_key: Annotated[int | None, typer.Option(help="The key of that chain.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Serve proofs over HTTP until SIGTERM or SIGINT. Exit code 0: it was told to end, and ended; 1: what the configuration names
    refuses or is in use, or it was forced to end; 2: the command line, or the configuration."""
    flags = {
        "bind_host": host,
        "bind_port": None if port is None else str(port),
        "eth_rpc_url": eth_rpc_url,
        "chain_key": chain_key,
        "logging.level": log_level,
    }
    loaded, is_demo = _load(config, flags)
    prepare_logging(loaded, REQUEST_ID)
    try:
        code = run_server(loaded.settings, is_demo=is_demo)
    except CannotStart as error:
        _refuse(error)
    raise typer.Exit(code)


@program.command()
def check(
    config: Annotated[Path | None, typer.Argument(help="YAML file. Without one: the demo.")] = None,
    blocks: Annotated[int, typer.Option(min=1, help="How many recent final blocks of each upstream to rebuild.")] = 20,
    chain: Annotated[str | None, typer.Option(help="Only the chain of this key or name.")] = None,
) -> None:
    """Ask every upstream and rebuild blocks of it. Exit code 0: every chain can be trusted; 1: one cannot; 2: the command line,
    or the configuration."""
    loaded, _ = _load(config, {"logging.level": "error"})
    prepare_logging(loaded, REQUEST_ID)
    for text in loaded.warnings:
        typer.echo(f"note: {text}", err=True)
    try:
        trusted = asyncio.run(check_chains(loaded.settings, chain, blocks))
    except UnknownName as error:
        _stop(f"--chain: {error}", EXIT_CONFIGURATION)
    except CannotStart as error:
        _refuse(error)
    if not trusted:
        raise typer.Exit(EXIT_REFUSED)


@program.command()
def prove(
    tx_hash: Annotated[str, typer.Argument(help="The transaction.")],
    chain: Annotated[str, typer.Option(help="Chain key or name.")],
    kind: Annotated[str, typer.Option(help="transaction, receipt, log, or usc.")] = "receipt",
    log_index: Annotated[int, typer.Option(help="With --kind log: which log of the receipt.")] = 0,
    config: ConfigOption = None,
) -> None:
    """Print one proof, made and checked here and now, without a server. Exit code 0: printed; 1: refused, with the error of a
    server on standard error; 2: nothing that can be asked for, or the configuration."""
    loaded, _ = _load(config, {"logging.level": "error"})
    paths = {
        "transaction": f"/api/v1/proofs/{chain}/transactions/{tx_hash}",
        "receipt": f"/api/v1/proofs/{chain}/receipts/{tx_hash}",
        "log": f"/api/v1/proofs/{chain}/logs/{tx_hash}/{log_index}",
        "usc": f"/api/v1/proof-by-tx/{_key_of(loaded, chain)}/{tx_hash}",
    }
    if kind not in paths:
        _stop(f"--kind: must be one of {', '.join(paths)}", EXIT_CONFIGURATION)
    prepare_logging(loaded, REQUEST_ID)
    try:
        status, body = asyncio.run(ask_once(loaded.settings, paths[kind], anchored=kind == "usc"))
    except* CannotStart as errors:
        _refuse(errors.exceptions[0])
    if status != 200:
        _stop(body.decode(), EXIT_CONFIGURATION if status == BAD_REQUEST else EXIT_REFUSED)
    typer.echo(body.decode())


@program.command()
def backfill(
    chain: Annotated[str, typer.Option(help="Chain key or name.")],
    first: Annotated[int, typer.Option("--from", min=0, help="The lowest height.")],
    last: Annotated[int, typer.Option("--to", min=0, help="The highest height; it must be finalized.")],
    config: ConfigOption = None,
) -> None:
    """Fill a range of blocks, each fetched once and checked as for a proof. Exit code 0: none failed; 1: one did, or none could
    be begun; 2: the command line, or the configuration."""
    if first > last:
        _stop("--from: must not be above --to", EXIT_CONFIGURATION)
    loaded, _ = _load(config, {"logging.level": "error"})
    prepare_logging(loaded, REQUEST_ID)
    try:
        chain_named(loaded.settings, chain)
    except RangeRefused as error:
        _stop(f"copath: {error}", EXIT_CONFIGURATION)
    try:
        tally = asyncio.run(fill_range(loaded.settings, chain, first, last))
    except* (CannotStart, RangeRefused) as errors:
        _refuse(errors.exceptions[0])
    typer.echo("\n".join(tally.lines()))
    if tally.failed:
        raise typer.Exit(EXIT_REFUSED)


@program.command()
def migrate(
    config: ConfigOption = None,
    wait: Annotated[float, typer.Option(min=0, help="How many seconds to wait for a database that is not there.")] = 30,
) -> None:
    """Bring the tables of database_url to this version, as every start does. Any number of processes may do so at once."""
    loaded, _ = _load(config, {})
    prepare_logging(loaded, REQUEST_ID)
    try:
        typer.echo(asyncio.run(bring_up_to_date(loaded.settings, wait)))
    except NotMigrated as error:
        _refuse(error)


@program.command()
def verify(
    files: Annotated[
        list[Path] | None, typer.Argument(help="What proof routes returned; - or none for standard input.")
    ] = None,
    block_hash: Annotated[str | None, typer.Option(help="The block hash that you trust.")] = None,
    anchor_height: Annotated[
        int | None, typer.Option(min=0, help="For usc proofs: the height of an anchor you trust.")
    ] = None,
    anchor_digest: Annotated[str | None, typer.Option(help="For usc proofs: the digest of that anchor.")] = None,
    root: Annotated[str | None, typer.Option(help="The root of the trie that you trust.")] = None,
) -> None:
    """Check proofs offline, with nothing but their own bytes and what you trust, and say what is wrong with those that do not
    hold. Exit code 0: all of them hold; 1: one does not; 2: one could not be checked, because it is no proof, cannot be read, or
    what it would hold under was not named."""
    if (anchor_height is None) != (anchor_digest is None):
        _stop("--anchor-height and --anchor-digest name an anchor together", EXIT_CONFIGURATION)
    trust = Trust(
        None if block_hash is None else _hash("--block-hash", block_hash),
        None if anchor_height is None else (anchor_height, _hash("--anchor-digest", anchor_digest or "")),
        None if root is None else _hash("--root", root),
    )
    outcomes = set()
    for file in files or [Path("-")]:
        try:
            body = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        except OSError as error:
            typer.echo(f"{file}: {error.strerror}", err=True)
            outcomes.add(Outcome.UNCHECKED)
        else:
            outcomes.add(tell(body, str(file) if files and len(files) > 1 else "", trust))
    if Outcome.REFUSED in outcomes:  # whatever else there is
        raise typer.Exit(EXIT_REFUSED)
    if Outcome.UNCHECKED in outcomes:
        raise typer.Exit(EXIT_CONFIGURATION)
    if trust.unused:
        _stop(f"{' and '.join(sorted(trust.unused))}: nothing of the kind is in what was checked", EXIT_CONFIGURATION)


keys = typer.Typer(name="keys", help="API keys of consumers.", no_args_is_help=True)
program.add_typer(keys)


@keys.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Whose key it is, for the list; 64 characters at most.")],
    config: ConfigOption = None,
) -> None:
    """Make a key and print it: now, and never again. Running servers take it within seconds."""
    key_id, key, others = _about_keys(config, lambda settings: create_key(settings, name))
    if others:
        typer.echo(f"warning: keys of other peppers: {others}: {OTHER_PEPPER}", err=True)
    typer.echo(f"id {key_id}; it will not be shown again:", err=True)
    typer.echo(key)


@keys.command("list")
def list_all(config: ConfigOption = None) -> None:
    """Every key that was ever made: its id, since when, until when, whose. Never the key."""
    others = 0
    for row in _about_keys(config, list_keys):
        until = f"revoked {_day(row.revoked_at)}" if row.revoked_at is not None else "counts"
        if row.revoked_at is None and row.of_other_pepper:
            until = "does not count: made under another pepper"
            others += 1
        typer.echo(f"{row.id}  made {_day(row.created_at)}  {until}  {ascii(row.name)[1:-1]}")
    if others:
        typer.echo(f"warning: keys of other peppers: {others}: {OTHER_PEPPER}", err=True)


@keys.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="The id of the key, as listed.")], config: ConfigOption = None
) -> None:
    """Make a key count no more. Running servers refuse it within seconds. Exit code 1: there was none to revoke."""
    if not _about_keys(config, lambda settings: revoke_key(settings, key_id)):
        _stop("no key that counts has this id", EXIT_REFUSED)


def _about_keys(config: Path | None, ask: Callable[[Settings], Coroutine[Any, Any, T]]) -> T:
    loaded, _ = _load(config, {"logging.level": "error"})
    prepare_logging(loaded, REQUEST_ID)
    try:
        return asyncio.run(ask(loaded.settings))
    except KeysRefused as refused:
        _refuse(refused)


def _day(moment: int) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M")


def _hash(option: str, text: str) -> bytes:
    try:
        return parse_hash(text)
    except ValueError as error:
        _stop(f"{option}: {error}", EXIT_CONFIGURATION)


def _key_of(loaded: LoadedSettings, chain: str) -> str:
    """The key of a chain that is named; whatever else was given is left for the route to refuse."""
    return next((str(each.chain_key) for each in loaded.settings.chains if each.name == chain), chain)


def _load(config: Path | None, flags: Mapping[str, Any]) -> tuple[LoadedSettings, bool]:
    try:
        try:
            return load_settings(None if config is None else str(config), os.environ, flags), False
        except NoChainsConfigured:
            if config is not None:
                raise
            loaded = demo_settings(demo_chains(), os.environ, flags)
            if Path("config.yaml").is_file():
                loaded.warnings.append("config.yaml is not read: name it with --config; this is the demo")
            return loaded, True
    except SettingsError as error:
        _stop(f"copath: {error}", EXIT_CONFIGURATION)


def _refuse(error: BaseException) -> NoReturn:
    """Its line, and the exit code that says whether the configuration has to change or what it names."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    _stop(f"copath: {error}", EXIT_CONFIGURATION if getattr(error, "misconfigured", False) else EXIT_REFUSED)


def _stop(line: str, code: int) -> NoReturn:
    typer.echo(line, err=True)
    raise typer.Exit(code)

"""What the environment and the command line lay over the file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from app.settings.errors import SettingsError
from app.settings.shape import annotation_at, is_list, unknown_key
from app.settings.text import fault_in, trimmed
from app.settings.tree import Path, Tree, dotted

PREFIX = "COPATH_"

# Names that dashboards and deployments of the reference server already set. The COPATH_ name of the same setting wins.
_COMPAT: Mapping[str, Path] = {
    "MAX_IN_FLIGHT_REQUESTS": ("admission", "max_in_flight_requests"),
    "MAX_IN_FLIGHT_PER_CHAIN": ("admission", "max_in_flight_per_chain"),
    "REQUEST_TIMEOUT_SECS": ("admission", "request_timeout_secs"),
    "MAX_BATCH_SIZE": ("max_batch_size",),
    "MAX_BATCH_SPAN": ("max_batch_span",),
}
_OPTIONS = {"bind_host": "--host", "bind_port": "--port", "logging.level": "--log-level"}
CONFIG_VARIABLES = ("COPATH_CONFIG", "PROOF_GEN_CONFIG_FILE")
_ANCHOR_NODE = "CC3_RPC_URL"

_NOT_IN_NAMES = re.compile(r"[^\x21-\x7e]")

# No settings although the prefix is ours: what the image says of its build, switches of the test suite, and the variables by
# which Kubernetes describes Services (one called copath, or copath-postgres) to every container of their namespace.
_NOT_SETTINGS = re.compile(
    r"COPATH_(GIT_SHA|TESTS_.*)=.*"
    r"|COPATH(_[A-Z0-9]+)*_SERVICE_(HOST|PORT(_[A-Z0-9]+)*)=.*"
    r"|COPATH(_[A-Z0-9]+)*_PORT(_[0-9]+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://.*"
    r"|COPATH(_[A-Z0-9]+)*_PORT_[0-9]+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR)=.*",
    re.ASCII,
)


def apply_environment(tree: Tree, environ: Mapping[str, str]) -> None:
    """Lay the variables over the tree. An empty variable is no variable. Raises SettingsError for one that names no setting."""
    given = {name: value for name, text in environ.items() if (value := str(trimmed(text)))}
    for name, path in _COMPAT.items():
        if name in given:
            tree.put(path, given[name], name)
    for name in sorted(given):
        _require_readable(name)
        if not name.startswith(PREFIX) or name in CONFIG_VARIABLES:
            continue
        if not _NOT_SETTINGS.fullmatch(f"{name}={given[name]}"):
            path = tuple(part.lower() for part in name.removeprefix(PREFIX).split("__"))
            put_text(tree, path, given[name], name)
    _select_creditcoin_anchors(tree, given.get(_ANCHOR_NODE, ""))


def _require_readable(name: str) -> None:
    """A byte order mark before the first line of a file of variables, for example, would hide that variable."""
    seen = _NOT_IN_NAMES.sub("", name)
    if seen != name and (seen.startswith(PREFIX) or seen in (*_COMPAT, *CONFIG_VARIABLES, _ANCHOR_NODE)):
        raise SettingsError(f"{seen}: the name of this variable {fault_in(name) or 'holds what no name holds'}")


def apply_flags(tree: Tree, flags: Mapping[str, object], warn: Callable[[str], None]) -> None:
    """Lay command line options over the tree: dotted paths ("logging.level", "chains.1.name"), or `eth_rpc_url` and
    `chain_key` for a server with one chain. An option that is None was not given. `warn` gets a line for each node that an option
    replaces."""
    given = {name: value for name, value in flags.items() if value is not None}
    url, key = given.pop("eth_rpc_url", None), given.pop("chain_key", None)
    if url is not None:
        key = str(key if key is not None else _only_chain(tree))
        _say_what_changes(tree, key, warn)
        tree.put(("chains", key, "chain_key"), key, "option --chain-key")
        tree.put(("chains", key, "eth_rpc_url"), url, "option --eth-rpc-url")
    elif key is not None and str(key) not in tree.chain_keys:
        there = ", ".join(tree.chain_keys)
        raise SettingsError(
            "option --chain-key: give --eth-rpc-url too, the node of that chain"
            + (f": {tree.source} has only {there}" if there else "")
        )
    elif key is not None:
        warn("option --chain-key: has no effect without --eth-rpc-url: every chain that is configured is served")
    for name, value in given.items():
        put_text(tree, tuple(name.split(".")), value, f"option {_OPTIONS.get(name, name)}")


def _say_what_changes(tree: Tree, key: str, warn: Callable[[str], None]) -> None:
    chain = tree.get(("chains", key))
    if chain is None and tree.chain_keys:
        warn(f"option --eth-rpc-url: adds chain {key} to those of {tree.source}: {', '.join(tree.chain_keys)}")
    if not isinstance(chain, dict):
        return
    if chain.get("upstreams"):
        raise SettingsError(
            f"option --eth-rpc-url: chain {key} has upstreams in {tree.origin(('chains', key))}: change them there, or give "
            "another --chain-key"
        )
    if chain.pop("eth_rpc_url_file", None) is not None or chain.get("eth_rpc_url") is not None:
        before = tree.origin(("chains", key, "eth_rpc_url"))
        warn(
            f"option --eth-rpc-url: replaces the node that {before} names for chain {key}; all else of that chain is kept"
        )


def put_text(tree: Tree, path: Path, value: object, origin: str) -> None:
    """Set what was written in one line of text, where it stands for a value of another kind. Raises SettingsError when there
    is no such key."""
    try:
        annotation = annotation_at(path)
    except KeyError as error:
        key, model = error.args
        raise SettingsError(f"{origin}: {dotted(path)}: {unknown_key(key, model)}") from None
    if path[:1] == ("chains",) and not (len(path) > 2 and path[1].isascii() and path[1].isdigit()):
        raise SettingsError(f"{origin}: a chain is named by its key, as in {PREFIX}CHAINS__1__ETH_RPC_URL")
    if path[:1] == ("chains",):
        path = ("chains", path[1].lstrip("0") or "0", *path[2:])
    if isinstance(value, str):
        value = None if value.lower() == "null" else _listed(value, path, origin) if is_list(annotation) else value
    tree.put(path, value, origin)


def _listed(text: str, path: Path, origin: str) -> Any:
    if not text.startswith("["):
        return [item.strip() for item in text.split(",")]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise SettingsError(
            f"{origin}: {dotted(path)}: must be a JSON list, or items with commas between them"
        ) from None


def _only_chain(tree: Tree) -> object:
    match tree.chain_keys:
        case []:
            return 1
        case [key]:
            return key
    raise SettingsError("option --eth-rpc-url: give --chain-key too: more than one chain is configured")


def _select_creditcoin_anchors(tree: Tree, url: str) -> None:
    """`CC3_RPC_URL` says where Creditcoin's anchors are read, for every chain that names no other source."""
    for key in tree.chain_keys if url else ():
        anchors = ("chains", key, "anchors")
        if tree.get((*anchors, "source")) in (None, "creditcoin") and not any(
            tree.get((*anchors, name)) for name in ("url", "url_file")
        ):
            tree.put((*anchors, "source"), "creditcoin", _ANCHOR_NODE)
            tree.put((*anchors, "url"), url, _ANCHOR_NODE)

"""From file, environment and command line to settings, or to one line that says why not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from app.settings.consistency import conflicts, doubts, with_dependent_defaults
from app.settings.document import read_document
from app.settings.errors import NoChainsConfigured, SettingsError
from app.settings.models import Settings
from app.settings.overrides import CONFIG_VARIABLES, apply_environment, apply_flags
from app.settings.secret_files import read_secret_files
from app.settings.shape import model_at, unknown_key
from app.settings.surroundings import require_usable
from app.settings.text import trimmed
from app.settings.tree import Path, Tree, dotted

_NO_FILE = "settings"


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """`warnings` are about what was let pass."""

    settings: Settings
    warnings: list[str]


def load_settings(
    path: str | None, environ: Mapping[str, str], flags: Mapping[str, object] | None = None
) -> LoadedSettings:
    """The settings of a server: the file (`path`, or the one that the environment names), under the environment, under the
    command line. Raises `NoChainsConfigured` when there is no file and nothing names a chain, else `SettingsError`."""
    named = (str(trimmed(environ.get(name, ""))) for name in CONFIG_VARIABLES)
    source = path or next(filter(None, named), None)
    warnings: list[str] = []
    tree = read_document(source, environ, warnings.append) if source else Tree(_NO_FILE)
    return _finished(tree, environ, flags or {}, warnings)


def demo_settings(
    chains: Iterable[Mapping[str, Any]],
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> LoadedSettings:
    """The settings of the demo: the given chains, each as an entry of `chains` in the file, nothing kept on the disk, and
    defaults for all else, under the environment and the command line."""
    tree = Tree("demo")
    tree.put(("database_url",), "sqlite+aiosqlite:///:memory:", "demo")
    tree.put(("block_store_url",), None, "demo")
    for chain in chains:
        tree.put(("chains", str(chain["chain_key"])), dict(chain), "demo")
    return _finished(tree, environ or {}, flags or {}, [])


def _finished(
    tree: Tree, environ: Mapping[str, str], flags: Mapping[str, object], warnings: list[str]
) -> LoadedSettings:
    for name in ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"):
        if name in environ:
            raise SettingsError(f"{name}: must not be set: one process serves its own metrics, scale by replicas")
    apply_environment(tree, environ)
    apply_flags(tree, flags, warnings.append)
    if not tree.chain_keys:
        # Whoever wrote a file meant to serve chains of their own: that is a fault, not a wish for the demo.
        kind = NoChainsConfigured if tree.source == _NO_FILE else SettingsError
        raise kind(f"{tree.source}: chains: at least one chain is needed, as in config.example.yaml")
    read_secret_files(tree)
    keys = tree.chain_keys
    try:
        settings = Settings.model_validate({**tree.values, "chains": list(tree.values["chains"].values())})
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_input=False), keys, tree.origin) from None
    settings = with_dependent_defaults(settings)
    if any(not node.url.startswith("demo:") for chain in settings.chains for node in chain.upstream_list):
        require_usable(environ)
    for where, why in conflicts(settings):
        raise SettingsError(f"{tree.origin(where)}: {dotted(where)}: {why}")
    warnings += [f"{tree.origin(where)}: {dotted(where)}: {why}" for where, why in doubts(settings)]
    return LoadedSettings(settings, warnings)


def _refusal(errors: Sequence[ErrorDetails], keys: Sequence[str], origin: Callable[[Path], str]) -> SettingsError:
    """The first thing that is wrong, in one line. Unknown keys first: what is missing is then often only misspelt."""
    first = min(errors, key=lambda error: error["type"] != "extra_forbidden")
    path = _path(first["loc"], keys)
    if first["type"] == "extra_forbidden":
        why = unknown_key(path[-1], model_at(path[:-1]))
    else:
        # Where a value may be of two kinds, each kind has its complaint.
        why = " or ".join(dict.fromkeys(_words(error) for error in errors if _path(error["loc"], keys) == path))
    return SettingsError(f"{origin(path)}: {dotted(path)}: {why}")


def _words(error: ErrorDetails) -> str:
    if error["type"] == "missing":
        return "is missing"
    if error["type"] in ("model_type", "dict_type"):
        return "must be a mapping"
    text = error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return text.partition(", unable to")[0]


def _path(location: tuple[int | str, ...], keys: Sequence[str]) -> Path:
    """A path of ours from pydantic's location, which counts chains and also names the members of unions."""
    path: list[str] = []
    for depth, part in enumerate(location):
        if depth == 1 and path == ["chains"] and isinstance(part, int):
            path.append(keys[part])
        elif isinstance(part, int) or _is_key(path, part):
            path.append(str(part))
    return tuple(path)


def _is_key(path: Sequence[str], part: str) -> bool:
    """Whether a part of a location stands in the file. Those that only name a member of a union never follow a model."""
    model: type[BaseModel] | None = model_at(tuple(path))
    return model is not None

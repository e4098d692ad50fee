"""The configuration file: YAML without surprises, `${VAR}` replaced, another server's files understood."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path as FilePath
from typing import Any

import yaml

from app.settings.errors import SettingsError
from app.settings.text import decoded, fault_in, trimmed
from app.settings.tree import Tree

_VARIABLE = re.compile(r"\$(\$)?\{([^}]*)\}?")
_TWICE = "a key stands twice"
_TOO_DEEP = "is nested too deeply"
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

# Keys of the reference server's file that have no meaning here. They are let pass, so that its files load unchanged.
_FOREIGN_TOP = {
    "cc3_key": "nothing is signed here",
    "indexer_url": "no indexer is read",
}
_FOREIGN_CHAIN = {
    "archiver_url": "archivers are not read",
    "block_confirmation_depth": "finality says when a height counts as final",
}
_FOREIGN_CACHE = {
    "block_cache_capacity": "cache.merkle_max_bytes bounds what is kept",
    "checkpoint_cache_max_entries": "anchors are kept by their source",
}


class _Loader(yaml.SafeLoader):
    """YAML in which a key stands once: the standard loader takes the last of two in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, _TWICE, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_document(path: str, environ: Mapping[str, str], warn: Callable[[str], None]) -> Tree:
    """The file as a tree. Raises SettingsError; `warn` hears of every key that is let pass without effect."""
    try:
        content = decoded(FilePath(path).read_bytes())
    except ValueError as error:
        raise SettingsError(f"{path}: {error}") from None
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        document = yaml.load(content, _Loader)  # noqa: S506 - a SafeLoader with one check more
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}: {_yaml_fault(error, content)}") from None
    except ValueError:
        raise SettingsError(f"{path}: holds a number or a date that is none") from None
    except RecursionError:
        raise SettingsError(f"{path}: {_TOO_DEEP}") from None
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise SettingsError(f"{path}: must be a mapping of settings")
    try:
        tree = Tree(path, _substituted(document, environ, path, ""))
    except RecursionError:  # an alias inside of what it stands for
        raise SettingsError(f"{path}: {_TOO_DEEP}") from None
    _key_the_chains(tree)
    _drop_foreign_keys(tree, warn)
    return tree


def _yaml_fault(error: yaml.YAMLError, content: str) -> str:
    """What is wrong and where; the parser's own words quote the line, which may hold a secret."""
    if isinstance(error, yaml.reader.ReaderError):
        line = content.count("\n", 0, error.position) + 1
        return f"{fault_in(chr(error.character)) or 'is not valid YAML'} (line {line})"
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or ""
    where = f" (line {mark.line + 1})" if mark is not None else ""
    if problem == _TWICE:
        return f"{_TWICE}{where}"
    if "'\\t'" in problem:
        return f"is not valid YAML: a tab stands where YAML wants spaces{where}"
    if problem.startswith("could not find expected ':'") or problem == "mapping values are not allowed here":
        return f"is not valid YAML: a colon is missing or one too many, or the text needs quotes{where}"
    return f"is not valid YAML{where}"


def _substituted(value: Any, environ: Mapping[str, str], source: str, where: str) -> Any:
    """The value with `${VAR}` replaced in every string; `$${` stands for `${` itself."""
    if isinstance(value, dict):
        inner = f"{where}." if where else ""
        return {str(key): _substituted(child, environ, source, f"{inner}{key}") for key, child in value.items()}
    if isinstance(value, list):
        return [_substituted(child, environ, source, f"{where}[{index}]") for index, child in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replacement(match: re.Match[str]) -> str:
        if match[1]:
            return match[0][1:]
        name = match[2]
        if not match[0].endswith("}") or not _VARIABLE_NAME.fullmatch(name):
            raise SettingsError(f"{source}: {where}: a ${{...}} must hold the name of an environment variable")
        if name not in environ:
            raise SettingsError(f"{source}: {where}: the environment has no variable {name}")
        return str(trimmed(environ[name]))

    return _VARIABLE.sub(replacement, value)


def _key_the_chains(tree: Tree) -> None:
    """Turn the list of chains into a mapping by chain key."""
    listed = tree.values.pop("chains", None)
    if listed is None:
        return
    if not isinstance(listed, list):
        raise SettingsError(f"{tree.source}: chains: must be a list")
    chains: dict[str, Any] = {}
    for index, chain in enumerate(listed):
        if not isinstance(chain, dict):
            raise SettingsError(f"{tree.source}: chains[{index}]: must be a mapping")
        key = chain.get("chain_key")
        if key is None:
            raise SettingsError(f"{tree.source}: chains[{index}].chain_key: is missing")
        spelt = str(key).strip()
        spelt = (spelt.lstrip("0") or "0") if spelt.isascii() and spelt.isdigit() else spelt
        if spelt in chains:
            raise SettingsError(f"{tree.source}: chains[{index}].chain_key: is the key of an earlier chain too")
        chains[spelt] = chain
    tree.values["chains"] = chains


def _drop_foreign_keys(tree: Tree, warn: Callable[[str], None]) -> None:
    def drop(at: object, foreign: Mapping[str, str], prefix: str) -> None:
        if isinstance(at, dict):
            for key in [key for key in foreign if key in at]:
                del at[key]
                warn(f"{tree.source}: {prefix}{key} has no effect here: {foreign[key]}")

    drop(tree.values, _FOREIGN_TOP, "")
    for key in tree.chain_keys:
        chain = tree.values["chains"][key]
        drop(chain, _FOREIGN_CHAIN, f"chains[chain_key {key}].")
        drop(chain.get("cache"), _FOREIGN_CACHE, f"chains[chain_key {key}].cache.")

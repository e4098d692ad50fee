"""The `*_file` twins: a secret may stand in a file of its own, which then holds nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any

from pydantic import BaseModel

from app.settings.errors import SettingsError
from app.settings.models import ChainSettings, Settings
from app.settings.shape import FILE_SUFFIX, is_list, model_in
from app.settings.tree import Path, Tree, dotted


def read_secret_files(tree: Tree) -> None:
    """Put what the files hold where it belongs. Raises SettingsError; no message repeats a file's name or content."""
    chains = tree.values.get("chains")
    _read(tree, tree.values, Settings, ())
    for key, chain in chains.items() if isinstance(chains, dict) else ():
        _read(tree, chain, ChainSettings, ("chains", key))


def _read(tree: Tree, values: Any, model: type[BaseModel], path: Path) -> None:
    if not isinstance(values, dict):
        return
    for key, field in model.model_fields.items():
        here = (*path, key)
        inner = model_in(field.annotation)
        if inner is ChainSettings:
            continue
        if inner is not None:
            child = values.get(key)
            for index, entry in enumerate(child) if isinstance(child, list) else ():
                _read(tree, entry, inner, (*here, str(index)))
            _read(tree, child, inner, here)
        elif key + FILE_SUFFIX in model.model_fields and values.get(key + FILE_SUFFIX) is not None:
            twin = (*path, key + FILE_SUFFIX)
            if values.get(key) is not None:
                raise SettingsError(f"{tree.origin(twin)}: {dotted(twin)}: give this or {key}, not both")
            values[key] = _content(values[key + FILE_SUFFIX], field.annotation, tree.origin(twin), twin)
            tree.origins[here] = tree.origin(twin)


def _content(name: object, annotation: Any, origin: str, path: Path) -> Any:
    where = f"{origin}: {dotted(path)}"
    try:
        text = FilePath(str(name)).read_text(encoding="utf-8").strip()
    except OSError as error:
        # The name is not repeated: the secret itself may stand where the file's name should.
        raise SettingsError(f"{where}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise SettingsError(f"{where}: is not a file of UTF-8 text") from None
    if not text:
        raise SettingsError(f"{where}: the file is empty")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if is_list(annotation):
        return lines
    if path[-1] == "headers" + FILE_SUFFIX:
        return _headers(lines, where)
    return text


def _headers(lines: list[str], where: str) -> Mapping[str, str]:
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise SettingsError(f"{where}: every line must be a header, Name: value")
        headers[name.strip()] = value.strip()
    return headers

"""The `*_file` twins: a secret may stand in a file of its own, which then holds nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any

from pydantic import BaseModel

from app.settings.errors import SettingsError
from app.settings.models import ChainSettings, Settings
from app.settings.shape import FILE_SUFFIX, is_list, model_in
from app.settings.text import decoded, fault_in, trimmed
from app.settings.tree import Path, Tree, dotted

_MOST_BYTES = 2**20


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
    # The name is not repeated: the secret itself may stand where the file's name should.
    if fault := fault_in(str(name), dashes=False):
        raise SettingsError(f"{where}: {fault}")
    try:
        with FilePath(str(name)).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"{where}: cannot be read: {error.strerror}") from None
    if len(content) > _MOST_BYTES:
        raise SettingsError(f"{where}: the file is larger than {_MOST_BYTES} bytes: no secret is")
    try:
        text = str(trimmed(decoded(content)))
    except ValueError as error:
        raise SettingsError(f"{where}: the file {error}") from None
    if not text:
        raise SettingsError(f"{where}: the file is empty")
    lines = [line for line in (str(trimmed(line)) for line in re.split(r"\r\n|\r|\n", text)) if line]
    if is_list(annotation):
        return lines
    if path[-1] == "headers" + FILE_SUFFIX:
        return _headers(lines, where)
    return text


def _headers(lines: list[str], where: str) -> Mapping[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise SettingsError(f"{where}: every line must be a header, Name: value")
        if (name := str(trimmed(name))) in headers:
            raise SettingsError(f"{where}: a header stands twice")
        headers[name] = str(trimmed(value))
    return headers

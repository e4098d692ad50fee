"""Which keys there are, read off the models."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from app.settings.models import ChainSettings, Settings
from app.settings.tree import Path

# The suffix of a key that names a file which holds the value of the key without it.
FILE_SUFFIX = "_file"


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of an annotation such as `CacheSettings` or `tuple[UpstreamSettings, ...]`, if it holds one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := model_in(inner)) is not None), None)


def model_at(path: Path) -> type[BaseModel] | None:
    """The model that the keys under a path belong to; indexes and chain keys are stepped over."""
    model: type[BaseModel] = Settings
    for depth, key in enumerate(path):
        if (depth == 1 and path[0] == "chains") or key.isdigit():
            continue
        field = model.model_fields.get(key)
        found = model_in(field.annotation) if field else None
        if found is None:
            return None
        model = found
    return model


def annotation_at(path: Path) -> Any:
    """The annotation of a field. Raises KeyError with the part that is no key, and the model it is not in."""
    model: type[BaseModel] | None = Settings
    annotation: Any = None
    keys = path
    if path[:1] == ("chains",) and len(path) > 1:
        model, keys = ChainSettings, path[2:]
    for key in keys:
        if model is None or key not in model.model_fields:
            raise KeyError(key, model)
        annotation = model.model_fields[key].annotation
        model = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    return annotation


def all_paths(model: type[BaseModel] = Settings, prefix: Path = ()) -> Iterator[Path]:
    """Every leaf of the configuration; lists of chains and upstreams appear as their one entry, without an index."""
    for key, field in model.model_fields.items():
        inner = model_in(field.annotation)
        if inner is None:
            yield (*prefix, key)
        else:
            yield from all_paths(inner, (*prefix, key))


def unknown_key(key: str, model: type[BaseModel] | None) -> str:
    """What to say about a key that is not in the model: the nearest one that is, or where one of that name belongs."""
    known = list(model.model_fields) if model else []
    if close := difflib.get_close_matches(key, known, n=1):
        return f"is not a known key; did you mean {close[0]}?"
    elsewhere = [".".join(path) for path in all_paths() if path[-1] == key]
    if elsewhere:
        return f"is not a known key here; did you mean {' or '.join(elsewhere)}?"
    return f"is not a known key; known are {', '.join(known)}" if known else "has no keys below it"


def is_list(annotation: Any) -> bool:
    return get_origin(annotation) is tuple

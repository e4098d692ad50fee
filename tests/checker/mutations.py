"""Every small change of a JSON body: whatever it hits, the body no longer says what was proven."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

from app.checker import Refused

OTHERS = (None, True, "", "0x", 0, 1.5, [], {})
"""Values of every JSON type."""


def _of_text(text: str) -> Iterator[object]:
    yield text + "0"
    yield text + "00"
    yield text[:-1]
    yield text[:-2]
    yield text.upper()
    yield text[:2] + text[2:].upper()
    yield f" {text}"
    yield f"{text}\n"
    yield text.replace("0x", "0X")
    yield text.removeprefix("0x")
    for at in range(0, len(text), max(1, len(text) // 16)):
        yield text[:at] + ("0" if text[at] != "0" else "1") + text[at + 1 :]
        yield text[:at] + "g" + text[at + 1 :]


def _variants(value: object) -> Iterator[object]:
    yield from OTHERS
    if isinstance(value, str):
        yield from _of_text(value)
    elif isinstance(value, bool):
        yield not value
        yield int(value)
    elif isinstance(value, int):
        yield from (value + 1, value - 1, -value, float(value), str(value), hex(value), value + 2**64, value * 10**30)
    elif isinstance(value, list):
        yield from ([*value, item] for item in (None, 0, "0x", *value[:1]))
        yield from (value[:at] + value[at + 1 :] for at in range(len(value)))
        yield value[::-1]
        yield dict(enumerate(value))
    elif isinstance(value, dict):
        yield value | {"unknown": 1}
        yield value | {"log": {}, "encodings": {}}
        yield from ({name: of for name, of in value.items() if name != left_out} for left_out in value)
        yield list(value.values())


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    yield path, value
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, child in children:
        yield from _places(child, (*path, name))


def _same(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other


def mutations(body: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """Where each changed body was changed, and the changed body."""
    for path, value in _places(body):
        for variant in _variants(value):
            if _same(variant, value):
                continue
            changed: Any = copy.deepcopy(body)
            if not path:
                changed = variant
            else:
                holder = changed
                for step in path[:-1]:
                    holder = holder[step]
                holder[path[-1]] = variant
            yield f"{'.'.join(map(str, path))}: {variant!r:.60}", changed


def accepted(body: dict[str, Any], check: Callable[[bytes], None]) -> list[str]:
    """Where a body could be changed and `check` did not notice."""
    unseen, count = [], 0
    for place, changed in mutations(body):
        count += 1
        try:
            check(json.dumps(changed).encode())
        except Refused:
            continue
        unseen.append(place)
    assert count > 300, "hardly anything was changed"
    return unseen

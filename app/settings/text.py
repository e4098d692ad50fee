"""Text that was pasted, exported or mounted: what around it is dropped, and what inside it is refused.

Editors, password managers and shells add characters that cannot be seen or look like others. Around a value a byte order mark
and white space are dropped; inside it no message repeats anything but the name of the character.
"""

from __future__ import annotations

import re
import unicodedata

_AROUND = " \t\r\n\v\f\ufeff"
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
"""The name of a header (RFC 9110, 5.6.2)."""

_SET_BY_US = frozenset({"connection", "content-length", "te", "trailer", "transfer-encoding", "upgrade"})
_KINDS = {"Cc": "control character", "Cf": "invisible character", "Zl": "line separator", "Zp": "line separator"}
_NAMED = {
    "\n": "a line break",
    "\r": "a line break",
    "\t": "a tab",
    "\0": "a NUL",
    "\ufeff": "a byte order mark (U+FEFF)",
}
_LOOKALIKES = "\u2018\u2019\u201c\u201d\u2032\u2033\u2212"  # quotes and the minus; dashes have a category of their own
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters without a shape whose category does not say so."""


def trimmed(value: object) -> object:
    """Text without the byte order mark and the white space around it; anything else as it is."""
    return value.strip(_AROUND) if isinstance(value, str) else value


def decoded(content: bytes) -> str:
    """The text of a file, without its byte order mark. Raises ValueError if it is not UTF-8."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError("is UTF-16 text: save it as UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None


def fault_in(text: str, *, dashes: bool = True) -> str | None:
    """What no secret, URL or header holds on purpose, in words; None if there is nothing of the kind.

    `dashes`: typographic dashes, quotes and spaces count as well, which names of files may hold.
    """
    for place, character in enumerate(text, start=1):
        words = _named(character, dashes=dashes)
        if words is not None:
            return f"holds {words} as character {place}: remove it, or type it again"
    return None


def _named(character: str, *, dashes: bool) -> str | None:
    if " " <= character <= "~":
        return None
    category = unicodedata.category(character)
    if character in _NAMED:
        return _NAMED[character]
    if category == "Cs":
        return "a byte that is not UTF-8"
    if category in _KINDS or _UNSEEN.match(character) or (dashes and _misleads(character, category)):
        name = unicodedata.name(character, _KINDS.get(category, "unassigned character")).lower()
        return f"{'an' if name[0] in 'aeiou' else 'a'} {name} (U+{ord(character):04X})"
    return None


def _misleads(character: str, category: str) -> bool:
    """Whether it looks like ASCII and is not: spaces, dashes, quotes, full-width letters, ligatures of a printed page."""
    if category in ("Pd", "Zs", "Cn", "Co") or character in _LOOKALIKES:
        return True
    return unicodedata.normalize("NFKC", character).isascii()


def plain(text: str) -> str:
    """The text. Raises ValueError if something in it was not typed on purpose."""
    if fault := fault_in(text):
        raise ValueError(fault)
    return text


def secret(value: object) -> object:
    """Text without what is around it; anything else as it is. Raises ValueError as `plain` does."""
    return plain(value.strip(_AROUND)) if isinstance(value, str) else value


def file_name(text: str) -> str:
    """The name of a file. Raises ValueError if it holds what cannot be seen; bytes that are not UTF-8 are a name too."""
    if fault := fault_in("".join(each for each in text if not "\udc80" <= each <= "\udcff"), dashes=False):
        raise ValueError(fault)
    return text


def url(text: str) -> str:
    """The text of a URL. Raises ValueError as `plain` does, and for a space."""
    if " " in plain(text):
        raise ValueError(f"holds a space as character {text.index(' ') + 1}: remove it, or write %20")
    return text


def headers(given: object) -> object:
    """Headers of a request as HTTP takes them. Raises ValueError, which repeats neither name nor value."""
    if not isinstance(given, dict):
        return given
    seen: set[str] = set()
    kept: dict[object, object] = {}
    for number, (name, value) in enumerate(given.items(), start=1):
        name, value = trimmed(name), trimmed(value)
        if isinstance(name, str):
            _require_name(name, number, seen)
        if isinstance(value, str):
            _require_value(value, number)
        kept[name] = value
    return kept


def _require_name(name: str, number: int, seen: set[str]) -> None:
    which = f"the name of header {number}"
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"{which} {fault_in(name) or 'must be letters, digits and hyphens, such as Authorization'}")
    if name.lower() in _SET_BY_US:
        raise ValueError(f"{which} must not be {name.lower()}, which every request sets by itself")
    if name.lower() in seen:
        raise ValueError(f"{which} is that of an earlier header too")
    seen.add(name.lower())


def _require_value(value: str, number: int) -> None:
    which = f"the value of header {number}"
    if fault := fault_in(value.replace("\t", " ")):
        raise ValueError(f"{which} {fault}")
    if not value.isascii():
        place = next(at for at, each in enumerate(value, start=1) if not each.isascii())
        raise ValueError(f"{which} must be ASCII, and its character {place} is not")

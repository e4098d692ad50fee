"""What schemathesis is to check beside its own checks. It loads this file where `SCHEMATHESIS_HOOKS` names it."""

from __future__ import annotations

from typing import Any

import schemathesis
from schemathesis.checks import CheckContext


@schemathesis.check
def documented_form_is_taken(ctx: CheckContext, response: schemathesis.Response, case: schemathesis.Case) -> None:
    """What has the documented form may be refused for what it asks, and never for its form."""
    if case.meta is None or not case.meta.generation.mode.is_positive or response.status_code != 400:
        return
    if _has_fraction(case.body):
        return  # JSON Schema takes 1.0 for an integer; this server and the reference server do not
    code = response.json()["code"]
    assert code not in ("InvalidParameter", "MalformedJson"), f"{code} for a request of the documented form"


def _has_fraction(value: Any) -> bool:
    """Whether a number in a body is written with a fraction."""
    if isinstance(value, dict):
        return any(map(_has_fraction, value.values()))
    return isinstance(value, float) or (isinstance(value, list) and any(map(_has_fraction, value)))

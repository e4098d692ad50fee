"""The rules as the resource that the Prometheus operator reads. `python -m tests.deploy.prometheus_rule` writes it anew."""

from __future__ import annotations

from pathlib import Path

PROMETHEUS = Path(__file__).parent.parent.parent / "deploy" / "prometheus"
RULES = PROMETHEUS / "rules.yaml"
RESOURCE = PROMETHEUS / "prometheus-rule.yaml"

_HEAD = """\
# Made of rules.yaml by `python -m tests.deploy.prometheus_rule`: change that one.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: copath
  labels:
    app.kubernetes.io/name: copath
spec:
"""


def wrapped() -> str:
    """The resource around the groups of rules.yaml, comments kept."""
    groups = RULES.read_text().partition("\ngroups:\n")[2]
    lines = [f"  {line}" if line else "" for line in ("groups:", *groups.splitlines())]
    return _HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    RESOURCE.write_text(wrapped())

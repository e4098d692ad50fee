"""`python -m app.metrics` writes the table of all metrics, in Markdown: the one in the README, which a test compares."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from prometheus_client.metrics import MetricWrapperBase

from app.metrics.collectors import Metrics


def table(metrics: Metrics) -> Iterator[str]:
    """A line for each metric, in the order in which they are exposed."""
    labels: dict[str, tuple[str, ...]] = {}
    for collector in vars(metrics).values():
        if isinstance(collector, MetricWrapperBase):
            # The library gives the names of labels away nowhere else, as long as there is no sample.
            labels[next(iter(collector.describe())).name] = collector._labelnames
    yield "| metric | type | labels | what it tells |"
    yield "|---|---|---|---|"
    for family in metrics.registry.collect():
        if family.name in labels:  # the others are the client library's own, and differ between systems
            name = f"{family.name}_total" if family.type == "counter" else family.name
            named = ", ".join(f"`{label}`" for label in labels[family.name])
            yield f"| `{name}` | {family.type} | {named} | {family.documentation} |"


def main() -> None:
    """Writes it."""
    sys.stdout.write("\n".join(table(Metrics())) + "\n")


if __name__ == "__main__":
    main()

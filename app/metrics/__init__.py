"""Every number this process exposes, each named once.

One `Metrics` belongs to one registry; nothing here is global, so two servers in one process (and every test) count apart.

* Names begin with `copath_`; counters end in `_total`; time is in seconds, sizes in bytes. An attribute bears the metric's name
  without the prefix: `metrics.fill_total.labels(chain="ethereum", **{"class": "request"}, result="ok").inc()`.
* Label values come from the closed sets below or from the configuration (`chain`, `upstream`, `name`); a hash, an API key, a
  raw path or a message is never one. What belongs to no chain, because the request named none that is configured, carries
  `NO_CHAIN`; Prometheus treats an empty label as absent.
* Counters and gauges stand at 0 before anything happens, so that a rate or an alert sees the first event: `register_chain`,
  `register_routes` and `register_task` lay the series whose labels only the configuration knows. Histograms of durations are not
  seeded: what was never measured took no time at all only in a diagram.

One process serves one registry: the client library's multi-process mode is refused when the settings are read.
"""

from __future__ import annotations

from prometheus_client import Counter, Histogram

from app.metrics.collectors import Metrics
from app.metrics.growing import Growing
from app.metrics.labels import NO_CHAIN, OUTCOMES

__all__ = ["NO_CHAIN", "OUTCOMES", "Counter", "Growing", "Histogram", "Metrics"]

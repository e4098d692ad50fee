"""What a scrape is answered with: Prometheus text, or OpenMetrics for whoever asks for it.

https://prometheus.io/docs/instrumenting/content_negotiation/
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

# Formats that the encoder knows; a scraper that offers others as well is answered in one of these.
_KNOWN_VERSIONS = {
    "application/openmetrics-text": {"", "1.0.0"},
    "text/plain": {"", "0.0.4", "1.0.0"},
}
_ESCAPINGS = {"allow-utf-8", "underscores", "dots", "values"}
_WHATEVER = {"*/*", "text/*", "text/plain"}
_MOST_OFFERS = 32
"""Formats of a header, and parameters of a format, that are read."""
_END = b"# EOF\n"  # of OpenMetrics


def expose(registry: CollectorRegistry, accept_header: str | None) -> tuple[Iterator[bytes], str]:
    """The body in parts, one for each metric as it is at that moment, and the content type. Whatever the header holds, the two
    agree, and it never raises."""
    encode, content_type = choose_encoder(_wanted(accept_header or ""))
    return _parts(registry, encode, is_open=content_type.startswith("application/openmetrics-text")), content_type


def _parts(registry: CollectorRegistry, encode: Callable[[_One], bytes], *, is_open: bool) -> Iterator[bytes]:
    for family in registry.collect():
        # Without the `_created` series: a third of a scrape, each the time of a start that is exposed once.
        family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
        part = encode(_One(family))
        yield part.removesuffix(_END) if is_open else part
    if is_open:
        yield _END


class _One(Collector):
    """The encoder takes collectors only."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def _wanted(accept_header: str) -> str:
    """The one format of the header that is known and preferred, spelt as the encoder expects it; "" for plain text.

    The encoder takes the first offer that it likes: it ignores q-values, and a version that is no number makes it raise."""
    offers: list[tuple[float, str]] = []
    for offer in accept_header.lower().split(",", _MOST_OFFERS)[:_MOST_OFFERS]:
        media, *rest = (part.strip() for part in offer.split(";", _MOST_OFFERS)[:_MOST_OFFERS])
        parameters = {key.strip(): value.strip().strip('"') for key, _, value in (part.partition("=") for part in rest)}
        quality = parameters.get("q", "1")
        weight = float(quality) if re.fullmatch(r"[0-9]{1,3}(\.[0-9]{0,3})?", quality) else 0.0
        version = parameters.get("version", "")
        if weight > 0 and version in _KNOWN_VERSIONS.get(media, {""}):
            escaping = parameters.get("escaping", "")
            suffix = f";escaping={escaping}" if version == "1.0.0" and escaping in _ESCAPINGS else ""
            offers.append((weight, f"{media};version={version}{suffix}" if version else media))
    for _, offer in sorted(offers, key=lambda pair: -pair[0]):
        if offer.startswith(("application/openmetrics-text", "text/plain;version=1")):
            return offer
        if offer.partition(";")[0] in _WHATEVER:
            break
    return ""

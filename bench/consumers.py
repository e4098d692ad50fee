"""Two consumers with a rate each, of whom one asks at fifty times of his: what the other sees of it.

Both ask for known answers. The one stays within his rate, first alone and then beside the other; latencies are his.
"""

from __future__ import annotations

from bench.overload.load import Tally
from bench.overload.site import NEWEST, TRANSACTIONS, Site, receipts_of, serving, tally_of
from bench.timing import ms, percentile

RATE_PER_S, BURST = 20, 60
ASKED_PER_S, FLOOD_PER_S = 10, 50 * RATE_PER_S
SECONDS = 15.0
KNOWN = ("--heights", str(NEWEST - 15), str(NEWEST + 1), "--items", str(TRANSACTIONS))
CONSUMERS = {
    "pepper": "a pepper of benchmarks",
    "trusted_proxies": ["127.0.0.1/32"],
    "rate": {"enabled": True, "per_second": RATE_PER_S, "burst": BURST},
}


def run() -> list[tuple[str, str, str]]:
    """Rows of the table."""
    with serving(cache_bytes=2**28, consumers=CONSUMERS) as site:
        _ask(site, "10.9.9.9", ASKED_PER_S, 6.0)  # every block is at hand from here on
        alone = _ask(site, "10.1.1.1", ASKED_PER_S, SECONDS)
        used = site.cpu_s
        flood = site.start_load(SECONDS + 2, f"--rate={FLOOD_PER_S}", "--header=x-forwarded-for: 10.2.2.2", *_what())
        beside = _ask(site, "10.1.1.1", ASKED_PER_S, SECONDS)
        flooded = tally_of(flood)
        cpu_s = site.cpu_s - used
    refused = flooded.others.get("429", 0)
    p50, p99 = (percentile(alone.served, share) for share in (0.5, 0.99))
    return [
        ("floor: p50, alone", ms(p50), "1"),
        ("p50, beside the other", ms(percentile(beside.served, 0.5)), f"{percentile(beside.served, 0.5) / p50:.2f}"),
        ("floor: p99, alone", ms(p99), "1"),
        ("p99, beside the other", ms(percentile(beside.served, 0.99)), f"{percentile(beside.served, 0.99) / p99:.2f}"),
        ("served of those asked, beside the other", f"{len(beside.served)} of {_asked(beside)}", ""),
        (f"of the other, {FLOOD_PER_S}/s: refused with 429", f"{refused} of {_asked(flooded)}", ""),
        ("processor time of the server for one request of the other", ms(cpu_s / _asked(flooded)), ""),
    ]


def _what() -> tuple[str, ...]:
    return (*receipts_of(1), *KNOWN)


def _ask(site: Site, who: str, rate: float, seconds: float) -> Tally:
    return site.run_load(seconds, f"--rate={rate}", f"--header=x-forwarded-for: {who}", *_what())


def _asked(tally: Tally) -> int:
    return len(tally.served) + len(tally.refused) + sum(tally.others.values()) + tally.unsent

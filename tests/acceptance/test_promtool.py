"""What a running server exposes, judged by Prometheus's own tool, and by the client library where that tool cannot read."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from tests.acceptance.server import Copath, chain, running_copath, running_demo
from tests.acceptance.waiting import until

RECEIPT = "/api/v1/proofs/samples-ethereum/receipts/0x7cdcd8a640dd62ae6a697b8f7ed682bb151ba5b6e1abbff56e57af1afd52cc86"


@pytest.fixture(scope="module", params=["our names", "compat names too"])
def scraped(request: pytest.FixtureRequest) -> Iterator[Copath]:
    """A server that has answered, refused and filled, so that histograms have samples."""
    chosen = chain(1, "samples-ethereum", 1, "demo://samples-ethereum")
    plain = request.param == "our names"
    with running_demo() if plain else running_copath(chosen, metrics={"compat_names": True}) as copath:
        until(lambda: copath.get(RECEIPT).status == 200, "a first proof")
        for path in ("/nowhere", "/api/v1/proofs/none/receipts/0x00", "/api/v1/health", "/api/v1/chains"):
            copath.get(path)
        copath.client.send("HEAD", RECEIPT)
        assert ("proof_gen_" in exposition(copath, "text/plain")) != plain
        yield copath


def exposition(copath: Copath, accept: str) -> str:
    answer = copath.client.send("GET", "/metrics", headers={"Accept": accept})
    assert answer.status == 200
    return answer.body.decode()


@pytest.mark.parametrize("accept", ["text/plain;version=0.0.4", "text/plain;version=1.0.0;escaping=underscores"])
def test_B69_promtool_has_nothing_to_say(scraped: Copath, accept: str) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian and Ubuntu: apt-get install prometheus)")
    text = exposition(scraped, accept)
    judged = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    assert (judged.returncode, judged.stdout, judged.stderr) == (0, "", "")


def test_B69_openmetrics_which_promtool_does_not_read_is_well_formed(scraped: Copath) -> None:
    text = exposition(scraped, "application/openmetrics-text;version=1.0.0")
    families = {family.name for family in parse_openmetrics(text)}
    assert {"copath_http_requests", "copath_fill_duration_seconds"} <= families

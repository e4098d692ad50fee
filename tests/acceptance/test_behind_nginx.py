"""Copath behind nginx as it is shipped: what is final is asked for once, and what is not never outlives its time in the cache."""

from __future__ import annotations

import email.utils
import gzip
import re
import time
from collections.abc import Callable, Iterator

import pytest

from tests.acceptance.recorded_node import RecordedChain, RecordedNode
from tests.acceptance.server import Answer, Client, Copath, chain, running_copath
from tests.acceptance.waiting import until
from tests.chain.recorded_chain import BUSY, SEPOLIA, branch, sepolia
from tests.deploy.nginx_proxy import CONFIGURATION, Nginx, running_nginx

pytestmark = pytest.mark.xdist_group("behind-nginx")  # its servers are started once

KEY = 7
GENESIS = BUSY - 1
FIRST, LAST = GENESIS, BUSY + 12
IMMUTABLE = "public, max-age=31536000, immutable"


@pytest.fixture(scope="module")
def source(node: RecordedNode) -> RecordedChain:
    """Final up to BUSY + 2, where the second anchor stands."""
    made = node.chains["behind-nginx"] = RecordedChain(SEPOLIA, map(sepolia, range(FIRST, LAST + 1)))
    made.finalized = GENESIS + 2
    return made


@pytest.fixture(scope="module")
def copath(node: RecordedNode, source: RecordedChain) -> Iterator[Copath]:
    anchors = {"source": "self", "genesis": GENESIS, "interval": 2, "checkpoint_every": 2}
    with running_copath(chain(KEY, "sepolia", SEPOLIA, node.url("behind-nginx"), anchors=anchors)) as running:
        attested = f"/api/v1/attested-height/{KEY}"
        until(lambda: running.get(attested).json["attestedHeight"] == GENESIS + 2, "the first anchor")
        yield running


@pytest.fixture(scope="module")
def nginx(copath: Copath) -> Iterator[Nginx]:
    with running_nginx(copath.port) as running:
        yield running


@pytest.fixture
def asked(copath: Copath) -> Callable[[], dict[str, float]]:
    """How many requests for proofs reached Copath since this was called last, by class of status."""
    seen: dict[str, float] = {}

    def count() -> dict[str, float]:
        grown = {}
        for status_class in ("2xx", "3xx", "4xx", "5xx"):
            total = sum(
                copath.metric("copath_http_requests_total", method="GET", route=route, status_class=status_class)
                for route in ROUTES
            )
            if total > seen.get(status_class, 0):
                grown[status_class] = total - seen.get(status_class, 0)
            seen[status_class] = total
        return grown

    count()
    return count


ROUTES = (
    "/api/v1/proofs/{chain}/receipts/{tx_hash}",
    "/api/v1/proofs/{chain}/blocks/{block}/receipts/{i}",
    "/api/v1/proof/{chain_key}/{header_number}/{tx_index}",
)


def by_hash(height: int, index: int = 0) -> str:
    return f"/api/v1/proofs/{KEY}/blocks/{sepolia(height)['block']['hash']}/receipts/{index}?e=1"


def by_transaction(height: int, index: int) -> str:
    return f"/api/v1/proofs/{KEY}/receipts/{sepolia(height)['block']['transactions'][index]['hash']}"


def with_transactions(first: int) -> int:
    """The first height from `first` on whose block holds a transaction."""
    return next(height for height in range(first, LAST) if sepolia(height)["block"]["transactions"])


def cache_status(answer: Answer) -> str:
    return answer.headers["cache-status"].removeprefix("nginx; ")


# --- final --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [by_hash(BUSY), by_transaction(BUSY, 1)], ids=["by-hash", "by-transaction"])
def test_the_second_request_for_a_final_proof_never_reaches_copath(
    copath: Copath, nginx: Nginx, asked: Callable[[], dict[str, float]], path: str
) -> None:
    first, second = nginx.client.get(path), nginx.client.get(path)
    assert (first.status, second.status) == (200, 200)
    assert asked() == {"2xx": 1}
    assert (cache_status(first), cache_status(second)) == ("fwd=uri-miss", "hit")
    assert (second.body, second.headers["etag"]) == (first.body, first.headers["etag"])
    unchanged = nginx.client.send("GET", path, headers={"If-None-Match": first.headers["etag"]})
    headed = nginx.client.send("HEAD", path)
    assert (unchanged.status, headed.status, headed.body) == (304, 200, b"")
    assert headed.headers["etag"] == first.headers["etag"]
    assert asked() == {}
    assert second.body == copath.get(path).body
    assert re.fullmatch(r"public, max-age=(60|31536000, immutable)", second.headers["cache-control"])


def test_the_key_of_the_cache_holds_all_that_answers_vary_by(copath: Copath) -> None:
    """nginx is told not to look at Vary."""
    (key,) = re.findall(r'proxy_cache_key "([^"]+)";', CONFIGURATION.read_text())
    held = {"Accept-Encoding": "$copath_encoding", "Origin": "$http_origin"}
    refused = f"/api/v1/proofs/{KEY}/receipts/0x00"
    for path in (by_hash(BUSY), by_transaction(BUSY, 1), refused, f"{refused[:-2]}{'ab' * 32}"):
        for method, headers in (("GET", {}), ("HEAD", {}), ("GET", {"Origin": "https://a.example"})):
            varies = copath.client.send(method, path, headers=headers).headers["vary"].split(", ")
            assert not [name for name in varies if held[name] not in key], (path, varies)


def test_each_encoding_is_kept_once_under_its_own_tag(nginx: Nginx, asked: Callable[[], dict[str, float]]) -> None:
    path = by_hash(BUSY, 2)
    plain = nginx.client.get(path)
    for spelling in ("gzip, deflate, br", "gzip", "br;q=1.0, gzip;q=0.8, *;q=0.1"):
        packed = nginx.client.send("GET", path, headers={"Accept-Encoding": spelling})
        assert packed.headers["content-encoding"] == "gzip"
        assert gzip.decompress(packed.body) == plain.body
        assert packed.headers["etag"] != plain.headers["etag"]
        headers = {"Accept-Encoding": spelling, "If-None-Match": packed.headers["etag"]}
        assert nginx.client.send("GET", path, headers=headers).status == 304
    assert nginx.client.send("GET", path, headers={"Accept-Encoding": "gzip;q=0"}).body == plain.body
    assert asked() == {"2xx": 2}


# --- not final yet ------------------------------------------------------------------------------------------------------


def test_a_proof_that_is_not_final_is_asked_for_again_by_its_tag(
    nginx: Nginx, asked: Callable[[], dict[str, float]]
) -> None:
    path = by_hash(with_transactions(BUSY + 3))
    first = nginx.client.get(path)
    assert re.fullmatch(r"public, max-age=[12]", first.headers["cache-control"])
    assert first.json["finality"]["level"] == "latest"
    asked()
    again = until(
        lambda: (answer := nginx.client.get(path)) and cache_status(answer) != "hit" and answer, "its age to pass"
    )
    assert cache_status(again) == "fwd=stale; fwd-status=304"
    assert again.body == first.body
    assert asked() == {"3xx": 1}


@pytest.mark.parametrize("of", ["hash", "height", "transaction"])
def test_after_a_reorg_no_stale_proof_outlives_its_age(nginx: Nginx, source: RecordedChain, of: str) -> None:
    height = with_transactions(BUSY + 3)
    original = sepolia(height)
    path = (
        {
            "hash": by_hash(height),
            "height": f"/api/v1/proofs/{KEY}/blocks/{height}/receipts/0",
            "transaction": by_transaction(height, 0),
        }[of]
        + ("&" if of == "hash" else "?")
        + f"of={of}"
    )
    stale = until(lambda: (answer := nginx.client.get(path)).status == 200 and answer, "the proof of the first fork")
    assert stale.json["blockHash"] == original["block"]["hash"]
    age_s = int(re.fullmatch(r"public, max-age=([0-9]+)", stale.headers["cache-control"])[1])  # type: ignore[index]
    try:
        for record in branch(height, [original], fork="0x" + of.encode().hex()):
            source.add(record)
        while (answer := nginx.client.get(path)).body == stale.body:
            # Only a copy from before, and only as long as it was told to be kept: Copath itself does not confirm it any more.
            assert cache_status(answer) == "hit"
            made_at = email.utils.parsedate_to_datetime(answer.headers["date"]).timestamp()
            assert (
                time.time() - made_at < age_s + 2
            )  # the header tells whole seconds, and nginx looks at its clock now and then
            time.sleep(0.05)
        if of == "hash":
            assert (answer.status, answer.headers["cache-control"]) == (404, "no-store")
        else:
            assert answer.status == 200
            assert answer.json["blockHash"] != original["block"]["hash"]
    finally:
        source.add(original)


# --- usc ----------------------------------------------------------------------------------------------------------------


def test_no_cache_serves_a_usc_proof_whose_anchor_was_retired(
    copath: Copath, nginx: Nginx, source: RecordedChain, asked: Callable[[], dict[str, float]]
) -> None:
    path = f"/api/v1/proof/{KEY}/{BUSY}/0"
    under_attestation = nginx.client.get(path)
    assert under_attestation.status == 200
    assert under_attestation.headers["cache-control"] == "public, no-cache"  # when the next anchor comes is not known
    tag = under_attestation.headers["etag"]
    assert tag.startswith('W/"')
    asked()
    assert nginx.client.get(path).headers["etag"] == tag
    assert nginx.client.send("GET", path, headers={"If-None-Match": tag}).status == 304
    assert asked() == {"2xx": 1, "3xx": 1}, "nothing of it is kept in between"
    source.finalized = GENESIS + 4  # a checkpoint, which retires the attestation below
    attested = f"/api/v1/attested-height/{KEY}"
    until(lambda: copath.get(attested).json["attestedHeight"] == GENESIS + 4, "the checkpoint")
    after = nginx.client.send("GET", path, headers={"If-None-Match": tag})
    assert after.status == 200
    assert after.headers["etag"] != tag
    roots = [each.json["continuityProof"]["roots"] for each in (under_attestation, after)]
    assert len(roots[1]) == len(roots[0]) + 2


# --- replicas -----------------------------------------------------------------------------------------------------------


def test_final_proofs_are_the_same_bytes_from_every_replica_and_after_a_restart(
    node: RecordedNode, copath: Copath, source: RecordedChain
) -> None:
    paths = [by_hash(BUSY, index) for index in (0, 1, 2)]
    paths += [path.replace("/receipts/", "/transactions/") for path in paths]

    def answers(port: int) -> list[tuple[int, bytes, str, str]]:
        client = Client(port)
        try:
            got = [
                client.send("GET", path, headers={"Accept-Encoding": coding})
                for path in paths
                for coding in ("identity", "gzip")
            ]
        finally:
            client.close()
        return [(each.status, each.body, each.headers["etag"], each.headers["cache-control"]) for each in got]

    expected = answers(copath.port)
    assert {each[0] for each in expected} == {200}
    assert {each[3] for each in expected} == {IMMUTABLE}
    for _ in range(2):  # another replica; and the same one started anew
        with running_copath(chain(KEY, "sepolia", SEPOLIA, node.url("behind-nginx"))) as other:
            chains = f"/api/v1/chains/{KEY}"
            until(lambda: other.get(chains).json["finalized"] is not None, "the finalized height")  # noqa: B023 - called at once
            assert answers(other.port) == expected

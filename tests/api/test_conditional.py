"""Validators: when a client is told that it has the answer already."""

from __future__ import annotations

import httpx2
import pytest
from starlette.datastructures import Headers

from app.api import conditional
from tests.api.fakes import RecordedHouse

TAG = '"0123456789abcdef"'


@pytest.mark.parametrize(
    "lines",
    [
        [TAG],
        ["*"],
        [" * "],
        [f"W/{TAG}"],
        [f'"other", {TAG}'],
        [f'"a,b" ,W/"x",\tW/{TAG}'],
        ['"other"', TAG],
        [f"garbage, {TAG}"],
    ],
)
def test_B70_if_none_match_names_the_tag(lines: list[str]) -> None:
    headers = Headers(raw=[(b"if-none-match", line.encode()) for line in lines])
    assert conditional.matches(headers, TAG)
    assert conditional.matches(headers, f"W/{TAG}")


@pytest.mark.parametrize(
    "lines", [[], [""], ['"other"'], [TAG.strip('"')], [TAG[:-1]], ['W/"', TAG[1:-1] + '"'], ['"*"']]
)
def test_B70_if_none_match_names_something_else(lines: list[str]) -> None:
    headers = Headers(raw=[(b"if-none-match", line.encode()) for line in lines])
    assert not conditional.matches(headers, TAG)


def test_tags_are_quoted_and_tell_contents_apart() -> None:
    assert conditional.strong_tag(b"a").startswith('"')
    assert conditional.strong_tag(b"a") == conditional.strong_tag(b"a") != conditional.strong_tag(b"b")
    assert conditional.weak_tag(b"ab", b"c").startswith('W/"')
    assert conditional.weak_tag(b"ab") != conditional.weak_tag(b"ba")


@pytest.mark.parametrize(
    "path", ["/api/v1/proofs/modern/blocks/19426587/receipts/3", "/api/v1/proof/2/1000004/0", "/docs/swagger-ui.css"]
)
async def test_B70_a_304_has_the_headers_of_the_200_and_no_body(
    client: httpx2.AsyncClient, house: RecordedHouse, path: str
) -> None:
    full = await client.get(path)
    tag = full.headers["etag"]
    looked_up = [list(chain.looked_up) for chain in house.served]
    for condition in (tag, f"W/{tag.removeprefix('W/')}", f'"other", {tag}', "*"):
        for method in ("GET", "HEAD"):
            same = await client.request(method, path, headers={"If-None-Match": condition})
            assert (same.status_code, same.content) == (304, b"")
            for name in ("etag", "cache-control", "vary", "content-location"):
                assert same.headers.get(name) == full.headers.get(name), name
    changed = await client.get(path, headers={"If-None-Match": '"other"'})
    assert (changed.status_code, changed.headers["etag"]) == (200, tag)
    assert [list(chain.looked_up) for chain in house.served] == looked_up

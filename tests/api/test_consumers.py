"""Consumers at the door of the whole application: who is told apart by what, who is refused and what that costs, and what the
answers say of it."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from app.api.consumers import Consumers, Toll, fields_of
from app.api.visit import RouteSign, Visit, begin
from app.asgi import create_app
from app.core.bucket import Decision, Layer, Rate, Tab
from app.core.consumers import Pepper, Proxies, id_in
from app.core.lasting import StoreUnavailable
from app.metrics import Metrics
from app.settings import ConsumerSettings, Settings, SettingsError, load_settings
from app.settings.models import CorsSettings, RateSettings
from app.store.rates import Rates
from tests.api.exchanges import Asked, Exchange, asked
from tests.api.fakes import RecordedHouse
from tests.api.test_admission import at, by_tx, nth, seen
from tests.chain.recorded_chain import BUSY, RecordedChain
from tests.fakes import ManualClock, settle
from tests.store.test_rates import MadeBuckets

PEPPER = "a pepper for the tests of doors"
KEY = f"copath_0123456789ab_{'5e' * 32}"
OTHER_KEY = f"copath_ba9876543210_{'5e' * 32}"
HERE = "203.0.113.7"
THERE = "198.51.100.9"
NEVER_COUNTED = ("/livez", "/readyz", "/health", "/metrics", "/docs", "/api/v1/chains", "/api/v1/attested-height/7")


def settings_of(rate: tuple[float, int] | None = None, **more: Any) -> ConsumerSettings:
    limits = RateSettings() if rate is None else RateSettings(enabled=True, per_second=rate[0], burst=rate[1])
    return ConsumerSettings(pepper=PEPPER, rate=limits, **more)


class Known:
    """The keys that count, without a database. `counted` is how often one was looked for there."""

    def __init__(self, *keys: str, known: bool = True) -> None:
        self.keys = set(keys)
        self.known = known
        self.awaited = False
        self.fresh: set[str] = set()
        self.counted = 0

    def verified(self, key: str) -> str | None:
        return id_in(key) if key in self.keys else None

    async def looked_up(self, key: str) -> str | None:
        self.counted += 1
        self.keys |= self.fresh
        return self.verified(key)


@asynccontextmanager
async def doors_of(
    chosen: ConsumerSettings, recorded: RecordedChain | None = None, keys: Known | None = None, **limits: Any
) -> AsyncIterator[tuple[Asked, MadeBuckets]]:
    recorded = await seen() if recorded is None else recorded
    async with asked(recorded, consumers=chosen, **limits) as doors:
        doors.house.keys = keys  # type: ignore[assignment]  # as much of it as the doors ask
        buckets = MadeBuckets(Rate(1.0, 1), recorded.clock)
        if not chosen.rate.enabled:
            yield doors, buckets
            return
        rate = Rate(chosen.rate.per_second, chosen.rate.burst)
        buckets = MadeBuckets(rate, recorded.clock)
        doors.house.rates = Rates(rate, buckets, doors.house.metrics, recorded.clock.now)
        running = asyncio.create_task(doors.house.rates.run())
        await settle()
        try:
            yield doors, buckets
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def bearer(key: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", f"Bearer {key}".encode())]


async def codes(*exchanges: Exchange) -> list[str | int | None]:
    return [
        each.status if each.status == 200 else each.code
        for each in await asyncio.gather(*(_ended(e) for e in exchanges))
    ]


async def _ended(exchange: Exchange) -> Exchange:
    return await exchange


def limit_fields(exchange: Exchange) -> dict[str, tuple[int, ...]]:
    """`RateLimit-Policy` as (q, w), `RateLimit` as (r, t) or (r,), `Retry-After`."""
    read: dict[str, tuple[int, ...]] = {}
    for name in ("ratelimit-policy", "ratelimit", "retry-after"):
        text = exchange.headers.get(name)
        if text is not None:
            read[name] = tuple(int(number) for number in re.findall(r"\d+", text))
    return read


# --- off ------------------------------------------------------------------------------------------------------------


def layers_of(chosen: ConsumerSettings) -> list[type]:
    app = create_app(Settings.model_construct(cors=CorsSettings(), consumers=chosen))
    routes: Any = app.app.app.app.direct  # type: ignore[attr-defined]  # Observe, Cors, Guard, Bypass
    return [layer.cls for layer in routes.user_middleware if layer.cls in (Consumers, Toll)]


@pytest.mark.parametrize(
    ("chosen", "layers"),
    [
        (ConsumerSettings(), []),
        (ConsumerSettings(trusted_proxies=("10.0.0.0/8",), expected_replicas=3), []),
        (ConsumerSettings(max_in_flight=8), [Consumers]),
        (ConsumerSettings(pepper=PEPPER), [Consumers]),
        (settings_of((1.0, 1)), [Consumers, Toll]),
    ],
)
def test_R5_where_nothing_is_limited_no_layer_is_there(chosen: ConsumerSettings, layers: list[type]) -> None:
    assert layers_of(chosen) == layers


async def test_R5_where_nothing_is_limited_nobody_is_asked_and_nothing_said() -> None:
    async with doors_of(ConsumerSettings(), keys=(keys := Known(KEY))) as (doors, buckets):
        served = await doors.ask(by_tx(), headers=bearer("whatever"))
        assert served.status == 200
        assert limit_fields(served) == {}
        assert (keys.counted, buckets.asked) == (0, [])


@pytest.mark.parametrize(
    ("consumers", "said"),
    [
        ("rate: {enabled: true, burst: 0}", "burst: must be above 0"),
        ("rate: {enabled: true, per_second: -1}", "per_second: must be above 0"),
        ("rate: {enabled: true, per_second: .nan}", "per_second: must be a finite number"),
        ("rate: {enabled: true, per_second: .inf}", "per_second: must be a finite number"),
        ("rate: {enabled: true, per_second: 1.0e-308}", "per_second: must be greater than or equal to 0.00001"),
        ("rate: {enabled: true, per_second: 1.0e+300}", "per_second: must be less than or equal to 1000000"),
        ("rate: {enabled: true, burst: 9000000000000000000}", "burst: must be less than or equal to 1000000000"),
        ("max_in_flight: 0", "max_in_flight: must be above 0"),
        ("expected_replicas: 0", "expected_replicas: must be above 0"),
        ("api_keys_required: true", "consumers.api_keys_required: needs consumers.pepper"),
        ("rate: {enabled: true}", "consumers.rate.enabled: needs consumers.pepper"),
    ],
)
def test_R5_a_limit_that_allows_nothing_or_anything_is_refused_at_the_start(
    tmp_path: Any, consumers: str, said: str
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"consumers: {{{consumers}}}\nchains: [{{chain_key: 1, eth_rpc_url: 'http://node.example'}}]\n")
    with pytest.raises(SettingsError, match=re.escape(said)):
        load_settings(str(file), {})


# --- who asks -------------------------------------------------------------------------------------------------------


async def test_networks_are_told_apart_and_a_header_of_the_client_makes_nobody_new() -> None:
    async with doors_of(settings_of((0.001, 2))) as (doors, buckets):
        spoofed = [
            doors.ask(by_tx(), client=HERE, headers=[(b"x-forwarded-for", f"192.0.2.{n}".encode())]) for n in range(4)
        ]
        assert sorted(map(str, await codes(*spoofed))) == ["200", "200", "ConsumerRateLimited", "ConsumerRateLimited"]
        assert await codes(doors.ask(by_tx(), client=THERE)) == [200]
        assert len({consumer for consumer, _ in buckets.asked}) == 2


async def test_behind_a_trusted_proxy_its_clients_are_told_apart() -> None:
    chosen = settings_of((0.001, 1), trusted_proxies=("10.0.0.0/8",))
    async with doors_of(chosen) as (doors, _):

        def through_the_proxy(forwarded: str) -> Exchange:
            return doors.ask(by_tx(), client="10.1.2.3", headers=[(b"x-forwarded-for", forwarded.encode())])

        assert await codes(through_the_proxy(HERE)) == [200]
        assert await codes(through_the_proxy(f"{THERE}, {HERE}")) == ["ConsumerRateLimited"]
        assert await codes(through_the_proxy(THERE)) == [200]
        assert await codes(through_the_proxy("2001:db8::1")) == [200]
        assert await codes(through_the_proxy("2001:db8::2")) == ["ConsumerRateLimited"]


@pytest.mark.parametrize("how", ["authorization", "x-api-key"])
async def test_a_verified_key_is_a_consumer_wherever_it_comes_from(how: str) -> None:
    async with doors_of(settings_of((0.001, 1)), keys=Known(KEY)) as (doors, _):
        shown = [(how.encode(), KEY.encode() if how == "x-api-key" else f"bearer  {KEY}".encode())]
        assert await codes(doors.ask(by_tx(), client=HERE, headers=shown)) == [200]
        assert await codes(doors.ask(by_tx(), client=THERE, headers=shown)) == ["ConsumerRateLimited"]
        assert await codes(doors.ask(by_tx(), client=HERE)) == [200], "who has no key is somebody else"


async def test_what_is_no_verified_key_is_nobody_new() -> None:
    """However many made-up credentials: one bucket, one row."""
    async with doors_of(settings_of((0.001, 2)), keys=Known(KEY)) as (doors, buckets):
        tried = [
            doors.ask(by_tx(), client=HERE, headers=bearer(f"copath_{number:012x}_{'ab' * 32}")) for number in range(6)
        ]
        assert sorted(map(str, await codes(*tried)))[:2] == ["200", "200"]
        assert {consumer for consumer, _ in buckets.asked} == {Pepper(PEPPER.encode()).name_of_network(HERE)}


async def test_a_client_that_shows_a_thousand_keys_is_asked_for_two() -> None:
    keys = Known(KEY)
    async with doors_of(settings_of(), keys=keys) as (doors, _):
        assert await codes(doors.ask(by_tx(), headers=bearer(OTHER_KEY) * 1000)) == [200]
        assert keys.counted == 2
        assert await codes(doors.ask(by_tx(), headers=[*bearer(OTHER_KEY), (b"x-api-key", KEY.encode())])) == [200]
        assert keys.counted == 2


async def test_where_keys_are_required_nobody_is_served_without_one() -> None:
    chosen = settings_of(api_keys_required=True)
    async with doors_of(chosen, keys=Known(KEY)) as (doors, _):
        without = await doors.ask(by_tx())
        assert (without.status, without.code) == (401, "Unauthorized")
        assert without.headers["www-authenticate"] == 'Bearer realm="copath"'
        assert without.headers["content-type"] == "application/problem+json"
        assert "retry-after" not in without.headers
        refused = ("", "nonsense", OTHER_KEY, "x" * 10_000)
        assert await codes(*(doors.ask(by_tx(), headers=bearer(key)) for key in refused)) == ["Unauthorized"] * 4
        assert await codes(doors.ask(by_tx(), headers=[(b"authorization", b"Basic Og==")])) == ["Unauthorized"]
        assert await codes(doors.ask(by_tx(), headers=bearer(KEY))) == [200]
        for path in NEVER_COUNTED:
            assert (await doors.ask(path)).status in (200, 404), path
        assert doors.metric("proof_outcome_total", outcome="Unauthorized") == 6


async def test_what_takes_a_key_is_kept_by_no_cache_that_others_share() -> None:
    shown = bearer(KEY)
    async with doors_of(settings_of(api_keys_required=True), keys=Known(KEY)) as (doors, _):
        first = await doors.ask(by_tx(), headers=shown)
        immutable = await doors.ask(first.headers["content-location"], headers=shown)
        again = await doors.ask(by_tx(), headers=[*shown, (b"if-none-match", first.headers["etag"].encode())])
        kept = [answer.headers["cache-control"] for answer in (first, immutable, again)]
        assert kept == ["private, max-age=60", "private, max-age=31536000, immutable", "private, max-age=60"]
        assert again.status == 304
    async with doors_of(settings_of(), keys=Known(KEY)) as (doors, _):
        assert (await doors.ask(by_tx(), headers=shown)).headers["cache-control"] == "public, max-age=60"


async def test_a_key_that_was_made_a_moment_ago_counts() -> None:
    keys = Known()
    async with doors_of(settings_of(api_keys_required=True), keys=keys) as (doors, _):
        assert await codes(doors.ask(by_tx(), headers=bearer(KEY))) == ["Unauthorized"]
        keys.fresh = {KEY}
        assert await codes(doors.ask(by_tx(), headers=bearer(KEY))) == [200]
        counted = keys.counted
        assert await codes(doors.ask(by_tx(), headers=bearer(KEY))) == [200]
        assert keys.counted == counted


async def test_B76_keys_that_could_not_be_read_yet_are_no_reason_to_say_that_they_are_wrong() -> None:
    chosen = settings_of(api_keys_required=True)
    async with doors_of(chosen, keys=Known(known=False)) as (doors, _):
        refused = await doors.ask(by_tx(), headers=bearer(KEY))
        assert (refused.status, refused.code, refused.json["retriable"]) == (503, "Overloaded", True)
        assert int(refused.headers["retry-after"]) >= 1
        assert (await doors.ask(by_tx())).code == "Unauthorized"


async def test_what_a_verified_consumer_asks_for_is_not_anonymous() -> None:
    chain = await seen()
    async with doors_of(settings_of(), chain, keys=Known(KEY)) as (doors, _):
        assert await codes(doors.ask(nth(0), headers=bearer(KEY))) == [200]
        assert await codes(doors.ask(nth(1), headers=bearer(OTHER_KEY), client=HERE)) == [200]
    known, unknown = chain.upstream.errands["fetch"]
    pepper = Pepper(PEPPER.encode())
    assert (known.anonymous, known.consumer) == (False, pepper.name_of_key("0123456789ab"))
    assert (unknown.anonymous, unknown.consumer) == (True, pepper.name_of_network(HERE))


# --- how often ------------------------------------------------------------------------------------------------------


async def test_B71_over_the_rate_is_429_and_who_waits_as_told_is_served() -> None:
    async with doors_of(settings_of((0.5, 3))) as (doors, _):
        answers = [await doors.ask(by_tx(), client=HERE) for _ in range(5)]
        assert [each.status for each in answers] == [200, 200, 200, 429, 429]
        assert [limit_fields(each) for each in answers[:3]] == [
            {"ratelimit-policy": (3, 6), "ratelimit": (left, 3)} for left in (2, 1, 0)
        ]
        for refused in answers[3:]:
            assert (refused.code, refused.json["retriable"]) == ("ConsumerRateLimited", True)
            assert limit_fields(refused) == {"ratelimit-policy": (3, 6), "ratelimit": (0, 3), "retry-after": (3,)}
            assert refused.headers["cache-control"] == "no-store"
        doors.clock.move(3.0)
        assert (await doors.ask(by_tx(), client=HERE)).status == 200
        assert (await doors.ask(by_tx(), client=HERE)).status == 429


@pytest.mark.parametrize("per_second", [0.3, 1.0, 3.0, 20.0])
async def test_B71_whatever_the_rate_the_wait_is_enough(per_second: float) -> None:
    async with doors_of(settings_of((per_second, 2))) as (doors, _):
        for _ in range(5):
            while (answer := await doors.ask(by_tx(), client=HERE)).status == 200:
                pass
            (wait_s,) = limit_fields(answer)["retry-after"]
            assert wait_s >= 1
            assert limit_fields(answer)["ratelimit"] == (0, wait_s)
            doors.clock.move(wait_s)
            assert (await doors.ask(by_tx(), client=HERE)).status == 200


async def test_the_fields_are_those_of_one_draft() -> None:
    async with doors_of(settings_of((20.0, 60))) as (doors, _):
        served = await doors.ask(by_tx(), headers=[(b"origin", b"https://example.org")])
        assert served.headers["ratelimit-policy"] == '"default";q=60;w=3'
        assert served.headers["ratelimit"] == '"default";r=59;t=1'
        exposed = served.headers["access-control-expose-headers"]
        assert {"RateLimit", "RateLimit-Policy", "Retry-After"} <= set(re.split(r",\s*", exposed))
    never = fields_of(Rate(0.0, 5), Decision(False, 0, 3600.0, Layer.LOCAL))
    assert never == ((b"ratelimit-policy", b'"default";q=5'), (b"ratelimit", b'"default";r=0;t=3600'))


@pytest.mark.parametrize("per_second", [1e-5, 1e6])
@pytest.mark.parametrize("burst", [1, 10**9])
def test_whatever_rate_can_be_configured_the_fields_are_whole_numbers_that_others_can_read(
    per_second: float, burst: int
) -> None:
    """Of 15 digits at most: RFC 9651, 3.3.1."""
    chosen = RateSettings(enabled=True, per_second=per_second, burst=burst)
    rate = Rate(chosen.per_second, chosen.burst)
    for decision in (Decision(True, burst, rate.wait_s(0.0), Layer.LOCAL), Tab(rate, 0.0).alone(0.0, 1)):
        for _, field in fields_of(rate, decision):
            assert all(len(number) <= 15 for number in re.findall(r"\d+", field.decode()))


async def test_only_requests_for_proofs_count_and_probes_never() -> None:
    async with doors_of(settings_of((0.001, 1), max_in_flight=1)) as (doors, buckets):
        assert (await doors.ask(by_tx())).status == 200
        assert (await doors.ask(by_tx())).status == 429
        for path in NEVER_COUNTED:
            answer = await doors.ask(path)
            assert answer.status in (200, 404), path
            assert "ratelimit" not in answer.headers
        for path in ("/api/v1/proofs/nowhere/blocks/1/transactions/0", "/api/v1/proofs", "/nothing"):
            assert (await doors.ask(path)).status in (400, 404)
        assert (await doors.ask(by_tx(), method="OPTIONS")).status == 204
        assert len(buckets.asked) == 1


async def test_R9_who_finds_no_place_has_not_paid() -> None:
    chain = await seen()
    hold = chain.upstream.hold("fetch")
    async with doors_of(settings_of((0.001, 2)), chain, process=1, chain=1) as (doors, buckets):
        held = doors.ask(nth(0), client=THERE)
        await hold.reached()
        assert await codes(*(doors.ask(nth(1), client=HERE) for _ in range(5))) == ["Overloaded"] * 5
        assert {consumer for consumer, _ in buckets.asked} == {Pepper(PEPPER.encode()).name_of_network(THERE)}
        hold.release()
        await held
        assert await codes(*[doors.ask(by_tx(BUSY), client=HERE)]) == [200]


async def test_who_is_known_to_be_over_his_rate_takes_no_place() -> None:
    chain = await seen()
    async with doors_of(settings_of((0.001, 1)), chain, process=1, chain=1) as (doors, _):
        assert await codes(doors.ask(nth(0), client=HERE)) == [200]
        hold = chain.upstream.hold("fetch")
        held = doors.ask(nth(1), client=THERE)
        await hold.reached()
        assert await codes(doors.ask(nth(2), client=HERE)) == ["ConsumerRateLimited"]
        hold.release()
        await held


async def test_R7_a_rate_that_cannot_be_asked_limits_nobody_at_the_door() -> None:
    async with doors_of(settings_of((1.0, 100))) as (doors, buckets):
        buckets.fail("take", StoreUnavailable("down"), times=None)
        assert await codes(*(doors.ask(by_tx(), client=HERE) for _ in range(20))) == [200] * 20
        assert doors.metric("consumer_ratelimit_decisions_total", layer="fallback") == 20


async def test_acceptance_d_the_flood_of_one_changes_nothing_for_another() -> None:
    """One asks fifty times as often as he may; every request of the other, who keeps to the rate, is served."""
    async with doors_of(settings_of((2.0, 4), max_in_flight=8)) as (doors, buckets):
        quiet: list[Exchange] = []
        flood: list[Exchange] = []
        for _ in range(20):
            flood += [doors.ask(nth(n % 5), client=HERE) for n in range(50)]
            quiet.append(doors.ask(by_tx(), client=THERE))
            await settle(60)
            doors.clock.move(0.5)
        assert await codes(*quiet) == [200] * 20
        allowed = (await codes(*flood)).count(200)
        assert 4 <= allowed <= 4 + 2 * 10 + 1
        of_the_flood = [each for each, _ in buckets.asked if each == Pepper(PEPPER.encode()).name_of_network(HERE)]
        assert len(of_the_flood) <= 2 * allowed + 2


# --- how many at a time ---------------------------------------------------------------------------------------------


async def test_more_in_flight_than_one_may_have_are_refused_and_those_of_others_not() -> None:
    chain = await seen()
    hold = chain.upstream.hold("fetch")
    async with doors_of(ConsumerSettings(max_in_flight=2), chain) as (doors, _):
        mine = [doors.ask(nth(n), client=HERE) for n in range(2)]
        await hold.reached()
        refused = await doors.ask(nth(2), client=HERE)
        assert (refused.status, refused.code) == (429, "ConsumerConcurrency")
        assert int(refused.headers["retry-after"]) >= 1
        theirs = doors.ask(nth(3), client=THERE)
        await settle()
        hold.release()
        assert await codes(*mine, theirs) == [200] * 3
        assert await codes(doors.ask(nth(2), client=HERE)) == [200]
        assert doors.metric("admission_rejected_total", reason="consumer_concurrency") == 1


async def test_acceptance_d_a_flood_of_cold_requests_leaves_room_at_the_door() -> None:
    """Whatever the rate lets through at once, and without a cap on what one may have in flight."""
    chain = await seen()
    hold = chain.upstream.hold("fetch")
    async with doors_of(settings_of((20.0, 60)), chain, process=8, chain=8) as (doors, buckets):
        flood = [doors.ask(nth(n % 3), client=HERE) for n in range(20)]
        await settle()
        asked_before = len(buckets.asked)
        refused = await doors.ask(nth(3), client=HERE)
        assert (refused.status, refused.code) == (429, "ConsumerConcurrency")
        assert int(refused.headers["retry-after"]) >= 1
        assert len(buckets.asked) == asked_before, "R9: who gets no place does not pay"
        theirs = doors.ask(nth(3), client=THERE)
        await settle()
        hold.release()
        assert await codes(theirs) == [200]
        assert sorted(map(str, await codes(*flood))) == ["200"] * 6 + ["ConsumerConcurrency"] * 14
        assert doors.metric("admission_rejected_total", reason="consumer_concurrency") == 15
        assert doors.metric("admission_rejected_total", reason="chain_overloaded") == 0
        assert not doors.house.saturated


async def test_a_place_of_a_consumer_is_free_with_the_last_byte_and_after_any_end() -> None:
    chain = await seen()
    async with doors_of(ConsumerSettings(max_in_flight=1), chain) as (doors, _):
        for path in (nth(0), nth(1), by_tx()):  # served
            assert await codes(doors.ask(path, client=HERE)) == [200]
        hold = chain.upstream.hold("fetch")
        leaving = doors.ask(nth(4), client=HERE)  # hung up
        await hold.reached()
        leaving.hang_up()
        await settle()
        assert (await doors.ask("/api/v1/proofs/sepolia/transactions/nonsense", client=HERE)).status == 400
        slow = doors.ask(by_tx(), client=HERE)
        slow.unread = asyncio.Event()
        await settle(200)
        assert (await doors.ask(nth(0), client=HERE)).code == "ConsumerConcurrency"
        slow.unread.set()
        await slow.answered.wait()
        assert (await doors.ask(nth(0), client=HERE)).status == 200, "who has the whole answer may ask again"
        hold.release()


async def test_who_has_the_whole_answer_may_ask_again_whatever_the_routes_still_do() -> None:
    """As after a streamed answer: its last byte is out, and the route has not ended."""
    ended = asyncio.Event()

    async def route(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"1", "more_body": True})
        await send({"type": "http.response.body", "body": b"2"})
        await ended.wait()

    layer = Consumers(route, pepper=Pepper(b"-"), proxies=Proxies([]), keys_required=False, max_in_flight=1)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begin(scope, Visit("-", "GET", RouteSign("/api/v1/proofs/{chain}", frozenset({"GET"}))))
        await layer(scope, receive, send)

    first, second = (Exchange(app, {"house": RecordedHouse([])}, "/", client=HERE) for _ in range(2))
    await settle()
    assert second.answered.is_set()
    ended.set()
    await asyncio.gather(first.task, second.task)


def test_R10_what_is_said_of_limits_is_how_they_are() -> None:
    """In flight: each process by itself, as a layer counts. The rate: all together, as many as ask one database."""
    root = Path(__file__).parents[2]
    readme, example = (root / "README.md").read_text(), (root / "config.example.yaml").read_text()
    section = readme.partition("### Consumers")[2].partition("\n### ")[0]
    in_flight = re.search(r"\*\*Requests in flight\*\*.*", section)
    rate = re.search(r"\*\*A rate\*\*.*", section)
    assert in_flight is not None
    assert "in one process, not in all of them" in in_flight[0]
    assert rate is not None
    assert "shared by all replicas through the database" in rate[0]
    assert re.search(r"max_in_flight: null +# per consumer and process", example)
    assert re.search(r"rate: +# per consumer, over all replicas", example)
    assert "draft-ietf-httpapi-ratelimit-headers-10" in section

    async def nothing(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError

    def layer() -> Consumers:
        return Consumers(nothing, pepper=Pepper(b"-"), proxies=Proxies([]), keys_required=False, max_in_flight=1)

    assert None not in (layer()._enter("a"), layer()._enter("a"))


async def test_R10_processes_that_share_their_buckets_share_the_rate() -> None:
    clock = ManualClock().drive()
    rate = Rate(0.001, 6)
    buckets = MadeBuckets(rate, clock)
    processes = [Rates(rate, buckets, Metrics(CollectorRegistry()), clock.now) for _ in range(3)]
    running = [asyncio.create_task(each.run()) for each in processes]
    await settle()
    decisions = [await each.take("a") for _ in range(4) for each in processes]
    assert sum(each.allowed for each in decisions) == 6
    for each in running:
        each.cancel()
    await asyncio.gather(*running, return_exceptions=True)


# --- what a refusal costs -------------------------------------------------------------------------------------------


@pytest.fixture
def quiet_log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO):
        yield caplog


async def test_acceptance_d_a_refusal_asks_nobody_and_costs_less_than_a_millisecond(
    quiet_log: pytest.LogCaptureFixture,
) -> None:
    async with doors_of(settings_of((0.001, 1))) as (doors, buckets):
        assert (await doors.ask(by_tx(), client=HERE)).status == 200
        asked_before = len(buckets.asked)
        best_s = float("inf")
        for _ in range(5):
            began = time.process_time()
            refused = [await doors.ask(by_tx(), client=HERE) for _ in range(100)]
            best_s = min(best_s, (time.process_time() - began) / 100)
            assert {each.status for each in refused} == {429}
        assert len(buckets.asked) == asked_before
        assert best_s < 0.001
        lines = [record for record in quiet_log.records if record.name == "app.api.refusing"]
        assert [(each.reason, each.suppressed) for each in lines] == [("consumer_rate", 0)]  # type: ignore[attr-defined]
        assert doors.metric("admission_rejected_total", reason="consumer_rate") == 500
        assert doors.metric("consumer_ratelimit_decisions_total", decision="denied", layer="local") == 500


async def test_a_flood_of_unknown_keys_costs_what_a_flood_over_the_rate_does(
    quiet_log: pytest.LogCaptureFixture,
) -> None:
    """That is why nobody's 401 is counted against a rate: they ask nobody, take no place, and write no line each."""
    shown = [
        *(bearer(f"copath_{number:012x}_{'ab' * 32}") for number in range(100)),
        *[bearer("no key at all")] * 50,
        [],
    ]
    keys = Known(KEY)
    async with doors_of(settings_of((0.001, 1), api_keys_required=True), keys=keys) as (doors, buckets):
        doors.house.door.process.limit = 0  # no place is free
        refused = [await doors.ask(by_tx(), client=HERE, headers=headers) for headers in shown]
        assert {(each.status, each.code) for each in refused} == {(401, "Unauthorized")}
        assert buckets.asked == []
        assert doors.metric("admission_rejected_total", reason="unauthorized") == len(shown)
        assert doors.metric("proof_outcome_total", outcome="Unauthorized") == len(shown)
    lines = [record for record in quiet_log.records if record.name in ("app.api.refusing", "copath.access")]
    assert [line.name for line in lines] == ["app.api.refusing", "copath.access"]


async def test_who_is_refused_while_the_doors_close_is_told_that() -> None:
    async with doors_of(settings_of((0.001, 1), max_in_flight=1)) as (doors, _):
        assert (await doors.ask(by_tx())).status == 200
        doors.house.close_doors()
        assert (await doors.ask(by_tx())).code == "Draining"


async def test_the_line_of_a_request_names_the_key_by_its_id(quiet_log: pytest.LogCaptureFixture) -> None:
    async with doors_of(settings_of(None, max_in_flight=2), await seen(), keys=Known(KEY)) as (doors, _):
        assert (await doors.ask(by_tx(), headers=bearer(KEY))).status == 200
        assert (await doors.ask(by_tx(), client=HERE)).status == 200
    with_key, without = (vars(record) for record in quiet_log.records if record.name == "copath.access")
    assert (with_key["key_id"], "consumer" in with_key) == (KEY.split("_")[1], False)
    assert "key_id" not in without
    assert without["consumer"] not in (HERE, "")


# --- R6: nothing of a credential ------------------------------------------------------------------------------------


async def test_R6_no_log_metric_error_or_trace_holds_a_credential(
    quiet_log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = await seen()
    shown = (KEY, OTHER_KEY, "canary-that-is-no-key")
    quiet_log.set_level(logging.DEBUG)
    bodies = b""
    async with doors_of(settings_of((1.0, 2), max_in_flight=2), chain, keys=Known(KEY)) as (doors, _):
        for credential in shown:
            for headers in (bearer(credential), [(b"x-api-key", credential.encode())]):
                crowd = [doors.ask(nth(n), client=HERE, headers=headers) for n in range(6)]
                await asyncio.gather(*(each.task for each in crowd))
                bodies += b"".join(each.body + repr(each.headers).encode() for each in crowd)

        def broken(*_: object) -> None:
            raise RuntimeError(f"with {KEY} in it")

        monkeypatch.setattr(doors.house.keys, "verified", broken)
        fault = await doors.ask(by_tx(), headers=bearer(KEY))
        assert (fault.status, fault.code) == (500, "Internal")
        bodies += fault.body
        exposition, _ = doors.house.metrics.exposition(None)
    logged = "\n".join(f"{record.getMessage()} {record.__dict__} {record.exc_text}" for record in quiet_log.records)
    for text in (bodies.decode(), exposition.decode(), logged):
        for credential in shown:
            assert credential not in text
            assert credential.rpartition("_")[2] not in text
        assert HERE not in text
    assert at(BUSY)

"""Settings: what loads, what is refused and in which words, and what may be shown of them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from app.settings import (
    LoadedSettings,
    NoChainsConfigured,
    Settings,
    SettingsError,
    changed,
    demo_settings,
    load_settings,
    redact_url,
    redacted,
    secrets_of,
)
from app.settings.kinds import parse_size

ONE_CHAIN = "chains: [{chain_key: 1, eth_rpc_url: 'https://node.example'}]\n"

Load = Callable[..., LoadedSettings]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a text as a configuration file, under an environment and flags."""

    def load(text: str, environ: Mapping[str, str] | None = None, **flags: object) -> LoadedSettings:
        path = tmp_path / "config.yaml"
        path.write_text(text, encoding="utf-8")
        return load_settings(str(path), environ or {}, flags)

    return load


@pytest.fixture
def refusal(load: Load, tmp_path: Path) -> Callable[..., str]:
    """The one line with which a text is refused, without the folder of the file."""

    def refusal(text: str, environ: Mapping[str, str] | None = None, **flags: object) -> str:
        with pytest.raises(SettingsError) as caught:
            load(text, environ, **flags)
        line = str(caught.value).replace(f"{tmp_path}/", "")
        assert "\n" not in line
        return line

    return refusal


def with_chain(rest: str) -> str:
    return f"chains: [{{chain_key: 1, eth_rpc_url: 'https://node.example', {rest}}}]\n"


# --- defaults and sources -------------------------------------------------------------------------------------------


def test_defaults_are_those_of_the_contract(load: Load) -> None:
    settings = load(ONE_CHAIN).settings
    assert (settings.bind_host, settings.bind_port) == ("127.0.0.1", 3100)
    assert settings.admission.model_dump() == {
        "max_in_flight_requests": 64,
        "max_in_flight_per_chain": 32,
        "max_warm_in_flight": 256,
        "request_timeout_secs": 120,
    }
    assert (settings.max_batch_size, settings.max_batch_span) == (10, 1000)
    assert settings.database_url == "sqlite+aiosqlite:///copath.db"
    assert settings.block_store_url == "file:blocks"
    assert settings.shutdown.lame_duck_secs == 10
    assert settings.drain_secs == 125
    assert settings.build.processes == "auto"
    chain = settings.chains[0]
    assert (chain.name, chain.chain_id, chain.family) == ("chain-1", None, "ethereum")
    assert chain.routing.model_dump() == {
        "frontier_freshness_blocks": 256,
        "primary_grace_secs": 6,
        "attempt_timeout_secs": 20,
        "primary_retry_cap_secs": 2,
        "hedge": "off",
    }
    assert chain.cache.model_dump() == {
        "max_concurrent_block_fills": 16,
        "max_queued_fills": 64,
        "merkle_max_bytes": 256 * 1024 * 1024,
        "merkle_retention_blocks": None,
        "merkle_backfill_enabled": True,
    }
    assert (chain.finality.mode, chain.finality.depth) == ("tag", 64)
    assert (chain.anchors.source, chain.anchors.interval, chain.anchors.checkpoint_every) == ("none", 10, 10)


def test_settings_are_frozen(load: Load) -> None:
    settings = load(ONE_CHAIN).settings
    with pytest.raises(ValidationError):
        settings.bind_port = 1
    with pytest.raises(ValidationError):
        settings.chains[0].cache.max_queued_fills = 1


def test_environment_lies_over_the_file_and_flags_over_both(load: Load) -> None:
    text = ONE_CHAIN + "admission: {request_timeout_secs: 100}\nmax_batch_size: 3\nbind_port: 1\n"
    environ = {
        "REQUEST_TIMEOUT_SECS": "90",
        "COPATH_ADMISSION__REQUEST_TIMEOUT_SECS": "80.5",
        "MAX_BATCH_SIZE": "4",
        "COPATH_BIND_PORT": "2",
        "COPATH_CORS__ALLOW_ORIGINS": "https://a.example, https://b.example",
        "COPATH_CONSUMERS__TRUSTED_PROXIES": '["10.0.0.0/8"]',
        "COPATH_METRICS__COMPAT_NAMES": "true",
        "COPATH_CONSUMERS__MAX_IN_FLIGHT": "",
        "COPATH_BLOCK_STORE_URL": "null",
    }
    settings = load(text, environ, bind_port=3, **{"logging.level": "debug", "bind_host": None}).settings
    assert settings.admission.request_timeout_secs == 80.5
    assert settings.max_batch_size == 4
    assert settings.bind_port == 3
    assert settings.bind_host == "127.0.0.1"
    assert settings.cors.allow_origins == ("https://a.example", "https://b.example")
    assert settings.consumers.trusted_proxies == ("10.0.0.0/8",)
    assert settings.metrics.compat_names is True
    assert settings.consumers.max_in_flight is None
    assert settings.block_store_url is None
    assert settings.logging.level == "debug"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("MAX_IN_FLIGHT_REQUESTS", "70", lambda s: s.admission.max_in_flight_requests == 70),
        ("MAX_IN_FLIGHT_PER_CHAIN", "12", lambda s: s.admission.max_in_flight_per_chain == 12),
        ("REQUEST_TIMEOUT_SECS", "60", lambda s: s.admission.request_timeout_secs == 60),
        ("MAX_BATCH_SIZE", "5", lambda s: s.max_batch_size == 5),
        ("MAX_BATCH_SPAN", "50", lambda s: s.max_batch_span == 50),
    ],
)
def test_names_of_the_reference_server_are_understood(
    load: Load, name: str, value: str, expected: Callable[[Settings], bool]
) -> None:
    assert expected(load(ONE_CHAIN, {name: value}).settings)


def test_a_chain_is_overridden_or_made_by_its_key(load: Load) -> None:
    environ = {
        "COPATH_CHAINS__1__ETH_RPC_URL": "https://other.example",
        "COPATH_CHAINS__1__CACHE__MERKLE_MAX_BYTES": "1GiB",
        "COPATH_CHAINS__42161__ETH_RPC_URL": "https://arbitrum.example",
        "COPATH_CHAINS__42161__FAMILY": "arbitrum",
        "COPATH_CHAINS__42161__ETH_RPC_FALLBACK_URLS": "https://b.example,https://c.example",
    }
    first, second = load(ONE_CHAIN, environ).settings.chains
    assert first.eth_rpc_url == "https://other.example"
    assert first.cache.merkle_max_bytes == 2**30
    assert (second.chain_key, second.name, second.family) == (42161, "chain-42161", "arbitrum")
    assert [upstream.name for upstream in second.upstream_list] == ["primary", "fallback-1", "fallback-2"]


def test_environment_alone_makes_a_server() -> None:
    settings = load_settings(None, {"COPATH_CHAINS__1__ETH_RPC_URL": "https://node.example"}).settings
    assert [chain.chain_key for chain in settings.chains] == [1]


def test_flags_alone_make_a_server() -> None:
    settings = load_settings(None, {}, {"eth_rpc_url": "https://node.example", "chain_key": 5}).settings
    assert [(chain.chain_key, chain.eth_rpc_url) for chain in settings.chains] == [(5, "https://node.example")]
    assert load_settings(None, {}, {"eth_rpc_url": "https://node.example"}).settings.chains[0].chain_key == 1


def test_the_configuration_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "named.yaml"
    path.write_text(ONE_CHAIN + "bind_port: 7\n")
    assert load_settings(None, {"PROOF_GEN_CONFIG_FILE": str(path)}).settings.bind_port == 7


def test_variables_that_kubernetes_sets_for_services_are_no_settings(load: Load) -> None:
    environ = {
        "COPATH_SERVICE_HOST": "10.0.0.1",
        "COPATH_SERVICE_PORT": "3100",
        "COPATH_SERVICE_PORT_HTTP": "3100",
        "COPATH_PORT": "tcp://10.0.0.1:3100",
        "COPATH_PORT_3100_TCP": "tcp://10.0.0.1:3100",
        "COPATH_PORT_3100_TCP_ADDR": "10.0.0.1",
        "COPATH_POSTGRES_SERVICE_HOST": "10.0.0.2",
        "COPATH_POSTGRES_PORT_5432_TCP_PROTO": "tcp",
        "COPATH_TESTS_REQUIRE_ALL": "1",
        "COPATH_GIT_SHA": "abc",
    }
    assert load(ONE_CHAIN, environ).settings == load(ONE_CHAIN).settings


def test_variables_inside_strings_are_replaced(load: Load, refusal: Callable[..., str]) -> None:
    text = "chains: [{chain_key: 1, chain_id: '${ID}', eth_rpc_url: 'https://h/${KEY}?x=$${KEY}&y=$z'}]"
    chain = load(text, {"ID": "11155111", "KEY": "abc"}).settings.chains[0]
    assert chain.chain_id == 11155111
    assert chain.eth_rpc_url == "https://h/abc?x=${KEY}&y=$z"
    assert refusal(text, {"ID": "1"}) == "config.yaml: chains[0].eth_rpc_url: the environment has no variable KEY"
    assert "must hold the name" in refusal("bind_host: '${not a name}'")
    assert "must hold the name" in refusal("bind_host: '${UNCLOSED'", {"UNCLOSED": "x"})


def test_every_secret_may_stand_in_a_file(load: Load, tmp_path: Path) -> None:
    def file(name: str, *lines: str) -> str:
        (tmp_path / name).write_text("\n".join(lines))
        return str(tmp_path / name)

    text = f"""
database_url_file: {file("dsn", "postgresql+asyncpg://u:p@db/copath")}
consumers: {{pepper_file: {file("pepper", "0123456789abcdef0123")}}}
chains:
  - chain_key: 1
    eth_rpc_url_file: {file("rpc", " https://node.example/KEY ")}
    eth_rpc_fallback_urls_file: {file("more", "https://b.example/K1", "", "https://c.example/K2", "")}
    anchors: {{source: creditcoin, url_file: {file("cc", "wss://cc.example")}}}
  - chain_key: 2
    upstreams:
      - name: a
        url_file: {file("a", "https://a.example")}
        headers_file: {file("h", "Authorization: Bearer T", "X-A: b:c")}
"""
    settings = load(text).settings
    assert settings.database_url == "postgresql+asyncpg://u:p@db/copath"
    assert settings.consumers.pepper == "0123456789abcdef0123"
    first, second = settings.chains
    urls = [upstream.url for upstream in first.upstream_list]
    assert urls == ["https://node.example/KEY", "https://b.example/K1", "https://c.example/K2"]
    assert first.anchors.url == "wss://cc.example"
    assert second.upstream_list[0].url == "https://a.example"
    assert second.upstream_list[0].headers == {"Authorization": "Bearer T", "X-A": "b:c"}


def test_demo_serves_the_given_chains_under_the_environment() -> None:
    chains = [{"chain_key": 1, "name": "mainnet-early", "eth_rpc_url": "demo://mainnet-early"}]
    loaded = demo_settings(chains, {"COPATH_BIND_PORT": "0"}, {"logging.format": "console"})
    assert loaded.settings.chains[0].upstream_list[0].url == "demo://mainnet-early"
    assert (loaded.settings.bind_port, loaded.settings.logging.format) == (0, "console")


def test_no_chain_at_all_is_told_from_a_broken_file(load: Load) -> None:
    with pytest.raises(NoChainsConfigured):
        load_settings(None, {"COPATH_BIND_PORT": "1"})
    for text in ("", "chains: []", "bind_port: 3"):
        with pytest.raises(SettingsError, match="at least one chain") as caught:
            load(text)
        assert not isinstance(caught.value, NoChainsConfigured)


@pytest.mark.parametrize(
    ("declared", "source"), [("", None), ("eth_rpc_fallbacks_derive_from_primary: true", "primary")]
)
def test_the_short_form_declares_derivation_of_all_fallbacks(load: Load, declared: str, source: str | None) -> None:
    loaded = load(
        f"""
        chains:
          - chain_key: 1
            eth_rpc_url: https://a.example
            eth_rpc_fallback_urls: [https://b.example, https://c.example]
            {declared}
        """
    )
    upstreams = loaded.settings.chains[0].upstream_list
    assert [upstream.derives_from for upstream in upstreams] == [None, source, source]


def test_the_long_form_declares_derivation_node_by_node(refusal: Callable[..., str]) -> None:
    text = """
        chains:
          - chain_key: 1
            eth_rpc_fallbacks_derive_from_primary: true
            upstreams: [{name: a, url: https://a.example}]
        """
    assert "give derives_from of each upstream" in refusal(text, {})


# --- the reference server's files -----------------------------------------------------------------------------------


def test_a_file_of_the_reference_server_loads_with_warnings(load: Load) -> None:
    loaded = load(
        """
        bind_host: 0.0.0.0
        bind_port: 3100
        cc3_key: "//Alice-canary"
        indexer_url: https://indexer.example/canary
        max_batch_size: 10
        admission: {max_in_flight_requests: 16, request_timeout_secs: 10}
        chains:
          - chain_key: 2
            eth_rpc_url: https://sepolia.example
            eth_rpc_fallback_urls: [" https://b.example "]
            archiver_url: https://archiver.example/canary
            block_confirmation_depth: 64
            cache: {merkle_max_bytes: 768MiB, block_cache_capacity: 512, checkpoint_cache_max_entries: null}
        """
    )
    chain = loaded.settings.chains[0]
    assert (chain.name, chain.chain_id, chain.family) == ("chain-2", None, "ethereum")
    assert chain.upstream_list[1].url == "https://b.example"
    assert chain.cache.merkle_max_bytes == 768 * 1024 * 1024
    assert len(loaded.warnings) == 6
    for key in ("cc3_key", "indexer_url", "archiver_url", "block_confirmation_depth", "cache.block_cache_capacity"):
        assert any(key in warning for warning in loaded.warnings)
    assert "canary" not in " ".join(loaded.warnings)


def test_defaults_shrink_with_the_limits_that_were_set(load: Load) -> None:
    settings = load(ONE_CHAIN + "admission: {max_in_flight_requests: 8, request_timeout_secs: 5}").settings
    assert settings.admission.max_in_flight_per_chain == 8
    routing = settings.chains[0].routing
    assert routing.attempt_timeout_secs == 5
    assert routing.primary_grace_secs + routing.primary_retry_cap_secs <= 5


def test_cc3_rpc_url_selects_creditcoin_anchors_where_none_are_named(load: Load) -> None:
    text = """
    chains:
      - {chain_key: 1, eth_rpc_url: 'https://a.example'}
      - {chain_key: 2, eth_rpc_url: 'https://b.example', anchors: {source: self, genesis: 3}}
    """
    first, second = load(text, {"CC3_RPC_URL": "ws://localhost:9944"}).settings.chains
    assert (first.anchors.source, first.anchors.url) == ("creditcoin", "ws://localhost:9944")
    assert (second.anchors.source, second.anchors.url) == ("self", None)


# --- refusals -------------------------------------------------------------------------------------------------------

REFUSED = [
    ("max_batch_sise: 3", {}, "config.yaml: max_batch_sise: is not a known key; did you mean max_batch_size?"),
    (
        with_chain("cache: {max_concurrent_fills: 3}"),
        {},
        "config.yaml: chains[chain_key 1].cache.max_concurrent_fills: is not a known key; "
        "did you mean max_concurrent_block_fills?",
    ),
    (
        with_chain("merkle_max_bytes: 3"),
        {},
        "config.yaml: chains[chain_key 1].merkle_max_bytes: is not a known key here; did you mean chains.cache.merkle_max_bytes?",
    ),
    (
        ONE_CHAIN,
        {"COPATH_ADMISSION__REQUEST_TIMEOUT": "3"},
        "COPATH_ADMISSION__REQUEST_TIMEOUT: admission.request_timeout: is not a known key; did you mean request_timeout_secs?",
    ),
    (ONE_CHAIN, {"COPATH_BIND_PROT": "3"}, "COPATH_BIND_PROT: bind_prot: is not a known key; did you mean bind_port?"),
    (ONE_CHAIN, {"COPATH_BIND__PORT": "3"}, "COPATH_BIND__PORT: bind.port: is not a known key"),
    (ONE_CHAIN, {"COPATH_LISTEN_PORT": "3"}, "COPATH_LISTEN_PORT: listen_port: is not a known key"),
    (
        ONE_CHAIN,
        {"COPATH_CHAINS__MAIN__NAME": "x"},
        "COPATH_CHAINS__MAIN__NAME: a chain is named by its key, as in COPATH_CHAINS__1__ETH_RPC_URL",
    ),
    ("admission: {max_in_flight_requests: 0}", {}, "config.yaml: admission.max_in_flight_requests: must be above 0"),
    (with_chain("cache: {max_queued_fills: 0}"), {}, "chain_key 1].cache.max_queued_fills: must be above 0"),
    (with_chain("cache: {merkle_max_bytes: 0}"), {}, "chain_key 1].cache.merkle_max_bytes: must be above 0"),
    ("max_batch_size: -1", {}, "config.yaml: max_batch_size: must be above 0"),
    (
        ONE_CHAIN,
        {"MAX_IN_FLIGHT_REQUESTS": "0"},
        "MAX_IN_FLIGHT_REQUESTS: admission.max_in_flight_requests: must be above 0",
    ),
    (ONE_CHAIN, {"REQUEST_TIMEOUT_SECS": "0"}, "REQUEST_TIMEOUT_SECS: admission.request_timeout_secs: must be above 0"),
    (ONE_CHAIN, {"MAX_BATCH_SPAN": "many"}, "MAX_BATCH_SPAN: max_batch_span: must be a valid integer"),
    ("admission: {request_timeout_secs: .nan}", {}, "admission.request_timeout_secs: must be a finite number"),
    ("admission: {request_timeout_secs: .inf}", {}, "admission.request_timeout_secs: must be a finite number"),
    (ONE_CHAIN, {"COPATH_CONSUMERS__RATE__PER_SECOND": "nan"}, "consumers.rate.per_second: must be a finite number"),
    ("bind_port: true", {}, "config.yaml: bind_port: must be a number, not a boolean"),
    ("bind_port: 65536", {}, "config.yaml: bind_port: must be less than or equal to 65535"),
    ("max_batch_span: 9223372036854775808", {}, "config.yaml: max_batch_span: must be less than or equal to"),
    ("admission: 3", {}, "config.yaml: admission: must be a mapping"),
    ("chains: {1: x}", {}, "config.yaml: chains: must be a list"),
    ("chains: [x]", {}, "config.yaml: chains[0]: must be a mapping"),
    ("chains: [{name: x}]", {}, "config.yaml: chains[0].chain_key: is missing"),
    (
        "chains: [{chain_key: 1}]",
        {},
        "config.yaml: chains[chain_key 1]: has no upstream: give eth_rpc_url, or upstreams",
    ),
    (
        "chains: [{chain_key: 1}, {chain_key: 1}]",
        {},
        "config.yaml: chains[1].chain_key: is the key of an earlier chain too",
    ),
    (
        "chains: [{chain_key: 1}, {chain_key: '01'}]",
        {},
        "config.yaml: chains[1].chain_key: is the key of an earlier chain too",
    ),
    (
        "chains: [{chain_key: 1, name: a, eth_rpc_url: 'https://h'}, {chain_key: 2, name: a, eth_rpc_url: 'https://h'}]",
        {},
        "config.yaml: chains[chain_key 2].name: is the name of an earlier chain too",
    ),
    (with_chain("name: verify"), {}, "config.yaml: chains[chain_key 1].name: must not be verify"),
    (with_chain("name: http"), {}, "config.yaml: chains[chain_key 1].name: must not be http"),
    (
        "chains: [{chain_key: 1, upstreams: [{name: a, url: 'wss://h', ws_url: 'wss://h'}]}]",
        {},
        "upstreams.0: ws_url goes with a url that is http:// or https://",
    ),
    (
        "chains: [{chain_key: 1, upstreams: [{name: a, url: 'https://h', ws_url: 'https://h'}]}]",
        {},
        "upstreams.0.ws_url: must begin with ws:// or wss://",
    ),
    (
        "chains: [{chain_key: 1, upstreams: [{name: a, url: 'https://h', price: {eth_getBlockReciepts: 20}}]}]",
        {},
        "eth_getBlockReciepts is no method that is called here; did you mean eth_getBlockReceipts?",
    ),
    (
        "chains: [{chain_key: 1, upstreams: [{name: a, url: 'https://h', price: {getBlock: 20}}]}]",
        {},
        "getBlock is no method that is called here; called are eth_chainId, eth_blockNumber",
    ),
    (with_chain("name: Main"), {}, "config.yaml: chains[chain_key 1].name: must be lower-case"),
    (with_chain("name: '1a'"), {}, "config.yaml: chains[chain_key 1].name: must be lower-case"),
    (with_chain('name: "main\\n"'), {}, "config.yaml: chains[chain_key 1].name: must be lower-case"),
    (with_chain("family: solana"), {}, "config.yaml: chains[chain_key 1].family: must be 'ethereum', 'op-stack'"),
    (
        "admission: {max_in_flight_requests: 4, max_in_flight_per_chain: 5}\n" + ONE_CHAIN,
        {},
        "config.yaml: admission.max_in_flight_per_chain: must not be above admission.max_in_flight_requests, which is 4",
    ),
    (
        ONE_CHAIN,
        {"MAX_IN_FLIGHT_PER_CHAIN": "65"},
        "MAX_IN_FLIGHT_PER_CHAIN: admission.max_in_flight_per_chain: must not be",
    ),
    (
        with_chain("routing: {attempt_timeout_secs: 121}"),
        {},
        "routing.attempt_timeout_secs: must not be above admission.request_timeout_secs, which is 120",
    ),
    (
        with_chain("routing: {primary_grace_secs: 10}"),
        {"REQUEST_TIMEOUT_SECS": "10"},
        "routing.primary_grace_secs: must, with primary_retry_cap_secs, not be above admission.request_timeout_secs",
    ),
    (
        with_chain("cache: {max_concurrent_block_fills: 1}"),
        {},
        "config.yaml: chains[chain_key 1].cache.max_concurrent_block_fills: leaves backfill nothing",
    ),
    ("tls: {certificate: a.pem}", {}, "config.yaml: tls: certificate and private_key go together"),
    ("cors: {allow_origins: ['https://a.example/']}", {}, "config.yaml: cors.allow_origins.0: must be"),
    ("consumers: {trusted_proxies: [everyone]}", {}, "config.yaml: consumers.trusted_proxies.0: must be an address"),
    ("consumers: {pepper: short}", {}, "config.yaml: consumers.pepper: must have at least 16 characters"),
    ("database_url: mysql://u:p@h/d", {}, "config.yaml: database_url: must begin with postgresql://"),
    ("database_url: postgresql+psycopg2://u:p@h/d", {}, "database_url: must name no driver, or postgresql+asyncpg://"),
    ("database_url: 'postgres://'", {}, "config.yaml: database_url: must name a host and a database"),
    ("database_url: copath.db", {}, "config.yaml: database_url: must begin with postgresql://"),
    ("block_store_url: ftp://h", {}, "config.yaml: block_store_url: must begin with file: or s3://"),
    (
        with_chain("eth_rpc_fallback_urls: ['ftp://h']"),
        {},
        "eth_rpc_fallback_urls.0: must begin with http:// or https:// or ws:// or wss://",
    ),
    (with_chain("eth_rpc_fallback_urls: ['https://']"), {}, "eth_rpc_fallback_urls.0: names no host"),
    (with_chain("eth_rpc_fallback_urls: ['https://h:x']"), {}, "eth_rpc_fallback_urls.0: is not a URL"),
    (
        with_chain("eth_rpc_fallback_urls: ['https://node.example']"),
        {},
        "chain_key 1]: has two upstreams of the same URL",
    ),
    (with_chain("upstreams: [{name: a, url: 'https://a.example'}]"), {}, "chain_key 1]: gives upstreams both ways"),
    (
        "chains: [{chain_key: 1, upstreams: [{name: a, url: 'https://a', derives_from: b}]}]",
        {},
        "chain_key 1]: derives_from of upstream a must name another upstream of the chain",
    ),
    (
        "chains: [{chain_key: 1, upstreams: [{name: a, url: 'https://a'}, {name: a, url: 'https://b'}]}]",
        {},
        "chain_key 1]: has two upstreams of the same name",
    ),
    (with_chain("anchors: {source: creditcoin}"), {}, "chain_key 1].anchors: source creditcoin needs url"),
    (with_chain("finality: {depth: 0}"), {}, "chain_key 1].finality.depth: must be above 0"),
    (ONE_CHAIN, {"PROMETHEUS_MULTIPROC_DIR": "/tmp/x"}, "PROMETHEUS_MULTIPROC_DIR: must not be set"),
    ("a: 1\na: 2", {}, "config.yaml: a key stands twice (line 2)"),
    ("a: [1", {}, "config.yaml: is not valid YAML"),
    ("a: " + "[" * 5000 + "]" * 5000, {}, "config.yaml: is nested too deeply"),
    ("a: &a [*a]", {}, "config.yaml: is nested too deeply"),
    ("a: 2001-99-99", {}, "config.yaml: holds a number or a date that is none"),
    ("a: " + "9" * 5000, {}, "config.yaml: holds a number or a date that is none"),
    ("[chains]", {}, "config.yaml: must be a mapping of settings"),
    (f"chains: [{{chain_key: '{'9' * 5000}', eth_rpc_url: 'https://a'}}]", {}, ".chain_key: Unable to parse"),
    (ONE_CHAIN, {f"COPATH_CHAINS__{'9' * 5000}__ETH_RPC_URL": "https://a"}, ".chain_key: Unable to parse"),
    (ONE_CHAIN, {"COPATH_CORS__ALLOW_ORIGINS": "[" * 5000}, "cors.allow_origins: must be a JSON list"),
]


@pytest.mark.parametrize(("text", "environ", "line"), REFUSED, ids=[line[:70] for _, _, line in REFUSED])
def test_refused_in_one_line(refusal: Callable[..., str], text: str, environ: Mapping[str, str], line: str) -> None:
    if "chains" not in text:
        text += "\n" + ONE_CHAIN
    assert line in refusal(text, environ)


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"^/nowhere/config\.yaml: cannot be read: No such file or directory$"):
        load_settings("/nowhere/config.yaml", {})


def test_secret_files_that_do_not_serve_are_refused(refusal: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xff")
    (tmp_path / "windows").write_bytes("secret".encode("utf-16"))
    (tmp_path / "huge").write_bytes(b"x" * (2**20 + 1))
    (tmp_path / "lines").write_text("no header")
    assert "database_url_file: the file is empty" in refusal(f"database_url_file: {tmp_path}/empty\n{ONE_CHAIN}")
    for name, why in (
        ("binary", "the file is not UTF-8 text"),
        ("windows", "the file is UTF-16 text: save it as UTF-8"),
        ("huge", "the file is larger than 1048576 bytes"),
        ("", "cannot be read: Is a directory"),
    ):
        assert f"database_url_file: {why}" in refusal(f"database_url_file: {tmp_path}/{name}\n{ONE_CHAIN}")
    assert "eth_rpc_url_file: give this or eth_rpc_url, not both" in refusal(with_chain("eth_rpc_url_file: /x"))
    chain = f"chains: [{{chain_key: 1, upstreams: [{{name: a, url: 'https://h', headers_file: {tmp_path}/lines}}]}}]"
    assert "upstreams.0.headers_file: every line must be a header" in refusal(chain)


# --- text that was pasted, exported or mounted ----------------------------------------------------------------------

PASTED = {
    "\ufeff": "a byte order mark (U+FEFF)",
    "\u200b": "a zero width space (U+200B)",
    "\u00a0": "a no-break space (U+00A0)",
    "\u2013": "an en dash (U+2013)",
    "\u2011": "a non-breaking hyphen (U+2011)",
    "\u201d": "a right double quotation mark (U+201D)",
    "\u2028": "a line separator (U+2028)",
    "\ufb01": "a latin small ligature fi (U+FB01)",
    "\ufe0f": "a variation selector-16 (U+FE0F)",
    "\u3164": "a hangul filler (U+3164)",
    "\n": "a line break",
    "\r": "a line break",
    "\t": "a tab",
    "\0": "a NUL",
    "\x1b": "a control character (U+001B)",
    "\udcff": "a byte that is not UTF-8",
}
SETTINGS_OF_TEXT = {
    "chains.1.upstreams.0.headers": ("the value of header 1 ", "Bearer abc{}def"),
    "chains.1.upstreams.0.url": ("", "https://h.example/v3/abc{}def"),
    "chains.1.upstreams.0.ws_url": ("", "wss://h.example/v3/abc{}def"),
    "chains.1.anchors.url": ("", "https://h.example/abc{}def"),
    "consumers.pepper": ("", "abc{}defghijklmnopqrstuvw"),
    "database_url": ("", "postgresql://u:abc{}def@h/d"),
    "block_store_url": ("", "s3://abc{}def/p"),
    "bind_host": ("", "abc{}def"),
    "cors.allow_origins.0": ("", "https://abc{}def"),
}


def _document(setting: str, value: str) -> str:
    """One chain, with a value where it belongs."""
    node: dict[str, Any] = {"name": "own", "url": "https://h.example"}
    chain: dict[str, Any] = {"chain_key": 1, "upstreams": [node], "anchors": {"source": "creditcoin", "url": "ws://h"}}
    config: dict[str, Any] = {"chains": [chain], "consumers": {}, "cors": {}}
    match setting.split("."):
        case [*_, "headers"]:
            node["headers"] = {"Authorization": value}
        case [*_, "upstreams", "0", name]:
            node[name] = value
        case ["chains", "1", "anchors", name]:
            chain["anchors"][name] = value
        case ["cors", *_]:
            config["cors"]["allow_origins"] = [value]
        case [model, name]:
            config[model][name] = value
        case [name]:
            config[name] = value
    return json.dumps(config)


@pytest.mark.parametrize("character", PASTED, ids=ascii)
@pytest.mark.parametrize("setting", SETTINGS_OF_TEXT)
def test_what_nobody_types_on_purpose_is_named_with_its_setting_and_never_its_value(
    refusal: Callable[..., str], setting: str, character: str
) -> None:
    prefix, pattern = SETTINGS_OF_TEXT[setting]
    if character == "\t" and setting.endswith("headers"):
        return  # HTTP takes it
    said = refusal(_document(setting, pattern.format(character)))
    where = setting.replace("chains.1.", "chains[chain_key 1].")
    place = pattern.index("{") + 1
    assert f"config.yaml: {where}: {prefix}holds {PASTED[character]} as character {place}: " in said
    assert "abc" not in said
    assert "def" not in said
    assert said.isprintable()


@pytest.mark.parametrize("setting", SETTINGS_OF_TEXT)
@pytest.mark.parametrize("around", [("\ufeff", "\r\n"), ("", "\n"), (" ", "\t"), ("\n", "")], ids=ascii)
def test_a_byte_order_mark_and_white_space_around_a_value_are_no_part_of_it(
    load: Load, setting: str, around: tuple[str, str]
) -> None:
    value = SETTINGS_OF_TEXT[setting][1].format("")
    clean, dressed = load(_document(setting, value)), load(_document(setting, around[0] + value + around[1]))
    assert clean.settings == dressed.settings


SECRET_FILES = {
    "headers_file": ("X-Api-Key: s3cr3t-k3y", {"X-Api-Key": "s3cr3t-k3y"}),
    "url_file": ("https://node.example/s3cr3t-k3y", "https://node.example/s3cr3t-k3y"),
}


@pytest.mark.parametrize("twin", SECRET_FILES)
@pytest.mark.parametrize("dressed", ["\ufeff{}\r\n", "{}\n", "\r\n{}\r\n\r\n", "  {}\t"], ids=ascii)
def test_a_secret_file_is_read_as_editors_of_any_system_write_it(
    load: Load, tmp_path: Path, twin: str, dressed: str
) -> None:
    content, meant = SECRET_FILES[twin]
    (tmp_path / "secret").write_bytes(dressed.format(content).encode())
    node = {"name": "own", "url": "https://h.example", twin: str(tmp_path / "secret")}
    node = node if twin == "headers_file" else {key: value for key, value in node.items() if key != "url"}
    loaded = load(json.dumps({"chains": [{"chain_key": 1, "upstreams": [node]}]}))
    assert getattr(loaded.settings.chains[0].upstreams[0], twin.removesuffix("_file")) == meant


@pytest.mark.parametrize("inside", ["s3cr3t\u200bk3y", "s3cr3t\nk3y", "s3cr3t\u2013k3y"], ids=ascii)
def test_inside_a_secret_file_nothing_is_cleaned(refusal: Callable[..., str], tmp_path: Path, inside: str) -> None:
    (tmp_path / "pepper").write_text(f"a-long-pepper-{inside}", encoding="utf-8")
    said = refusal(f"consumers: {{pepper_file: {tmp_path}/pepper}}\n{ONE_CHAIN}")
    assert "config.yaml: consumers.pepper: holds " in said
    assert "s3cr3t" not in said


def test_variables_are_cleaned_and_refused_as_the_file_is(load: Load, refusal: Callable[..., str]) -> None:
    url = "https://h.example/k3y"
    for environ in ({"COPATH_CHAINS__1__ETH_RPC_URL": f"\ufeff{url}\r\n"}, {"KEY": "k3y\n"}):
        text = (
            ONE_CHAIN if "KEY" not in environ else "chains: [{chain_key: 1, eth_rpc_url: 'https://h.example/${KEY}'}]"
        )
        assert load(text, environ).settings.chains[0].eth_rpc_url == url
    assert (
        refusal("chains: [{chain_key: 1, eth_rpc_url: 'https://h.example/${KEY}'}]", {"KEY": "k3\u200by"})
        == "config.yaml: chains[chain_key 1].eth_rpc_url: holds a zero width space (U+200B) as character 21: "
        "remove it, or type it again"
    )
    said = refusal(ONE_CHAIN, {"\ufeffCOPATH_BIND_PORT": "1"})
    assert said.startswith("COPATH_BIND_PORT: the name of this variable holds a byte order mark (U+FEFF)")
    said = refusal(ONE_CHAIN + "bind\u200b_port: 1")
    assert said == "config.yaml: bind\\u200b_port: is not a known key; did you mean bind_port?"


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ('{"X Key": "a"}', "the name of header 1 must be letters, digits and hyphens"),
        ('{"": "a"}', "the name of header 1 must be letters, digits and hyphens"),
        ('{"X-Key:": "a"}', "the name of header 1 must be letters, digits and hyphens"),
        ('{"X\u2011Key": "a"}', "the name of header 1 holds a non-breaking hyphen (U+2011)"),
        ('{"X-A": "a", "X-B": "\u00e9"}', "the value of header 2 must be ASCII, and its character 1 is not"),
        ('{"X-A": "a", "x-a": "b"}', "the name of header 2 is that of an earlier header too"),
        ('{"Content-Length": "1"}', "the name of header 1 must not be content-length"),
        ('{"X-A": 1}', "must be a valid string"),
        ('"X-A: a"', "must be a"),
    ],
)
def test_headers_are_those_that_http_takes(refusal: Callable[..., str], headers: str, why: str) -> None:
    said = refusal(f"chains: [{{chain_key: 1, upstreams: [{{name: a, url: 'https://h', headers: {headers}}}]}}]")
    assert f"config.yaml: chains[chain_key 1].upstreams.0.headers: {why}" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfea\x00", "config.yaml: is UTF-16 text: save it as UTF-8"),
        (b"name: \xe9", "config.yaml: is not UTF-8 text"),
        (b"a:\n\tb: 1", "config.yaml: is not valid YAML: a tab stands where YAML wants spaces (line 2)"),
        (
            b"a: b: c",
            "config.yaml: is not valid YAML: a colon is missing or one too many, or the text needs quotes (line 1)",
        ),
        (b"a: 1\nb: \x00", "config.yaml: holds a NUL as character 1"),
        (b"", "config.yaml: chains: at least one chain is needed, as in config.example.yaml"),
        (b"# nothing\n", "config.yaml: chains: at least one chain is needed, as in config.example.yaml"),
        (b"just words", "config.yaml: must be a mapping of settings"),
        (b"? [a]\n: 1", "config.yaml: is not valid YAML"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_in_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        load_settings(str(tmp_path / "config.yaml"), {})
    assert said in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=ascii)
def test_a_file_of_any_system_is_read(tmp_path: Path, encoding: str, end: str) -> None:
    text = f"bind_port: 1{end}# a comment{end}{ONE_CHAIN.strip()}{end}"
    (tmp_path / "config.yaml").write_bytes(text.encode(encoding))
    assert load_settings(str(tmp_path / "config.yaml"), {}).settings.bind_port == 1


@given(st.text(max_size=40), st.sampled_from(sorted(SETTINGS_OF_TEXT)))
def test_any_text_is_a_setting_or_one_line(text: str, setting: str) -> None:
    document = _document(setting, f"S3cr3t{text}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.yaml")
        path.write_text(document)
        try:
            load_settings(str(path), {})
            said = ""
        except SettingsError as refused:
            said = str(refused)
    assert "S3cr3t" not in said
    assert said.isprintable()


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"HTTPS_PROXY": "foo://S3cr3t"}, "HTTPS_PROXY: must be the URL of an HTTP proxy, http://host:port"),
        ({"https_proxy": "http://"}, "https_proxy: must be the URL of an HTTP proxy, http://host:port"),
        ({"HTTP_PROXY": "http://S3cr3t:x"}, "HTTP_PROXY: must be the URL of an HTTP proxy, http://host:port"),
        ({"HTTP_PROXY": "http://S3cr3t\u200b:1"}, "HTTP_PROXY: holds a zero width space (U+200B) as character 14"),
        ({"ALL_PROXY": "socks5://127.0.0.1:1"}, "ALL_PROXY: names a SOCKS proxy, which cannot be used"),
        ({"NO_PROXY": "a\u200b.example"}, "NO_PROXY: holds a zero width space"),
        ({"SSL_CERT_FILE": "/nowhere/S3cr3t"}, "SSL_CERT_FILE: names what is not there"),
        ({"SSL_CERT_DIR": "/nowhere/S3cr3t"}, "SSL_CERT_DIR: names what is not there"),
        ({"SSLKEYLOGFILE": "/nowhere/S3cr3t"}, "SSLKEYLOGFILE: names a file that cannot be written"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_what_every_call_goes_by_is_looked_at_before_the_first(
    load: Load, refusal: Callable[..., str], environ: dict[str, str], said: str
) -> None:
    line = refusal(ONE_CHAIN, environ)
    assert line.startswith(said)
    assert "S3cr3t" not in line
    demo = [{"chain_key": 1, "eth_rpc_url": "demo://mainnet-early"}]
    assert demo_settings(demo, environ).settings.chains, "which calls nobody"
    for fine in (
        {"HTTPS_PROXY": "proxy.example:3128"},
        {"http_proxy": "http://u:p@proxy.example:3128/"},
        {"ALL_PROXY": ""},
    ):
        assert load(ONE_CHAIN, fine).warnings == []


# --- what is possible and hardly meant ------------------------------------------------------------------------------


def test_what_is_hardly_meant_is_a_warning(load: Load) -> None:
    assert load(ONE_CHAIN).warnings == []
    (drain,) = load(ONE_CHAIN + "shutdown: {drain_secs: 119}").warnings
    assert "config.yaml: shutdown.drain_secs: is below admission.request_timeout_secs, which is 120" in drain
    (shared,) = load(ONE_CHAIN + "block_store: {shared: true}").warnings
    assert "config.yaml: block_store.shared: " in shared
    assert "SQLite" in shared
    assert load(ONE_CHAIN + "block_store: {shared: true}\ndatabase_url: postgresql://u:p@h/d").warnings == []


@pytest.mark.parametrize(
    ("written", "used"),
    [
        ("postgresql://u:p@h/d", "postgresql+asyncpg://u:p@h/d"),
        ("postgres://u:p@h:5432/d?sslmode=require", "postgresql+asyncpg://u:p@h:5432/d?sslmode=require"),
        ("postgresql+asyncpg://u:p@h/d", "postgresql+asyncpg://u:p@h/d"),
        ("sqlite:///copath.db", "sqlite+aiosqlite:///copath.db"),
        ("sqlite:////var/lib/copath.db", "sqlite+aiosqlite:////var/lib/copath.db"),
        ("sqlite://", "sqlite+aiosqlite://"),
        ("sqlite+aiosqlite:///:memory:", "sqlite+aiosqlite:///:memory:"),
    ],
)
def test_a_database_is_named_as_platforms_name_it(load: Load, written: str, used: str) -> None:
    assert load(f"database_url: '{written}'\n{ONE_CHAIN}").settings.database_url == used


def test_an_option_that_changes_a_chain_of_the_file_says_so(load: Load, refusal: Callable[..., str]) -> None:
    url = {"eth_rpc_url": "https://b.example"}
    replaced = load(ONE_CHAIN, {}, **{**url, "chain_key": 1})
    assert replaced.settings.chains[0].eth_rpc_url == "https://b.example"
    (said,) = replaced.warnings
    assert said.startswith("option --eth-rpc-url: replaces the node that ")
    assert said.endswith("config.yaml names for chain 1; all else of that chain is kept")
    (said,) = load(ONE_CHAIN, {}, **{**url, "chain_key": 2}).warnings
    assert said.startswith("option --eth-rpc-url: adds chain 2 to those of ")
    (said,) = load(ONE_CHAIN, {}, chain_key=1).warnings
    assert said.startswith("option --chain-key: has no effect without --eth-rpc-url")
    assert load_settings(None, {}, {**url, "chain_key": 1}).warnings == []
    with pytest.raises(SettingsError, match=r"^option --chain-key: give --eth-rpc-url too, .* has only 1$"):
        load(ONE_CHAIN, {}, chain_key=2)
    long = "chains: [{chain_key: 1, upstreams: [{name: a, url: 'https://a'}]}]"
    with pytest.raises(
        SettingsError, match=r"^option --eth-rpc-url: chain 1 has upstreams in .*config\.yaml: change them"
    ):
        load(long, {}, **{**url, "chain_key": 1})
    assert load(long, {}, **{**url, "chain_key": 2}).settings.chains[1].chain_key == 2


CANARY = "S3cr3t-C4n4ry"


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        (f"database_url: mysql://u:{CANARY}@h/d", {}),
        (f"chains: [{{chain_key: 1, eth_rpc_url: 'ftp://u:{CANARY}@h/{CANARY}?k={CANARY}'}}]", {}),
        (f"chains: [{{chain_key: 1, eth_rpc_url: 'https://h:{CANARY}'}}]", {}),
        (f"chains: [{{chain_key: 1, eth_rpc_url_file: 'https://h/{CANARY}'}}]", {}),
        (f"chains: [{{chain_key: 1, eth_rpc_url: 'https://h', eth_rpc_fallback_urls: '{CANARY}'}}]", {}),
        (f"chains: [{{chain_key: 1, upstreams: [{{name: a, url: 'https://h', headers: {{X: [{CANARY}]}}}}]}}]", {}),
        (f"bind_port: {CANARY}", {}),
        (f"consumers: {{pepper: [{CANARY}]}}", {}),
        (f"tls: {CANARY}", {}),
        (f"x: *{CANARY}", {}),
        (f"x: '{CANARY}", {}),
        (f"x: ${{{CANARY}", {}),
        (ONE_CHAIN, {"COPATH_DATABASE_URL": CANARY}),
        (ONE_CHAIN, {"COPATH_CORS__ALLOW_ORIGINS": f"[{CANARY}"}),
        (ONE_CHAIN, {"COPATH_CHAINS__1__CHAIN_ID": CANARY}),
        (ONE_CHAIN, {"CC3_RPC_URL": f"ftp://{CANARY}"}),
        (ONE_CHAIN, {"PROMETHEUS_MULTIPROC_DIR": CANARY}),
    ],
)
def test_no_refusal_repeats_a_value(refusal: Callable[..., str], text: str, environ: Mapping[str, str]) -> None:
    if "chains" not in text:
        text += "\n" + ONE_CHAIN
    assert CANARY not in refusal(text, environ)


# --- what may be shown ----------------------------------------------------------------------------------------------


def test_redacted_and_repr_show_hosts_and_no_secret(load: Load) -> None:
    settings = load(
        f"""
        database_url: postgresql+asyncpg://u:{CANARY}@db:5432/{CANARY}
        consumers: {{pepper: {CANARY}-{CANARY}}}
        tls: {{certificate: cert.pem, private_key: {CANARY}.pem}}
        chains:
          - chain_key: 1
            eth_rpc_url: https://u:{CANARY}@node.example:8545/{CANARY}?k={CANARY}
            eth_rpc_fallback_urls: ['https://b.example/{CANARY}']
            anchors: {{source: creditcoin, url: 'wss://cc.example/{CANARY}'}}
          - chain_key: 2
            upstreams:
              - name: a
                url: https://a.example/{CANARY}
                ws_url: wss://a.example/ws/{CANARY}?key={CANARY}
                headers: {{Authorization: 'Bearer {CANARY}'}}
        """
    ).settings
    shown = redacted(settings)
    assert CANARY not in f"{shown} {settings!r} {settings}"
    assert shown["database_url"] == "postgresql+asyncpg://db:5432"
    first, second = shown["chains"]
    assert first["eth_rpc_url"] == "https://node.example:8545"
    assert first["eth_rpc_fallback_urls"] == ["https://b.example"]
    assert first["anchors"]["url"] == "wss://cc.example"
    assert second["upstreams"][0]["headers"] == "***"
    assert second["upstreams"][0]["ws_url"] == "wss://a.example"
    assert shown["consumers"]["pepper"] == "***"
    assert {CANARY, f"Bearer {CANARY}", f"{CANARY}-{CANARY}"} <= secrets_of(settings)


def test_the_usual_user_of_a_database_is_no_secret(load: Load) -> None:
    url = "postgresql+asyncpg://postgres:S3cr3tS3cr3t@127.0.0.1/copath"
    assert secrets_of(load(f"database_url: {url}\n{ONE_CHAIN}").settings) == {"S3cr3tS3cr3t"}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://u:p@h:1/KEY?k=S#f", "https://h:1"),
        ("https://[2001:db8::1]:8545/x", "https://[2001:db8::1]:8545"),
        ("sqlite+aiosqlite:///copath.db", "sqlite+aiosqlite:"),
        ("https://h:port/KEY", "<invalid url>"),
        ("KEY", "<invalid url>"),
    ],
)
def test_a_url_is_shown_by_host(url: str, shown: str) -> None:
    assert redact_url(url) == shown


def test_the_log_shows_what_was_changed_and_no_secret(load: Load) -> None:
    loaded = load(
        "admission: {request_timeout_secs: 60}\nlogging: {level: info}\n"
        "database_url: postgresql+asyncpg://copath:PASSWORD@db.example/copath\n"
        "chains: [{chain_key: 1, name: a, eth_rpc_url: 'https://node.example/KEYKEYKEY', anchors: {source: static}}]\n"
    )
    shown = changed(loaded.settings)
    (chain,) = shown.pop("chains")
    assert shown == {"database_url": "postgresql+asyncpg://db.example", "admission": {"request_timeout_secs": 60.0}}
    assert (chain["eth_rpc_url"], chain["anchors"]["source"]) == ("https://node.example", "static")
    assert "KEYKEYKEY" not in str(chain)


# --- sizes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [
        (7, 7),
        ("7", 7),
        ("7B", 7),
        ("768MB", 768_000_000),
        ("768MiB", 768 * 2**20),
        ("1 gib", 2**30),
        ("1.5GiB", 3 * 2**29),
        ("2tb", 2 * 10**12),
        ("3kB", 3000),
    ],
)
def test_sizes_are_binary_or_decimal_by_their_unit(written: object, size_bytes: int) -> None:
    assert parse_size(written) == size_bytes


@pytest.mark.parametrize(
    "written", ["", "MiB", "-1MiB", "1e3", "0x10", "1 apple", "1MiBs", "٣MiB", "0.5B", True, 1.5, None, [1]]
)
def test_other_sizes_are_refused(written: object) -> None:
    with pytest.raises(ValueError, match=r"^must "):
        parse_size(written)


@given(st.integers(1, 10**6), st.sampled_from(["KB", "MB", "GB", "KiB", "MiB", "GiB"]))
def test_a_size_does_not_depend_on_case_or_space(number: int, unit: str) -> None:
    expected = parse_size(f"{number}{unit}")
    for written in (f"{number} {unit.lower()}", f" {number}{unit.upper()} "):
        assert parse_size(written) == expected

"""Who asks: addresses behind proxies that are trusted or not, and names and keys that tell nothing."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.consumers import MOST_HOPS, NOWHERE, Pepper, Proxies, id_in, spell_key

OURS = Proxies(["10.0.0.0/8", "2001:db8:ffff::/48", "127.0.0.1/32"])
CANARY = "canary-of-a-pepper"


@pytest.mark.parametrize(
    ("peer", "forwarded", "network"),
    [
        # nobody is believed who is not trusted
        ("203.0.113.7", [], "203.0.113.7"),
        ("203.0.113.7", ["198.51.100.1"], "203.0.113.7"),
        ("203.0.113.7", ["198.51.100.1, 10.0.0.1"], "203.0.113.7"),
        # a trusted proxy is believed, and only what trusted ones wrote
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["192.0.2.66, 198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["192.0.2.66, 198.51.100.1, 10.2.3.4"], "198.51.100.1"),
        ("10.0.0.1", ["192.0.2.66", "198.51.100.1, 10.2.3.4"], "198.51.100.1"),
        ("10.0.0.1", ["10.9.9.9, 192.0.2.66, 198.51.100.1 , 10.2.3.4"], "198.51.100.1"),
        # nothing but trusted ones: the first of them
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("10.0.0.1", [], "10.0.0.1"),
        # what is no address ends the walk: who wrote it down is the last one that is known
        ("10.0.0.1", ["192.0.2.66, unknown, 10.2.3.4"], "10.2.3.4"),
        ("10.0.0.1", ["192.0.2.66,,10.2.3.4"], "10.2.3.4"),
        ("10.0.0.1", ["", ""], "10.0.0.1"),
        ("10.0.0.1", ["<script>"], "10.0.0.1"),
        # the ways to write one
        ("10.0.0.1", ["198.51.100.1:4711"], "198.51.100.1"),
        ("10.0.0.1", ["[2001:db8::1]:4711"], "2001:db8::/64"),
        ("10.0.0.1", ["[2001:db8::1]"], "2001:db8::/64"),
        ("10.0.0.1", ["::ffff:198.51.100.1"], "198.51.100.1"),
        ("::ffff:10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("fe80::1%eth0", [], "fe80::/64"),
        ("2001:db8:ffff::9", ["2001:db8:1:2:3:4:5:6"], "2001:db8:1:2::/64"),
        (None, ["198.51.100.1"], NOWHERE),
        ("", ["198.51.100.1"], NOWHERE),
        ("testclient", [], NOWHERE),
    ],
)
def test_the_network_of_a_client(peer: str | None, forwarded: list[str], network: str) -> None:
    assert OURS.network_of(peer, forwarded) == network


@pytest.mark.parametrize("trusted", ["::ffff:10.0.0.0/104", "::ffff:0:0/96", "::ffff:10.0.0.1"])
def test_proxies_that_are_written_as_ipv6_are_trusted_however_they_come(trusted: str) -> None:
    proxies = Proxies([trusted])
    for peer in ("10.0.0.1", "::ffff:10.0.0.1", "::FFFF:0a00:0001"):
        assert proxies.network_of(peer, ["192.0.2.66"]) == "192.0.2.66"
    assert proxies.network_of("2001:db8::1", ["192.0.2.66"]) == "2001:db8::/64"


def test_all_addresses_of_an_ipv6_network_are_one_consumer() -> None:
    alike = {Proxies([]).network_of(f"2001:db8:0:7:{last:x}::{last:x}", []) for last in range(1, 50)}
    assert alike == {"2001:db8:0:7::/64"}
    assert Proxies([]).network_of("2001:db8:0:8::1", []) not in alike


@given(st.lists(st.text(string.printable, max_size=30), max_size=4))
def test_whatever_a_client_claims_it_is_who_the_proxy_says(claims: list[str]) -> None:
    """The proxy appends the address of the connection to what came in, as proxies do."""
    assert OURS.network_of("10.0.0.1", [*claims, "198.51.100.1"]) == "198.51.100.1"
    assert OURS.network_of("10.0.0.1", [", ".join([*claims, "198.51.100.1"])]) == "198.51.100.1"
    assert OURS.network_of("203.0.113.7", claims) == "203.0.113.7"


def test_an_endless_row_of_proxies_is_not_read_to_its_end() -> None:
    claimed = ", ".join(["192.0.2.66"] + ["10.0.0.2"] * 10_000)
    assert OURS.network_of("10.0.0.1", [claimed]) == "10.0.0.2"
    assert OURS.network_of("10.0.0.1", [", ".join(["192.0.2.66"] + ["10.0.0.2"] * (MOST_HOPS - 1))]) == "192.0.2.66"


# --- names and keys -------------------------------------------------------------------------------------------------


def test_names_are_the_same_everywhere_and_tell_nothing() -> None:
    pepper = Pepper(CANARY.encode())
    names = [
        pepper.name_of_network("198.51.100.1"),
        pepper.name_of_key("198.51.100.1"),
        pepper.name_of_key("0123456789ab"),
        Pepper(b"another").name_of_key("0123456789ab"),
    ]
    assert len(set(names)) == 4
    assert all(len(name) == 32 and set(name) <= set("0123456789abcdef") for name in names)
    assert Pepper(CANARY.encode()).name_of_network("198.51.100.1") == names[0]
    assert CANARY not in repr(pepper)


def test_what_is_stored_of_a_key_needs_the_pepper() -> None:
    key = spell_key("0123456789ab", "00" * 32)
    assert len(Pepper(b"one").digest(key)) == 32
    assert Pepper(b"one").digest(key) != Pepper(b"two").digest(key)
    assert Pepper(b"one").digest(key).hex()[:32] != Pepper(b"one").name_of_key(key)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "copath_",
        "copath_0123456789ab",
        f"copath_0123456789AB_{'0' * 64}",
        f"copath_0123456789ab_{'0' * 63}",
        f"copath_0123456789ab_{'0' * 64}\n",
        f" copath_0123456789ab_{'0' * 64}",
        f"Copath_0123456789ab_{'0' * 64}",
    ],
)
def test_what_has_not_the_form_of_a_key_is_none(text: str) -> None:
    assert id_in(text) is None


def test_a_key_carries_its_id() -> None:
    assert id_in(spell_key("0123456789ab", "f0" * 32)) == "0123456789ab"

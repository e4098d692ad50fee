"""Who asks: a consumer is a verified API key, or else the network of whoever has none.

What a client says of itself counts for nothing before it is verified. An address is the connection's, or what a trusted proxy
says it is: `X-Forwarded-For` is read from the right, where the proxy nearest to us wrote, and believed only as far as trusted
proxies wrote it. One client has a whole IPv6 /64, so that is what is told apart; of IPv4 it is the address.

A consumer is named by a keyed hash: names can be stored and compared, and tell nobody who it is.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable, Sequence

IPV6_PREFIX = 64
_MAPPED_PREFIX = 96
"""Of `::ffff:0:0/96`, which is IPv4 in IPv6."""

MOST_HOPS = 32
"""More proxies in a row than that are not ours: what they wrote is not read."""

NOWHERE = "unknown"
"""The network of who comes through no network, such as a socket of the machine."""

_LONGEST_ADDRESS = 128
_NAME_BYTES = 16
_KEY = re.compile(r"copath_([0-9a-f]{12})_([0-9a-f]{64})", re.ASCII)
_PORT = re.compile(r"(?P<host>[^:\[\]]+):\d{1,5}|\[(?P<bracketed>[^\[\]]+)\](?::\d{1,5})?", re.ASCII)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Proxies:
    """The networks whose word on where a request came from is taken."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = tuple(_network(network) for network in networks)

    def network_of(self, peer: str | None, forwarded: Sequence[str]) -> str:
        """The network of a client: `peer` is the other end of the connection, `forwarded` the values of `X-Forwarded-For`."""
        address = None if peer is None else _address(peer)
        if address is None:
            return NOWHERE
        if self._trusts(address):
            for hop in _from_the_right(forwarded):
                before = _address(hop)
                if before is None:
                    break  # nobody's word: whoever wrote it down is the last one that is known
                address = before
                if not self._trusts(address):
                    break
        if isinstance(address, ipaddress.IPv4Address):
            return str(address)
        return str(ipaddress.IPv6Network((int(address) >> 64 << 64, IPV6_PREFIX)))

    def _trusts(self, address: Address) -> bool:
        return any(address.version == network.version and address in network for network in self._networks)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """IPv4 that is written as IPv6 is IPv4, as of addresses."""
    network = ipaddress.ip_network(text)
    mapped = network.network_address.ipv4_mapped if isinstance(network, ipaddress.IPv6Network) else None
    return network if mapped is None else ipaddress.IPv4Network((mapped, network.prefixlen - _MAPPED_PREFIX))


def _from_the_right(forwarded: Sequence[str]) -> list[str]:
    hops = ",".join(forwarded).rsplit(",", MOST_HOPS)
    return hops[: -MOST_HOPS - 1 : -1]


def _address(text: str) -> Address | None:
    """The address in `text`, with or without a port; IPv4 that is written as IPv6 is IPv4."""
    text = text.strip()
    if len(text) > _LONGEST_ADDRESS:
        return None
    match = _PORT.fullmatch(text)
    if match is not None:
        text = match["host"] or match["bracketed"]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


class Pepper:
    """The secret under which consumers are named and keys are known again. Without it, what is stored is of no use."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def name_of_key(self, key_id: str) -> str:
        """The consumer of a verified key."""
        return self._name(f"key:{key_id}")

    def name_of_network(self, network: str) -> str:
        """The consumer of whoever has no key."""
        return self._name(f"net:{network}")

    def digest(self, key: str) -> bytes:
        """What is stored of a key: 32 bytes."""
        return self._mac(f"credential:{key}")

    @property
    def fingerprint(self) -> bytes:
        """8 bytes that are the same for the same pepper, and no way back to it."""
        return self._mac("fingerprint")[:8]

    def _name(self, word: str) -> str:
        return self._mac(word)[:_NAME_BYTES].hex()

    def _mac(self, word: str) -> bytes:
        return hmac.digest(self._secret, word.encode(), hashlib.sha256)


def id_in(key: str) -> str | None:
    """The public part of what has the form of a key: `copath_ID_SECRET`, 12 and 64 hex digits. It may be nobody's."""
    match = _KEY.fullmatch(key)
    return None if match is None else match[1]


def spell_key(key_id: str, secret_hex: str) -> str:
    """The key, as its consumer sends it."""
    return f"copath_{key_id}_{secret_hex}"

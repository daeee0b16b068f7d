"""Which network addresses may be asked for media. It opens no connection."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import TypeAlias

from quire.errors import BadRequest, Unprocessable

Resolve: TypeAlias = Callable[[str, int], Sequence[str]]
"""The addresses of a host, the preferred one first; OSError or UnicodeError when it has none. It may block."""

MAX_TRIED = 4
"""Addresses of one host that are tried when the first do not answer."""

_NAT64 = IPv6Network("64:ff9b::/96")

NOT_PUBLIC = (
    IPv4Network("168.63.129.16/32"),  # services of the host in Azure
    IPv4Network("192.0.0.0/24"),  # protocol assignments, RFC 6890
    IPv4Network("192.88.99.0/24"),  # relays of 6to4, RFC 7526
    IPv6Network("3fff::/20"),  # documentation, RFC 9637
    IPv6Network("5f00::/16"),  # segment routing, RFC 9602
)
"""Networks that the standard library takes for global ones, in some of its versions."""


def resolve(host: str, port: int) -> list[str]:
    """Addresses as the system finds them."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def is_public(address: str) -> bool:
    """Whether an address belongs to the public internet: not private, loopback, link-local, reserved or multicast.

    IPv4 addresses inside IPv6 ones (mapped, 6to4, Teredo, NAT64) count as what they are.
    """
    parsed = ip_address(address)
    inner = _inner(parsed)
    if inner is not None:
        return is_public(str(inner))
    if isinstance(parsed, IPv6Address) and parsed.is_site_local:
        return False
    if any(parsed in network for network in NOT_PUBLIC):
        return False
    return parsed.is_global and not (parsed.is_multicast or parsed.is_reserved or parsed.is_unspecified)


def _inner(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address leads to, if it does."""
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)


def allowed_addresses(host: str, port: int, resolve: Resolve, private: bool) -> list[str]:
    """The addresses of a host to connect to. It blocks while it asks for them.

    `BadRequest` if one of them is not public and `private` is false; Unprocessable if there are none.
    """
    try:
        found = [address for address in resolve(host, port) if "%" not in address]  # such hold for one link only
    except (OSError, UnicodeError):
        found = []
    if not found:
        raise Unprocessable(f"The host {host!r:.120} of the media URL cannot be found.")
    if not private and not all(is_public(address) for address in found):
        raise BadRequest(
            f"The host {host!r:.120} of the media URL is in a private network or on this machine; the server asks"
            " public addresses only (--allow-private-media-addresses)."
        )
    return found[:MAX_TRIED]

"""Decides from which network addresses media may be fetched. Opens no connection."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import TypeAlias

from quire.errors import BadRequest, Unprocessable

Resolve: TypeAlias = Callable[[str, int], Sequence[str]]
"""(host, port) → its addresses, the preferred one first. Raises OSError or UnicodeError if it has none. May block."""

MAX_TRIED = 4
"""Number of addresses of one host that are tried."""

_NAT64 = IPv6Network("64:ff9b::/96")

NOT_PUBLIC = (
    IPv4Network("168.63.129.16/32"),  # Azure's platform services for virtual machines
    IPv4Network("192.0.0.0/24"),  # protocol assignments, RFC 6890
    IPv4Network("192.88.99.0/24"),  # relays of 6to4, RFC 7526
    IPv6Network("3fff::/20"),  # documentation, RFC 9637
    IPv6Network("5f00::/16"),  # segment routing, RFC 9602
)
"""Networks that some versions of the standard library take for global ones."""


def resolve(host: str, port: int) -> list[str]:
    """The addresses that the system's resolver returns."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def is_public(address: str) -> bool:
    """Whether an address is on the public internet: not private, loopback, link-local, reserved or multicast.

    For an IPv6 address that contains an IPv4 address (mapped, 6to4, Teredo, NAT64), the IPv4 address decides.
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
    """The IPv4 address inside an IPv6 address, if there is one."""
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)


def allowed_addresses(host: str, port: int, resolve: Resolve, private: bool) -> list[str]:
    """Look up the addresses of a host. Blocks.

    Raises `BadRequest` if one of them is not public and `private` is false, Unprocessable if there are none.
    """
    try:
        found = [address for address in resolve(host, port) if "%" not in address]  # skip link-local scopes
    except (OSError, UnicodeError):
        found = []
    if not found:
        raise Unprocessable(f"The host {host!r:.120} of the media URL cannot be found.")
    if not private and not all(is_public(address) for address in found):
        raise BadRequest(
            f"The host {host!r:.120} of the media URL is in a private network or on this machine; the server fetches"
            " from public addresses only (--allow-private-media-addresses)."
        )
    return found[:MAX_TRIED]

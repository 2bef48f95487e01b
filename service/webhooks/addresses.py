"""Rules for webhook URLs and for the network addresses that webhooks may connect to.

The URL is checked when it is set. Before each attempt, every resolved address is checked, and the connection is made
to a checked address. DNS rebinding has no effect, because the name is resolved once per attempt.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

from models.tables.webhooks import MAX_URL

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_PORTS = {"https": 443, "http": 80}
FIRST_FREE_PORT = 1024  # lower ports are rejected except the scheme's default, to protect mail servers and the like
_PRINTABLE = re.compile(r"[\x21-\x7e]+")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")  # forms that resolvers accept as (a part of) an IPv4 address
_MAX_HOST = 253

# Networks in addition to those that `ipaddress` calls not global, which depend on the Python version.
NEVER = tuple(
    ip_network(each)
    for each in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15"),
        *("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        "168.63.129.16/32",  # metadata service of a cloud provider, at a public address
        *("::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16"),
        *("fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8"),
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")
_SIX_TO_FOUR = IPv6Network("2002::/16")


class BadUrl(ValueError):
    """The URL violates a rule. The message names the rule and does not quote the URL."""


class AddressNotAllowed(Exception):
    """The host has no allowed address. There is no reason, because reasons would reveal a private network."""


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed URL."""

    scheme: str
    host: str  # a name, or an address without brackets
    port: int
    path: str  # with the query

    @property
    def authority(self) -> str:
        """Return the value of the `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def url_of(self, address: Address) -> str:
        """Return the URL with an address in place of the host."""
        host = f"[{address}]" if address.version == 6 else str(address)
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def parse(url: str, networks: Sequence[Network]) -> Target:
    """Parse and check a URL.

    Parameters
    ----------
    url : str
    networks : sequence of networks
        Private networks that the operator allows. If there are any, a URL may use plain http or a host without a dot;
        each attempt then checks that the address lies in these networks.

    Raises
    ------
    BadUrl
    """
    if len(url) > MAX_URL or not _PRINTABLE.fullmatch(url) or "\\" in url:
        raise BadUrl(
            f"the URL must have at most {MAX_URL} printable ASCII characters; encode other characters as %XX or xn--"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise BadUrl("the URL is not valid") from None
    if parts.scheme not in (("https", "http") if networks else ("https",)):
        raise BadUrl("the URL must begin with https://")
    if "@" in parts.netloc or "#" in url:
        raise BadUrl("the URL must not contain a user, a password or a fragment")
    port = _port(parts, port)
    host = _host(parts, networks)
    path = parts.path + ("?" + parts.query if parts.query else "")
    return Target(parts.scheme, host, port, path if path.startswith("/") else "/" + path)


def _port(parts: SplitResult, port: int | None) -> int:
    if port is None:
        if parts.netloc.endswith(":"):
            raise BadUrl("the port after the colon is missing")
        return _PORTS[parts.scheme]
    if port != _PORTS[parts.scheme] and port < FIRST_FREE_PORT:
        raise BadUrl(f"the port must be {_PORTS[parts.scheme]}, or {FIRST_FREE_PORT} or more")
    return port


def _host(parts: SplitResult, networks: Sequence[Network]) -> str:
    host = (parts.hostname or "").lower()
    literal = _literal(host)
    if ("[" in parts.netloc) != isinstance(literal, IPv6Address):
        raise BadUrl("brackets are allowed around IPv6 addresses only, and required there")
    if literal is not None:
        if not is_allowed(literal, networks):
            raise BadUrl("the address must be public")
        if parts.scheme == "http" and not _is_within(literal, networks):
            raise BadUrl("the URL must begin with https://")
        return str(literal)
    labels = host.split(".")
    if len(host) > _MAX_HOST or not all(_LABEL.fullmatch(label) for label in labels):
        raise BadUrl("the host must be a name or an address")
    if _NUMBER.fullmatch(labels[-1]):
        raise BadUrl("write an IPv4 address as four decimal numbers, and an IPv6 address in brackets")
    if not networks and (len(labels) == 1 or labels[-1] == "localhost"):
        raise BadUrl("the host must be a public name")
    return host


def _literal(host: str) -> Address | None:
    try:
        return None if "%" in host else ip_address(host)
    except ValueError:
        return None


def is_literal(host: str) -> bool:
    """Return whether a host is an address and needs no name resolution."""
    return _literal(host) is not None


def is_allowed(address: Address, networks: Sequence[Network]) -> bool:
    """Return whether a webhook may connect to an address: a public one, or one in the operator's networks.

    An IPv4 address embedded in an IPv6 address (mapped, 6to4, NAT64) is checked as the IPv4 address.
    """
    inner = _embedded(address)
    if inner is not None:
        return is_allowed(inner, networks)
    if any(address in network for network in networks if network.version == address.version):
        return True
    if any(address in network for network in NEVER if network.version == address.version):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def _embedded(address: Address) -> IPv4Address | None:
    if isinstance(address, IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    if address in _SIX_TO_FOUR:
        return IPv4Address(int(address) >> 80 & 0xFFFF_FFFF)
    return None


def check_addresses(target: Target, resolved: Sequence[str], networks: Sequence[Network]) -> list[Address]:
    """Return the addresses to connect to, in order and without duplicates.

    Parameters
    ----------
    target : Target
    resolved : sequence of str
        All resolved addresses of the host.
    networks : sequence of networks
        Private networks that the operator allows. With plain http, all addresses must lie in them.

    Raises
    ------
    AddressNotAllowed
        There is no address, or at least one of them is not allowed.
    """
    addresses = []
    for each in resolved:
        address = _literal(each)  # None for a scoped address (fe80::1%eth0), which is link-local
        if address is None or not is_allowed(address, networks):
            raise AddressNotAllowed
        if target.scheme == "http" and not _is_within(address, networks):
            raise AddressNotAllowed
        addresses.append(address)
    if not addresses:
        raise AddressNotAllowed
    return list(dict.fromkeys(addresses))


def _is_within(address: Address, networks: Sequence[Network]) -> bool:
    inner = _embedded(address) or address
    return any(inner in network for network in networks if network.version == inner.version)

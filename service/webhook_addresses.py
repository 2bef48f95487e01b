"""Where a webhook may lead: what its URL may look like, and which network addresses may be connected to.

The URL is checked when it is set; every address its name resolves to is checked before each
attempt, and the connection is made to the address that was checked. A name that is answered
otherwise the next time (DNS rebinding) wins nothing: nobody asks a second time.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

from models.webhook import MAX_URL

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_PORTS = {"https": 443, "http": 80}
FIRST_FREE_PORT = 1024  # below it only the scheme's own: mail servers and the like are not to be spoken to
_PRINTABLE = re.compile(r"[\x21-\x7e]+")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")  # what resolvers take for (a part of) an IPv4 address
_MAX_HOST = 253

# Beside what `ipaddress` calls not global, which differs between versions of Python.
NEVER = tuple(
    ip_network(each)
    for each in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15"),
        *("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        "168.63.129.16/32",  # a cloud's metadata, though the address is a public one
        *("::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16"),
        *("fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8"),
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")
_SIX_TO_FOUR = IPv6Network("2002::/16")


class BadUrl(ValueError):
    """A URL that no webhook may have; the message says the rule, and repeats nothing of it."""


class NoSuchAddress(Exception):
    """A host that leads to no address a webhook may reach; why is not told: it would map a private network."""


@dataclass(frozen=True, slots=True)
class Target:
    """A URL taken apart."""

    scheme: str
    host: str  # a name, or an address without brackets
    port: int
    path: str  # with the query

    @property
    def authority(self) -> str:
        """What the header `Host` says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def url_of(self, address: Address) -> str:
        """The same at an address."""
        host = f"[{address}]" if address.version == 6 else str(address)
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def parse(url: str, networks: Sequence[Network]) -> Target:
    """Take a URL apart.

    Parameters
    ----------
    url : str
    networks : sequence of networks
        What the operator allows in spite of being private. Only where there is any may a URL be
        plain http or name a host without a dot; whether it leads there is checked at each attempt.

    Raises
    ------
    BadUrl
    """
    if len(url) > MAX_URL or not _PRINTABLE.fullmatch(url) or "\\" in url:
        raise BadUrl(f"a URL of at most {MAX_URL} printable ASCII characters is needed; write others as %XX or xn--")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise BadUrl("this is no URL") from None
    if parts.scheme not in (("https", "http") if networks else ("https",)):
        raise BadUrl("the URL must begin with https://")
    if "@" in parts.netloc or "#" in url:
        raise BadUrl("a URL with a user, a password or a fragment is not taken")
    port = _port(parts, port)
    host = _host(parts, networks)
    path = parts.path + ("?" + parts.query if parts.query else "")
    return Target(parts.scheme, host, port, path if path.startswith("/") else "/" + path)


def _port(parts: SplitResult, port: int | None) -> int:
    if port is None:
        if parts.netloc.endswith(":"):
            raise BadUrl("a port is missing after the colon")
        return _PORTS[parts.scheme]
    if port != _PORTS[parts.scheme] and port < FIRST_FREE_PORT:
        raise BadUrl(f"the port must be {_PORTS[parts.scheme]}, or {FIRST_FREE_PORT} or more")
    return port


def _host(parts: SplitResult, networks: Sequence[Network]) -> str:
    host = (parts.hostname or "").lower()
    literal = _literal(host)
    if ("[" in parts.netloc) != isinstance(literal, IPv6Address):
        raise BadUrl("brackets are for IPv6 addresses")
    if literal is not None:
        if not is_allowed(literal, networks):
            raise BadUrl("this address is not a public one")
        if parts.scheme == "http" and not _is_within(literal, networks):
            raise BadUrl("the URL must begin with https://")
        return str(literal)
    labels = host.split(".")
    if len(host) > _MAX_HOST or not all(_LABEL.fullmatch(label) for label in labels):
        raise BadUrl("the host must be a name or an address")
    if _NUMBER.fullmatch(labels[-1]):
        raise BadUrl("an address is written as four decimal numbers, or in brackets")
    if not networks and (len(labels) == 1 or labels[-1] == "localhost"):
        raise BadUrl("the host must be a public name")
    return host


def _literal(host: str) -> Address | None:
    try:
        return None if "%" in host else ip_address(host)
    except ValueError:
        return None


def is_literal(host: str) -> bool:
    """Whether a host is an address itself, which nobody has to look up."""
    return _literal(host) is not None


def is_allowed(address: Address, networks: Sequence[Network]) -> bool:
    """Whether a webhook may connect to this address: a public one, or one of the operator's networks.

    An IPv4 address inside of an IPv6 one (mapped, 6to4, NAT64) is looked at as what it is.
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


def checked(target: Target, found: Sequence[str], networks: Sequence[Network]) -> list[Address]:
    """The addresses to connect to, in the order found, without repeats.

    Parameters
    ----------
    found : sequence of str
        Everything the host resolves to.

    Raises
    ------
    NoSuchAddress
        There is none, or one of them is not allowed: then none is taken. Plain http needs every
        address within the operator's networks.
    """
    addresses = []
    for each in found:
        address = _literal(each)  # a scope (fe80::1%eth0) is link-local anyway
        if address is None or not is_allowed(address, networks):
            raise NoSuchAddress
        if target.scheme == "http" and not _is_within(address, networks):
            raise NoSuchAddress
        addresses.append(address)
    if not addresses:
        raise NoSuchAddress
    return list(dict.fromkeys(addresses))


def _is_within(address: Address, networks: Sequence[Network]) -> bool:
    inner = _embedded(address) or address
    return any(inner in network for network in networks if network.version == inner.version)

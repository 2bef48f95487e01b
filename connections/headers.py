"""Request headers that the gateway and the shuffler read alike, as proxies rewrite them (RFC 9110, section 5.3)."""

from collections.abc import Iterable


class SeveralValues(ValueError):
    """A request has several different values of a header that has one. Its message names the remedy."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the request has several `{name}` headers: send one")


def one_field(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """Return a header by its lower-case name without surrounding spaces, or None if there is none.

    Repetitions of the same value count once. Raise SeveralValues for different values.
    """
    values = {value.decode("latin-1").strip(" \t") for key, value in headers if key == name}
    if len(values) > 1:
        raise SeveralValues(name.decode().title())
    return values.pop() if values else None


def bearer_secret(authorization: str | None) -> str | None:
    """Return the key of an `Authorization` header, or None if it has none. Raise SeveralValues for several keys."""
    scheme, *rest = (authorization or "").split(None, 1) or [""]
    if scheme.lower() != "bearer" or not rest:
        return None
    secret = rest[0].strip()
    if "," in secret:  # a proxy may have joined two fields, and checked the other one
        raise SeveralValues("Authorization")
    return secret or None

"""Times between the tables (microseconds since the epoch) and the wire (RFC 3339, UTC, six decimals)."""

import re
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def timestamp(microseconds: int) -> str:
    """1_700_000_000_000_000 -> '2023-11-14T22:13:20.000000Z'."""
    at = _EPOCH + timedelta(microseconds=microseconds)
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def optional_timestamp(microseconds: int | None) -> str | None:
    """The same, for a time that may not have come."""
    return None if microseconds is None else timestamp(microseconds)


def from_timestamp(text: str) -> int:
    """Microseconds since the epoch; what is finer is cut off. Raises ValueError for what RFC 3339 does not know."""
    if not _RFC_3339.fullmatch(text):
        raise ValueError("not a time of RFC 3339")
    at = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text.upper()))
    return (at - _EPOCH) // timedelta(microseconds=1)

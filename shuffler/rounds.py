"""Rounds as the service publishes them, with the terms under which the shuffler collects and releases reports."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sfumato.device.open_rounds import MAX_OPEN_ROUNDS
from sfumato.device.sealing import OUTER_BYTES, sealed_length
from sfumato.errors import InvalidSpec
from sfumato.specs import round_spec_from_wire

MAX_SENT_BYTES = 1 << 16  # length of a sealed report with its outer layer

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)  # becomes a part of a path


@dataclass(frozen=True, slots=True)
class Round:
    """A shuffled round.

    Attributes
    ----------
    id : str
    document : bytes
        Canonical JSON, the bytes that devices receive and to which reports are sealed.
    target_reports : int
        Number of reports at which the round is released. At least `min_batch`.
    min_batch : int
        Minimum number of reports in the release.
    closes_at : float
        Time at which the round is released if it has `min_batch` reports, in seconds since the epoch.
    sealed_bytes : int
        Length of each sealed report, without its outer layer.
    """

    id: str
    document: bytes
    target_reports: int
    min_batch: int
    closes_at: float
    sealed_bytes: int

    @property
    def sent_bytes(self) -> int:
        """Return the length of each sealed report with its outer layer."""
        return self.sealed_bytes + OUTER_BYTES


def parse_round(document: bytes) -> Round:
    """Return the round of a document. Raise InvalidSpec if it is no shuffled round."""
    try:
        members = json.loads(document)
        spec = round_spec_from_wire(members["spec"])
        closes_at = datetime.fromisoformat(members["closes_at"])
        found = Round(
            members["id"],
            document,
            _count(members["target_reports"]),
            _count(members["min_batch"]),
            closes_at.timestamp(),
            sealed_length(spec.mechanism.value_bytes),
        )
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError, AttributeError):
        raise InvalidSpec("this is not a shuffled round") from None
    if not 1 <= found.min_batch <= found.target_reports or closes_at.tzinfo is None:
        raise InvalidSpec("a shuffled round must have 1 <= min_batch <= target_reports and a time with an offset")
    if not isinstance(found.id, str) or not _ID.fullmatch(found.id):
        raise InvalidSpec("a round id must have 1 to 64 letters, digits, _ or -")
    if found.sent_bytes > MAX_SENT_BYTES:
        raise InvalidSpec(f"a sealed report with its outer layer may have at most {MAX_SENT_BYTES} bytes")
    return found


def parse_listing(listing: Mapping[str, Any]) -> list[Round]:
    """Return the shuffled rounds of the service's list of open rounds. Raise InvalidSpec.

    The list contains the canonical JSON of each round. Writing it again returns the same bytes.
    """
    rounds = listing.get("rounds")
    if not isinstance(rounds, list) or len(rounds) > MAX_OPEN_ROUNDS:
        raise InvalidSpec(f"the service's open rounds must be a list of at most {MAX_OPEN_ROUNDS}")
    try:
        return [parse_round(_canonical_json(each)) for each in rounds]
    except (ValueError, RecursionError):  # not a number, a lone surrogate, or too deep
        raise InvalidSpec("the service's list of open rounds is no canonical JSON") from None


def _count(value: object) -> int:
    if type(value) is not int:
        raise TypeError("a count must be an integer")
    return value


def _canonical_json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()

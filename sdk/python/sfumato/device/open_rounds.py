"""Open rounds as the service lists them. They are checked before they become parts of a path or of a decision."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sfumato.errors import InvalidSpec, RoundRefused

MAX_OPEN_ROUNDS = 64

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)  # ids of the service that become parts of paths


@dataclass(frozen=True, slots=True)
class OpenRound:
    """An open round as the service lists it. Its specification is parsed later."""

    round_id: str
    collection_id: str
    epsilon: object  # declared by the service
    spec_wire: object
    keep_reports: bool  # False only if the service promises to delete the report


def check_id(value: object) -> str:
    """Return an id of the service, which becomes a part of a path. Raise InvalidSpec if it has another form."""
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise InvalidSpec("an id must have 1 to 64 letters, digits, _ or -")
    return value


def refuse_shuffled(wire: Mapping[str, Any]) -> None:
    """Raise RoundRefused if a round needs sealed reports: the service must not receive them from a device."""
    rounds = wire.get("rounds")
    if isinstance(rounds, list) and any(isinstance(each, Mapping) and "hpke_public_key" in each for each in rounds):
        raise RoundRefused("this dataset is shuffled: send sealed reports to its shuffler, not to the service")


def parse_open_rounds(wire: Mapping[str, Any]) -> tuple[OpenRound, ...]:
    """Return the listed open rounds. Raise InvalidSpec. Their specifications are parsed later."""
    rounds = wire.get("rounds")
    if not isinstance(rounds, list) or len(rounds) > MAX_OPEN_ROUNDS:
        raise InvalidSpec(f"open rounds must be a list of at most {MAX_OPEN_ROUNDS}")
    if not all(isinstance(item, Mapping) for item in rounds):
        raise InvalidSpec("an open round must be an object")
    open_rounds = tuple(
        OpenRound(
            check_id(item.get("id")),
            check_id(item.get("collection_id")),
            item.get("epsilon"),
            item.get("spec"),
            item.get("keep_reports") is not False,
        )
        for item in rounds
    )
    if len({open_round.round_id for open_round in open_rounds}) != len(open_rounds):
        raise InvalidSpec("an open round is listed twice")
    return open_rounds

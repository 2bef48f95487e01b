"""`sfumato report`: each row of a CSV file perturbed as one device would, and sent."""

import csv
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from service.embedded import ADMIN_KEY, URL
from sfumato.bulk import perturb_records
from sfumato.client import Client
from sfumato.entropy import SystemEntropy
from sfumato.resources import Round
from sfumato.specs import Feature


class Unusable(Exception):
    """What was given cannot be sent; says what, never a value."""


@dataclass(frozen=True)
class Sent:
    """A round after it was reported to, and how many reports that were."""

    round: Round
    n_sent: int


def service(home: Path) -> tuple[str, str]:
    """(address, key): SFUMATO_URL and SFUMATO_KEY, or what `sfumato serve` left in its home."""
    found = []
    for variable, file in (("SFUMATO_URL", home / URL), ("SFUMATO_KEY", home / ADMIN_KEY)):
        value = os.environ.get(variable, "").strip()
        if not value:
            try:
                value = file.read_text(encoding="ascii").strip()
            except OSError:
                raise Unusable(f"set {variable}, or run `sfumato serve` here") from None
        found.append(value)
    return found[0], found[1]


def send(dataset_id: str, source: Path, client: Client) -> list[Sent]:
    """Perturb and send; what each round was sent, and how it stands now.

    Every open round of the oldest collection is answered by the devices its draw asks.

    Raises
    ------
    Unusable
        No open round, or a file that does not fit the features.
    """
    still_open = [each for each in client.rounds(dataset_id) if each.state == "open"]
    if not still_open:
        raise Unusable("this dataset has no open round")
    collection = [each for each in still_open if each.collection_id == still_open[0].collection_id]
    records = read(source, collection[0].spec.features)
    draws = SystemEntropy().words(len(records))
    found = []
    for each in collection:
        reports = perturb_records(each.spec, records, draws=draws)
        n_sent = client.send_reports(each.id, *reports) if len(reports.slots) else 0
        found.append(Sent(client.get_round(each.id), n_sent))
    return found


def read(source: Path, features: Sequence[Feature]) -> NDArray[np.float64]:
    """The features' columns of a CSV file, float64 of shape (n, n_features). Raises Unusable."""
    with source.open(newline="", encoding="utf-8-sig") as file:
        try:
            rows = csv.reader(file)
            header = [name.strip() for name in next(rows, [])]
            missing = [feature.name for feature in features if feature.name not in header]
            if missing:
                raise Unusable(f"the file has no column {', '.join(missing)}; its header names the features")
            places = [header.index(feature.name) for feature in features]
            records = [[_number(row, place, rows.line_num) for place in places] for row in rows if row]
        except (csv.Error, UnicodeDecodeError):
            raise Unusable("the file is not CSV in UTF-8") from None
    if not records:
        raise Unusable("the file has no rows")
    return np.array(records, dtype=np.float64)


def _number(row: Sequence[str], place: int, line: int) -> float:
    try:
        value = float(row[place])
    except (ValueError, IndexError):
        value = math.nan
    if not math.isfinite(value):
        raise Unusable(f"line {line} has no finite number in column {place + 1}; nothing was sent")
    return value

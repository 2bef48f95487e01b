"""Send each row of a CSV file as the report of one device: `sfumato report`."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from service.cli.connection import Unusable
from service.cli.report_receipt import Receipt, ReceiptUnusable, open_receipt, receipt_path
from sfumato.api.client import Client
from sfumato.api.resources import Round
from sfumato.device.bulk import perturb_records
from sfumato.privacy.entropy import SystemEntropy
from sfumato.specs import Feature


@dataclass(frozen=True)
class ReportedRound:
    """A round after its reports were sent, and the number of them."""

    round: Round
    n_sent: int


def send(dataset_id: str, source: Path, client: Client) -> list[ReportedRound]:
    """Perturb the rows of a file and send them to the open rounds of the oldest open collection.

    Each row is a device with one secret draw, which decides the rounds that the device reports to. The receipt beside
    the file keeps the draws, and the reports until they are sent: an interrupted run continues with identical bytes.

    Raises
    ------
    Unusable
        The dataset has no open round, the file does not fit the features, its receipt cannot be used, or all of its
        reports are already sent.
    """
    open_rounds = [each for each in client.rounds(dataset_id) if each.state == "open"]
    if not open_rounds:
        raise Unusable("this dataset has no open round")
    collection = [each for each in open_rounds if each.collection_id == open_rounds[0].collection_id]
    records = read_csv(source, collection[0].spec.features)
    try:
        with open_receipt(source) as receipt:
            return [_send_round(each, records, receipt, client) for each in _unfinished(collection, receipt, source)]
    except ReceiptUnusable as error:
        raise Unusable(str(error)) from None


def _unfinished(collection: Sequence[Round], receipt: Receipt, source: Path) -> list[Round]:
    """Return the open rounds that lack reports of the file. Raise Unusable if there are none."""
    unfinished = [each for each in collection if not receipt.is_finished(each.id)]
    if not unfinished:
        names = ", ".join(each.id for each in collection)
        raise Unusable(
            f"the receipt {receipt_path(source).name} shows that the reports of this file to {names} are stored; "
            "nothing was sent. A second report would double the epsilon of each person: wait for the next round."
        )
    return unfinished


def _send_round(open_round: Round, records: NDArray[np.float64], receipt: Receipt, client: Client) -> ReportedRound:
    """Send the stored reports to a round, or draw and store them first."""
    draws = receipt.get_draws(open_round.collection_id)
    if draws is None:
        draws = SystemEntropy().words(len(records))
        receipt.add_draws(open_round.collection_id, draws)
    reports = receipt.get_reports(open_round.id)
    if reports is None:
        reports = perturb_records(open_round.spec, records, draws=draws)
        receipt.add_reports(open_round.id, reports)
    n_sent = client.send_reports(open_round.id, *reports) if len(reports.slots) else 0
    receipt.finish(open_round.id)
    return ReportedRound(client.get_round(open_round.id), n_sent)


def read_csv(source: Path, features: Sequence[Feature]) -> NDArray[np.float64]:
    """Return the features' columns of a CSV file, shape (n, n_features). Raise Unusable."""
    with source.open(newline="", encoding="utf-8-sig") as file:
        try:
            rows = csv.reader(file)
            header = [name.strip() for name in next(rows, [])]
            missing = [feature.name for feature in features if feature.name not in header]
            if missing:
                raise Unusable(f"the file has no column {', '.join(missing)}; its header names the features")
            columns = [header.index(feature.name) for feature in features]
            records = [[_number(row, column, rows.line_num) for column in columns] for row in rows if row]
        except (csv.Error, UnicodeDecodeError):
            raise Unusable("the file is not CSV in UTF-8") from None
    if not records:
        raise Unusable("the file has no rows")
    return np.array(records, dtype=np.float64)


def _number(row: Sequence[str], column: int, line: int) -> float:
    try:
        value = float(row[column])
    except (ValueError, IndexError):
        value = math.nan
    if not math.isfinite(value):
        raise Unusable(f"line {line} has no finite number in column {column + 1}; nothing was sent")
    return value

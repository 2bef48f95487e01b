"""Send each row of a CSV file as the report of one device: `sfumato report`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from service.cli.connection import Unusable
from service.cli.report_receipt import Receipt, ReceiptUnusable, open_receipt, receipt_path
from service.http.problems import Problem
from service.ingestion.record_formats import CsvReader
from service.ingestion.record_validation import NOTHING_STORED, bad_record, encode_cells, rounded_bounds
from sfumato.api.client import Client
from sfumato.api.resources import AttributeCounts, Round
from sfumato.device.bulk import perturb_records
from sfumato.privacy.entropy import SystemEntropy
from sfumato.records.attribute_codes import AttributeEncoder, Cells
from sfumato.records.described import describe
from sfumato.specs import Feature
from sfumato.specs.attributes import Attribute

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class ReportedRound:
    """A round after its reports were sent, and the number of them."""

    round: Round
    n_sent: int


@dataclass(frozen=True)
class Reported:
    """The rounds that received reports, and what the file had beyond the declared values.

    Attributes
    ----------
    rounds : list of ReportedRound
    n_records : int
    n_clipped : int
        Records with a value outside of its bounds.
    attributes : list of AttributeCounts
        Undeclared values of each attribute that the rounds read.
    """

    rounds: list[ReportedRound]
    n_records: int
    n_clipped: int
    attributes: list[AttributeCounts]


@dataclass(frozen=True)
class People:
    """The records of a file.

    Attributes
    ----------
    points : ndarray of shape (n, n_features), float64
    codes : dict of str to ndarray of shape (n,), int32
        Category of each attribute.
    n_clipped : int
        Devices move the values of these records to the bounds.
    counts : list of AttributeCounts
    """

    points: NDArray[np.float64]
    codes: dict[str, NDArray[np.int32]] = field(default_factory=dict)
    n_clipped: int = 0
    counts: list[AttributeCounts] = field(default_factory=list)


def send(dataset_id: str, source: Path, client: Client) -> Reported:
    """Perturb the rows of a file and send them to the open rounds of the oldest open collection.

    Each row is a device with one secret draw, which decides the rounds that the device reports to. The receipt beside
    the file keeps the draws, and the reports until they are sent: an interrupted run continues with identical bytes.

    Raises
    ------
    Unusable
        The dataset has no open round, the file does not fit the features and attributes, its receipt cannot be used,
        or all of its reports are already sent.
    """
    open_rounds = [each for each in client.rounds(dataset_id) if each.state == "open"]
    if not open_rounds:
        raise Unusable("this dataset has no open round")
    collection = [each for each in open_rounds if each.collection_id == open_rounds[0].collection_id]
    people = read_csv(source, collection[0].spec.features, collection[0].spec.attributes)
    try:
        with open_receipt(source) as receipt:
            unfinished = _unfinished(collection, receipt, source)
            rounds = [_send_round(each, people, receipt, client) for each in unfinished]
            return Reported(rounds, len(people.points), people.n_clipped, people.counts)
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


def _send_round(open_round: Round, people: People, receipt: Receipt, client: Client) -> ReportedRound:
    """Send the stored reports to a round, or draw and store them first."""
    draws = receipt.get_draws(open_round.collection_id)
    if draws is None:
        draws = SystemEntropy().words(len(people.points))
        receipt.add_draws(open_round.collection_id, draws)
    reports = receipt.get_reports(open_round.id)
    if reports is None:
        reports = perturb_records(open_round.spec, describe(open_round.spec, people.points, people.codes), draws=draws)
        receipt.add_reports(open_round.id, reports)
    n_sent = client.send_reports(open_round.id, *reports) if len(reports.slots) else 0
    receipt.finish(open_round.id)
    return ReportedRound(client.get_round(open_round.id), n_sent)


class _Sink:
    """Receiver of the records of a file."""

    user_feature = None

    def __init__(self, features: Sequence[Feature], attributes: Sequence[Attribute]) -> None:
        self.features, self.attributes = features, attributes
        self.columns = [each.name for each in (*features, *attributes)]
        self.encoders = [AttributeEncoder(each, rejects_outside=False) for each in attributes]
        self.codes = [[np.empty(0, dtype=np.int32)] for _ in attributes]
        self.n_records = self.n_clipped = 0
        self.parts = [np.empty((0, len(features)))]
        self._least, self._most = rounded_bounds(features)

    def add(
        self, values: NDArray[np.float64], _users: object, _widths: None = None, cells: Sequence[Cells] = ()
    ) -> None:
        """Add records. Raise ValidationFailed for a value that is not finite, or that an attribute refuses."""
        bad = ~np.isfinite(values)
        n_valid = int(bad.any(axis=1).argmax()) if bad.any() else len(values)
        codes = encode_cells(self.encoders, cells, self.n_records, n_valid)
        if bad.any():
            row, column = np.argwhere(bad)[0].tolist()
            raise bad_record(self.n_records + row, f"{self.columns[column]} must be a finite number")
        self.n_records += len(values)
        self.n_clipped += int(((values < self._least) | (values > self._most)).any(axis=1).sum())
        self.parts.append(values)
        for parts, part in zip(self.codes, codes, strict=True):
            parts.append(part)


def read_csv(source: Path, features: Sequence[Feature], attributes: Sequence[Attribute] = ()) -> People:
    """Return the records of a CSV file. The file must be one that the service accepts as an upload of records.

    Raises
    ------
    Unusable
        The file does not fit the features and attributes.
    """
    sink = _Sink(features, attributes)
    reader = CsvReader(sink)
    try:
        with source.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                reader.feed(piece)
        reader.finish()
    except Problem as problem:
        errors = problem.more.get("errors") or [{"message": problem.detail}]
        messages = [each["message"].removesuffix(NOTHING_STORED) for each in errors]
        raise Unusable(f"{'; '.join(messages)}; nothing was sent") from None
    if not sink.n_records:
        raise Unusable("the file has no records; nothing was sent")
    codes = {each.name: np.concatenate(parts) for each, parts in zip(attributes, sink.codes, strict=True)}
    counts = [AttributeCounts(**asdict(each.counts)) for each in sink.encoders]
    return People(np.concatenate(sink.parts), codes, sink.n_clipped, counts)

"""Send each row of a CSV file as the report of one device: `sfumato report`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from service.cli.connection import Unusable
from service.cli.report_receipt import Receipt, ReceiptUnusable, open_receipt, receipt_path
from service.http.problems import Problem
from service.ingestion.record_formats import CsvReader
from service.ingestion.record_validation import NOTHING_STORED, bad_record, rounded_bounds
from sfumato.api.client import Client
from sfumato.api.resources import Round
from sfumato.device.bulk import perturb_records
from sfumato.privacy.entropy import SystemEntropy
from sfumato.records.attribute_codes import AttributeEncoder, Cells, InvalidCell
from sfumato.records.described import Described, categories
from sfumato.specs import Feature, RoundSpec, attributes_of
from sfumato.specs.attributes import Attribute

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class ReportedRound:
    """A round after its reports were sent, and the number of them."""

    round: Round
    n_sent: int


@dataclass(frozen=True)
class Reported:
    """The rounds that received reports, and the records of the file with a value outside of its bounds."""

    rounds: list[ReportedRound]
    n_records: int
    n_clipped: int


def send(dataset_id: str, source: Path, client: Client) -> Reported:
    """Perturb the rows of a file and send them to the open rounds of the oldest open collection.

    Each row is a device with one secret draw, which decides the rounds that the device reports to. The receipt beside
    the file keeps the draws, and the reports until they are sent: an interrupted run continues with identical bytes.

    Raises
    ------
    Unusable
        The dataset has no open round, the file does not fit the features and attributes of the round, its receipt
        cannot be used, or all of its reports are already sent.
    """
    open_rounds = [each for each in client.rounds(dataset_id) if each.state == "open"]
    if not open_rounds:
        raise Unusable("this dataset has no open round")
    collection = [each for each in open_rounds if each.collection_id == open_rounds[0].collection_id]
    spec = collection[0].spec
    records, n_clipped = read_csv(source, spec.features, spec.attributes)
    try:
        with open_receipt(source) as receipt:
            unfinished = _unfinished(collection, receipt, source)
            rounds = [_send_round(each, records, receipt, client) for each in unfinished]
            return Reported(rounds, len(records.points), n_clipped)
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


def _send_round(open_round: Round, records: Described, receipt: Receipt, client: Client) -> ReportedRound:
    """Send the stored reports to a round, or draw and store them first."""
    draws = receipt.get_draws(open_round.collection_id)
    if draws is None:
        draws = SystemEntropy().words(len(records.points))
        receipt.add_draws(open_round.collection_id, draws)
    reports = receipt.get_reports(open_round.id)
    if reports is None:
        reports = perturb_records(open_round.spec, _described(open_round.spec, records), draws=draws)
        receipt.add_reports(open_round.id, reports)
    n_sent = client.send_reports(open_round.id, *reports) if len(reports.slots) else 0
    receipt.finish(open_round.id)
    return ReportedRound(client.get_round(open_round.id), n_sent)


def _described(spec: RoundSpec, records: Described) -> Described:
    """Return records with the category of each attribute of a round. An attribute may be a feature in bins."""
    names = [each.name for each in spec.features]
    own = iter(records.codes.T)
    columns = [
        categories(each, records.points[:, names.index(each.name)]) if each.name in names else next(own)
        for each in attributes_of(spec.encoding)
    ]
    return Described(records.points, np.stack(columns, axis=1) if columns else records.codes)


class _People:
    """Receiver of the records of a file."""

    user_feature = None

    def __init__(self, features: Sequence[Feature], attributes: Sequence[Attribute]) -> None:
        self.features, self.attributes = features, attributes
        self.columns = [each.name for each in (*features, *attributes)]
        self.n_records = self.n_clipped = 0
        self._points = [np.empty((0, len(features)))]
        self._codes = [np.empty((0, len(attributes)), dtype=np.int64)]
        self._encoders = [AttributeEncoder(each, rejects_outside=False) for each in attributes]
        self._least, self._most = rounded_bounds(features)

    @property
    def records(self) -> Described:
        """Return the records, with the codes of the attributes."""
        return Described(np.concatenate(self._points), np.concatenate(self._codes))

    def add(
        self, values: NDArray[np.float64], _users: object, _widths: None = None, cells: Sequence[Cells] = ()
    ) -> None:
        """Add records. Raise ValidationFailed for a value that is not finite, or not a category of its attribute."""
        bad = ~np.isfinite(values)
        if bad.any():
            row, column = np.argwhere(bad)[0].tolist()
            raise bad_record(self.n_records + row, f"{self.columns[column]} must be a finite number")
        codes = np.empty((len(values), len(self.attributes)), dtype=np.int64)
        for place, (encoder, column) in enumerate(zip(self._encoders, cells, strict=True)):
            try:
                codes[:, place] = encoder.encode(column)
            except InvalidCell as invalid:
                raise bad_record(self.n_records + invalid.row, str(invalid)) from None
        self.n_records += len(values)
        self.n_clipped += int(((values < self._least) | (values > self._most)).any(axis=1).sum())
        self._points.append(values)
        self._codes.append(codes)


def read_csv(source: Path, features: Sequence[Feature], attributes: Sequence[Attribute] = ()) -> tuple[Described, int]:
    """Return the records of a CSV file, and the number of them with a value outside of its bounds.

    The file must be one that the service accepts as an upload of records.

    Returns
    -------
    records : Described
        With the codes of `attributes`.
    n_clipped : int
        Devices move the values of these records to the bounds.

    Raises
    ------
    Unusable
        The file does not fit the features or the attributes.
    """
    people = _People(features, attributes)
    reader = CsvReader(people)
    try:
        with source.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                reader.feed(piece)
        reader.finish()
    except Problem as problem:
        errors = problem.more.get("errors") or [{"message": problem.detail}]
        messages = [each["message"].removesuffix(NOTHING_STORED) for each in errors]
        raise Unusable(f"{'; '.join(messages)}; nothing was sent") from None
    if not people.n_records:
        raise Unusable("the file has no records; nothing was sent")
    return people.records, people.n_clipped

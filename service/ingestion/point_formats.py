"""Formats of points to label. Points are labelled as they arrive, and never stored.

Points are numbers in the order of the model's features: JSON, packed, or Arrow. Records have named columns, as they are
uploaded: JSON with `columns` and `rows`, CSV, or Arrow. Then an attribute that formed the clusters has its values.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from service.http.middleware import POINTS_BODY_BYTES
from service.http.problems import PayloadTooLarge, Problem, ValidationFailed
from service.ingestion.json_pieces import JsonPieces
from service.ingestion.record_formats import AnyColumns, CsvReader, JsonReader
from service.ingestion.record_validation import bad_record, column_positions
from sfumato.model.cluster_model import ClusterModel
from sfumato.records.attribute_codes import AttributeEncoder, Cells, InvalidCell
from sfumato.records.places import are_beyond, describe_limits
from sfumato.specs import Feature
from sfumato.specs.attributes import Categorical

MAX_POINTS = 1_000_000
_NUMBER_BYTES = 8
_LABEL_BYTES = 4 + 8  # a label takes 4, and its text in the response up to 8
_POINTS_AT_ONCE = 1 << 14  # points labelled at once
_NUMBERS_AT_ONCE = 1 << 21  # numbers of these points, to bound memory


class PointLabeller:
    """The labels of the points and records that a reader passes on, in their order.

    It is the receiver of records for the readers of uploads.

    Parameters
    ----------
    model : ClusterModel
    reserve : callable
        Called with the memory that each piece takes, in bytes.
    """

    user_feature: str | None = None

    def __init__(self, model: ClusterModel, reserve: Callable[[int], None]) -> None:
        self.model, self.reserve_memory = model, reserve
        self.n_features = len(model.features)
        self.features: Sequence[Feature] = model.features[: model.n_numeric]
        self.attributes: Sequence[Categorical] = model.attributes
        self.n_records = 0
        self._encoders = [AttributeEncoder(each, rejects_outside=False) for each in model.attributes]
        self._step = max(1, min(_POINTS_AT_ONCE, _NUMBERS_AT_ONCE // self.n_features))
        self._labels: list[NDArray[np.int32]] = []

    @property
    def columns(self) -> list[str]:
        """Return the columns of records: the numeric features, then the attributes that formed the clusters."""
        return [each.name for each in self.features] + [each.name for each in self.attributes]

    def add(
        self,
        values: NDArray[np.float64],
        _users: Sequence[str | int] | None = None,
        _widths: Sequence[type[np.floating]] | None = None,
        cells: Sequence[Cells] = (),
        /,
    ) -> None:
        """Label records: values of shape (n, n_numeric), and n values of each attribute. They have no users."""
        codes = []
        for encoder, column in zip(self._encoders, cells, strict=True):
            try:
                codes.append(encoder.encode(column))
            except InvalidCell as invalid:
                raise bad_record(self.n_records + invalid.row, str(invalid)) from None
        for start in range(0, len(values), self._step):
            part = slice(start, start + self._step)
            shares = [np.eye(len(each.categories))[of[part]] for each, of in zip(self.attributes, codes, strict=True)]
            self.label(np.column_stack([values[part], *shares]))

    def label(self, points: NDArray[np.float64]) -> None:
        """Label points of shape (n, n_features). Raise ValidationFailed if one is not finite or beyond its limits."""
        if self.n_records + len(points) > MAX_POINTS:
            raise PayloadTooLarge(f"too many points: at most {MAX_POINTS} per request; send several requests")
        self.reserve_memory(_LABEL_BYTES * len(points))
        for start in range(0, len(points), self._step):
            part = points[start : start + self._step]
            self._check(part)
            self._labels.append(self.model.assign(part).astype(np.int32))
            self.n_records += len(part)

    def _check(self, points: NDArray[np.float64]) -> None:
        features = self.model.features
        if not (is_finite := np.isfinite(points)).all():
            row, column = np.argwhere(~is_finite)[0].tolist()
            raise bad_record(self.n_records + row, f"{features[column].name} must be a finite number")
        beyond = are_beyond(features, points)
        if beyond is not None and beyond.any():
            row, column = np.argwhere(beyond)[0].tolist()
            raise bad_record(self.n_records + row, describe_limits(features[column]))

    def document(self) -> bytes:
        """Return the response body."""
        labels = b",".join(msgspec.json.encode(part.tolist())[1:-1] for part in self._labels)
        return b'{"labels":[%b],"names":%b}' % (labels, msgspec.json.encode(self.model.names))


class _Points(AnyColumns):
    points: list[list[float]] | UnsetType = UNSET


class JsonPoints(JsonReader):
    """Reader of `{"points": [[...], ...]}`, or of `columns` and `rows` as in an upload."""

    max_bytes = POINTS_BODY_BYTES

    def __init__(self, labeller: PointLabeller) -> None:
        super().__init__(labeller, _Points)
        self._labeller = labeller

    def finish(self) -> None:
        """Label the rest. Raise ValidationFailed unless there are either points or records."""
        JsonPieces.finish(self)
        if self._seen == {"columns", "rows"}:
            self._add_kept()
        elif self._seen != {"points"}:
            raise ValidationFailed(errors=[self._fault("either `points`, or `columns` and `rows`")])

    def _keep(self, read: Any) -> None:
        if read.points is not UNSET:
            if not set(map(len, read.points)) <= {self._labeller.n_features}:
                raise ValidationFailed(errors=[self._fault("points of the job's features")])
            if read.points:
                self._labeller.label(np.array(read.points, dtype=np.float64))
        super()._keep(read)

    def _schema_error(self, message: str) -> Problem:
        if "`$.rows" in message or "`$.columns" in message:
            return super()._schema_error(message)
        return ValidationFailed(errors=[self._fault("lists of numbers")])

    def _fault(self, expected: str) -> dict[str, str]:
        count = self._labeller.n_features
        return {"pointer": "/points", "message": f"expected {expected}: one list of {count} numbers for each point"}


class PackedPoints:
    """Reader of packed numbers: float64, little-endian, one point after the other."""

    def __init__(self, labeller: PointLabeller) -> None:
        self._labeller = labeller
        self._rest = bytearray()

    def feed(self, piece: bytes) -> None:
        """Label the whole points of the next piece of the body."""
        self._rest += piece
        width = _NUMBER_BYTES * self._labeller.n_features
        n_bytes = len(self._rest) // width * width
        if n_bytes:
            numbers = np.frombuffer(bytes(self._rest[:n_bytes]), dtype="<f8").astype(np.float64)
            del self._rest[:n_bytes]
            self._labeller.label(numbers.reshape(-1, self._labeller.n_features))

    def finish(self) -> None:
        """Raise ValidationFailed if the last point is incomplete."""
        if self._rest:
            raise ValidationFailed(
                f"the last point is incomplete: a point has {self._labeller.n_features} numbers of 8 bytes"
            )


class ArrowPoints:
    """Reader of an Arrow IPC stream or file with a column for each feature, in any order.

    In place of the shares of categories, it may have the column of each attribute.
    """

    def __init__(self, labeller: PointLabeller) -> None:
        self._labeller = labeller
        self._body = bytearray()

    def feed(self, piece: bytes) -> None:
        """Keep the next piece of the body."""
        self._labeller.reserve_memory(2 * len(piece))  # it is copied once
        self._body += piece

    def finish(self) -> None:
        """Label the points."""
        from service.ingestion import arrow  # loads pyarrow, which few gateways need

        labeller = self._labeller
        names = [feature.name for feature in labeller.model.features]
        body, self._body = bytes(self._body), bytearray()
        if {each.name for each in labeller.attributes} & set(arrow.column_names(body)):
            declared, n_numeric = labeller.columns, len(labeller.features)
            for group in arrow.parse_records(
                body, lambda given: column_positions(declared, given), n_numeric, (), labeller.attributes
            ):
                labeller.add(*group)
            return
        for group in arrow.parse_records(body, lambda given: column_positions(names, given), len(names)):
            labeller.label(group.values)


READERS: dict[bytes, type[JsonPoints | PackedPoints | CsvReader | ArrowPoints]] = {
    b"application/json": JsonPoints,
    b"application/octet-stream": PackedPoints,
    b"text/csv": CsvReader,
    b"application/vnd.apache.arrow.stream": ArrowPoints,
    b"application/vnd.apache.arrow.file": ArrowPoints,
}

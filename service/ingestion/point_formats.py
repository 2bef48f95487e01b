"""Formats of points to label: JSON, packed numbers, and Arrow. Points are labelled as they arrive, and never stored."""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from service.http.problems import PayloadTooLarge, ValidationFailed, pointing_at
from service.ingestion.json_pieces import JsonPieces
from service.ingestion.record_validation import column_positions
from sfumato.model.cluster_model import ClusterModel

MAX_POINTS = 1_000_000
_NUMBER_BYTES = 8
_LABEL_BYTES = 4 + 8  # a label takes 4, and its text in the response up to 8
_POINTS_AT_ONCE = 1 << 14  # points labelled at once


class PointLabeller:
    """The labels of the points that a reader passes on, in their order.

    Parameters
    ----------
    model : ClusterModel
    reserve : callable
        Called with the memory that each piece takes, in bytes.
    """

    def __init__(self, model: ClusterModel, reserve: Callable[[int], None]) -> None:
        self.model, self.reserve = model, reserve
        self.n_features = len(model.features)
        self.n_points = 0
        self._labels: list[NDArray[np.int32]] = []

    def add(self, points: NDArray[np.float64]) -> None:
        """Label points of shape (n, n_features). Raise ValidationFailed if one is not finite."""
        self.n_points += len(points)
        if self.n_points > MAX_POINTS:
            raise PayloadTooLarge(f"too many points: at most {MAX_POINTS} per request; send several requests")
        self.reserve(_LABEL_BYTES * len(points))
        for start in range(0, len(points), _POINTS_AT_ONCE):
            with pointing_at("/points"):
                labels = self.model.assign(points[start : start + _POINTS_AT_ONCE])
            self._labels.append(labels.astype(np.int32))

    def document(self) -> bytes:
        """Return the response body."""
        labels = b",".join(msgspec.json.encode(part.tolist())[1:-1] for part in self._labels)
        return b'{"labels":[%b],"names":%b}' % (labels, msgspec.json.encode(self.model.names))


class _Points(msgspec.Struct, forbid_unknown_fields=True):
    points: list[list[float]] | UnsetType = UNSET


class JsonPoints(JsonPieces):
    """Reader of `{"points": [[...], ...]}`."""

    def __init__(self, labeller: PointLabeller) -> None:
        super().__init__(_Points, JsonPoints._add, JsonPoints._explain_fault, labeller.reserve)
        self._labeller = labeller

    def _explain_fault(self, _message: str) -> ValidationFailed:
        return ValidationFailed(errors=[self._fault("lists of numbers")])

    def _fault(self, expected: str) -> dict[str, str]:
        count = self._labeller.n_features
        return {"pointer": "/points", "message": f"expected {expected}: one list of {count} numbers for each point"}

    def _add(self, read: _Points) -> None:
        rows: Sequence[Sequence[float]] = [] if read.points is UNSET else read.points
        if not set(map(len, rows)) <= {self._labeller.n_features}:
            raise ValidationFailed(errors=[self._fault("points of the job's features")])
        if rows:
            self._labeller.add(np.array(rows, dtype=np.float64))

    def finish(self) -> None:
        """Label the rest. Raise ValidationFailed if there is no list of points."""
        super().finish()
        if not self._seen:
            raise ValidationFailed(errors=[{"pointer": "/points", "message": "this field is required: add it"}])


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
            self._labeller.add(numbers.reshape(-1, self._labeller.n_features))

    def finish(self) -> None:
        """Raise ValidationFailed if the last point is incomplete."""
        if self._rest:
            raise ValidationFailed(
                f"the last point is incomplete: a point has {self._labeller.n_features} numbers of 8 bytes"
            )


class ArrowPoints:
    """Reader of an Arrow IPC stream or file with one numeric column per feature, in any order."""

    def __init__(self, labeller: PointLabeller) -> None:
        self._labeller = labeller
        self._body = bytearray()

    def feed(self, piece: bytes) -> None:
        """Keep the next piece of the body."""
        self._labeller.reserve(2 * len(piece))  # it is copied once
        self._body += piece

    def finish(self) -> None:
        """Label the points."""
        from service.ingestion import arrow  # loads pyarrow, which few gateways need

        names = [feature.name for feature in self._labeller.model.features]
        body, self._body = bytes(self._body), bytearray()
        for group in arrow.parse_records(body, lambda given: column_positions(names, given), len(names)):
            self._labeller.add(group.values)


READERS: dict[bytes, type[JsonPoints | PackedPoints | ArrowPoints]] = {
    b"application/json": JsonPoints,
    b"application/octet-stream": PackedPoints,
    b"application/vnd.apache.arrow.stream": ArrowPoints,
    b"application/vnd.apache.arrow.file": ArrowPoints,
}

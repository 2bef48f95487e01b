"""Expected loss ratio of centroids: their mean squared distance over that of k-means without privacy.

It is post-processing of released figures, so it costs no privacy budget. `benchmarks.ratio_table` calibrates it on
data sets of known ratio and writes `ratio_table.json`.
"""

import json
from dataclasses import asdict
from functools import cache
from math import exp, inf, isfinite, log
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfumato.model.precision import ExpectedLoss

TABLE_FILE = Path(__file__).with_name("ratio_table.json")  # written by `benchmarks.ratio_table`
MAX_RATIO = 1000.0  # a greater ratio is stated as this one
FLOOR = 0.01  # added to ratio - 1 before the logarithm
LEAST, MOST = 1e-4, 1e4  # bounds of both predictors

Method = Literal["phase_sketch", "grid_kmeans", "ldp_kmeans"]


class LossEstimate(NamedTuple):
    """An expected loss of at most `MAX_RATIO`, and what it follows from."""

    loss: ExpectedLoss
    predictors: tuple[float, float]  # see `predictors`

    def to_wire(self) -> dict[str, float | list[float]]:
        """Return plain JSON values."""
        return {**asdict(self.loss), "predictors": list(self.predictors)}


def predictors(
    shares: NDArray[np.float64], errors: NDArray[np.float64], within: float, lack: float
) -> tuple[float, float]:
    """Return the logarithms of both predictors, each within `LEAST` and `MOST`.

    Parameters
    ----------
    shares : ndarray of shape (k,)
    errors : ndarray of shape (k, d)
        Standard errors of the centroids, in shares of a feature's range. An error that is not finite counts as 1.
    within : float
        Estimated mean squared distance of points from their centroid, in the same unit.
    lack : float
        Required reports over collected reports.
    """
    known = np.minimum(np.where(np.isfinite(errors), errors, 1.0), 1.0)
    moved = float(np.maximum(shares, 0.0) @ (known**2).sum(axis=1))
    noise = moved / within if within > 0 else inf
    return _log(noise), _log(lack)


def expected_ratio(
    method: Method, shares: NDArray[np.float64], errors: NDArray[np.float64], within: float, lack: float
) -> LossEstimate:
    """Return the expected loss ratio of a method's centroids. The parameters are those of `predictors`."""
    table = _tables()[method]
    seen = predictors(shares, errors, within, lack)
    middle = table.constant + float(np.dot(table.slopes, seen))
    lower, value, upper = (_ratio(middle + shift) for shift in (table.below, 0.0, table.above))
    return LossEstimate(ExpectedLoss(value, lower, upper), seen)


def _log(value: float) -> float:
    return log(min(max(value, LEAST), MOST)) if isfinite(value) else log(MOST)


def _ratio(logarithm: float) -> float:
    return min(max(1 - FLOOR + exp(min(logarithm, log(MAX_RATIO))), 1.0), MAX_RATIO)


class Calibration(NamedTuple):
    """Line of ln(ratio - 1 + FLOOR) in the predictors, and the ends of its interval."""

    constant: float
    slopes: list[float]
    below: float
    above: float


@cache
def _tables() -> dict[str, Calibration]:
    return {method: Calibration(**table) for method, table in json.loads(TABLE_FILE.read_text("utf-8")).items()}

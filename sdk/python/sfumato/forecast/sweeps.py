"""Accuracy of an algorithm for several values of epsilon or sizes, from forecasts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sfumato.errors import InvalidSpec
from sfumato.forecast.estimates import forecast
from sfumato.forecast.families import Family
from sfumato.forecast.records import forecast_records
from sfumato.model.precision import Verdict
from sfumato.model.tables import Columns, html_table, new_frame
from sfumato.specs import AnyAlgorithm, CentralAlgorithm, to_algorithm
from sfumato.specs.attributes import Categorical

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame  # type: ignore[import-not-found,import-untyped,unused-ignore]

AGREEMENT = "adjusted Rand index"
RATIO = "squared error relative to k-means without noise"


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """The accuracy for one epsilon and one size, with its interval; NaN if it is unknown."""

    epsilon: float
    size: int
    accuracy: float
    lower: float
    upper: float
    verdict: str


@dataclass(frozen=True, slots=True)
class Sweep:
    """The accuracy of an algorithm over a grid of epsilons and sizes.

    Attributes
    ----------
    algorithm : str
        Type of the algorithm.
    measure : str
        Name of the accuracy: the adjusted Rand index (larger is better), or the squared error relative to k-means
        without noise (smaller is better).
    points : tuple of SweepPoint
        For each size, each epsilon in the given order.
    """

    algorithm: str
    measure: str
    points: tuple[SweepPoint, ...]

    def to_columns(self) -> Columns:
        """Return one row for each point as columns."""
        return {name: np.array([getattr(each, name) for each in self.points]) for name in SweepPoint.__slots__}

    def to_frame(self) -> "DataFrame":
        """Return one row for each point as a DataFrame. Needs pandas."""
        return new_frame(self.to_columns())

    def plot(self, ax: "Axes | None" = None) -> "Figure":
        """Plot the accuracy against epsilon, or against the size if there is one epsilon. Needs matplotlib."""
        from matplotlib.figure import Figure

        axes: Any = Figure(figsize=(6, 4), layout="constrained").add_subplot() if ax is None else ax
        across, line = ("epsilon", "size") if len({each.epsilon for each in self.points}) > 1 else ("size", "epsilon")
        columns = self.to_columns()
        for value in dict.fromkeys(columns[line].tolist()):
            of_line = columns[line] == value
            place, accuracy, lower, upper = (columns[name][of_line] for name in (across, "accuracy", "lower", "upper"))
            axes.plot(place, accuracy, marker="o", label=f"{line} {value:,g}")
            axes.fill_between(place, lower, upper, alpha=0.2)
        axes.set(xscale="log", xlabel=across, ylabel=self.measure, title=self.algorithm)
        axes.legend()
        figure: Figure = axes.get_figure(root=True)
        return figure

    def _repr_html_(self) -> str:
        rows = {
            f"ε = {each.epsilon:g}, {each.size:,}": f"{each.accuracy:.3g} ({each.lower:.3g} to {each.upper:.3g}), "
            f"{each.verdict}"
            for each in self.points
        }
        return html_table({self.algorithm: self.measure} | rows)


def sweep(
    algorithm: AnyAlgorithm | Mapping[str, Any],
    *,
    epsilons: Sequence[float] = (),
    sizes: Sequence[int],
    n_features: int,
    max_records_per_user: int = 1,
    family: Family | None = None,
    attributes: tuple[Categorical, ...] = (),
) -> Sweep:
    """Return the forecast accuracy of an algorithm for several values of epsilon and several numbers of reports.

    A sweep needs no service and no privacy budget. `clustering.sweeps.sweep_sample` of the server package runs the
    algorithm on a sample instead.

    Parameters
    ----------
    algorithm : AnyAlgorithm or mapping
        Its epsilon applies if `epsilons` is empty. `Auto` runs over reports.
    epsilons : sequence of float
    sizes : sequence of int
        Numbers of reports or records, at least one.
    n_features : int
    max_records_per_user : int
        The dataset's declaration, for algorithms over records.
    family : {"compact", "elongated", "curved", "many_small"}, optional
        The family of the data.
    attributes : tuple of Categorical
        For algorithms over reports: attributes by which the job clusters; see `forecast`.

    Raises
    ------
    InvalidSpec
        There is no size, or the algorithm does not support the arguments.

    Examples
    --------
    >>> from sfumato import ShiftedGrid, sweep
    >>> found = sweep(ShiftedGrid(epsilon=1, clusters=3), epsilons=[0.05, 0.5, 4], sizes=[400_000], n_features=2)
    >>> [each.verdict for each in found.points]
    ['doubtful', 'uncertain', 'reliable']
    """
    base = to_algorithm(algorithm)
    given = [base.with_epsilon(float(each)) for each in epsilons] or [base]
    if not sizes:
        raise InvalidSpec("sizes must name at least one number of reports or records")
    measure = RATIO if base.definition.needs_records else AGREEMENT
    points = (
        _forecast(each, n_features, size, max_records_per_user, family, attributes) for size in sizes for each in given
    )
    return Sweep(base.type, measure, tuple(points))


def _forecast(
    algorithm: AnyAlgorithm,
    n_features: int,
    size: int,
    max_records_per_user: int,
    family: Family | None,
    attributes: tuple[Categorical, ...],
) -> SweepPoint:
    """Return the forecast accuracy, with quartiles for reports and the band of simulated runs for records."""
    verdict: Verdict
    band: tuple[float | None, ...] = (None, None, None)
    if isinstance(algorithm, CentralAlgorithm):
        expected = forecast_records(
            algorithm,
            n_features=n_features,
            expected_records=size,
            max_records_per_user=max_records_per_user,
            family=family,
        ).expected
        verdict, band = expected.verdict, (expected.ratio, expected.lower, expected.upper)
    else:
        found = forecast(algorithm, n_features=n_features, expected_reports=size, family=family, attributes=attributes)
        verdict = found.verdict
        if found.quality is not None:
            band = (found.quality.median, found.quality.lower, found.quality.upper)
    accuracy, lower, upper = (float("nan") if each is None else each for each in band)
    return SweepPoint(algorithm.epsilon, size, accuracy, lower, upper, verdict.value)

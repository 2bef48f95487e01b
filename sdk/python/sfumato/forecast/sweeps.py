"""Accuracy of an algorithm for several values of epsilon or sizes, from forecasts or from simulated runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InvalidSpec
from sfumato.forecast.estimates import forecast
from sfumato.forecast.families import Family
from sfumato.forecast.records import forecast_records
from sfumato.model.precision import Verdict
from sfumato.model.tables import Columns, html_table, new_frame
from sfumato.records.encodings import scale_many
from sfumato.records.inputs import to_values
from sfumato.specs import AnyAlgorithm, CentralAlgorithm, Feature, to_algorithm, to_features

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
    sizes: Sequence[int] = (),
    n_features: int | None = None,
    sample: ArrayLike | None = None,
    features: Sequence[Feature | tuple[Any, ...]] = (),
    labels: ArrayLike | None = None,
    repetitions: int = 5,
    seed: int = 0,
    max_records_per_user: int = 1,
    family: Family | None = None,
) -> Sweep:
    """Return the accuracy of an algorithm for several values of epsilon and of the number of reports or records.

    Without a sample, the accuracy is that of forecasts. With a sample, the algorithm runs on rows drawn from it, and
    the accuracy is the median agreement of its labels. This needs the server package. The figures of a simulation are
    as private as the sample. A sweep needs no service and no privacy budget.

    Parameters
    ----------
    algorithm : AnyAlgorithm or mapping
        Its epsilon applies if `epsilons` is empty. `Auto` runs over reports.
    epsilons : sequence of float
    sizes : sequence of int
        Numbers of reports or records. The default is the size of the sample.
    n_features : int
        Number of features; required without a sample.
    sample : array-like of shape (n, n_features), optional
        Records of the caller.
    features : sequence of Feature or tuple (name, lower, upper[, unit])
        Features of the sample with their public bounds.
    labels : array-like of shape (n,), optional
        True clusters of the sample. The default is the labels of the same algorithm on the same rows without noise,
        which exist over reports only.
    repetitions : int
        Simulated runs for each point. The interval is that of all runs.
    seed : int
        Seed of the simulated runs.
    max_records_per_user : int
        The dataset's declaration, for forecasts over records.
    family : {"compact", "elongated", "curved", "many_small"}, optional
        The family of the data, for forecasts.

    Raises
    ------
    InvalidSpec
        An argument is missing, or the algorithm does not support the arguments.
    ImportError
        The server package is missing.

    Examples
    --------
    >>> from sfumato import ShiftedGrid, sweep
    >>> found = sweep(ShiftedGrid(epsilon=1, clusters=3), epsilons=[0.05, 0.5, 4], sizes=[400_000], n_features=2)
    >>> [each.verdict for each in found.points]
    ['doubtful', 'uncertain', 'reliable']
    """
    base = to_algorithm(algorithm)
    given = [base.with_epsilon(float(each)) for each in epsilons] or [base]
    measure = AGREEMENT
    if sample is not None:
        points = _simulated(given, sample, to_features(features), sizes, labels, repetitions, seed)
    elif n_features is None or not sizes:
        raise InvalidSpec("give n_features and sizes, or a sample with its features")
    else:
        measure = RATIO if isinstance(base, CentralAlgorithm) else AGREEMENT
        points = (_forecast(each, n_features, size, max_records_per_user, family) for size in sizes for each in given)
    return Sweep(base.type, measure, tuple(points))


def _forecast(
    algorithm: AnyAlgorithm, n_features: int, size: int, max_records_per_user: int, family: Family | None
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
        found = forecast(algorithm, n_features=n_features, expected_reports=size, family=family)
        verdict = found.verdict
        if found.quality is not None:
            band = (found.quality.median, found.quality.lower, found.quality.upper)
    accuracy, lower, upper = (float("nan") if each is None else each for each in band)
    return SweepPoint(algorithm.epsilon, size, accuracy, lower, upper, verdict.value)


def _simulated(
    algorithms: Sequence[AnyAlgorithm],
    sample: ArrayLike,
    features: tuple[Feature, ...],
    sizes: Sequence[int],
    labels: ArrayLike | None,
    repetitions: int,
    seed: int,
) -> Iterator[SweepPoint]:
    """Yield the median agreement of simulated runs, with its range and the worst verdict."""
    try:
        simulation, metrics = import_module("clustering.simulate"), import_module("clustering.metrics")
    except ImportError:
        raise ImportError(
            "a simulation needs the server package: run it with .venv/bin/python of a clone, after `make serve`"
        ) from None
    rows = to_values(features, sample)
    scaled = scale_many(features, sample)
    truth = None if labels is None else np.asarray(labels)
    if truth is not None and truth.shape != (len(rows),):
        raise InvalidSpec("labels must have one entry for each record of the sample")
    if truth is None and isinstance(algorithms[0], CentralAlgorithm):
        raise InvalidSpec("a simulation over records needs the labels of the sample")
    for size in sizes or [len(rows)]:
        for algorithm in algorithms:
            scores, verdict = [], None
            for run in range(repetitions):
                drawn: NDArray[np.float64] = simulation.resample(scaled, size, seed=seed + run)
                model = simulation.simulate(algorithm, drawn, seed=seed + run, features=features)
                known = truth
                if known is None:
                    options = {"seed": seed + run, "features": features, "perturb": False}
                    known = simulation.simulate(algorithm, drawn, **options).assign(rows)
                scores.append(metrics.adjusted_rand_index(known, model.assign(rows)))
                verdict = model.verdict if verdict is None else verdict.or_worse(model.verdict)
            worst = "" if verdict is None else verdict.value
            accuracy = float(np.median(scores))
            yield SweepPoint(algorithm.epsilon, int(size), accuracy, min(scores), max(scores), worst)

"""Accuracy of an algorithm for several values of epsilon or sizes, from simulated runs on a sample."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clustering.metrics import adjusted_rand_index
from clustering.simulate import resample, simulate
from sfumato.errors import InvalidSpec
from sfumato.forecast.sweeps import AGREEMENT, Sweep, SweepPoint
from sfumato.records.encodings import scale_many
from sfumato.records.inputs import to_values
from sfumato.specs import AnyAlgorithm, Feature, to_algorithm, to_features


def sweep_sample(
    algorithm: AnyAlgorithm | Mapping[str, Any],
    sample: ArrayLike,
    *,
    features: Sequence[Feature | tuple[Any, ...]],
    epsilons: Sequence[float] = (),
    sizes: Sequence[int] = (),
    labels: ArrayLike | None = None,
    repetitions: int = 5,
    seed: int = 0,
) -> Sweep:
    """Return the agreement of an algorithm's labels on rows drawn from a sample, as `sfumato.sweep` does for forecasts.

    The figures are as private as the sample. A sweep needs no service and no privacy budget.

    Parameters
    ----------
    algorithm : AnyAlgorithm or mapping
        Its epsilon applies if `epsilons` is empty.
    sample : array-like of shape (n, n_features)
        Records of the caller.
    features : sequence of Feature or tuple (name, lower, upper[, unit])
        Features of the sample with their public bounds.
    epsilons : sequence of float
    sizes : sequence of int
        Numbers of rows that are drawn. The default is the size of the sample.
    labels : array-like of shape (n,), optional
        True clusters of the sample. The default is the labels of the same algorithm on the same rows without noise,
        which exist over reports only.
    repetitions : int
        Simulated runs for each point. The accuracy is their median, and the interval their range.
    seed : int
        Seed of the simulated runs.

    Raises
    ------
    InvalidSpec
        An argument is missing, or the algorithm does not support the arguments.
    """
    base, declared = to_algorithm(algorithm), to_features(features)
    rows, scaled = to_values(declared, sample), scale_many(declared, sample)
    truth = None if labels is None else np.asarray(labels)
    if truth is not None and truth.shape != (len(rows),):
        raise InvalidSpec("labels must have one entry for each record of the sample")
    if truth is None and base.definition.needs_records:
        raise InvalidSpec("a simulation over records needs the labels of the sample")

    def points() -> Iterator[SweepPoint]:
        for size in sizes or [len(rows)]:
            for each in [base.with_epsilon(float(epsilon)) for epsilon in epsilons] or [base]:
                scores, verdict = [], None
                for run in range(seed, seed + repetitions):
                    drawn: NDArray[np.float64] = resample(scaled, size, seed=run)
                    model = simulate(each, drawn, seed=run, features=declared)
                    known = truth
                    if known is None:
                        known = simulate(each, drawn, seed=run, features=declared, perturb=False).assign(rows)
                    scores.append(adjusted_rand_index(known, model.assign(rows)))
                    verdict = model.verdict if verdict is None else verdict.or_worse(model.verdict)
                worst = "" if verdict is None else verdict.value
                accuracy = float(np.median(scores))
                yield SweepPoint(each.epsilon, int(size), accuracy, min(scores), max(scores), worst)

    return Sweep(base.type, AGREEMENT, tuple(points()))

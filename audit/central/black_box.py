"""Black-box check of central algorithms by their released models.

Each algorithm runs often with a person and without. Every number of a model is a statistic, and so is a linear
combination of all numbers. One half of the runs selects the statistic that separates the two best; the other half
measures it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.central.recordings import Method, features_of
from audit.checks.bounds import bound_epsilon, distinguish
from audit.checks.check import Check, Effort, Finding, Setting
from audit.checks.neighbours import Pair, make_pairs
from clustering.central.queries import MemoryJournal, Records
from clustering.central.run import run
from sfumato.privacy.accounting import ATTO, NANO
from sfumato.privacy.entropy import Entropy
from sfumato.specs import (
    Auto,
    DensityMap,
    DpBisectingKmeans,
    DpDensityPeaks,
    DpKmeans,
    DpQuadtreeKmeans,
    DpUniformGridKmeans,
    PrivateKmeans,
)

CLAIM = "a released model reveals at most the charged epsilon"
N_RUNS = 1200  # per dataset of a pair, in a quick audit
PAIR_NAMES = ("no record, one in a corner", "one far point")  # a quick audit uses only the first
RIDGE = 1e-2  # added to the diagonal of the covariance
SELECTION_ERROR = 0.02  # error probability of bounds that only select a statistic

Models = list[dict[str, float]]  # numbers of each model by their paths

_MISSING_NUMBER = -1e300  # replaces a number that is absent from a model
_N_THRESHOLDS = 128

METHODS: tuple[tuple[int, Method], ...] = (
    (1, Method("dp_kmeans", DpKmeans(1.0, 1, iterations=1), run)),
    (1, Method("dp_kmeans, halving", DpKmeans(1.0, 2, budget="halving", iterations=2), run)),
    (1, Method("dp_kmeans, plusplus", DpKmeans(1.0, 1, init="plusplus", iterations=1), run)),
    (1, Method("dp_kmeans, plusplus, halving", DpKmeans(1.0, 1, "plusplus", "halving", iterations=2), run)),
    (1, Method("dp_kmeans, subsets", DpKmeans(1.0, 2, init="subsets", iterations=1), run)),
    (1, Method("dp_kmeans, subsets, halving", DpKmeans(1.0, 1, "subsets", "halving", iterations=2), run)),
    (1, Method("dp_bisecting_kmeans", DpBisectingKmeans(1.0, 2, iterations=1), run)),
    (1, Method("dp_bisecting_kmeans, total_sse", DpBisectingKmeans(1.0, 3, split="total_sse", iterations=1), run)),
    (1, Method("dp_bisecting_kmeans, synopsis", DpBisectingKmeans(1.0, 2, synopsis=True), run)),
    (1, Method("dp_bisecting_kmeans, synopsis, total_sse", DpBisectingKmeans(1.0, 2, "total_sse", synopsis=True), run)),
    (1, Method("dp_uniform_grid_kmeans", DpUniformGridKmeans(1.0, 1, cells=1), run)),
    (1, Method("dp_quadtree_kmeans", DpQuadtreeKmeans(1.0, 2, height=1), run)),
    (1, Method("dp_density_peaks", DpDensityPeaks(1.0, 1, cells=1), run)),
    (2, Method("private_kmeans", PrivateKmeans(1.0, 1), run)),
    (5, Method("private_kmeans, steps", PrivateKmeans(1.0, 1), run)),
    (12, Method("private_kmeans, delta", PrivateKmeans(4.0, 2, delta=1e-3), run)),
    (1, Method("density_map", DensityMap(1.0, 1, cells=2), run)),
    (2, Method("auto", Auto(1.0, 1), run)),
)


def check_released_models(
    method: Method, n_features: int, setting: Setting, pair_names: Sequence[str] | None = None
) -> Sequence[Finding]:
    """Check how well a method's models distinguish the pairs with these names; by default, the most difficult pairs."""
    if pair_names is None:
        pair_names = PAIR_NAMES[:1] if setting.effort is Effort.QUICK else PAIR_NAMES
    return [
        _check_pair(method, pair, setting, method.params.delta_atto / ATTO)
        for pair in make_pairs(n_features)
        if pair.name in pair_names
    ]


def _check_pair(method: Method, pair: Pair, setting: Setting, delta: float) -> Finding:
    n = setting.effort.trials(N_RUNS)
    models: list[Models] = []
    for side, records in (("more", pair.more), ("less", pair.less)):
        entropy = setting.entropy(f"black box/{method.name}/{pair.name}/{side}")
        models.append([flatten_numbers(_run_method(method, records, entropy)) for _ in range(n)])
    sample, other = select_statistic(models[0], models[1], delta)
    bound = distinguish(sample, other, delta)
    charged = method.params.epsilon_nano / NANO
    is_over = bound.epsilon > charged
    why = f"{pair.name}: epsilon is at least {bound.epsilon:.3f}, but {charged:.3f} was charged" if is_over else ""
    return Finding(method.name, CLAIM, "black box", bound.trials, charged, bound.epsilon, not is_over, why)


def _run_method(method: Method, records: Records, entropy: Entropy) -> dict[str, Any]:
    params = method.params
    budget = params.epsilon_nano, params.delta_atto
    curator = method.curator(records, budget[0], MemoryJournal(), entropy, budget[1])
    return method.run(params, features_of(curator.n_features), curator).to_wire()


def flatten_numbers(value: Any, path: str = "") -> dict[str, float]:
    """Return every number of a document by its path, and the length of each list."""
    if isinstance(value, dict):
        return {name: x for key, part in value.items() for name, x in flatten_numbers(part, f"{path}/{key}").items()}
    if isinstance(value, list):
        inner = {name: x for i, part in enumerate(value) for name, x in flatten_numbers(part, f"{path}/{i}").items()}
        return {f"{path}#": float(len(value)), **inner}
    return {path: float(value)} if isinstance(value, bool | int | float) else {}


def select_statistic(models: Models, others: Models, delta: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the values of the statistic that best separates the first halves of two lists of models.

    The candidates are the rank of each number, and Fisher's linear combination of all ranks. The first quarters define
    ranks and weights; the second quarters select the statistic.
    """
    quarter = len(models) // 4
    training = [*models[:quarter], *others[:quarter]]
    names = sorted({name for model in training for name in model})
    columns = [np.unique([model.get(name, _MISSING_NUMBER) for model in training]) for name in names]
    varying = [(name, column) for name, column in zip(names, columns, strict=True) if len(column) > 1]

    def ranks(part: Models) -> NDArray[np.float64]:
        parts = [
            (np.searchsorted(column, values) + np.searchsorted(column, values, side="right")) / (2 * len(column))
            for name, column in varying
            for values in [np.array([model.get(name, _MISSING_NUMBER) for model in part])]
        ]
        return np.array(parts or [np.zeros(len(part))]).T

    sample, other = ranks(models), ranks(others)
    spread = (np.cov(sample[:quarter].T) + np.cov(other[:quarter].T)).reshape(2 * (sample.shape[1],))
    difference = sample[:quarter].mean(axis=0) - other[:quarter].mean(axis=0)
    mix = np.linalg.solve(spread + RIDGE * np.eye(len(difference)), difference)
    sample, other = np.column_stack([sample, sample @ mix]), np.column_stack([other, other @ mix])
    second = slice(quarter, 2 * quarter)
    estimates = [_estimate_bound(sample[second, j], other[second, j], delta) for j in range(sample.shape[1])]
    best = int(np.argmax(estimates))
    return sample[:, best], other[:, best]


def _estimate_bound(sample: NDArray[np.float64], other: NDArray[np.float64], delta: float) -> float:
    """Estimate the bound of a statistic over all thresholds."""
    thresholds = np.unique(np.concatenate([sample, other]))
    thresholds = thresholds[np.unique(np.linspace(0, len(thresholds) - 1, _N_THRESHOLDS).astype(np.int64))]
    best = 0.0
    for sign in (1, -1):
        a, b = ((sign * part[:, None] >= sign * thresholds).sum(axis=0) for part in (sample, other))
        best = max(best, float(bound_epsilon(a, len(sample), b, len(other), delta, SELECTION_ERROR).max()))
        best = max(best, float(bound_epsilon(b, len(other), a, len(sample), delta, SELECTION_ERROR).max()))
    return best


def _make_check(n_features: int, method: Method) -> Check:
    return Check(f"{method.name}, released model", lambda setting: check_released_models(method, n_features, setting))


CHECKS: tuple[Check, ...] = tuple(_make_check(n_features, method) for n_features, method in METHODS)

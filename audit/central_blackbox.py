"""Black box: central algorithms by what they release and nothing else.

Many runs with a person and without; every number of a model is a statistic, and so is a mix of all
of them. Which one tells the two apart is chosen on one half of the runs and judged on the other.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.bounds import distinguish, epsilon_bound
from audit.check import Check, Effort, Finding, Setting
from audit.neighbours import Pair, pairs
from audit.replay import Method, features_of
from clustering.central.run import run
from clustering.curator import MemoryJournal, Records
from sfumato.accounting import ATTO, NANO, parse_delta, parse_epsilon
from sfumato.entropy import Entropy
from sfumato.specs import (
    Auto,
    DpBisectingKmeans,
    DpDensityPeaks,
    DpKmeans,
    DpQuadtreeKmeans,
    DpUniformGridKmeans,
    GatedGridKmeans,
)

CLAIM = "a released model tells of a person no more than it is charged"
RUNS = 1200  # on either side of a pair, in a quick audit
HURTING = ("one record", "one far point")  # the second where there is time
RIDGE = 1e-2
LIKELY = 0.02  # of a mistake, where nothing but a choice depends on it

Models = list[dict[str, float]]  # each by its numbers' paths

_MISSING = -1e300  # a number that a model lacks
_PLACES = 128

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
    (2, Method("gated_grid_kmeans", GatedGridKmeans(1.0, 1), run)),
    (5, Method("gated_grid_kmeans, steps", GatedGridKmeans(1.0, 1), run)),
    (12, Method("gated_grid_kmeans, delta", GatedGridKmeans(4.0, 2, delta=1e-3), run)),
    (2, Method("auto", Auto(1.0, 1), run)),
)


def told_apart(
    method: Method, n_features: int, setting: Setting, hurting: Sequence[str] | None = None
) -> Sequence[Finding]:
    """Tell a method's models apart as well as can be, over pairs by their names: those that hurt the most."""
    if hurting is None:
        hurting = HURTING[:1] if setting.effort is Effort.QUICK else HURTING
    return [
        _judged(method, pair, setting, parse_delta(method.params.delta) / ATTO)
        for pair in pairs(n_features)
        if pair.name in hurting
    ]


def _judged(method: Method, pair: Pair, setting: Setting, delta: float) -> Finding:
    n = setting.effort.trials(RUNS)
    models: list[Models] = []
    for side, records in (("more", pair.more), ("less", pair.less)):
        entropy = setting.entropy(f"black box/{method.name}/{pair.name}/{side}")
        models.append([numbers(_released(method, records, entropy)) for _ in range(n)])
    seen, other = best_scores(models[0], models[1], delta)
    bound = distinguish(seen, other, delta)
    charged = parse_epsilon(method.params.epsilon) / NANO
    is_over = bound.epsilon > charged
    why = f"{pair.name}: epsilon is {bound.epsilon:.3f} at least, and {charged:.3f} was charged" if is_over else ""
    return Finding(method.name, CLAIM, "black box", bound.trials, charged, bound.epsilon, not is_over, why)


def _released(method: Method, records: Records, entropy: Entropy) -> dict[str, Any]:
    params = method.params
    budget = parse_epsilon(params.epsilon), parse_delta(params.delta)
    curator = method.curator(records, budget[0], MemoryJournal(), entropy, budget[1])
    return method.run(params, features_of(curator.n_features), curator).to_wire()


def numbers(value: Any, path: str = "") -> dict[str, float]:
    """Every number of a document by where it is, and how many items each list has."""
    if isinstance(value, dict):
        return {name: x for key, part in value.items() for name, x in numbers(part, f"{path}/{key}").items()}
    if isinstance(value, list):
        inner = {name: x for i, part in enumerate(value) for name, x in numbers(part, f"{path}/{i}").items()}
        return {f"{path}#": float(len(value)), **inner}
    return {path: float(value)} if isinstance(value, bool | int | float) else {}


def best_scores(models: Models, others: Models, delta: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The statistic that tells the first halves of two lists of models apart best, of all of them.

    A number alone, by its rank among all that were seen, or Fisher's linear mix of such ranks. The
    first quarters say how to rank and to mix, the second ones which to take.
    """
    quarter = len(models) // 4
    first = [*models[:quarter], *others[:quarter]]
    names = sorted({name for model in first for name in model})
    columns = [np.unique([model.get(name, _MISSING) for model in first]) for name in names]
    kept = [(name, column) for name, column in zip(names, columns, strict=True) if len(column) > 1]

    def ranks(of: Models) -> NDArray[np.float64]:
        parts = [
            (np.searchsorted(column, values) + np.searchsorted(column, values, side="right")) / (2 * len(column))
            for name, column in kept
            for values in [np.array([model.get(name, _MISSING) for model in of])]
        ]
        return np.array(parts or [np.zeros(len(of))]).T

    seen, other = ranks(models), ranks(others)
    spread = (np.cov(seen[:quarter].T) + np.cov(other[:quarter].T)).reshape(2 * (seen.shape[1],))
    apart = seen[:quarter].mean(axis=0) - other[:quarter].mean(axis=0)
    mix = np.linalg.solve(spread + RIDGE * np.eye(len(apart)), apart)
    seen, other = np.column_stack([seen, seen @ mix]), np.column_stack([other, other @ mix])
    second = slice(quarter, 2 * quarter)
    promises = [_promise(seen[second, j], other[second, j], delta) for j in range(seen.shape[1])]
    best = int(np.argmax(promises))
    return seen[:, best], other[:, best]


def _promise(seen: NDArray[np.float64], other: NDArray[np.float64], delta: float) -> float:
    """About what a statistic shows, over all thresholds."""
    places = np.unique(np.concatenate([seen, other]))
    places = places[np.unique(np.linspace(0, len(places) - 1, _PLACES).astype(np.int64))]
    best = 0.0
    for sign in (1, -1):
        a, b = ((sign * part[:, None] >= sign * places).sum(axis=0) for part in (seen, other))
        best = max(best, float(epsilon_bound(a, len(seen), b, len(other), delta, LIKELY).max()))
        best = max(best, float(epsilon_bound(b, len(other), a, len(seen), delta, LIKELY).max()))
    return best


def _check(n_features: int, method: Method) -> Check:
    return Check(f"{method.name}, released", lambda setting: told_apart(method, n_features, setting))


CHECKS: tuple[Check, ...] = tuple(_check(n_features, method) for n_features, method in METHODS)

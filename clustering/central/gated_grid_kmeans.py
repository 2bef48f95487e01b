"""`gated_grid_kmeans`: cells that stand out of noise, k-means on them, and steps on records where those pay."""

from fractions import Fraction
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.central.box_tree import BoxCells
from clustering.central.budget import split
from clustering.central.cell_clusters import WeighedCells, cell_clusters
from clustering.central.gated_grid import Task, fit_grid
from clustering.central.model import centroid_model, hidden
from clustering.central.private_lloyd import Asked, Start, private_lloyd
from clustering.central.step_plan import Budget, step_plan
from clustering.curator import Curator
from clustering.halving_tree import tree_of
from clustering.noise import laplace_variance
from clustering.phase_search import PublicWords
from clustering.weighted_kmeans import weighted_kmeans
from sfumato.accounting import NANO, parse_delta, parse_epsilon
from sfumato.cluster_model import ClusterModel
from sfumato.forecast.central import CentralForecast, forecast_central
from sfumato.sizing.records import COUNTING, GRID_FEATURES, clusters_told, usable_epsilon
from sfumato.specs import Feature
from sfumato.specs.central import GatedGridKmeans

TREE = (3, 2)  # for the tree's decisions, and for the counts of its leaves


class Found(NamedTuple):
    """Clusters, before they are a model."""

    centres: NDArray[np.float64]  # (k, d), in [0, 1]
    centre_variances: NDArray[np.float64]  # (k,), of a coordinate, by noise
    counts: NDArray[np.float64]  # (k,)
    count_variances: NDArray[np.float64]  # (k,)
    spreads: NDArray[np.float64]  # (k,)
    route: str


def gated_grid_kmeans(params: GatedGridKmeans, features: tuple[Feature, ...], curator: Curator) -> ClusterModel:
    """k-means under differential privacy: on a two-level grid up to four features, by noisy steps above.

    What is asked, of whom, and at what cost is sized by a noisy count of the records, which
    costs 3 % of epsilon; so nothing but epsilon, delta, k, d and that count decides the route. The
    parts add up to epsilon exactly. Without a delta the guarantee is pure; with one the steps are
    a concentrated block where that has less noise, and elsewhere delta is not spent.

    Parameters
    ----------
    params : GatedGridKmeans
    features : tuple of Feature
    curator : Curator

    Returns
    -------
    ClusterModel
        With fewer clusters than asked for where the rest would be noise, and a warning.

    Raises
    ------
    InvalidSpec
        An epsilon too small to be divided.
    """
    d = len(features)
    to_count, rest = split(parse_epsilon(params.epsilon), *COUNTING)
    noisy_count = curator.count(to_count)
    n_records = max(1.0, float(noisy_count))
    epsilon = usable_epsilon(parse_epsilon(params.epsilon), curator.max_per_user)
    told = clusters_told(n_records, epsilon, d, params.clusters)
    task = Task(n_records, told, epsilon)
    words = PublicWords(params.seed)
    if d <= GRID_FEATURES:
        found = _by_grid(curator, task, rest, words)
    else:
        found = _by_steps(curator, task, Budget(rest, parse_delta(params.delta)), words)
    forecast = forecast_central(params, d, n_records, curator.max_per_user)
    sampled = found.spreads**2 / d / np.maximum(found.counts, 1.0)
    errors = np.sqrt(found.centre_variances + sampled)
    one_mean = _one_mean_ratio(found)
    warnings = _warnings(forecast, found, params.clusters, one_mean)
    return centroid_model(
        features,
        found.centres,
        found.counts,
        found.count_variances,
        centre_errors=np.repeat(errors[:, None], d, axis=1),
        spreads=found.spreads,
        diagnostics={
            "noisy_count": noisy_count,
            "q": n_records * epsilon / params.clusters,
            "route": found.route,
            "forecast": {"ratio": forecast.ratio, "lower": forecast.lower, "upper": forecast.upper},
            "achieved_ratio": _achieved_ratio(found),
            "one_mean_ratio": one_mean,
            "low_confidence": bool(warnings),
        },
        warnings=warnings,
    )


def _by_grid(curator: Curator, task: Task, epsilon_nano: int, words: PublicWords) -> Found:
    """Up to four features."""
    grid = fit_grid(curator, task, epsilon_nano, words)
    found = cell_clusters(grid.cells, grid.centres)
    return Found(grid.centres, found.centre_variances, found.masses, found.mass_variances, found.spreads, "grid")


def _by_steps(curator: Curator, task: Task, budget: Budget, words: PublicWords) -> Found:
    """Above four features."""
    plan = step_plan(task, budget, curator)
    start = _even(curator, task) if plan.to_tree == 0 else _seeded(curator, task, plan.to_tree, words)
    asked: Asked = curator.concentrated(plan.to_steps, plan.delta_atto) if plan.delta_atto else curator
    stepped = private_lloyd(asked, start, plan.parts, words)
    variances = np.full(len(stepped.counts), stepped.count_variance)
    return Found(stepped.centres, stepped.centre_variances, stepped.counts, variances, stepped.spreads, plan.route)


def _even(curator: Curator, task: Task) -> Start:
    """The middle of the box, from where steps find the mean of all records: nothing beats it at so little."""
    d = curator.n_features
    return Start(np.full((1, d), 0.5), np.array([sqrt(d / 12)]), np.array([task.n_records]))


def _seeded(curator: Curator, task: Task, epsilon_nano: int, words: PublicWords) -> Start:
    """Centres of a tree's leaves."""
    cells = _tree_cells(curator, epsilon_nano)
    fit = weighted_kmeans(cells.middles, cells.weights, task.n_clusters, words)
    clusters = cell_clusters(cells, fit.centres)
    return Start(fit.centres, clusters.spreads, clusters.masses)


def _tree_cells(curator: Curator, epsilon_nano: int) -> WeighedCells:
    """Leaves of a PrivTree, by their noisy counts."""
    to_tree, to_counts = split(epsilon_nano, *TREE)
    tree = tree_of(curator.halving_tree(to_tree), curator.n_features)
    leaves = tree.leaves
    counts = curator.counts(BoxCells(tree, leaves), to_counts).astype(np.float64)
    scale = Fraction(curator.max_per_user * NANO, to_counts)
    kept = counts > 0
    if not kept.any():  # no records, or none that can be told: the box itself
        kept[:], counts[:] = True, 1.0
    noise = np.full(int(kept.sum()), laplace_variance(scale))
    variances = (tree.sides(leaves[kept]) ** 2).sum(axis=1) / 12
    return WeighedCells(tree.middles(leaves[kept]), variances, counts[kept], noise)


def _achieved_ratio(found: Found) -> float:
    """What noise in the centres adds to the mean squared distance, at the least: clusters it hid are not counted."""
    masses = np.maximum(found.counts, 1.0)
    within = float(masses @ found.spreads**2)
    moved = float(masses @ found.centre_variances) * int(found.centres.shape[1])
    return 1.0 + moved / max(within, 1e-12)


def _one_mean_ratio(found: Found) -> float:
    """The mean squared distance to one centre at the mean, over that to these centres: by noisy answers."""
    masses = np.maximum(found.counts, 1.0)
    mean = masses @ found.centres / masses.sum()
    between = float(masses @ ((found.centres - mean) ** 2).sum(axis=1))
    return 1.0 + between / max(float(masses @ found.spreads**2), 1e-12)


def _warnings(forecast: CentralForecast, found: Found, clusters: int, one_mean: float) -> tuple[str, ...]:
    said = list(forecast.warnings)
    n_found = len(found.centres)
    if n_found < forecast.clusters:
        said.append(hidden(n_found))
    if n_found > 1 and forecast.ratio is not None and forecast.ratio > one_mean:
        said.append(f"One centre at the mean may be as good as these: {clusters} clusters are many for this epsilon.")
    return tuple(said)

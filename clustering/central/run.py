"""Which central algorithm runs which parameters, and central algorithms over arrays of points."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from clustering.central.cells import to_places
from clustering.central.dp_bisecting_kmeans import dp_bisecting_kmeans
from clustering.central.dp_density_peaks import dp_density_peaks
from clustering.central.dp_kmeans import dp_kmeans
from clustering.central.dp_quadtree_kmeans import dp_quadtree_kmeans
from clustering.central.dp_uniform_grid_kmeans import dp_uniform_grid_kmeans
from clustering.central.gated_grid_kmeans import gated_grid_kmeans
from clustering.curator import Curator, MemoryJournal, Records
from clustering.seeded_entropy import SeededEntropy
from sfumato.accounting import parse_delta, parse_epsilon
from sfumato.cluster_model import ClusterModel
from sfumato.errors import InvalidPoint, InvalidSpec
from sfumato.forecast import choose_central
from sfumato.specs import (
    Auto,
    CentralAlgorithm,
    DpBisectingKmeans,
    DpDensityPeaks,
    DpKmeans,
    DpQuadtreeKmeans,
    DpUniformGridKmeans,
    Feature,
    GatedGridKmeans,
    to_wire,
)

CentralFunction = Callable[[Any, tuple[Feature, ...], Curator], ClusterModel]

_FUNCTIONS: dict[type[CentralAlgorithm], CentralFunction] = {
    DpBisectingKmeans: dp_bisecting_kmeans,
    DpDensityPeaks: dp_density_peaks,
    DpKmeans: dp_kmeans,
    DpQuadtreeKmeans: dp_quadtree_kmeans,
    DpUniformGridKmeans: dp_uniform_grid_kmeans,
    GatedGridKmeans: gated_grid_kmeans,
}


def run(params: CentralAlgorithm | Auto, features: tuple[Feature, ...], curator: Curator) -> ClusterModel:
    """Run a central algorithm to its model, whose diagnostics list every question and its cost (`odometer`).

    Parameters
    ----------
    params : CentralAlgorithm or Auto
        The algorithm's dataclass; its type chooses the function. `Auto` runs what
        `sfumato.forecast.choose_central` chooses, and the model's diagnostics say what and why.
    features : tuple of Feature
        The public bounds records are scaled by.
    curator : Curator

    Raises
    ------
    InvalidSpec
        Not a central algorithm this version knows, or one that cannot take these features.
    BudgetOverdrawn
        An algorithm asked for more than it declared: a fault of ours, and nothing was drawn.
    """
    if isinstance(params, Auto):
        choice = choose_central(params, len(features))
        model = run(choice.algorithm, features, curator)
        chosen = {"algorithm": to_wire(choice.algorithm), "reason": choice.reason}
        return replace(model, diagnostics={**model.diagnostics, "chosen": chosen})
    if type(params) not in _FUNCTIONS:
        raise InvalidSpec("unknown central algorithm")
    model = _FUNCTIONS[type(params)](params, features, curator)
    odometer = [
        {name: getattr(asked, name) for name in ("what", "epsilon_nano", "delta_atto", "rho_pico", "n_values")}
        for asked in curator.odometer
    ]
    spent = {"spent_nano": curator.spent_nano, "spent_delta_atto": curator.spent_delta_atto}
    return replace(model, diagnostics={**model.diagnostics, "odometer": odometer, **spent})


def simulate_central(
    params: CentralAlgorithm | Auto,
    points: ArrayLike,
    *,
    seed: int,
    max_per_user: int = 1,
    features: tuple[Feature, ...] | None = None,
) -> ClusterModel:
    """Run a central algorithm over points of [0, 1]^d as if they were records, with seeded noise.

    Parameters
    ----------
    params : CentralAlgorithm or Auto
    points : array-like of shape (n, d), float64
        In [0, 1].
    seed : int
        Of the noise: equal seeds give equal models.
    max_per_user : int
        How many of them one user may have.
    features : tuple of Feature, optional
        What the model says its features are. By default x1, x2, ... in [0, 1].

    Raises
    ------
    InvalidPoint
        Points of another shape, or outside [0, 1].
    """
    held = np.asarray(points, dtype=np.float64)
    if held.ndim != 2 or held.shape[1] == 0:
        raise InvalidPoint("points have shape (n, d)")
    if not ((held >= 0) & (held <= 1)).all():  # also refuses what is no number
        raise InvalidPoint("a point lies outside [0, 1]")
    if features is None:
        features = tuple(Feature(f"x{i + 1}", 0.0, 1.0) for i in range(held.shape[1]))
    if len(features) != held.shape[1]:
        raise InvalidPoint(f"points have shape (n, {len(features)})")
    records = Records(to_places(held).astype(np.int32), max_per_user)
    budget = parse_epsilon(params.epsilon), parse_delta(params.delta)
    curator = Curator(records, budget[0], MemoryJournal(), SeededEntropy(seed), delta_atto=budget[1])
    return run(params, features, curator)

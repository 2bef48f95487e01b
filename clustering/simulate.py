"""Algorithms over arrays of points: every device, or the curator, in this process, in milliseconds.

The rounds, the integers, the plans and the noise are those of the service; only the
randomness is not: it is seeded here, and nowhere else.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clustering.central.run import simulate_central
from clustering.plan import Collected, drive
from clustering.registry import start
from clustering.seeded_entropy import SeededEntropy
from clustering.tally import Counting
from sfumato.accounting import DRAW_SPAN
from sfumato.cluster_model import ClusterModel
from sfumato.encodings import symbols
from sfumato.entropy import Entropy, below_many
from sfumato.errors import InvalidPoint, InvalidSpec
from sfumato.mechanisms import perturb_many
from sfumato.specs import (
    AnyAlgorithm,
    CentralAlgorithm,
    DiscreteLaplaceMechanism,
    Feature,
    GrrMechanism,
    RoundSpec,
)

__all__ = ["SeededEntropy", "collect", "simulate"]

_CHUNK_POINTS = 1 << 17  # devices worked on at once


def simulate(
    params: AnyAlgorithm,
    points: ArrayLike,
    *,
    seed: int,
    perturb: bool = True,
    features: tuple[Feature, ...] | None = None,
) -> ClusterModel:
    """Run an algorithm over points: a local one as if each were one person's device, a central one as if each
    were a record.

    Parameters
    ----------
    params : Algorithm or CentralAlgorithm
        For example ``ShiftedGrid(epsilon=2, clusters=6)`` or ``GatedGridKmeans(epsilon=1, clusters=6)``.
        `Auto` asks devices; `clustering.central.run.simulate_central` runs it over records.
    points : array-like of shape (n, d), float64
        In [0, 1], which is the box; n is the number of reports a plan expects.
    seed : int
        Of the devices' coins and draws, or of the curator's noise: equal seeds give equal models.
    perturb : bool
        False sends every symbol as it is, through randomised response that always keeps
        it, or a vector without noise. The rounds, grids and slots stay those the plan asks for at its epsilon, and
        v = 0 as such a mechanism's support says, so what noise is left is the devices
        being a sample. The model is not private. Records are not perturbed one by one, so
        there it is refused.
    features : tuple of Feature, optional
        What the model says its features are. By default x1, x2, ... in [0, 1].

    Returns
    -------
    ClusterModel

    Raises
    ------
    InvalidPoint
        Points of another shape, or outside [0, 1].
    TooFewReports
        No points, for a local algorithm.
    InvalidSpec
        What the algorithm cannot take.
    """
    if isinstance(params, CentralAlgorithm):
        if not perturb:
            raise InvalidSpec("a central algorithm perturbs no point: there is nothing to leave out")
        return simulate_central(params, points, seed=seed, features=features)
    points = _checked(points)
    if features is None:
        features = tuple(Feature(f"x{i + 1}", 0.0, 1.0) for i in range(points.shape[1]))
    if len(features) != points.shape[1]:
        raise InvalidPoint(f"points have shape (n, {len(features)})")
    entropy = SeededEntropy(seed)
    draws = entropy.words(len(points))  # one for each device, kept for the whole collection

    def answer(spec: RoundSpec) -> Collected:
        return collect(spec if perturb else _unperturbed(spec), points, entropy, draws)

    return drive(start(params, features, max(1, len(points))), answer)


def collect(spec: RoundSpec, points: NDArray[np.float64], entropy: Entropy, draws: NDArray[np.uint64]) -> Collected:
    """Put a round to devices and tally their reports.

    Parameters
    ----------
    spec : RoundSpec
    points : ndarray of shape (n, d)
        In [0, 1], one for each device.
    entropy : Entropy
        The coins of all devices: slots and perturbation.
    draws : ndarray of shape (n,), uint64
        Each device's draw for this collection; it answers if the round's interval holds it.
    """
    counting = Counting(spec)
    for begin in range(0, len(points), _CHUNK_POINTS):
        part = slice(begin, begin + _CHUNK_POINTS)
        answering = points[part][_answers(spec, draws[part])]
        slots = below_many(entropy, spec.encoding.n_slots, len(answering))
        values = perturb_many(spec.mechanism, symbols(spec.encoding, answering, slots), entropy)
        counting.add(slots, values)
    return Collected(spec, counting.result())


def _answers(spec: RoundSpec, draws: NDArray[np.uint64]) -> NDArray[np.bool_]:
    at_least = draws >= np.uint64(spec.draw.lo)
    if spec.draw.hi == DRAW_SPAN:  # which a uint64 cannot hold
        return at_least
    return at_least & (draws < np.uint64(spec.draw.hi))


def _unperturbed(spec: RoundSpec) -> RoundSpec:
    if isinstance(spec.mechanism, DiscreteLaplaceMechanism):
        return replace(spec, mechanism=replace(spec.mechanism, scale_numerator=0))
    return replace(spec, mechanism=GrrMechanism(spec.encoding.n_symbols, DRAW_SPAN))


def _checked(points: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(points, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] == 0:
        raise InvalidPoint("points have shape (n, d)")
    if not ((array >= 0) & (array <= 1)).all():  # also refuses what is no number
        raise InvalidPoint("a point lies outside [0, 1]")
    return array

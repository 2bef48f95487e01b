"""Local and central algorithms over arrays of points, with simulated devices or a simulated curator.

Rounds, plans, integers and noise distributions are those of the service. `simulate` and
`simulate_central` differ only in their randomness, which is seeded.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clustering.central.cells import iterate_blocks, to_places
from clustering.central.curator import Curator
from clustering.central.mapped_records import select_columns
from clustering.central.queries import MemoryJournal, Records
from clustering.central.run import run
from clustering.random import SeededEntropy
from clustering.registry import start
from clustering.rounds.counting import RoundAggregator
from clustering.rounds.outside import counting_outside
from clustering.rounds.plan import Collected, drive
from sfumato.errors import InvalidPoint, InvalidSpec
from sfumato.mechanisms import without_noise
from sfumato.model.cluster_model import ClusterModel
from sfumato.privacy.accounting import DRAW_SPAN
from sfumato.privacy.entropy import Entropy, below_many
from sfumato.records.described import Described
from sfumato.records.encodings import scale_many
from sfumato.records.outside import encode_many
from sfumato.specs import (
    Algorithm,
    AnyAlgorithm,
    Auto,
    CentralAlgorithm,
    Feature,
    RoundSpec,
    circles_of,
)
from sfumato.specs.attributes import Categorical

__all__ = ["SeededEntropy", "collect", "run_central", "run_local", "simulate", "simulate_central"]

OutOfBounds = Literal["refuse", "count", "clip"]

_CHUNK_POINTS = 1 << 17  # devices simulated at once, to bound memory


def simulate(
    params: AnyAlgorithm,
    points: ArrayLike,
    *,
    seed: int,
    perturb: bool = True,
    features: tuple[Feature, ...] | None = None,
    out_of_bounds: OutOfBounds = "refuse",
    attributes: Sequence[Categorical] = (),
    codes: ArrayLike | None = None,
) -> ClusterModel:
    """Run an algorithm over points.

    A local algorithm treats each point as one person's device. A central algorithm treats each
    point as a record.

    Parameters
    ----------
    params : Algorithm or CentralAlgorithm
        For example ``ShiftedGrid(epsilon=2, clusters=6)`` or ``PrivateKmeans(epsilon=1, clusters=6)``.
        `Auto` selects a local algorithm here; `simulate_central` selects a central one.
    points : array-like of shape (n, d), float64
        In [0, 1], unless `out_of_bounds` permits others. n is the number of reports the plan expects.
    seed : int
        Seed of the devices' randomness, or of the curator's noise. Equal seeds give equal models.
    perturb : bool
        If false, each report carries its true symbol (randomised response that always keeps it) or
        its vector without noise. Rounds, grids and slots stay those of the given epsilon. The
        decoder's variance is v = 0, so the remaining error is that of sampling the devices. The
        model is not private. Central algorithms reject false, because they do not perturb records.
    features : tuple of Feature, optional
        Features of the model. Default: x1, x2, ... in [0, 1].
    out_of_bounds : {'refuse', 'count', 'clip'}
        Treatment of points outside [0, 1]. 'clip' moves them to the bounds, or by whole periods. 'count' is for
        local algorithms: devices report them as outside, as those of a dataset do by default, and the model states
        their share.
    attributes : sequence of Categorical
        Attributes by which the job clusters, with the use `cluster`.
    codes : array-like of shape (n, n_attributes), int
        The place of each point's value among the categories of the attribute.

    Returns
    -------
    ClusterModel

    Raises
    ------
    InvalidPoint
        The points have another shape, are not finite, or lie outside [0, 1] and are refused. Or a code is not that of
        a category.
    TooFewReports
        There are no points and the algorithm is local.
    InvalidSpec
        The algorithm does not support its parameters or the number of features.
    """
    if isinstance(params, CentralAlgorithm):
        if not perturb:
            raise InvalidSpec("perturb=False is available for local algorithms only")
        if out_of_bounds == "count":
            raise InvalidSpec("out_of_bounds 'count' is available for local algorithms only")
        points, features = _check(points, features, out_of_bounds)
        return simulate_central(params, points, seed=seed, features=features, attributes=attributes, codes=codes)
    points, features = _check(points, features, out_of_bounds)
    return run_local(
        params,
        points,
        features,
        SeededEntropy(seed),
        perturb=perturb,
        out_of_bounds=out_of_bounds,
        attributes=tuple(attributes),
        codes=codes,
    )


def run_local(
    params: Algorithm,
    points: NDArray[np.float64],
    features: tuple[Feature, ...],
    entropy: Entropy,
    *,
    perturb: bool = True,
    out_of_bounds: OutOfBounds = "refuse",
    attributes: tuple[Categorical, ...] = (),
    codes: ArrayLike | None = None,
) -> ClusterModel:
    """Run a local algorithm over points in [0, 1], see `simulate`. The entropy is that of all devices."""
    records = Described(points, np.empty((len(points), 0), dtype=np.int64))
    if attributes:
        records = Described(points, _check_codes(codes, attributes, len(points)).astype(np.int64))
    draws = entropy.words(len(points))  # one participation draw per device, for all rounds

    def answer(spec: RoundSpec) -> Collected:
        return collect(spec if perturb else _unperturbed(spec), records, entropy, draws)

    plan = start(params, features, max(1, len(points)), attributes)
    plan = counting_outside(plan, opens_counting=out_of_bounds == "count", may_clip=out_of_bounds == "clip")
    return drive(plan, answer)  # simulated devices are honest


def resample(points: NDArray[np.float64], size: int, *, seed: int) -> NDArray[np.float64]:
    """Draw `size` of the points with replacement. Equal seeds give equal draws."""
    words = SeededEntropy(seed).words(size) >> np.uint64(11)
    return np.asarray(points[(words * (len(points) * 2.0**-53)).astype(np.int64)], dtype=np.float64)


def simulate_central(
    params: CentralAlgorithm | Auto,
    points: ArrayLike,
    *,
    seed: int,
    max_per_user: int = 1,
    features: tuple[Feature, ...] | None = None,
    in_ball: bool = False,
    attributes: Sequence[Categorical] = (),
    codes: ArrayLike | None = None,
) -> ClusterModel:
    """Run a central algorithm over points, as if they were records, with seeded noise.

    Parameters
    ----------
    params : CentralAlgorithm or Auto
    points : array-like of shape (n, d), float64
        In [0, 1].
    seed : int
        Seed of the noise. Equal seeds give equal models.
    max_per_user : int
        Maximum number of records of one user.
    features : tuple of Feature, optional
        Features of the model. Default: x1, x2, ... in [0, 1].
    attributes : sequence of Categorical
        Attributes by which the job clusters, with the use `cluster`.
    codes : array-like of shape (n, n_attributes), int
        The place of each record's value among the categories of the attribute.

    Returns
    -------
    ClusterModel

    Raises
    ------
    InvalidPoint
        The points have another shape or lie outside [0, 1], or a code is not that of a category.
    InvalidSpec
        The algorithm does not support its parameters or the number of features.
    """
    points, features = _check(points, features)
    entropy, declared = SeededEntropy(seed), tuple(attributes)
    return run_central(
        params, points, features, entropy, max_per_user, in_ball=in_ball, attributes=declared, codes=codes
    )


def run_central(
    params: CentralAlgorithm | Auto,
    points: NDArray[np.float64],
    features: tuple[Feature, ...],
    entropy: Entropy,
    max_per_user: int = 1,
    in_ball: bool = False,
    attributes: tuple[Categorical, ...] = (),
    codes: ArrayLike | None = None,
) -> ClusterModel:
    """Run a central algorithm over points in [0, 1], see `simulate_central`. The entropy is that of the noise."""
    places, selection = np.empty(points.shape, dtype=np.int32), None
    for block in iterate_blocks(*points.shape):
        places[block] = to_places(points[block])
    if attributes:
        places = np.concatenate([places, _check_codes(codes, attributes, len(points))], axis=1)
        selection = select_columns(features, attributes)
    budget = params.epsilon_nano, params.delta_atto
    curator = Curator(Records(places, max_per_user), budget[0], MemoryJournal(), entropy, budget[1], in_ball, selection)
    return run(params, features, curator)


def _check_codes(codes: ArrayLike | None, attributes: tuple[Categorical, ...], n_records: int) -> NDArray[np.int32]:
    found = np.asarray([] if codes is None else codes)
    if found.shape != (n_records, len(attributes)) or found.dtype.kind not in "iu":
        raise InvalidPoint(f"codes must be integers of shape (n, {len(attributes)}), one column for each attribute")
    for column, attribute in zip(found.T, attributes, strict=True):
        if n_records and not 0 <= column.min() <= column.max() < len(attribute.categories):
            raise InvalidPoint(f"a code of {attribute.name} is not the place of a category")
    return found.astype(np.int32)


def collect(
    spec: RoundSpec, points: NDArray[np.float64] | Described, entropy: Entropy, draws: NDArray[np.uint64]
) -> Collected:
    """Simulate the devices of a round and tally their reports.

    Parameters
    ----------
    spec : RoundSpec
    points : ndarray of shape (n, d), or Described
        One per device, with the codes of its categories in a round with attributes. Each feature has the range [0, 1].
    entropy : Entropy
        Source of all devices' slots and perturbations.
    draws : ndarray of shape (n,), uint64
        Each device's participation draw. A device reports if the round's interval contains it.
    """
    counting = RoundAggregator(spec)
    if not isinstance(points, Described):
        points = Described(points, np.empty((len(points), 0), dtype=np.int64))
    unit = replace(spec, features=unit_features(len(spec.features), circles_of(spec.features)))
    for begin in range(0, len(draws), _CHUNK_POINTS):
        part = slice(begin, begin + _CHUNK_POINTS)
        answering = Described(points.points[part], points.codes[part]).select(_participates(spec, draws[part]))
        slots = below_many(entropy, spec.encoding.n_slots, len(answering.points))
        values = spec.mechanism.perturb_many(encode_many(unit, answering, slots, entropy), entropy)
        counting.add(slots, values)
    return Collected(spec, counting.result())


def _participates(spec: RoundSpec, draws: NDArray[np.uint64]) -> NDArray[np.bool_]:
    at_least = draws >= np.uint64(spec.participation.lo)
    if spec.participation.hi == DRAW_SPAN:  # 2^64 does not fit into a uint64
        return at_least
    return at_least & (draws < np.uint64(spec.participation.hi))


def _unperturbed(spec: RoundSpec) -> RoundSpec:
    return replace(spec, mechanism=without_noise(spec.mechanism))


def unit_features(n_features: int, circles: Sequence[int] = ()) -> tuple[Feature, ...]:
    """Return the features x1, x2, ... in [0, 1]. Those with the indices `circles` are periodic."""
    return tuple(Feature(f"x{i + 1}", 0.0, 1.0, periodic=i in circles) for i in range(n_features))


def _check(
    points: ArrayLike, features: tuple[Feature, ...] | None, out_of_bounds: OutOfBounds = "refuse"
) -> tuple[NDArray[np.float64], tuple[Feature, ...]]:
    """Return the points as float64 with their features, or raise InvalidPoint."""
    array = np.asarray(points, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] == 0:
        raise InvalidPoint("points must have shape (n, d), d at least 1")
    if out_of_bounds not in get_args(OutOfBounds):
        raise InvalidSpec(f"out_of_bounds must be one of {', '.join(get_args(OutOfBounds))}")
    if not np.isfinite(array).all():
        raise InvalidPoint("a point is not finite")
    features = unit_features(array.shape[1]) if features is None else features
    if len(features) != array.shape[1]:
        raise InvalidPoint(f"points must have shape (n, {len(features)})")
    if out_of_bounds == "clip":
        array = scale_many(unit_features(len(features), circles_of(features)), array)
    if out_of_bounds == "refuse" and not ((array >= 0) & (array <= 1)).all():
        raise InvalidPoint("a point lies outside [0, 1]")
    return array, features

"""A mixture for people who form no clear clusters: a path of 1, 2, ... atoms fitted to a round of phases.

What a part of the people report cannot tell each cluster's shape, but it tells how people
spread. So atoms are no clusters here: together they describe a density, and clusters are
found among particles drawn from it (STATISTICS, section 4.2, "Overlapping or real data").
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from clustering.atoms import (
    Atoms,
    Polished,
    Rules,
    Shape,
    diagonal_shape,
    full_shape,
    left_over,
    loss_of,
    polish,
    round_shape,
)
from clustering.characteristic import Characteristic, characteristic_of
from clustering.particles import Cloud, drawn, spread_evenly
from clustering.phase_model import Mixture, Sketch
from clustering.phase_search import PublicWords

PARTICLES = 20_000

# Which families of atoms there are, by features: round ones; any covariance; from there on
# ellipsoids along common axes, those of one normal distribution while it has few enough
# parameters to be fitted and the features themselves beyond, beside round ones.
ROUND_FEATURES, FULL_FEATURES, TURNED_FEATURES = 2, 5, 24

# Family and size are chosen by the loss and what a parameter costs: of it noise makes a half.
PARAMETER_COST = 0.7
ROUND_COST = 60.0  # of round atoms with more than two features: they fit well before they describe well
CLEAR_COST = 40.0  # of clusters of one round atom each

# Clusters are clear where the path tells apart half as many atoms or more and round ones score
# nearly as well, or where round ones score far better. What round atoms scored above the path
# (4 or 8 round blobs in 4 to 16 features; digits, MNIST, credit and statlog; 30,000 reports):
# at epsilon 1 blobs -15 to -85, the others -39 to 19, but with one or two atoms on the path, so
# that it is their number which tells; at epsilon 4 blobs -60 to 11, the others 9 to 257, and -12
# once. There the two ways come to much the same.
CLEAR_SHARE, CLEAR_EXCESS, FAR_BETTER = 0.5, 5.0, 60.0

# How far a path goes. Its work grows with the square of a size's parameters, so they are
# bounded, and large sizes are fitted to the end only now and then.
MOST_PARAMETERS = 256
PATIENCE = 6  # sizes that may be worse than the best so far
EVERY = 8  # a size is fitted to the end when it is an eighth more than the last that was

# An atom is looked for among so many places spread over the box and as many drawn from the
# atoms there are, at several widths; the best of them are polished on what is left.
PLACES = 300
CLIMBERS = 5
START_WIDTHS, START_WIDTHS_FEW_FEATURES = (0.05, 0.1, 0.2, 0.4), (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
CLIMB_STEPS, FIRST_STEPS, PATH_STEPS, PASSING_STEPS = 12, 30, 12, 2
SMALL_CLIMB, SMALL_DECREASE = 0.05, 0.01  # of the loss: the end of a climb, and of a fit

MARGIN = 0.02  # a centre may lie so far outside the box
LEAST_SHARE, MOST_WIDTH = 0.002, 0.4
LEAST_WIDTH, LEAST_WIDTH_FULL, LEAST_WIDTH_FEW_FEATURES = 0.02, 0.01, 0.003
_INSIDE = 1e-6  # quantiles of places are taken so far from 0 and 1


class PathFit(NamedTuple):
    """The mixture that was chosen, as particles."""

    cloud: Cloud
    family: str  # "round", "full", "turned" or "diagonal"
    atoms: int
    loss: float  # weighted squared residual, of half the degrees of freedom where the mixture is right
    score: float  # loss and what its parameters cost; the least wins


class Frame(NamedTuple):
    """The axes atoms are fitted along: x = origin + axes (u - 1/2)."""

    origin: NDArray[np.float64]  # (d,)
    axes: NDArray[np.float64]  # (d, d), columns orthonormal

    def seen_along(self, seen: Characteristic) -> Characteristic:
        """The characteristic function of u."""
        omegas = np.ascontiguousarray(seen.omegas @ self.axes)
        turns = np.exp(1j * (omegas.sum(axis=1) / 2 - seen.omegas @ self.origin))
        return seen._replace(omegas=omegas, values=seen.values * turns)

    def back(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Points of the box from those along the axes; what lies outside comes to its side."""
        return np.asarray(np.clip(self.origin + (points - 0.5) @ self.axes.T, 0.0, 1.0))

    def along(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Points along the axes from those of the box."""
        return np.asarray(0.5 + (points - self.origin) @ self.axes)


class Family(NamedTuple):
    """A kind of atoms, and where they are looked for."""

    name: str
    shape: Shape
    rules: Rules
    frame: Frame
    cost: float  # beside that of its parameters
    places: NDArray[np.float64]  # (n, d), along the frame's axes


def cloud_of(
    sketch: Sketch, clusters: int, words: PublicWords, n: int = PARTICLES, found: Mixture | None = None
) -> PathFit:
    """The density of the people behind a round of phases, as particles.

    Deterministic in its arguments, and finite whatever was reported.

    Parameters
    ----------
    sketch : Sketch
        Of d features, 1..64.
    clusters : int
        K: the mixture may have as many atoms, 1.6 as many with one or two features, and six
        where that is more with five or fewer; less where their parameters would be too many.
    words : PublicWords
        What chooses the places atoms are looked for at and the shifts of the particles.
    n : int
        How many particles.
    found : Mixture, optional
        Round clusters that `clustering.phase_search.search` found in the same sketch: in every
        family a fit starts from them too.

    Returns
    -------
    PathFit
    """
    seen = characteristic_of(sketch)
    candidates = [
        (score_of(family, fitted), family, fitted)
        for family in _families(seen, words)
        for fitted in _fits(family, seen, clusters, found, words)
    ]
    score, family, fitted = min(candidates, key=lambda candidate: candidate[0])
    points = family.frame.back(drawn(family.shape, fitted.atoms, n, words))
    return PathFit(Cloud(points, np.full(n, 1 / n)), family.name, len(fitted.atoms.shares), fitted.loss, score)


def _fits(
    family: Family, seen: Characteristic, clusters: int, found: Mixture | None, words: PublicWords
) -> Iterator[Polished]:
    """Those of the path, and the one that starts from round clusters."""
    n_features, n_spreads = seen.omegas.shape[1], family.shape.n_spreads
    along = family.frame.seen_along(seen)
    yield from path(along, family, most_atoms(clusters, n_features, n_spreads), words)
    if found is None or len(found.shares) * (n_features + 1 + n_spreads) > MOST_PARAMETERS:
        return
    spreads = np.where(family.shape.on_diagonal, found.widths[:, None], 0.0)
    start = Atoms(family.frame.along(found.centres), found.shares, spreads)
    yield polish(along, family.shape, start, family.rules, FIRST_STEPS, SMALL_DECREASE)


def round_atoms_score(sketch: Sketch, mixture: Mixture) -> float:
    """The score of clusters of one round atom each, on the scale of `PathFit.score`, and CLEAR_COST.

    Parameters
    ----------
    mixture : Mixture
        As `clustering.phase_search.search` finds it.
    """
    seen = characteristic_of(sketch)
    shape = round_shape(sketch.n_features)
    rules = _rules(sketch.n_features)._replace(least_width=float(mixture.widths.min()))
    start = Atoms(mixture.centres, mixture.shares, mixture.widths[:, None])
    fitted = polish(seen, shape, start, rules, PATH_STEPS, SMALL_DECREASE)
    loss: float = min(fitted.loss, loss_of(seen, shape, start))
    return float(loss + PARAMETER_COST * len(mixture.shares) * (sketch.n_features + 2) + CLEAR_COST)


def are_clear(path: PathFit, round_score: float, clusters: int) -> bool:
    """Whether round clusters stand apart, rather than people being spread some other way.

    Parameters
    ----------
    path : PathFit
        Best from `cloud_of` with the round clusters as `found`: then any other shape of them
        has been tried too.
    round_score : float
        From `round_atoms_score`, of the same sketch.
    clusters : int
        K.
    """
    excess = round_score - CLEAR_COST - path.score
    return excess <= -FAR_BETTER or (path.atoms >= CLEAR_SHARE * clusters and excess <= CLEAR_EXCESS)


def score_of(family: Family, fitted: Polished) -> float:
    """The loss, and what family and parameters cost."""
    n_parameters = fitted.atoms.centres.size + fitted.atoms.shares.size + fitted.atoms.spreads.size
    return fitted.loss + PARAMETER_COST * n_parameters + family.cost


def most_atoms(clusters: int, n_features: int, n_spreads: int) -> int:
    """How far a path goes."""
    if n_features <= ROUND_FEATURES:
        wanted = max(round(1.6 * clusters), min(2 * clusters, 6))
    elif n_features <= FULL_FEATURES:
        wanted = max(clusters, min(2 * clusters, 6))
    else:
        wanted = clusters
    return max(1, min(wanted, MOST_PARAMETERS // (n_features + 1 + n_spreads)))


# ---- families ----


def _families(seen: Characteristic, words: PublicWords) -> Iterator[Family]:
    d = seen.omegas.shape[1]
    box = Frame(np.full(d, 0.5), np.eye(d))
    rules = _rules(d)
    everywhere = np.vstack([np.full(d, 0.5), spread_evenly(PLACES, d, words)])
    if d <= ROUND_FEATURES:
        yield Family("round", round_shape(d), rules, box, 0.0, everywhere)
        return
    if d <= FULL_FEATURES:
        few = rules._replace(usual_width=0.08, stiffness=2.0)
        yield Family("full", full_shape(d), few, box, 0.0, everywhere)
        return
    rules = rules._replace(stiffness=2.0)
    if d <= TURNED_FEATURES:
        one = Family("full", full_shape(d), rules._replace(usual_width=0.15), box, 0.0, everywhere)
        (fitted,) = path(seen, one, 1, words)
        yield _turned(one, fitted.atoms)
    else:
        yield Family("diagonal", diagonal_shape(d), rules, box, 0.0, everywhere)
    yield Family("round", round_shape(d), _rules(d), box, ROUND_COST, everywhere)


def _rules(n_features: int) -> Rules:
    least_width = LEAST_WIDTH
    if n_features <= FULL_FEATURES:
        least_width = LEAST_WIDTH_FEW_FEATURES if n_features <= ROUND_FEATURES else LEAST_WIDTH_FULL
    return Rules(
        lower=np.full(n_features, -MARGIN),
        upper=np.full(n_features, 1 + MARGIN),
        least_share=LEAST_SHARE,
        least_width=least_width,
        most_width=MOST_WIDTH,
        usual_width=0.1,
        stiffness=0.35,
        off_stiffness=8.0,
    )


def _turned(one: Family, atom: Atoms) -> Family:
    """Ellipsoids along the axes of one normal distribution, looked for where it lies."""
    d = len(atom.centres[0])
    root = atom.roots(one.shape)[0]
    variances, axes = np.linalg.eigh(root @ root.T)
    frame = Frame(atom.centres[0], axes)
    ends = (np.stack([one.rules.lower, one.rules.upper])[:, :, None] - frame.origin[:, None]) * axes
    rules = one.rules._replace(
        lower=0.5 + ends.min(axis=0).sum(axis=0),
        upper=0.5 + ends.max(axis=0).sum(axis=0),
        usual_width=0.1,
    )
    deviates = ndtri(np.clip(one.places, _INSIDE, 1 - _INSIDE)) * np.sqrt(np.maximum(variances, 0.0))
    places = np.clip(0.5 + deviates, rules.lower, rules.upper)
    return Family("turned", diagonal_shape(d), rules, frame, 0.0, places)


# ---- a path ----


def path(seen: Characteristic, family: Family, n_atoms: int, words: PublicWords) -> Iterator[Polished]:
    """Fits of 1, 2, ... atoms, each from the one before and an atom where it leaves most.

    It ends early when PATIENCE sizes in turn have scored worse than the best.
    """
    lookout = Lookout(seen, family)
    start, last_fitted, best, since = lookout.first(), 0, np.inf, 0
    for size in range(1, n_atoms + 1):
        in_full = size == n_atoms or size - last_fitted >= max(1, size // EVERY)
        n_steps = FIRST_STEPS if size == 1 else PATH_STEPS if in_full else PASSING_STEPS
        fitted = polish(seen, family.shape, start, family.rules, n_steps, SMALL_DECREASE)
        if in_full:
            last_fitted = size
            yield fitted
            score = score_of(family, fitted)
            since = 0 if score < best else since + 1
            best = min(best, score)
            if since == PATIENCE:
                return
        if size < n_atoms:
            start = lookout.with_another(fitted.atoms, words)


class Lookout:
    """Looks for an atom where others leave most of what is seen."""

    def __init__(self, seen: Characteristic, family: Family) -> None:
        self._seen, self._family = seen, family
        self._round = round_shape(seen.omegas.shape[1])
        few = seen.omegas.shape[1] <= ROUND_FEATURES
        self._widths = np.array(START_WIDTHS_FEW_FEATURES if few else START_WIDTHS)
        self._damped = np.exp(-np.outer((seen.omegas**2).sum(axis=1), self._widths**2) / 2)
        self._norms = np.maximum(seen.weights @ self._damped**2, np.finfo(np.float64).tiny)
        angles = family.places @ seen.omegas.T
        self._waves = np.cos(angles), np.sin(angles)  # which stay the same all along the path

    def first(self) -> Atoms:
        """One atom."""
        found = self._strongest(self._seen.values, self._family.places, self._agreement(self._seen.values))
        return Atoms(found.centres, np.ones(1), self._spreads(found))

    def with_another(self, atoms: Atoms, words: PublicWords) -> Atoms:
        """The atoms and one more."""
        family = self._family
        left = left_over(self._seen, family.shape, atoms)
        near = np.clip(drawn(family.shape, atoms, PLACES, words), family.rules.lower, family.rules.upper)
        angles = near @ self._seen.omegas.T
        scores = np.vstack([self._agreement(left), self._agreement(left, (np.cos(angles), np.sin(angles)))])
        found = self._strongest(left, np.vstack([family.places, near]), scores)
        shares = np.append(atoms.shares, found.shares)
        return Atoms(
            np.vstack([atoms.centres, found.centres]),
            shares / shares.sum(),
            np.vstack([atoms.spreads, self._spreads(found)]),
        )

    def _spreads(self, found: Atoms) -> NDArray[np.float64]:
        """A round atom's width, as spreads of the family's shape: (1, T)."""
        return np.where(self._family.shape.on_diagonal, found.spreads, 0.0)

    def _agreement(
        self, left: NDArray[np.complex128], waves: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
    ) -> NDArray[np.float64]:
        """Weighted product of what is left and a round atom, for each place and width: (n, S)."""
        cosines, sines = waves or self._waves
        signal = (self._seen.weights * left)[:, None] * self._damped
        return np.asarray(cosines @ signal.real + sines @ signal.imag)

    def _strongest(
        self, left: NDArray[np.complex128], places: NDArray[np.float64], scores: NDArray[np.float64]
    ) -> Atoms:
        """The round atom that explains most, of the best few once polished."""
        rules, rest = self._family.rules, self._seen._replace(values=left)
        gains = np.maximum(scores, 0.0) ** 2 / self._norms
        tried = []
        for place, width in zip(
            *np.unravel_index(np.argsort(-gains, axis=None, kind="stable")[:CLIMBERS], gains.shape), strict=True
        ):
            share = np.clip(scores[place, width] / self._norms[width], rules.least_share, 1.0)
            atom = Atoms(places[place][None], np.array([share]), np.array([[self._widths[width]]]))
            tried.append(polish(rest, self._round, atom, rules, CLIMB_STEPS, SMALL_CLIMB, whole=False))
        return min(tried, key=lambda fitted: fitted.loss).atoms

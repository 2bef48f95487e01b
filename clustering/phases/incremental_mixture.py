"""Incremental Gaussian mixtures for overlapping clusters: fits of 1, 2, ... components to a round of phases.

Some devices' reports cannot determine the shape of each cluster, but they determine the
density. Components are therefore not clusters: together they describe the density, and
k-means finds clusters among particles sampled from it.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from clustering.phases.gaussian_components import (
    Characteristic,
    ComponentFit,
    Components,
    Constraints,
    CovarianceShape,
    characteristic_of,
    characteristic_residual,
    diagonal_shape,
    fit_components,
    full_shape,
    round_shape,
)
from clustering.phases.mixture_fit import Sketch
from clustering.phases.particles import Cloud, sample_components, sobol_points
from clustering.random import PublicWords

PARTICLES = 20_000

# Largest number of features of each family: round components; any covariance; ellipsoids along the
# axes of one fitted normal distribution. With more features, that distribution has too many parameters, and
# ellipsoids follow the features. Above FULL_FEATURES, round components are fitted too.
ROUND_FEATURES, FULL_FEATURES, TURNED_FEATURES = 2, 5, 24

# Costs added to the loss to choose family and size. Noise accounts for one half per parameter.
PARAMETER_COST = 0.7
ROUND_COST = 60.0  # round components in more than two features, which fit well but describe badly

# Limits of the incremental fit. Its work grows with the square of the parameters, so they are
# bounded, and only some of the large sizes are fitted to convergence.
MOST_PARAMETERS = 256
PATIENCE = 6  # sizes in a row that may score worse than the best
EVERY = 8  # a size is fitted to convergence if it exceeds the last such size by an eighth

# Candidates for a new component: places spread over the box, as many sampled from the mixture, at
# several widths. The best are fitted to the residual.
PLACES = 300
CLIMBERS = 5
START_WIDTHS, START_WIDTHS_FEW_FEATURES = (0.05, 0.1, 0.2, 0.4), (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
CLIMB_STEPS, FIRST_STEPS, PATH_STEPS, PASSING_STEPS = 12, 30, 12, 2
SMALL_CLIMB, SMALL_DECREASE = 0.05, 0.01  # decrease of the loss at which a candidate, and a mixture, is final

MARGIN = 0.02  # allowed distance of a centre outside the box
LEAST_SHARE, MOST_WIDTH = 0.002, 0.4
LEAST_WIDTH, LEAST_WIDTH_FULL, LEAST_WIDTH_FEW_FEATURES = 0.02, 0.01, 0.003
_INSIDE = 1e-6  # least distance of quantiles from 0 and 1


class MixtureFit(NamedTuple):
    """The selected mixture, as particles."""

    cloud: Cloud
    family: str  # "round", "full", "turned" or "diagonal"
    n_components: int
    loss: float  # weighted squared residual; half the degrees of freedom for the true mixture
    score: float  # loss plus costs; the least is selected


class Frame(NamedTuple):
    """The axes along which components are fitted: x = origin + axes (u - 1/2)."""

    origin: NDArray[np.float64]  # (d,)
    axes: NDArray[np.float64]  # (d, d), columns orthonormal

    def transform(self, seen: Characteristic) -> Characteristic:
        """Return the characteristic function of u."""
        omegas = np.ascontiguousarray(seen.omegas @ self.axes)
        turns = np.exp(1j * (omegas.sum(axis=1) / 2 - seen.omegas @ self.origin))
        return seen._replace(omegas=omegas, values=seen.values * turns)

    def to_box(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return points of the box from points along the axes, clipped to the box."""
        return np.asarray(np.clip(self.origin + (points - 0.5) @ self.axes.T, 0.0, 1.0))


class Family(NamedTuple):
    """A family of components, and the places where they are searched."""

    name: str
    shape: CovarianceShape
    rules: Constraints
    frame: Frame
    cost: float  # cost in addition to that of its parameters
    places: NDArray[np.float64]  # (n, d), along the frame's axes


def fit_cloud(sketch: Sketch, clusters: int, words: PublicWords, n: int = PARTICLES) -> MixtureFit:
    """Fit the density of the population behind a round of phases, and return it as particles.

    The result is deterministic in the arguments, and finite for any reports.

    Parameters
    ----------
    sketch : Sketch
        A sketch of d features, 1..64.
    clusters : int
        K. The mixture has at most K components; with one or two features 1.6 K or min(2 K, 6),
        whichever is greater; with up to five features K or min(2 K, 6). Fewer if they would
        have more than `MOST_PARAMETERS` parameters.
    words : PublicWords
        Source of the candidate places and of the shifts of the particles.
    n : int
        Number of particles.

    Returns
    -------
    MixtureFit
    """
    seen = characteristic_of(sketch)
    candidates = []
    for family in _families(seen, words):
        most = max_components(clusters, sketch.n_features, family.shape.n_spreads)
        fits = fit_sizes(family.frame.transform(seen), family, most, words)
        candidates += [(score_of(family, fitted), family, fitted) for fitted in fits]
    score, family, fitted = min(candidates, key=lambda candidate: candidate[0])
    points = family.frame.to_box(sample_components(family.shape, fitted.components, n, words))
    return MixtureFit(Cloud(points, np.full(n, 1 / n)), family.name, len(fitted.components.shares), fitted.loss, score)


def score_of(family: Family, fitted: ComponentFit) -> float:
    """Return the loss plus the costs of family and parameters."""
    n_parameters = fitted.components.centres.size + fitted.components.shares.size + fitted.components.spreads.size
    return fitted.loss + PARAMETER_COST * n_parameters + family.cost


def max_components(clusters: int, n_features: int, n_spreads: int) -> int:
    """Return the largest number of components to fit."""
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
    everywhere = np.vstack([np.full(d, 0.5), sobol_points(PLACES, d, words)])
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
        (fitted,) = fit_sizes(seen, one, 1, words)
        yield _turned(one, fitted.components)
    else:
        yield Family("diagonal", diagonal_shape(d), rules, box, 0.0, everywhere)
    yield Family("round", round_shape(d), _rules(d), box, ROUND_COST, everywhere)


def _rules(n_features: int) -> Constraints:
    least_width = LEAST_WIDTH
    if n_features <= FULL_FEATURES:
        least_width = LEAST_WIDTH_FEW_FEATURES if n_features <= ROUND_FEATURES else LEAST_WIDTH_FULL
    return Constraints(
        lower=np.full(n_features, -MARGIN),
        upper=np.full(n_features, 1 + MARGIN),
        least_share=LEAST_SHARE,
        least_width=least_width,
        most_width=MOST_WIDTH,
        usual_width=0.1,
        stiffness=0.35,
        off_stiffness=8.0,
    )


def _turned(one: Family, component: Components) -> Family:
    """Return the family of ellipsoids along the axes of one normal distribution, searched where it has mass."""
    d = len(component.centres[0])
    root = component.roots(one.shape)[0]
    variances, axes = np.linalg.eigh(root @ root.T)
    frame = Frame(component.centres[0], axes)
    ends = (np.stack([one.rules.lower, one.rules.upper])[:, :, None] - frame.origin[:, None]) * axes
    rules = one.rules._replace(
        lower=0.5 + ends.min(axis=0).sum(axis=0),
        upper=0.5 + ends.max(axis=0).sum(axis=0),
        usual_width=0.1,
    )
    deviates = ndtri(np.clip(one.places, _INSIDE, 1 - _INSIDE)) * np.sqrt(np.maximum(variances, 0.0))
    places = np.clip(0.5 + deviates, rules.lower, rules.upper)
    return Family("turned", diagonal_shape(d), rules, frame, 0.0, places)


# ---- increasing sizes ----


def fit_sizes(seen: Characteristic, family: Family, n_components: int, words: PublicWords) -> Iterator[ComponentFit]:
    """Yield fits of 1, 2, ... components. Each starts from the previous one plus a component at the residual's peak.

    Stop after PATIENCE sizes in a row that score worse than the best.
    """
    component_search = ComponentSearch(seen, family)
    start, last_fitted, best, since = component_search.first(), 0, np.inf, 0
    for size in range(1, n_components + 1):
        in_full = size == n_components or size - last_fitted >= max(1, size // EVERY)
        n_steps = FIRST_STEPS if size == 1 else PATH_STEPS if in_full else PASSING_STEPS
        fitted = fit_components(seen, family.shape, start, family.rules, n_steps, SMALL_DECREASE)
        if in_full:
            last_fitted = size
            yield fitted
            score = score_of(family, fitted)
            since = 0 if score < best else since + 1
            best = min(best, score)
            if since == PATIENCE:
                return
        if size < n_components:
            start = component_search.add_to(fitted.components, words)


class ComponentSearch:
    """Searches for the component that explains most of a residual."""

    def __init__(self, seen: Characteristic, family: Family) -> None:
        self._seen, self._family = seen, family
        self._round = round_shape(seen.omegas.shape[1])
        few = seen.omegas.shape[1] <= ROUND_FEATURES
        self._widths = np.array(START_WIDTHS_FEW_FEATURES if few else START_WIDTHS)
        self._damped = np.exp(-np.outer((seen.omegas**2).sum(axis=1), self._widths**2) / 2)
        self._norms = np.maximum(seen.weights @ self._damped**2, np.finfo(np.float64).tiny)
        angles = family.places @ seen.omegas.T
        self._waves = np.cos(angles), np.sin(angles)  # constant for all sizes

    def first(self) -> Components:
        """Return one component."""
        found = self._strongest(self._seen.values, self._family.places, self._agreement(self._seen.values))
        return Components(found.centres, np.ones(1), self._spreads(found))

    def add_to(self, components: Components, words: PublicWords) -> Components:
        """Return the components and one more."""
        family = self._family
        left = characteristic_residual(self._seen, family.shape, components)
        near = np.clip(
            sample_components(family.shape, components, PLACES, words), family.rules.lower, family.rules.upper
        )
        angles = near @ self._seen.omegas.T
        scores = np.vstack([self._agreement(left), self._agreement(left, (np.cos(angles), np.sin(angles)))])
        found = self._strongest(left, np.vstack([family.places, near]), scores)
        shares = np.append(components.shares, found.shares)
        return Components(
            np.vstack([components.centres, found.centres]),
            shares / shares.sum(),
            np.vstack([components.spreads, self._spreads(found)]),
        )

    def _spreads(self, found: Components) -> NDArray[np.float64]:
        """Return a round component's width as spreads of the family's shape: (1, T)."""
        return np.where(self._family.shape.on_diagonal, found.spreads, 0.0)

    def _agreement(
        self, left: NDArray[np.complex128], waves: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
    ) -> NDArray[np.float64]:
        """Return the weighted inner product of a residual and a round component, per place and width: (n, S)."""
        cosines, sines = waves or self._waves
        signal = (self._seen.weights * left)[:, None] * self._damped
        return np.asarray(cosines @ signal.real + sines @ signal.imag)

    def _strongest(
        self, left: NDArray[np.complex128], places: NDArray[np.float64], scores: NDArray[np.float64]
    ) -> Components:
        """Fit the best few candidates and return the round component with the least loss."""
        rules, rest = self._family.rules, self._seen._replace(values=left)
        gains = np.maximum(scores, 0.0) ** 2 / self._norms
        tried = []
        for place, width in zip(
            *np.unravel_index(np.argsort(-gains, axis=None, kind="stable")[:CLIMBERS], gains.shape), strict=True
        ):
            share = np.clip(scores[place, width] / self._norms[width], rules.least_share, 1.0)
            component = Components(places[place][None], np.array([share]), np.array([[self._widths[width]]]))
            tried.append(fit_components(rest, self._round, component, rules, CLIMB_STEPS, SMALL_CLIMB, whole=False))
        return min(tried, key=lambda fitted: fitted.loss).components

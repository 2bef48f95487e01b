"""Division of a fitted density into clusters, with its expected agreement and the verdict.

The expected agreement estimates the adjusted Rand index of the map from the agreement of refits. It
states how far repeated runs reproduce this map. They can reproduce a map that differs from the true groups, for
example if the grid is too coarse for them. Everything here is post-processing and costs no privacy budget.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from clustering.density.bump_fit import BumpFit
from clustering.density.cluster_count import SELECTION, ClusterCount, count_clusters
from clustering.density.excess_mass import Regions
from clustering.density.expected_error import disagreement
from clustering.density.levels import describe_levels
from clustering.density.map_agreement import NO_AGREEMENT, Agreement, Comparison, Selection
from sfumato.model.precision import ExpectedAgreement, Verdict

TABLE_FILE = Path(__file__).with_name("agreement_table.json")  # written by `benchmarks.agreement_table`

RELIABLE = 0.9  # least of the four agreements of a reliable map
DOUBTFUL = 0.7  # a map of a given number of clusters with less agreement is doubtful
EXPECTED = 0.75  # a map of a counted number of clusters with less expected agreement is doubtful
LEAD = 0.3  # least lead of the gap under another ℓ than that of the table
OPEN = 3  # a number of clusters is open if the interval reaches more than so many times it
UNDIVIDED_BUMP = 0.01  # least E of a bump inside a cluster that counts
POSSIBLE_ERRORS, CLEAR_ERRORS = 1.5, 2.0  # standard errors from which such a bump may be a cluster, and rarely is noise
MAY_DIVIDE = 0.02  # mass of possible bumps inside clusters from which a map is at best uncertain
REPEATED = 0.15  # most that a finer division may agree less, for bumps inside clusters to count
UNDIVIDED, CLEARLY_UNDIVIDED = 0.1, 0.03  # mass of the possible and of the clear ones from which a map is doubtful


@dataclass(frozen=True)
class AgreementTable:
    """The calibration of `expected_agreement`: intercept + agreement · A + gap · g, and residuals by estimate.

    Attributes
    ----------
    intercept, agreement, gap : float
    below : tuple of float
        Upper limits of the ranges of the estimate, ascending; the last is above 1.
    lower, upper : tuple of float
        10 % and 90 % quantiles of the residuals in each range.
    """

    intercept: float
    agreement: float
    gap: float
    below: tuple[float, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]

    def estimate(self, agreement: Agreement) -> ExpectedAgreement:
        """Return the expected agreement of a map."""
        value = float(np.clip(self.intercept + self.agreement * agreement.mean + self.gap * agreement.gap, 0, 1))
        place = next(index for index, below in enumerate(self.below) if value < below)
        return ExpectedAgreement(value, max(0.0, value + self.lower[place]), min(1.0, value + self.upper[place]))


@lru_cache(maxsize=1)
def agreement_table() -> AgreementTable:
    """Return the calibration of this version."""
    entries = json.loads(TABLE_FILE.read_text(encoding="utf-8"))
    names = ("below", "lower", "upper")
    return AgreementTable(**entries | {name: tuple(entries[name]) for name in names})


class Undivided(NamedTuple):
    """The excess of mass of the bumps inside counted clusters, as shares of the people.

    Attributes
    ----------
    possible : float
        Of those that may be clusters.
    clear : float
        Of those that noise rarely makes.
    """

    possible: float
    clear: float


def judge(agreement: Agreement, undivided: Undivided | None, *, is_limited: bool) -> Verdict:
    """Return the verdict of a map.

    Parameters
    ----------
    agreement : Agreement
    undivided : Undivided or None
        None if the number of clusters was given.
    is_limited : bool
        Whether the map is at best uncertain, for example because its number of clusters is open.
    """
    if undivided is None:
        is_doubtful = agreement.mean < DOUBTFUL
    else:
        is_coarse = undivided.possible >= UNDIVIDED or undivided.clear >= CLEARLY_UNDIVIDED
        is_doubtful = is_coarse or agreement_table().estimate(agreement).value < EXPECTED
        is_limited = is_limited or undivided.possible >= MAY_DIVIDE
    if is_doubtful:
        return Verdict.DOUBTFUL
    is_reliable = min(agreement.least, agreement.between_halves) >= RELIABLE and not is_limited
    return Verdict.RELIABLE if is_reliable else Verdict.UNCERTAIN


@dataclass(frozen=True)
class MapDivision:
    """The clusters of a fitted density, and what they are worth.

    Attributes
    ----------
    fit : BumpFit
        The fit of the selected length scale.
    cut : Regions
    agreement : Agreement
    count : ClusterCount or None
        None if the number of clusters was given.
    expected_error : float
        Mean share of the population with another label in the maps of synthetic data.
    levels : mapping
        The diagnostics of `describe_levels`; empty lists if the number of clusters was given or is one.
    """

    fit: BumpFit
    cut: Regions
    agreement: Agreement
    count: ClusterCount | None
    expected_error: float
    levels: Mapping[str, Any]

    def verdict(self, *, low_confidence: bool) -> Verdict:
        """Return the verdict.

        Few data never give a reliable map, nor does an open number of clusters, nor do bumps that may divide them. A
        map with fewer clusters than were requested is doubtful.
        """
        if self.n_missing > 0:
            return Verdict.DOUBTFUL
        if self.count is None:
            return judge(self.agreement, None, is_limited=low_confidence)
        bumps = Undivided(self.undivided, self.clearly_undivided)
        return judge(self.agreement, bumps, is_limited=low_confidence or self.is_open)

    @property
    def n_missing(self) -> int:
        """Return how many of the requested clusters the density does not have."""
        return (self.fit.clusters or 1) - len(self.cut.bumps) if self.count is None else 0

    @property
    def sum_of_squares(self) -> float:
        """Return the probability that two people are in one cluster."""
        masses = np.bincount(self.cut.labels.ravel(), self.fit.density.ravel())
        return float(((masses / masses.sum()) ** 2).sum())

    @property
    def is_open(self) -> bool:
        """Return whether the number of clusters was counted and is open."""
        return self.count is not None and self.count.upper > OPEN * self.count.clusters

    @cached_property
    def undivided(self) -> float:
        """Return the excess of mass of the bumps inside clusters that may be clusters."""
        return self._excess_inside(POSSIBLE_ERRORS)

    @cached_property
    def clearly_undivided(self) -> float:
        """Return the excess of mass of the bumps inside clusters that noise rarely makes."""
        return self._excess_inside(CLEAR_ERRORS)

    @property
    def may_divide(self) -> bool:
        """Return whether bumps inside clusters limit the verdict."""
        return self.undivided >= MAY_DIVIDE

    def _excess_inside(self, least_errors: float) -> float:
        """Return the sum of E over the bumps inside clusters with E >= .01 and so many standard errors.

        It is 0 if the number of clusters was given. Refits reproduce a coarse map whether or not its clusters divide
        further. A bump along a curved cluster can also be its shape, so that a single small one is no evidence. Such
        bumps lie elsewhere in each refit. So the sum is also 0 if no finer division comes out again nearly as well.
        """
        if self.count is None or self.count.finer < self.agreement.mean - REPEATED:
            return 0.0
        peaks = {bump.peak for bump in self.cut.bumps}
        large = (bump for bump in self.fit.all_bumps if bump.peak not in peaks and bump.excess >= UNDIVIDED_BUMP)
        return float(sum(bump.excess for bump in large if bump.excess >= least_errors * self.fit.excess_error(bump)))

    def reason(self) -> str:
        """Return the sentences that the verdict follows from."""
        agrees = self.expected_agreement().sentence
        if self.n_missing > 0:
            return f"{agrees} {describe_missing(len(self.cut.bumps), self.n_missing)}"
        if not self.may_divide or len(self.cut.bumps) == 1:
            return agrees
        return f"{agrees} Bumps with about {self.undivided:.0%} of the people may divide these clusters further."

    def expected_agreement(self) -> ExpectedAgreement:
        """Return the expected agreement by the calibration of this version."""
        return agreement_table().estimate(self.agreement)

    def excess_errors(self) -> list[float]:
        """Return the standard error of E for each cluster."""
        return [self.fit.excess_error(bump) for bump in self.cut.bumps]

    def diagnostics(self) -> dict[str, Any]:
        """Return the published diagnostics.

        - cluster_interval: lower and upper number of clusters, if they were counted.
        - undivided, clearly_undivided: excess of mass of the bumps inside clusters with 1.5 and 2 standard errors. 0 if
          no finer division comes out again nearly as well.
        - stability, halves, between_halves, scales: of `Agreement`.
        - expected_error; excess_mass: E per cluster at its first contact with another; excess_mass_errors: its
          standard errors.
        - grid of the fit: length_scale, iterations, converged.
        - levels, merges: of `describe_levels`.
        """
        return {
            "cluster_interval": None if self.count is None else [self.count.lower, self.count.upper],
            "stability": self.agreement.stability,
            "halves": self.agreement.halves,
            "between_halves": self.agreement.between_halves,
            "scales": self.agreement.scales,
            "gap": self.agreement.gap,
            "undivided": self.undivided,
            "clearly_undivided": self.clearly_undivided,
            "expected_error": self.expected_error,
            "excess_mass": [bump.excess for bump in self.cut.bumps],
            "excess_mass_errors": self.excess_errors(),
            "length_scale": self.fit.length_scale,
            "iterations": self.fit.fitted.steps,
            "converged": self.fit.fitted.converged,
            **self.levels,
        }

    def warnings(self) -> tuple[str, ...]:
        """Return the reason for one cluster."""
        return (self.count.reason,) if self.count is not None and self.count.reason is not None else ()


def describe_missing(n_found: int, n_missing: int) -> str:
    """Return a sentence about requested clusters that the density does not have."""
    return f"Only {n_found} of {n_found + n_missing} requested clusters were found."


def divide(fit: BumpFit) -> MapDivision:
    """Divide a density into the given number of clusters, or into those that are counted."""
    if fit.clusters is None:
        comparison = Comparison(fit, SELECTION)
        count = count_clusters(fit, comparison)
        return _division(fit, comparison, count.agreement, count)
    if fit.selects_scale and fit.clusters > 1:
        fit = _select_scale(fit, fit.clusters)
    comparison = Comparison(fit, Selection())
    agreement = comparison.agreement(fit.clusters or 1) if len(fit.all_bumps) > 1 else NO_AGREEMENT
    return _division(fit, comparison, agreement, None)


def _select_scale(fit: BumpFit, clusters: int) -> BumpFit:
    """Return the fit under one of three ℓ, for a given number K of clusters.

    Another ℓ than that of the table needs a clearer gap ln(E_K / E_{K+1}), or the table's density has fewer than K
    bumps. Decision record 0076 has the measurements.
    """

    def clearness(each: BumpFit) -> float:
        return Comparison(each, Selection()).gap(clusters) + (LEAD if each is fit else 0.0)

    able = [each for each in (fit, *fit.other_scales) if len(each.all_bumps) >= clusters]
    return max(able, key=clearness, default=fit)


def _division(fit: BumpFit, comparison: Comparison, agreement: Agreement, count: ClusterCount | None) -> MapDivision:
    n_clusters = count.clusters if count is not None else fit.clusters or 1
    cut = fit.tree.regions(comparison.ranked[:n_clusters])
    error = 0.0
    if len(cut.bumps) > 1:
        changes = [disagreement(cut.labels, other.labels(n_clusters), fit.density) for other in comparison.redrawn]
        error = float(np.mean(changes))
    estimates = {} if count is None else {k: agreement_table().estimate(each) for k, each in count.levels.items()}
    levels = describe_levels(fit.tree, comparison, estimates, n_clusters)
    return MapDivision(fit, cut, agreement, count, error, levels)

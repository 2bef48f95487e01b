"""Clusters of each category of an attribute: the division of a round of shifted grids over cells and categories.

The noise of a cell is that of all reports. A category with the share s has therefore n_eff s² effective reports.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustering.density.confidence import DETECTABLE_ERRORS, Confidence
from clustering.density.label_map import rank_by_mass, region_totals
from clustering.density.map_agreement import NO_AGREEMENT, Agreement
from clustering.density.map_division import MapDivision, Undivided, agreement_table, describe_missing, divide, judge
from clustering.grids.density_fit import Category, DensityFit, fit_category
from sfumato.model.precision import ExpectedAgreement, Verdict
from sfumato.sizing.grids import check_clusters
from sfumato.sizing.rounds import MAX_JSON_INT, MIN_EFFECTIVE_REPORTS

_LEAST_SHARE = 1e-3  # least estimated share of a category, so that its field can be divided by it


@dataclass(frozen=True)
class CategoryDivision:
    """The clusters of each category.

    Attributes
    ----------
    names : tuple of str
        Categories of the attribute.
    parts : tuple of MapDivision
        The division of the people of each category.
    shares : tuple of float
        Share of each category; the sum is 1.
    labels : ndarray of shape (fine_cells, .., n_categories), int64
        0 .. n-1, by descending mass. No cluster has cells of two categories.
    density : ndarray of the same shape, float64
        Sums to one.
    order : ndarray of shape (n,), int64
        The place of each cluster among the clusters of all parts, in their order.
    requested : int or None
        Requested number of clusters.
    """

    names: tuple[str, ...]
    parts: tuple[MapDivision, ...]
    shares: tuple[float, ...]
    labels: NDArray[np.int64]
    density: NDArray[np.float64]
    order: NDArray[np.int64]
    requested: int | None

    @property
    def n_missing(self) -> int:
        """Return how many of the requested clusters the densities do not have."""
        return 0 if self.requested is None else self.requested - self.order.size

    def detectable(self, trust: Confidence, errors: NDArray[np.float64]) -> list[bool]:
        """Return whether each cluster stands out from the noise, by its size and by its excess among all people.

        The single cluster of a category has no excess. If the category is empty, its size is noise.

        Parameters
        ----------
        trust : Confidence
        errors : ndarray of shape (n,)
            Standard errors of the sizes.
        """
        large = region_totals(self.labels, self.density) >= DETECTABLE_ERRORS * errors
        found = [
            bump.saddle is None or trust.is_detectable(share * bump.excess, share * error)
            for part, share in zip(self.parts, self.shares, strict=True)
            for bump, error in zip(part.cut.bumps, part.excess_errors(), strict=True)
        ]
        return [found[place] and bool(is_large) for place, is_large in zip(self.order, large, strict=True)]

    def rare(self, trust: Confidence) -> list[str]:
        """Return the categories with too few effective reports to count clusters."""
        pairs = zip(self.names, self.shares, strict=True)
        return [name for name, share in pairs if trust.n_eff * share**2 < MIN_EFFECTIVE_REPORTS]

    @cached_property
    def agreement(self) -> Agreement:
        """Return the agreement of the whole map with those of its refits, from the agreements of the categories.

        A category with one cluster agrees with itself. If all have one cluster, there is no agreement. The gap is the
        mean of those of the other categories, weighted by their people.
        """
        if not self._divided:
            return NO_AGREEMENT
        squares = [part.sum_of_squares for part in self.parts]

        def whole(read: Callable[[Agreement], float]) -> float:
            indexes = [read(part.agreement) if len(part.cut.bumps) > 1 else 1.0 for part in self.parts]
            return index_of_whole(indexes, self.shares, squares)

        weights = [share for _, _, share in self._divided]
        return Agreement(
            whole(lambda each: each.stability),
            whole(lambda each: each.halves),
            whole(lambda each: each.between_halves),
            whole(lambda each: each.scales),
            float(np.average([part.agreement.gap for _, part, _ in self._divided], weights=weights)),
        )

    def verdict(self, trust: Confidence) -> Verdict:
        """Return the verdict on the whole map, by the rules of a map without categories.

        It is at most uncertain if a category is rare, or if the number of its clusters is open. Bumps inside clusters
        count by their share of all people.
        """
        if not self._divided or self.n_missing > 0:
            return Verdict.DOUBTFUL
        is_limited = bool(self.rare(trust)) or any(part.is_open for part in self.parts)
        return judge(self.agreement, self._undivided, is_limited=is_limited)

    @property
    def _undivided(self) -> Undivided | None:
        """Return the bumps inside the clusters of all categories, or None if the number of clusters was given."""
        if self.parts[0].count is None:
            return None
        each = [(part.undivided, part.clearly_undivided) for part in self.parts]
        return Undivided(*np.average(each, axis=0, weights=self.shares).tolist())

    def expected_agreement(self) -> ExpectedAgreement:
        """Return the expected agreement of the whole map, by the calibration of this version."""
        return agreement_table().estimate(self.agreement)

    @property
    def _divided(self) -> list[tuple[str, MapDivision, float]]:
        """Return the categories with several clusters, and their shares. One cluster agrees with everything."""
        each = zip(self.names, self.parts, self.shares, strict=True)
        return [(name, part, share) for name, part, share in each if len(part.cut.bumps) > 1]

    def reason(self) -> str:
        """Return the sentences that the verdict follows from, with figures of the categories with several clusters."""
        if not self._divided:
            return "Each category has one cluster, and one cluster agrees with everything."
        each = ", ".join(f"{name} {part.expected_agreement().value:.2f}" for name, part, _ in self._divided)
        text = f"{self.expected_agreement().sentence} By category: {each}."
        if self.n_missing > 0:
            return f"{text} {describe_missing(self.order.size, self.n_missing)}"
        dividing = ", ".join(name for name, part, _ in self._divided if part.may_divide)
        return f"{text} Bumps may divide the clusters of {dividing} further." if dividing else text

    def diagnostics(self, trust: Confidence) -> dict[str, Any]:
        """Return the published diagnostics: those of the whole map, and `categories` with those of each.

        A category has its name, its share, its number of clusters, its verdict, and the diagnostics of
        `MapDivision.diagnostics` without levels.
        """
        rare, each = self.rare(trust), [part.diagnostics() for part in self.parts]
        intervals = [one["cluster_interval"] for one in each]
        least = max(min(self.shares), _LEAST_SHARE)
        excess = [share * value for share, one in zip(self.shares, each, strict=True) for value in one["excess_mass"]]
        return {
            **trust.diagnostics(),
            **asdict(self.agreement),
            "low_confidence": bool(rare),
            "reports_needed": min(ceil(trust.reports_needed / least**2), MAX_JSON_INT),
            "cluster_interval": None if None in intervals else [sum(ends) for ends in zip(*intervals, strict=True)],
            "excess_mass": [excess[place] for place in self.order],
            "converged": all(one["converged"] for one in each),
            "levels": [],
            "merges": [],
            "categories": [
                {
                    "category": name,
                    "share": share,
                    "clusters": len(part.cut.bumps),
                    "low_confidence": name in rare,
                    **{key: value for key, value in one.items() if key not in ("levels", "merges")},
                }
                for name, share, part, one in zip(self.names, self.shares, self.parts, each, strict=True)
            ],
        }

    def warnings(self, trust: Confidence) -> tuple[str, ...]:
        """Return the limitations of the division as sentences."""
        pairs = zip(self.names, self.parts, strict=True)
        found = [f"{name}: {text}" for name, part in pairs for text in part.warnings()]
        if rare := self.rare(trust):
            found.append(
                f"{trust.n_reports} reports at this epsilon are few for the people of {', '.join(rare)}: their "
                "clusters may be missing or noise. Collect more reports, or leave the attribute out of the job."
            )
        return tuple(found)


def index_of_whole(indexes: Sequence[float], shares: Sequence[float], squares: Sequence[float]) -> float:
    """Return the adjusted Rand index of two maps of categories, from the index of each category.

    No cluster has people of two categories. With s the share of a category, q the sum of the squared shares of its
    clusters among its people, and R its index, two people are in one cluster of both maps with the probability
        P = sum s² (R (q - q²) + q²),
    and in one cluster of either map with Q = sum s² q. The index is (P - Q²) / (Q - Q²). The clusters of a category
    have equal sizes in both maps here.

    Parameters
    ----------
    indexes, shares, squares : sequence of float
        R, s and q of each category. The sum of s is 1.
    """
    r, s, q = np.array(indexes), np.array(shares), np.array(squares)
    together, either = float(s**2 @ (r * (q - q**2) + q**2)), float(s**2 @ q)
    return (together - either**2) / (either - either**2)


def divide_categories(whole: DensityFit) -> CategoryDivision:
    """Divide the people of each category into clusters. Their number is the sum over the categories.

    A given number is distributed: each category has one cluster, and the others are those of the greatest excess of
    mass among all people.

    Parameters
    ----------
    whole : DensityFit
        The fit over the cells and the categories.

    Raises
    ------
    InvalidSpec
        Fewer clusters than categories are requested.
    """
    (attribute,) = whole.encoding.attributes
    clusters = whole.params.clusters
    check_clusters(clusters, attribute)
    shares = np.maximum(whole.density.sum(axis=tuple(range(whole.encoding.n_features))), _LEAST_SHARE)
    found = [Category(place, float(share)) for place, share in enumerate(shares / shares.sum())]
    fits = [fit_category(whole, each) for each in found]
    counts = [None] * len(fits) if clusters is None else _distribute(clusters, fits)
    parts = tuple(
        divide(replace(fit, params=replace(fit.params, clusters=count)))
        for fit, count in zip(fits, counts, strict=True)
    )
    return _joined(attribute.categories, parts, tuple(each.share for each in found), clusters)


def _distribute(clusters: int, fits: Sequence[DensityFit]) -> Sequence[int | None]:
    """Return the number of clusters of each category: one, and more for the greatest bumps of all."""
    further = sorted(_further(fits), reverse=True)[: clusters - len(fits)]
    counts = [1] * len(fits)
    for _, place in further:
        counts[place] += 1
    return counts


def _further(fits: Sequence[DensityFit]) -> Iterator[tuple[float, int]]:
    for place, fit in enumerate(fits):
        assert fit.category is not None  # noqa: S101 - for the type checker: the caller fits categories
        for bump in fit.all_bumps[1:]:
            yield fit.category.share * bump.excess, place


def _joined(
    names: tuple[str, ...], parts: tuple[MapDivision, ...], shares: tuple[float, ...], requested: int | None
) -> CategoryDivision:
    labels, densities, first = list[NDArray[np.int64]](), list[NDArray[np.float64]](), 0
    for part, share in zip(parts, shares, strict=True):
        labels.append(part.cut.labels + first)
        densities.append(part.fit.density * share)
        first += len(part.cut.bumps)
    density = np.stack(densities, axis=-1)
    ranked, order = rank_by_mass(np.stack(labels, axis=-1), density)
    return CategoryDivision(names, parts, shares, ranked, density / density.sum(), order, requested)

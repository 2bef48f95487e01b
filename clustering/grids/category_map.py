"""Clusters of each category of an attribute: the division of a round of shifted grids over cells and categories.

The noise of a cell is that of all reports. A category with the share s has therefore n_eff s² effective reports.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustering.density.confidence import Confidence
from clustering.density.label_map import rank_by_mass
from clustering.density.map_division import MapDivision, divide
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
    """

    names: tuple[str, ...]
    parts: tuple[MapDivision, ...]
    shares: tuple[float, ...]
    labels: NDArray[np.int64]
    density: NDArray[np.float64]
    order: NDArray[np.int64]

    def detectable(self, trust: Confidence) -> list[bool]:
        """Return whether each cluster stands out from the noise, by its excess among all people."""
        found = [
            bump.saddle is None or trust.is_detectable(share * bump.excess, share * error)
            for part, share in zip(self.parts, self.shares, strict=True)
            for bump, error in zip(part.cut.bumps, part.excess_errors(), strict=True)
        ]
        return [found[place] for place in self.order]

    def rare(self, trust: Confidence) -> list[str]:
        """Return the categories with too few effective reports to count clusters."""
        pairs = zip(self.names, self.shares, strict=True)
        return [name for name, share in pairs if trust.n_eff * share**2 < MIN_EFFECTIVE_REPORTS]

    def verdict(self, trust: Confidence) -> Verdict:
        """Return the worst verdict of the categories with several clusters, at most uncertain if one is rare."""
        rare = self.rare(trust)
        found = [part.verdict(low_confidence=name in rare) for name, part in self._divided]
        if not found:
            return Verdict.DOUBTFUL
        return max(found, key=list(Verdict).index).or_worse(Verdict.UNCERTAIN if rare else Verdict.RELIABLE)

    def expected_agreement(self) -> ExpectedAgreement:
        """Return the mean over the categories with several clusters, weighted by their people."""
        weights = [share for part, share in zip(self.parts, self.shares, strict=True) if len(part.cut.bumps) > 1]
        if not weights:
            return self.parts[0].expected_agreement()
        each = [part.expected_agreement() for _, part in self._divided]
        columns = zip(*((one.value, one.lower, one.upper) for one in each), strict=True)
        return ExpectedAgreement(*(float(np.average(column, weights=weights)) for column in columns))

    @property
    def _divided(self) -> list[tuple[str, MapDivision]]:
        """Return the categories with several clusters. One cluster agrees with everything, so it is no evidence."""
        return [(name, part) for name, part in zip(self.names, self.parts, strict=True) if len(part.cut.bumps) > 1]

    def reason(self) -> str:
        """Return the sentences that the verdict follows from, for each category with several clusters."""
        found = " ".join(f"{name}: {part.reason()}" for name, part in self._divided)
        return found or "Each category has one cluster, and one cluster agrees with everything."

    def diagnostics(self, trust: Confidence) -> dict[str, Any]:
        """Return the published diagnostics: sums over the categories, and `categories` with those of each.

        A category has its name, its share, its number of clusters, its verdict, and the diagnostics of
        `MapDivision.diagnostics` without levels.
        """
        rare, each = self.rare(trust), [part.diagnostics() for part in self.parts]
        intervals = [one["cluster_interval"] for one in each]
        least = max(min(self.shares), _LEAST_SHARE)
        excess = [share * value for share, one in zip(self.shares, each, strict=True) for value in one["excess_mass"]]
        return {
            **trust.diagnostics(),
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
    return _joined(attribute.categories, parts, tuple(each.share for each in found))


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


def _joined(names: tuple[str, ...], parts: tuple[MapDivision, ...], shares: tuple[float, ...]) -> CategoryDivision:
    labels, densities, first = list[NDArray[np.int64]](), list[NDArray[np.float64]](), 0
    for part, share in zip(parts, shares, strict=True):
        labels.append(part.cut.labels + first)
        densities.append(part.fit.density * share)
        first += len(part.cut.bumps)
    density = np.stack(densities, axis=-1)
    ranked, order = rank_by_mass(np.stack(labels, axis=-1), density)
    return CategoryDivision(names, parts, shares, ranked, density / density.sum(), order)

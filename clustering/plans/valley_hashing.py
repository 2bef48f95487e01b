"""`valley_hashing`: cuts through one-dimensional valleys, then the code of sides (STATISTICS 3.3); experimental.

Round 1 asks some devices for their place along one public direction each; where the density
along a direction has a valley, it is cut. Round 2 asks the other devices on which side of
every cut they are; codes that many people share are clusters.
"""

from collections.abc import Mapping
from math import ceil, isfinite, sqrt
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from clustering.decoders import Decoder, decoder
from clustering.errors import TooFewReports, UnfitRound
from clustering.label_regions import PRIVACY, by_mass
from clustering.plan import Collected, Plan
from clustering.side_codes import CodeGroups, crossed_share, group_codes, label_codes
from clustering.valleys import Cut, choose_cuts, directions, find_cuts
from sfumato.cluster_model import ClusterModel
from sfumato.sizing import MAX_JSON_INT, MIN_EFFECTIVE_REPORTS, planned_rounds
from sfumato.specs import (
    MAX_CLUSTERS,
    MAX_PROJECTIONS,
    Feature,
    HalfspaceCodeEncoding,
    ProjectedGridEncoding,
    ValleyHashing,
)

MIN_PROJECTIONS = 16  # 100,000 in 4 features at epsilon .5: mean ARI .74 with 8, .82 with 16
VALLEY_ERRORS = 2.0  # standard errors that the best cut's excess mass must have
MIN_EXCESS = 0.01
KEPT_ERRORS = 4.0  # z: standard errors above zero that a code must stand to be kept
DETECTABLE_ERRORS = 2.0  # that a size must, to be called detectable
FRAGMENTED = 0.5  # crossed share of which is warned


def valley_hashing(params: ValleyHashing, features: tuple[Feature, ...], expected_reports: int) -> Plan:
    """The plan: a round over projections for draws in [0, .4), one over side codes for the others.

    Where no direction has a valley, the second round is not opened, and everybody is in one
    cluster.

    Parameters
    ----------
    params : ValleyHashing
    features : tuple of Feature
        Two to 64.
    expected_reports : int
        Changes nothing.

    Raises
    ------
    InvalidSpec
        Another number of features.
    TooFewReports
        A round brought nothing.
    UnfitRound
        A published round is of another kind, or tells nothing.
    """
    places, sides = planned_rounds(params, len(features), expected_reports)
    n_projections = params.projections or min(max(2 * len(features), MIN_PROJECTIONS), MAX_PROJECTIONS)
    along = directions(len(features), n_projections, params.seed)
    first = yield places.spec(features, along)
    _check_came(first)
    cuts = choose_cuts(find_cuts(first, decoder(first.spec.mechanism)), params.cuts)
    if not any(cut.excess >= max(MIN_EXCESS, VALLEY_ERRORS * cut.error) for cut in cuts):
        return _no_valley(first, cuts)
    code = HalfspaceCodeEncoding(tuple(cut.weights for cut in cuts), tuple(cut.threshold for cut in cuts))
    second = yield sides.spec(features, code)
    _check_came(second)
    return fit(params.clusters, first, cuts, second)


def fit(clusters: int | None, first: Collected, cuts: list[Cut], second: Collected) -> ClusterModel:
    """The model of the second round, whose cuts and mechanism are taken as published.

    Kept are codes more than four standard errors above zero; a code below 20 % of a denser one
    that differs in one bit joins it; the other codes go to the nearest kept one. Sizes count
    the kept codes alone. There are no centroids: a round tells of places or of
    sides, never of the places of those on a side.

    Parameters
    ----------
    clusters : int, optional
        K; the groups of most mass are kept.
    first : Collected
        For its number of reports.
    cuts : list of Cut
        As found in the first round, for the diagnostics.
    second : Collected

    Returns
    -------
    ClusterModel
        Of type codes, clusters by descending size. Diagnostics: n_reports, in all and by round;
        n_eff (null where nothing was perturbed); reports_needed (for n_eff = 1e4);
        low_confidence (n_eff is less, or everybody is in one cluster for want of a kept code);
        cuts (direction of length one in scaled units, excess mass and its standard error);
        n_codes_kept; crossed_share (of the kept people, those whose code is one bit from
        another cluster's); detectable per cluster (a code was kept, and the size is two
        standard errors above zero).

    Raises
    ------
    UnfitRound
        The round is not over side codes, or tells nothing.
    """
    encoding, tally = second.spec.encoding, second.tally
    if not isinstance(encoding, HalfspaceCodeEncoding):
        raise UnfitRound("valley_hashing goes on from a round over side codes")
    reading = decoder(second.spec.mechanism)
    estimates = reading.frequencies(tally)[0]
    found = group_codes(estimates, KEPT_ERRORS * sqrt(reading.variance(0.0, tally.n_reports)))
    groups = found.largest(clusters or MAX_CLUSTERS)
    density = np.zeros(encoding.n_symbols)
    density[found.codes] = found.masses / found.masses.sum() if found.n_groups else 0.0
    labels, _ = by_mass(label_codes(encoding.n_symbols, groups), density)
    sizes, errors = _sizes(reading, tally.n_reports, labels, found)
    is_clear = (sizes >= DETECTABLE_ERRORS * errors) & (found.n_groups > 0)
    crossed = crossed_share(groups)
    diagnostics = _diagnostics([first, second], reading, cuts) | {
        "n_codes_kept": len(found.codes),
        "crossed_share": crossed,
        "detectable": is_clear.tolist(),
    }
    warnings = _warnings(diagnostics)
    if found.n_groups == 0:
        diagnostics["low_confidence"] = True
        warnings.append("No code of sides stands out from noise, so everybody is in one cluster.")
    elif clusters is not None and found.n_groups < clusters:
        warnings.append(f"{clusters} clusters were asked for, but only {found.n_groups} groups of codes stand out.")
    if found.n_groups > MAX_CLUSTERS and clusters is None:
        warnings.append(f"{found.n_groups} groups of codes stand out; the {MAX_CLUSTERS} of most mass were kept.")
    if crossed > FRAGMENTED:
        warnings.append(
            f"{100 * crossed:.0f} % of the people are one cut away from another cluster: where no valley lies between "
            "them, cuts run through crowds, and clusters are pieces of larger ones."
        )
    return ClusterModel(
        type="codes",
        features=second.spec.features,
        sizes=sizes,
        size_errors=errors,
        encoding=encoding,
        label_map=labels,
        density=density if found.n_groups else None,
        diagnostics=diagnostics,
        warnings=tuple(warnings),
        privacy=PRIVACY,
    )


def _sizes(
    reading: Decoder, n_reports: int, labels: NDArray[np.int64], found: CodeGroups
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Shares of people with each label, and their standard errors.

    The kept codes' masses, made one in sum: so the noise of codes that hold next to nobody
    stays out, and those who do hold such codes are taken to be spread as the others are. The
    error is that of the kept codes' sum, exactly by the mechanism and with sampling, and as
    much of the mass outside kept codes as the cluster was given.
    """
    n_labels = int(labels.max()) + 1
    if found.n_groups == 0:
        return np.ones(1), np.zeros(1)
    label = labels[found.codes]
    sums, n_codes = np.bincount(label, weights=found.masses, minlength=n_labels), np.bincount(label, minlength=n_labels)
    outside = abs(1 - float(sums.sum()))
    sizes = sums / sums.sum()
    errors = reading.standard_errors(n_codes * (1 - n_codes / labels.size), sizes, n_reports)
    return sizes, np.sqrt(errors**2 + (outside * sizes) ** 2)


def _no_valley(first: Collected, cuts: list[Cut]) -> ClusterModel:
    """Everybody in one cluster, on both sides of a cut that means nothing."""
    encoding = cast(ProjectedGridEncoding, first.spec.encoding)
    diagnostics = _diagnostics([first], decoder(first.spec.mechanism), cuts) | {
        "low_confidence": True,
        "n_codes_kept": 0,
        "crossed_share": 0.0,
        "detectable": [False],
    }
    return ClusterModel(
        type="codes",
        features=first.spec.features,
        sizes=np.ones(1),
        size_errors=np.zeros(1),
        encoding=HalfspaceCodeEncoding(encoding.weights[:1], encoding.lowers[:1]),
        label_map=np.zeros(2, dtype=np.int64),
        diagnostics=diagnostics,
        warnings=(*_warnings(diagnostics), "No direction has a valley, so everybody is in one cluster."),
        privacy=PRIVACY,
    )


def _check_came(collected: Collected) -> None:
    if collected.tally.n_reports == 0:
        raise TooFewReports(n_reports=0, n_needed=1)


def _diagnostics(rounds: list[Collected], reading: Decoder, cuts: list[Cut]) -> dict[str, Any]:
    reports = [collected.tally.n_reports for collected in rounds]
    n_eff = sum(reports) * reading.signal
    return {
        "n_reports": sum(reports),
        "reports_by_round": reports,
        "n_eff": n_eff if isfinite(n_eff) else None,
        "reports_needed": min(max(1, ceil(MIN_EFFECTIVE_REPORTS / reading.signal)), MAX_JSON_INT),
        "low_confidence": n_eff < MIN_EFFECTIVE_REPORTS,
        "cuts": [
            {"direction": list(cut.direction), "excess_mass": cut.excess, "excess_mass_error": cut.error}
            for cut in cuts
        ],
    }


def _warnings(diagnostics: Mapping[str, Any]) -> list[str]:
    """What a reader must know before they believe the model, in sentences."""
    said = ["This method is experimental: on real data it is often far from the clusters that other methods find."]
    if diagnostics["low_confidence"]:
        said.append(
            f"{diagnostics['n_reports']} reports are few at this epsilon; "
            f"about {diagnostics['reports_needed']} would make for a steady result."
        )
    return said

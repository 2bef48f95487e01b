"""Forecast of an algorithm over device reports: cost, rounds, noise, quality and verdict."""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

from sfumato.errors import InvalidSpec
from sfumato.forecast.auto import resolve
from sfumato.forecast.families import FAMILIES, Family
from sfumato.forecast.monotone import largest_variance
from sfumato.forecast.noise import centre_error_of, detectable_mass_of, gap_mass, size_error_of
from sfumato.forecast.quality import Band, FamilyBand, least_favourable, qualities_by_family, quality_of
from sfumato.forecast.warnings import Insufficient, insufficient_of, verdict_of, warnings_of
from sfumato.model.precision import Verdict
from sfumato.model.tables import html_bar, html_table
from sfumato.privacy.accounting import DRAW_SPAN, cost, format_epsilon
from sfumato.sizing import planned_rounds
from sfumato.sizing.centroids import FEW_CLUSTERS, category_share_error
from sfumato.sizing.rounds import MAX_JSON_INT, PlannedRound, effective_reports
from sfumato.specs import Algorithm, Participation, PhaseSketch
from sfumato.specs.attributes import Categorical
from sfumato.validation import show

REPORT_HEAD_BYTES = 20  # id and slot of a packed report


@dataclass(frozen=True, slots=True)
class RoundForecast:
    """The forecast of one round.

    Attributes
    ----------
    participation : Participation
        Interval of the draws that participate.
    share : float
        Share of the devices that participate, in (0, 1].
    expected_reports : int
        Expected reports, rounded down.
    epsilon_nano : int
        Cost of a report. It is exact if the encoding is known, else an upper bound.
    mechanism : str
        Type of the mechanism; 'auto' if it depends on earlier rounds.
    n_symbols : int or None
        Number of symbols k, an upper bound if the round adapts; None for vectors.
    report_bytes : int
        Size of a packed report: id, slot and value; an upper bound if the round adapts. A JSON
        report has about twice this size.
    adapts : bool
        Whether the encoding depends on earlier rounds.
    """

    participation: Participation
    share: float
    expected_reports: int
    epsilon_nano: int
    mechanism: str
    n_symbols: int | None
    report_bytes: int
    adapts: bool


@dataclass(frozen=True, slots=True)
class Needed:
    """The number of reports that reaches a target.

    Attributes
    ----------
    n_reports : int or None
        Smallest number of reports that reaches the target; None if no number does.
    reason : str
        Explanation as a sentence.
    """

    n_reports: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast of an algorithm over device reports.

    Attributes
    ----------
    algorithm : Algorithm
        The algorithm that would run; for `Auto`, the selected one.
    reason : str or None
        Reason of the selection by `Auto`.
    n_features, expected_reports : int
        Arguments of the forecast.
    epsilon_nano : int
        Cost of the collection for a device, and charge of the ledger: `accounting.cost` of the
        rounds. It is exact. If rounds adapt and epsilon is above 20, it can be a few thousand
        nano-epsilon too large.
    rounds : tuple of RoundForecast
        Rounds in order. A plan may stop early, but never opens more.
    n_eff : float
        N (e^eps - 1)^2 / (4 e^eps), the effective number of reports.
    detectable_mass : float or None
        Least share of people of a cluster that stands out from noise, at most 1: 8 δ for grids,
        2.8 / (|c_1| sqrt(N)) for phases. None for noisy vectors
        and broadcast centroids, which have no known rule.
    gap_mass : float
        Least share of people that separates two clusters by its absence, 3 δ. A heuristic.
    size_error : float or None
        Standard error of the size of one of K equal clusters on equal parts of the box, as a share
        of all people (K = 2 if K is estimated). It follows from the mechanism's exact variance and
        the sampling of devices: the largest of this and of every larger number and epsilon. None if
        it does not follow from them.
    centre_error : float or None
        Standard error of a coordinate of such a cluster's centre of mass, as a share of the
        feature's range, for a fixed outline of the cluster. In a label map the outline varies too.
        None for methods as printed, noisy vectors, phase sketches and broadcast centroids.
    family : {"compact", "elongated", "curved", "many_small"} or None
        The family of the data, if the caller stated one.
    quality : Band or None
        Expected adjusted Rand index, measured on the reference sets of the family, or of the least
        favourable one; None if it was not measured.
    families : tuple of FamilyBand
        Expected index by family of data; empty if it was not measured.
    verdict : Verdict
        reliable: three quarters of the reference runs reached .8. uncertain: half of them reached
        .5. doubtful: worse, not measured, or `insufficient`. Without a stated family it is the
        verdict of the least favourable one.
    warnings : tuple of str
        Limitations as sentences.
    insufficient : Insufficient or None
        Reason why the expected reports are insufficient.
    needed : Needed or None
        Number of reports that reaches the requested target.
    """

    algorithm: Algorithm
    reason: str | None
    n_features: int
    expected_reports: int
    epsilon_nano: int
    rounds: tuple[RoundForecast, ...]
    n_eff: float
    detectable_mass: float | None
    gap_mass: float
    size_error: float | None
    centre_error: float | None
    family: Family | None
    quality: Band | None
    families: tuple[FamilyBand, ...]
    verdict: Verdict
    warnings: tuple[str, ...]
    insufficient: Insufficient | None
    needed: Needed | None = None

    def _repr_html_(self) -> str:
        cost = f"ε {format_epsilon(self.epsilon_nano)} for each device"
        rows = {"algorithm": self.algorithm.type, "reports": f"{self.expected_reports:,}", "cost": cost}
        band, picture = self.quality, ""
        if band is not None:
            rows["adjusted Rand index"] = f"{band.median:.2f} (quartiles {band.lower:.2f} to {band.upper:.2f})"
            picture = html_bar([band.lower, band.upper - band.lower, 1 - band.upper], 1)
        return html_table(rows | {"verdict": self.verdict.value}, picture)


def forecast(
    algorithm: Algorithm,
    *,
    n_features: int,
    expected_reports: int,
    family: Family | None = None,
    circles: tuple[int, ...] = (),
    attributes: tuple[Categorical, ...] = (),
) -> Forecast:
    """Return the forecast of an algorithm. It is deterministic, uses no data and costs no privacy budget.

    Parameters
    ----------
    algorithm : Algorithm
    n_features : int
    expected_reports : int
        Number of devices expected to participate, 1..2**53-1.
    family : {"compact", "elongated", "curved", "many_small"}, optional
        The family of the data, if it is known: round clusters; long clusters; rings and moons; many
        clusters of very different sizes. It determines `quality` and the verdict.
    circles : tuple of int
        Indices of the periodic features. Their rounds have fewer symbols. `quality` is that of plain features.
    attributes : tuple of Categorical
        Attributes by which the job clusters. In a label map, there is one with evenly frequent categories. `quality`
        is that of the people of one category: with V categories, that of 1/V^2 of the reports and 1/V of the clusters.

    Raises
    ------
    InvalidSpec
        The algorithm does not support the arguments.

    Examples
    --------
    >>> from sfumato import ShiftedGrid
    >>> from sfumato.forecast import forecast
    >>> forecast(ShiftedGrid(epsilon=2, clusters=3), n_features=2, expected_reports=50_000).epsilon_nano <= 2 * 10**9
    True
    """
    if family is not None and family not in FAMILIES:
        raise InvalidSpec(f"family must be one of {', '.join(FAMILIES)}, not {family!r}")
    if not 1 <= expected_reports <= MAX_JSON_INT:
        raise InvalidSpec(f"expected_reports must be from 1 to {MAX_JSON_INT}, not {show(expected_reports)}")
    algorithm, reason = resolve(algorithm, n_features, expected_reports, attributes)
    planned = planned_rounds(algorithm, n_features, expected_reports, circles, attributes)
    rounds = tuple(_forecast_round(each, expected_reports) for each in planned)
    epsilon_nano = algorithm.epsilon_nano
    own, n_own, n_categories = algorithm, expected_reports, 1
    quality: Band | None = None
    families: tuple[FamilyBand, ...] = ()
    if algorithm.definition.reads_cells or not attributes:  # centroids with category shares were not measured
        own, n_own, n_categories = _of_category(algorithm, expected_reports, attributes)
        families = qualities_by_family(own, n_features, n_own)
        quality = quality_of(own, n_features, n_own, family) if family else least_favourable(own, n_features, n_own)
    judged = families if family is None else (() if quality is None else (quality,))
    insufficient = insufficient_of(algorithm, n_features, expected_reports, attributes)
    variance = largest_variance(own, n_features, n_own)
    return Forecast(
        algorithm=algorithm,
        reason=reason,
        n_features=n_features,
        expected_reports=expected_reports,
        epsilon_nano=cost(((each.participation.lo, each.participation.hi), each.epsilon_nano) for each in rounds),
        rounds=rounds,
        n_eff=effective_reports(expected_reports, epsilon_nano),
        detectable_mass=detectable_mass_of(algorithm, planned, expected_reports, len(attributes)),
        gap_mass=gap_mass(expected_reports, epsilon_nano),
        size_error=None if variance is None else size_error_of(algorithm, variance / n_categories),
        centre_error=None if variance is None else centre_error_of(own, n_features, variance),
        family=family,
        quality=quality,
        families=families,
        verdict=verdict_of(judged, insufficient),
        warnings=(
            *warnings_of(own, quality, expected_reports, min(each.expected_reports for each in rounds)),
            *_assumptions(algorithm, expected_reports, attributes),
        ),
        insufficient=insufficient,
    )


def _of_category(
    algorithm: Algorithm, n_reports: int, attributes: tuple[Categorical, ...]
) -> tuple[Algorithm, int, int]:
    """Return the algorithm and the reports that have the errors of the people of one category, and V.

    A category of 1/V of the people has the noise of all reports, so the errors of N / V^2 reports. The variance of a
    share of all people is that of a share of a category over V^2, with V times the symbols.
    """
    if not attributes:
        return algorithm, n_reports, 1
    n_categories = len(attributes[0].categories)
    if algorithm.clusters is not None:
        algorithm = replace(algorithm, clusters=ceil(algorithm.clusters / n_categories))
    return algorithm, max(1, n_reports // n_categories**2), n_categories


def _assumptions(algorithm: Algorithm, n_reports: int, attributes: tuple[Categorical, ...]) -> tuple[str, ...]:
    """Return what the figures of a forecast with attributes assume, as sentences."""
    if isinstance(algorithm, PhaseSketch) and attributes:
        error = category_share_error(algorithm, n_reports, len(attributes))
        return (
            f"In a cluster of 1/{algorithm.clusters or FEW_CLUSTERS} of the people, the share of a category has an "
            f"error of about {error:.2g}.",
        )
    return tuple(
        f"The figures are those of {len(each.categories)} evenly frequent categories of {each.name}. The clusters of a "
        "rarer category have larger errors."
        for each in attributes
    )


def _forecast_round(planned: PlannedRound, expected_reports: int) -> RoundForecast:
    width = planned.participation.hi - planned.participation.lo
    mechanism, epsilon_nano, value_bytes = _design(planned)
    is_open = planned.adapts and planned.kind == "auto"
    return RoundForecast(
        participation=planned.participation,
        share=width / DRAW_SPAN,
        expected_reports=expected_reports * width // DRAW_SPAN,
        epsilon_nano=planned.epsilon_nano if planned.adapts else epsilon_nano,
        mechanism="auto" if is_open else mechanism,
        n_symbols=None if planned.kind == "discrete_laplace" else planned.n_symbols,
        report_bytes=REPORT_HEAD_BYTES + value_bytes,
        adapts=planned.adapts,
    )


@lru_cache(maxsize=4096)
def _design(planned: PlannedRound) -> tuple[str, int, int]:
    """Return type, cost and value bytes of the round's mechanism."""
    mechanism = planned.mechanism()
    return mechanism.type, mechanism.epsilon_nano(), mechanism.value_bytes

"""What a forecast says in words: what is not enough, what to beware of, and how much to believe."""

from dataclasses import dataclass
from typing import Literal

from sfumato.accounting import exp_epsilon, parse_epsilon
from sfumato.forecast.limits import NOISE_FACTOR, at_most_countable, contrast, detectable_mass, puts_all_in_one
from sfumato.forecast.quality import Band
from sfumato.precision import signal_of
from sfumato.sizing import MIN_EFFECTIVE_REPORTS, effective_reports, enough_reports
from sfumato.sizing.enough import SKETCHED_CLUSTERS
from sfumato.specs import (
    MAX_SAMPLE_VALUES,
    Algorithm,
    GridKmeans,
    LdpKmeans,
    NoisyFcm,
    PhaseSketch,
    ShiftedGrid,
    ValleyHashing,
)

Confidence = Literal["high", "fair", "low", "none"]

HIGH_LOWER, FAIR_MEDIAN = 0.8, 0.5  # of the adjusted Rand index
FAR = 10  # times fewer than needed: a job is refused, unless its caller insists
LEAST_COUNTED = 2  # clusters, of equal size, that a shifted grid must be able to tell where it counts them


@dataclass(frozen=True, slots=True)
class Insufficient:
    """So few reports cannot carry what is asked.

    Attributes
    ----------
    reports_needed : int or None
        What would do; None where no number that can be counted would.
    reason : str
        For a person.
    """

    reports_needed: int | None
    reason: str


def insufficient_of(params: Algorithm, n_features: int, n_reports: int) -> Insufficient | None:
    """Why so few reports are not enough; None where they may be."""
    epsilon_nano = parse_epsilon(params.epsilon)
    if isinstance(params, PhaseSketch | LdpKmeans | GridKmeans | NoisyFcm):
        return _too_few_to_place(params, n_features, n_reports)
    if puts_all_in_one(params, n_reports):
        needed = _steady(epsilon_nano)
        return Insufficient(
            needed,
            f"{n_reports} reports are too few to count clusters by at this epsilon, so everybody would be put in one; "
            f"{_would_do(needed)}, or name the number of clusters.",
        )
    least = LEAST_COUNTED if isinstance(params, ShiftedGrid) and params.clusters is None else params.clusters
    if least is None or least == 1:
        return None
    if least * detectable_mass(n_reports, epsilon_nano) <= 1:
        return None
    needed = at_most_countable((NOISE_FACTOR * least / (2 * contrast(epsilon_nano))) ** 2)
    return Insufficient(
        needed,
        f"{least} clusters of equal size are too small to stand out from the noise of {n_reports} reports "
        f"at this epsilon; {_would_do(needed)}.",
    )


def _too_few_to_place(
    params: PhaseSketch | LdpKmeans | GridKmeans | NoisyFcm, n_features: int, n_reports: int
) -> Insufficient | None:
    """By the rule that a result is flagged `insufficient_reports` by."""
    clusters = params.clusters or SKETCHED_CLUSTERS
    least = enough_reports(params, n_features, n_reports)
    if n_reports >= least:
        return None
    needed = at_most_countable(least)
    # a grid takes more cells where more are expected: what would do is found in a few steps
    while needed is not None and isinstance(params, GridKmeans) and needed < enough_reports(params, n_features, needed):
        needed = at_most_countable(enough_reports(params, n_features, needed))
    if isinstance(params, NoisyFcm) and needed is not None and needed * n_features > MAX_SAMPLE_VALUES:
        needed = None  # a round keeps no more vectors
    return Insufficient(
        needed,
        f"{n_reports} reports are too few to place {clusters} centroids at this epsilon; {_would_do(needed)}.",
    )


def is_far_from(insufficient: Insufficient | None, n_reports: int) -> bool:
    """Whether so few reports cannot mean anything: less than a tenth of what would do, or nothing would."""
    if insufficient is None:
        return False
    return insufficient.reports_needed is None or FAR * n_reports < insufficient.reports_needed


def _steady(epsilon_nano: int) -> int | None:
    return at_most_countable(MIN_EFFECTIVE_REPORTS / signal_of(exp_epsilon(epsilon_nano)))


def _would_do(needed: int | None) -> str:
    return "no number of reports would do" if needed is None else f"about {needed} would do"


def cautions_of(params: Algorithm, n_reports: int) -> list[str]:
    """Sentences that follow from the algorithm and the numbers alone."""
    said = []
    epsilon_nano = parse_epsilon(params.epsilon)
    if isinstance(params, ValleyHashing):
        said.append("This method is experimental: on real data it is often far from the clusters other methods find.")
    if isinstance(params, NoisyFcm):
        said.append(
            "Noise of vectors draws fuzzy centroids towards one another; the result says whether it beats one centre "
            "at the mean."
        )
    elif isinstance(params, PhaseSketch):
        said.append("Clusters that overlap heavily are not told apart, at any epsilon.")
    elif getattr(params, "variant", "sound") == "paper":
        said.append("This is the method as its paper prints it, for comparison; the sound form is the default.")
    elif effective_reports(n_reports, epsilon_nano) < MIN_EFFECTIVE_REPORTS:
        needed = _steady(epsilon_nano)
        if params.clusters is not None:
            then = "" if needed is None else f"; about {needed} would make for a steady result"
            said.append(f"{n_reports} reports are few at this epsilon{then}.")
        elif isinstance(params, ShiftedGrid):
            said.append(
                f"{n_reports} reports are few to count clusters by at this epsilon: some may be missing, and the "
                f"result will say so; {_would_do(needed)}, or name the number of clusters."
            )
    return said


def warnings_of(params: Algorithm, quality: Band | None, n_reports: int, least_asked: int) -> tuple[str, ...]:
    """What a reader must know before they believe a forecast, in sentences.

    Parameters
    ----------
    params : Algorithm
    quality : Band or None
    n_reports : int
    least_asked : int
        Reports expected in the smallest round.
    """
    said = cautions_of(params, n_reports)
    if least_asked < 1:
        said.append("A round is for so small a share of the devices that perhaps none will answer it.")
    if quality is None and params.clusters != 1:
        said.append("Quality was not measured for these parameters, so none is forecast.")
    return tuple(said)


def confidence_of(params: Algorithm, quality: Band | None, insufficient: Insufficient | None) -> Confidence:
    """How much a result will be worth, in a word."""
    if insufficient is not None:
        return "none"
    if quality is None or isinstance(params, ValleyHashing) or quality.median < FAIR_MEDIAN:
        return "low"
    return "high" if quality.lower >= HIGH_LOWER else "fair"

"""Verdict, warnings and insufficiency of a forecast."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf

from sfumato.forecast.noise import NOISE_FACTOR, contrast, detectable_mass, puts_all_in_one, to_report_count
from sfumato.forecast.quality import Band, FamilyBand
from sfumato.model.precision import Verdict, signal_of
from sfumato.privacy.accounting import exp_epsilon
from sfumato.sizing.methods import required_reports
from sfumato.sizing.required_reports import SKETCHED_CLUSTERS
from sfumato.sizing.rounds import MIN_EFFECTIVE_REPORTS, effective_reports
from sfumato.specs import Algorithm, most_vectors
from sfumato.specs.attributes import Categorical

RELIABLE_LOWER, UNCERTAIN_MEDIAN = 0.8, 0.5  # thresholds of the adjusted Rand index
REJECT_FACTOR = 10  # a job with fewer than 1/10 of the needed reports is rejected unless its caller insists
LEAST_ESTIMATED = 2  # clusters of equal size that a shifted grid must detect to estimate their number


@dataclass(frozen=True, slots=True)
class Insufficient:
    """The reason why the expected reports are insufficient.

    Attributes
    ----------
    reports_needed : int or None
        Sufficient number of reports; None if no number up to 2**53-1 is sufficient.
    reason : str
        Reason as a sentence.
    """

    reports_needed: int | None
    reason: str


def insufficient_of(
    params: Algorithm, n_features: int, n_reports: int, attributes: Sequence[Categorical] = ()
) -> Insufficient | None:
    """Return why the reports are insufficient, or None if they can be sufficient.

    In a label map, the people of each of V categories also need the effective reports of all: N_eff >= 1e4 V^2.

    Raises
    ------
    InvalidSpec
        The algorithm does not support the number of features, or the attributes.
    """
    params.require_features(n_features)
    params.require_attributes(attributes)
    epsilon_nano = params.epsilon_nano
    required = required_reports(params, n_features, 1, len(attributes))
    if required is not None:
        return _too_few_for_centroids(params, n_features, n_reports, required, len(attributes))
    if attributes:
        found = _too_few_for_categories(n_reports, epsilon_nano, attributes[0]), _too_small(params, n_reports)
        return max((each for each in found if each is not None), key=_least_reports, default=None)
    if puts_all_in_one(params, n_reports):
        needed = _steady_reports(epsilon_nano)
        return Insufficient(
            needed,
            f"{n_reports} reports are too few to estimate the number of clusters at this epsilon, so all people would "
            f"be in one cluster. {_describe_needed(needed)} Or give the number of clusters.",
        )
    return _too_small(params, n_reports)


def _least_reports(insufficient: Insufficient) -> float:
    return inf if insufficient.reports_needed is None else insufficient.reports_needed


def _too_small(params: Algorithm, n_reports: int) -> Insufficient | None:
    """Apply the rule that each of K equal clusters stands out from the noise."""
    epsilon_nano = params.epsilon_nano
    least = (
        LEAST_ESTIMATED if params.clusters is None and params.definition.counts_by == "agreement" else params.clusters
    )
    if least is None or least == 1:
        return None
    if least * detectable_mass(n_reports, epsilon_nano) <= 1:
        return None
    needed = to_report_count((NOISE_FACTOR * least / (2 * contrast(epsilon_nano))) ** 2)
    return Insufficient(
        needed,
        f"{least} clusters of equal size are too small to stand out from the noise of {n_reports} reports "
        f"at this epsilon. {_describe_needed(needed)}",
    )


def _too_few_for_categories(n_reports: int, epsilon_nano: int, attribute: Categorical) -> Insufficient | None:
    n_categories = len(attribute.categories)
    if effective_reports(n_reports, epsilon_nano) >= MIN_EFFECTIVE_REPORTS * n_categories**2:
        return None
    needed = to_report_count(MIN_EFFECTIVE_REPORTS * n_categories**2 / signal_of(exp_epsilon(epsilon_nano)))
    return Insufficient(
        needed,
        f"{n_reports} reports are too few for {n_categories} categories of {attribute.name} at this epsilon: the noise "
        f"of each category is that of all reports. {_describe_needed(needed)} Or leave {attribute.name} out.",
    )


def _too_few_for_centroids(
    params: Algorithm, n_features: int, n_reports: int, required: float, n_attributes: int
) -> Insufficient | None:
    """Apply the rule for the flag `insufficient_reports` of a result. `required` is the number for one expected report.

    A grid has more cells if more reports are expected. Its sufficient number is the smallest one that suffices for its
    own grid, so that reports never become insufficient because more are expected.
    """
    clusters, needed = params.clusters or SKETCHED_CLUSTERS, to_report_count(required)
    while needed is not None and needed < (more := required_reports(params, n_features, needed, n_attributes) or 0.0):
        needed = to_report_count(more)
    if needed is not None and n_reports >= needed:
        return None
    if params.definition.reads_vectors and needed is not None and needed > most_vectors(n_features):
        needed = None  # a round cannot keep more vectors
    return Insufficient(
        needed,
        f"{n_reports} reports are too few to estimate {clusters} centroids at this epsilon. {_describe_needed(needed)}",
    )


def is_far_below(insufficient: Insufficient | None, n_reports: int) -> bool:
    """Return whether reports are less than a tenth of the sufficient number, or no number is sufficient."""
    if insufficient is None:
        return False
    return insufficient.reports_needed is None or REJECT_FACTOR * n_reports < insufficient.reports_needed


def _steady_reports(epsilon_nano: int) -> int | None:
    return to_report_count(MIN_EFFECTIVE_REPORTS / signal_of(exp_epsilon(epsilon_nano)))


def _describe_needed(needed: int | None) -> str:
    return "No number of reports is enough." if needed is None else f"About {needed} reports are enough."


def limitations_of(params: Algorithm, n_reports: int) -> list[str]:
    """Return limitations that follow from the algorithm and the number of reports, as sentences."""
    sentences = []
    epsilon_nano = params.epsilon_nano
    if params.definition.limitation:
        sentences.append(params.definition.limitation)
    elif getattr(params, "variant", "sound") == "paper":
        sentences.append(
            "This is the method as printed in its paper, for comparison. The corrected form is the default."
        )
    elif effective_reports(n_reports, epsilon_nano) < MIN_EFFECTIVE_REPORTS:
        needed = _steady_reports(epsilon_nano)
        if params.clusters is not None:
            then = "" if needed is None else f" About {needed} reports give a stable result."
            sentences.append(f"{n_reports} reports are few at this epsilon.{then}")
        elif params.definition.counts_by == "agreement":
            sentences.append(
                f"{n_reports} reports are few to estimate the number of clusters at this epsilon. Clusters may be "
                f"missing, and the result then states it. {_describe_needed(needed)} Or give the number of clusters."
            )
    return sentences


def warnings_of(params: Algorithm, quality: Band | None, n_reports: int, smallest_round: int) -> tuple[str, ...]:
    """Return the warnings of a forecast, as sentences.

    Parameters
    ----------
    params : Algorithm
    quality : Band or None
    n_reports : int
    smallest_round : int
        Expected reports of the smallest round.
    """
    sentences = limitations_of(params, n_reports)
    if smallest_round < 1:
        sentences.append("A round has such a small share of the devices that it may receive no report.")
    if quality is None and params.clusters != 1:
        sentences.append("Quality was not measured for these parameters, so it is not forecast.")
    return tuple(sentences)


def verdict_of(qualities: Collection[Band | FamilyBand], insufficient: Insufficient | None) -> Verdict:
    """Return the verdict on a result: that of the lowest expected quality."""
    if insufficient is not None or not qualities or min(each.median for each in qualities) < UNCERTAIN_MEDIAN:
        return Verdict.DOUBTFUL
    return Verdict.RELIABLE if min(each.lower for each in qualities) >= RELIABLE_LOWER else Verdict.UNCERTAIN

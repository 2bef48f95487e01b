"""The figures of a forecast: cost, reports, noise, quality; what each means and where it comes from."""

from dataclasses import dataclass
from functools import lru_cache

from sfumato import mechanisms
from sfumato.accounting import DRAW_SPAN, cost, parse_epsilon
from sfumato.errors import InvalidSpec
from sfumato.forecast.choosing import choose
from sfumato.forecast.limits import gap_mass
from sfumato.forecast.noise import centre_error_of, detectable_mass_of, size_error_of
from sfumato.forecast.quality import Band, quality_of
from sfumato.forecast.verdict import Confidence, Insufficient, confidence_of, insufficient_of, warnings_of
from sfumato.sizing import MAX_JSON_INT, PlannedRound, effective_reports, planned_rounds
from sfumato.specs import Algorithm, Auto, Draw

REPORT_HEAD_BYTES = 20  # of a packed report: its id and its slot


@dataclass(frozen=True, slots=True)
class RoundForecast:
    """One round that will be asked.

    Attributes
    ----------
    draw : Draw
        Which devices answer.
    share : float
        Of all devices, in (0, 1]: the draw's width.
    expected_reports : int
        So many of the reports expected, rounded down.
    epsilon_nano : int
        What an answer costs: the thresholds' exact cost where the encoding is known, else the
        most it may be.
    mechanism : str
        How symbols are perturbed; 'auto' where that follows from earlier rounds.
    n_symbols : int or None
        k; at most, where the round adapts; None where a device sends a vector.
    report_bytes : int
        What a device sends, packed: its id, its slot and the value of fixed width; at most,
        where the round adapts. As JSON it is about twice that.
    adapts : bool
        Its cells follow from what earlier rounds tell.
    """

    draw: Draw
    share: float
    expected_reports: int
    epsilon_nano: int
    mechanism: str
    n_symbols: int | None
    report_bytes: int
    adapts: bool


@dataclass(frozen=True, slots=True)
class Needed:
    """How many reports a wish needs.

    Attributes
    ----------
    n_reports : int or None
        The smallest number from which on the wish is met; None where no number is enough.
    reason : str
        For a person.
    """

    n_reports: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Forecast:
    """What an algorithm will cost and how well it will do.

    Attributes
    ----------
    algorithm : Algorithm
        What would run: of `Auto`, what it stands for.
    reason : str or None
        Why, where `Auto` chose.
    n_features, expected_reports : int
        What was asked about.
    epsilon_nano : int
        What the collection costs a device: `accounting.cost` of its rounds, exact, and so what
        the ledger will post; where rounds adapt and epsilon is above 20, at most a few
        thousand nano-epsilon too much.
    rounds : tuple of RoundForecast
        In order. A plan may stop early; it never asks more.
    n_eff : float
        N (e^eps - 1)^2 / (4 e^eps), the effective number of reports (STATISTICS 3.2).
    detectable_mass : float or None
        The least share of people that makes a cluster stand out from noise: 8 δ of grids
        (STATISTICS 3.2), 2.8 / (|c_1| sqrt(N)) of phases (STATISTICS 4.2); at most 1. None for
        noisy vectors and broadcast centroids, of which no such rule is known.
    gap_mass : float
        The least share of people whose lack parts two clusters, 3 δ; a heuristic.
    size_error : float or None
        Standard error of the size of one of K equal clusters that lie on equal parts of the
        box (K = 2 where it is counted), a share of all people. By the mechanism's exact
        variance, with the devices being a sample. None where it does not follow.
    centre_error : float or None
        Standard error of a coordinate of such a cluster's centre of mass, as a share of the
        feature's range, by the same variances and with the cluster's outline held fixed: in a
        label map the outline moves too. None where it does not follow: methods as printed,
        noisy vectors, codes, sketches of phases, broadcast centroids.
    quality : Band or None
        Expected adjusted Rand index, as measured on reference sets; None where none was.
    confidence : {'high', 'fair', 'low', 'none'}
        high: three quarters of the reference runs came to .8 or more; fair: half came to .5 or
        more; low: worse, not measured, or experimental; none: insufficient.
    warnings : tuple of str
        Sentences for a person.
    insufficient : Insufficient or None
        Set where so few reports cannot carry what is asked, with what would do.
    needed : Needed or None
        The answer to a wish, where one was asked along.
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
    quality: Band | None
    confidence: Confidence
    warnings: tuple[str, ...]
    insufficient: Insufficient | None
    needed: Needed | None = None


def forecast(algorithm: Algorithm, *, n_features: int, expected_reports: int) -> Forecast:
    """Forecast an algorithm. Deterministic, without data, and without cost.

    Parameters
    ----------
    algorithm : Algorithm
    n_features : int
    expected_reports : int
        Devices expected to take part, 1..2**53-1.

    Raises
    ------
    InvalidSpec
        What the algorithm cannot take, as when its job would start.

    Examples
    --------
    >>> from sfumato import ShiftedGrid
    >>> from sfumato.forecast import forecast
    >>> forecast(ShiftedGrid(epsilon=2, clusters=3), n_features=2, expected_reports=50_000).epsilon_nano <= 2 * 10**9
    True
    """
    if not 1 <= expected_reports <= MAX_JSON_INT:
        raise InvalidSpec(f"expected_reports lies in 1..{MAX_JSON_INT}")
    reason = None
    if isinstance(algorithm, Auto):
        choice = choose(algorithm, n_features, expected_reports)
        algorithm, reason = choice.algorithm, choice.reason
    planned = planned_rounds(algorithm, n_features, expected_reports)
    rounds = tuple(_round(asked, expected_reports) for asked in planned)
    epsilon_nano = parse_epsilon(algorithm.epsilon)
    quality = quality_of(algorithm, n_features, expected_reports)
    insufficient = insufficient_of(algorithm, n_features, expected_reports)
    return Forecast(
        algorithm=algorithm,
        reason=reason,
        n_features=n_features,
        expected_reports=expected_reports,
        epsilon_nano=cost(((each.draw.lo, each.draw.hi), each.epsilon_nano) for each in rounds),
        rounds=rounds,
        n_eff=effective_reports(expected_reports, epsilon_nano),
        detectable_mass=detectable_mass_of(algorithm, planned, expected_reports),
        gap_mass=gap_mass(expected_reports, epsilon_nano),
        size_error=size_error_of(algorithm, planned, expected_reports),
        centre_error=centre_error_of(algorithm, planned, expected_reports),
        quality=quality,
        confidence=confidence_of(algorithm, quality, insufficient),
        warnings=warnings_of(algorithm, quality, expected_reports, min(each.expected_reports for each in rounds)),
        insufficient=insufficient,
    )


def _round(asked: PlannedRound, expected_reports: int) -> RoundForecast:
    width = asked.draw.hi - asked.draw.lo
    mechanism, epsilon_nano, value_bytes = _designed(asked)
    is_open = asked.adapts and asked.kind == "auto"
    return RoundForecast(
        draw=asked.draw,
        share=width / DRAW_SPAN,
        expected_reports=expected_reports * width // DRAW_SPAN,
        epsilon_nano=asked.epsilon_nano if asked.adapts else epsilon_nano,
        mechanism="auto" if is_open else mechanism,
        n_symbols=None if asked.kind == "discrete_laplace" else asked.n_symbols,
        report_bytes=REPORT_HEAD_BYTES + value_bytes,
        adapts=asked.adapts,
    )


@lru_cache(maxsize=4096)
def _designed(asked: PlannedRound) -> tuple[str, int, int]:
    """Type, cost and width of the round's mechanism."""
    if asked.encoding is not None:
        made = mechanisms.design_for(asked.encoding, asked.kind, asked.epsilon_nano)
    else:
        made = mechanisms.design(asked.kind, asked.n_symbols, asked.epsilon_nano)
    return made.type, mechanisms.epsilon_nano(made), mechanisms.value_bytes(made)

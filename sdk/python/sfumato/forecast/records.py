"""Forecast of an algorithm over records: cost and expected accuracy for an estimated number of records."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sfumato.errors import InvalidSpec
from sfumato.forecast.auto import resolve_central
from sfumato.forecast.central import UNCERTAIN_RATIO, CentralForecast, forecast_central
from sfumato.forecast.families import Family, FamilyForecast
from sfumato.model.tables import html_bar, html_table
from sfumato.privacy.accounting import ATTO, NANO, format_epsilon
from sfumato.sizing.job_costs import job_cost
from sfumato.sizing.required_reports import least_records
from sfumato.specs import Auto, CentralAlgorithm, chosen_algorithm_from_wire, to_wire

MAX_EXPECTED = 2**53 - 1

_PLAIN = ("reason", "n_features", "expected_records", "max_records_per_user", "epsilon_nano", "least_records")


@dataclass(frozen=True, slots=True)
class RecordsForecast:
    """The forecast of an algorithm over records.

    Attributes
    ----------
    algorithm : CentralAlgorithm
        The algorithm that would run; for `Auto`, the selected one.
    reason : str or None
        Reason of the selection by `Auto`.
    n_features, expected_records, max_records_per_user : int
        Arguments of the forecast. The number of records is the caller's estimate.
    epsilon_nano : int
        Maximum cost of the job, which reserves it and releases the rest.
    delta_atto : int
        Maximum delta of the job; 0 for a pure guarantee.
    least_records : int
        Number of records below which a job over two clusters is mostly noise: 50 max_records_per_user / epsilon. The
        service accepts such a job, because the number of records is private.
    expected : CentralForecast
        Expected accuracy and warnings.
    jobs_granted, jobs_remaining : int or None
        Numbers of equal jobs that the grants of the dataset allow, and that they still allow. The service states them
        for a dataset with a budget that the key may read.
    """

    algorithm: CentralAlgorithm
    reason: str | None
    n_features: int
    expected_records: int
    max_records_per_user: int
    epsilon_nano: int
    delta_atto: int
    least_records: int
    expected: CentralForecast
    jobs_granted: int | None = None
    jobs_remaining: int | None = None

    @property
    def mu2_pico(self) -> int:
        """Return the most mu^2, in units of 1e-12, that the job counts under Gaussian accounting."""
        return job_cost(self.algorithm, self.n_features, self.max_records_per_user).mu2_pico

    def _repr_html_(self) -> str:
        found, cost = self.expected, f"ε {format_epsilon(self.epsilon_nano)} over all records"
        rows = {"algorithm": self.algorithm.type, "records": f"{self.expected_records:,}", "cost": cost}
        if self.jobs_remaining is not None:
            rows["jobs like it"] = f"{self.jobs_remaining:,} of {self.jobs_granted:,} remain"
        picture = ""
        if found.ratio is not None and found.lower is not None and found.upper is not None:
            band = f"{found.ratio:.3g} ({found.lower:.3g} to {found.upper:.3g})"
            rows["squared error relative to k-means without noise"] = band
            scale = max(2 * UNCERTAIN_RATIO, found.upper)
            picture = html_bar([found.lower, found.upper - found.lower, scale - found.upper], scale)
        return html_table(rows | {"verdict": found.verdict.value}, picture)


def forecast_records(
    algorithm: CentralAlgorithm | Auto,
    *,
    n_features: int,
    expected_records: int,
    max_records_per_user: int = 1,
    family: Family | None = None,
    occupied_share: float | None = None,
) -> RecordsForecast:
    """Return the forecast of an algorithm over records. It uses no data and costs no privacy budget.

    Parameters
    ----------
    algorithm : CentralAlgorithm or Auto
    n_features : int
    expected_records : int
        The caller's estimate of the number of records, 1..2**53-1.
    max_records_per_user : int
        The dataset's declaration, at least 1.
    family : {"compact", "elongated", "curved", "many_small"}, optional
        The family of the data, if it is known. The forecast is then for this family alone.
    occupied_share : float, optional
        Part of the bounds that the data occupy along their widest feature, in (0, 1], if it is known.

    Raises
    ------
    InvalidSpec
        The algorithm does not support the arguments.
    """
    if not 1 <= expected_records <= MAX_EXPECTED:
        raise InvalidSpec(f"expected_records must lie in 1..{MAX_EXPECTED}")
    algorithm, reason = resolve_central(algorithm, n_features)
    return RecordsForecast(
        algorithm=algorithm,
        reason=reason,
        n_features=n_features,
        expected_records=expected_records,
        max_records_per_user=max_records_per_user,
        epsilon_nano=algorithm.epsilon_nano,
        delta_atto=algorithm.delta_atto,
        least_records=least_records(algorithm.epsilon_nano, max_records_per_user),
        expected=forecast_central(
            algorithm, n_features, expected_records, max_records_per_user, family, occupied_share
        ),
    )


def records_forecast_to_wire(forecast: RecordsForecast) -> dict[str, Any]:
    """Return a forecast as JSON values."""
    return {
        "trust": "central",
        "algorithm": {name: value for name, value in to_wire(forecast.algorithm).items() if value is not None},
        "epsilon": forecast.epsilon_nano / NANO,
        "delta": forecast.delta_atto / ATTO,
        "delta_atto": forecast.delta_atto,
        "mu2_pico": forecast.mu2_pico,
        "jobs_granted": forecast.jobs_granted,
        "jobs_remaining": forecast.jobs_remaining,
        **{name: getattr(forecast, name) for name in _PLAIN},
        **asdict(forecast.expected),
        "verdict": forecast.expected.verdict.value,
        "warnings": list(forecast.expected.warnings),
        "families": [asdict(each) for each in forecast.expected.families],
    }


def records_forecast_from_wire(wire: Mapping[str, Any]) -> RecordsForecast:
    """Return the forecast that `records_forecast_to_wire` wrote. Ignore unknown members. Raise InvalidSpec."""
    try:
        algorithm = chosen_algorithm_from_wire(wire["algorithm"])
        expected = {name: wire[name] for name in CentralForecast.__slots__ if name not in ("warnings", "families")}
        families = tuple(
            FamilyForecast(**{name: each[name] for name in FamilyForecast.__slots__}) for each in wire["families"]
        )
        plain = {name: wire[name] for name in _PLAIN}
        warnings = tuple(wire["warnings"])
        later = {"delta_atto": wire.get("delta_atto", 0)}
        later |= {name: wire.get(name) for name in ("jobs_granted", "jobs_remaining")}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidSpec("this is not a forecast") from error
    accuracy = CentralForecast(**expected, warnings=warnings, families=families)
    return RecordsForecast(algorithm=algorithm, **plain, **later, expected=accuracy)

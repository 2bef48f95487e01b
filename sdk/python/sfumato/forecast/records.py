"""Forecasts of algorithms over records: what a job may cost and how near it will come, by a number somebody expects."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sfumato.accounting import ATTO, NANO, parse_delta, parse_epsilon
from sfumato.errors import InvalidSpec
from sfumato.forecast.central import CentralForecast, forecast_central
from sfumato.forecast.choosing import choose_central
from sfumato.specs import Auto, CentralAlgorithm, central_algorithm_from_wire, to_wire

MAX_EXPECTED = 2**53 - 1

_PLAIN = ("reason", "n_features", "expected_records", "max_records_per_user", "epsilon_nano")


@dataclass(frozen=True, slots=True)
class RecordsForecast:
    """What an algorithm over records will cost and bring.

    Attributes
    ----------
    algorithm : CentralAlgorithm
        What would run: of `Auto`, what it stands for.
    reason : str or None
        Why, where `Auto` chose.
    n_features, expected_records, max_records_per_user : int
        What was asked about; the number of records is the caller's guess, and nobody counted them.
    epsilon_nano : int
        The most the job spends: what it reserves. What it did not ask is released.
    delta_atto : int
        The same of delta; 0 for a pure guarantee.
    expected : CentralForecast
        How near it will come, and what to beware of.
    """

    algorithm: CentralAlgorithm
    reason: str | None
    n_features: int
    expected_records: int
    max_records_per_user: int
    epsilon_nano: int
    delta_atto: int
    expected: CentralForecast


def forecast_records(
    algorithm: CentralAlgorithm | Auto, *, n_features: int, expected_records: int, max_records_per_user: int = 1
) -> RecordsForecast:
    """Forecast an algorithm over records. Deterministic, without data, and without cost.

    Parameters
    ----------
    algorithm : CentralAlgorithm or Auto
    n_features : int
    expected_records : int
        As many as the caller believes there are, 1..2**53-1.
    max_records_per_user : int
        As the dataset declares, at least 1.

    Raises
    ------
    InvalidSpec
        What the algorithm cannot take, as when its job would start.
    """
    if not 1 <= expected_records <= MAX_EXPECTED:
        raise InvalidSpec(f"expected_records lies in 1..{MAX_EXPECTED}")
    reason = None
    if isinstance(algorithm, Auto):
        choice = choose_central(algorithm, n_features)
        algorithm, reason = choice.algorithm, choice.reason
    return RecordsForecast(
        algorithm=algorithm,
        reason=reason,
        n_features=n_features,
        expected_records=expected_records,
        max_records_per_user=max_records_per_user,
        epsilon_nano=parse_epsilon(algorithm.epsilon),
        delta_atto=parse_delta(algorithm.delta),
        expected=forecast_central(algorithm, n_features, expected_records, max_records_per_user),
    )


def records_forecast_to_wire(made: RecordsForecast) -> dict[str, Any]:
    """A forecast as plain JSON values."""
    return {
        "trust": "central",
        "algorithm": {name: value for name, value in to_wire(made.algorithm).items() if value is not None},
        "epsilon": made.epsilon_nano / NANO,
        "delta": made.delta_atto / ATTO,
        "delta_atto": made.delta_atto,
        **{name: getattr(made, name) for name in _PLAIN},
        **asdict(made.expected),
        "warnings": list(made.expected.warnings),
    }


def records_forecast_from_wire(wire: Mapping[str, Any]) -> RecordsForecast:
    """Read what `records_forecast_to_wire` wrote; fields a newer service adds are passed over. Raises InvalidSpec."""
    try:
        algorithm = central_algorithm_from_wire(wire["algorithm"])
        expected = {name: wire[name] for name in CentralForecast.__slots__ if name != "warnings"}
        made = {name: wire[name] for name in _PLAIN}
        warnings = tuple(wire["warnings"])
        delta_atto = wire.get("delta_atto", 0)  # an older service does not say
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidSpec("this is not a forecast") from error
    if isinstance(algorithm, Auto):
        raise InvalidSpec("this is not a forecast")
    told = CentralForecast(**expected, warnings=warnings)
    return RecordsForecast(algorithm=algorithm, **made, delta_atto=delta_atto, expected=told)

"""Conversion of forecasts to and from JSON values."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sfumato.errors import InvalidSpec
from sfumato.forecast.estimates import Forecast, Needed, RoundForecast
from sfumato.forecast.quality import Band, FamilyBand
from sfumato.forecast.warnings import Insufficient
from sfumato.model.precision import Verdict
from sfumato.privacy.accounting import NANO
from sfumato.specs import Participation, local_algorithm_from_wire, to_wire

_PLAIN = (
    *("reason", "n_features", "expected_reports", "epsilon_nano", "n_eff", "detectable_mass", "gap_mass"),
    *("size_error", "centre_error", "family", "verdict"),
)


def forecast_to_wire(forecast: Forecast) -> dict[str, Any]:
    """Return a forecast as JSON values."""
    return {
        "trust": "local",
        "algorithm": {name: value for name, value in to_wire(forecast.algorithm).items() if value is not None},
        "epsilon": forecast.epsilon_nano / NANO,
        "rounds": [_round_to_wire(each) for each in forecast.rounds],
        "quality": None if forecast.quality is None else asdict(forecast.quality),
        "families": [asdict(each) for each in forecast.families],
        "warnings": list(forecast.warnings),
        "insufficient": None if forecast.insufficient is None else asdict(forecast.insufficient),
        "needed": None if forecast.needed is None else asdict(forecast.needed),
        **{name: getattr(forecast, name) for name in _PLAIN},
    }


def _round_to_wire(each: RoundForecast) -> dict[str, Any]:
    plain = {name: getattr(each, name) for name in RoundForecast.__slots__ if name != "participation"}
    return {"participation": to_wire(each.participation), "epsilon": each.epsilon_nano / NANO, **plain}


def forecast_from_wire(wire: Mapping[str, Any]) -> Forecast:
    """Return the forecast that `forecast_to_wire` wrote. Ignore unknown members. Raise InvalidSpec."""
    try:
        return Forecast(
            algorithm=local_algorithm_from_wire(wire["algorithm"]),
            rounds=tuple(_round_from_wire(each) for each in wire["rounds"]),
            quality=_part(Band, wire["quality"]),
            families=tuple(_part(FamilyBand, each) for each in wire["families"]),
            warnings=tuple(wire["warnings"]),
            insufficient=_part(Insufficient, wire["insufficient"]),
            needed=_part(Needed, wire["needed"]),
            **{name: wire[name] for name in _PLAIN} | {"verdict": Verdict(wire["verdict"])},
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidSpec("this is not a forecast") from error


def _round_from_wire(wire: Mapping[str, Any]) -> RoundForecast:
    plain = {name: wire[name] for name in RoundForecast.__slots__ if name != "participation"}
    return RoundForecast(
        participation=Participation(int(wire["participation"]["lo"]), int(wire["participation"]["hi"])), **plain
    )


def _part(kind: type[Any], wire: Mapping[str, Any] | None) -> Any:
    return None if wire is None else kind(**{name: wire[name] for name in kind.__slots__})

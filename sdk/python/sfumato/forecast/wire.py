"""Forecasts as plain JSON values, and back."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, get_args

from sfumato.accounting import NANO
from sfumato.errors import InvalidSpec
from sfumato.forecast.figures import Forecast, Needed, RoundForecast
from sfumato.forecast.quality import Band
from sfumato.forecast.verdict import Confidence, Insufficient
from sfumato.specs import Draw, local_algorithm_from_wire, to_wire

_PLAIN = (
    *("reason", "n_features", "expected_reports", "epsilon_nano", "n_eff", "detectable_mass", "gap_mass"),
    *("size_error", "centre_error", "confidence"),
)


def forecast_to_wire(made: Forecast) -> dict[str, Any]:
    """A forecast as plain JSON values."""
    return {
        "trust": "local",
        "algorithm": {name: value for name, value in to_wire(made.algorithm).items() if value is not None},
        "epsilon": made.epsilon_nano / NANO,
        "rounds": [_round_to_wire(each) for each in made.rounds],
        "quality": None if made.quality is None else asdict(made.quality),
        "warnings": list(made.warnings),
        "insufficient": None if made.insufficient is None else asdict(made.insufficient),
        "needed": None if made.needed is None else asdict(made.needed),
        **{name: getattr(made, name) for name in _PLAIN},
    }


def _round_to_wire(each: RoundForecast) -> dict[str, Any]:
    plain = {name: getattr(each, name) for name in RoundForecast.__slots__ if name != "draw"}
    return {"draw": to_wire(each.draw), "epsilon": each.epsilon_nano / NANO, **plain}


def forecast_from_wire(wire: Mapping[str, Any]) -> Forecast:
    """Read what `forecast_to_wire` wrote; fields a newer service adds are passed over. Raises InvalidSpec."""
    try:
        made = Forecast(
            algorithm=local_algorithm_from_wire(wire["algorithm"]),
            rounds=tuple(_round_from_wire(each) for each in wire["rounds"]),
            quality=_part(Band, wire["quality"]),
            warnings=tuple(wire["warnings"]),
            insufficient=_part(Insufficient, wire["insufficient"]),
            needed=_part(Needed, wire["needed"]),
            **{name: wire[name] for name in _PLAIN},
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidSpec("this is not a forecast") from error
    if made.confidence not in get_args(Confidence):
        raise InvalidSpec("this is not a forecast")
    return made


def _round_from_wire(wire: Mapping[str, Any]) -> RoundForecast:
    plain = {name: wire[name] for name in RoundForecast.__slots__ if name != "draw"}
    return RoundForecast(draw=Draw(int(wire["draw"]["lo"]), int(wire["draw"]["hi"])), **plain)


def _part(kind: type[Any], wire: Mapping[str, Any] | None) -> Any:
    return None if wire is None else kind(**{name: wire[name] for name in kind.__slots__})

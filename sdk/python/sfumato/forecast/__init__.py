"""What an algorithm will cost and how well it will do, before anybody is asked: from public facts alone.

Public facts are the parameters, the number of features and the reports expected. Nothing
here sees a record, a report or a result, so a forecast costs nothing and tells nothing.
"""

from sfumato.forecast.central import CentralForecast, forecast_central
from sfumato.forecast.choosing import CentralChoice, Choice, choose, choose_central
from sfumato.forecast.figures import Forecast, Needed, RoundForecast, forecast
from sfumato.forecast.needs import reports_needed
from sfumato.forecast.quality import Band
from sfumato.forecast.records import (
    RecordsForecast,
    forecast_records,
    records_forecast_from_wire,
    records_forecast_to_wire,
)
from sfumato.forecast.verdict import Confidence, Insufficient, insufficient_of, is_far_from
from sfumato.forecast.wire import forecast_from_wire, forecast_to_wire

__all__ = [
    "Band",
    "CentralChoice",
    "CentralForecast",
    "Choice",
    "Confidence",
    "Forecast",
    "Insufficient",
    "Needed",
    "RecordsForecast",
    "RoundForecast",
    "choose",
    "choose_central",
    "forecast",
    "forecast_central",
    "forecast_from_wire",
    "forecast_records",
    "forecast_to_wire",
    "insufficient_of",
    "is_far_from",
    "records_forecast_from_wire",
    "records_forecast_to_wire",
    "reports_needed",
]

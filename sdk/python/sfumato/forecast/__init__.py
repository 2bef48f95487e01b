"""Forecasts of cost, accuracy and required reports, from public facts alone.

The parameters of an algorithm, the number of features and the expected reports or records enter; a
`Forecast` or `RecordsForecast` leaves. Forecasts use no records, reports or results, so they cost no
privacy budget.
"""

from sfumato.forecast.auto import CentralChoice, Choice, choose, choose_central, resolve, resolve_central
from sfumato.forecast.central import (
    CentralForecast,
    check_over_records,
    forecast_central,
)
from sfumato.forecast.estimates import Forecast, Needed, RoundForecast, forecast
from sfumato.forecast.families import FamilyForecast
from sfumato.forecast.inverse import reports_needed
from sfumato.forecast.profiles import (
    ProfileForecast,
    forecast_profile,
    forecast_reported_profile,
    profile_forecast_from_wire,
    profile_forecast_to_wire,
)
from sfumato.forecast.quality import Band, FamilyBand
from sfumato.forecast.records import (
    RecordsForecast,
    forecast_records,
    records_forecast_from_wire,
    records_forecast_to_wire,
)
from sfumato.forecast.releases import forecast_release_mu2, forecast_releases, local_epsilon_for
from sfumato.forecast.series import (
    SeriesForecast,
    SeriesRelease,
    forecast_series,
    release_costs,
    series_forecast_from_wire,
    series_forecast_to_wire,
)
from sfumato.forecast.warnings import Insufficient, insufficient_of, is_far_below
from sfumato.forecast.wire import forecast_from_wire, forecast_to_wire
from sfumato.model.precision import Verdict

__all__ = [
    "Band",
    "CentralChoice",
    "CentralForecast",
    "Choice",
    "FamilyBand",
    "FamilyForecast",
    "Forecast",
    "Insufficient",
    "Needed",
    "ProfileForecast",
    "RecordsForecast",
    "RoundForecast",
    "SeriesForecast",
    "SeriesRelease",
    "Verdict",
    "check_over_records",
    "choose",
    "choose_central",
    "forecast",
    "forecast_central",
    "forecast_from_wire",
    "forecast_profile",
    "forecast_records",
    "forecast_release_mu2",
    "forecast_releases",
    "forecast_reported_profile",
    "forecast_series",
    "forecast_to_wire",
    "insufficient_of",
    "is_far_below",
    "local_epsilon_for",
    "profile_forecast_from_wire",
    "profile_forecast_to_wire",
    "records_forecast_from_wire",
    "records_forecast_to_wire",
    "release_costs",
    "reports_needed",
    "resolve",
    "resolve_central",
    "series_forecast_from_wire",
    "series_forecast_to_wire",
]

"""Schemas of series and their windows."""

from datetime import date
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from service.schemas.algorithms import JOB_SCHEMAS, AlgorithmParameters
from service.schemas.base import EXAMPLE_ULID, Epsilon, Name, Wire, example, integer
from service.schemas.fields import Amount, Count, Cursor, DatasetId, JobId, Time, id_field
from sfumato import specs

if TYPE_CHECKING:
    PinnedAlgorithm = AlgorithmParameters
else:
    PinnedAlgorithm = JOB_SCHEMAS[specs.ShiftedGrid.type]

MAX_WINDOWS = 1000
SeriesId = Annotated[str, id_field("ser")]


def _check_day(value: str) -> str:
    try:
        date.fromisoformat(value)
    except ValueError:
        raise PydanticCustomError("day", "the day must exist in the calendar, such as 2027-01-04") from None
    return value


Day = Annotated[
    str,
    Field(pattern=r"^2[0-9]{3}-[01][0-9]-[0-3][0-9]$", json_schema_extra={"format": "date"}),
    AfterValidator(_check_day),
]
WindowLength = TypeAliasType(
    "WindowLength", Annotated[Literal["day", "week", "month"], Field(description="Length of each window.")]
)
SeriesState = TypeAliasType(
    "SeriesState",
    Annotated[
        Literal["active", "paused", "ended"],
        Field(description="`active`: windows open. `paused`: they are missed. `ended`: no window opens any more."),
    ],
)
WindowState = TypeAliasType(
    "WindowState",
    Annotated[
        Literal["planned", "open", "closed", "done", "empty", "missed", "failed"],
        Field(
            description="`open`: devices report. `closed`: its result is computed. `done`: the result exists. `empty`: "
            "too few reports, so that nothing is released. `missed`: nothing was opened or charged. `failed`: the job "
            "failed or was canceled."
        ),
    ],
)


class WindowPlan(Wire):
    """When windows begin and end: at midnight of a time zone. A day of 23 or 25 hours is one window."""

    model_config = example(every="week", time_zone="Europe/Berlin", first="2026-03-02", count=52)

    every: WindowLength
    time_zone: Annotated[str, Field(min_length=1, max_length=64, pattern="^[A-Za-z0-9_+/-]+$")] = Field(
        "UTC", description="Name of a time zone in the IANA database.", examples=["Europe/Berlin"]
    )
    first: Day | SkipJsonSchema[None] = Field(
        None,
        description="Day on which the first window begins, within a year. Default: the next day, Monday, or first day "
        "of a month in the time zone. Monthly windows begin on a day up to 28.",
    )
    count: Annotated[int, integer(1, MAX_WINDOWS)] = Field(description="Number of windows.")


class NewSeries(Wire):
    """A series to create: one job in each window, all with one algorithm and one grid."""

    model_config = example(
        dataset_id=f"ds_{EXAMPLE_ULID}",
        name="Lunch, weekly",
        algorithm={"type": "shifted_grid", "epsilon": 1.0, "clusters": 3},
        windows={"every": "week", "time_zone": "Europe/Berlin", "count": 52},
        cycle=13,
        target_reports=500_000,
        epsilon_total=4.0,
    )

    dataset_id: DatasetId
    name: Name = Field(description="Name of the series.")
    algorithm: PinnedAlgorithm = Field(
        description="The algorithm of all windows. Without `cells`, they follow from the reports of one window."
    )
    windows: WindowPlan = Field(description="When the windows begin and end.")
    cycle: Annotated[int, integer(1, MAX_WINDOWS)] = Field(
        description="Windows of a cycle. A device answers in one of them, which its secret draw selects, so that a "
        "cycle costs the epsilon of one window. At most the number of windows."
    )
    target_reports: Annotated[int, integer(ge=1)] = Field(
        description="Number of devices expected to take part in a cycle. A window gets its share of them."
    )
    min_reports: Count = Field(
        0, description="Minimal number of reports of a window. The minimum of the dataset applies as well."
    )
    epsilon_total: Epsilon | SkipJsonSchema[None] = Field(
        None,
        description="Most that all cycles may cost one person. It counts towards the limits of the operator from now "
        "on. At least the cost of all cycles, which is the default.",
    )
    allow_insufficient: bool = Field(
        False,
        description="Accept the series even if the reports of a window are less than a tenth of what the forecast "
        "requires.",
    )


class SeriesChange(Wire):
    """Changes of a series; absent members stay unchanged."""

    model_config = example(state="paused")

    name: Name | SkipJsonSchema[None] = Field(None, description="Name of the series.")
    state: SeriesState | SkipJsonSchema[None] = Field(
        None, description="New state. An open window is completed. `ended` is final."
    )


class Series(Wire):
    """A series: its plan, its state and its cost. Amounts are for one person."""

    id: SeriesId
    dataset_id: DatasetId
    name: str = Field(description="Name of the series.")
    algorithm: PinnedAlgorithm = Field(description="The algorithm of all windows, with the grid that they share.")
    windows: WindowPlan = Field(description="When the windows begin and end.")
    cycle: Count = Field(description="Windows of a cycle.")
    target_reports: Count = Field(description="Number of devices expected to take part in a cycle.")
    min_reports: Count = Field(description="Minimal number of reports of a window.")
    state: SeriesState
    epsilon_per_window: Amount = Field(description="Cost of a report in a window.")
    epsilon_per_cycle: Amount = Field(description="Cost of a cycle for all values: a person answers once.")
    epsilon_per_year: Amount = Field(
        description="Cost of a year, in which a person may answer once in each cycle: 365 days, 52 weeks or 12 months."
    )
    epsilon_total: Amount = Field(description="Most that all cycles may cost.")
    epsilon_charged: Amount = Field(description="Charged so far. It bounds the loss of a person in all cycles.")
    epsilon_pending: Amount = Field(description="Part of the total that later cycles may still be granted.")
    next_window_at: Time | None = Field(description="Start of the next window; null after the last one.")
    created_at: Time
    ended_at: Time | None = Field(description="Time at which the series ended; null if it has not.")


class SeriesPage(Wire):
    """Series, newest first."""

    items: list[Series]
    next_cursor: Cursor


class Window(Wire):
    """A window of a series."""

    index: Count = Field(description="Number of the window: 0, 1, 2, ... within the series.")
    cycle: Count = Field(description="Number of the cycle, from 0.")
    state: WindowState
    opens_at: Time = Field(description="Start of the window.")
    closes_at: Time = Field(description="End of the window, and start of the next one.")
    job_id: JobId | None = Field(description="Job with the result; null if none was opened.")
    n_reports: Count | None = Field(
        description="Number of reports; those received while the window is open. Null without a round."
    )
    reason: str | None = Field(
        description="Why the window is missed, empty or failed, or has not opened yet; null otherwise."
    )


class WindowPage(Wire):
    """Windows of a series, newest first."""

    items: list[Window]
    next_cursor: Cursor

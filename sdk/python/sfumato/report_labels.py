"""Labels of the reports behind a result, as the service tells them, with how little they are worth."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfumato._exchange import Listing


@dataclass(frozen=True, slots=True)
class ReportLabel:
    """The likeliest cluster of one report.

    Attributes
    ----------
    report_id : str
        32 hexadecimal digits, as the device drew them.
    round_id : str
    cluster : int
    confidence : float
        Posterior probability of the cluster, if the model is right.
    """

    report_id: str
    round_id: str
    cluster: int
    confidence: float


@dataclass(frozen=True, slots=True)
class ReportLabels:
    """Labels of a job's kept reports; iterating fetches them, page after page, anew each time.

    Attributes
    ----------
    expected_accuracy : float
        Mean confidence: the share that is labelled right, if the model is right.
    baseline : float
        What always naming the largest cluster would reach.
    caution : str
        Both in words, and what to do instead: devices label themselves with the model.
    """

    expected_accuracy: float
    baseline: float
    caution: str
    fetch: Callable[[], Iterator[ReportLabel]]

    def __iter__(self) -> Iterator[ReportLabel]:
        return self.fetch()


@dataclass(frozen=True, slots=True)
class AsyncReportLabels:
    """The same of an AsyncClient: iterated over by `async for`."""

    expected_accuracy: float
    baseline: float
    caution: str
    fetch: Callable[[], AsyncIterator[ReportLabel]]

    def __aiter__(self) -> AsyncIterator[ReportLabel]:
        return self.fetch()


@dataclass(frozen=True, slots=True)
class Counted:
    """What a page says of all of them, and where they are."""

    said: tuple[float, float, str]
    listing: "Listing[ReportLabel]"


def report_label(wire: Mapping[str, Any]) -> ReportLabel:
    """Read one item."""
    return ReportLabel(str(wire["report_id"]), str(wire["round_id"]), int(wire["cluster"]), float(wire["confidence"]))


def summary(wire: Mapping[str, Any]) -> tuple[float, float, str]:
    """Expected accuracy, baseline and caution of a page."""
    return float(wire["expected_accuracy"]), float(wire["baseline"]), str(wire["caution"])

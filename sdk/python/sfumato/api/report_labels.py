"""Labels of the reports behind a result, with their expected accuracy."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sfumato.api.parsers import parser
from sfumato.transport.exchange import Listing


@dataclass(frozen=True, slots=True)
class ReportLabel:
    """The most probable cluster of one report.

    Attributes
    ----------
    report_id : str
        The random id that the device chose, 32 hexadecimal digits.
    round_id : str
    cluster : int
    confidence : float
        Posterior probability of the cluster if the model is right.
    """

    report_id: str
    round_id: str
    cluster: int
    confidence: float


@dataclass(frozen=True, slots=True)
class ReportLabels:
    """The labels of a job's stored reports. Each iteration fetches all pages again.

    Attributes
    ----------
    expected_accuracy : float
        Mean confidence: the share of correct labels if the model is right.
    baseline : float
        Accuracy of labelling every report with the largest cluster.
    caution : str
        Both numbers in words, and the alternative: devices label their own records with the model.
    """

    expected_accuracy: float
    baseline: float
    caution: str
    fetch: Callable[[], Iterator[ReportLabel]]

    def __iter__(self) -> Iterator[ReportLabel]:
        return self.fetch()


@dataclass(frozen=True, slots=True)
class AsyncReportLabels:
    """The labels that an AsyncClient returns; see `ReportLabels`. Iterate with `async for`."""

    expected_accuracy: float
    baseline: float
    caution: str
    fetch: Callable[[], AsyncIterator[ReportLabel]]

    def __aiter__(self) -> AsyncIterator[ReportLabel]:
        return self.fetch()


@dataclass(frozen=True, slots=True)
class LabelSummary:
    """The members of a page that describe all labels, and the list of labels."""

    values: tuple[float, float, str]  # expected accuracy, baseline and caution
    listing: Listing[ReportLabel]


parse_report_label = parser(ReportLabel)


def parse_label_summary(wire: Mapping[str, Any]) -> tuple[float, float, str]:
    """Return expected accuracy, baseline and caution of a page of labels."""
    return float(wire["expected_accuracy"]), float(wire["baseline"]), str(wire["caution"])

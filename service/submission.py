"""What a new job asks for, held against its dataset: whose data it needs, and what it collects."""

from typing import Any

from models.dataset import Dataset, Trust
from models.errors import Conflict
from models.round import Collect
from service.job_resources import NewJob
from service.problems import InsufficientReports, ValidationFailed
from sfumato.accounting import parse_delta
from sfumato.forecast import choose, choose_central, insufficient_of, is_far_from
from sfumato.specs import CENTRAL_ALGORITHMS, LOCAL_ALGORITHMS, AnyAlgorithm, Auto, CentralAlgorithm

# of local datasets alone
COLLECTING = ("target_reports", "min_reports", "collect_seconds", "round_ids", "allow_insufficient")


def fitting(dataset: Dataset, algorithm: AnyAlgorithm, body: NewJob) -> Collect:
    """What the job collects, where its algorithm is one for the dataset.

    Raises
    ------
    Conflict
        The algorithm is of the other trust model.
    ValidationFailed
        The body asks a central job to collect, or a local one nothing.
    InsufficientReports
        So few devices that a local result could not mean anything, unless the body allows it.
    InvalidSpec
        `auto` over records without what the algorithm it stands for needs; an algorithm of centroids
        that does not take the dataset's features.
    """
    require_algorithm(dataset, algorithm)
    if dataset.trust == Trust.CENTRAL:
        given = [name for name in COLLECTING if getattr(body, name) != NewJob.model_fields[name].default]
        if given:
            message = "this dataset holds records: its jobs collect nothing from devices"
            raise ValidationFailed(errors=[{"pointer": f"/{name}", "message": message} for name in given])
        if isinstance(algorithm, Auto):
            choose_central(algorithm, len(dataset.features))
        return Collect(0, 0, 0)
    if not body.round_ids and body.target_reports is None:
        message = "target_reports is needed where round_ids names no rounds"
        raise ValidationFailed(errors=[{"pointer": "", "message": message}])
    if body.target_reports is not None and not body.round_ids and not body.allow_insufficient:
        _require_enough(algorithm, len(dataset.features), body.target_reports)
    return Collect(body.target_reports or 0, body.min_reports, body.collect_seconds)


def delta_atto(algorithm: AnyAlgorithm) -> int:
    """What a job reserves of its dataset's delta: over records what its algorithm declares, else nothing."""
    return parse_delta(algorithm.delta) if isinstance(algorithm, CentralAlgorithm) else 0


def _require_enough(algorithm: AnyAlgorithm, n_features: int, target_reports: int) -> None:
    """Before anything is reserved: raise InsufficientReports where ten times as many would not be enough."""
    if isinstance(algorithm, Auto):
        algorithm = choose(algorithm, n_features, target_reports).algorithm
    assert not isinstance(algorithm, CentralAlgorithm)  # noqa: S101 - for the type checker: it fits a local dataset
    insufficient = insufficient_of(algorithm, n_features, target_reports)
    if insufficient is not None and is_far_from(insufficient, target_reports):
        needed: dict[str, Any] = {"reports_needed": insufficient.reports_needed} if insufficient.reports_needed else {}
        advice = "Expect more, or ask for fewer clusters or more epsilon; with allow_insufficient it is taken as it is."
        raise InsufficientReports(f"{insufficient.reason} {advice}", **needed)


def require_algorithm(dataset: Dataset, algorithm: AnyAlgorithm) -> None:
    """Raise Conflict where an algorithm is not one for the dataset's trust model; it says which are."""
    trust = Trust(dataset.trust)
    fit = CENTRAL_ALGORITHMS if trust is Trust.CENTRAL else LOCAL_ALGORITHMS
    if algorithm.type in fit:
        return
    held = "records" if trust is Trust.CENTRAL else "devices' reports"
    raise Conflict(f"this dataset is {trust}: {algorithm.type} does not work on {held}; {', '.join(sorted(fit))} do")

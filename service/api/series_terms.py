"""Terms of the windows of a series from request bodies: of its creation and of its revisions."""

from dataclasses import replace
from typing import Any

from models.series import revisions
from models.tables.datasets import Dataset
from models.tables.rounds import ReleaseTerms
from models.tables.series import Series
from service.api import job_submission
from service.http.problems import pointing_at
from service.schemas.series import NewRevision
from sfumato.privacy.accounting import ATTO, NANO, parse_epsilon
from sfumato.sizing.grids import series_cells
from sfumato.specs import SeriesAlgorithm, to_series_algorithm, to_wire


def pin_algorithm(
    dataset: Dataset, algorithm: SeriesAlgorithm, target_reports: int, cycle: int, *, allow_insufficient: bool
) -> tuple[dict[str, Any], int]:
    """Return an algorithm with the grid that all windows share, and its cost in nano-epsilon.

    The grid follows from the reports, or the records, of one window. Raise the errors of `job_submission.check_series`.
    """
    share = max(1, target_reports // cycle)
    with pointing_at("/algorithm"):
        job_submission.check_series(dataset, algorithm, share, allow_insufficient=allow_insufficient)
    epsilon_nano = parse_epsilon(algorithm.epsilon)
    cells = series_cells(algorithm, dataset.n_features, share, dataset.max_records_per_user)
    return to_wire(replace(algorithm, cells=cells)), epsilon_nano


def revised_terms(dataset: Dataset, series: Series, body: NewRevision) -> tuple[dict[str, Any], ReleaseTerms | None]:
    """Return the terms that a body changes, and the release of the new terms.

    Absent terms of a release stay as they are. Raise the errors of `pin_algorithm` and of `release_terms`.
    """
    present = body.model_dump(exclude_none=True, include={"target_reports", "min_reports", "season", "least_change"})
    target_reports = present.get("target_reports", series.target_reports)
    algorithm = to_series_algorithm(series.algorithm if body.algorithm is None else body.algorithm.model_dump())
    wire, epsilon_nano = pin_algorithm(
        dataset, algorithm, target_reports, series.cycle, allow_insufficient=body.allow_insufficient
    )
    before, given = series.release, body
    if before is not None:
        kept = {
            "min_batch": before.min_batch,
            "honest_share": before.honest_share_nano / NANO,
            "shuffled_delta": before.delta_atto / ATTO,
        }
        members = body.model_dump(exclude_none=True, include=set(kept))
        given = body.model_copy(update=kept | members)
    release = job_submission.release_terms(dataset, given)
    if release is not None:
        with pointing_at("/min_batch"):
            revisions.check_batch(release.min_batch, target_reports, series.cycle)
    return present | {"algorithm": wire, "epsilon_nano": epsilon_nano}, release

"""Validation of a new job over closed rounds."""

from collections.abc import Sequence

from models.tables.datasets import Dataset
from models.tables.rounds import Round, RoundState
from service.api.job_submission import check_plan, require_enough
from service.http.problems import ValidationFailed
from sfumato.errors import InvalidSpec
from sfumato.sizing import planned_rounds
from sfumato.sizing.centroids import require_waves
from sfumato.specs import Algorithm, AnyAlgorithm, PhaseEncoding, attributes_of
from sfumato.specs.attributes import Categorical
from sfumato.specs.rounds import circles_of


def check_earlier_rounds(
    dataset: Dataset,
    algorithm: AnyAlgorithm,
    earlier: Sequence[Round],
    attributes: tuple[Categorical, ...],
    *,
    allow_insufficient: bool,
) -> None:
    """Raise the errors of a job over closed rounds that are certain before it runs.

    Raises
    ------
    ValidationFailed
        A round has no reports, an encoding that the algorithm does not read, or other attributes than the job. Or the
        algorithm uses another number of rounds, as far as this is certain.
    InsufficientReports
        The rounds have too few reports for a meaningful result, unless `allow_insufficient`.
    InvalidSpec
        The algorithm for so many reports does not support the features or the attributes.
    """
    n_reports = sum(each.n_received if each.n_reports is None else each.n_reports for each in earlier)
    runs, reason = check_plan(dataset, algorithm, max(1, n_reports), attributes)
    if any(each.state == RoundState.OPEN for each in earlier):
        return  # `lifecycle.submit` rejects the job
    errors = {
        place: f"round {each.id} has no reports: remove it from round_ids, or collect reports in another round"
        for place, each in enumerate(earlier)
        if each.n_received == 0
    }
    chosen_by = f", which auto selects for {n_reports} reports in {dataset.n_features} features," if reason else ""
    if not errors:
        found = [_find_fault(runs, each, place, attributes, chosen_by) for place, each in enumerate(earlier)]
        errors = {place: fault for place, fault in enumerate(found) if fault}
    if not errors and algorithm.definition.pools:
        errors = _find_other_grids(runs, earlier)
    if errors:
        raise ValidationFailed(
            errors=[{"pointer": f"/round_ids/{place}", "message": text} for place, text in errors.items()]
        )
    if not algorithm.definition.pools and (fault := _find_other_number(dataset, runs, earlier, n_reports, attributes)):
        raise ValidationFailed(errors=[{"pointer": "/round_ids", "message": f"{runs.type}{chosen_by} {fault}"}])
    if not allow_insufficient:
        require_enough(algorithm, dataset.n_features, n_reports, attributes=attributes, is_closed=True)


def _find_fault(
    runs: Algorithm, earlier: Round, place: int, attributes: tuple[Categorical, ...], chosen_by: str
) -> str:
    """Return why an algorithm does not read a round; empty if it does."""
    published, reads = earlier.spec_wire["encoding"]["type"], runs.definition.encodings(is_first=place == 0)
    if published not in reads:
        return (
            f"round {earlier.id} has the encoding {published}, but {runs.type}{chosen_by} reads "
            f"{' or '.join(sorted(reads))}: use another algorithm or another round"
        )
    encoding = earlier.spec.encoding
    if attributes_of(encoding) != attributes:
        own = ", ".join(each.name for each in attributes_of(encoding)) or "no attribute"
        wanted = ", ".join(each.name for each in attributes) or "no attribute"
        return (
            f"round {earlier.id} collected {own}, and the job clusters by {wanted}: name all features and the "
            "attributes of the round as features of the job"
        )
    if attributes and isinstance(encoding, PhaseEncoding):
        try:
            require_waves(encoding.n_slots, encoding.n_features, attributes, runs.clusters)
        except InvalidSpec as error:
            return f"round {earlier.id}: {error}"
    return ""


def _find_other_grids(runs: Algorithm, earlier: Sequence[Round]) -> dict[int, str]:
    """Return the faults of rounds that cannot be added to the first one, by their places."""
    first = earlier[0].spec
    return {
        place: f"round {each.id} has another encoding or mechanism than round {earlier[0].id}, and {runs.type} adds "
        "the reports of rounds of one grid: name rounds of one grid"
        for place, each in enumerate(earlier)
        if (each.spec.encoding, each.spec.mechanism) != (first.encoding, first.mechanism)
    }


def _find_other_number(
    dataset: Dataset,
    runs: Algorithm,
    earlier: Sequence[Round],
    n_reports: int,
    attributes: tuple[Categorical, ...],
) -> str:
    """Return why an algorithm uses another number of rounds; empty if it uses this one, or if that is not certain.

    Later rounds of some plans follow from reports. The number of rounds of others follows from the number of distinct
    reports, which is not known before all rounds are aggregated.
    """
    planned = planned_rounds(runs, dataset.n_features, max(1, n_reports), circles_of(dataset.features), attributes)
    is_known = len(planned) == 1 or all(each.n_reports is not None for each in earlier)
    if len(planned) == len(earlier) or not is_known or any(each.adapts for each in planned):
        return ""
    rounds = "one round" if len(planned) == 1 else f"{len(planned)} rounds"
    return f"uses {rounds}, and round_ids names {len(earlier)}: name as many rounds as it uses"

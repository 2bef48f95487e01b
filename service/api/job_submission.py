"""Validation of a new job against its dataset."""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import Any, cast

from sqlalchemy.orm import Session

from models.errors import Conflict
from models.identity.caller import Caller
from models.jobs import jobs
from models.records import records
from models.tables.datasets import Dataset, JobColumns, OutOfBounds, Trust
from models.tables.identity import Scope
from models.tables.jobs import JobState
from models.tables.rounds import CollectionTarget, ReleaseTerms
from service.http.problems import InsufficientReports, NoRecords, ValidationFailed, pointing_at
from service.schemas.fields import DEFAULT_RELEASE_DELTA
from service.schemas.jobs import NewJob
from service.schemas.rounds import NewRound
from service.schemas.series import NewRevision, NewSeries
from service.schemas.series_forecasts import NewSeriesForecast
from sfumato.errors import InvalidSpec
from sfumato.forecast import (
    ProfileForecast,
    check_over_records,
    forecast_profile,
    forecast_reported_profile,
    insufficient_of,
    is_far_below,
    resolve,
    resolve_central,
)
from sfumato.forecast.profiles import AIM_ERROR, WARN_ERROR
from sfumato.model.cluster_model import ClusterModel, model_from_wire
from sfumato.privacy.accounting import NANO, parse_delta
from sfumato.profiles.profile_round import profile_round
from sfumato.sizing import planned_rounds
from sfumato.sizing.grids import MAP_INFORMATION
from sfumato.sizing.job_costs import job_cost
from sfumato.sizing.profiles import check_profile
from sfumato.sizing.required_reports import least_records
from sfumato.specs import (
    ALGORITHMS,
    Algorithm,
    AnyAlgorithm,
    AnyJob,
    Auto,
    CentralAlgorithm,
    DensityMap,
    Profile,
    SeriesAlgorithm,
    check_periodic,
    of_trust,
)
from sfumato.specs.attributes import Categorical, clustering_attributes

WithTerms = NewJob | NewRound | NewSeries | NewSeriesForecast | NewRevision
RELEASE_MEMBERS = ("min_batch", "honest_share", "shuffled_delta")  # members that are valid for shuffled datasets only
COLLECTED = ("target_reports", "min_reports", "collect_seconds", *RELEASE_MEMBERS)  # members about a new collection


def chosen_columns(dataset: Dataset, names: list[str] | None) -> JobColumns:
    """Return the columns that a job uses.

    Raises
    ------
    ValidationFailed
        A name is unknown, repeated or missing, or the dataset has no columns to choose from.
    """
    with pointing_at("/features"):
        return dataset.select(names)


def profiled(session: Session, caller: Caller, dataset: Dataset, profile: Profile, body: NewJob) -> CollectionTarget:
    """Return what a profile collects, which is nothing over records, if it fits the dataset and its clusters.

    Raises
    ------
    Conflict
        The job of the clusters has not succeeded.
    NotFound
        The caller has no such job.
    ValidationFailed
        The job belongs to another dataset or is a profile, an attribute is unknown, or the body has members about
        features, or over records about collection. Over reports, it has a delta, or lacks members about collection.
    InsufficientReports
        The errors of the shares would be large in all clusters, unless the body allows it.
    """
    if body.features is not None:
        message = "not valid for a profile, which has the features of its clusters; name its attributes instead"
        raise ValidationFailed(errors=[{"pointer": "/features", "message": message}])
    has_records = dataset.trust == Trust.CENTRAL
    if has_records:
        _refuse_collection(body)
    of = jobs.get(session, caller, profile.of)
    with pointing_at("/algorithm/of"):
        if of.dataset_id != dataset.id:
            raise InvalidSpec("the clusters belong to another dataset: name a job over this dataset")
        if of.algorithm_type == Profile.type:
            raise InvalidSpec(f"this job is a profile itself: name the job of its clusters, {of.algorithm['of']}")
    if of.state != JobState.SUCCEEDED:
        raise Conflict(f"job {of.id} is {of.state}: a profile needs the clusters of a job that has succeeded")
    with pointing_at("/algorithm/attributes"):
        described = dataset.describe(profile.attributes)
    if not has_records:
        return _reported(dataset, profile, body, model_from_wire(jobs.get_result(session, of.id).document["model"]))
    with pointing_at("/algorithm/epsilon"):
        check_profile(profile, len(described))
    return CollectionTarget(0, 0, 0)


def _reported(dataset: Dataset, profile: Profile, body: NewJob, model: ClusterModel) -> CollectionTarget:
    """Return what a profile over reports collects; see `profiled`."""
    for name in ("delta", "first_pass"):
        if getattr(profile, name):
            message = "valid for a profile over records only, because each report describes one attribute; remove it"
            raise ValidationFailed(errors=[{"pointer": f"/algorithm/{name}", "message": message}])
    _refuse(body, ("round_ids",), "not valid for a profile, which collects a round of its own; remove this member")
    if body.target_reports is None:
        message = "target_reports is required, because the profile collects a round of reports"
        raise ValidationFailed(errors=[{"pointer": "/target_reports", "message": message}])
    described = dataset.describe(profile.attributes)
    with pointing_at("/algorithm/attributes"):
        profile_round(profile, model, described, counts_outside=dataset.out_of_bounds == OutOfBounds.COUNT)
    if not body.allow_insufficient:
        forecast = forecast_described(profile, model.sizes.tolist(), dataset, body.target_reports)
        if min(forecast.share_errors) > WARN_ERROR:
            least = ceil(min(forecast.reports_needed) * (AIM_ERROR / WARN_ERROR) ** 2)
            raise InsufficientReports(
                f"With {body.target_reports} reports, a share has an error of {min(forecast.share_errors):.0%} in the "
                f"largest cluster, more than {WARN_ERROR:.0%}. Collect at least {least} reports, increase epsilon, "
                "name fewer attributes, or set allow_insufficient.",
                reports_needed=least,
            )
    release = release_terms(dataset, body)
    return CollectionTarget(body.target_reports, body.min_reports, body.collect_seconds, release)


def forecast_described(profile: Profile, sizes: list[float], dataset: Dataset, n_expected: int) -> ProfileForecast:
    """Return the forecast of a profile of clusters of these sizes, for a number of records or of reports."""
    n_values = max(len(each.categories) for each in dataset.describe(profile.attributes))
    if dataset.trust == Trust.CENTRAL:
        own = dataset.max_records_per_user
        return forecast_profile(
            profile, sizes, expected_records=n_expected, n_values=n_values, max_records_per_user=own
        )
    counts_outside = dataset.out_of_bounds == OutOfBounds.COUNT
    return forecast_reported_profile(
        profile, sizes, expected_reports=n_expected, n_values=n_values, counts_outside=counts_outside
    )


def _refuse_collection(body: NewJob) -> None:
    """Raise ValidationFailed if the body of a job over records has members about collection."""
    message = "not valid for a dataset with records, because its jobs collect no reports; remove this member"
    _refuse(body, (*COLLECTED, "round_ids", "allow_insufficient"), message)


def _refuse(body: NewJob, names: Sequence[str], message: str) -> None:
    given = [name for name in names if getattr(body, name) != NewJob.model_fields[name].default]
    if given:
        raise ValidationFailed(errors=[{"pointer": f"/{name}", "message": message} for name in given])


def fitting(dataset: Dataset, algorithm: AnyAlgorithm, body: NewJob, columns: JobColumns) -> CollectionTarget:
    """Return what the job collects, if its algorithm fits the dataset and the columns that the job uses.

    Raises
    ------
    Conflict
        The algorithm belongs to the other trust model.
    ValidationFailed
        A job over records has members about collection, or a local job has a delta or no reports to use.
    InsufficientReports
        Too few devices for a meaningful result, unless the body allows it.
    InvalidSpec
        `auto` over records lacks a required parameter, or the algorithm does not support the number of features or
        periodic ones.
    """
    require_algorithm(dataset, algorithm)
    if dataset.trust == Trust.CENTRAL:
        _refuse_collection(body)
        chosen, _ = resolve_central(cast("CentralAlgorithm | Auto", algorithm), columns.n_planned)
        chosen.require_attributes(columns.attributes)
        check_periodic(chosen, [dataset.features[place] for place in columns.positions])
        check_over_records(chosen, columns.n_planned, dataset.max_records_per_user)
        require_mu_accounting(dataset, chosen)
        return CollectionTarget(0, 0, 0)
    if getattr(algorithm, "mu", None) is not None:
        message = "not valid for a dataset with reports, because a report has a pure guarantee: give epsilon instead"
        raise ValidationFailed(errors=[{"pointer": "/algorithm/mu", "message": message}])
    if algorithm.delta_atto:
        message = "not valid for a dataset with reports, because a report has a pure guarantee; remove this member"
        raise ValidationFailed(errors=[{"pointer": "/algorithm/delta", "message": message}])
    if getattr(algorithm, "bounds", "declared") != "declared":
        message = "not valid for a dataset with reports, because devices use the declared bounds; remove this member"
        raise ValidationFailed(errors=[{"pointer": "/algorithm/bounds", "message": message}])
    if body.round_ids:
        _refuse(body, COLLECTED, "not valid with round_ids, because the job collects no reports; remove this member")
    elif body.target_reports is None:
        message = "target_reports is required without round_ids"
        raise ValidationFailed(errors=[{"pointer": "/target_reports", "message": message}])
    if body.target_reports is not None:
        check_plan(dataset, algorithm, body.target_reports, columns.attributes)
    release = None if body.round_ids else release_terms(dataset, body)
    if release is not None and body.target_reports is not None:
        _require_blanket(algorithm, dataset.n_features, body.target_reports, columns.attributes)
    if body.target_reports is not None and not body.round_ids and not body.allow_insufficient:
        require_enough(algorithm, dataset.n_features, body.target_reports, attributes=columns.attributes)
    return CollectionTarget(body.target_reports or 0, body.min_reports, body.collect_seconds, release)


def check_plan(
    dataset: Dataset, algorithm: AnyAlgorithm, n_reports: int, attributes: tuple[Categorical, ...]
) -> tuple[Algorithm, str | None]:
    """Return the algorithm that runs over a number of reports, and why `auto` selects it.

    Raise InvalidSpec if it does not fit the features or the attributes.
    """
    resolved, reason = resolve(cast(Algorithm, algorithm), dataset.n_features, n_reports, attributes)
    resolved.require_attributes(attributes)
    check_periodic(resolved, dataset.features)
    if attributes:
        planned_rounds(resolved, dataset.n_features, n_reports, (), attributes)
    return resolved, reason


def require_mu_accounting(dataset: Dataset, algorithm: AnyJob) -> None:
    """Raise ValidationFailed if an algorithm states its cost as mu and the dataset has additive accounting."""
    if getattr(algorithm, "mu", None) is not None and dataset.accounting != "gaussian":
        message = "mu needs a dataset with Gaussian accounting: switch its accounting, or give epsilon and delta"
        raise ValidationFailed(errors=[{"pointer": "/algorithm/mu", "message": message}])


def require_records(session: Session, caller: Caller, dataset: Dataset, algorithm: AnyJob) -> None:
    """Raise NoRecords if a central dataset is empty and the key may read the number of records.

    The number is private, so that the job of another key is accepted, and runs over no records. The refusal then
    reveals no more than `GET /v1/datasets/{id}/records`.
    """
    if dataset.trust != Trust.CENTRAL or not caller.may(Scope.RECORDS):
        return
    if records.count(session, dataset.id).n_records == 0:
        least = least_records(algorithm.epsilon_nano, dataset.max_records_per_user)
        raise NoRecords(
            "this dataset has no records, so the job would spend its epsilon on noise alone: upload records first; "
            f"a useful result at this epsilon needs at least {least}",
            least_records=least,
        )


def release_terms(dataset: Dataset, body: WithTerms) -> ReleaseTerms | None:
    """Return the terms of releases in a body, or None if the dataset is not shuffled.

    Raises
    ------
    ValidationFailed
        A shuffled dataset needs a missing member, another dataset has one, or no report would be honest.
    """
    if dataset.trust == Trust.SHUFFLED:
        return read_release_terms(body)
    message = "valid for a shuffled dataset only; remove this member"
    if wrong := _given_terms(body):
        raise ValidationFailed(errors=[{"pointer": f"/{name}", "message": message} for name in wrong])
    return None


def _given_terms(body: WithTerms) -> list[str]:
    """Return the members about releases that a body states."""
    members = type(body).model_fields
    return [name for name in RELEASE_MEMBERS if getattr(body, name) != members[name].default]


def is_shuffled(body: WithTerms) -> bool:
    """Return whether a body without a dataset is about a shuffled one, because it states a term of releases."""
    return bool(_given_terms(body))


def read_release_terms(body: WithTerms) -> ReleaseTerms:
    """Return the terms of releases that a body states. Raise ValidationFailed if one is missing or invalid."""
    missing = [name for name in ("min_batch", "honest_share") if getattr(body, name) is None]
    if missing:
        message = "required for a shuffled dataset, because the cost of a release follows from it"
        raise ValidationFailed(errors=[{"pointer": f"/{name}", "message": message} for name in missing])
    share = Fraction(repr(float(body.honest_share or 0))) * NANO
    terms = ReleaseTerms(body.min_batch or 0, int(share), parse_delta(body.shuffled_delta or DEFAULT_RELEASE_DELTA))
    if share.denominator != 1:
        raise ValidationFailed(errors=[{"pointer": "/honest_share", "message": "at most nine decimals"}])
    with pointing_at("/min_batch"):
        terms.n_honest  # noqa: B018 - raises InvalidSpec
    return terms


def _require_blanket(
    algorithm: AnyAlgorithm, n_features: int, target_reports: int, attributes: tuple[Categorical, ...]
) -> None:
    """Raise ValidationFailed if the plan of an algorithm uses noisy vectors: their cost after a shuffler is unknown."""
    chosen, _ = resolve(cast(Algorithm, algorithm), n_features, target_reports, attributes)
    if chosen.definition.reads_vectors:
        message = f"{chosen.type} collects noisy vectors, and their cost after a shuffler is not known; use another"
        raise ValidationFailed(errors=[{"pointer": "/algorithm", "message": message}])


def mu2_pico(dataset: Dataset, algorithm: AnyJob, n_features: int) -> int:
    """Return the mu^2 that a job over records reserves under Gaussian accounting; 0 if it is not needed.

    `n_features` is the number of features that the job uses.
    """
    if dataset.accounting != "gaussian" or dataset.trust != Trust.CENTRAL:
        return 0
    central = cast("CentralAlgorithm | Auto | Profile", algorithm)
    chosen = central if isinstance(central, Profile) else resolve_central(central, n_features)[0]
    return job_cost(chosen, n_features, dataset.max_records_per_user).mu2_pico


def require_enough(
    algorithm: AnyAlgorithm,
    n_features: int,
    target_reports: int,
    *,
    attributes: tuple[Categorical, ...] = (),
    is_closed: bool = False,
) -> None:
    """Raise InsufficientReports if ten times `target_reports` would still be insufficient.

    Called before the reservation.
    """
    chosen, _ = resolve(cast(Algorithm, algorithm), n_features, target_reports, attributes)
    insufficient = insufficient_of(chosen, n_features, target_reports, attributes)
    if insufficient is not None and is_far_below(insufficient, target_reports):
        needed: dict[str, Any] = {"reports_needed": insufficient.reports_needed} if insufficient.reports_needed else {}
        collect = "Collect reports in a new round" if is_closed else "Collect more reports, increase epsilon"
        advice = f"{collect}, reduce clusters, or set allow_insufficient."
        raise InsufficientReports(f"{insufficient.reason} {advice}", **needed)


def check_series(dataset: Dataset, algorithm: SeriesAlgorithm, n_reports: int, *, allow_insufficient: bool) -> None:
    """Raise the errors of a series with this number of reports, or of records, in each window.

    Raises
    ------
    Conflict
        The algorithm does not fit the trust model of the dataset.
    InvalidSpec
        The algorithm does not take the number of features, or has private bounds.
    InsufficientReports
        The reports or records of a window are too few for a meaningful result, unless `allow_insufficient`.
    """
    require_algorithm(dataset, algorithm)
    if isinstance(algorithm, DensityMap):
        _check_record_series(dataset, algorithm, n_reports, allow_insufficient=allow_insufficient)
        return
    require_features_alone(dataset)
    planned_rounds(algorithm, dataset.n_features, n_reports)
    if not allow_insufficient:
        require_enough(algorithm, dataset.n_features, n_reports)


def require_features_alone(dataset: Dataset) -> None:
    """Raise InvalidSpec if an attribute forms clusters of a dataset: windows of a series have a grid of features."""
    if forming := clustering_attributes(dataset.attributes):
        raise InvalidSpec(
            f"a series clusters by features alone, and {forming[0].name} forms clusters of this dataset: use a dataset "
            "in which it describes"
        )


def _check_record_series(dataset: Dataset, algorithm: DensityMap, n_records: int, *, allow_insufficient: bool) -> None:
    columns = dataset.select(None)
    algorithm.require_attributes(columns.attributes)
    check_periodic(algorithm, dataset.features)
    check_over_records(algorithm, columns.n_planned, dataset.max_records_per_user)
    if algorithm.bounds != "declared":
        raise InvalidSpec("bounds must be declared in a series, because its windows share one grid: remove this member")
    needed = ceil(MAP_INFORMATION * dataset.max_records_per_user / algorithm.epsilon)
    if not allow_insufficient and 10 * n_records < needed:
        raise InsufficientReports(
            f"{n_records} records of a window are few for a label map at this epsilon: plan at least {needed}, longer "
            "windows, a larger epsilon, or set allow_insufficient.",
            reports_needed=needed,
        )


def require_algorithm(dataset: Dataset, algorithm: AnyAlgorithm) -> None:
    """Raise Conflict if the algorithm does not fit the trust model of the dataset. The message lists those that do."""
    trust = Trust(dataset.trust)
    if trust in algorithm.definition.trust:
        return
    data = "records" if trust is Trust.CENTRAL else "device reports"
    fit = ", ".join(sorted(of_trust(ALGORITHMS, trust)))
    raise Conflict(f"{algorithm.type} does not work on {data} of this {trust} dataset; use one of {fit}")

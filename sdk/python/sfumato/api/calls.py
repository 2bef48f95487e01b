"""Calls for report labels, forecasts and keys."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Concatenate, ParamSpec

from sfumato.api import parsers
from sfumato.api.report_labels import (
    AsyncReportLabels,
    LabelSummary,
    ReportLabels,
    parse_label_summary,
    parse_report_label,
)
from sfumato.api.resources import Key
from sfumato.errors import InvalidSpec
from sfumato.forecast import (
    Forecast,
    ProfileForecast,
    RecordsForecast,
    forecast_from_wire,
    profile_forecast_from_wire,
    records_forecast_from_wire,
)
from sfumato.forecast.families import Family
from sfumato.names import list_texts
from sfumato.specs import Algorithm, Auto, CentralAlgorithm, Profile, to_algorithm, to_wire
from sfumato.transport.exchange import Listing, Steps, delete, drop_none, get, post, query
from sfumato.transport.operations import (
    AsyncBase,
    BlockingBase,
    Operation,
    aiterate_pages,
    call,
    iterate_pages,
    listing,
)

P = ParamSpec("P")


def _labels(client: BlockingBase, summary: LabelSummary) -> ReportLabels:
    return ReportLabels(*summary.values, fetch=lambda: iterate_pages(client._http, summary.listing))


def _async_labels(client: AsyncBase, summary: LabelSummary) -> AsyncReportLabels:
    return AsyncReportLabels(*summary.values, fetch=lambda: aiterate_pages(client._http, summary.listing))


def _iterable_labels(
    steps: Callable[Concatenate[Any, P], Steps[LabelSummary]],
) -> Operation[P, ReportLabels, AsyncReportLabels]:
    return Operation(steps, _labels, _async_labels)


class Calls:
    """The calls for report labels, forecasts and keys."""

    # ---- labels of reports ----

    @_iterable_labels
    def report_labels(self, job_id: str) -> Steps[LabelSummary]:
        """Return labels of the reports behind a job's result, if its dataset keeps reports.

        The labels are unreliable: compare `expected_accuracy` with `baseline`. A device can label
        its own record with the published model without such errors.
        """
        path = f"jobs/{job_id}/labels"
        values = (yield get(path, of="reports", limit="1")).read(parse_label_summary)
        return LabelSummary(values, Listing(path, parse_report_label, {"of": "reports"}))

    # ---- forecasts ----

    @call
    def forecast(
        self,
        algorithm: Algorithm | Mapping[str, Any],
        *,
        expected_reports: int,
        n_features: int | None = None,
        dataset_id: str | None = None,
        features: Sequence[str] | None = None,
        quality: float | None = None,
        size_error: float | None = None,
        detectable_mass: float | None = None,
        family: Family | None = None,
    ) -> Steps[Forecast]:
        """Forecast an algorithm over device reports. A forecast costs no privacy budget and is not stored.

        `sfumato.forecast.forecast` computes the same forecast locally, from the tables of this version.

        Parameters
        ----------
        algorithm : Algorithm
        expected_reports : int
            Number of devices expected to participate.
        n_features, dataset_id : int, str
            Number of features, or the dataset that has them. Exactly one is required.
        features : sequence of str, optional
            With `dataset_id`: names of the columns that the job uses, as in `submit_job`.
        quality, size_error, detectable_mass : float, optional
            At most one target. `needed` of the forecast is the number of reports that reach it.
        family : {"compact", "elongated", "curved", "many_small"}, optional
            The family of the data, if it is known. It determines the quality and the verdict.

        Examples
        --------
        >>> from sfumato import Client, ShiftedGrid
        >>> with Client(url, key) as client:
        ...     forecast = client.forecast(ShiftedGrid(epsilon=2, clusters=3), expected_reports=50_000, n_features=2)
        >>> forecast.epsilon_nano <= 2 * 10**9
        True
        """
        body: dict[str, Any] = {
            "algorithm": drop_none(to_wire(to_algorithm(algorithm))),
            "expected_reports": expected_reports,
        }
        scope = {"n_features": n_features, "dataset_id": dataset_id, "family": family}
        body |= drop_none(scope)
        if features is not None:
            body["job_features"] = list_texts(features, "features")
        targets = {"quality": quality, "size_error": size_error, "detectable_mass": detectable_mass}
        if target := drop_none(targets):
            body["target"] = target
        return (yield query("forecasts", body)).read(forecast_from_wire)

    @call
    def forecast_records(
        self,
        algorithm: CentralAlgorithm | Auto | Mapping[str, Any],
        *,
        expected_records: int,
        n_features: int | None = None,
        max_records_per_user: int | None = None,
        dataset_id: str | None = None,
        features: Sequence[str] | None = None,
        family: Family | None = None,
        occupied_share: float | None = None,
    ) -> Steps[RecordsForecast]:
        """Forecast an algorithm over records. A forecast costs no privacy budget and counts no records.

        `sfumato.forecast.forecast_records` computes the same forecast locally, from the figures of this version.

        Parameters
        ----------
        algorithm : CentralAlgorithm or Auto
        expected_records : int
            The caller's estimate of the number of records.
        n_features, dataset_id : int, str
            Number of features, or the dataset that has them. Exactly one is required.
        features : sequence of str, optional
            With `dataset_id`: names of the features that the job uses; by default all.
        max_records_per_user : int, optional
            Maximum number of records of one user. Not allowed with `dataset_id`. The default is 1.
        family : {"compact", "elongated", "curved", "many_small"}, optional
            The family of the data, if it is known. The forecast is then for this family alone.
        occupied_share : float, optional
            Part of the bounds that the data occupy along their widest feature, in (0, 1], if it is known.
        """
        body: dict[str, Any] = {
            "algorithm": drop_none(to_wire(to_algorithm(algorithm))),
            "expected_records": expected_records,
        }
        scope = {"n_features": n_features, "dataset_id": dataset_id, "max_records_per_user": max_records_per_user}
        chosen = None if features is None else list_texts(features, "features")
        body |= drop_none(scope | {"family": family, "occupied_share": occupied_share, "job_features": chosen})
        return (yield query("forecasts", body)).read(records_forecast_from_wire)

    @call
    def forecast_profile(
        self,
        job_id: str,
        attributes: Sequence[str],
        *,
        epsilon: float,
        expected_records: int | None = None,
        expected_reports: int | None = None,
        delta: float = 0.0,
        first_pass: float | None = None,
    ) -> Steps[ProfileForecast]:
        """Forecast the errors of a profile of a job's clusters. A forecast costs no privacy budget.

        `forecast_profile` and `forecast_reported_profile` of `sfumato.forecast` compute the same forecasts locally.

        Parameters
        ----------
        job_id : str
            Job that has succeeded.
        attributes : sequence of str
            Names of attributes or features of the dataset.
        epsilon, delta : float
            Maximum cost of the profile.
        expected_records, expected_reports : int
            The caller's estimate of the number of records of a central dataset, or of reports of another one. The
            service does not count records.
        first_pass : float, optional
            As for `profile`.
        """
        names = tuple(list_texts(attributes, "attributes"))
        algorithm = Profile(of=job_id, attributes=names, epsilon=epsilon, delta=delta, first_pass=first_pass)
        expected = {"expected_records": expected_records, "expected_reports": expected_reports}
        body = {"algorithm": drop_none(to_wire(algorithm))} | drop_none(expected)
        return (yield query("forecasts/profiles", body)).read(profile_forecast_from_wire)

    # ---- keys ----

    @call
    def create_key(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        dataset_id: str | None = None,
        expires_at: datetime | None = None,
    ) -> Steps[Key]:
        """Create a key. Only this response contains the secret.

        If the response is lost, the client revokes the unusable key and creates another one.

        Examples
        --------
        A key for an app that can answer the rounds of one dataset and read nothing else:

        >>> from sfumato import Client, Feature
        >>> with Client(url, key) as client:
        ...     dataset = client.create_dataset("Lunch", [Feature("east", 0, 10)], epsilon=2)
        ...     created = client.create_key("the app's", ["device"], dataset_id=dataset.id)
        >>> created.scopes, created.secret[:4]
        (('device',), 'sfk_')
        """
        if expires_at is not None and expires_at.tzinfo is None:
            raise InvalidSpec("expires_at must have a time zone: pass for example datetime.now(UTC)")
        body: dict[str, Any] = {"name": name, "scopes": list(scopes)}
        if dataset_id is not None:
            body["dataset_id"] = dataset_id
        if expires_at is not None:
            body["expires_at"] = expires_at.isoformat()
        while True:
            created = (yield post("keys", body)).read(parsers.parse_key)
            if created.secret is not None:
                return created
            yield delete(f"keys/{created.id}")

    @call
    def rotate_key(self, key_id: str, *, overlap_seconds: int = 86_400) -> Steps[Key]:
        """Replace a key by one with the same name, scopes and dataset. The old key expires after the overlap.

        If the response with the secret is lost, the client replaces the unusable key at once.
        """
        created = (yield post(f"keys/{key_id}/rotate", {"overlap_seconds": overlap_seconds})).read(parsers.parse_key)
        while created.secret is None:
            created = (yield post(f"keys/{created.id}/rotate", {"overlap_seconds": 0})).read(parsers.parse_key)
        return created

    @listing
    def list_keys(self) -> Listing[Key]:
        """Iterate over the keys of the tenant, without secrets."""
        return Listing("keys", parsers.parse_key)

    @call
    def revoke_key(self, key_id: str) -> Steps[None]:
        """Revoke a key at once."""
        yield delete(f"keys/{key_id}")

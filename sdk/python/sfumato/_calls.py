"""The client's calls beside datasets, rounds and jobs: labels of reports, forecasts, keys."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Concatenate, ParamSpec

from sfumato import resources
from sfumato._exchange import Listing, Steps, ask, delete, get, given, post
from sfumato._operations import AsyncSpeaker, Operation, Speaker, apages, call, listing, pages
from sfumato.errors import InvalidSpec
from sfumato.forecast import Forecast, RecordsForecast
from sfumato.report_labels import AsyncReportLabels, Counted, ReportLabels, report_label, summary
from sfumato.resources import Key
from sfumato.specs import Algorithm, Auto, CentralAlgorithm, to_wire

P = ParamSpec("P")


def _labels(speaker: Speaker, counted: Counted) -> ReportLabels:
    return ReportLabels(*counted.said, fetch=lambda: pages(speaker._http, counted.listing))


def _awaited_labels(speaker: AsyncSpeaker, counted: Counted) -> AsyncReportLabels:
    return AsyncReportLabels(*counted.said, fetch=lambda: apages(speaker._http, counted.listing))


def _iterable(
    conversation: Callable[Concatenate[Any, P], Steps[Counted]],
) -> Operation[P, ReportLabels, AsyncReportLabels]:
    return Operation(conversation, _labels, _awaited_labels)


class Calls:
    """What a client can do beside datasets, rounds and jobs."""

    # ---- labels of reports ----

    @_iterable
    def report_labels(self, job_id: str) -> Steps[Counted]:
        """Labels of the reports behind a job's result, where its dataset keeps reports.

        They say little: look at `expected_accuracy` beside `baseline`. A device that labels its
        own record with the published model is right where this guesses.
        """
        path = f"jobs/{job_id}/labels"
        said = (yield get(path, of="reports", limit="1")).read(summary)
        return Counted(said, Listing(path, report_label, {"of": "reports"}))

    # ---- forecasts ----

    @call
    def forecast(
        self,
        algorithm: Algorithm,
        *,
        expected_reports: int,
        n_features: int | None = None,
        dataset_id: str | None = None,
        quality: float | None = None,
        size_error: float | None = None,
        detectable_mass: float | None = None,
    ) -> Steps[Forecast]:
        """Forecast an algorithm; spends and stores nothing.

        `sfumato.forecast.forecast` answers the same here, by this version's tables.

        Parameters
        ----------
        algorithm : Algorithm
        expected_reports : int
            Devices expected to take part.
        n_features, dataset_id : int, str
            How many features, or the dataset whose features are meant: exactly one.
        quality, size_error, detectable_mass : float, optional
            At most one wish; `needed` of the answer says how many reports it takes.

        Examples
        --------
        >>> from sfumato import Client, ShiftedGrid
        >>> with Client(url, key) as client:
        ...     forecast = client.forecast(ShiftedGrid(epsilon=2, clusters=3), expected_reports=50_000, n_features=2)
        >>> forecast.epsilon_nano <= 2 * 10**9
        True
        """
        body: dict[str, Any] = {"algorithm": given(to_wire(algorithm)), "expected_reports": expected_reports}
        of = {"n_features": n_features, "dataset_id": dataset_id}
        body |= given(of)
        wishes = {"quality": quality, "size_error": size_error, "detectable_mass": detectable_mass}
        if wanted := given(wishes):
            body["wanted"] = wanted
        return (yield ask("forecasts", body)).read(resources.forecast)

    @call
    def forecast_records(
        self,
        algorithm: CentralAlgorithm | Auto,
        *,
        expected_records: int,
        n_features: int | None = None,
        max_records_per_user: int | None = None,
        dataset_id: str | None = None,
    ) -> Steps[RecordsForecast]:
        """Forecast an algorithm over records; spends nothing, and counts none.

        `sfumato.forecast.forecast_records` answers the same here, by this version's figures.

        Parameters
        ----------
        algorithm : CentralAlgorithm or Auto
        expected_records : int
            As many as you believe there are.
        n_features, dataset_id : int, str
            How many features, or the dataset whose features are meant: exactly one.
        max_records_per_user : int, optional
            Without `dataset_id`: records one user may have, 1 by default.
        """
        body: dict[str, Any] = {"algorithm": given(to_wire(algorithm)), "expected_records": expected_records}
        of = {"n_features": n_features, "dataset_id": dataset_id, "max_records_per_user": max_records_per_user}
        body |= given(of)
        return (yield ask("forecasts", body)).read(resources.records_forecast)

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
        """Make a key; its secret is in the answer, and nowhere else ever again.

        Where that one answer is lost, the key nobody can use is revoked, and another made.

        Examples
        --------
        A key for an app, that can answer rounds of one dataset and see nothing:

        >>> from sfumato import Client, Feature
        >>> with Client(url, key) as client:
        ...     dataset = client.create_dataset("Lunch", [Feature("east", 0, 10)], epsilon=2)
        ...     made = client.create_key("the app's", ["device"], dataset_id=dataset.id)
        >>> made.scopes, made.secret[:4]
        (('device',), 'sfk_')
        """
        if expires_at is not None and expires_at.tzinfo is None:
            raise InvalidSpec("expires_at needs a time zone")
        body: dict[str, Any] = {"name": name, "scopes": list(scopes)}
        if dataset_id is not None:
            body["dataset_id"] = dataset_id
        if expires_at is not None:
            body["expires_at"] = expires_at.isoformat()
        while True:
            made = (yield post("keys", body)).read(resources.key)
            if made.secret is not None:
                return made
            yield delete(f"keys/{made.id}")

    @call
    def rotate_key(self, key_id: str, *, overlap_seconds: int = 86_400) -> Steps[Key]:
        """Make a key in place of another, of the same name, scopes and dataset; the old one works until then.

        Where the answer with its secret is lost, the key nobody can use is replaced in turn, at once.
        """
        made = (yield post(f"keys/{key_id}/rotate", {"overlap_seconds": overlap_seconds})).read(resources.key)
        while made.secret is None:
            made = (yield post(f"keys/{made.id}/rotate", {"overlap_seconds": 0})).read(resources.key)
        return made

    @listing
    def list_keys(self) -> Listing[Key]:
        """Every key of the tenant, without secrets."""
        return Listing("keys", resources.key)

    @call
    def revoke_key(self, key_id: str) -> Steps[None]:
        """End a key at once."""
        yield delete(f"keys/{key_id}")

"""The client's calls beside datasets, rounds and jobs: labels of reports, forecasts, keys."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sfumato import resources
from sfumato._http import Http
from sfumato.errors import InvalidSpec
from sfumato.forecast import Forecast, RecordsForecast
from sfumato.report_labels import ReportLabels, report_label, summary
from sfumato.resources import Key
from sfumato.specs import Algorithm, Auto, CentralAlgorithm, to_wire

T = TypeVar("T")


class Calls:
    """What `sfumato.Client` can do beside datasets, rounds and jobs."""

    _http: Http

    def _listed(
        self, path: str, reader: Callable[[Mapping[str, Any]], T], params: Mapping[str, str] | None = None
    ) -> Iterator[T]:
        return (resources.read(reader, item) for item in self._http.items(path, params))

    # ---- labels of reports ----

    def report_labels(self, job_id: str) -> ReportLabels:
        """Labels of the reports behind a job's result, where its dataset keeps reports.

        They say little: look at `expected_accuracy` beside `baseline`. A device that labels its
        own record with the published model is right where this guesses.
        """
        path, of = f"jobs/{job_id}/labels", {"of": "reports"}
        told = resources.read(summary, self._http.get(path, {**of, "limit": "1"}))
        return ReportLabels(*told, fetch=lambda: self._listed(path, report_label, of))

    # ---- forecasts ----

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
    ) -> Forecast:
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
        """
        body: dict[str, Any] = {"algorithm": to_wire(algorithm), "expected_reports": expected_reports}
        of = {"n_features": n_features, "dataset_id": dataset_id}
        body |= {name: value for name, value in of.items() if value is not None}
        wishes = {"quality": quality, "size_error": size_error, "detectable_mass": detectable_mass}
        wanted = {name: wish for name, wish in wishes.items() if wish is not None}
        if wanted:
            body["wanted"] = wanted
        return resources.read(resources.forecast, self._http.post("forecasts", body))

    def forecast_records(
        self,
        algorithm: CentralAlgorithm | Auto,
        *,
        expected_records: int,
        n_features: int | None = None,
        max_records_per_user: int | None = None,
        dataset_id: str | None = None,
    ) -> RecordsForecast:
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
        body: dict[str, Any] = {"algorithm": to_wire(algorithm), "expected_records": expected_records}
        of = {"n_features": n_features, "dataset_id": dataset_id, "max_records_per_user": max_records_per_user}
        body |= {name: value for name, value in of.items() if value is not None}
        return resources.read(resources.records_forecast, self._http.post("forecasts", body))

    # ---- keys ----

    def create_key(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        dataset_id: str | None = None,
        expires_at: datetime | None = None,
    ) -> Key:
        """Make a key; its secret is in the answer, and nowhere else ever again.

        Where that one answer is lost, the key nobody can use is revoked, and another made.
        """
        if expires_at is not None and expires_at.tzinfo is None:
            raise InvalidSpec("expires_at needs a time zone")
        body: dict[str, Any] = {"name": name, "scopes": list(scopes)}
        if dataset_id is not None:
            body["dataset_id"] = dataset_id
        if expires_at is not None:
            body["expires_at"] = expires_at.isoformat()
        while True:
            made = resources.read(resources.key, self._http.post("keys", body))
            if made.secret is not None:
                return made
            self.revoke_key(made.id)

    def rotate_key(self, key_id: str, *, overlap_seconds: int = 86_400) -> Key:
        """Make a key in place of another, of the same name, scopes and dataset; the old one works until then.

        Where the answer with its secret is lost, the key nobody can use is replaced in turn, at once.
        """
        made = resources.read(
            resources.key, self._http.post(f"keys/{key_id}/rotate", {"overlap_seconds": overlap_seconds})
        )
        while made.secret is None:
            made = resources.read(resources.key, self._http.post(f"keys/{made.id}/rotate", {"overlap_seconds": 0}))
        return made

    def list_keys(self) -> Iterator[Key]:
        """Every key of the tenant, without secrets."""
        return self._listed("keys", resources.key)

    def revoke_key(self, key_id: str) -> None:
        """End a key at once."""
        self._http.delete(f"keys/{key_id}")

"""The analyst's side: datasets, budgets, rounds, jobs, results.

Every call that creates something carries an idempotency key of its own and keeps it over
its retries, so a lost answer never makes a second job or a second grant.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato import resources
from sfumato._calls import Calls
from sfumato._http import Http
from sfumato._records import RecordCalls
from sfumato.bulk import Reports, pack
from sfumato.errors import ApiProblem, InvalidPoint, JobTimeout, ReportMalformed
from sfumato.ledger import Head, LedgerEntry, Verification, verify
from sfumato.resources import Budget, Dataset, Job, Result, Round
from sfumato.specs import CENTRAL_ALGORITHMS, AnyAlgorithm, Draw, Encoding, Feature, to_wire

if TYPE_CHECKING:
    import httpx

BATCH_REPORTS = 50_000
BATCH_BYTES = 8 << 20
ASSIGN_NUMBERS = 500_000  # coordinates in one request
MAX_ANSWER_BYTES = 256 << 20
LONG_POLL_SECONDS = 30.0
PAUSE_SECONDS = 0.1  # between two questions about one job, should the service not wait


class Client(Calls, RecordCalls):
    """A connection to one service, with one key.

    Every method raises ApiProblem where the service refuses, and Unreachable where it does
    not answer.

    Parameters
    ----------
    url, key : str
        Where the service is, and a bearer key; what it may do is up to its scopes.
    timeout_seconds : float
        Longest wait for one answer.
    retry_seconds : float
        How long one request is tried again; 0 tries once.
    transport : httpx.BaseTransport, optional
        In place of the network; the caller's to close.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        timeout_seconds: float = 30.0,
        retry_seconds: float = 30.0,
        transport: "httpx.BaseTransport | None" = None,
    ) -> None:
        self._http = Http(
            url,
            key,
            timeout_seconds=timeout_seconds,
            retry_seconds=retry_seconds,
            max_answer_bytes=MAX_ANSWER_BYTES,
            transport=transport,
        )

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    # ---- datasets ----

    def create_dataset(
        self,
        name: str,
        features: Sequence[Feature],
        *,
        epsilon: float,
        trust: Literal["local", "central"] = "local",
        min_reports: int = 100,
        keep_reports: bool = False,
        user_feature: str | None = None,
        max_records_per_user: int = 1,
        out_of_bounds: Literal["clip", "refuse"] = "clip",
        delta: float = 0.0,
    ) -> Dataset:
        """Create a dataset.

        Parameters
        ----------
        features : sequence of Feature
            With public bounds, which never change: reports depend on them.
        epsilon : float
            The first grant, in [1e-6, 32], at most nine decimals.
        min_reports, keep_reports : int, bool
            No round is tallied with fewer; whether reports outlive their tally.
        user_feature : str, optional
            Central: the column of an upload that says whose record it is.
        max_records_per_user : int
            Central, public: so many records of a user are used at most.
        out_of_bounds : str
            Central: whether finite values outside of their bounds are clipped and counted, or refuse their upload.
        delta : float
            Central: granted with epsilon, 0 or in [1e-15, 1e-3], at most 18 decimals.
        """
        body: dict[str, Any] = {
            "name": name,
            "trust": trust,
            "features": [to_wire(feature) for feature in features],
            "epsilon": epsilon,
            "min_reports": min_reports,
            "keep_reports": keep_reports,
        }
        if trust == "central":
            declared = {"max_records_per_user": max_records_per_user, "out_of_bounds": out_of_bounds}
            body |= declared if user_feature is None else declared | {"user_feature": user_feature}
        body |= {"delta": delta} if delta else {}
        return resources.read(resources.dataset, self._http.post("datasets", body))

    def datasets(self) -> Iterator[Dataset]:
        """Every dataset the key sees, oldest first."""
        return self._listed("datasets", resources.dataset)

    def get_dataset(self, dataset_id: str) -> Dataset:
        """One dataset."""
        return resources.read(resources.dataset, self._http.get(f"datasets/{dataset_id}"))

    def update_dataset(
        self,
        dataset_id: str,
        *,
        name: str | None = None,
        min_reports: int | None = None,
        keep_reports: bool | None = None,
    ) -> Dataset:
        """Change what may change; what is left out stays."""
        changes = {"name": name, "min_reports": min_reports, "keep_reports": keep_reports}
        body = {field: value for field, value in changes.items() if value is not None}
        answer = self._http.request("PATCH", f"datasets/{dataset_id}", json_body=body)
        return resources.read(resources.dataset, answer.json())

    def delete_dataset(self, dataset_id: str) -> None:
        """Cancel its jobs, close its rounds, scrub its reports and records; the ledger stays readable."""
        self._http.delete(f"datasets/{dataset_id}")

    # ---- budget and ledger ----

    def budget(self, dataset_id: str) -> Budget:
        """Granted, reserved, posted and remaining epsilon and delta."""
        return resources.read(resources.budget, self._http.get(f"datasets/{dataset_id}/budget"))

    def grant(self, dataset_id: str, epsilon: float, *, delta: float = 0.0) -> LedgerEntry:
        """Allow `epsilon` more, and on a central dataset `delta`; beside a delta epsilon may be 0."""
        body = {"epsilon": epsilon} | ({"delta": delta} if delta else {})
        return resources.read(resources.ledger_entry, self._http.post(f"datasets/{dataset_id}/grants", body))

    def ledger(self, dataset_id: str) -> Iterator[LedgerEntry]:
        """Every entry, in order."""
        return self._listed(f"datasets/{dataset_id}/ledger", resources.ledger_entry)

    def verify_ledger(self, dataset_id: str, *, noted: Sequence[Head] = ()) -> Verification:
        """Walk the ledger's hash chain here, without believing the service.

        Parameters
        ----------
        noted : sequence of Head
            Heads of earlier walks, here or by somebody else: with them it also proves that
            this is the ledger shown then, gone on. `sfumato.ledger` says what a walk
            proves and what it does not.

        Returns
        -------
        Verification
            Not `ok` where the chain, a balance, a reservation, the budget shown or a noted
            head does not hold.
        """
        budget = self.budget(dataset_id)
        return verify(self.ledger(dataset_id), dataset_id, [budget.head, *noted], budget.balance)

    # ---- rounds and reports ----

    def open_round(
        self,
        dataset_id: str,
        encoding: Encoding,
        *,
        epsilon: float,
        target_reports: int,
        mechanism: Literal["auto", "grr", "ss", "oue", "olh", "hr", "window"] = "auto",
        min_reports: int = 0,
        collect_seconds: int = 604_800,
        draw: Draw | None = None,
    ) -> Round:
        """Open a collection of one round, for later jobs; posts its cost first."""
        body = {
            "encoding": to_wire(encoding),
            "mechanism": mechanism,
            "epsilon": epsilon,
            "target_reports": target_reports,
            "min_reports": min_reports,
            "collect_seconds": collect_seconds,
        }
        if draw is not None:
            body["draw"] = to_wire(draw)
        return resources.read(resources.collection_round, self._http.post(f"datasets/{dataset_id}/rounds", body))

    def rounds(self, dataset_id: str) -> Iterator[Round]:
        """Every round of a dataset, oldest first."""
        return self._listed(f"datasets/{dataset_id}/rounds", resources.collection_round)

    def get_round(self, round_id: str) -> Round:
        """One round, with its fill level."""
        return resources.read(resources.collection_round, self._http.get(f"rounds/{round_id}"))

    def close_round(self, round_id: str) -> Round:
        """Take no more reports; closing again changes nothing."""
        return resources.read(resources.collection_round, self._http.post(f"rounds/{round_id}/close"))

    def send_reports(
        self,
        round_id: str,
        report_ids: NDArray[np.uint8],
        slots: NDArray[np.integer[Any]],
        values: NDArray[np.uint8],
        *,
        on_progress: Callable[[int], None] | None = None,
    ) -> int:
        """Send many reports, in batches; sending one again changes nothing.

        Parameters
        ----------
        report_ids, slots, values : ndarray of shape (n, 16), (n,), (n, value_bytes)
            Bytes, integers, bytes, as `perturb_records` returns them.
        on_progress : callable, optional
            Told how many are acknowledged so far, after each batch.

        Returns
        -------
        int
            Reports acknowledged: n.

        Raises
        ------
        ReportMalformed
            With the place of the first bad report; the batches before its own were stored.
        """
        packed = pack(Reports(report_ids, slots, values))
        step = max(1, min(BATCH_REPORTS, BATCH_BYTES // packed.shape[1]))
        for start in range(0, len(packed), step):
            batch = packed[start : start + step]
            self._send_packed(round_id, batch.tobytes(), start)
            if on_progress is not None:
                on_progress(start + len(batch))
        return len(packed)

    def _send_packed(self, round_id: str, batch: bytes, first: int) -> None:
        octets = {"Content-Type": "application/octet-stream"}
        try:
            self._http.request("POST", f"rounds/{round_id}/reports", content=batch, headers=octets)
        except ApiProblem as problem:
            index = problem.problem.get("index")
            if problem.code == ReportMalformed.code and isinstance(index, int):
                raise ReportMalformed(first + index, str(problem.problem.get("detail"))) from problem
            raise

    # ---- jobs and results ----

    def submit_job(
        self,
        dataset_id: str,
        algorithm: AnyAlgorithm,
        *,
        target_reports: int | None = None,
        min_reports: int = 0,
        collect_seconds: int = 604_800,
        round_ids: Sequence[str] = (),
        allow_insufficient: bool = False,
        idempotency_key: str | None = None,
    ) -> Job:
        """Ask for clusters.

        Parameters
        ----------
        algorithm : Algorithm or CentralAlgorithm
            One for the dataset: over devices' reports, or over records; `Auto` is for both.
        target_reports : int, optional
            Devices expected to take part; needed on a local dataset without `round_ids`, and left out with
            all that follows on a central one. A round for a share of the draws
            waits for its share of them.
        round_ids : sequence of str
            Earlier, closed rounds to work on: nothing more is asked, or reserved.
        allow_insufficient : bool
            Whether to ask even where a result of so few reports cannot mean anything.
        idempotency_key : str, optional
            Yours, where the same job is to be found again after a crash of your own; a
            fresh one by default.
        """
        body: dict[str, Any] = {"dataset_id": dataset_id, "algorithm": to_wire(algorithm)}
        if round_ids:
            body["round_ids"] = list(round_ids)
        elif target_reports is not None or algorithm.type not in CENTRAL_ALGORITHMS:
            body |= {"target_reports": target_reports, "min_reports": min_reports, "collect_seconds": collect_seconds}
            body |= {"allow_insufficient": True} if allow_insufficient else {}
        return resources.read(resources.job, self._http.post("jobs", body, idempotency_key))

    def jobs(self, dataset_id: str | None = None) -> Iterator[Job]:
        """Every job the key sees, oldest first."""
        return self._listed("jobs", resources.job, {"dataset_id": dataset_id} if dataset_id else {})

    def get_job(self, job_id: str) -> Job:
        """One job as it stands."""
        return resources.read(resources.job, self._http.get(f"jobs/{job_id}"))

    def wait_for_job(
        self, job_id: str, *, timeout_seconds: float | None = None, on_progress: Callable[[Job], None] | None = None
    ) -> Job:
        """Wait until a job is over: succeeded, failed, canceled or expired.

        Parameters
        ----------
        timeout_seconds : float, optional
            Longest wait; without end by default.
        on_progress : callable, optional
            Told the job about once a second, and when it is over.

        Raises
        ------
        JobTimeout
            It is not over in time.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        longest = 1.0 if on_progress else LONG_POLL_SECONDS
        while True:
            left = longest if deadline is None else max(0.0, deadline - time.monotonic())
            wait = int(min(left, longest))
            answer = self._http.request("GET", f"jobs/{job_id}", params={"wait": str(wait)}, extra_seconds=wait)
            job = resources.read(resources.job, answer.json())
            if on_progress is not None:
                on_progress(job)
            if job.is_final:
                return job
            if left == 0:
                raise JobTimeout(job, timeout_seconds or 0.0)
            time.sleep(min(left, PAUSE_SECONDS))

    def cancel_job(self, job_id: str) -> Job:
        """Cancel: what was posted stays, the rest of the reservation is released."""
        return resources.read(resources.job, self._http.post(f"jobs/{job_id}/cancel"))

    def result(self, job_id: str) -> Result:
        """What a job that succeeded released."""
        return resources.read(resources.result, self._http.get(f"jobs/{job_id}/result"))

    def plot_svg(self, job_id: str) -> str:
        """The result as an SVG picture."""
        return self._http.request("GET", f"jobs/{job_id}/plot.svg", headers={"Accept": "image/svg+xml"}).body.decode()

    def assign(self, job_id: str, points: ArrayLike) -> NDArray[np.int64]:
        """Label points with a job's model; the service stores none of them.

        `result(job_id).model.assign(points)` does the same here, without showing the
        points to anybody.

        Parameters
        ----------
        points : array-like of shape (n, n_features)
            In the features' units.

        Returns
        -------
        ndarray of shape (n,), int64
        """
        array = np.asarray(points, dtype=np.float64)
        if array.ndim != 2 or not np.isfinite(array).all():
            raise InvalidPoint("points are finite numbers in shape (n, n_features)")
        labels = np.empty(len(array), dtype=np.int64)
        step = max(1, ASSIGN_NUMBERS // max(1, array.shape[1]))
        for start in range(0, len(array), step):
            part = array[start : start + step]
            answer = self._http.request("POST", f"jobs/{job_id}/assign", json_body={"points": part.tolist()})
            labels[start : start + step] = resources.read(resources.point_labels, answer.json())
        return labels

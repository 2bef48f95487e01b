"""Calls for jobs and results, and the job that they return."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.api import parsers
from sfumato.api.datasets import WEEK_SECONDS, release_terms, send_in_batches
from sfumato.api.resources import Job, Result, Round
from sfumato.api.submitted_jobs import AsyncSubmittedJob, SubmittedJob
from sfumato.api.waits import Deadline, final_job, next_round
from sfumato.device.bulk import perturb_records
from sfumato.errors import InvalidSpec
from sfumato.names import list_texts
from sfumato.privacy.entropy import SystemEntropy
from sfumato.records.inputs import named_columns, to_numbers
from sfumato.records.mixed import to_points
from sfumato.specs import AnyJob, Profile, to_job, to_wire
from sfumato.transport.exchange import Listing, Request, Steps, drop_none, get, in_order, patch, post
from sfumato.transport.operations import ListOperation, Operation, call
from sfumato.validation import require_int

P = ParamSpec("P")

ASSIGN_NUMBERS = 120_000  # maximum coordinates in one request; their body is below 1 MiB, as proxies require


def _submitted(
    steps: Callable[Concatenate[Any, P], Steps[Job]],
) -> Operation[P, SubmittedJob, AsyncSubmittedJob]:
    return Operation(steps, SubmittedJob.of, AsyncSubmittedJob.of)


def _submitted_list(
    describe: Callable[Concatenate[Any, P], Listing[Job]],
) -> ListOperation[P, SubmittedJob, AsyncSubmittedJob]:
    return ListOperation(describe, SubmittedJob.of, AsyncSubmittedJob.of)


class CollectionOptions(TypedDict, total=False):
    """Members of a job that collects reports, as of `submit_job`."""

    target_reports: int | None
    min_reports: int
    collect_seconds: int
    allow_insufficient: bool
    min_batch: int | None
    honest_share: float | None
    shuffled_delta: float | None


def _collection(**given: Unpack[CollectionOptions]) -> dict[str, Any]:
    """Return the members of a request body that differ from their defaults."""
    plain = {name: given.get(name) for name in ("target_reports", "min_reports", "allow_insufficient")}
    body = {name: value for name, value in plain.items() if value}
    seconds = given.get("collect_seconds", WEEK_SECONDS)
    body |= {} if seconds == WEEK_SECONDS else {"collect_seconds": seconds}
    return body | release_terms(given.get("min_batch"), given.get("honest_share"), given.get("shuffled_delta"))


class JobCalls:
    """The calls for jobs and results."""

    @_submitted
    def submit_job(
        self,
        dataset_id: str,
        algorithm: AnyJob | Mapping[str, Any],
        *,
        features: Sequence[str] | None = None,
        target_reports: int | None = None,
        min_reports: int = 0,
        collect_seconds: int = WEEK_SECONDS,
        round_ids: Sequence[str] = (),
        allow_insufficient: bool = False,
        min_batch: int | None = None,
        honest_share: float | None = None,
        shuffled_delta: float | None = None,
        idempotency_key: str | None = None,
    ) -> Steps[Job]:
        """Submit a job that clusters a dataset.

        Parameters
        ----------
        algorithm : Algorithm, CentralAlgorithm or mapping
            A local algorithm for a dataset of device reports, a central one for a dataset of records, or `Auto`. A
            mapping has its parameters and its `type`.
        features : sequence of str, optional
            Names of the features and clustering attributes that the job uses, in any order; by default all. The result
            has these features alone. Jobs over different features add up in the budget. Over reports, all features are
            required, because devices report them.
        target_reports : int, optional
            Number of devices expected to participate. Required on a local dataset without
            `round_ids`. A round for a share of the devices waits for that share of the reports.
        min_reports : int
            Minimum number of reports for a round's tally.
        collect_seconds : int
            Time that a round accepts reports, seconds.
        round_ids : sequence of str
            Earlier closed rounds to use. The job then collects and reserves nothing. `ShiftedGrid` pools several
            rounds with one grid.
        allow_insufficient : bool
            Whether to submit the job even if the expected reports are insufficient for a result.
        min_batch : int, optional
            Shuffled datasets, required without `round_ids`: number of devices with reports in a release.
        honest_share : float, optional
            Shuffled datasets, required without `round_ids`: share of the reports from honest devices, in (0, 1]. The
            cost of a release follows from `min_batch * honest_share`. With fewer valid reports there is no result.
        shuffled_delta : float, optional
            Shuffled datasets: δ of each release towards the service; by default 1e-6.
        idempotency_key : str, optional
            Key to find the same job again after a crash of the caller. The default is random.

        Returns
        -------
        SubmittedJob
            The job. An AsyncClient returns an AsyncSubmittedJob.

        Examples
        --------
        People near two places report once each. The job uses that round.

        >>> import numpy as np
        >>> from sfumato import Client, Feature, GridEncoding, UniformGrid, perturb_records
        >>> people = np.repeat([[2.2], [7.7]], 2000, axis=0)
        >>> with Client(url, key) as client:
        ...     dataset = client.create_dataset("Lunch", [Feature("east", 0, 10)], epsilon=4)
        ...     opened = client.open_round(dataset.id, GridEncoding((8,)), epsilon=4, target_reports=4000)
        ...     sent = client.send_reports(opened.id, *perturb_records(opened.spec, people))
        ...     job = client.submit_job(dataset.id, UniformGrid(epsilon=4, clusters=2, cells=8), round_ids=[opened.id])
        ...     model = job.wait(timeout_seconds=600).result().model
        >>> model.n_clusters
        2
        """
        algorithm = to_job(algorithm)
        body: dict[str, Any] = {"dataset_id": dataset_id, "algorithm": drop_none(to_wire(algorithm))}
        if features is not None:
            body["features"] = list_texts(features, "features")
        if round_ids:
            body["round_ids"] = list(round_ids)
        body |= _collection(
            target_reports=target_reports,
            min_reports=min_reports,
            collect_seconds=collect_seconds,
            allow_insufficient=allow_insufficient,
            min_batch=min_batch,
            honest_share=honest_share,
            shuffled_delta=shuffled_delta,
        )
        return (yield post("jobs", body, idempotency_key)).read(parsers.parse_job)

    @_submitted
    def profile(
        self,
        job_id: str,
        attributes: Sequence[str],
        *,
        epsilon: float,
        delta: float = 0.0,
        first_pass: float | None = None,
        idempotency_key: str | None = None,
        **collection: Unpack[CollectionOptions],
    ) -> Steps[Job]:
        """Submit a profile of the clusters of a job: the values of attributes that distinguish each cluster.

        The profile costs a budget of its own, once for all clusters and attributes.

        Parameters
        ----------
        job_id : str
            Job that has succeeded. Over reports, the profile collects a round of its own.
        attributes : sequence of str
            Names of attributes or features of the dataset, in any order.
        epsilon, delta : float
            Maximum cost of the profile. Over reports, delta is 0.
        first_pass : float, optional
            Over records: share of ε that releases the association of each attribute, so that only associated ones are
            described; 0 describes all. By default 0.1 with more than five attributes, else 0.
        idempotency_key : str, optional
            Key to find the same job again after a crash of the caller. The default is random.
        **collection
            Over reports: `target_reports`, which is required, and the other members about collection of `submit_job`.

        Returns
        -------
        SubmittedJob
            Its `result().profile` is a `ClusterProfile`.

        Raises
        ------
        ApiProblem
            An attribute is unknown, the job has not succeeded, the budget is too small, or the reports are too few.
        """
        names = tuple(list_texts(attributes, "attributes"))
        algorithm = Profile(of=job_id, attributes=names, epsilon=epsilon, delta=delta, first_pass=first_pass)
        of = (yield get(f"jobs/{job_id}")).read(parsers.parse_job)
        body: dict[str, Any] = {"dataset_id": of.dataset_id, "algorithm": drop_none(to_wire(algorithm))}
        body |= _collection(**collection)
        return (yield post("jobs", body, idempotency_key)).read(parsers.parse_job)

    @_submitted_list
    def jobs(
        self,
        dataset_id: str | None = None,
        *,
        state: str | None = None,
        algorithm: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        oldest_first: bool = False,
    ) -> Listing[Job]:
        """Iterate over the jobs that the key can see, newest first.

        Parameters
        ----------
        dataset_id, state, algorithm : str, optional
            Only jobs of this dataset, in this state, or with this type of algorithm.
        created_after, created_before : datetime, optional
            Only jobs that were submitted after or before a time, with its time zone.
        oldest_first : bool
        """
        filters = {
            "dataset_id": dataset_id,
            "state": state,
            "algorithm": algorithm,
            "created_after": parsers.to_rfc3339(created_after),
            "created_before": parsers.to_rfc3339(created_before),
        }
        return Listing("jobs", parsers.parse_job, drop_none(filters) | in_order(oldest_first))

    @_submitted
    def get_job(self, job_id: str) -> Steps[Job]:
        """Return the current state of a job."""
        return (yield get(f"jobs/{job_id}")).read(parsers.parse_job)

    @_submitted
    def wait_for_job(
        self, job_id: str, *, timeout_seconds: float | None = None, on_progress: Callable[[Job], None] | None = None
    ) -> Steps[Job]:
        """Wait until a job has a final state: succeeded, failed, canceled or expired.

        Parameters
        ----------
        timeout_seconds : float, optional
            Maximum time to wait, seconds. The default is no limit.
        on_progress : callable, optional
            Function that receives the job about once a second and in its final state.

        Raises
        ------
        JobTimeout
            The job has no final state after `timeout_seconds`.
        """
        return (yield from final_job(job_id, Deadline(timeout_seconds), on_progress))

    @call
    def wait_for_round(self, job_id: str, *, timeout_seconds: float | None = None) -> Steps[Round]:
        """Wait until a job has an open round and return it.

        Parameters
        ----------
        timeout_seconds : float, optional
            Maximum time to wait, seconds. The default is no limit.

        Raises
        ------
        InvalidSpec
            The job is final and opens no further round.
        JobTimeout
            The job has no open round after `timeout_seconds`.
        """
        found = yield from next_round(job_id, None, Deadline(timeout_seconds))
        if isinstance(found, Job):
            raise InvalidSpec(f"the job is {found.state} and opens no further round")
        return found

    @_submitted
    def send_as_devices(self, job_id: str, records: ArrayLike, *, timeout_seconds: float | None = None) -> Steps[Job]:
        """Perturb records as devices would, send them to every round of a job, and wait for its end.

        This is for trying out with one's own records. It spends the privacy budget of the job, like
        reports of devices. Each record is one person with one report to each round that selects
        them. A second call for the same job counts each person twice.

        Parameters
        ----------
        records : array-like of shape (n, n_features)
            As for `perturb_records`: a profile needs a table with the columns of its attributes, too. A round closes
            at the job's `target_reports`, so n should be at least that.
        timeout_seconds : float, optional
            Maximum time for all rounds, seconds. The default is no limit.

        Returns
        -------
        SubmittedJob
            The job in its final state.

        Raises
        ------
        InvalidPoint
            The records do not fit the features.
        JobTimeout
            The job has no final state after `timeout_seconds`.

        Examples
        --------
        >>> from sfumato import Client, Feature, UniformGrid
        >>> people = [[2.5]] * 2000 + [[8.0]] * 2000
        >>> with Client(url, key) as client:
        ...     dataset = client.create_dataset("Lunch", [Feature("east", 0, 10)], epsilon=4)
        ...     job = client.submit_job(dataset.id, UniformGrid(epsilon=4, clusters=2, cells=8), target_reports=4000)
        ...     model = job.send_as_devices(people, timeout_seconds=600).result().model
        >>> model.n_clusters
        2
        """
        deadline = Deadline(timeout_seconds)
        columns = named_columns(records)
        n = len(records if columns is None else next(iter(columns.values()), ()))  # type: ignore[arg-type]
        draws = SystemEntropy().words(n)
        found = yield from next_round(job_id, None, deadline)
        while isinstance(found, Round):
            yield from send_in_batches(found.id, perturb_records(found.spec, records, draws=draws))
            found = yield from next_round(job_id, found.id, deadline)
        return found

    @_submitted
    def cancel_job(self, job_id: str) -> Steps[Job]:
        """Cancel a job. Charges remain, and the rest of the reservation is released."""
        return (yield post(f"jobs/{job_id}/cancel")).read(parsers.parse_job)

    @call
    def result(self, job_id: str) -> Steps[Result]:
        """Return the result of a job. Raise ApiProblem if the job has not succeeded."""
        return (yield get(f"jobs/{job_id}/result")).read(parsers.parse_result)

    @call
    def name_clusters(self, job_id: str, names: Sequence[str] | Mapping[int, str]) -> Steps[Result]:
        """Name the clusters of a result. Names cost nothing, and each reader sees them.

        Names appear in plots, frames of labels, profiles and reports. A profile has the names of the clusters that it
        describes.

        Parameters
        ----------
        names : sequence of str, or mapping of int to str
            A name for each cluster, in their order; an empty sequence removes all names. A mapping changes the names of
            its clusters only. A name has 1 to 64 bytes and is unique, and an empty text means no name.

        Returns
        -------
        Result
            The result with its names.

        Raises
        ------
        InvalidSpec
            There is no such cluster.
        ApiProblem
            There is not one name per cluster, a name is invalid, or the job has no result.
        """
        if isinstance(names, Mapping):
            model = (yield get(f"jobs/{job_id}/result")).read(parsers.parse_result).model
            changed = list(model.names) or [""] * model.n_clusters
            for cluster, name in names.items():
                require_int(cluster, 0, model.n_clusters - 1, "the number of a cluster")
                changed[cluster] = name
            names = changed if any(changed) else ()
        return (yield patch(f"jobs/{job_id}/result", {"names": list_texts(names, "names")})).read(parsers.parse_result)

    @call
    def plot_svg(self, job_id: str) -> Steps[str]:
        """Return the result's plot as an SVG document."""
        return (yield Request("GET", f"jobs/{job_id}/plot.svg", headers={"Accept": "image/svg+xml"})).body.decode()

    @call
    def plot_png(self, job_id: str) -> Steps[bytes]:
        """Return the result's plot as a PNG file, 1200 pixels wide."""
        return (yield Request("GET", f"jobs/{job_id}/plot.png", headers={"Accept": "image/png"})).body

    @call
    def assign(self, job_id: str, points: ArrayLike) -> Steps[NDArray[np.int64]]:
        """Label points with a job's model. The service does not store the points.

        `result(job_id).model.assign(points)` does the same locally and does not send the points.

        Parameters
        ----------
        points : array-like of shape (n, n_features)
            Finite, in the features' units. The columns of a data frame are matched by name; values without
            names are assumed to have the features' order.

        Returns
        -------
        ndarray of shape (n,), int64
            Cluster of each point.

        Raises
        ------
        InvalidPoint
            The array has another shape or other columns, or a value is not finite.
        """
        if named_columns(points) is None:
            array = to_numbers(points)
        else:
            model = (yield get(f"jobs/{job_id}/result")).read(parsers.parse_result).model
            array = to_points(model.features, model.attributes, points)
        labels = np.empty(len(array), dtype=np.int64)
        step = max(1, ASSIGN_NUMBERS // max(1, array.shape[1]))
        for start in range(0, len(array), step):
            part = array[start : start + step]
            headers = {"Content-Type": "application/octet-stream"}  # JSON is three times as long
            response = yield Request(
                "POST", f"jobs/{job_id}/assign", content=part.astype("<f8").tobytes(), headers=headers
            )
            labels[start : start + step] = response.read(parsers.parse_point_labels)
        return labels

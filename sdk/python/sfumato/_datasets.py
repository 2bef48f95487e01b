"""The client's calls for datasets, their budgets and ledgers, rounds and reports."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sfumato import resources
from sfumato._exchange import Answer, Ask, Listing, Steps, delete, get, patch, post
from sfumato._operations import call, listing
from sfumato.bulk import Reports, pack
from sfumato.errors import ApiProblem, ReportMalformed
from sfumato.ledger import Head, LedgerEntry, Verification, Walk
from sfumato.resources import Budget, Dataset, Round
from sfumato.specs import Draw, Encoding, Feature, to_wire

BATCH_REPORTS = 50_000
BATCH_BYTES = 8 << 20


class DatasetCalls:
    """What a client can do with datasets, budgets, ledgers, rounds and reports."""

    # ---- datasets ----

    @call
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
    ) -> Steps[Dataset]:
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

        Examples
        --------
        >>> from sfumato import Client, Feature
        >>> with Client(url, key) as client:
        ...     dataset = client.create_dataset("Lunch", [Feature("east", 0, 10, "km")], epsilon=2)
        >>> dataset.trust, dataset.features
        ('local', (Feature(name='east', lower=0.0, upper=10.0, unit='km'),))
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
        return _dataset((yield post("datasets", body)))

    @listing
    def datasets(self) -> Listing[Dataset]:
        """Every dataset the key sees, oldest first."""
        return Listing("datasets", resources.dataset)

    @call
    def get_dataset(self, dataset_id: str) -> Steps[Dataset]:
        """One dataset."""
        return _dataset((yield get(f"datasets/{dataset_id}")))

    @call
    def update_dataset(
        self,
        dataset_id: str,
        *,
        name: str | None = None,
        min_reports: int | None = None,
        keep_reports: bool | None = None,
        if_match: str | None = None,
    ) -> Steps[Dataset]:
        """Change what may change; what is left out stays.

        Parameters
        ----------
        if_match : str, optional
            The `etag` of the dataset as it was read: where it is another one by now, nothing changes and
            ApiProblem says `precondition_failed`.
        """
        changes = {"name": name, "min_reports": min_reports, "keep_reports": keep_reports}
        return _dataset((yield patch(f"datasets/{dataset_id}", changes, if_match)))

    @call
    def delete_dataset(self, dataset_id: str) -> Steps[None]:
        """Cancel its jobs, close its rounds, scrub its reports and records; the ledger stays readable."""
        yield delete(f"datasets/{dataset_id}")

    # ---- budget and ledger ----

    @call
    def budget(self, dataset_id: str) -> Steps[Budget]:
        """Granted, reserved, posted and remaining epsilon and delta.

        Examples
        --------
        >>> from sfumato import Client, Feature
        >>> with Client(url, key) as client:
        ...     dataset = client.create_dataset("Lunch", [Feature("east", 0, 10)], epsilon=2)
        ...     budget = client.budget(dataset.id)
        >>> budget.remaining_nano, budget.balance.posted_nano
        (2000000000, 0)
        """
        return (yield get(f"datasets/{dataset_id}/budget")).read(resources.budget)

    @call
    def grant(self, dataset_id: str, epsilon: float, *, delta: float = 0.0) -> Steps[LedgerEntry]:
        """Allow `epsilon` more, and on a central dataset `delta`; beside a delta epsilon may be 0."""
        body = {"epsilon": epsilon} | ({"delta": delta} if delta else {})
        return (yield post(f"datasets/{dataset_id}/grants", body)).read(resources.ledger_entry)

    @listing
    def ledger(self, dataset_id: str) -> Listing[LedgerEntry]:
        """Every entry, in order."""
        return Listing(f"datasets/{dataset_id}/ledger", resources.ledger_entry)

    @call
    def verify_ledger(self, dataset_id: str, *, noted: Sequence[Head] = ()) -> Steps[Verification]:
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

        Examples
        --------
        >>> from sfumato import Client, Feature
        >>> with Client(url, key) as client:
        ...     dataset = client.create_dataset("Lunch", [Feature("east", 0, 10)], epsilon=2)
        ...     noted = client.verify_ledger(dataset.id).head
        ...     granted = client.grant(dataset.id, 1)
        ...     client.verify_ledger(dataset.id, noted=[noted]).ok
        True
        """
        budget = (yield get(f"datasets/{dataset_id}/budget")).read(resources.budget)
        walk = Walk(dataset_id, [budget.head, *noted], budget.balance)
        yield from Listing(f"datasets/{dataset_id}/ledger", resources.ledger_entry).steps(walk.take)
        return walk.verification()

    # ---- rounds and reports ----

    @call
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
    ) -> Steps[Round]:
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
        return (yield post(f"datasets/{dataset_id}/rounds", body)).read(resources.collection_round)

    @listing
    def rounds(self, dataset_id: str) -> Listing[Round]:
        """Every round of a dataset, oldest first."""
        return Listing(f"datasets/{dataset_id}/rounds", resources.collection_round)

    @call
    def get_round(self, round_id: str) -> Steps[Round]:
        """One round, with its fill level."""
        return (yield get(f"rounds/{round_id}")).read(resources.collection_round)

    @call
    def close_round(self, round_id: str) -> Steps[Round]:
        """Take no more reports; closing again changes nothing."""
        return (yield post(f"rounds/{round_id}/close")).read(resources.collection_round)

    @call
    def send_reports(
        self,
        round_id: str,
        report_ids: NDArray[np.uint8],
        slots: NDArray[np.integer[Any]],
        values: NDArray[np.uint8],
        *,
        on_progress: Callable[[int], None] | None = None,
    ) -> Steps[int]:
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

        Examples
        --------
        >>> from sfumato import Client, Feature, GridEncoding, perturb_records
        >>> with Client(url, key) as client:
        ...     dataset = client.create_dataset("Lunch", [Feature("east", 0, 10)], epsilon=2)
        ...     opened = client.open_round(dataset.id, GridEncoding((8,)), epsilon=1, target_reports=1000)
        ...     client.send_reports(opened.id, *perturb_records(opened.spec, [[2.5], [3.5], [9.0]]))
        3
        """
        packed = pack(Reports(report_ids, slots, values))
        step = max(1, min(BATCH_REPORTS, BATCH_BYTES // packed.shape[1]))
        for start in range(0, len(packed), step):
            batch = packed[start : start + step]
            yield from _batch(round_id, batch.tobytes(), start)
            if on_progress is not None:
                on_progress(start + len(batch))
        return len(packed)


def _dataset(answer: Answer) -> Dataset:
    return replace(answer.read(resources.dataset), etag=answer.headers.get("ETag"))


def _batch(round_id: str, batch: bytes, first: int) -> Steps[None]:
    octets = {"Content-Type": "application/octet-stream"}
    try:
        yield Ask("POST", f"rounds/{round_id}/reports", content=batch, headers=octets)
    except ApiProblem as problem:
        index = problem.problem.get("index")
        if problem.code == ReportMalformed.code and isinstance(index, int):
            raise ReportMalformed(first + index, str(problem.problem.get("detail"))) from problem
        raise

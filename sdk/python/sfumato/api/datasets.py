"""Calls for datasets, budgets, ledgers, rounds and reports."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal, Unpack
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from sfumato.api import parsers
from sfumato.api.budgets import Budget
from sfumato.api.resources import Dataset, Round, Source
from sfumato.device.bulk import Reports, pack
from sfumato.errors import ApiProblem, ReportMalformed
from sfumato.kinds import MechanismKind, TrustModel
from sfumato.privacy.accountant import Accounting
from sfumato.privacy.ledger import Head, LedgerEntry, LedgerVerifier, Verification
from sfumato.settings import DatasetOptions, all_settings, declares_settings
from sfumato.specs import Embedding, Encoding, Feature, Participation, to_features, to_wire
from sfumato.specs.attributes import attribute_to_wire
from sfumato.transport.batches import MEDIA_TYPE, Batch
from sfumato.transport.exchange import Listing, Request, Response, Steps, delete, drop_none, get, in_order, patch, post
from sfumato.transport.operations import call, listing
from sfumato.transport.receipts import check_receipt

BATCH_REPORTS = 40_000
BATCH_BYTES = 1_000_000  # many proxies accept bodies of at most 1 MiB by default

WEEK_SECONDS = 604_800


class DatasetCalls:
    """The calls for datasets, budgets, ledgers, rounds and reports."""

    # ---- datasets ----

    @call
    @declares_settings
    def create_dataset(
        self,
        name: str,
        features: Sequence[Feature | tuple[Any, ...]] | Embedding,
        *,
        epsilon: float,
        trust: TrustModel = "local",
        delta: float = 0.0,
        accounting: Accounting | None = None,
        source: str | None = None,
        shuffled: tuple[float, float] | None = None,
        **settings: Unpack[DatasetOptions],
    ) -> Steps[Dataset]:
        """Create a dataset.

        Parameters
        ----------
        features : sequence of Feature or tuple (name, lower, upper[, unit]), or Embedding
            The features with their public bounds. They never change, because reports depend on them.
            Local datasets have at most 64, central ones at most 1,536. An `Embedding`, for central
            datasets, bounds the norm of a record.
        epsilon : float
            First grant, in [1e-6, 32], at most nine decimals.
        trust : {'local', 'shuffled', 'central'}
            Whether devices send reports to the service, devices send sealed reports to a shuffler, or
            the service stores records.
        delta : float
            Central datasets: δ of the first grant, 0 or in [1e-15, 1e-3], at most 18 decimals.
        accounting : {'additive', 'gaussian'}, optional
            How costs add up. By default Gaussian for records with a δ and more than four features. Gaussian accounting
            of a shuffled dataset allows many more rounds; their δ can use half of the shuffled grant's.
        source : str, optional
            Label of the people in the data. Needs the scope `grants`. Charges to all datasets of one
            source add up towards the operator's limit.
        shuffled : tuple (epsilon, delta), optional
            Shuffled datasets: first grant towards an observer of the releases.
        **settings

        Examples
        --------
        >>> from sfumato import Client, Feature
        >>> with Client(url, key) as client:
        ...     dataset = client.create_dataset("Lunch", [Feature("east", 0, 10, "km")], epsilon=2)
        >>> dataset.trust, dataset.features
        ('local', (Feature(name='east', lower=0.0, upper=10.0, unit='km', periodic=False, coordinate=None),))
        """
        body: dict[str, Any] = {
            "name": name,
            "trust": trust,
            "features": to_wire(features)
            if isinstance(features, Embedding)
            else [*map(to_wire, to_features(features))],
            "epsilon": epsilon,
        }
        body |= {"delta": delta} if delta else {}
        body |= {} if accounting is None else {"accounting": accounting}
        body |= {} if source is None else {"source": source}
        body |= {} if shuffled is None else {"shuffled": _shuffled(shuffled)}
        body |= _settings(settings)
        return _dataset((yield post("datasets", body)))

    @listing
    def datasets(
        self,
        *,
        name: str | None = None,
        source: str | None = None,
        trust: str | None = None,
        oldest_first: bool = False,
    ) -> Listing[Dataset]:
        """Iterate over the datasets that the key can see, newest first; of one name, source or trust model."""
        filters = drop_none({"name": name, "source": source, "trust": trust})
        return Listing("datasets", parsers.parse_dataset, filters | in_order(oldest_first))

    @call
    def get_dataset(self, dataset_id: str) -> Steps[Dataset]:
        """Return a dataset."""
        return _dataset((yield get(f"datasets/{dataset_id}")))

    @call
    def update_dataset(
        self,
        dataset_id: str,
        *,
        name: str | None = None,
        min_reports: int | None = None,
        keep_reports: bool | None = None,
        source: str | None = None,
        accounting: Literal["gaussian"] | None = None,
        if_match: str | None = None,
    ) -> Steps[Dataset]:
        """Change settings of a dataset. None leaves a setting unchanged.

        Parameters
        ----------
        source : str, optional
            Label of the people in the data. Needs the scope `grants`.
        accounting : {'gaussian'}, optional
            Switch from additive to Gaussian accounting for good. Needs the scope `grants`.
        if_match : str, optional
            The `etag` of the dataset that was read. If the dataset has changed since, the call
            changes nothing and raises ApiProblem with the code `precondition_failed`.
        """
        changes: dict[str, Any] = {
            "name": name,
            "min_reports": min_reports,
            "keep_reports": keep_reports,
            "source": source,
        }
        changes |= {} if accounting is None else {"accounting": accounting}
        return _dataset((yield patch(f"datasets/{dataset_id}", changes, if_match)))

    @call
    def delete_dataset(self, dataset_id: str) -> Steps[None]:
        """Delete a dataset: cancel its jobs, close its rounds, delete its reports and records. The ledger remains."""
        yield delete(f"datasets/{dataset_id}")

    # ---- budget and ledger ----

    @call
    def source(self, label: str | None, *, name: str | None = None) -> Steps[Source]:
        """Return what all datasets over the same people spent and may spend, deleted ones included.

        Parameters
        ----------
        label : str or None
            Label of the people; None for the datasets without one.
        name : str, optional
            Without a label: only datasets of this name, which count as datasets over the same people.

        Examples
        --------
        >>> from sfumato import Client, Feature
        >>> with Client(url, key) as client:
        ...     lunch = client.create_dataset("Lunch", [Feature("east", 0, 10)], epsilon=2, source="staff")
        ...     source = client.source("staff")
        >>> source.n_datasets, source.accounting
        (1, 'additive')
        """
        path = "-" if label is None else quote(label, safe="")
        return (yield get(f"sources/{path}", **drop_none({"name": name}))).read(parsers.parse_source)

    @call
    def budget(self, dataset_id: str) -> Steps[Budget]:
        """Return the granted, reserved, charged and remaining epsilon and delta of a dataset.

        Examples
        --------
        >>> from sfumato import Client, Feature
        >>> with Client(url, key) as client:
        ...     dataset = client.create_dataset("Lunch", [Feature("east", 0, 10)], epsilon=2)
        ...     budget = client.budget(dataset.id)
        >>> budget.remaining_nano, budget.balance.charged_nano
        (2000000000, 0)
        """
        return (yield get(f"datasets/{dataset_id}/budget")).read(parsers.parse_budget)

    @call
    def grant(
        self, dataset_id: str, epsilon: float, *, delta: float = 0.0, shuffled: tuple[float, float] | None = None
    ) -> Steps[LedgerEntry]:
        """Grant `epsilon`, on a central dataset `delta`, and on a shuffled one `shuffled` (epsilon, delta).

        With another amount, `epsilon` may be 0. Needs the scope `grants`.
        """
        body: dict[str, Any] = {"epsilon": epsilon} | ({"delta": delta} if delta else {})
        body |= {} if shuffled is None else {"shuffled": _shuffled(shuffled)}
        return (yield post(f"datasets/{dataset_id}/grants", body)).read(parsers.parse_ledger_entry)

    @listing
    def ledger(self, dataset_id: str, *, kind: str | None = None, oldest_first: bool = False) -> Listing[LedgerEntry]:
        """Iterate over the ledger entries of a dataset, newest first; of one kind: grant, reserve, charge, release."""
        filters = drop_none({"kind": kind}) | in_order(oldest_first)
        return Listing(f"datasets/{dataset_id}/ledger", parsers.parse_ledger_entry, filters)

    @call
    def verify_ledger(self, dataset_id: str, *, noted: Sequence[Head] = ()) -> Steps[Verification]:
        """Verify the ledger's hash chain in this process, without trust in the service.

        Parameters
        ----------
        noted : sequence of Head
            Heads of earlier verifications, by any caller. With them the call also proves that
            the ledger continues the earlier one. `sfumato.privacy.ledger` describes what a
            verification proves and what it does not.

        Returns
        -------
        Verification
            `ok` is False if the chain, a balance, a reservation, the budget or a noted head is wrong.
            `certified_epsilon` is the ε that all charges certify together, computed from the entries.

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
        budget = (yield get(f"datasets/{dataset_id}/budget")).read(parsers.parse_budget)
        verifier = LedgerVerifier(dataset_id, [budget.head, *noted], budget.balance)
        entries = Listing(f"datasets/{dataset_id}/ledger", parsers.parse_ledger_entry, in_order(True))
        yield from entries.steps(verifier.add)
        return verifier.verification()

    # ---- rounds and reports ----

    @call
    def open_round(
        self,
        dataset_id: str,
        encoding: Encoding,
        *,
        epsilon: float,
        target_reports: int,
        mechanism: MechanismKind = "auto",
        min_reports: int = 0,
        collect_seconds: int = WEEK_SECONDS,
        participation: Participation | None = None,
        min_batch: int | None = None,
        honest_share: float | None = None,
        shuffled_delta: float | None = None,
    ) -> Steps[Round]:
        """Open a collection of one round for later jobs. The service charges its cost first.

        A round of a shuffled dataset needs `min_batch` and `honest_share`, see `submit_job`.
        """
        body = {
            "encoding": to_wire(encoding),
            "mechanism": mechanism,
            "epsilon": epsilon,
            "target_reports": target_reports,
            "min_reports": min_reports,
            "collect_seconds": collect_seconds,
        }
        if participation is not None:
            body["participation"] = to_wire(participation)
        body |= release_terms(min_batch, honest_share, shuffled_delta)
        return (yield post(f"datasets/{dataset_id}/rounds", body)).read(parsers.parse_round)

    @listing
    def rounds(self, dataset_id: str, *, state: str | None = None, oldest_first: bool = False) -> Listing[Round]:
        """Iterate over the rounds of a dataset, newest first; in one state: open, closed, tallied, failed."""
        filters = drop_none({"state": state}) | in_order(oldest_first)
        return Listing(f"datasets/{dataset_id}/rounds", parsers.parse_round, filters)

    @call
    def get_round(self, round_id: str) -> Steps[Round]:
        """Return a round with its number of reports."""
        return (yield get(f"rounds/{round_id}")).read(parsers.parse_round)

    @call
    def release_round(self, round_id: str, batch: Batch) -> Steps[int]:
        """Send the batch of a shuffled round, as its shuffler does. The same batch again changes nothing.

        Returns
        -------
        int
            Number of acknowledged reports.
        """
        kind = {"Content-Type": MEDIA_TYPE}
        sent = yield Request("POST", f"rounds/{round_id}/batches", content=batch.body, headers=kind)
        check_receipt(sent, round_id, batch.count)
        return batch.count

    @call
    def close_round(self, round_id: str, *, allow_empty: bool = False) -> Steps[Round]:
        """Close a round, which then accepts no reports. Closing it again changes nothing.

        Parameters
        ----------
        allow_empty : bool
            Whether to close a round without reports. It gives no result, and its cost stays charged.

        Raises
        ------
        ApiProblem
            The code is `too_few_reports` if the round has no reports, unless `allow_empty`.
        """
        params = {"allow_empty": "true"} if allow_empty else {}
        return (yield replace(post(f"rounds/{round_id}/close"), params=params)).read(parsers.parse_round)

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
        """Send reports in batches. The service ignores a report that it already has.

        Parameters
        ----------
        report_ids, slots, values : ndarray of shape (n, 16), (n,), (n, value_bytes)
            Bytes, integers and bytes, as `perturb_records` returns them.
        on_progress : callable, optional
            Function that receives the number of acknowledged reports after each batch.

        Returns
        -------
        int
            Number of acknowledged reports, which is n.

        Raises
        ------
        ReportMalformed
            A report is malformed; `index` is the first one. The batches before its own are stored.

        Examples
        --------
        >>> from sfumato import Client, Feature, GridEncoding, perturb_records
        >>> with Client(url, key) as client:
        ...     dataset = client.create_dataset("Lunch", [Feature("east", 0, 10)], epsilon=2)
        ...     opened = client.open_round(dataset.id, GridEncoding((8,)), epsilon=1, target_reports=1000)
        ...     client.send_reports(opened.id, *perturb_records(opened.spec, [[2.5], [3.5], [9.0]]))
        3
        """
        return (yield from send_in_batches(round_id, Reports(report_ids, slots, values), on_progress))


def _settings(given: DatasetOptions) -> dict[str, Any]:
    """Return the settings of a new dataset as JSON values. Raise TypeError for an unknown name."""
    if unknown := given.keys() - all_settings().keys():
        raise TypeError(f"create_dataset has no argument {min(unknown)!r}: use one of {', '.join(all_settings())}")
    values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if "shuffler" in values:
        values["shuffler"] = asdict(values["shuffler"])
    if attributes := values.pop("attributes", ()):
        values["attributes"] = [*map(attribute_to_wire, attributes)]
    return values


def _shuffled(amounts: tuple[float, float]) -> dict[str, float]:
    epsilon, delta = amounts
    return {"epsilon": epsilon, "delta": delta}


def release_terms(
    min_batch: int | None, honest_share: float | None, shuffled_delta: float | None
) -> dict[str, int | float]:
    """Return the members of a request about the releases of a shuffled dataset."""
    terms = {"min_batch": min_batch, "honest_share": honest_share, "shuffled_delta": shuffled_delta}
    return {name: value for name, value in terms.items() if value is not None}


def _dataset(response: Response) -> Dataset:
    return replace(response.read(parsers.parse_dataset), etag=response.headers.get("ETag"))


def send_in_batches(round_id: str, reports: Reports, on_progress: Callable[[int], None] | None = None) -> Steps[int]:
    """Send reports in batches, see `DatasetCalls.send_reports`."""
    packed = pack(reports)
    step = max(1, min(BATCH_REPORTS, BATCH_BYTES // packed.shape[1]))
    for start in range(0, len(packed), step):
        batch = packed[start : start + step]
        yield from _batch(round_id, batch, start)
        if on_progress is not None:
            on_progress(start + len(batch))
    return len(packed)


def _batch(round_id: str, batch: NDArray[np.uint8], first: int) -> Steps[None]:
    octets = {"Content-Type": "application/octet-stream"}
    try:
        sent = yield Request("POST", f"rounds/{round_id}/reports", content=batch.tobytes(), headers=octets)
    except ApiProblem as problem:
        index = problem.problem.get("index")
        if problem.code == ReportMalformed.code and isinstance(index, int):
            raise ReportMalformed(first + index, str(problem.problem.get("detail"))) from problem
        raise
    check_receipt(sent, round_id, len(batch))

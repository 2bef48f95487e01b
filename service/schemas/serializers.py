"""Conversion of table rows to the members of the schemas.

Specifications and algorithms are returned as stored, without validation: during an upgrade, a newer gateway may have
stored a kind that this one does not know.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from models.collection import releases
from models.collection.rounds import cost_nano
from models.database.types import canonical_json, timestamp
from models.errors import TooFewReports
from models.jobs import curator_answers
from models.ledger.amounts import Amounts, Balance, balance_after
from models.ledger.sources import Totals
from models.records import records
from models.records.user_counts import UserCounts
from models.series.calendar import PER_YEAR
from models.tables.datasets import Dataset
from models.tables.identity import AuditEvent, Key
from models.tables.jobs import Job, JobState, Result
from models.tables.ledger import Ceiling, LedgerEntry
from models.tables.rounds import Round, RoundState
from models.tables.series import (
    FALSE_ALARMS,
    Series,
    SeriesCluster,
    SeriesEvent,
    SeriesRevision,
    Window,
    WindowState,
)
from models.tables.webhooks import Delivery, Webhook
from service.schemas import datasets, jobs, keys, ledger, rounds, sources, webhooks
from service.schemas import series as series_schemas
from service.schemas.base import Wire, optional_timestamp
from sfumato.forecast import release_costs
from sfumato.privacy.accountant import (
    Accounting,
    Cost,
    certified_epsilon,
    cost_of_releases,
    count_jobs,
    count_releases,
    limit_mu2,
    limit_release_mu2,
    most_mu2,
    release_delta,
    remaining_release_share,
    remaining_share,
)
from sfumato.privacy.accounting import ATTO, NANO
from sfumato.privacy.gaussian_privacy import epsilon_of

Json = dict[str, Any]


def epsilon(nano: int) -> float:
    """Convert nano-epsilon to epsilon."""
    return nano / NANO


def delta(atto: int) -> float:
    """Convert atto-delta to delta."""
    return atto / ATTO


def _members(schema: type[Wire], row: Any, **converted: Any) -> Json:
    """Return the members of a schema from the columns with their names. Times become texts."""
    values = {name: converted[name] if name in converted else getattr(row, name) for name in schema.model_fields}
    times = {name: optional_timestamp(values[name]) for name in values if name == "at" or name.endswith("_at")}
    return values | times


def dataset(row: Dataset) -> Json:
    """Serialise a dataset."""
    return _members(datasets.Dataset, row, features=row.features_wire, attributes=row.attributes_wire)


def created_dataset(row: Dataset, n_others: int) -> Json:
    """Serialise a new dataset. `n_others` is the number of other datasets over the same people."""
    return dataset(row) | {"n_same_people": n_others, "warnings": _warn_of_others(row, n_others)}


def _warn_of_others(row: Dataset, n_others: int) -> list[str]:
    if not n_others:
        return []
    others = "1 other dataset" if n_others == 1 else f"{n_others} other datasets"
    same = f"the source {row.source}" if row.source else "this name and no source"
    remedy = "set another source" if row.source else "set a source, or use another name"
    return [
        f"{others} of {same} count as datasets over the same people, deleted ones included. Their costs add up, and "
        f"the operator may limit the sum. If these are other people, {remedy}."
    ]


def record_counts(counts: records.RecordCounts, users: UserCounts | None, *, by_user: bool) -> Json:
    """Serialise the number of records. `users` is None without records or without users."""
    n_users = users.n_users if users else 0
    n_used = users.n_used if users else counts.n_records
    return counts._asdict() | {"n_users": n_users if by_user else None, "n_used": n_used}


def budget(last: LedgerEntry, reserved: LedgerEntry | None, releases: Cost | None) -> Json:
    """Serialise the budget after the last entry of a ledger.

    `reserved` is the last reservation, and `releases` what the releases of its job were charged.
    """
    balance = balance_after(last)
    free = Amounts(*(max(0, each) for each in balance.free))
    accounting, charged = balance.own_accounting, balance.charged_cost
    certified = certified_epsilon(accounting, charged, balance.granted_delta_atto)
    certified_release = balance.certified_release_nano
    release_limits = balance.release_accounting, balance.granted_release_cost
    return {
        "dataset_id": last.dataset_id,
        "accounting": balance.accounting,
        "certified_epsilon": None if certified is None else epsilon(certified),
        "spent": {
            "epsilon": epsilon(balance.charged_nano),
            "delta": delta(balance.charged_delta_atto),
            "certified_epsilon": None if certified is None else epsilon(certified),
            "certified_delta": delta(
                balance.granted_delta_atto if accounting == "gaussian" else balance.charged_delta_atto
            ),
            "certified_shuffled_epsilon": None if certified_release is None else epsilon(certified_release),
            "certified_shuffled_delta": delta(
                balance.granted_shuffled_delta_atto
                if balance.release_accounting == "gaussian"
                else balance.charged_shuffled_delta_atto
            ),
            "last_job_id": None if reserved is None else reserved.reservation,
            "more_jobs": None if reserved is None else _more_jobs(balance, reserved, releases or Cost(0, 0, 0)),
        },
        "remaining_share": remaining_share(accounting, balance.granted_cost, balance.used_cost),
        "remaining_shuffled_share": remaining_release_share(*release_limits, balance.release_cost)
        if balance.granted_shuffled_delta_atto
        else None,
        "remaining_mu2_pico": free.mu2_pico if balance.accounting == "gaussian" else None,
        "granted": epsilon(balance.granted_nano),
        "reserved": epsilon(balance.reserved_nano),
        "charged": epsilon(balance.charged_nano),
        "remaining": epsilon(free.epsilon_nano),
        "remaining_nano": free.epsilon_nano,
        "delta_granted": delta(balance.granted_delta_atto),
        "delta_reserved": delta(balance.reserved_delta_atto),
        "delta_charged": delta(balance.charged_delta_atto),
        "delta_remaining": delta(free.delta_atto),
        "remaining_delta_atto": free.delta_atto,
        "remaining_shuffled_nano": free.shuffled_nano,
        "remaining_shuffled_delta_atto": max(0, balance.slack.shuffled_delta_atto)
        if balance.release_accounting == "gaussian"
        else free.shuffled_delta_atto,
        **balance._asdict(),
        "ledger_seq": last.seq,
        "ledger_hash": last.hash,
    }


def _more_jobs(balance: Balance, reserved: LedgerEntry, releases: Cost) -> int:
    """Return how many more jobs with the cost of a reservation, and of these releases, the budget allows."""
    job = Amounts.of(reserved)
    mu2_pico = job.mu2_pico
    if balance.own_accounting == "gaussian" and not mu2_pico:  # reserved before the switch
        mu2_pico = most_mu2(job.epsilon_nano, job.delta_atto)
    job_cost = Cost(job.epsilon_nano, job.delta_atto, mu2_pico)
    n_jobs = count_jobs(balance.own_accounting, balance.granted_cost, balance.used_cost, job_cost)
    if not any(releases):
        return n_jobs
    limits = balance.release_accounting, balance.granted_release_cost
    return min(n_jobs, count_releases(*limits, balance.release_cost, releases))


def source_limit(rule: str, limit: Ceiling, found: Totals) -> Json:
    """Serialise the limit of a source, and what remains of it after the costs that count towards it."""
    nano, atto = limit.epsilon_nano, limit.delta_atto
    shuffled = nano if limit.shuffled_nano is None else limit.shuffled_nano
    spent, mu2, release_mu2 = found.spent, None, None
    if spent.mu2_pico is not None and nano and atto:
        mu2 = limit_mu2(nano, atto)
    elif spent.release_mu2_pico is not None and shuffled and atto:
        release_mu2 = limit_release_mu2(shuffled, atto)
    share = None
    if nano is not None:
        of, used = Cost(nano, atto or 0, mu2 or 0), Cost(spent.epsilon_nano, spent.delta_atto, spent.mu2_pico or 0)
        share = remaining_share("additive" if mu2 is None else "gaussian", of, used)
        if release_mu2 is not None:
            of = Cost(shuffled or 0, atto or 0, release_mu2)
            used = Cost(spent.shuffled_nano, spent.delta_atto, spent.release_mu2_pico or 0)
            share = min(share, remaining_release_share("gaussian", of, used))
    return {
        "rule": rule,
        "epsilon": None if nano is None else epsilon(nano),
        "shuffled_epsilon": None if shuffled is None else epsilon(shuffled),
        "delta": None if atto is None else delta(atto),
        "mu2_pico": mu2 if release_mu2 is None else release_mu2,
        "remaining": None if nano is None else epsilon(max(0, nano - spent.epsilon_nano)),
        "remaining_share": share,
    }


def source(
    label: str | None,
    name: str | None,
    found: Totals,
    limit: Json,
    delta_atto: int,
    listed: Sequence[tuple[Dataset, LedgerEntry]],
) -> Json:
    """Serialise a source. `delta_atto` is that of its limit, at which Gaussian charges certify an epsilon."""
    spent, reserved = found.spent, found.reserved
    is_gaussian = limit["mu2_pico"] is not None
    of_records = is_gaussian and spent.mu2_pico is not None
    charged = Cost(
        spent.epsilon_nano - reserved.epsilon_nano,
        spent.delta_atto - reserved.delta_atto,
        (spent.mu2_pico or spent.release_mu2_pico or 0) - (reserved.mu2_pico or 0),
    )
    certified = certified_epsilon("gaussian" if of_records else "additive", charged, delta_atto)
    certified_release: int | None = spent.shuffled_nano
    if is_gaussian and not of_records:
        certified_release = epsilon_of(charged.mu2_pico, delta_atto - release_delta(delta_atto))
    return {
        "source": label,
        "name": name,
        "n_datasets": found.n_datasets,
        "datasets": [_source_dataset(*each) for each in listed],
        "accounting": "gaussian" if is_gaussian else "additive",
        "charged": epsilon(charged.epsilon_nano),
        "reserved": epsilon(reserved.epsilon_nano),
        "shuffled_charged": epsilon(spent.shuffled_nano),
        "certified_shuffled_epsilon": None if certified_release is None else epsilon(certified_release),
        "delta_charged": delta(charged.delta_atto),
        "delta_reserved": delta(reserved.delta_atto),
        "charged_mu2_pico": charged.mu2_pico if is_gaussian else None,
        "reserved_mu2_pico": reserved.mu2_pico or 0 if is_gaussian else None,
        "certified_epsilon": None if certified is None else epsilon(certified),
        "limit": limit,
    }


def _source_dataset(row: Dataset, last: LedgerEntry) -> Json:
    balance = balance_after(last)
    return _members(
        sources.SourceDataset,
        row,
        granted=epsilon(balance.granted_nano),
        reserved=epsilon(balance.reserved_nano),
        charged=epsilon(balance.charged_nano),
        delta_granted=delta(balance.granted_delta_atto + balance.granted_shuffled_delta_atto),
        delta_reserved=delta(balance.reserved_delta_atto),
        delta_charged=delta(balance.charged_delta_atto + balance.charged_shuffled_delta_atto),
    )


def ledger_entry(row: LedgerEntry) -> Json:
    """Serialise a ledger entry."""
    return _members(ledger.LedgerEntry, row, epsilon=epsilon(row.epsilon_nano), delta=delta(row.delta_atto))


def round_(row: Round) -> Json:
    """Serialise a round."""
    terms = dict.fromkeys(releases.TERMS) | releases.published_terms(row)
    return _members(rounds.Round, row, epsilon=epsilon(row.epsilon_nano), spec=row.spec_wire, **terms)


def device_rounds(rows: Sequence[Round]) -> bytes:
    """Serialise open rounds (schema `DeviceRounds`) to the bytes that every device receives."""
    return canonical_json({"rounds": [releases.published_round(row) for row in rows]}).encode()


def job(row: Job, used: Sequence[Round]) -> Json:
    """Serialise a job with its progress. `used` are the rounds that it opened, or the earlier ones that it names."""
    target_reports = None if row.round_ids else row.target_reports or None  # 0 over records
    own_rounds = [] if row.round_ids else used
    over_records = not row.round_ids and target_reports is None
    still_open = [each.id for each in own_rounds if each.state == RoundState.OPEN]
    progress = {
        "rounds_opened": len(own_rounds),
        "open_round_id": still_open[0] if still_open else None,
        "n_received": own_rounds[-1].n_received if own_rounds else 0,
        "target_reports": own_rounds[-1].target_reports if own_rounds else target_reports,
    }
    return _members(
        jobs.Job,
        row,
        algorithm=_without_unset(row.algorithm),
        epsilon=epsilon(row.epsilon_nano),
        delta=delta(row.delta_atto),
        target_reports=target_reports,
        progress=progress,
        used=None
        if over_records
        else {
            "n_rounds": len(used),
            "n_reports": sum(each.n_received if each.n_reports is None else each.n_reports for each in used),
            "epsilon": epsilon(cost_nano(used)),
        },
        error=None if row.error_code is None else {"code": row.error_code, "detail": row.error_detail or ""},
    )


def _without_unset(algorithm: Json) -> Json:
    return {name: value for name, value in algorithm.items() if value is not None}


def result(row: Result, document: Json, of: Job) -> Json:
    """Serialise a result (schema `Result`) with its document. The model is returned as stored."""
    odometer = document.get("odometer", ())
    return {
        "job_id": of.id,
        "dataset_id": of.dataset_id,
        "algorithm": _without_unset(document["algorithm"]),
        "epsilon": epsilon(document["epsilon_nano"]),
        "delta": delta(document.get("delta_atto", 0)),
        "rounds": [
            {name: used[name] for name in ("id", "index", "n_reports")} | {"epsilon": epsilon(used["epsilon_nano"])}
            for used in document["rounds"]
        ],
        "odometer": [_charge(query, curator_answers.reference(of.id, index)) for index, query in enumerate(odometer)],
        "model": document["model"],
        "profile": document.get("profile"),
        "software_version": row.software_version,
        "created_at": timestamp(row.created_at),
    }


def _charge(query: Json, reference: str) -> Json:
    """Serialise an entry of the odometer."""
    amounts = {"epsilon": epsilon(query["epsilon_nano"]), "delta": delta(query["delta_atto"])}
    return query | amounts | {"reference": reference}


def key(row: Key) -> Json:
    """Serialise a key without its secret."""
    return _members(keys.Key, row)


def audit_event(row: AuditEvent) -> Json:
    """Serialise an event of the audit trail."""
    return _members(keys.AuditEvent, row)


def series(row: Series, planned: Window | None, charged_nano: int) -> Json:
    """Serialise a series with its next window and what its rounds have charged."""
    per_year = row.epsilon_nano * PER_YEAR[row.every] / row.cycle
    return _members(
        series_schemas.Series,
        row,
        algorithm=_without_unset(row.algorithm),
        windows={"every": row.every, "time_zone": row.time_zone, "first": row.first_day, "count": row.n_windows},
        false_alarms=FALSE_ALARMS,
        epsilon_per_window=epsilon(row.epsilon_nano),
        epsilon_per_cycle=epsilon(row.epsilon_nano),
        epsilon_per_year=per_year / NANO,
        epsilon_total=epsilon(row.total_nano),
        epsilon_charged=epsilon(charged_nano),
        epsilon_pending=epsilon(row.pending_nano),
        releases=_series_releases(row),
        next_window_at=None if planned is None else planned.opens_at,
    )


def series_revision(row: SeriesRevision) -> Json:
    """Serialise the terms of a series from a window on."""
    is_shuffled = row.min_batch is not None
    return _members(
        series_schemas.SeriesRevision,
        row,
        algorithm=_without_unset(row.algorithm),
        epsilon_per_cycle=epsilon(row.epsilon_nano),
        honest_share=(row.honest_share_nano or 0) / NANO if is_shuffled else None,
        shuffled_epsilon_per_cycle=epsilon(row.shuffled_nano or 0) if is_shuffled else None,
        shuffled_delta_per_cycle=delta(row.shuffled_delta_atto or 0) if is_shuffled else None,
    )


def _series_releases(row: Series) -> Json | None:
    terms = row.release
    if terms is None:
        return None
    accounting: Accounting = "additive" if row.shuffled_mu2_pico is None else "gaussian"
    nano, atto = cost_of_releases(accounting, row.release_cost, row.n_cycles)
    return {
        "min_batch": terms.min_batch,
        "honest_share": terms.honest_share_nano / NANO,
        "epsilon_total": None if nano is None else epsilon(nano),
        "delta_total": delta(atto),
        **asdict(release_costs(accounting, row.release_cost, row.every, row.cycle)),
    }


def window(of: Series, row: Window, job: Job | None, used: Sequence[Round], now: int) -> Json:
    """Serialise a window with the job that it began and the rounds of the job."""
    last = used[-1] if used else None
    reason = row.reason if job is None else job.error_detail
    return _members(
        series_schemas.Window,
        row,
        cycle=row.index // of.cycle,
        state=_planned_state(of, row, now) if job is None else _window_state(row, job, last, now),
        n_reports=None if last is None else last.n_received if last.n_reports is None else last.n_reports,
        reason=reason,
        clusters=row.shares if job is not None and job.state == JobState.SUCCEEDED else None,
    )


def series_cluster(row: SeriesCluster) -> Json:
    """Serialise a cluster of a series."""
    return _members(series_schemas.SeriesCluster, row)


def series_event(row: SeriesEvent) -> Json:
    """Serialise an event of a series."""
    kinds = None
    if row.kinds is not None:
        kinds = [
            {"cluster_id" if key == "cluster" else key: value for key, value in each.items()} for each in row.kinds
        ]
    return _members(series_schemas.SeriesEvent, row, kinds=kinds, false_alarms=FALSE_ALARMS)


def _planned_state(of: Series, row: Window, now: int) -> str:
    """Return the state of a window without a job. Over records, it is open before its job begins."""
    if row.state != WindowState.PLANNED or not of.has_records or row.opens_at > now:
        return row.state
    return "open" if now < row.closes_at else "closed"


def _window_state(row: Window, job: Job, last: Round | None, now: int) -> str:
    if job.state == JobState.SUCCEEDED:
        return "done"
    if job.state == JobState.EXPIRED or job.error_code == TooFewReports.code:
        return "empty"
    if job.is_final:
        return "failed"
    is_closed = row.closes_at <= now or (last is not None and last.state != RoundState.OPEN)
    return "closed" if is_closed else "open"


def webhook(row: Webhook) -> Json:
    """Serialise a webhook without its secret."""
    return _members(webhooks.Webhook, row)


def delivery(row: Delivery) -> Json:
    """Serialise a delivery without its payload."""
    return _members(webhooks.Delivery, row)

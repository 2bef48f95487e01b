"""Change, delete and close datasets: changes that also affect their rounds, jobs, records and deliveries.

A budget is closed after the restore of an older backup, because the restored ledger lacks the charges made after the
backup. Closing cancels the dataset's jobs and charges the whole remaining budget. The privacy officer may then grant
the part that was provably not spent, as a separate entry.
"""

from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from models import datasets
from models.collection import rounds
from models.database.types import new_id
from models.encryption import Keyring
from models.errors import Conflict
from models.identity import audit_trail
from models.identity.caller import OPERATOR, Caller, operator
from models.jobs import lifecycle
from models.ledger import ledger
from models.ledger.amounts import Amounts, Balance
from models.records import record_keys, records
from models.records.person_removal import remove_person
from models.series import windows
from models.tables.datasets import Dataset, Trust
from models.tables.identity import Act
from models.tables.jobs import Job, JobState
from models.webhooks import deliveries
from sfumato.privacy.accountant import charge_mu2
from sfumato.settings import require_applicable


def delete_dataset(session: Session, caller: Caller, dataset_id: str, *, now: int) -> list[str]:
    """Cancel a dataset's jobs, end its series, close its rounds, delete its reports and records, and hide it.

    A running job ends when its worker next checks for cancellation. It opens no further round. The ledger and the
    results remain.

    Returns
    -------
    list of str
        Ids of the jobs that are canceled now or later.
    """
    found = datasets.get(session, caller, dataset_id, lock=True)
    canceled = lifecycle.cancel_all(session, dataset_id, now=now)
    windows.stop_all(session, dataset_id, now=now)
    rounds.scrub_all(session, dataset_id)
    records.remove_all(session, dataset_id)
    deliveries.delete_round_events(session, dataset_id)
    found.deleted_at = now
    audit_trail.record(session, caller, Act.DATASET_DELETED, dataset_id, dataset_id=dataset_id, now=now)
    return canceled


def delete_records(session: Session, caller: Caller, dataset_id: str, *, now: int) -> None:
    """Delete a central dataset's records and their key, and end its series. The dataset, its ledger and results remain.

    Later records of the same users could not be recognised, so that later windows of a series would not have the stated
    cost.
    A job that has loaded the records continues with them. The audit trail records the deletion even if there were no
    records, because their existence is private. Raise NotFound, Conflict.
    """
    found = datasets.get(session, caller, dataset_id, lock=True)
    datasets.require_trust(found, Trust.CENTRAL)
    windows.stop_all(session, dataset_id, now=now, at_once=False)
    records.remove_all(session, dataset_id)
    audit_trail.record(session, caller, Act.RECORDS_DELETED, dataset_id, dataset_id=dataset_id, now=now)


def delete_person(
    session: Session, caller: Caller, dataset_id: str, user: bytes, keyring: Keyring, *, now: int
) -> None:
    """Delete the records of one user of a central dataset. Released results and the ledger remain.

    Deleting costs no budget, because it releases nothing. The audit trail records it without the user, and even if the
    user has no records, because that is private. A job that has loaded the records continues with them.

    Parameters
    ----------
    user : bytes
        Normalised id.
    keyring : Keyring
        The master keys.

    Raises
    ------
    NotFound, Conflict
        The dataset does not exist, is not central, or has no user column.
    RecordsKeyMissing, RecordsUnreadable
        The stored records cannot be decrypted.
    """
    found = datasets.get(session, caller, dataset_id, lock=True)
    datasets.require_trust(found, Trust.CENTRAL)
    if found.user_feature is None:
        raise Conflict("this dataset has no user_feature: the service does not know whose records it stores")
    if (key := record_keys.open_key(session, dataset_id, keyring)) is not None:
        remove_person(session, found, key, user)
    audit_trail.record(session, caller, Act.PERSON_DELETED, dataset_id, dataset_id=dataset_id, now=now)


def change_dataset(
    session: Session,
    caller: Caller,
    dataset_id: str,
    *,
    name: str | None,
    min_reports: int | None,
    keep_reports: bool | None,
    source: str | None = None,
    accounting: Literal["gaussian"] | None = None,
    now: int,
) -> Dataset:
    """Change the given fields. Features, bounds and trust never change, because reports depend on them.

    `min_reports` and `keep_reports` apply to rounds that open from now on.
    """
    dataset = datasets.get(session, caller, dataset_id, lock=True)
    given = {"name": name, "min_reports": min_reports, "keep_reports": keep_reports}
    changes = {key: value for key, value in given.items() if value not in (None, getattr(dataset, key))}
    for key, value in changes.items():
        if key != "name":
            require_applicable(dataset.trust, key, value)
    for key, value in changes.items():
        setattr(dataset, key, value)
    session.flush()
    if source is not None:
        datasets.set_source(session, caller, dataset_id, source, now=now)
    if accounting is not None and dataset.accounting != accounting:
        datasets.switch_to_gaussian(session, caller, dataset_id, now=now)
    if changes:
        details = audit_trail.changed_fields(list(changes))
        audit_trail.record(
            session, caller, Act.DATASET_UPDATED, dataset_id, dataset_id=dataset_id, details=details, now=now
        )
    return dataset


def close_budget(session: Session, dataset_id: str, *, now: int) -> Amounts:
    """Cancel a dataset's jobs, close its rounds, and charge its whole remaining budget. Repeating charges nothing.

    The reservation of a job that was running at the time of the backup is charged here. Its next worker therefore opens
    no round and draws no answer before it ends the job. Tallies, results and records remain.

    Returns
    -------
    Amounts
        The charged amounts.

    Raises
    ------
    NotFound
        If there is no such ledger.
    """
    ledger.head(session, dataset_id)
    dataset = session.get(Dataset, dataset_id, with_for_update=True)
    lifecycle.cancel_all(session, dataset_id, now=now)
    charged = windows.stop_all(session, dataset_id, now=now, spend=True)
    running = session.scalars(select(Job.id).where(Job.dataset_id == dataset_id, Job.state == JobState.RUNNING.value))
    is_gaussian = ledger.balance(session, dataset_id).own_accounting == "gaussian"
    for job_id in sorted(running):
        if is_gaussian:  # the parts of the job's cost are not known, so they are charged with the rest
            ledger.release(session, dataset_id, job_id=job_id, actor=OPERATOR, now=now)
            continue
        left = ledger.reserved_for(session, dataset_id, job_id)
        charged = charged.plus(_charge(session, dataset_id, left, f"{job_id}#restored", reservation=job_id, now=now))
    free, reference = _unspent(ledger.balance(session, dataset_id)), new_id("restore", at=now)
    charged = charged.plus(_charge(session, dataset_id, free, reference, reservation=None, now=now))
    if any(charged.reservable()) and dataset is not None:
        actor = operator(dataset.tenant_id)
        audit_trail.record(session, actor, Act.BUDGET_CLOSED, dataset_id, dataset_id=dataset_id, now=now)
    return charged


def _unspent(balance: Balance) -> Amounts:
    """Return the amounts that leave nothing to spend."""
    free = balance.free
    if balance.accounting == "additive":
        return free
    if balance.release_accounting == "gaussian":
        return Amounts(free.epsilon_nano, mu2_pico=free.mu2_pico)
    mu2_pico = max(0, free.mu2_pico)
    if balance.charged_delta_atto or free.epsilon_nano <= 0:  # only mu^2 can be spent
        return Amounts(mu2_pico=mu2_pico)
    return Amounts(free.epsilon_nano, mu2_pico=max(mu2_pico, charge_mu2(free.epsilon_nano, 0)))


def _charge(
    session: Session, dataset_id: str, amounts: Amounts, reference: str, *, reservation: str | None, now: int
) -> Amounts:
    if any(amounts):
        ledger.charge(
            session, dataset_id, amounts, reference=reference, reservation=reservation, actor=OPERATOR, now=now
        )
    return amounts

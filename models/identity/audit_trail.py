"""Record administrative actions in the audit trail of a tenant, and verify it.

An action writes one event in its own transaction. Rejected, rolled back and repeated actions write none. An event
contains the ids and the names of changed fields, never private values. Reports, forecasts and reads write no event.

Events of a tenant form a hash chain (`models.hash_chain`). The head row is the last lock of any transaction (see
`models.database.engine`), so a reader that pages by number misses no event of a transaction that commits later.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from models import hash_chain
from models.database.types import SECOND, insert_if_absent, new_id, select_page
from models.hash_chain import ChainVerification
from models.identity.caller import Caller
from models.tables.identity import Act, AuditEvent, AuditHead
from sfumato.privacy.ledger import GENESIS, GENESIS_HASH, Head

_DAY = 86_400 * SECOND


def record(
    session: Session,
    caller: Caller,
    act: Act,
    subject_id: str,
    *,
    now: int,
    dataset_id: str | None = None,
    details: dict[str, Any] | None = None,
) -> AuditEvent:
    """Append an event. Call it last, because it locks the tenant's audit trail until the commit.

    Parameters
    ----------
    caller : Caller
        For actions without a key, `models.identity.caller.operator`.
    act : Act
    subject_id : str
        Object of the action. Readers of the trail may know its id.
    dataset_id : str, optional
        Dataset that contains the object.
    details : dict, optional
        Small JSON object without private values.
    """
    return _append(session, caller, act, subject_id, dataset_id, caller.request_id, details or {}, now)


def record_day(session: Session, caller: Caller, act: Act, dataset_id: str, *, now: int) -> AuditEvent | None:
    """Append an event for the first such action of the key on this dataset today. Return None for further ones.

    The number of records is private, and so are the number and the times of uploads, because an upload may contain one
    person's record. The event therefore has the start of the day as its time, and no request id. The caller has locked
    the dataset's row, so that two first actions at once append one event.
    """
    today = now - now % _DAY
    existing = select(AuditEvent.id).where(
        AuditEvent.dataset_id == dataset_id,
        AuditEvent.act == act.value,
        AuditEvent.actor == caller.key_id,
        AuditEvent.at == today,
    )
    if session.scalars(existing.limit(1)).first() is not None:
        return None
    return _append(session, caller, act, dataset_id, dataset_id, None, {}, today)


def _append(
    session: Session,
    caller: Caller,
    act: Act,
    subject_id: str,
    dataset_id: str | None,
    request_id: str | None,
    details: dict[str, Any],
    at: int,
) -> AuditEvent:
    event = AuditEvent(
        id=new_id("aud", at=at),  # reveals no finer time than `at`
        tenant_id=caller.tenant_id,
        at=at,
        actor=caller.key_id,
        act=act.value,
        subject_id=subject_id,
        dataset_id=dataset_id,
        request_id=request_id,
        details=details,
    )
    hash_chain.append(session, _lock(session, caller.tenant_id), event)
    return event


def _lock(session: Session, tenant_id: str) -> AuditHead:
    """Return the tenant's head row, locked until the commit. Create it if it does not exist."""
    query = select(AuditHead).where(AuditHead.tenant_id == tenant_id).with_for_update()
    query = query.execution_options(populate_existing=True)
    head = session.scalars(query).first()
    if head is None:
        session.flush()  # inserts a tenant of this transaction
        session.execute(insert_if_absent(session, AuditHead).values(tenant_id=tenant_id, seq=0, hash=GENESIS_HASH))
        head = session.scalars(query).one()
    return head


def page(
    session: Session,
    tenant_id: str,
    *,
    after_seq: int = 0,
    limit: int,
    dataset_id: str | None = None,
    act: str | None = None,
    actor: str | None = None,
    subject_id: str | None = None,
    newest_first: bool = False,
) -> list[AuditEvent]:
    """Return a tenant's events after number `after_seq` in order, filtered by dataset, action, actor and object."""
    query = select(AuditEvent).where(AuditEvent.tenant_id == tenant_id)
    filters = (
        (AuditEvent.dataset_id, dataset_id),
        (AuditEvent.act, act),
        (AuditEvent.actor, actor),
        (AuditEvent.subject_id, subject_id),
    )
    for column, value in filters:
        if value is not None:
            query = query.where(column == value)
    query = select_page(query, AuditEvent.seq, after=after_seq, limit=limit, newest_first=newest_first)
    return list(session.scalars(query.execution_options(populate_existing=True)))


def verify(session: Session, tenant_id: str) -> ChainVerification:
    """Verify a tenant's audit trail. The session is of `Database.reading`, which sees one state."""

    def read_end() -> Head:
        head = session.get(AuditHead, tenant_id, populate_existing=True)
        return GENESIS if head is None else Head(head.seq, head.hash)

    query = select(AuditEvent).where(AuditEvent.tenant_id == tenant_id)
    return hash_chain.verify(read_end, hash_chain.read_all(session, query, AuditEvent.seq))


def changed_fields(names: Sequence[str]) -> dict[str, Any]:
    """Return the details of a change: the names of the changed fields, never their values."""
    return {"changed": sorted(names)}

"""Datasets: public features and bounds, a trust model, a budget (in the ledger)."""

from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, Boolean, ForeignKey, Index, Integer, String, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from models import audit, ledger, tenant
from models.audit import Act
from models.db import Base, CanonicalJson, Id, new_id
from models.errors import Conflict, LimitExceeded, NotFound
from models.tenant import Caller
from sfumato.errors import InvalidSpec
from sfumato.specs import Feature, features_from_wire, to_wire

MAX_RECORDS_PER_USER = 1_000_000


class Trust(StrEnum):
    """Who sees raw values."""

    LOCAL = "local"  # nobody: devices perturb
    CENTRAL = "central"  # the service, on behalf of a curator


class OutOfBounds(StrEnum):
    """What becomes of a record with a finite value outside of its feature's bounds."""

    CLIP = "clip"  # moved to the nearest bound, and counted
    REFUSE = "refuse"  # its whole upload is refused


class Dataset(Base):
    """What is asked about, of whom, and with how much budget."""

    __tablename__ = "datasets"
    __table_args__ = (Index("ix_datasets_of_tenant", "tenant_id", "id"),)  # a page is read where it begins

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(200))
    trust: Mapped[str] = mapped_column(String(8), comment="local or central")
    features_wire: Mapped[list[dict[str, Any]]] = mapped_column("features", CanonicalJson, comment="names and bounds")
    min_reports: Mapped[int] = mapped_column(Integer, comment="no round is tallied with fewer")
    keep_reports: Mapped[bool] = mapped_column(Boolean, comment="reports outlive their tally; by default they do not")
    created_at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch")
    deleted_at: Mapped[int | None] = mapped_column(BigInteger, comment="gone since then; the ledger stays")
    user_feature: Mapped[str | None] = mapped_column(
        String(64), comment="column of an upload that says whose record it is; none: each is a person of its own"
    )
    max_records_per_user: Mapped[int] = mapped_column(
        Integer, server_default="1", comment="public; so many records of a user are used at most"
    )
    out_of_bounds: Mapped[str] = mapped_column(
        String(8), server_default="clip", comment="clip or refuse: of finite values outside of their bounds"
    )

    @property
    def features(self) -> tuple[Feature, ...]:
        """The features, in order."""
        return features_from_wire(self.features_wire)


def n_held(session: Session, tenant_id: str) -> int:
    """How many datasets a tenant has, deleted ones apart."""
    held = select(func.count()).where(Dataset.tenant_id == tenant_id, Dataset.deleted_at.is_(None))
    return session.scalar(held) or 0


def create(
    session: Session,
    caller: Caller,
    *,
    name: str,
    trust: Trust,
    features: tuple[Feature, ...],
    epsilon_nano: int,
    min_reports: int,
    keep_reports: bool,
    max_datasets: int,
    now: int,
    user_feature: str | None = None,
    max_records_per_user: int = 1,
    out_of_bounds: OutOfBounds = OutOfBounds.CLIP,
    delta_atto: int = 0,
) -> Dataset:
    """A new dataset with its first grant. Raises LimitExceeded, InvalidSpec.

    The last four are of central datasets. What one person can change of a result is bounded
    by `max_records_per_user`, so it is declared here, and never changes.
    """
    _check_records(trust, features, user_feature, max_records_per_user, out_of_bounds)
    _check_delta(trust, delta_atto)
    tenant.lock(session, caller.tenant_id)
    if n_held(session, caller.tenant_id) >= max_datasets:
        raise LimitExceeded(
            f"this tenant may hold {max_datasets} datasets (max_datasets): delete one, or ask the operator for more"
        )
    dataset = Dataset(
        id=new_id("ds"),
        tenant_id=caller.tenant_id,
        name=name,
        trust=trust.value,
        features_wire=[to_wire(feature) for feature in features],
        min_reports=min_reports,
        keep_reports=keep_reports,
        created_at=now,
        deleted_at=None,
        user_feature=user_feature,
        max_records_per_user=max_records_per_user,
        out_of_bounds=out_of_bounds.value,
    )
    session.add(dataset)
    ledger.open_ledger(session, dataset.id)
    actor = caller.key_id
    ledger.grant(session, dataset.id, epsilon_nano, delta_atto=delta_atto, reference=dataset.id, actor=actor, now=now)
    audit.record(session, caller, Act.DATASET_CREATED, dataset.id, dataset_id=dataset.id, now=now)
    return dataset


def _check_records(
    trust: Trust, features: tuple[Feature, ...], user_feature: str | None, max_records: int, out_of_bounds: OutOfBounds
) -> None:
    if trust is Trust.LOCAL and (user_feature is not None or out_of_bounds is not OutOfBounds.CLIP):
        raise InvalidSpec("user_feature and out_of_bounds are of central datasets: devices send no records")
    if user_feature is not None and user_feature in {feature.name for feature in features}:
        raise InvalidSpec("user_feature is a column of its own, none of the features")
    if user_feature is None and max_records != 1:
        raise InvalidSpec("max_records_per_user needs a user_feature: without it each record is a person of its own")
    if not 1 <= max_records <= MAX_RECORDS_PER_USER:
        raise InvalidSpec(f"max_records_per_user lies in 1..{MAX_RECORDS_PER_USER}")


def _check_delta(trust: Trust, delta_atto: int) -> None:
    if trust is Trust.LOCAL and delta_atto:
        raise InvalidSpec("delta is of central datasets: what devices send is private without one")


def grant(
    session: Session,
    caller: Caller,
    dataset_id: str,
    *,
    epsilon_nano: int,
    delta_atto: int,
    now: int,
) -> ledger.LedgerEntry:
    """Allow a dataset more. Raises NotFound, InvalidSpec (a local one has no delta), LimitExceeded."""
    dataset = get(session, caller, dataset_id, lock=True)
    _check_delta(Trust(dataset.trust), delta_atto)
    entry = ledger.grant(
        session,
        dataset_id,
        epsilon_nano,
        delta_atto=delta_atto,
        reference=new_id("grant"),
        actor=caller.key_id,
        now=now,
    )
    audit.record(session, caller, Act.GRANT_CREATED, entry.id, dataset_id=dataset_id, now=now)
    return entry


def get(session: Session, caller: Caller, dataset_id: str, *, lock: bool = False, deleted: bool = False) -> Dataset:
    """A dataset the caller may see; raises NotFound for every other.

    `lock` keeps it from being changed or deleted until the commit, and leaves others free to
    insert rows that refer to it. `deleted` also finds deleted ones (their ledger can still be read).
    """
    with_lock = {"key_share": True} if lock else None
    dataset = session.get(Dataset, dataset_id, with_for_update=with_lock, populate_existing=lock)
    if dataset is None or dataset.tenant_id != caller.tenant_id or not caller.sees(dataset_id):
        raise NotFound("dataset")
    if dataset.deleted_at is not None and not deleted:
        raise NotFound("dataset")
    return dataset


def get_live(session: Session, dataset_id: str) -> Dataset:
    """A dataset whoever asks, for answers that check the caller at another place; raises NotFound where deleted."""
    dataset = session.get(Dataset, dataset_id)
    if dataset is None or dataset.deleted_at is not None:
        raise NotFound("dataset")
    return dataset


def lock_live(session: Session, dataset_id: str) -> None:
    """Keep a dataset from being deleted until the commit; raises NotFound where it is already."""
    deleted = session.execute(
        select(Dataset.deleted_at).where(Dataset.id == dataset_id).with_for_update(key_share=True)
    ).first()
    if deleted is None or deleted.deleted_at is not None:
        raise NotFound("dataset")


def page(session: Session, caller: Caller, *, after: str, limit: int) -> list[Dataset]:
    """The caller's datasets, oldest first, from after an id."""
    query = select(Dataset).where(
        Dataset.tenant_id == caller.tenant_id, Dataset.deleted_at.is_(None), Dataset.id > after
    )
    if caller.dataset_id is not None:
        query = query.where(Dataset.id == caller.dataset_id)
    return list(session.scalars(query.order_by(Dataset.id).limit(limit)))


def change(
    session: Session,
    caller: Caller,
    dataset_id: str,
    *,
    name: str | None,
    min_reports: int | None,
    keep_reports: bool | None,
    now: int,
) -> Dataset:
    """Change what may change; features, bounds and trust never do (reports depend on them).

    Reports that were kept go as soon as they are to be kept no longer.
    """
    from models import round as rounds  # rounds know their dataset; here it is the other way round

    dataset = get(session, caller, dataset_id, lock=True)
    given = {"name": name, "min_reports": min_reports, "keep_reports": keep_reports}
    changed = {key: value for key, value in given.items() if value not in (None, getattr(dataset, key))}
    for key, value in changed.items():
        setattr(dataset, key, value)
    session.flush()
    if keep_reports is False:
        rounds.scrub_tallied(session, dataset_id)
    if changed:
        details = audit.changed(list(changed))
        audit.record(session, caller, Act.DATASET_UPDATED, dataset_id, dataset_id=dataset_id, details=details, now=now)
    return dataset


def require_trust(dataset: Dataset, trust: Trust) -> None:
    """Raise Conflict where the dataset is of the other trust model."""
    if dataset.trust != trust:
        raise Conflict(f"this dataset is {dataset.trust}; this needs a {trust} one")

"""Create, change, find and lock datasets, and grant their budgets."""

import re
from dataclasses import asdict
from typing import Any, Unpack

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from models.database.types import new_id, select_page
from models.errors import Conflict, LimitExceeded, NotFound
from models.identity import audit_trail, tenants
from models.identity.caller import Caller
from models.ledger import ledger, sources
from models.ledger.amounts import Amounts
from models.tables.datasets import Dataset, Trust
from models.tables.identity import Act
from models.tables.ledger import Ceiling, LedgerEntry
from sfumato.errors import InvalidSetting, InvalidSpec
from sfumato.privacy.accountant import Accounting
from sfumato.privacy.shuffling import Pair
from sfumato.settings import CentralSettings, DatasetOptions, DatasetSettings, all_settings, settings_of
from sfumato.sizing.grids import MAX_SHIFTED_FEATURES
from sfumato.specs import MAX_PHASE_CATEGORIES, Embedding, Feature, to_wire
from sfumato.specs.attributes import attribute_to_wire, check_attributes, clustering_attributes
from sfumato.validation import parameters_of

SOURCE_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"  # no two labels look alike


def count(session: Session, tenant_id: str) -> int:
    """Return the number of a tenant's datasets, without deleted ones."""
    query = select(func.count()).where(Dataset.tenant_id == tenant_id, Dataset.deleted_at.is_(None))
    return session.scalar(query) or 0


def create(
    session: Session,
    caller: Caller,
    *,
    name: str,
    trust: Trust,
    features: tuple[Feature, ...] | Embedding,
    epsilon_nano: int,
    max_datasets: int,
    now: int,
    delta_atto: int = 0,
    source: str | None = None,
    shuffled: Pair = (0, 0),
    accounting: Accounting = "additive",
    ceiling: Ceiling = sources.UNLIMITED,
    **options: Unpack[DatasetOptions],
) -> Dataset:
    """Create a dataset with its first grant. Raise LimitExceeded, InvalidSpec, CeilingExceeded.

    `delta_atto` applies to central datasets, and `shuffled` (nano-epsilon, atto-delta) to shuffled ones. `options` are
    the settings of the trust model; see `sfumato.settings`. `ceiling` limits the grants.
    """
    settings = settings_of(trust, options)
    _check_columns(settings, features)
    _check_amounts(trust, delta_atto, shuffled)
    if trust is Trust.SHUFFLED and shuffled == (0, 0):
        raise InvalidSetting("shuffled", "a shuffled dataset needs a shuffled grant")
    grants = Amounts(epsilon_nano, delta_atto, *shuffled)
    if accounting == "gaussian":
        ledger.require_gaussian(grants)
    tenants.lock(session, caller.tenant_id)
    if count(session, caller.tenant_id) >= max_datasets:
        raise LimitExceeded(
            f"this tenant may have {max_datasets} datasets (max_datasets): delete one, or request a higher quota"
        )
    dataset = Dataset(
        id=new_id("ds"),
        tenant_id=caller.tenant_id,
        name=name,
        trust=trust.value,
        features_wire=to_wire(features) if isinstance(features, Embedding) else [*map(to_wire, features)],
        created_at=now,
        deleted_at=None,
        source=source,
        accounting=accounting,
        **_columns(settings, options),
    )
    session.add(dataset)
    ledger.open_ledger(session, dataset.id)
    actor = caller.key_id
    ledger.grant(
        session,
        dataset.id,
        grants,
        reference=dataset.id,
        actor=actor,
        now=now,
        ceiling=ceiling,
        starts=accounting,
    )
    audit_trail.record(session, caller, Act.DATASET_CREATED, dataset.id, dataset_id=dataset.id, now=now)
    if source is not None:
        _record_source(session, caller, dataset, None, now=now)
    return dataset


def _columns(settings: DatasetSettings, options: DatasetOptions) -> dict[str, Any]:
    """Return the columns of the settings. Those of other trust models have their default."""
    values = {name: setting.default for name, setting in all_settings().items()}
    values |= {name: value for name, value in options.items() if name in settings.ignored and value is not None}
    values |= {name: getattr(settings, name) for name in parameters_of(type(settings))}
    shuffler, attributes = values.pop("shuffler"), values.pop("attributes")
    values["shuffler"] = None if shuffler is None else asdict(shuffler)
    return values | {"attributes_wire": [*map(attribute_to_wire, attributes)]}


def _check_columns(settings: DatasetSettings, features: tuple[Feature, ...] | Embedding) -> None:
    """Raise InvalidSpec if the features, the user column and the attributes do not fit."""
    trust, most = settings.trust, settings.max_features
    if isinstance(features, Embedding):
        if trust != "central":
            raise InvalidSetting(
                "features", f"an embedding needs the trust model central; list 1 to {most} features instead"
            )
        if isinstance(settings, CentralSettings) and clustering_attributes(settings.attributes):
            raise InvalidSetting("attributes", "attributes of an embedding must describe: remove the use cluster")
        features = features.features
    elif trust != "central" and len(features) > MAX_SHIFTED_FEATURES:
        for each in clustering_attributes(settings.attributes):
            n_categories = len(each.categories)
            if n_categories > MAX_PHASE_CATEGORIES:
                raise InvalidSetting(
                    "attributes",
                    f"an attribute that forms clusters of more than {MAX_SHIFTED_FEATURES} features has at most "
                    f"{MAX_PHASE_CATEGORIES} categories, and {each.name} has {n_categories}: join values, or let it "
                    "describe",
                )
    if len(features) > most:
        raise InvalidSetting("features", f"a {trust} dataset has at most {most} features; a central one may have more")
    names = [feature.name for feature in features]
    user_feature = settings.user_feature if isinstance(settings, CentralSettings) else None
    if user_feature in names:
        raise InvalidSetting("user_feature", "user_feature must not be the name of a feature")
    check_attributes(settings.attributes, [*names, user_feature or ""])


def _check_amounts(trust: Trust, delta_atto: int, shuffled: Pair) -> None:
    if trust is not Trust.CENTRAL and delta_atto:
        raise InvalidSetting(
            "delta",
            "delta must be left out unless the dataset is central; a shuffled dataset states it in its shuffled grant",
        )
    if trust is not Trust.SHUFFLED and shuffled != (0, 0):
        raise InvalidSetting("shuffled", "a shuffled grant applies to shuffled datasets only")


def grant(
    session: Session,
    caller: Caller,
    dataset_id: str,
    *,
    epsilon_nano: int,
    delta_atto: int,
    now: int,
    shuffled: Pair = (0, 0),
    ceiling: Ceiling = sources.UNLIMITED,
) -> LedgerEntry:
    """Increase a dataset's budget. `ceiling` limits its grants.

    Raise NotFound, InvalidSpec (the trust model has no such amount), LimitExceeded, CeilingExceeded.
    """
    dataset = get(session, caller, dataset_id, lock=True)
    _check_amounts(Trust(dataset.trust), delta_atto, shuffled)
    entry = ledger.grant(
        session,
        dataset_id,
        Amounts(epsilon_nano, delta_atto, *shuffled),
        reference=new_id("grant"),
        actor=caller.key_id,
        now=now,
        ceiling=ceiling,
    )
    audit_trail.record(session, caller, Act.GRANT_CREATED, entry.id, dataset_id=dataset_id, now=now)
    return entry


def switch_to_gaussian(session: Session, caller: Caller, dataset_id: str, *, now: int) -> Dataset:
    """Give a dataset Gaussian accounting for good. Raise NotFound, or see `ledger.switch_to_gaussian`."""
    dataset = get(session, caller, dataset_id, lock=True)
    ledger.switch_to_gaussian(session, dataset_id, actor=caller.key_id, now=now)
    dataset.accounting = "gaussian"
    session.flush()
    details = audit_trail.changed_fields(["accounting"])
    audit_trail.record(
        session, caller, Act.DATASET_UPDATED, dataset_id, dataset_id=dataset_id, details=details, now=now
    )
    return dataset


def set_source(session: Session, caller: Caller, dataset_id: str, source: str, *, now: int) -> Dataset:
    """Set the source of a dataset, and so count its charges there. Raise NotFound.

    The charges may then exceed the ceiling of the source, which accepts no further cost until the ceiling is higher.
    Raise InvalidSpec if the label is malformed.
    """
    if not re.fullmatch(SOURCE_PATTERN, source):
        raise InvalidSpec(
            "a source must have 1 to 64 letters, digits, `.`, `_` or `-`, and begin with a letter or a digit"
        )
    dataset = get(session, caller, dataset_id, lock=True)
    tenants.lock(session, dataset.tenant_id)  # The check of a ceiling locks it, too.
    before = dataset.source
    if source != before:
        dataset.source = source
        session.flush()
        _record_source(session, caller, dataset, before, now=now)
    return dataset


def _record_source(session: Session, caller: Caller, dataset: Dataset, before: str | None, *, now: int) -> None:
    details = {"before": before, "source": dataset.source}
    audit_trail.record(session, caller, Act.SOURCE_SET, dataset.id, dataset_id=dataset.id, details=details, now=now)


def get(session: Session, caller: Caller, dataset_id: str, *, lock: bool = False, deleted: bool = False) -> Dataset:
    """Return a dataset that the caller may access. Raise NotFound.

    `lock` prevents changes and deletion until the commit, but allows other transactions to insert rows that refer to
    the dataset. `deleted` includes deleted datasets; their ledgers remain readable.
    """
    with_lock = {"key_share": True} if lock else None
    dataset = session.get(Dataset, dataset_id, with_for_update=with_lock, populate_existing=lock)
    if dataset is None or dataset.tenant_id != caller.tenant_id or not caller.sees(dataset_id):
        raise NotFound("dataset")
    if dataset.deleted_at is not None and not deleted:
        raise NotFound("dataset")
    return dataset


def get_live(session: Session, dataset_id: str) -> Dataset:
    """Return a dataset that is not deleted, for callers that check access elsewhere. Raise NotFound."""
    dataset = session.get(Dataset, dataset_id)
    if dataset is None or dataset.deleted_at is not None:
        raise NotFound("dataset")
    return dataset


def lock_live(session: Session, dataset_id: str) -> None:
    """Prevent the deletion of a dataset until the commit. Raise NotFound if it is deleted."""
    deleted = session.execute(
        select(Dataset.deleted_at).where(Dataset.id == dataset_id).with_for_update(key_share=True)
    ).first()
    if deleted is None or deleted.deleted_at is not None:
        raise NotFound("dataset")


def page(
    session: Session,
    caller: Caller,
    *,
    after: str,
    limit: int,
    name: str | None = None,
    source: str | None = None,
    trust: str | None = None,
    newest_first: bool = False,
) -> list[Dataset]:
    """Return the datasets that the caller may access, after id `after`, in order. Filter by name, source and trust."""
    query = select(Dataset).where(Dataset.tenant_id == caller.tenant_id, Dataset.deleted_at.is_(None))
    filters = (
        (Dataset.id, caller.dataset_id),
        (Dataset.name, name),
        (Dataset.source, source),
        (Dataset.trust, trust),
    )
    for column, value in filters:
        if value is not None:
            query = query.where(column == value)
    return list(session.scalars(select_page(query, Dataset.id, after=after, limit=limit, newest_first=newest_first)))


def require_trust(dataset: Dataset, *trusts: Trust) -> None:
    """Raise Conflict if the dataset has another trust model."""
    if dataset.trust not in trusts:
        raise Conflict(f"this dataset is {dataset.trust}; this request needs a {' or '.join(trusts)} dataset")

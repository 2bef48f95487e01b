"""What an operator does to keys directly in the database, without a gateway."""

from collections.abc import Sequence

from models import tenant
from models.dataset import Dataset
from models.db import SECOND, Database
from models.errors import NotFound
from models.tenant import Key, Scope
from service.clock import optional_timestamp

DAY_MICROSECONDS = 86_400 * SECOND
MAX_NAME = 100


def create_key(
    database: Database,
    tenant_name: str,
    *,
    name: str,
    scopes: Sequence[str],
    dataset_id: str | None,
    expires_days: int | None,
) -> tuple[Key, str]:
    """Make a key, and its tenant where that is new. Raises NotFound, or ValueError with a sentence."""
    for text in (name, tenant_name):
        if not 0 < len(text) <= MAX_NAME or not text.isprintable():
            raise ValueError(f"a name has 1 to {MAX_NAME} printable characters")
    unknown = set(scopes) - set(Scope)
    if unknown:
        raise ValueError(f"scopes are {', '.join(Scope)}")
    with database.transaction() as session:
        now = database.clock()
        owner = tenant.get_or_create_tenant(session, tenant_name, now=now)
        if dataset_id is not None:
            bound_to = session.get(Dataset, dataset_id)
            if bound_to is None or bound_to.tenant_id != owner.id or bound_to.deleted_at is not None:
                raise NotFound("dataset")
        return tenant.create_key(
            session,
            owner.id,
            name=name,
            scopes=[Scope(scope) for scope in scopes],
            dataset_id=dataset_id,
            expires_at=None if expires_days is None else now + expires_days * DAY_MICROSECONDS,
            now=now,
        )


def list_keys(database: Database, tenant_name: str) -> list[tuple[str | None, ...]]:
    """(id, name, scopes, dataset, expires, revoked) of each key of a tenant."""
    with database.reading() as session:
        owner = tenant.find_tenant(session, tenant_name)
        if owner is None:
            return []
        return [
            (
                key.id,
                key.name,
                " ".join(key.scopes),
                key.dataset_id,
                optional_timestamp(key.expires_at),
                optional_timestamp(key.revoked_at),
            )
            for key in tenant.list_keys(session, owner.id)
        ]


def revoke_key(database: Database, tenant_name: str, key_id: str) -> None:
    """End a key. Raises NotFound."""
    with database.transaction() as session:
        owner = tenant.find_tenant(session, tenant_name)
        if owner is None:
            raise NotFound("key")
        tenant.revoke_key(session, owner.id, key_id, now=database.clock())

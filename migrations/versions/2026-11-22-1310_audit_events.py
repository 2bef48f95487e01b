"""Acts of administration, and keys that replace one another.

Revision: 0006
Follows: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

ROTATION: list[sa.Column[object]] = [
    sa.Column("replaces", sa.String(length=40), nullable=True, comment="the key it was made in place of"),
    sa.Column("replaced_by", sa.String(length=40), nullable=True, comment="the key that was made in its place"),
]


def upgrade() -> None:
    for column in ROTATION:
        op.add_column("keys", column)
    op.create_table(
        "audit_heads",
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False, comment="number of the last event, 0 for none"),
        sa.Column("hash", sa.String(length=64), nullable=False, comment="hash of the last event: shows a cut-off tail"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_audit_heads_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_audit_heads")),
    )
    op.create_table(
        "audit_events",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False, comment="1, 2, 3, ... of the tenant, without a gap"),
        sa.Column(
            "at",
            sa.BigInteger(),
            nullable=False,
            comment="microseconds since the epoch; of uploads the day's beginning",
        ),
        sa.Column("actor", sa.String(length=40), nullable=False, comment="the key that asked for it, or operator"),
        sa.Column("act", sa.String(length=40), nullable=False, comment="what was done, as key.created"),
        sa.Column("subject_id", sa.String(length=40), nullable=False, comment="what it was done to"),
        sa.Column(
            "dataset_id", sa.String(length=40), nullable=True, comment="the dataset it was within, where there is one"
        ),
        sa.Column("request_id", sa.String(length=40), nullable=True, comment="the request's, as the access log has it"),
        sa.Column("details", sa.Text(), nullable=False, comment="public: names of what changed, no values"),
        sa.Column(
            "prev_hash", sa.String(length=64), nullable=False, comment="hash of the event before, zeros for the first"
        ),
        sa.Column(
            "hash",
            sa.String(length=64),
            nullable=False,
            comment="SHA-256 of this event's canonical JSON without itself",
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["audit_heads.tenant_id"], name=op.f("fk_audit_events_tenant_id_audit_heads")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_events")),
        sa.UniqueConstraint("tenant_id", "seq", name=op.f("uq_audit_events_tenant_id_seq")),
    )
    op.create_index(op.f("ix_audit_events_dataset_id_seq"), "audit_events", ["dataset_id", "seq"], unique=False)
    _make_append_only()


def _make_append_only() -> None:
    """Events can be neither changed nor removed through the service's own connection."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'the audit trail is append-only'; END $$"
        )
        op.execute(
            "CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON audit_events "
            "FOR EACH ROW EXECUTE FUNCTION refuse_audit_change()"
        )
        op.execute(
            "CREATE TRIGGER audit_not_emptied BEFORE TRUNCATE ON audit_events "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change()"
        )
        return
    for change in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER audit_append_only_{change.lower()} BEFORE {change} ON audit_events "
            "BEGIN SELECT RAISE(ABORT, 'the audit trail is append-only'); END"
        )

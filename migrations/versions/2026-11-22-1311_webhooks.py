"""Webhooks and what is to be delivered to them.

Revision: 0007
Follows: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("url", sa.String(length=2000), nullable=False, comment="where to; the service checks it"),
        sa.Column("event_types", sa.Text(), nullable=False, comment="of what it is told"),
        sa.Column(
            "dataset_id", sa.String(length=40), nullable=True, comment="the only dataset it is told of, where set"
        ),
        sa.Column("description", sa.String(length=200), nullable=False, comment="for people"),
        sa.Column("enabled", sa.Boolean(), nullable=False, comment="what is not, is told nothing"),
        sa.Column("disabled_reason", sa.String(length=200), nullable=True, comment="where the service disabled it"),
        sa.Column("failing_since", sa.BigInteger(), nullable=True, comment="first failure since the last success"),
        sa.Column("created_at", sa.BigInteger(), nullable=False, comment="microseconds since the epoch"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_webhooks_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
    )
    op.create_index(op.f("ix_webhooks_tenant_id"), "webhooks", ["tenant_id"])

    op.create_table(
        "webhook_secrets",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("webhook_id", sa.String(length=40), nullable=False),
        sa.Column("sealed_by", sa.String(length=16), nullable=False, comment="the master key that opens it"),
        sa.Column("sealed", sa.LargeBinary(), nullable=False, comment="nonce, ciphertext and tag of the secret"),
        sa.Column(
            "expires_at", sa.BigInteger(), nullable=True, comment="signs nothing from then on; none: the current"
        ),
        sa.ForeignKeyConstraint(
            ["webhook_id"], ["webhooks.id"], name=op.f("fk_webhook_secrets_webhook_id_webhooks"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_secrets")),
    )
    op.create_index(op.f("ix_webhook_secrets_webhook_id"), "webhook_secrets", ["webhook_id"])
    op.create_index(op.f("ix_webhook_secrets_sealed_by"), "webhook_secrets", ["sealed_by"])

    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("webhook_id", sa.String(length=40), nullable=False),
        sa.Column("dataset_id", sa.String(length=40), nullable=True, comment="what it is about; none of a ping"),
        sa.Column("event_type", sa.String(length=40), nullable=False, comment="what happened"),
        sa.Column("payload", sa.Text(), nullable=False, comment="the body, the same bytes at every attempt"),
        sa.Column("state", sa.String(length=10), nullable=False, comment="pending, delivered or failed"),
        sa.Column("attempts", sa.Integer(), nullable=False, comment="since it was made, or asked for again"),
        sa.Column("fence", sa.BigInteger(), nullable=False, comment="raised by every claim"),
        sa.Column("next_attempt_at", sa.BigInteger(), nullable=True, comment="due then; none: it is over"),
        sa.Column("lease_until", sa.BigInteger(), nullable=True, comment="a gateway sends it until then"),
        sa.Column("last_status", sa.Integer(), nullable=True, comment="HTTP status of the last answer"),
        sa.Column("last_error", sa.String(length=40), nullable=True, comment="why the last attempt failed, as a code"),
        sa.Column("created_at", sa.BigInteger(), nullable=False, comment="as told: of jobs over records, coarsely"),
        sa.ForeignKeyConstraint(
            ["webhook_id"], ["webhooks.id"], name=op.f("fk_webhook_deliveries_webhook_id_webhooks"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_deliveries")),
    )
    for columns in (["webhook_id"], ["dataset_id"], ["created_at"], ["state", "next_attempt_at"]):
        op.create_index(op.f("ix_webhook_deliveries_" + "_".join(columns)), "webhook_deliveries", columns)

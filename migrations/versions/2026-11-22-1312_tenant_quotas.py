"""Limits of a tenant's own, turns of tenants with workers, and an index of unfinished jobs.

Revision: 0008
Follows: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

OWN = [  # column, comment
    ("max_datasets", "none: the operator's setting holds"),
    ("max_active_jobs", "none: the operator's setting holds"),
    ("max_running_jobs", "none: as many as there are workers"),
    ("max_open_rounds", "of a dataset; none: the setting holds"),
    ("max_dataset_records", "none: the operator's setting holds"),
]


def upgrade() -> None:
    op.create_table(
        "tenant_quotas",
        sa.Column("tenant_id", sa.String(40), nullable=False),
        sa.Column(
            "turn", sa.BigInteger(), nullable=False, comment="of its last claim, counted over all tenants; 0: none yet"
        ),
        *(sa.Column(name, sa.Integer(), nullable=True, comment=comment) for name, comment in OWN),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_tenant_quotas_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_tenant_quotas")),
    )
    op.execute("INSERT INTO tenant_quotas (tenant_id, turn) SELECT id, 0 FROM tenants")
    unfinished = sa.text("state IN ('collecting', 'queued', 'running')")
    op.create_index(
        "ix_jobs_unfinished", "jobs", ["tenant_id", "id"], postgresql_where=unfinished, sqlite_where=unfinished
    )

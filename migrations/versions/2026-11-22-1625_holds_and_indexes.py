"""What reservations still hold, in a table of its own; and an index for each question that grew with what there is.

No entry is moved: what the table does not say yet is added up from the entries, as it was.

Revision: 0010
Follows: 0009
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

AMOUNTS = [
    ("seq", "of the last ledger entry that is counted in"),
    ("epsilon_nano", "left of the reservation"),
    ("delta_atto", "left of its delta"),
]
REPLACED = [  # table, index
    ("ledger_entries", "ix_ledger_entries_reservation"),
    ("rounds", "ix_rounds_dataset_id"),
    ("rounds", "ix_rounds_state"),
    ("datasets", "ix_datasets_tenant_id"),
    ("jobs", "ix_jobs_tenant_id"),
]
INDEXES = [  # table, index, columns
    ("ledger_entries", "ix_ledger_entries_of_reservation", ["dataset_id", "reservation", "seq"]),
    ("rounds", "ix_rounds_of_dataset", ["dataset_id", "id"]),
    ("rounds", "ix_rounds_of_dataset_by_state", ["dataset_id", "state", "closes_at"]),
    ("rounds", "ix_rounds_of_job_by_state", ["job_id", "state"]),
    ("rounds", "ix_rounds_by_time", ["state", "closes_at"]),
    ("datasets", "ix_datasets_of_tenant", ["tenant_id", "id"]),
    ("jobs", "ix_jobs_of_tenant", ["tenant_id", "id"]),
    ("jobs", "ix_jobs_of_tenant_and_dataset", ["tenant_id", "dataset_id", "id"]),
]


def upgrade() -> None:
    op.create_table(
        "ledger_holds",
        sa.Column("dataset_id", sa.String(40), nullable=False),
        sa.Column("reservation", sa.String(40), nullable=False, comment="the job that holds it"),
        *(sa.Column(name, sa.BigInteger(), nullable=False, comment=comment) for name, comment in AMOUNTS),
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["ledger_heads.dataset_id"], name=op.f("fk_ledger_holds_dataset_id_ledger_heads")
        ),
        sa.PrimaryKeyConstraint("dataset_id", "reservation", name=op.f("pk_ledger_holds")),
    )
    for table, index, columns in INDEXES:
        op.create_index(index, table, columns)
    for table, index in REPLACED:
        op.drop_index(index, table_name=table)

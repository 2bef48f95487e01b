"""The second schema: columns and indexes for the filters of lists.

Revision: 0002
Follows: 0001
"""

import json

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

ROWS = 1000  # jobs per statement


def upgrade() -> None:
    """Add columns and indexes."""
    _add_algorithm_type()
    if op.get_bind().dialect.name == "postgresql":  # SQLite has no comments
        op.execute("COMMENT ON COLUMN datasets.out_of_bounds IS 'count, clip or refuse'")
    at_count = "received reports at which distinct ones are counted next; null for the target"
    op.add_column("rounds", sa.Column("count_at", sa.BigInteger, comment=at_count))
    op.create_index("ix_jobs_of_tenant_by_state", "jobs", ["tenant_id", "state", "id"])
    op.create_index("ix_jobs_of_tenant_by_algorithm", "jobs", ["tenant_id", "algorithm_type", "id"])
    op.create_index("ix_ledger_entries_of_kind", "ledger_entries", ["dataset_id", "kind", "seq"])
    op.create_index("ix_audit_events_of_act", "audit_events", ["tenant_id", "act", "seq"])
    op.create_index("ix_audit_events_of_actor", "audit_events", ["tenant_id", "actor", "seq"])
    op.create_index("ix_audit_events_of_subject", "audit_events", ["tenant_id", "subject_id", "seq"])


def _add_algorithm_type() -> None:
    """Add the type of the algorithm to each job."""
    op.add_column("jobs", sa.Column("algorithm_type", sa.String(40), comment="type in `algorithm`, for lists"))
    jobs = sa.table("jobs", sa.column("id"), sa.column("algorithm"), sa.column("algorithm_type"))
    change = sa.update(jobs).where(jobs.c.id == sa.bindparam("of")).values(algorithm_type=sa.bindparam("tag"))
    connection, after = op.get_bind(), ""
    query = sa.select(jobs.c.id, jobs.c.algorithm).order_by(jobs.c.id).limit(ROWS)
    while rows := connection.execute(query.where(jobs.c.id > after)).all():
        connection.execute(change, [{"of": row.id, "tag": json.loads(row.algorithm)["type"]} for row in rows])
        after = rows[-1].id

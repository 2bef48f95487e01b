"""The second schema: columns and indexes for the filters of lists, and Gaussian accounting.

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

NEVER_OVER = (
    "(granted_mu2_pico IS NOT NULL AND charged_mu2_pico + reserved_mu2_pico <= granted_mu2_pico) OR "
    "(charged_nano + reserved_nano <= granted_nano AND "
    "(granted_mu2_pico IS NULL OR charged_delta_atto + reserved_delta_atto = 0))"
)
NEVER_OVER_DELTA = "granted_mu2_pico IS NOT NULL OR charged_delta_atto + reserved_delta_atto <= granted_delta_atto"
NOT_NEGATIVE_MU2 = (
    "(mu2_pico IS NULL AND granted_mu2_pico IS NULL AND reserved_mu2_pico IS NULL AND charged_mu2_pico IS NULL) OR "
    "(mu2_pico IS NOT NULL AND granted_mu2_pico IS NOT NULL AND reserved_mu2_pico IS NOT NULL AND "
    "charged_mu2_pico IS NOT NULL AND mu2_pico >= 0 AND reserved_mu2_pico >= 0 AND charged_mu2_pico >= 0)"
)


def upgrade() -> None:
    """Add columns and indexes."""
    _add_algorithm_type()
    if op.get_bind().dialect.name == "postgresql":  # SQLite has no comments
        op.execute("COMMENT ON COLUMN datasets.out_of_bounds IS 'count, clip or refuse'")
    at_count = "received reports at which distinct ones are counted next; null for the target"
    op.add_column("rounds", sa.Column("count_at", sa.BigInteger, comment=at_count))
    op.create_index("ix_jobs_of_tenant_by_state", "jobs", ["tenant_id", "state", "id"])
    op.create_index("ix_jobs_of_tenant_by_algorithm", "jobs", ["tenant_id", "algorithm_type", "id"])
    at_features = "names of the features that the job uses; null for all"
    op.add_column("jobs", sa.Column("features", sa.Text, comment=at_features))
    at_names = "names that an analyst gave to the clusters; null for none"
    op.add_column("results", sa.Column("cluster_names", sa.Text, comment=at_names))
    _add_gaussian_accounting()
    op.create_index("ix_ledger_entries_of_kind", "ledger_entries", ["dataset_id", "kind", "seq"])
    op.create_index("ix_audit_events_of_act", "audit_events", ["tenant_id", "act", "seq"])
    op.create_index("ix_audit_events_of_actor", "audit_events", ["tenant_id", "actor", "seq"])
    op.create_index("ix_audit_events_of_subject", "audit_events", ["tenant_id", "subject_id", "seq"])


def _add_gaussian_accounting() -> None:
    """Add mu^2 to the ledger, where it is null for all existing entries, and the new rule of the budget."""
    at_all = "additive or gaussian; the ledger decides"
    accounting = sa.Column("accounting", sa.String(8), nullable=False, server_default="additive", comment=at_all)
    op.add_column("datasets", accounting)
    at_attributes = "names, and vocabularies or bins, of the columns that describe clusters"
    op.add_column(
        "datasets", sa.Column("attributes", sa.Text, nullable=False, server_default="[]", comment=at_attributes)
    )
    left = "remaining mu^2; null if additive"
    op.add_column("ledger_reservations", sa.Column("mu2_pico", sa.BigInteger, comment=left))
    columns = [
        sa.Column("mu2_pico", sa.BigInteger, comment="amount of mu^2 in 1e-12; null if additive"),
        sa.Column("granted_mu2_pico", sa.BigInteger, comment="limit of mu^2 after this entry"),
        sa.Column("reserved_mu2_pico", sa.BigInteger, comment="mu^2 reserved after this entry"),
        sa.Column("charged_mu2_pico", sa.BigInteger, comment="mu^2 charged after this entry"),
    ]
    checks = {
        "never_over": NEVER_OVER,
        "never_over_delta": NEVER_OVER_DELTA,
        "not_negative_mu2": NOT_NEGATIVE_MU2,
    }
    with op.batch_alter_table("ledger_entries") as batch:
        for column in columns:
            batch.add_column(column)
        for name, rule in checks.items():
            full = op.f(f"ck_ledger_entries_{name}")
            if rule is not NOT_NEGATIVE_MU2:
                batch.drop_constraint(full, type_="check")
            batch.create_check_constraint(full, sa.text(rule))
    if op.get_bind().dialect.name == "postgresql":
        op.execute("COMMENT ON COLUMN ledger_entries.kind IS 'grant, reserve, charge, release or gaussian'")
        return
    for change in ("UPDATE", "DELETE"):  # SQLite has created a new table, without triggers
        op.execute(
            f"CREATE TRIGGER ledger_entries_reject_{change.lower()} BEFORE {change} ON ledger_entries "
            "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
        )


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

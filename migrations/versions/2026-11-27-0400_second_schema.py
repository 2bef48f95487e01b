"""The second schema: columns and indexes for the filters of lists, Gaussian accounting, and series.

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

ID = sa.String(40)

COMMENTS = {
    "datasets.out_of_bounds": "count, clip or refuse",
    "rounds.collection_id": "job, round or cycle, with one draw per device",
    "ledger_entries.reference": "grant, job, round, query or cycle that the entry is for",
    "ledger_entries.reservation": "job or cycle with the changed reservation",
    "ledger_reservations.job_id": "job or cycle with the reservation",
}

NEVER_OVER = (
    "(granted_shuffled_delta_atto = 0 AND granted_mu2_pico IS NOT NULL AND "
    "charged_mu2_pico + reserved_mu2_pico <= granted_mu2_pico) OR "
    "(charged_nano + reserved_nano <= granted_nano AND "
    "(granted_mu2_pico IS NULL OR charged_delta_atto + reserved_delta_atto = 0))"
)
NEVER_OVER_SHUFFLED = (
    "(charged_shuffled_nano <= granted_shuffled_nano AND charged_shuffled_delta_atto <= granted_shuffled_delta_atto "
    "AND (granted_shuffled_delta_atto = 0 OR granted_mu2_pico IS NULL)) OR "
    "(granted_shuffled_delta_atto > 0 AND granted_mu2_pico IS NOT NULL AND reserved_mu2_pico = 0 AND "
    "charged_mu2_pico <= granted_mu2_pico AND 2 * charged_shuffled_delta_atto <= granted_shuffled_delta_atto)"
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
        for column, comment in COMMENTS.items():
            op.execute(f"COMMENT ON COLUMN {column} IS '{comment}'")
        # PostgreSQL would try to compress each row. Ids are random, so no row becomes smaller by a quarter.
        op.execute("ALTER TABLE report_batches ALTER COLUMN packed SET STORAGE EXTERNAL")
    at_count = "received reports at which distinct ones are counted next; null for the target"
    op.add_column("rounds", sa.Column("count_at", sa.BigInteger, comment=at_count))
    op.create_index("ix_jobs_of_tenant_by_state", "jobs", ["tenant_id", "state", "id"])
    op.create_index("ix_jobs_of_tenant_by_algorithm", "jobs", ["tenant_id", "algorithm_type", "id"])
    at_features = "names of the features that the job uses; null for all"
    op.add_column("jobs", sa.Column("features", sa.Text, comment=at_features))
    at_names = "names that an analyst gave to the clusters; null for none"
    op.add_column("results", sa.Column("cluster_names", sa.Text, comment=at_names))
    at_completed = "time from which the records count; null for incomplete uploads, and before windows"
    op.add_column("record_segments", sa.Column("completed_at", sa.BigInteger, comment=at_completed))
    _add_gaussian_accounting()
    _add_series()
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
    of_release = "mu^2 of the release, in 1e-12; null if additive"
    op.add_column("rounds", sa.Column("shuffled_mu2_pico", sa.BigInteger, comment=of_release))
    columns = [
        sa.Column("mu2_pico", sa.BigInteger, comment="amount of mu^2 in 1e-12; null if additive"),
        sa.Column("granted_mu2_pico", sa.BigInteger, comment="limit of mu^2 after this entry"),
        sa.Column("reserved_mu2_pico", sa.BigInteger, comment="mu^2 reserved after this entry"),
        sa.Column("charged_mu2_pico", sa.BigInteger, comment="mu^2 charged after this entry"),
    ]
    checks = {
        "never_over": NEVER_OVER,
        "never_over_delta": NEVER_OVER_DELTA,
        "never_over_shuffled": NEVER_OVER_SHUFFLED,
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
        op.execute("COMMENT ON COLUMN ledger_entries.kind IS 'grant, reserve, charge, release, gaussian or expire'")
        return
    for change in ("UPDATE", "DELETE"):  # SQLite has created a new table, without triggers
        op.execute(
            f"CREATE TRIGGER ledger_entries_reject_{change.lower()} BEFORE {change} ON ledger_entries "
            "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
        )


def _terms() -> list[sa.Column[object]]:
    """Return the columns of the terms of windows: of a series and of its revisions."""
    return [
        sa.Column("algorithm", sa.Text, nullable=False, comment="type and parameters of all windows"),
        sa.Column("target_reports", sa.BigInteger, nullable=False, comment="devices expected to take part in a cycle"),
        sa.Column("min_reports", sa.BigInteger, nullable=False, comment="reports that a window needs"),
        sa.Column(
            "epsilon_nano", sa.BigInteger, nullable=False, comment="cost of a window and of a cycle, in nano-epsilon"
        ),
        sa.Column("season", sa.Integer, nullable=False, comment="windows of a season; 1 for none"),
        sa.Column("least_change", sa.Float, nullable=False, comment="least change of a share that raises an alarm"),
        sa.Column(
            "min_batch",
            sa.BigInteger,
            comment="minimum number of reports in the release of a window; shuffled only",
        ),
        sa.Column("honest_share_nano", sa.BigInteger, comment="share of honest reports, in units of 1e-9"),
        sa.Column("shuffled_nano", sa.BigInteger, comment="cost of a release, in nano-epsilon"),
        sa.Column("shuffled_delta_atto", sa.BigInteger, comment="cost of a release, in atto-delta"),
        sa.Column("shuffled_mu2_pico", sa.BigInteger, comment="mu^2 of a release, in 1e-12; null if additive"),
    ]


def _add_series() -> None:
    """Create the tables of series and windows, and the cycle of a job."""
    cycle = "cycle of the series that submitted the job, with the reservation; null for other jobs"
    op.add_column("jobs", sa.Column("collection_id", ID, comment=cycle))
    op.create_index("ix_rounds_of_collection", "rounds", ["collection_id", "id"])
    op.create_table(
        "series",
        sa.Column("id", ID, primary_key=True),
        sa.Column("tenant_id", ID, sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("dataset_id", ID, sa.ForeignKey("datasets.id"), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("every", sa.String(5), nullable=False, comment="day, week or month"),
        sa.Column("time_zone", sa.String(64), nullable=False, comment="IANA name; windows begin at midnight there"),
        sa.Column("first_day", sa.String(10), nullable=False, comment="day on which the first window begins, ISO 8601"),
        sa.Column("n_windows", sa.Integer, nullable=False, comment="number of windows"),
        sa.Column("cycle", sa.Integer, nullable=False, comment="windows of a cycle; a device answers in one of them"),
        sa.Column(
            "total_nano", sa.BigInteger, nullable=False, comment="most that all cycles may cost, in nano-epsilon"
        ),
        sa.Column("pending_nano", sa.BigInteger, nullable=False, comment="part of the total that is not granted yet"),
        *_terms(),
        sa.Column("state", sa.String(6), nullable=False, comment="active, paused or ended"),
        sa.Column("open_cycle", sa.Integer, comment="cycle with a grant that has not expired"),
        sa.Column("next_at", sa.BigInteger, comment="time of the next change; null after the last"),
        sa.Column(
            "revision", sa.Integer, nullable=False, comment="number of the revision with these terms; 0 at first"
        ),
        sa.Column("created_by", ID, nullable=False, comment="key that created the series; actor of its jobs"),
        sa.Column("created_at", sa.BigInteger, nullable=False, comment="microseconds since the epoch"),
        sa.Column("ended_at", sa.BigInteger, comment="time of the end"),
    )
    op.create_index("ix_series_of_tenant", "series", ["tenant_id", "id"])
    op.create_index("ix_series_of_dataset", "series", ["dataset_id", "id"])
    op.create_index("ix_series_by_time", "series", ["next_at"])
    op.create_table(
        "windows",
        sa.Column("series_id", ID, sa.ForeignKey("series.id"), primary_key=True, comment="series of the window"),
        sa.Column("index", sa.Integer, primary_key=True, comment="0, 1, ... within the series"),
        sa.Column("opens_at", sa.BigInteger, nullable=False, comment="microseconds since the epoch"),
        sa.Column("closes_at", sa.BigInteger, nullable=False, comment="start of the next window"),
        sa.Column("state", sa.String(7), nullable=False, comment="planned, opened or missed"),
        sa.Column(
            "revision", sa.Integer, nullable=False, comment="revision of the series with the terms of the window"
        ),
        sa.Column("job_id", ID, sa.ForeignKey("jobs.id"), comment="null unless opened", unique=True),
        sa.Column("reason", sa.String(500), comment="why it is missed, or has not opened yet"),
        sa.Column("shares", sa.Text, comment="clusters of a followed window with their shares; null before"),
        sa.Column(
            "packed",
            sa.LargeBinary,
            comment="pooled map and memory of a followed window, canonical JSON, deflated",
        ),
        sa.Column(
            "own_ids",
            sa.Text,
            comment="ids of the clusters of the result of the job; null before, and without a label map",
        ),
        sa.Column("counts", sa.LargeBinary, comment="released counts of the records of a window; null over reports"),
    )
    op.create_table(
        "series_revisions",
        sa.Column("series_id", ID, sa.ForeignKey("series.id"), primary_key=True, comment="series of the revision"),
        sa.Column("number", sa.Integer, primary_key=True, comment="0, 1, ... within the series"),
        sa.Column("first_window", sa.Integer, nullable=False, comment="first window with these terms"),
        *_terms(),
        sa.Column("created_by", ID, nullable=False, comment="key that revised the series"),
        sa.Column("created_at", sa.BigInteger, nullable=False, comment="microseconds since the epoch"),
    )
    _add_clusters_of_series()


def _add_clusters_of_series() -> None:
    """Create the tables of the clusters and events of series."""
    op.create_table(
        "series_clusters",
        sa.Column("id", ID, primary_key=True),
        sa.Column("series_id", ID, sa.ForeignKey("series.id"), nullable=False, comment="series of the cluster"),
        sa.Column("name", sa.String(64), nullable=False, comment="name that an analyst gave; empty for none"),
        sa.Column("born_in", sa.Integer, nullable=False, comment="first window of the cluster"),
        sa.Column("born_at", sa.BigInteger, nullable=False, comment="start of that window"),
        sa.Column("gone_in", sa.Integer, comment="first window without the cluster; null if it persists"),
        sa.Column("gone_at", sa.BigInteger, comment="start of that window, without the cluster"),
        sa.Column("parents", sa.Text, nullable=False, comment="ids of the clusters that it was a part of"),
    )
    op.create_index("ix_series_clusters_of_series", "series_clusters", ["series_id", "id"])
    op.create_table(
        "series_events",
        sa.Column("id", ID, primary_key=True),
        sa.Column("series_id", ID, sa.ForeignKey("series.id"), nullable=False, comment="series of the event"),
        sa.Column("window", sa.Integer, nullable=False, comment="window of the alarm"),
        sa.Column("change", sa.Integer, nullable=False, comment="most probable first window after the change"),
        sa.Column("change_first", sa.Integer, nullable=False, comment="start of the interval of the change"),
        sa.Column("change_last", sa.Integer, nullable=False, comment="end of the interval of the change"),
        sa.Column("evidence", sa.Float, nullable=False, comment="Bayes factor of the alarm"),
        sa.Column("kinds", sa.Text, comment="kinds of change with clusters and sizes; null until described"),
        sa.Column("described_in", sa.Integer, comment="window of the description"),
    )
    op.create_index("ix_series_events_of_series", "series_events", ["series_id", "id"])


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

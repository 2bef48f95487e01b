"""The first tables: tenants, datasets, ledger, rounds and reports, jobs and results.

Revision: 0001
Follows:
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "ledger_heads",
        sa.Column("dataset_id", sa.String(length=40), nullable=False, comment="whose ledger; outlives the dataset"),
        sa.Column("seq", sa.BigInteger(), nullable=False, comment="number of the last entry, 0 for none"),
        sa.Column("hash", sa.String(length=64), nullable=False, comment="hash of the last entry: shows a cut-off tail"),
        sa.PrimaryKeyConstraint("dataset_id", name=op.f("pk_ledger_heads")),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False, comment="microseconds since the epoch"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
        sa.UniqueConstraint("name", name=op.f("uq_tenants_name")),
    )
    op.create_table(
        "datasets",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("trust", sa.String(length=8), nullable=False, comment="local or central"),
        sa.Column("features", sa.Text(), nullable=False, comment="names and bounds"),
        sa.Column("min_reports", sa.Integer(), nullable=False, comment="no round is tallied with fewer"),
        sa.Column(
            "keep_reports", sa.Boolean(), nullable=False, comment="reports outlive their tally; by default they do not"
        ),
        sa.Column("created_at", sa.BigInteger(), nullable=False, comment="microseconds since the epoch"),
        sa.Column("deleted_at", sa.BigInteger(), nullable=True, comment="gone since then; the ledger stays"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_datasets_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_datasets")),
    )
    with op.batch_alter_table("datasets", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_datasets_tenant_id"), ["tenant_id"], unique=False)

    op.create_table(
        "idempotent_answers",
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False, comment="the client's Idempotency-Key"),
        sa.Column("fingerprint", sa.LargeBinary(length=32), nullable=False, comment="SHA-256 of method, path and body"),
        sa.Column(
            "status", sa.Integer(), nullable=False, comment="HTTP status, 0 while the first request is under way"
        ),
        sa.Column("location", sa.String(length=200), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=False, comment="the answer's JSON"),
        sa.Column("created_at", sa.BigInteger(), nullable=False, comment="forgotten a day later"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_idempotent_answers_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("tenant_id", "key", name=op.f("pk_idempotent_answers")),
    )
    with op.batch_alter_table("idempotent_answers", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_idempotent_answers_created_at"), ["created_at"], unique=False)

    op.create_table(
        "keys",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False, comment="for people"),
        sa.Column("secret_hash", sa.LargeBinary(length=32), nullable=False, comment="SHA-256 of the secret"),
        sa.Column("scopes", sa.Text(), nullable=False, comment="what it may do"),
        sa.Column("dataset_id", sa.String(length=40), nullable=True, comment="the only dataset it sees, where set"),
        sa.Column("created_at", sa.BigInteger(), nullable=False, comment="microseconds since the epoch"),
        sa.Column("expires_at", sa.BigInteger(), nullable=True, comment="no use from then on"),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True, comment="no use since then"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_keys_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_keys")),
        sa.UniqueConstraint("secret_hash", name=op.f("uq_keys_secret_hash")),
    )
    with op.batch_alter_table("keys", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_keys_tenant_id"), ["tenant_id"], unique=False)

    op.create_table(
        "ledger_entries",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("dataset_id", sa.String(length=40), nullable=False, comment="whose ledger"),
        sa.Column("seq", sa.BigInteger(), nullable=False, comment="1, 2, 3, ... without a gap"),
        sa.Column("kind", sa.String(length=8), nullable=False, comment="grant, reserve, post or release"),
        sa.Column("epsilon_nano", sa.BigInteger(), nullable=False, comment="the amount"),
        sa.Column("reference", sa.String(length=40), nullable=False, comment="what it is for: a grant, job or round"),
        sa.Column("reservation", sa.String(length=40), nullable=True, comment="the job whose reservation it touches"),
        sa.Column("actor", sa.String(length=40), nullable=False, comment="the key that asked for it"),
        sa.Column("at", sa.BigInteger(), nullable=False, comment="microseconds since the epoch"),
        sa.Column("granted_nano", sa.BigInteger(), nullable=False, comment="granted, after this entry"),
        sa.Column("reserved_nano", sa.BigInteger(), nullable=False, comment="reserved, after this entry"),
        sa.Column("posted_nano", sa.BigInteger(), nullable=False, comment="posted, after this entry"),
        sa.Column(
            "prev_hash", sa.String(length=64), nullable=False, comment="hash of the entry before, zeros for the first"
        ),
        sa.Column(
            "hash",
            sa.String(length=64),
            nullable=False,
            comment="SHA-256 of this entry's canonical JSON without itself",
        ),
        sa.CheckConstraint(
            "epsilon_nano >= 0 AND posted_nano >= 0 AND reserved_nano >= 0", name=op.f("ck_ledger_entries_not_negative")
        ),
        sa.CheckConstraint("posted_nano + reserved_nano <= granted_nano", name=op.f("ck_ledger_entries_never_over")),
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["ledger_heads.dataset_id"], name=op.f("fk_ledger_entries_dataset_id_ledger_heads")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger_entries")),
        sa.UniqueConstraint(
            "dataset_id", "kind", "reference", name=op.f("uq_ledger_entries_dataset_id_kind_reference")
        ),
        sa.UniqueConstraint("dataset_id", "seq", name=op.f("uq_ledger_entries_dataset_id_seq")),
    )
    with op.batch_alter_table("ledger_entries", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_ledger_entries_reservation"), ["reservation"], unique=False)

    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("dataset_id", sa.String(length=40), nullable=False),
        sa.Column("algorithm", sa.Text(), nullable=False, comment="type and parameters"),
        sa.Column(
            "round_ids",
            sa.Text(),
            nullable=False,
            comment="earlier collections it works on; may be none",
        ),
        sa.Column("epsilon_nano", sa.BigInteger(), nullable=False, comment="reserved at submission"),
        sa.Column("target_reports", sa.BigInteger(), nullable=False, comment="reports each round waits for"),
        sa.Column("min_reports", sa.BigInteger(), nullable=False, comment="reports each round needs"),
        sa.Column("collect_seconds", sa.BigInteger(), nullable=False, comment="how long each round stays open"),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False, comment="claims since it last got on"),
        sa.Column("fence", sa.BigInteger(), nullable=False, comment="raised by every claim"),
        sa.Column("lease_until", sa.BigInteger(), nullable=True, comment="the claim lapses then"),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False, comment="its worker is to let go"),
        sa.Column(
            "created_by", sa.String(length=40), nullable=False, comment="key that submitted it; the ledger's actor"
        ),
        sa.Column("created_at", sa.BigInteger(), nullable=False, comment="microseconds since the epoch"),
        sa.Column("started_at", sa.BigInteger(), nullable=True, comment="first claim"),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("error_code", sa.String(length=40), nullable=True),
        sa.Column("error_detail", sa.String(length=500), nullable=True, comment="for people; nothing private"),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name=op.f("fk_jobs_dataset_id_datasets")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_jobs_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_jobs_dataset_id"), ["dataset_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_jobs_state"), ["state"], unique=False)
        batch_op.create_index(batch_op.f("ix_jobs_tenant_id"), ["tenant_id"], unique=False)

    op.create_table(
        "rounds",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("dataset_id", sa.String(length=40), nullable=False),
        sa.Column(
            "job_id", sa.String(length=40), nullable=True, comment="whose plan asked; none for a collection of its own"
        ),
        sa.Column(
            "collection_id",
            sa.String(length=40),
            nullable=False,
            comment="job or round: a device keeps one draw for each",
        ),
        sa.Column("index", sa.Integer(), nullable=False, comment="0, 1, ... within the collection"),
        sa.Column("spec", sa.Text(), nullable=False, comment="as published, never changed"),
        sa.Column("epsilon_nano", sa.BigInteger(), nullable=False, comment="what an answer costs a device"),
        sa.Column("target_reports", sa.BigInteger(), nullable=False, comment="closes when so many were received"),
        sa.Column("min_reports", sa.BigInteger(), nullable=False, comment="no tally of fewer is used"),
        sa.Column("closes_at", sa.BigInteger(), nullable=False, comment="takes no report from then on"),
        sa.Column("state", sa.String(length=8), nullable=False, comment="open, closed or tallied"),
        sa.Column("n_received", sa.BigInteger(), nullable=False, comment="reports acknowledged, repeats included"),
        sa.Column("opened_at", sa.BigInteger(), nullable=False, comment="microseconds since the epoch"),
        sa.Column("closed_at", sa.BigInteger(), nullable=True),
        sa.Column("tallied_at", sa.BigInteger(), nullable=True),
        sa.Column("fold_lease_until", sa.BigInteger(), nullable=True, comment="a worker folds it until then"),
        sa.Column("n_reports", sa.BigInteger(), nullable=True, comment="distinct reports in the tally"),
        sa.Column("tally", sa.LargeBinary(), nullable=True, comment="the tally, packed"),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name=op.f("fk_rounds_dataset_id_datasets")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rounds")),
        sa.UniqueConstraint("job_id", "index", name=op.f("uq_rounds_job_id_index")),
    )
    with op.batch_alter_table("rounds", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_rounds_dataset_id"), ["dataset_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_rounds_state"), ["state"], unique=False)

    op.create_table(
        "report_batches",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
            comment="order of arrival",
        ),
        sa.Column("round_id", sa.String(length=40), nullable=False),
        sa.Column("n_reports", sa.Integer(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False, comment="n_reports records of equal width"),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_report_batches_round_id_rounds")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_report_batches")),
    )
    with op.batch_alter_table("report_batches", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_report_batches_round_id"), ["round_id"], unique=False)

    op.create_table(
        "results",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False, comment="microseconds since the epoch"),
        sa.Column("software_version", sa.String(length=40), nullable=False, comment="what computed it"),
        sa.Column("packed", sa.LargeBinary(), nullable=False, comment="the document, canonical JSON, deflated"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_results_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_results")),
    )
    _make_ledger_append_only()


def _make_ledger_append_only() -> None:
    """Entries can be neither changed nor removed through the service's own connection."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'the ledger is append-only'; END $$"
        )
        op.execute(
            "CREATE TRIGGER ledger_append_only BEFORE UPDATE OR DELETE ON ledger_entries "
            "FOR EACH ROW EXECUTE FUNCTION refuse_change()"
        )
        op.execute(
            "CREATE TRIGGER ledger_not_emptied BEFORE TRUNCATE ON ledger_entries "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
        return
    for change in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER ledger_append_only_{change.lower()} BEFORE {change} ON ledger_entries "
            "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
        )

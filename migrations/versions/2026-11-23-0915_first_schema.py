"""The first schema: all tables, and triggers that keep the ledger and the audit trail append-only.

Revision: 0001
Follows:
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ID = sa.String(40)
HASH = sa.String(64)
_UNFINISHED = sa.text("state IN ('collecting', 'queued', 'running')")


def upgrade() -> None:
    """Create all tables and triggers."""
    op.create_table(
        "ledger_heads",
        _required("dataset_id", ID, primary_key=True, comment="dataset; the ledger outlives it"),
        _required("seq", sa.BigInteger, comment="number of the last entry; 0 if none"),
        _required("hash", HASH, comment="hash of the last entry; detects a removed tail"),
    )
    op.create_table(
        "tenants",
        _required("id", ID, primary_key=True),
        _required("name", sa.String(100), unique=True),
        _required("created_at", sa.BigInteger, comment="microseconds since the epoch"),
    )
    op.create_table(
        "audit_heads",
        _required("tenant_id", ID, sa.ForeignKey("tenants.id"), primary_key=True),
        _required("seq", sa.BigInteger, comment="number of the last event; 0 if none"),
        _required("hash", HASH, comment="hash of the last event; detects a removed tail"),
    )
    op.create_table(
        "datasets",
        _required("id", ID, primary_key=True),
        _required("tenant_id", ID, sa.ForeignKey("tenants.id")),
        _required("name", sa.String(200)),
        _required("trust", sa.String(8), comment="local, shuffled or central"),
        _required("features", sa.Text, comment="names and bounds, or the dimensions and norm of an embedding"),
        _required("min_reports", sa.Integer, comment="minimum number of reports in a tally"),
        _required("keep_reports", sa.Boolean, comment="true keeps the reports of later rounds"),
        _required("created_at", sa.BigInteger, comment="microseconds since the epoch"),
        _optional("deleted_at", sa.BigInteger, comment="time of deletion; the ledger remains"),
        _optional(
            "user_feature",
            sa.String(64),
            comment="column of an upload with the user's id; null if each record is one user",
        ),
        _required("fold_user_case", sa.Boolean, comment="true ignores the case of user ids"),
        _required("max_records_per_user", sa.Integer, comment="records used per user; public"),
        _required("out_of_bounds", sa.String(8), comment="clip or refuse"),
        _optional(
            "source",
            sa.String(64),
            comment="label of the people in the data; the unlabelled datasets of a tenant share one source",
        ),
        _optional("shuffler", sa.Text, comment="name, url and Ed25519 public key of the shuffler; shuffled only"),
        sa.Index("ix_datasets_of_tenant", "tenant_id", "id"),
        sa.Index("ix_datasets_of_source", "tenant_id", "source"),
    )
    op.create_table(
        "idempotent_responses",
        _required("tenant_id", ID, sa.ForeignKey("tenants.id"), primary_key=True),
        _required("key", sa.String(255), primary_key=True, comment="the client's Idempotency-Key"),
        _required("fingerprint", sa.LargeBinary(32), comment="SHA-256 of method, path and body"),
        _required("status", sa.Integer, comment="HTTP status; 0 until the first request ends"),
        _optional("location", sa.String(200)),
        _required("body", sa.LargeBinary, comment="JSON body"),
        _required("created_at", sa.BigInteger, index=True, comment="microseconds; deleted a day later"),
    )
    op.create_table(
        "keys",
        _required("id", ID, primary_key=True),
        _required("tenant_id", ID, sa.ForeignKey("tenants.id"), index=True),
        _required("name", sa.String(100), comment="display name"),
        _required("secret_hash", sa.LargeBinary(32), unique=True, comment="SHA-256 of the secret"),
        _required("scopes", sa.Text, comment="scopes of the key"),
        _optional("dataset_id", ID, comment="only accessible dataset; null for all of the tenant"),
        _required("created_at", sa.BigInteger, comment="microseconds since the epoch"),
        _optional("expires_at", sa.BigInteger, comment="end of validity"),
        _optional("revoked_at", sa.BigInteger, comment="time of revocation"),
        _optional("replaces", ID, comment="key from which this key was rotated"),
        _optional("replaced_by", ID, comment="key to which this key was rotated"),
    )
    op.create_table(
        "ledger_entries",
        _required("id", ID, primary_key=True),
        _required("dataset_id", ID, sa.ForeignKey("ledger_heads.dataset_id"), comment="dataset of the ledger"),
        _required("seq", sa.BigInteger, comment="1, 2, 3, ... without a gap"),
        _required("kind", sa.String(8), comment="grant, reserve, charge or release"),
        _required("epsilon_nano", sa.BigInteger, comment="amount in nano-epsilon"),
        _required("reference", ID, comment="grant, job, round or query that the entry is for"),
        _optional("reservation", ID, comment="job with the reservation that the entry changes"),
        _required("actor", ID, comment="key of the caller, or operator"),
        _required("at", sa.BigInteger, comment="microseconds since the epoch"),
        _required("granted_nano", sa.BigInteger, comment="nano-epsilon granted after this entry"),
        _required("reserved_nano", sa.BigInteger, comment="nano-epsilon reserved after this entry"),
        _required("charged_nano", sa.BigInteger, comment="nano-epsilon charged after this entry"),
        _required("prev_hash", HASH, comment="hash of the previous entry; zeros for the first"),
        _required("hash", HASH, comment="SHA-256 of this entry's canonical JSON without this column"),
        _required("delta_atto", sa.BigInteger, comment="amount in atto-delta"),
        _required("granted_delta_atto", sa.BigInteger, comment="atto-delta granted after this entry"),
        _required("reserved_delta_atto", sa.BigInteger, comment="atto-delta reserved after this entry"),
        _required("charged_delta_atto", sa.BigInteger, comment="atto-delta charged after this entry"),
        _required("shuffled_nano", sa.BigInteger, comment="amount of the shuffled budget in nano-epsilon"),
        _required("shuffled_delta_atto", sa.BigInteger, comment="amount of the shuffled budget in atto-delta"),
        _required("granted_shuffled_nano", sa.BigInteger, comment="shuffled nano-epsilon granted after this"),
        _required("charged_shuffled_nano", sa.BigInteger, comment="shuffled nano-epsilon charged after this"),
        _required("granted_shuffled_delta_atto", sa.BigInteger, comment="shuffled delta granted after this"),
        _required("charged_shuffled_delta_atto", sa.BigInteger, comment="shuffled delta charged after this"),
        sa.CheckConstraint(
            "charged_shuffled_nano <= granted_shuffled_nano AND "
            "charged_shuffled_delta_atto <= granted_shuffled_delta_atto",
            name="never_over_shuffled",
        ),
        sa.CheckConstraint(
            "shuffled_nano >= 0 AND charged_shuffled_nano >= 0 AND "
            "shuffled_delta_atto >= 0 AND charged_shuffled_delta_atto >= 0",
            name="not_negative_shuffled",
        ),
        sa.CheckConstraint("charged_delta_atto + reserved_delta_atto <= granted_delta_atto", name="never_over_delta"),
        sa.CheckConstraint("charged_nano + reserved_nano <= granted_nano", name="never_over"),
        sa.CheckConstraint(
            "delta_atto >= 0 AND charged_delta_atto >= 0 AND reserved_delta_atto >= 0", name="not_negative_delta"
        ),
        sa.CheckConstraint("epsilon_nano >= 0 AND charged_nano >= 0 AND reserved_nano >= 0", name="not_negative"),
        sa.UniqueConstraint("dataset_id", "kind", "reference"),
        sa.UniqueConstraint("dataset_id", "seq"),
        sa.Index("ix_ledger_entries_of_reservation", "dataset_id", "reservation", "seq"),
    )
    op.create_table(
        "ledger_reservations",
        _required("dataset_id", ID, sa.ForeignKey("ledger_heads.dataset_id"), primary_key=True),
        _required("job_id", ID, primary_key=True, comment="job with the reservation"),
        _required("epsilon_nano", sa.BigInteger, comment="remaining nano-epsilon"),
        _required("delta_atto", sa.BigInteger, comment="remaining atto-delta"),
    )
    op.create_table(
        "tenant_quotas",
        _required("tenant_id", ID, sa.ForeignKey("tenants.id"), primary_key=True),
        _required("turn", sa.BigInteger, comment="number of the last claim over all tenants; 0 if none"),
        _optional("max_datasets", sa.Integer, comment="datasets; null for the setting"),
        _optional("max_active_jobs", sa.Integer, comment="unfinished jobs; null for the setting"),
        _optional("max_running_jobs", sa.Integer, comment="jobs with a worker; null for no limit"),
        _optional("max_open_rounds", sa.Integer, comment="open rounds per dataset; null for setting"),
        _optional("max_dataset_records", sa.Integer, comment="records per dataset; null for setting"),
        _optional("max_dataset_epsilon_nano", sa.BigInteger, comment="granted to a dataset; or null"),
        _optional("max_dataset_delta_atto", sa.BigInteger, comment="granted to a dataset; or null"),
        _optional("max_source_epsilon_nano", sa.BigInteger, comment="charged to a source; or null"),
        _optional("max_source_delta_atto", sa.BigInteger, comment="charged to a source; or null"),
    )
    op.create_table(
        "webhooks",
        _required("id", ID, primary_key=True),
        _required("tenant_id", ID, sa.ForeignKey("tenants.id"), index=True),
        _required("url", sa.String(2000), comment="address of the receiver, checked by the gateway"),
        _required("event_types", sa.Text, comment="events to deliver"),
        _optional("dataset_id", ID, comment="only dataset with deliveries; null for all"),
        _required("description", sa.String(200), comment="display text"),
        _required("enabled", sa.Boolean, comment="false stops deliveries"),
        _optional("disabled_reason", sa.String(200), comment="set if the service disabled it"),
        _optional("failing_since", sa.BigInteger, comment="first failure since the last success"),
        _required("created_at", sa.BigInteger, comment="microseconds since the epoch"),
    )
    op.create_table(
        "audit_events",
        _required("id", ID, primary_key=True),
        _required("tenant_id", ID, sa.ForeignKey("audit_heads.tenant_id")),
        _required("seq", sa.BigInteger, comment="1, 2, 3, ... within the tenant, without a gap"),
        _required("at", sa.BigInteger, comment="microseconds since the epoch; for uploads, start of the day"),
        _required("actor", ID, comment="key of the caller, or operator"),
        _required("act", ID, comment="kind of action, for example key.created"),
        _required("subject_id", ID, comment="object of the action"),
        _optional("dataset_id", ID, comment="dataset that contains the object, if any"),
        _optional("request_id", ID, comment="request id in the access log"),
        _required("details", sa.Text, comment="names of changed fields; no private values"),
        _required("prev_hash", HASH, comment="hash of the previous event; zeros for the first"),
        _required("hash", HASH, comment="SHA-256 of this event's canonical JSON without this column"),
        sa.UniqueConstraint("tenant_id", "seq"),
        sa.Index("ix_audit_events_dataset_id_seq", "dataset_id", "seq"),
    )
    op.create_table(
        "console_sessions",
        _required("token_hash", sa.LargeBinary(32), primary_key=True, comment="SHA-256 of the cookie's token"),
        _required("key_id", ID, sa.ForeignKey("keys.id"), index=True, comment="key that began the session"),
        _required("created_at", sa.BigInteger, comment="microseconds since the epoch"),
        _required("expires_at", sa.BigInteger, comment="end of validity"),
    )
    op.create_table(
        "jobs",
        _required("id", ID, primary_key=True),
        _required("tenant_id", ID, sa.ForeignKey("tenants.id")),
        _required("dataset_id", ID, sa.ForeignKey("datasets.id"), index=True),
        _required("algorithm", sa.Text, comment="type and parameters"),
        _required("round_ids", sa.Text, comment="earlier rounds to cluster; may be empty"),
        _required("epsilon_nano", sa.BigInteger, comment="nano-epsilon reserved at submission"),
        _required("target_reports", sa.BigInteger, comment="devices expected to take part; 0 over records"),
        _required("min_reports", sa.BigInteger, comment="devices needed"),
        _required("collect_seconds", sa.BigInteger, comment="seconds for which each round stays open"),
        _required("state", sa.String(10), index=True),
        _required("attempts", sa.Integer, comment="claims since the job last made progress"),
        _required("fence", sa.BigInteger, comment="number of claims; a claim with a lower fence is stale"),
        _optional("lease_until", sa.BigInteger, comment="end of the worker's lease"),
        _required("cancel_requested", sa.Boolean, comment="true if the worker must cancel the job"),
        _required("created_by", ID, comment="key that submitted the job; actor of its ledger entries"),
        _required("created_at", sa.BigInteger, comment="microseconds since the epoch"),
        _optional("started_at", sa.BigInteger, comment="time of the first claim"),
        _optional("finished_at", sa.BigInteger),
        _optional("error_code", ID),
        _optional("error_detail", sa.String(500), comment="message for people, without private values"),
        _required("delta_atto", sa.BigInteger, comment="atto-delta reserved at submission"),
        _optional("verdict", sa.String(10), comment="verdict of the result; null without a result"),
        _optional("min_batch", sa.BigInteger, comment="devices needed for releases; shuffled only"),
        _optional("honest_share_nano", sa.BigInteger, comment="share of honest reports, in units of 1e-9"),
        _optional("shuffled_delta_atto", sa.BigInteger, comment="delta of each release, in atto-delta"),
        sa.Index("ix_jobs_of_tenant", "tenant_id", "id"),
        sa.Index("ix_jobs_of_tenant_and_dataset", "tenant_id", "dataset_id", "id"),
        sa.Index("ix_jobs_unfinished", "tenant_id", "id", postgresql_where=_UNFINISHED, sqlite_where=_UNFINISHED),
    )
    op.create_table(
        "record_keys",
        _required("dataset_id", ID, sa.ForeignKey("datasets.id"), primary_key=True),
        _required("id", ID),
        _required("sealed_by", sa.String(16), index=True, comment="id of the master key"),
        _required("sealed", sa.LargeBinary, comment="nonce, ciphertext and tag of two secrets"),
    )
    op.create_table(
        "record_segments",
        _required("dataset_id", ID, sa.ForeignKey("datasets.id"), primary_key=True),
        _required("upload_id", ID, primary_key=True, comment="id of the upload; sorts by time"),
        _required("index", sa.Integer, primary_key=True, comment="0, 1, ... within the upload"),
        _required("n_records", sa.Integer, comment="number of records; private"),
        _required("n_clipped", sa.Integer, comment="records with a value moved to a bound; private"),
        _optional(
            "content",
            sa.LargeBinary(32),
            comment="keyed hash of the records of the upload or part; on its first segment",
        ),
        _optional("name_hash", sa.LargeBinary(32), comment="keyed hash of the client's name of an upload in parts"),
        _optional(
            "expires_at",
            sa.BigInteger,
            comment="microseconds since the epoch; null unless parts of the upload are missing",
        ),
        _required("sealed", sa.LargeBinary, comment="nonce, ciphertext and tag of the records"),
        sa.Index("ix_record_segments_of_content", "dataset_id", "content"),
    )
    op.create_table(
        "rounds",
        _required("id", ID, primary_key=True),
        _required("dataset_id", ID, sa.ForeignKey("datasets.id")),
        _optional("job_id", ID, comment="job that opened the round; null for a standalone round"),
        _required("collection_id", ID, comment="job or round; a device has one participation draw for it"),
        _required("index", sa.Integer, comment="0, 1, ... within the collection"),
        _required("spec", sa.Text, comment="published spec; never changed"),
        _required("epsilon_nano", sa.BigInteger, comment="cost of a report for a device, in nano-epsilon"),
        _required("target_reports", sa.BigInteger, comment="number of reports that closes the round"),
        _required("min_reports", sa.BigInteger, comment="minimum number of reports in the tally"),
        _required("keep_reports", sa.Boolean, comment="true keeps reports after the tally; never changed"),
        _required("closes_at", sa.BigInteger, comment="microseconds since the epoch; end of the round"),
        _required("state", sa.String(8), comment="open, closed, tallied or failed"),
        _required("n_received", sa.BigInteger, comment="acknowledged reports, including duplicates"),
        _required("opened_at", sa.BigInteger, comment="microseconds since the epoch"),
        _optional("closed_at", sa.BigInteger),
        _optional("tallied_at", sa.BigInteger),
        _optional("aggregation_lease_until", sa.BigInteger, comment="end of the worker's lease"),
        _required("aggregation_attempts", sa.Integer, comment="claims by workers to aggregate the round"),
        _optional("n_reports", sa.BigInteger, comment="distinct reports in the tally"),
        _optional("tally", sa.LargeBinary, comment="the tally, packed"),
        _optional("min_batch", sa.BigInteger, comment="minimum number of reports in a release; shuffled only"),
        _optional("honest_share_nano", sa.BigInteger, comment="share of honest reports, in units of 1e-9"),
        _optional("shuffled_nano", sa.BigInteger, comment="cost of the release, in nano-epsilon"),
        _optional("shuffled_delta_atto", sa.BigInteger, comment="cost of the release, in atto-delta"),
        _optional("hpke_public_key", sa.LargeBinary(32), comment="X25519 key that seals reports"),
        _optional("release_digest", sa.LargeBinary(32), comment="SHA-256 of the released batch"),
        sa.UniqueConstraint("job_id", "index"),
        sa.Index("ix_rounds_by_time", "state", "closes_at"),
        sa.Index("ix_rounds_of_dataset", "dataset_id", "id"),
        sa.Index("ix_rounds_of_dataset_by_state", "dataset_id", "state", "closes_at"),
        sa.Index("ix_rounds_of_job_by_state", "job_id", "state"),
    )
    op.create_table(
        "round_keys",
        _required("round_id", ID, sa.ForeignKey("rounds.id"), primary_key=True),
        _required("sealed_by", sa.String(16), index=True, comment="id of the master key"),
        _required("sealed", sa.LargeBinary, comment="nonce, ciphertext and tag of the HPKE private key"),
    )
    op.create_table(
        "webhook_deliveries",
        _required("id", ID, primary_key=True),
        _required("webhook_id", ID, sa.ForeignKey("webhooks.id", ondelete="CASCADE"), index=True),
        _optional("dataset_id", ID, index=True, comment="dataset of the event; null for a ping"),
        _required("event_type", ID, comment="event type"),
        _required("payload", sa.Text, comment="body, identical at every attempt"),
        _required("state", sa.String(10), comment="pending, delivered or failed"),
        _required("attempts", sa.Integer, comment="attempts since creation or requested redelivery"),
        _required("fence", sa.BigInteger, comment="number of claims; an outcome with a lower fence is stale"),
        _optional("next_attempt_at", sa.BigInteger, comment="time of the next attempt; null if final"),
        _optional("lease_until", sa.BigInteger, comment="end of the sender's lease"),
        _optional("last_status", sa.Integer, comment="HTTP status of the last response"),
        _optional("last_error", ID, comment="error code of the last attempt"),
        _required("created_at", sa.BigInteger, index=True, comment="public time of the event"),
        sa.Index("ix_webhook_deliveries_state_next_attempt_at", "state", "next_attempt_at"),
    )
    op.create_table(
        "webhook_secrets",
        _required("id", ID, primary_key=True),
        _required("webhook_id", ID, sa.ForeignKey("webhooks.id", ondelete="CASCADE"), index=True),
        _required("sealed_by", sa.String(16), index=True, comment="id of the master key"),
        _required("sealed", sa.LargeBinary, comment="nonce, ciphertext and tag of the secret"),
        _optional("expires_at", sa.BigInteger, comment="end of validity; null for the current secret"),
    )
    op.create_table(
        "query_answers",
        _required("job_id", ID, sa.ForeignKey("jobs.id"), primary_key=True),
        _required("index", sa.Integer, primary_key=True, comment="0, 1, ... within the job"),
        _required("description", ID, comment="name of the query in the odometer"),
        _required("n_values", sa.BigInteger, comment="number of values in the answer"),
        _required("digest", sa.String(32), comment="digest of the query's public arguments"),
        _required("epsilon_nano", sa.BigInteger, comment="nano-epsilon charged"),
        _required("charged_at", sa.BigInteger, comment="microseconds since the epoch"),
        _optional("packed", sa.LargeBinary, comment="noisy values; null until stored"),
        _required("delta_atto", sa.BigInteger, comment="atto-delta charged"),
    )
    op.create_table(
        "report_batches",
        _required(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            primary_key=True,
            autoincrement=True,
            comment="order of arrival",
        ),
        _required("round_id", ID, sa.ForeignKey("rounds.id"), index=True),
        _required("n_reports", sa.Integer),
        _required("packed", sa.LargeBinary, comment="n_reports packed reports of equal width"),
    )
    op.create_table(
        "results",
        _required("job_id", ID, sa.ForeignKey("jobs.id"), primary_key=True),
        _required("created_at", sa.BigInteger, comment="microseconds since the epoch"),
        _required("software_version", ID, comment="version that computed the result"),
        _required("packed", sa.LargeBinary, comment="canonical JSON document, deflated"),
    )
    _make_append_only("ledger_entries", "ledger")
    _make_append_only("audit_events", "audit trail")


def _required(name: str, kind: Any, *constraints: Any, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, *constraints, nullable=False, **options)


def _optional(name: str, kind: Any, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=True, **options)


def _make_append_only(table: str, name: str) -> None:
    """Create triggers that reject changes and deletions through the service's own connection."""
    message = f"the {name} is append-only"
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE FUNCTION reject_change_of_{table}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION '{message}'; END $$"
        )
        for change, scope in (("UPDATE OR DELETE", "ROW"), ("TRUNCATE", "STATEMENT")):
            op.execute(
                f"CREATE TRIGGER {table}_reject_{change.split()[0].lower()} BEFORE {change} ON {table} "
                f"FOR EACH {scope} EXECUTE FUNCTION reject_change_of_{table}()"
            )
        return
    for change in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {table}_reject_{change.lower()} BEFORE {change} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
        )

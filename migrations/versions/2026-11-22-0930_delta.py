"""Delta beside epsilon: of ledger entries and the balance after them, of jobs and answers.

Hashes of entries written before stay what they were: columns of delta that are all 0 are not hashed.

Revision: 0005
Follows: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

COLUMNS = [  # table, column, comment
    ("ledger_entries", "delta_atto", "the amount of delta"),
    ("ledger_entries", "granted_delta_atto", "of delta, after this entry"),
    ("ledger_entries", "reserved_delta_atto", "of delta, after this entry"),
    ("ledger_entries", "posted_delta_atto", "of delta, after this entry"),
    ("jobs", "delta_atto", "reserved at submission"),
    ("answers", "delta_atto", "posted for it"),
]
CHECKS = {
    "never_over_delta": "posted_delta_atto + reserved_delta_atto <= granted_delta_atto",
    "not_negative_delta": "delta_atto >= 0 AND posted_delta_atto >= 0 AND reserved_delta_atto >= 0",
}
# A process of before the migration, still running beside newer ones, writes no delta: the next entry of a dataset
# that was granted one would forget it, and what was spent of it. Grants never shrink, so such an entry is refused.
FORGETS = (
    "EXISTS (SELECT 1 FROM ledger_entries AS earlier WHERE earlier.dataset_id = NEW.dataset_id "
    "AND earlier.seq = NEW.seq - 1 AND earlier.granted_delta_atto > NEW.granted_delta_atto)"
)
REFUSAL = "the entry forgets the delta that was granted: update every process"


def upgrade() -> None:
    is_postgres = op.get_bind().dialect.name == "postgresql"
    last = [name for table, name, _ in COLUMNS if table == "ledger_entries"][-1]
    for table, name, comment in COLUMNS:
        column = sa.Column(name, sa.BigInteger(), server_default="0", nullable=False, comment=comment)
        if is_postgres or (table, name) != ("ledger_entries", last):
            op.add_column(table, column)
    if is_postgres:
        for check, condition in CHECKS.items():
            op.create_check_constraint(op.f(f"ck_ledger_entries_{check}"), "ledger_entries", condition)
        op.execute(
            "CREATE FUNCTION refuse_forgotten_delta() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN IF {FORGETS} THEN RAISE EXCEPTION '{REFUSAL}'; END IF; RETURN NEW; END $$"
        )
        op.execute(
            "CREATE TRIGGER ledger_keeps_delta BEFORE INSERT ON ledger_entries "
            "FOR EACH ROW EXECUTE FUNCTION refuse_forgotten_delta()"
        )
        return
    # SQLite takes a check with a new column alone; the table itself stays, and so do its triggers
    checks = " ".join(f"CONSTRAINT ck_ledger_entries_{check} CHECK ({text})" for check, text in CHECKS.items())
    op.execute(f"ALTER TABLE ledger_entries ADD COLUMN {last} BIGINT DEFAULT '0' NOT NULL {checks}")
    op.execute(
        "CREATE TRIGGER ledger_keeps_delta BEFORE INSERT ON ledger_entries "
        f"WHEN {FORGETS} BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END"
    )

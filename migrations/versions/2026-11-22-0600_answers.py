"""Answers of central jobs: what was asked, what it was charged, what was answered, until the job ends.

Revision: 0004
Follows: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "answers",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False, comment="0, 1, ... in the order they were asked"),
        sa.Column("what", sa.String(length=40), nullable=False, comment="what was asked, as the odometer names it"),
        sa.Column("n_values", sa.BigInteger(), nullable=False, comment="numbers in the answer"),
        sa.Column(
            "digest",
            sa.String(length=32),
            nullable=False,
            comment="of what was asked: cells, centres, radii; all public",
        ),
        sa.Column("epsilon_nano", sa.BigInteger(), nullable=False, comment="posted for it"),
        sa.Column("charged_at", sa.BigInteger(), nullable=False, comment="microseconds since the epoch"),
        sa.Column("packed", sa.LargeBinary(), nullable=True, comment="the noisy numbers; none: not drawn, or not kept"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_answers_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", "index", name=op.f("pk_answers")),
    )

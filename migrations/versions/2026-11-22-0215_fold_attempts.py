"""Folds of no job are counted, to give up a round that keeps killing workers; what a job's targets mean.

Revision: 0002
Follows: 0001
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

COMMENTS: list[tuple[str, str, sa.types.TypeEngine[Any], str, str]] = [  # table, column, type, before, since
    (
        "jobs",
        "target_reports",
        sa.BigInteger(),
        "reports each round waits for",
        "devices expected to take part in the collection",
    ),
    ("jobs", "min_reports", sa.BigInteger(), "reports each round needs", "devices the collection needs"),
    ("rounds", "state", sa.String(length=8), "open, closed or tallied", "open, closed, tallied or failed"),
]


def upgrade() -> None:
    op.add_column(
        "rounds",
        sa.Column(
            "fold_attempts",
            sa.Integer(),
            server_default="0",
            nullable=False,
            comment="claims by workers that fold what no job will",
        ),
    )
    if op.get_bind().dialect.name == "postgresql":  # SQLite keeps no comments
        for table, column, type_, before, since in COMMENTS:
            op.alter_column(
                table, column, existing_type=type_, existing_nullable=False, existing_comment=before, comment=since
            )

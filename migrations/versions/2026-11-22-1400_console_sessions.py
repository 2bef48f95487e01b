"""Sessions of the console: a browser that showed a key.

Revision: 0009
Follows: 0008
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "console_sessions",
        sa.Column("token_hash", sa.LargeBinary(length=32), nullable=False, comment="SHA-256 of the cookie's token"),
        sa.Column("key_id", sa.String(length=40), nullable=False, comment="the key it was begun with, and ends with"),
        sa.Column("created_at", sa.BigInteger(), nullable=False, comment="microseconds since the epoch"),
        sa.Column("expires_at", sa.BigInteger(), nullable=False, comment="no use from then on"),
        sa.ForeignKeyConstraint(["key_id"], ["keys.id"], name=op.f("fk_console_sessions_key_id_keys")),
        sa.PrimaryKeyConstraint("token_hash", name=op.f("pk_console_sessions")),
    )
    op.create_index(op.f("ix_console_sessions_key_id"), "console_sessions", ["key_id"], unique=False)

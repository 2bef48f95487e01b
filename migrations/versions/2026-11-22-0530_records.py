"""Records of the central model: what a dataset declares about them, their keys, their sealed segments.

Revision: 0003
Follows: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

DECLARED: list[sa.Column[object]] = [
    sa.Column(
        "user_feature",
        sa.String(length=64),
        nullable=True,
        comment="column of an upload that says whose record it is; none: each is a person of its own",
    ),
    sa.Column(
        "max_records_per_user",
        sa.Integer(),
        server_default="1",
        nullable=False,
        comment="public; so many records of a user are used at most",
    ),
    sa.Column(
        "out_of_bounds",
        sa.String(length=8),
        server_default="clip",
        nullable=False,
        comment="clip or refuse: of finite values outside of their bounds",
    ),
]


def upgrade() -> None:
    for column in DECLARED:
        op.add_column("datasets", column)
    op.create_table(
        "record_keys",
        sa.Column("dataset_id", sa.String(length=40), nullable=False),
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("sealed_by", sa.String(length=16), nullable=False, comment="the master key that opens it"),
        sa.Column("sealed", sa.LargeBinary(), nullable=False, comment="nonce, ciphertext and tag of two secrets"),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name=op.f("fk_record_keys_dataset_id_datasets")),
        sa.PrimaryKeyConstraint("dataset_id", name=op.f("pk_record_keys")),
    )
    with op.batch_alter_table("record_keys", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_record_keys_sealed_by"), ["sealed_by"], unique=False)

    op.create_table(
        "record_segments",
        sa.Column("dataset_id", sa.String(length=40), nullable=False),
        sa.Column("upload_id", sa.String(length=40), nullable=False, comment="sorts by time"),
        sa.Column("index", sa.Integer(), nullable=False, comment="0, 1, ... within the upload"),
        sa.Column("n_records", sa.Integer(), nullable=False, comment="private"),
        sa.Column("n_clipped", sa.Integer(), nullable=False, comment="records with a value moved to a bound; private"),
        sa.Column("sealed", sa.LargeBinary(), nullable=False, comment="nonce, ciphertext and tag of the records"),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name=op.f("fk_record_segments_dataset_id_datasets")),
        sa.PrimaryKeyConstraint("dataset_id", "upload_id", "index", name=op.f("pk_record_segments")),
    )

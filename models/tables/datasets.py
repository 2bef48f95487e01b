"""Datasets, and the encrypted records of central datasets.

A dataset has public features and bounds, a trust model, and a privacy budget in the ledger.

A record is stored as jobs use it: clipped to the bounds, scaled, and rounded to lattice cells of three bytes per
coordinate, and then the code of each attribute in three bytes. A vector of an embedding is scaled down to the largest
norm before. If the dataset has a user column, a keyed pseudonym of 16 bytes is stored, never the user's id. All records
have the same length, and segments are not compressed, so a segment's length reveals only the number of records.
A segment changes only when the records of one person are deleted from it. Records are ordered by the start of their
upload, then by their place in the upload.

The first upload creates the dataset's data key, encrypted by a master key. Deleting the records deletes the data key,
which makes copies of the segments unreadable too.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Boolean, ForeignKey, Index, Integer, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from models.database.types import Base, CanonicalJson, Id
from sfumato.errors import InvalidSpec
from sfumato.names import find_positions
from sfumato.records.mixed import count_categories
from sfumato.sizing.required_reports import planned_features
from sfumato.specs import Feature, bin_feature, features_from_wire
from sfumato.specs.attributes import (
    Attribute,
    Categorical,
    attributes_from_wire,
    clustering_attributes,
)


class Trust(StrEnum):
    """Trust model of a dataset."""

    LOCAL = "local"  # devices perturb their points; the service never sees raw values
    SHUFFLED = "shuffled"  # devices perturb and seal; a shuffler releases the reports of a round together
    CENTRAL = "central"  # the service stores records and answers queries as the curator


class OutOfBounds(StrEnum):
    """Treatment of a record with a finite value outside its feature's bounds."""

    COUNT = "count"  # reports: a perturbed symbol states `outside`, and results state the share outside
    CLIP = "clip"  # move the value to the nearest bound; uploads count such records
    REFUSE = "refuse"  # uploads: reject the whole upload


class JobColumns(NamedTuple):
    """The columns that a job uses."""

    names: list[str] | None  # in the order of the dataset; None for all
    positions: tuple[int, ...]  # those of the features
    attributes: tuple[Categorical, ...]  # attributes with categories that form clusters
    n_planned: int  # features by which the job is planned; see `planned_features`


class Dataset(Base):
    """A data set to cluster: its public description and its rules."""

    __tablename__ = "datasets"
    __table_args__ = (
        Index("ix_datasets_of_tenant", "tenant_id", "id"),  # serves pages
        Index("ix_datasets_of_source", "tenant_id", "source"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(200))
    trust: Mapped[str] = mapped_column(String(8), comment="local, shuffled or central")
    features_wire: Mapped[list[dict[str, Any]] | dict[str, Any]] = mapped_column(
        "features", CanonicalJson, comment="names and bounds, or the dimensions and norm of an embedding"
    )
    min_reports: Mapped[int] = mapped_column(Integer, comment="minimum number of reports in a tally")
    keep_reports: Mapped[bool] = mapped_column(Boolean, comment="true keeps the reports of later rounds")
    created_at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch")
    deleted_at: Mapped[int | None] = mapped_column(BigInteger, comment="time of deletion; the ledger remains")
    user_feature: Mapped[str | None] = mapped_column(
        String(64), comment="column of an upload with the user's id; null if each record is one user"
    )
    fold_user_case: Mapped[bool] = mapped_column(Boolean, comment="true ignores the case of user ids")
    max_records_per_user: Mapped[int] = mapped_column(Integer, comment="records used per user; public")
    out_of_bounds: Mapped[str] = mapped_column(String(8), comment="count, clip or refuse")
    source: Mapped[str | None] = mapped_column(
        String(64), comment="label of the people in the data; the unlabelled datasets of a tenant share one source"
    )
    shuffler: Mapped[dict[str, str] | None] = mapped_column(
        CanonicalJson, comment="name, url and Ed25519 public key of the shuffler; shuffled only"
    )

    accounting: Mapped[str] = mapped_column(
        String(8), server_default="additive", comment="additive or gaussian; the ledger decides"
    )

    attributes_wire: Mapped[list[dict[str, Any]]] = mapped_column(
        "attributes",
        CanonicalJson,
        server_default="[]",
        comment="names, and vocabularies or bins, of the columns that describe clusters",
    )

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        """Return the attributes in order. A stored record has their codes after its features."""
        return attributes_from_wire(self.attributes_wire)

    @property
    def n_columns(self) -> int:
        """Return the number of features and attributes."""
        return self.n_features + len(self.attributes_wire)

    @property
    def features(self) -> tuple[Feature, ...]:
        """Return the features in order."""
        return features_from_wire(self.features_wire)

    @property
    def n_features(self) -> int:
        """Return the number of features."""
        wire = self.features_wire
        return int(wire["dimensions"]) if isinstance(wire, dict) else len(wire)

    def select(self, names: list[str] | None) -> JobColumns:
        """Return the columns that a job uses; all features and clustering attributes if it names none.

        Raise InvalidSpec if a name is unknown or repeated, if no feature is named, or if the features are those of an
        embedding. Over reports, also if a feature is missing, because devices report all features.
        """
        by = clustering_attributes(self.attributes)
        if names is None:
            every = tuple(range(self.n_features))
            return JobColumns(None, every, by, self._planned(self.n_features, by))
        if self.trust != Trust.CENTRAL and not by:
            raise InvalidSpec("valid for a dataset with records only, because devices report all features; remove it")
        if self.norm is not None:
            raise InvalidSpec("an embedding has no columns to choose from: leave out features, so that all are used")
        known = [each.name for each in self.features] + [each.name for each in by]
        positions = find_positions(names, known, "feature")
        own = tuple(place for place in positions if place < self.n_features)
        if not own:
            raise InvalidSpec("a job needs at least one feature beside attributes: name one")
        if self.trust != Trust.CENTRAL and len(own) < self.n_features:
            missing = next(each.name for place, each in enumerate(self.features) if place not in own)
            raise InvalidSpec(
                f"devices report all features, and {missing} is missing: name all of them, and the attributes among "
                f"{', '.join(each.name for each in by)} by which the job clusters"
            )
        chosen = tuple(by[place - self.n_features] for place in positions if place >= self.n_features)
        ordered = None if len(positions) == len(known) else [known[place] for place in positions]
        return JobColumns(ordered, own, chosen, self._planned(len(own), chosen))

    def _planned(self, n_features: int, attributes: tuple[Categorical, ...]) -> int:
        """Return the number of features by which a job is planned. Over reports, categories are no features."""
        if self.trust != Trust.CENTRAL:
            return n_features
        return planned_features(n_features, count_categories(attributes))

    def describe(self, names: Sequence[str]) -> tuple[Attribute, ...]:
        """Return the attributes and features with these names, features in equal bins, in the order of the dataset.

        Raise InvalidSpec if a name is unknown or repeated.
        """
        own = () if self.norm is not None else self.features
        known = (*own, *self.attributes)
        if not known:
            raise InvalidSpec("this dataset has no attributes: a profile needs a dataset that declares some")
        chosen = [known[place] for place in find_positions(names, [each.name for each in known], "attribute")]
        return tuple(bin_feature(each) if isinstance(each, Feature) else each for each in chosen)

    @property
    def norm(self) -> float | None:
        """Return the largest norm of a record of an embedding; None if each feature has bounds."""
        return float(self.features_wire["norm"]) if isinstance(self.features_wire, dict) else None


class RecordSegment(Base):
    """A range of records of one upload, encrypted.

    An upload in parts counts when its last part is stored. Until then its segments have a time of expiry.
    """

    __tablename__ = "record_segments"
    __table_args__ = (Index("ix_record_segments_of_content", "dataset_id", "content"),)

    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), primary_key=True)
    upload_id: Mapped[str] = mapped_column(String(40), primary_key=True, comment="id of the upload; sorts by time")
    index: Mapped[int] = mapped_column(Integer, primary_key=True, comment="0, 1, ... within the upload")
    n_records: Mapped[int] = mapped_column(Integer, comment="number of records; private")
    n_clipped: Mapped[int] = mapped_column(Integer, comment="records with a value moved to a bound; private")
    content: Mapped[bytes | None] = mapped_column(
        LargeBinary(32), comment="keyed hash of the records of the upload or part; on its first segment"
    )
    name_hash: Mapped[bytes | None] = mapped_column(
        LargeBinary(32), comment="keyed hash of the client's name of an upload in parts"
    )
    expires_at: Mapped[int | None] = mapped_column(
        BigInteger, comment="microseconds since the epoch; null unless parts of the upload are missing"
    )
    sealed: Mapped[bytes] = mapped_column(LargeBinary, comment="nonce, ciphertext and tag of the records")
    completed_at: Mapped[int | None] = mapped_column(
        BigInteger, comment="time from which the records count; null for incomplete uploads, and before windows"
    )


class RecordKey(Base):
    """The data key of a dataset, encrypted by a master key."""

    __tablename__ = "record_keys"

    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), primary_key=True)
    id: Mapped[str] = mapped_column(Id)
    sealed_by: Mapped[str] = mapped_column(String(16), index=True, comment="id of the master key")
    sealed: Mapped[bytes] = mapped_column(LargeBinary, comment="nonce, ciphertext and tag of two secrets")

    @property
    def belongs_to(self) -> bytes:
        """Return the associated data of the ciphertext."""
        return f"sfumato data key|{self.dataset_id}|{self.id}|".encode()

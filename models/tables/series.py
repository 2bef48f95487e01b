"""Series, which measure a dataset again and again, and their windows.

A series begins one job in each window. Several windows in a row form a cycle, for which a device has one participation
draw: it answers in one secret window, so that a cycle costs the epsilon of one window.

    series:  active ◄──► paused      active | paused ──(ended, or after the last window)──► ended
    window:  planned ──(at its start, or late)──► opened        planned ──(more than half has passed)──► missed

A series over records has one cycle. A window has the records that were uploaded in it, and its job begins after it. So
windows have disjoint records, and all of them together cost the epsilon of one window.

Only the next window is stored ahead. A change of the rules of a time zone therefore moves later windows alone.

After its round a window is *followed*: the pooled map, the clusters and the events up to it are stored with it, or in
the same transaction. Windows are followed in order, and each once.
"""

import json
import zlib
from datetime import date
from enum import StrEnum
from typing import Any, Literal

from sqlalchemy import BigInteger, Float, ForeignKey, Index, Integer, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from models.database.types import Base, CanonicalJson, Id
from models.tables.rounds import ReleaseTerms
from sfumato.privacy.accountant import Cost
from sfumato.privacy.accounting import DRAW_SPAN
from sfumato.specs import CENTRAL_ALGORITHMS, Participation

Every = Literal["day", "week", "month"]

FALSE_ALARMS = 0.05  # bound on the probability of a false event in 52 windows without a change


class SeriesState(StrEnum):
    """State of a series."""

    ACTIVE = "active"  # its windows open
    PAUSED = "paused"  # its windows are missed
    ENDED = "ended"  # no window opens any more


class WindowState(StrEnum):
    """Stored state of a window. What follows from its job is not stored."""

    PLANNED = "planned"
    OPENED = "opened"  # its job was submitted
    MISSED = "missed"  # nothing was opened, and nothing charged


class Terms:
    """Terms of windows: they change with a revision. Columns of a series and of its revisions."""

    algorithm: Mapped[dict[str, Any]] = mapped_column(CanonicalJson, comment="type and parameters of all windows")
    target_reports: Mapped[int] = mapped_column(BigInteger, comment="devices expected to take part in a cycle")
    min_reports: Mapped[int] = mapped_column(BigInteger, comment="reports that a window needs")
    epsilon_nano: Mapped[int] = mapped_column(BigInteger, comment="cost of a window and of a cycle, in nano-epsilon")
    season: Mapped[int] = mapped_column(Integer, comment="windows of a season; 1 for none")
    least_change: Mapped[float] = mapped_column(Float, comment="least change of a share that raises an alarm")
    min_batch: Mapped[int | None] = mapped_column(
        BigInteger, comment="minimum number of reports in the release of a window; shuffled only"
    )
    honest_share_nano: Mapped[int | None] = mapped_column(
        BigInteger, comment="share of honest reports, in units of 1e-9"
    )
    shuffled_nano: Mapped[int | None] = mapped_column(BigInteger, comment="cost of a release, in nano-epsilon")
    shuffled_delta_atto: Mapped[int | None] = mapped_column(BigInteger, comment="cost of a release, in atto-delta")
    shuffled_mu2_pico: Mapped[int | None] = mapped_column(
        BigInteger, comment="mu^2 of a release, in 1e-12; null if additive"
    )

    @property
    def has_records(self) -> bool:
        """Return whether windows have the records that were uploaded in them. Otherwise devices report in them."""
        return self.algorithm["type"] in CENTRAL_ALGORITHMS

    @property
    def release(self) -> ReleaseTerms | None:
        """Return the terms of the release of each window; None if devices send their reports to the service."""
        if self.min_batch is None:
            return None
        return ReleaseTerms(self.min_batch, self.honest_share_nano or 0, self.shuffled_delta_atto or 0)

    @property
    def release_cost(self) -> Cost:
        """Return what the release of a window, and so of a cycle, costs one person; 0 if there is none."""
        return Cost(self.shuffled_nano or 0, self.shuffled_delta_atto or 0, self.shuffled_mu2_pico or 0)


class Series(Terms, Base):
    """A plan of windows in a time zone, the terms of its next window, and what the windows may cost."""

    __tablename__ = "series"
    __table_args__ = (
        Index("ix_series_of_tenant", "tenant_id", "id"),
        Index("ix_series_of_dataset", "dataset_id", "id"),
        Index("ix_series_by_time", "next_at"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"))
    name: Mapped[str] = mapped_column(String(200))
    every: Mapped[Every] = mapped_column(String(5), comment="day, week or month")
    time_zone: Mapped[str] = mapped_column(String(64), comment="IANA name; windows begin at midnight there")
    first_day: Mapped[str] = mapped_column(String(10), comment="day on which the first window begins, ISO 8601")
    n_windows: Mapped[int] = mapped_column(Integer, comment="number of windows")
    cycle: Mapped[int] = mapped_column(Integer, comment="windows of a cycle; a device answers in one of them")
    total_nano: Mapped[int] = mapped_column(BigInteger, comment="most that all cycles may cost, in nano-epsilon")
    pending_nano: Mapped[int] = mapped_column(BigInteger, comment="part of the total that is not granted yet")
    state: Mapped[str] = mapped_column(String(6), comment="active, paused or ended")
    open_cycle: Mapped[int | None] = mapped_column(Integer, comment="cycle with a grant that has not expired")
    next_at: Mapped[int | None] = mapped_column(BigInteger, comment="time of the next change; null after the last")
    revision: Mapped[int] = mapped_column(Integer, comment="number of the revision with these terms; 0 at first")
    created_by: Mapped[str] = mapped_column(Id, comment="key that created the series; actor of its jobs")
    created_at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch")
    ended_at: Mapped[int | None] = mapped_column(BigInteger, comment="time of the end")

    @property
    def first(self) -> date:
        """Return the day on which the first window begins."""
        return date.fromisoformat(self.first_day)

    @property
    def n_cycles(self) -> int:
        """Return the number of cycles; the last one may have fewer windows."""
        return -(-self.n_windows // self.cycle)

    def cycle_id(self, number: int) -> str:
        """Return the id of a cycle: the collection of its rounds, and its grant and reservation in the ledger."""
        return f"{self.id}-{number}"

    def participation(self, index: int) -> Participation:
        """Return the participation draws that answer a window: one of `cycle` equal parts, disjoint in a cycle."""
        place = index % self.cycle
        return Participation(place * DRAW_SPAN // self.cycle, (place + 1) * DRAW_SPAN // self.cycle)


class SeriesRevision(Terms, Base):
    """The terms of a series from a window on. Number 0 has those of the creation. A later one begins with a cycle."""

    __tablename__ = "series_revisions"

    series_id: Mapped[str] = mapped_column(ForeignKey("series.id"), primary_key=True, comment="series of the revision")
    number: Mapped[int] = mapped_column(Integer, primary_key=True, comment="0, 1, ... within the series")
    first_window: Mapped[int] = mapped_column(Integer, comment="first window with these terms")
    created_by: Mapped[str] = mapped_column(Id, comment="key that revised the series")
    created_at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch")


TERMS = tuple(name for name in Terms.__annotations__)  # columns that a revision changes


class Window(Base):
    """One window of a series. Its number is unique, so it opens once."""

    __tablename__ = "windows"

    series_id: Mapped[str] = mapped_column(ForeignKey("series.id"), primary_key=True, comment="series of the window")
    index: Mapped[int] = mapped_column(Integer, primary_key=True, comment="0, 1, ... within the series")
    opens_at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch")
    closes_at: Mapped[int] = mapped_column(BigInteger, comment="start of the next window")
    state: Mapped[str] = mapped_column(String(7), comment="planned, opened or missed")
    revision: Mapped[int] = mapped_column(Integer, comment="revision of the series with the terms of the window")
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"), unique=True, comment="null unless opened")
    reason: Mapped[str | None] = mapped_column(String(500), comment="why it is missed, or has not opened yet")
    shares: Mapped[list[dict[str, Any]] | None] = mapped_column(
        CanonicalJson, comment="clusters of a followed window with their shares; null before"
    )
    packed: Mapped[bytes | None] = mapped_column(
        LargeBinary, deferred=True, comment="pooled map and memory of a followed window, canonical JSON, deflated"
    )
    own_ids: Mapped[list[str | None] | None] = mapped_column(
        CanonicalJson, comment="ids of the clusters of the result of the job; null before, and without a label map"
    )
    counts: Mapped[bytes | None] = mapped_column(
        LargeBinary, deferred=True, comment="released counts of the records of a window; null over reports"
    )

    @property
    def following(self) -> dict[str, Any] | None:
        """Return what was stored when the window was followed, as plain JSON values; None before."""
        return None if self.packed is None else json.loads(zlib.decompress(self.packed))

    @property
    def last_start(self) -> int:
        """Return the latest time at which the window may open: half of it remains."""
        return self.opens_at + (self.closes_at - self.opens_at) // 2


class SeriesCluster(Base):
    """A cluster of a series. Its id persists over windows; only its name changes, and its end is noted once."""

    __tablename__ = "series_clusters"
    __table_args__ = (Index("ix_series_clusters_of_series", "series_id", "id"),)

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    series_id: Mapped[str] = mapped_column(ForeignKey("series.id"), comment="series of the cluster")
    name: Mapped[str] = mapped_column(String(64), comment="name that an analyst gave; empty for none")
    born_in: Mapped[int] = mapped_column(Integer, comment="first window of the cluster")
    born_at: Mapped[int] = mapped_column(BigInteger, comment="start of that window")
    gone_in: Mapped[int | None] = mapped_column(
        Integer, comment="first window without the cluster; null if it persists"
    )
    gone_at: Mapped[int | None] = mapped_column(BigInteger, comment="start of that window, without the cluster")
    parents: Mapped[list[str]] = mapped_column(CanonicalJson, comment="ids of the clusters that it was a part of")


class SeriesEvent(Base):
    """A change of a series that raised an alarm. It is described later, once."""

    __tablename__ = "series_events"
    __table_args__ = (Index("ix_series_events_of_series", "series_id", "id"),)

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    series_id: Mapped[str] = mapped_column(ForeignKey("series.id"), comment="series of the event")
    window: Mapped[int] = mapped_column(Integer, comment="window of the alarm")
    change: Mapped[int] = mapped_column(Integer, comment="most probable first window after the change")
    change_first: Mapped[int] = mapped_column(Integer, comment="start of the interval of the change")
    change_last: Mapped[int] = mapped_column(Integer, comment="end of the interval of the change")
    evidence: Mapped[float] = mapped_column(Float, comment="Bayes factor of the alarm")
    kinds: Mapped[list[dict[str, Any]] | None] = mapped_column(
        CanonicalJson, comment="kinds of change with clusters and sizes; null until described"
    )
    described_in: Mapped[int | None] = mapped_column(Integer, comment="window of the description")

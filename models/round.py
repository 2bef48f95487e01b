"""Rounds: one spec put to the devices, open until full, past its time, or closed by hand.

    open ──(full | past closes_at | by hand | job over)──► closed ──(fold)──► tallied
                                                             │                  ▲
                                  (every fold's worker died) └──► failed ──(a job's fold)

Opening charges first: the round's cost is posted in the transaction that publishes it.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from math import isqrt
from typing import Any, cast

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    UniqueConstraint,
    bindparam,
    func,
    select,
    update,
)
from sqlalchemy.orm import Mapped, Session, deferred, mapped_column, undefer

from models import audit, ledger, report
from models import dataset as datasets
from models import delivery as deliveries
from models.audit import Act
from models.dataset import Dataset
from models.db import Base, CanonicalJson, Id, new_id
from models.errors import Conflict, LimitExceeded, NotFound, RoundClosed
from models.report import Octets
from models.tenant import Caller
from models.webhook import EventType
from sfumato import mechanisms
from sfumato.accounting import DRAW_SPAN, cost
from sfumato.specs import Draw, RoundSpec, round_spec_from_wire, to_wire

SHORTFALL = 3  # standard deviations by which fewer devices than expected may fall to a round's draws


class RoundState(StrEnum):
    """Where a round stands."""

    OPEN = "open"  # takes reports
    CLOSED = "closed"  # takes none; the fold is due
    TALLIED = "tallied"  # the tally is stored, reports scrubbed by the retention rule
    FAILED = "failed"  # every fold of it was lost; its reports are kept, and a job that names it folds it once more


class Round(Base):
    """One spec, its charge, and what came of it."""

    __tablename__ = "rounds"
    __table_args__ = (
        UniqueConstraint("job_id", "index"),
        # Without statistics SQLite takes the index that has most of a query's columns: each question has one.
        Index("ix_rounds_of_dataset", "dataset_id", "id"),
        Index("ix_rounds_of_dataset_by_state", "dataset_id", "state", "closes_at"),
        Index("ix_rounds_of_job_by_state", "job_id", "state"),
        Index("ix_rounds_by_time", "state", "closes_at"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"))
    job_id: Mapped[str | None] = mapped_column(Id, comment="whose plan asked; none for a collection of its own")
    collection_id: Mapped[str] = mapped_column(Id, comment="job or round: a device keeps one draw for each")
    index: Mapped[int] = mapped_column(Integer, comment="0, 1, ... within the collection")
    spec_wire: Mapped[dict[str, Any]] = mapped_column("spec", CanonicalJson, comment="as published, never changed")
    epsilon_nano: Mapped[int] = mapped_column(BigInteger, comment="what an answer costs a device")
    target_reports: Mapped[int] = mapped_column(BigInteger, comment="closes when so many were received")
    min_reports: Mapped[int] = mapped_column(BigInteger, comment="no tally of fewer is used")
    closes_at: Mapped[int] = mapped_column(BigInteger, comment="takes no report from then on")
    state: Mapped[str] = mapped_column(String(8), comment="open, closed, tallied or failed")
    n_received: Mapped[int] = mapped_column(BigInteger, comment="reports acknowledged, repeats included")
    opened_at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch")
    closed_at: Mapped[int | None] = mapped_column(BigInteger)
    tallied_at: Mapped[int | None] = mapped_column(BigInteger)
    fold_lease_until: Mapped[int | None] = mapped_column(BigInteger, comment="a worker folds it until then")
    fold_attempts: Mapped[int] = mapped_column(
        Integer, server_default="0", comment="claims by workers that fold what no job will"
    )
    n_reports: Mapped[int | None] = mapped_column(BigInteger, comment="distinct reports in the tally")
    tally: Mapped[bytes | None] = deferred(mapped_column(LargeBinary, comment="the tally, packed"))

    @property
    def spec(self) -> RoundSpec:
        """The spec as published."""
        return round_spec_from_wire(self.spec_wire)


_WITH_TALLY = undefer(Round.tally)


@dataclass(frozen=True, slots=True)
class Collect:
    """For how many reports a collection waits, and how long each of its rounds does.

    Attributes
    ----------
    target_reports : int
        Devices expected to take part, each in the rounds that its draw falls to.
    min_reports : int
        Devices it needs.
    seconds : int
        How long each round stays open.
    """

    target_reports: int
    min_reports: int
    seconds: int

    def share(self, draw: Draw) -> "Collect":
        """What a round for these draws waits for and needs: its share of both; see `answering`."""
        return Collect(answering(self.target_reports, draw), answering(self.min_reports, draw), self.seconds)


def answering(n_devices: int, draw: Draw) -> int:
    """How many of so many devices answer a round for these draws, on all but unlucky days.

    Which devices it falls to is chance: their number is binomial, with p = (hi - lo) / 2**64.
    A round that waited for n p of n devices would wait in vain every other time, so this is
    floor(n p - 3 sqrt(n p (1 - p))): where n devices take part, fewer than that answer one
    round in 250 at most (in 700, for p up to one half). It is n for the whole draw, and at
    least 1 where n is, however few that leaves to come.
    """
    width = draw.hi - draw.lo
    spread = isqrt(SHORTFALL**2 * n_devices * width * (DRAW_SPAN - width))  # 2**64 times the standard deviations
    return max((n_devices * width - spread) // DRAW_SPAN, min(n_devices, 1))


def open_standalone(
    session: Session,
    caller: Caller,
    dataset: Dataset,
    spec: RoundSpec,
    collect: Collect,
    *,
    max_open_rounds: int,
    now: int,
) -> Round:
    """Open a collection of one round, for later jobs; posts its cost first.

    Raises BudgetExhausted, and then no device was asked anything; LimitExceeded; NotFound
    where the dataset was deleted meanwhile.
    """
    datasets.lock_live(session, dataset.id)
    n_open = session.scalar(select(func.count()).where(Round.dataset_id == dataset.id, Round.state == RoundState.OPEN))
    if n_open is not None and n_open >= max_open_rounds:
        raise LimitExceeded(
            f"a dataset of this tenant may ask {max_open_rounds} rounds at once (max_open_rounds): close one, "
            "or ask the operator for more"
        )
    round_id = new_id("rnd")
    epsilon_nano = mechanisms.epsilon_nano(spec.mechanism)
    ledger.post(session, dataset.id, epsilon_nano, reference=round_id, reservation=None, actor=caller.key_id, now=now)
    opened = _add(session, dataset, spec, collect, round_id=round_id, job_id=None, index=0, now=now)
    audit.record(session, caller, Act.ROUND_CREATED, round_id, dataset_id=dataset.id, now=now)
    return opened


def open_for_job(
    session: Session, dataset: Dataset, spec: RoundSpec, collect: Collect, *, job_id: str, actor: str, now: int
) -> Round:
    """Open a plan's next round; posts the increase of the collection's cost out of the job's reservation.

    `collect` is the whole collection's; the round waits for its share of it. The caller holds
    the job's row (`job.held_job`), which keeps it from being cancelled meanwhile. Raises
    BudgetExhausted where the plan asks for more than the job declared.
    """
    earlier = of_job(session, job_id)
    before = [((r.spec.draw.lo, r.spec.draw.hi), r.epsilon_nano) for r in earlier]
    this = ((spec.draw.lo, spec.draw.hi), mechanisms.epsilon_nano(spec.mechanism))
    increase = cost([*before, this]) - cost(before)
    round_id = new_id("rnd")
    ledger.post(session, dataset.id, increase, reference=round_id, reservation=job_id, actor=actor, now=now)
    share = collect.share(spec.draw)
    return _add(session, dataset, spec, share, round_id=round_id, job_id=job_id, index=len(earlier), now=now)


def _add(
    session: Session,
    dataset: Dataset,
    spec: RoundSpec,
    collect: Collect,
    *,
    round_id: str,
    job_id: str | None,
    index: int,
    now: int,
) -> Round:
    min_reports = max(collect.min_reports, dataset.min_reports)
    opened = Round(
        id=round_id,
        dataset_id=dataset.id,
        job_id=job_id,
        collection_id=job_id or round_id,
        index=index,
        spec_wire=to_wire(spec),
        epsilon_nano=mechanisms.epsilon_nano(spec.mechanism),
        target_reports=max(collect.target_reports, min_reports),  # never full before it can be used
        min_reports=min_reports,
        closes_at=now + collect.seconds * 1_000_000,
        state=RoundState.OPEN.value,
        n_received=0,
        opened_at=now,
        closed_at=None,
        tallied_at=None,
        fold_lease_until=None,
        fold_attempts=0,
        n_reports=None,
        tally=None,
    )
    session.add(opened)
    session.flush()
    _announce(session, [opened], EventType.ROUND_OPENED, now)
    return opened


def get(session: Session, caller: Caller, round_id: str) -> Round:
    """A round of a live dataset the caller may see; raises NotFound for every other."""
    row = session.execute(
        select(Round, Dataset).join(Dataset, Dataset.id == Round.dataset_id).where(Round.id == round_id)
    ).first()
    if row is None:
        raise NotFound("round")
    found, dataset = row
    if dataset.tenant_id != caller.tenant_id or not caller.sees(dataset.id) or dataset.deleted_at is not None:
        raise NotFound("round")
    result: Round = found
    return result


def of_job(session: Session, job_id: str, *, tallies: bool = False) -> list[Round]:
    """A job's own rounds, in order; `tallies` reads what was counted of them as well."""
    query = select(Round).where(Round.job_id == job_id).order_by(Round.index)
    return list(session.scalars(query.options(_WITH_TALLY) if tallies else query))


def is_any_open(session: Session, job_id: str) -> bool:
    """Whether a job still waits for devices."""
    query = select(Round.id).where(Round.job_id == job_id, Round.state == RoundState.OPEN)
    return session.scalars(query.limit(1)).first() is not None


def of_jobs(session: Session, job_ids: Sequence[str]) -> dict[str, list[Round]]:
    """The own rounds of several jobs, each job's in order."""
    found: dict[str, list[Round]] = {job_id: [] for job_id in job_ids}
    for each in session.scalars(select(Round).where(Round.job_id.in_(job_ids)).order_by(Round.index)):
        found[each.job_id or ""].append(each)
    return found


def page(session: Session, dataset_id: str, *, after: str, limit: int) -> list[Round]:
    """A dataset's rounds, oldest first, from after an id."""
    query = select(Round).where(Round.dataset_id == dataset_id, Round.id > after)
    return list(session.scalars(query.order_by(Round.id).limit(limit)))


def by_ids(session: Session, dataset_id: str, round_ids: Sequence[str], *, tallies: bool = False) -> list[Round]:
    """Rounds of one dataset, in the order asked and as they are now; raises NotFound.

    `tallies` reads what was counted of them as well.
    """
    query = select(Round).where(Round.id.in_(round_ids)).execution_options(populate_existing=True)
    found = {r.id: r for r in session.scalars(query.options(_WITH_TALLY) if tallies else query)}
    if any(round_id not in found or found[round_id].dataset_id != dataset_id for round_id in round_ids):
        raise NotFound("round")
    return [found[round_id] for round_id in round_ids]


def open_rounds(session: Session, dataset_id: str, *, now: int) -> list[Round]:
    """What a device may answer now, oldest first."""
    query = select(Round).where(Round.dataset_id == dataset_id, Round.state == RoundState.OPEN, Round.closes_at > now)
    return list(session.scalars(query.order_by(Round.id)))


@dataclass(frozen=True, slots=True)
class Received:
    """What a group commit did to a round."""

    is_full: bool
    job_id: str | None
    dataset_id: str


_rounds = cast(Table, Round.__table__)  # statements on the table itself: every group commit runs this one
_RECEIVE = (
    update(_rounds)
    .where(
        _rounds.c.id == bindparam("only"),
        _rounds.c.state == RoundState.OPEN.value,
        _rounds.c.closes_at > bindparam("now"),
    )
    .values(n_received=_rounds.c.n_received + bindparam("more"))
    .returning(_rounds.c.n_received, _rounds.c.target_reports, _rounds.c.job_id, _rounds.c.dataset_id)
)


def receive(
    session: Session | Connection,
    round_id: str,
    n_reports: int,
    packed: Octets,
    *,
    apart: Sequence[tuple[int, Octets]] = (),
    now: int,
) -> Received:
    """Store reports of an open round, and close it when it is full.

    One statement checks that the round is open, counts, and takes its row lock until the
    commit, so nothing lands after a close. Raises RoundClosed.

    Parameters
    ----------
    session : Session or Connection
    round_id : str
    n_reports : int
    packed : bytes or memoryview
        These make a row of the log.
    apart : sequence of (n_reports, packed)
        More, each with a row of its own: to put many large ones together costs more than a row.
    now : int
    """
    log_rows = [each for each in ((n_reports, packed), *apart) if each[0]]
    more = sum(n for n, _ in log_rows)
    row = session.execute(_RECEIVE, {"only": round_id, "more": more, "now": now}).first()
    if row is None:
        raise RoundClosed("this round takes no more reports")
    for n, octets in log_rows:
        report.append(session, round_id, n, octets)
    is_full = row.n_received >= row.target_reports
    if is_full:
        with nullcontext(session) if isinstance(session, Session) else Session(session) as within:
            _close(within, Round.id == round_id, now)
            within.flush()
    return Received(is_full, row.job_id, row.dataset_id)


def close(session: Session, caller: Caller, round_id: str, *, now: int) -> Round:
    """Close by hand; closing again changes nothing. Raises NotFound."""
    found = get(session, caller, round_id)
    if _close(session, Round.id == found.id, now):
        audit.record(session, caller, Act.ROUND_CLOSED, round_id, dataset_id=found.dataset_id, now=now)
    session.refresh(found)
    return found


def close_due(session: Session, *, now: int) -> list[str | None]:
    """Close every round past its time; the jobs that waited for them (None for a round of its own)."""
    due = list(
        session.execute(
            select(Round.id, Round.job_id)
            .where(Round.state == RoundState.OPEN, Round.closes_at <= now)
            .order_by(Round.id)
            .with_for_update()
        )
    )
    if due:
        _close(session, Round.id.in_([row.id for row in due]), now)
    return [row.job_id for row in due]


def close_all(session: Session, *, now: int, job_id: str | None = None, dataset_id: str | None = None) -> None:
    """Close what is open of a job that is over, or of a dataset.

    What such a job leaves untallied is due to be folded like a round of its own, so that
    the retention rule reaches its reports too.
    """
    of = Round.job_id == job_id if job_id is not None else Round.dataset_id == dataset_id
    _lock(session, of)
    _close(session, of, now)
    if job_id is not None:
        session.execute(
            update(Round)
            .where(of, Round.state == RoundState.CLOSED)
            .values(fold_lease_until=now)
            .execution_options(synchronize_session=False)
        )


def _lock(session: Session, which: ColumnElement[bool]) -> None:
    """Hold these rounds until the commit."""
    session.execute(select(Round.id).where(which).order_by(Round.id).with_for_update(key_share=True)).all()


def _close(session: Session, which: ColumnElement[bool], now: int) -> bool:
    """Close those of them that are open; whether any was."""
    closed = session.execute(
        update(Round)
        .where(which, Round.state == RoundState.OPEN)
        .values(state=RoundState.CLOSED.value, closed_at=now)
        .returning(Round.id, Round.dataset_id, Round.job_id, Round.index)
        .execution_options(synchronize_session=False)
    ).all()
    _announce(session, closed, EventType.ROUND_CLOSED, now)
    return bool(closed)


def _announce(session: Session, these: Sequence[Any], event_type: EventType, now: int) -> None:
    """Tell the webhooks that want to know; of each round what devices see of it anyway, and whose it is."""
    state = (RoundState.OPEN if event_type == EventType.ROUND_OPENED else RoundState.CLOSED).value
    for each in these:
        data = {"id": each.id, "state": state, "job_id": each.job_id, "index": each.index}
        deliveries.announce(session, each.dataset_id, event_type, data, told=now, now=now)


def store_tally(session: Session, round_id: str, tally: bytes, n_reports: int, *, now: int) -> Round:
    """Keep the tally of a closed or failed round and scrub its reports, both or neither.

    A round that is tallied already keeps the tally it has. Raises Conflict on an open one,
    and on one whose reports are gone with its dataset: what was folded was not all of them.
    """
    found = session.get(Round, round_id, with_for_update=True, populate_existing=True)
    if found is None:
        raise NotFound("round")
    if found.state == RoundState.OPEN:
        raise Conflict("an open round has no tally")
    if found.state != RoundState.TALLIED:
        if report.count(session, round_id) != found.n_received:
            raise Conflict("this round's reports were removed before they were counted")
        found.state, found.tallied_at = RoundState.TALLIED.value, now
        found.tally, found.n_reports = tally, n_reports
        keep_reports = session.scalar(select(Dataset.keep_reports).where(Dataset.id == found.dataset_id))
        if not keep_reports:
            report.scrub(session, round_id)
    return found


def scrub_tallied(session: Session, dataset_id: str) -> None:
    """Remove the reports that a dataset's tallied rounds kept."""
    of_dataset = Round.dataset_id == dataset_id
    _lock(session, of_dataset)
    report.scrub_all(session, select(Round.id).where(of_dataset, Round.state == RoundState.TALLIED))


def scrub_all(session: Session, dataset_id: str) -> None:
    """Remove all reports of a dataset, counted or not."""
    of_dataset = Round.dataset_id == dataset_id
    _lock(session, of_dataset)
    report.scrub_all(session, select(Round.id).where(of_dataset))

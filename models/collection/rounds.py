"""Open, close and tally rounds, and receive their reports. `models.tables.rounds` shows the states."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, case, func, select, update
from sqlalchemy.orm import Session, undefer

from models import datasets
from models.collection import releases, report_log
from models.database.types import SECOND, new_id, select_page
from models.encryption import Keyring
from models.errors import Conflict, LimitExceeded, NotFound, RecordsKeyMissing, RoundEmpty
from models.identity import audit_trail
from models.identity.caller import Caller, operator
from models.ledger import ledger, sources
from models.ledger.amounts import Amounts
from models.tables.datasets import Dataset, Trust
from models.tables.identity import Act
from models.tables.jobs import Job
from models.tables.ledger import Ceiling
from models.tables.rounds import RELEASE_SECONDS, CollectionTarget, ReleaseTerms, Round, RoundState, Slot
from models.tables.webhooks import EventType
from models.webhooks import deliveries
from sfumato.privacy.accountant import Cost
from sfumato.privacy.accounting import cost
from sfumato.specs import RoundSpec, to_wire

FindKeyring = Callable[[], Keyring]

_WITH_TALLY = undefer(Round.tally)


def without_keys() -> Keyring:
    """Raise RecordsKeyMissing, for callers that open no shuffled rounds."""
    raise RecordsKeyMissing("a shuffled round needs a key that encrypts its private key")


def open_standalone(
    session: Session,
    caller: Caller,
    dataset: Dataset,
    spec: RoundSpec,
    collect: CollectionTarget,
    *,
    max_open_rounds: int,
    now: int,
    ceiling: Ceiling = sources.UNLIMITED,
    keyring: FindKeyring = without_keys,
) -> Round:
    """Charge the cost of a standalone round, then open it for later jobs. `ceiling` limits the cost of its source.

    `keyring` returns the keys that encrypt the private key of a shuffled round. Raise BudgetExhausted, CeilingExceeded,
    LimitExceeded, InvalidSpec (see `releases.release_cost`), or NotFound if the dataset is deleted.
    """
    release = release_cost(spec, collect.release, dataset)
    datasets.lock_live(session, dataset.id)
    n_open = session.scalar(select(func.count()).where(Round.dataset_id == dataset.id, Round.state == RoundState.OPEN))
    if n_open is not None and n_open >= max_open_rounds:
        raise LimitExceeded(
            f"a dataset of this tenant may have {max_open_rounds} open rounds (max_open_rounds): close one, "
            "or request a higher quota from the operator"
        )
    round_id = new_id("rnd")
    epsilon_nano = spec.mechanism.epsilon_nano()
    ledger.charge(
        session,
        dataset.id,
        Amounts(epsilon_nano, 0, *releases.increase((), spec, release)),
        reference=round_id,
        reservation=None,
        actor=caller.key_id,
        now=now,
        ceiling=ceiling,
    )
    opened = _add(
        session, dataset, spec, collect, release, round_id=round_id, job_id=None, index=0, keyring=keyring, now=now
    )
    audit_trail.record(session, caller, Act.ROUND_CREATED, round_id, dataset_id=dataset.id, now=now)
    return opened


def open_for_job(
    session: Session,
    dataset: Dataset,
    spec: RoundSpec,
    collect: CollectionTarget,
    *,
    job_id: str,
    actor: str,
    now: int,
    slot: Slot | None = None,
    ceiling: Ceiling = sources.UNLIMITED,
    keyring: FindKeyring = without_keys,
) -> Round:
    """Charge the increase of the collection's cost to the job's reservation, then open the plan's next round.

    `collect` is the target of the whole collection; the round has its share. The increase of a shuffled collection's
    pair is charged to the free shuffled budget in the same entry. The caller has locked the job
    (`claims.load_claimed`), which prevents a concurrent cancellation, and before it the source (`sources.lock_source`).
    `ceiling` limits the pairs of the source. `slot` is the place in the cycle of a series: its rounds are the
    collection, and its reservation is charged. Raise BudgetExhausted if the plan's rounds cost more than the job
    declared, or if the shuffled budget is too small, CeilingExceeded, and InvalidSpec (see `releases.release_cost`).
    Raise Conflict if the time of the slot has passed.
    """
    share = collect.share(spec.participation)
    release = release_cost(spec, share.release, dataset)
    if slot is None:
        earlier = list_for_job(session, job_id)
    else:
        if slot.closes_at <= now:
            raise Conflict("this window ended before a worker could open its round: run more workers")
        spec = replace(spec, participation=slot.participation)
        earlier = list_for_collection(session, slot.collection_id)
    before = [((r.spec.participation.lo, r.spec.participation.hi), r.epsilon_nano) for r in earlier]
    this = ((spec.participation.lo, spec.participation.hi), spec.mechanism.epsilon_nano())
    increase = cost([*before, this]) - cost(before)
    round_id = new_id("rnd")
    ledger.charge(
        session,
        dataset.id,
        Amounts(increase, 0, *releases.increase(earlier, spec, release)),
        reference=round_id,
        reservation=job_id if slot is None else slot.collection_id,
        actor=actor,
        now=now,
        ceiling=ceiling,
    )
    return _add(
        session,
        dataset,
        spec,
        share,
        release,
        round_id=round_id,
        job_id=job_id,
        index=len(earlier),
        slot=slot,
        keyring=keyring,
        now=now,
    )


def release_cost(spec: RoundSpec, terms: ReleaseTerms | None, dataset: Dataset) -> Cost:
    """Return the cost of the release of a round; 0 without terms. Raise InvalidSpec, see `releases.release_cost`."""
    if terms is None:
        return Cost(0, 0, 0)
    return releases.release_cost(spec, terms, "gaussian" if dataset.accounting == "gaussian" else "additive")


def _add(
    session: Session,
    dataset: Dataset,
    spec: RoundSpec,
    collect: CollectionTarget,
    release: Cost,
    *,
    round_id: str,
    job_id: str | None,
    index: int,
    keyring: FindKeyring,
    now: int,
    slot: Slot | None = None,
) -> Round:
    terms = collect.release
    if (terms is not None) != (dataset.trust == Trust.SHUFFLED):
        raise Conflict("a round must have terms of a release if its dataset is shuffled, and none otherwise")
    n_honest, min_batch = (0, 0) if terms is None else (terms.n_honest, terms.min_batch)
    min_reports = max(collect.min_reports, dataset.min_reports, n_honest)
    opened = Round(
        id=round_id,
        dataset_id=dataset.id,
        job_id=job_id,
        collection_id=slot.collection_id if slot else job_id or round_id,
        index=index,
        spec_wire=to_wire(spec),
        epsilon_nano=spec.mechanism.epsilon_nano(),
        # a full round is never too small for a tally
        target_reports=max(collect.target_reports, min_reports, min_batch),
        min_reports=min_reports,
        keep_reports=dataset.keep_reports,
        closes_at=slot.closes_at if slot else now + collect.seconds * SECOND,
        state=RoundState.OPEN.value,
        n_received=0,
        opened_at=now,
        closed_at=None,
        tallied_at=None,
        aggregation_lease_until=None,
        aggregation_attempts=0,
        n_reports=None,
        tally=None,
    )
    if terms is not None:
        opened.min_batch, opened.honest_share_nano = terms.min_batch, terms.honest_share_nano
        opened.shuffled_nano, opened.shuffled_delta_atto, _ = release
        opened.shuffled_mu2_pico = release.mu2_pico or None
    session.add(opened)
    session.flush()
    if terms is not None:
        opened.hpke_public_key = releases.create_key(session, round_id, keyring())
        session.flush()
    _announce(session, [opened], EventType.ROUND_OPENED, now)
    return opened


def get(session: Session, caller: Caller, round_id: str) -> Round:
    """Return a round of a dataset that is not deleted and that the caller may access. Raise NotFound."""
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


def list_for_job(session: Session, job_id: str, *, tallies: bool = False) -> list[Round]:
    """Return the rounds of a job in order. `tallies` loads their tallies as well."""
    query = select(Round).where(Round.job_id == job_id).order_by(Round.index)
    return list(session.scalars(query.options(_WITH_TALLY) if tallies else query))


def list_for_collection(session: Session, collection_id: str) -> list[Round]:
    """Return the rounds of a collection in order."""
    return list(session.scalars(select(Round).where(Round.collection_id == collection_id).order_by(Round.id)))


def is_any_open(session: Session, job_id: str) -> bool:
    """Return whether a job has an open round."""
    query = select(Round.id).where(Round.job_id == job_id, Round.state == RoundState.OPEN)
    return session.scalars(query.limit(1)).first() is not None


def list_for_jobs(session: Session, job_ids: Sequence[str]) -> dict[str, list[Round]]:
    """Return the rounds of several jobs, in order, by job id."""
    found: dict[str, list[Round]] = {job_id: [] for job_id in job_ids}
    if not found:
        return found
    for each in session.scalars(select(Round).where(Round.job_id.in_(job_ids)).order_by(Round.index)):
        found[each.job_id or ""].append(each)
    return found


def list_used(session: Session, jobs: Sequence[Job]) -> dict[str, list[Round]]:
    """Return the rounds that several jobs opened, or the earlier ones that they name, in order, by job id."""
    named = {round_id for job in jobs for round_id in job.round_ids}
    query = select(Round).where(Round.id.in_(named))
    earlier = {each.id: each for each in session.scalars(query)} if named else {}
    found = list_for_jobs(session, [job.id for job in jobs if not job.round_ids])
    return found | {
        job.id: [earlier[each] for each in job.round_ids if each in earlier] for job in jobs if job.round_ids
    }


def cost_nano(rounds: Sequence[Round]) -> int:
    """Return the largest cost of rounds for one device, in nano-epsilon. The costs of several collections add up."""
    collections: dict[str, list[Round]] = {}
    for each in rounds:
        collections.setdefault(each.collection_id, []).append(each)
    total = 0
    for within in collections.values():
        if len(within) == 1:
            total += within[0].epsilon_nano
        else:
            intervals = [each.spec.participation for each in within]
            amounts = [each.epsilon_nano for each in within]
            total += cost([((draw.lo, draw.hi), nano) for draw, nano in zip(intervals, amounts, strict=True)])
    return total


def page(
    session: Session,
    dataset_id: str,
    *,
    after: str,
    limit: int,
    state: str | None = None,
    newest_first: bool = False,
) -> list[Round]:
    """Return the rounds of a dataset after id `after`, in order; of one state, if one is given."""
    query = select(Round).where(Round.dataset_id == dataset_id)
    if state is not None:
        query = query.where(Round.state == state)
    return list(session.scalars(select_page(query, Round.id, after=after, limit=limit, newest_first=newest_first)))


def list_by_ids(session: Session, dataset_id: str, round_ids: Sequence[str], *, tallies: bool = False) -> list[Round]:
    """Return rounds of one dataset in the order of `round_ids`, read afresh. Raise NotFound.

    `tallies` loads their tallies as well.
    """
    query = select(Round).where(Round.id.in_(round_ids)).execution_options(populate_existing=True)
    found = {r.id: r for r in session.scalars(query.options(_WITH_TALLY) if tallies else query)}
    if any(round_id not in found or found[round_id].dataset_id != dataset_id for round_id in round_ids):
        raise NotFound("round")
    return [found[round_id] for round_id in round_ids]


def list_open(session: Session, dataset_id: str, *, now: int) -> list[Round]:
    """Return the rounds that accept reports now, oldest first."""
    query = select(Round).where(Round.dataset_id == dataset_id, Round.state == RoundState.OPEN, Round.closes_at > now)
    return list(session.scalars(query.order_by(Round.id)))


def close(session: Session, caller: Caller, round_id: str, *, allow_empty: bool = True, now: int) -> Round:
    """Close a round for the caller, unless it is closed already.

    Raise NotFound, or RoundEmpty if an open round has no reports, unless `allow_empty`.
    """
    found = get(session, caller, round_id)
    if not allow_empty and found.state == RoundState.OPEN and found.n_received == 0:
        raise RoundEmpty(
            "this round has no reports: closing it gives no result and releases no epsilon. Wait for reports, "
            "or send allow_empty=true"
        )
    if close_matching(session, Round.id == found.id, now):
        audit_trail.record(session, caller, Act.ROUND_CLOSED, round_id, dataset_id=found.dataset_id, now=now)
    session.refresh(found)
    return found


def close_due(session: Session, *, now: int) -> list[str | None]:
    """Close all rounds past their time. Return the job ids of these rounds (None for a standalone round).

    A shuffler releases a round at its time, so a shuffled round waits for the batch a little longer.
    """
    is_past = Round.closes_at <= case((Round.min_batch.is_(None), now), else_=now - RELEASE_SECONDS * SECOND)
    due = list(
        session.execute(
            select(Round.id, Round.job_id)
            .where(Round.state == RoundState.OPEN, Round.closes_at <= now, is_past)
            .order_by(Round.id)
            .with_for_update()
        )
    )
    if due:
        close_matching(session, Round.id.in_([row.id for row in due]), now)
    return [row.job_id for row in due]


def close_all(session: Session, *, now: int, job_id: str | None = None, dataset_id: str | None = None) -> None:
    """Close the open rounds of an ended job, or of a dataset.

    Untallied rounds of the job become due for aggregation like standalone rounds, so that the retention rule deletes
    their reports too.
    """
    of = Round.job_id == job_id if job_id is not None else Round.dataset_id == dataset_id
    _lock(session, of)
    close_matching(session, of, now)
    if job_id is not None:
        session.execute(
            update(Round)
            .where(of, Round.state == RoundState.CLOSED)
            .values(aggregation_lease_until=now)
            .execution_options(synchronize_session=False)
        )


def _lock(session: Session, which: ColumnElement[bool]) -> None:
    """Lock these rounds until the commit."""
    session.execute(select(Round.id).where(which).order_by(Round.id).with_for_update(key_share=True)).all()


def close_matching(session: Session, which: ColumnElement[bool], now: int) -> bool:
    """Close the open ones of these rounds. Return whether there was any."""
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
    """Enqueue webhook deliveries. They contain the job and facts that devices can read."""
    state = (RoundState.OPEN if event_type == EventType.ROUND_OPENED else RoundState.CLOSED).value
    for each in these:
        data = {"id": each.id, "state": state, "job_id": each.job_id, "index": each.index}
        deliveries.enqueue(session, each.dataset_id, event_type, data, public_time=now, now=now)


def store_tally(session: Session, round_id: str, tally: bytes, n_reports: int, *, now: int) -> Round:
    """Store the tally of a closed or failed round, and delete its reports unless the round keeps them.

    The tally of a batch with too few valid reports is not stored, because its cost would exceed the charge. The audit
    trail records this. The private key of a shuffled round is deleted. A tallied round keeps its tally. Raise Conflict
    if the round is open, or if reports were deleted with the dataset, because the tally would be incomplete.
    """
    found = session.get(Round, round_id, with_for_update=True, populate_existing=True)
    if found is None:
        raise NotFound("round")
    if found.state == RoundState.OPEN:
        raise Conflict("an open round has no tally")
    if found.state != RoundState.TALLIED:
        if report_log.count(session, round_id) != found.n_received:
            raise Conflict("this round's reports were deleted before their aggregation")
        found.state, found.tallied_at = RoundState.TALLIED.value, now
        terms = found.release
        is_withheld = terms is not None and n_reports < terms.n_honest
        found.tally, found.n_reports = None if is_withheld else tally, n_reports
        session.flush()
        if not found.keep_reports:
            report_log.scrub(session, round_id)
        if terms is not None:
            releases.delete_keys(session, [round_id])
        if terms is not None and is_withheld and found.n_received:
            counts = {"n_released": found.n_received, "n_valid": n_reports, "n_honest": terms.n_honest}
            dataset = session.get_one(Dataset, found.dataset_id)
            audit_trail.record(
                session,
                operator(dataset.tenant_id),
                Act.TALLY_WITHHELD,
                round_id,
                dataset_id=dataset.id,
                details=counts,
                now=now,
            )
    return found


def scrub_all(session: Session, dataset_id: str) -> None:
    """Delete all reports of a dataset."""
    of_dataset = Round.dataset_id == dataset_id
    _lock(session, of_dataset)
    report_log.scrub_all(session, select(Round.id).where(of_dataset))
    releases.delete_keys(session, select(Round.id).where(of_dataset))

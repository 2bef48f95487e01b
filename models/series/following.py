"""Follow the windows of series: read the tallies that a step needs, store its outcome, and name clusters."""

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, undefer

from models.collection import rounds
from models.database.types import canonical_json, select_page
from models.errors import JobNotFinished, NotFound
from models.identity import audit_trail
from models.identity.caller import Caller
from models.tables.datasets import Dataset
from models.tables.identity import Act
from models.tables.jobs import Job, QueryAnswer, Result
from models.tables.rounds import Round, RoundState
from models.tables.series import Series, SeriesCluster, SeriesEvent, SeriesRevision, Window
from models.tables.webhooks import EventType
from models.webhooks import deliveries
from sfumato.errors import InvalidSpec
from sfumato.validation import require_text

REACH = 78  # earlier windows that a step reads


@dataclass(frozen=True)
class Due:
    """A window that can be followed.

    Attributes
    ----------
    series : Series
    index : int
    dataset : Dataset
    terms : SeriesRevision
        Terms of this window.
    job_id : str
        Job of this window.
    begins : bool
        Whether this is the first followed window with these terms, after one with others.
    tallied : dict of int to Round
        Rounds with tallies of the measured windows within `REACH`, up to this one. Empty over records.
    counted : dict of int to bytes
        Packed counts of the same windows over records. Empty over reports.
    before : dict or None
        What was stored for the last followed window; None if there is none.
    own : dict or None
        Document of the job of this window, if it has a result.
    """

    series: Series
    index: int
    dataset: Dataset
    terms: SeriesRevision
    job_id: str
    begins: bool
    tallied: Mapping[int, Round]
    counted: Mapping[int, bytes]
    before: dict[str, Any] | None
    own: dict[str, Any] | None


def find_due(session: Session, job_id: str) -> Due | None:
    """Return the next window to follow of the series of a job; None if it must wait for a job, or if there is none.

    A window is measured if its round has a tally of enough reports, or if its counts of records are kept. A window
    without a result follows from nothing and is skipped, once its job has ended.
    """
    series_id = session.scalar(select(Window.series_id).where(Window.job_id == job_id))
    if series_id is None:
        return None
    query = select(Window, Job).join(Job, Job.id == Window.job_id).where(Window.series_id == series_id)
    opened = [(window, job) for window, job in session.execute(query.order_by(Window.index))]
    series = session.get_one(Series, series_id)
    of_jobs = rounds.list_for_jobs(session, [job.id for _, job in opened])
    counted = _list_counted(session, series)
    followed = max((window.index for window, _ in opened if window.shares is not None), default=-1)
    due = None
    for window, job in opened:
        if window.index <= followed:
            continue
        if window.index in counted or _is_measured(of_jobs[job.id]):
            due = window, job
            break
        if not job.is_final:
            return None
    if due is None:
        return None
    window, job = due
    within = range(window.index - REACH, window.index + 1)
    measured = [
        (each.index, of_jobs[its.id][-1].id)
        for each, its in opened
        if each.index in within and _is_measured(of_jobs[its.id])
    ]
    loaded = rounds.list_by_ids(session, series.dataset_id, [round_id for _, round_id in measured], tallies=True)
    tallied = {index: found for (index, _), found in zip(measured, loaded, strict=True)}
    last = None if followed < 0 else _get_window(session, series_id, followed)
    terms = session.get_one(SeriesRevision, (series_id, window.revision))
    begins = last is not None and last.revision != window.revision
    result = session.get(Result, job.id, options=[undefer(Result.packed)])
    return Due(
        series,
        window.index,
        session.get_one(Dataset, series.dataset_id),
        terms,
        job.id,
        begins,
        tallied,
        _load_counts(session, series, counted.intersection(within)),
        None if last is None else last.following,
        None if result is None else result.document,
    )


def keep_counts(session: Session, job_id: str, n_cells: int) -> None:
    """Keep the released counts of a window over records, because the answers of a job are deleted when it ends."""
    answers = select(QueryAnswer.packed).where(QueryAnswer.job_id == job_id, QueryAnswer.n_values == n_cells)
    window = session.scalars(select(Window).where(Window.job_id == job_id).with_for_update()).one()
    window.counts = session.scalars(answers.order_by(QueryAnswer.index.desc()).limit(1)).one()
    session.flush()


def _list_counted(session: Session, series: Series) -> set[int]:
    """Return the numbers of the windows with counts of records."""
    query = select(Window.index).where(Window.series_id == series.id, Window.counts.is_not(None))
    return set(session.scalars(query)) if series.has_records else set()


def _load_counts(session: Session, series: Series, indices: Collection[int]) -> dict[int, bytes]:
    query = select(Window.index, Window.counts).where(Window.series_id == series.id, Window.index.in_(indices))
    return {index: packed for index, packed in session.execute(query) if packed is not None} if indices else {}


def _is_measured(opened: Sequence[Round]) -> bool:
    return (
        bool(opened)
        and opened[-1].state == RoundState.TALLIED
        and (opened[-1].n_reports or 0) >= max(opened[-1].min_reports, 1)
    )


def _get_window(session: Session, series_id: str, index: int, *, lock: bool = False) -> Window:
    key = {"series_id": series_id, "index": index}
    return session.get_one(
        Window, key, options=[undefer(Window.packed)], with_for_update=lock or None, populate_existing=True
    )


@dataclass(frozen=True)
class Outcome:
    """Outcome of following a window, as plain JSON values.

    Attributes
    ----------
    document : dict
        Pooled map with ids, and memory.
    own_ids : list of (str or None), or None
        Ids of the clusters of the result of the window's job; None without a label map.
    shares : list of dict
        Clusters with their shares in this window and in the pool.
    parents : dict of str to str or None
        New clusters with their parents.
    event : dict or None
        Columns of a new event.
    described : tuple of (str, list of dict), or None
        Id of an earlier event, and the kinds of its change.
    """

    document: dict[str, Any]
    own_ids: list[str | None] | None
    shares: list[dict[str, Any]]
    parents: Mapping[str, str | None]
    event: dict[str, Any] | None
    described: tuple[str, list[dict[str, Any]]] | None


def store(session: Session, series_id: str, index: int, outcome: Outcome, *, now: int) -> bool:
    """Store the outcome of a window, with its clusters and events. Return false if it was followed before.

    A new event, and its description, is sent to webhooks without kinds and numbers, like a result. A cluster that an
    event calls born has no parents, also if it got its id before the event was described.
    """
    series = session.get_one(Series, series_id, with_for_update=True, populate_existing=True)
    window = _get_window(session, series_id, index, lock=True)
    if window.shares is not None:
        return False
    window.shares, window.own_ids = outcome.shares, outcome.own_ids
    window.packed = zlib.compress(canonical_json(outcome.document).encode())
    ids = {each["cluster_id"] for each in outcome.shares}
    known = session.scalars(select(SeriesCluster).where(SeriesCluster.series_id == series_id)).all()
    kinds = [] if outcome.described is None else outcome.described[1]
    born = {each["cluster"] for each in kinds if each["kind"] == "born"}
    for cluster in known:
        if cluster.gone_in is None and cluster.id not in ids:
            cluster.gone_in, cluster.gone_at = index, window.opens_at
        if cluster.id in born:
            cluster.parents = []
    for cluster_id in sorted(ids - {each.id for each in known}):
        parent = outcome.parents.get(cluster_id)
        parents = [] if parent is None else [parent]
        session.add(
            SeriesCluster(
                id=cluster_id,
                series_id=series_id,
                name="",
                born_in=index,
                born_at=window.opens_at,
                gone_in=None,
                gone_at=None,
                parents=parents,
            )
        )
    changed = []
    if outcome.event is not None:
        session.add(SeriesEvent(series_id=series_id, window=index, kinds=None, described_in=None, **outcome.event))
        changed.append(outcome.event["id"])
    if outcome.described is not None:
        event = session.get_one(SeriesEvent, outcome.described[0])
        event.kinds, event.described_in = outcome.described[1], index
        changed.append(event.id)
    session.flush()
    for event_id in changed:
        data = {"id": event_id, "series_id": series_id, "window": index}
        deliveries.enqueue(session, series.dataset_id, EventType.SERIES_EVENT, data, public_time=now, now=now)
    return True


# ---- reading ----


def get_map(session: Session, series: Series, index: int | None, *, pooled: bool) -> tuple[int, dict[str, Any]]:
    """Return the number of a followed window, the last one by default, and its map as plain JSON values.

    Raise NotFound if there is no such window, or JobNotFinished if it is not followed.
    """
    if index is None:
        query = select(Window.index).where(Window.series_id == series.id, Window.shares.is_not(None))
        index = session.scalar(query.order_by(Window.index.desc()).limit(1))
    elif session.get(Window, {"series_id": series.id, "index": index}) is None:
        raise NotFound("window")
    window = None if index is None else _get_window(session, series.id, index)
    document = None if window is None else window.following
    if window is None or document is None:
        raise JobNotFinished("this window has no map: wait until its state is done, or choose another window")
    model, ids, weights = document["model"], document["cluster_ids"], document["weights"]
    if not pooled:
        result = session.get(Result, window.job_id, options=[undefer(Result.packed)])
        if result is None or window.own_ids is None:
            raise JobNotFinished("the job of this window has no result yet: wait until it succeeds")
        model, ids, weights = result.document["model"], window.own_ids, {str(window.index): 1.0}
    names = _names(session, series.id)
    texts = [names.get(each, "") if each else "" for each in ids]
    model |= {"names": texts if any(texts) else [], "ids": ids}
    return window.index, {
        "model": model,
        "cluster_ids": ids,
        "weights": [{"window": int(key), "weight": weight} for key, weight in weights.items()],
        "is_provisional": document["is_provisional"],
    }


def _names(session: Session, series_id: str) -> dict[str, str]:
    query = select(SeriesCluster.id, SeriesCluster.name).where(SeriesCluster.series_id == series_id)
    return {row.id: row.name for row in session.execute(query)}


def page_clusters(
    session: Session, series: Series, *, after: str, limit: int, newest_first: bool = False
) -> list[SeriesCluster]:
    """Return the clusters of a series after an id, in order."""
    query = select(SeriesCluster).where(SeriesCluster.series_id == series.id)
    query = select_page(query, SeriesCluster.id, after=after, limit=limit, newest_first=newest_first)
    return list(session.scalars(query))


def page_events(
    session: Session, series: Series, *, after: str, limit: int, newest_first: bool = False
) -> list[SeriesEvent]:
    """Return the events of a series after an id, in order."""
    query = select(SeriesEvent).where(SeriesEvent.series_id == series.id)
    query = select_page(query, SeriesEvent.id, after=after, limit=limit, newest_first=newest_first)
    return list(session.scalars(query))


def get_cluster(session: Session, series: Series, cluster_id: str) -> SeriesCluster:
    """Return a cluster of a series. Raise NotFound."""
    cluster = session.get(SeriesCluster, cluster_id)
    if cluster is None or cluster.series_id != series.id:
        raise NotFound("cluster")
    return cluster


def name_cluster(
    session: Session, caller: Caller, series: Series, cluster_id: str, name: str, *, now: int
) -> SeriesCluster:
    """Set the name of a cluster; an empty one removes it. Raise NotFound, or InvalidSpec if another cluster has it."""
    cluster = get_cluster(session, series, cluster_id)
    if name:
        require_text(name, "the name of a cluster")
        others = {text: other for other, text in _names(session, series.id).items() if other != cluster_id}
        if name in others:
            raise InvalidSpec(f"the name of a cluster must be unique: {others[name]} has the same")
    if name != cluster.name:
        cluster.name = name
        session.flush()
        audit_trail.record(session, caller, Act.CLUSTERS_NAMED, cluster_id, dataset_id=series.dataset_id, now=now)
    return cluster

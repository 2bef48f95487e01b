"""Windows that were followed, stored as a worker does."""

from collections.abc import Sequence

from models.database.types import new_id
from models.series import following, windows
from models.series.following import Outcome
from models.tables.series import Series, WindowState
from sfumato.model.cluster_model import ClusterModel
from tests.service.api import Api, a_model, finish

MEMORY = {"pool_from": 0, "baseline_from": 0, "test_from": 0, "alarm": None}


def follow(
    api: Api,
    series_id: str,
    ids: tuple[str, str] | None = None,
    *,
    event: str | None = None,
    others: Sequence[str] = (),
    parent: str | None = None,
    is_born: bool = False,
    model: ClusterModel | None = None,
) -> list[str]:
    """Give the next window of a series a job with a result of two clusters, and follow it. Return their ids.

    `event` is the id of an event that is described at once: the first cluster has grown, or the second one is born.
    `parent` is that of the second cluster. `model` is the pooled map.
    """
    with api.database.reading() as session:
        series = session.get_one(Series, series_id)
        planned = windows.next_window(session, series_id)
        assert planned is not None
        index, dataset_id = planned.index, series.dataset_id
    job_id = api.job(dataset_id, algorithm={"type": "uniform_grid", "epsilon": 0.01})["id"]
    with api.database.transaction() as session:
        series = session.get_one(Series, series_id)
        window = windows.next_window(session, series_id)
        assert window is not None
        window.state, window.job_id = WindowState.OPENED.value, job_id
        windows.plan(session, series, index + 1)
    west, east = ids or (new_id("clu"), new_id("clu"))
    shares = [
        {"cluster_id": name, "share": share, "error": 0.01, "pooled_share": share, "pooled_error": 0.005}
        for name, share in ((west, 0.25), (east, 0.75), *((other, 0.01) for other in others))
    ]
    document = {
        "model": (model or a_model()).to_wire(),
        "cluster_ids": [west, east],
        "weights": {str(each): 0.9 ** (index - each) for each in range(index + 1)},
        "is_provisional": index < 3,
        "memory": MEMORY,
    }
    raised = {"id": event, "change": index, "change_first": index, "change_last": index, "evidence": 25.0}
    kind, cluster = ("born", east) if is_born else ("grown", west)
    kinds = [{"kind": kind, "cluster": cluster, "others": [], "size": 0.1, "error": 0.01}]
    described = (event, kinds) if event else None
    outcome = Outcome(document, [west, None], shares, {east: parent}, raised if event else None, described)
    with api.database.transaction() as session:
        assert following.store(session, series_id, index, outcome, now=api.database.clock())
        assert not following.store(session, series_id, index, outcome, now=api.database.clock())
    finish(api.database, job_id, a_model())
    return [west, east]

"""Functions of peers, run by the peers' Python (`benchmarks.peers.peer`); they import nothing of ours.

Untimed functions convert reports and points to the form that a library expects.
"""
# mypy: disable-error-code="import-not-found, import-untyped, no-any-return, unused-ignore"

from typing import Any

import numpy as np

inputs: dict[str, Any] = {}  # inputs of the next calls, in the form that a library expects


# ---- clusters ----


def c_means(columns: Any, memberships: Any, *, clusters: int, steps: int) -> Any:
    """Return the centroids after a number of steps from given memberships."""
    from skfuzzy.cluster import cmeans

    return cmeans(columns, clusters, 2.0, error=0.0, maxiter=steps, init=memberships)[0]


def private_k_means(points: Any, *, clusters: int, epsilon: float, seed: int) -> Any:
    """Return centroids in the unit box; without bounds the peer would use the range of the records."""
    from diffprivlib.models import KMeans

    bounds = np.zeros(points.shape[1]), np.ones(points.shape[1])
    return KMeans(n_clusters=clusters, epsilon=epsilon, bounds=bounds, random_state=seed).fit(points).cluster_centers_


def k_means(points: Any, start: Any, *, steps: int, library: str) -> Any:
    """Return the centroids after a number of steps. SuperKMeans selects its own start."""
    if library == "faiss":
        import faiss

        fit = faiss.Kmeans(points.shape[1], len(start), niter=steps, nredo=1, max_points_per_centroid=len(points))
        fit.train(points, init_centroids=start)
        return fit.centroids
    from superkmeans import SuperKMeans

    return SuperKMeans(
        len(start), points.shape[1], hierarchical=False, iters=steps, sampling_fraction=1.0, n_threads=1,
        early_termination=False,
    ).train(points)  # fmt: skip


def density_clusters(points: Any, *, at_least: int) -> Any:
    """Return the labels of HDBSCAN; -1 is noise."""
    from fast_hdbscan import HDBSCAN

    return HDBSCAN(min_cluster_size=at_least).fit(points).labels_


# ---- counting ----


def store_reports(ids: Any, symbols: Any, *, threads: int) -> None:
    """Store ids of two words and symbols in a table of DuckDB in memory."""
    import duckdb

    reports = {"high": ids[:, 0].copy(), "low": ids[:, 1].copy(), "symbol": symbols}  # noqa: F841 - read by its name
    inputs["database"] = database = duckdb.connect(config={"threads": threads})
    database.execute("create table reports as select * from reports")


def count_reports(*, distinct: bool) -> Any:
    """Return the number of reports of each symbol, ascending. Reports with an equal id may count once."""
    chosen = "(select any_value(symbol) as symbol from reports group by high, low)" if distinct else "reports"
    query = f"select symbol, count(*) as count from {chosen} group by symbol order by symbol"  # noqa: S608
    return inputs["database"].execute(query).fetchnumpy()["count"]

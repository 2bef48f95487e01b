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
    """Return the centroids after a number of steps, and the steps taken. SuperKMeans selects its own start."""
    if library == "scikit-learn-intelex":
        from sklearnex.cluster import KMeans

        fit = KMeans(len(start), init=start, n_init=1, max_iter=steps, tol=0.0, algorithm="lloyd").fit(points)
        return fit.cluster_centers_, np.asarray(fit.n_iter_)
    if library == "faiss-cpu":
        import faiss

        fit = faiss.Kmeans(points.shape[1], len(start), niter=steps, nredo=1, max_points_per_centroid=len(points))
        fit.train(points, init_centroids=start)
        return fit.centroids, np.asarray(steps)
    from superkmeans import SuperKMeans

    centroids = SuperKMeans(
        len(start), points.shape[1], hierarchical=False, iters=steps, sampling_fraction=1.0, n_threads=1,
        early_termination=False,
    ).train(points)  # fmt: skip
    return centroids, np.asarray(steps)


def density_clusters(points: Any, *, at_least: int, library: str) -> Any:
    """Return the labels of HDBSCAN; -1 is noise."""
    if library == "hdbscan":
        import hdbscan

        return hdbscan.HDBSCAN(min_cluster_size=at_least, core_dist_n_jobs=1).fit(points).labels_
    import fast_hdbscan

    return fast_hdbscan.HDBSCAN(min_cluster_size=at_least).fit(points).labels_


# ---- counting ----


def store_reports(ids: Any, symbols: Any, *, threads: int, library: str) -> None:
    """Store ids of two words and symbols in a table of a database in memory."""
    reports = {"high": ids[:, 0].copy(), "low": ids[:, 1].copy(), "symbol": symbols}
    if library == "duckdb":
        import duckdb

        inputs[library] = database = duckdb.connect(config={"threads": threads})
        database.execute("create table reports as select * from reports")
        return
    import pyarrow
    from chdb.session import Session

    table = pyarrow.table(reports)  # noqa: F841 - read by its name
    inputs[library] = session = Session()
    session.query(f"set max_threads = {threads}")
    session.query("create table reports engine = Memory as select * from Python(table)")


def count_reports(*, distinct: bool, library: str) -> Any:
    """Return the number of reports of each symbol, ascending. Reports with an equal id may count once."""
    chosen = "(select any_value(symbol) as symbol from reports group by high, low)" if distinct else "reports"
    query = f"select symbol, count(*) as count from {chosen} group by symbol order by symbol"  # noqa: S608
    if library == "duckdb":
        return inputs[library].execute(query).fetchnumpy()["count"]
    return inputs[library].query(query, "ArrowTable")["count"].to_numpy()

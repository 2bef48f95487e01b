"""Functions of peers, run by the peers' Python (`benchmarks.peers.peer`); they import nothing of ours.

Untimed functions convert reports and points to the form that a library expects.
"""
# mypy: disable-error-code="import-not-found, import-untyped, no-any-return, unused-ignore"

import math
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


def list_points(points: Any) -> None:
    """Convert points to lists for pyclustering."""
    inputs["points"] = points.tolist()


def clique(*, intervals: int, threshold: int) -> Any:
    """Return the labels of the compiled CLIQUE; -1 is noise."""
    from pyclustering.cluster import clique as peer

    found = peer.clique(inputs["points"], intervals, threshold).process()
    return _labels(found.get_clusters())


def _labels(clusters: list[list[int]]) -> Any:
    labels = np.full(len(inputs["points"]), -1, dtype=np.int64)
    for number, members in enumerate(clusters):
        labels[members] = number
    return labels


# ---- decoding ----


def list_reports(symbols: Any) -> None:
    """Convert reports of randomised response to a list of numbers."""
    inputs["reports"] = symbols.tolist()


def pure_response(*, epsilon: float, cells: int) -> Any:
    """Return the shares of pure-ldp by direct encoding."""
    from pure_ldp.frequency_oracles.direct_encoding import DEServer

    return _estimated(DEServer(epsilon, cells))


def multi_response(*, epsilon: float, cells: int) -> Any:
    """Return the shares of multi-freq-ldpy by generalised randomised response, clipped and normalised."""
    from multi_freq_ldpy.pure_frequency_oracles.GRR import GRR_Aggregator_MI

    return np.asarray(GRR_Aggregator_MI(inputs["reports"], cells, epsilon))


def report_hashed(symbols: Any, *, epsilon: float, cells: int) -> None:
    """Create reports of local hashing with the client of pure-ldp: pairs of a hashed value and a seed."""
    from pure_ldp.frequency_oracles.local_hashing import LHClient

    client = LHClient(epsilon, cells, use_olh=True)
    inputs["reports"] = [client.privatise(symbol + 1) for symbol in symbols.tolist()]


def pure_hashed(*, epsilon: float, cells: int) -> Any:
    """Return the shares of pure-ldp by optimal local hashing."""
    from pure_ldp.frequency_oracles.local_hashing import LHServer

    return _estimated(LHServer(epsilon, cells, use_olh=True))


def multi_hashed(*, epsilon: float, cells: int) -> Any:
    """Return the shares of multi-freq-ldpy by optimal local hashing, clipped and normalised."""
    from multi_freq_ldpy.pure_frequency_oracles.LH import LH_Aggregator_MI

    return np.asarray(LH_Aggregator_MI(inputs["reports"], cells, epsilon))


def report_signs(symbols: Any, *, epsilon: float, cells: int, seed: int) -> None:
    """Create reports of Hadamard response at epsilon up to 1, vectorised from the client of pure-ldp.

    A device draws a column. If its sign there is -1, it takes the paired column, which differs in the highest bit of
    its symbol. It swaps the two with probability 1 / (1 + e^epsilon).
    """
    rng = np.random.default_rng(seed)
    own = symbols + 1
    column = rng.integers(0, 1 << math.ceil(math.log2(cells + 1)), len(own))
    highest = 1 << np.floor(np.log2(own)).astype(np.int64)
    is_other = (np.bitwise_count(column & own) & 1) ^ (rng.random(len(own)) <= 1 / (1 + math.exp(epsilon)))
    inputs["reports"] = np.where(is_other, column ^ highest, column).tolist()


def pure_signs(*, epsilon: float, cells: int) -> Any:
    """Return the shares of pure-ldp by Hadamard response with the fast transform."""
    from pure_ldp.frequency_oracles.hadamard_response import HadamardResponseServer

    return _estimated(HadamardResponseServer(epsilon, cells))


def _estimated(server: Any) -> Any:
    """Return the shares of all symbols at once, which is faster than one by one."""
    server.aggregate_all(inputs["reports"])
    server.check_and_update_estimates()
    return np.asarray(server.get_estimates) / server.n

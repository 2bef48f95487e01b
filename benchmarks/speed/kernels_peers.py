"""What the rows of `kernels` are held to: run by the peers' Python (`benchmarks.speed.peer`), imports nothing of ours.

Reports and points are put into the form a library wants by functions that nobody times.
"""
# mypy: disable-error-code="import-not-found, import-untyped, no-any-return, unused-ignore"

import math
from typing import Any

import numpy as np

held: dict[str, Any] = {}  # from one call to the next, in the form a library wants


# ---- clusters ----


def c_means(columns: Any, memberships: Any, *, clusters: int, steps: int) -> Any:
    """Centres after so many steps from given memberships."""
    from skfuzzy.cluster import cmeans

    return cmeans(columns, clusters, 2.0, error=0.0, maxiter=steps, init=memberships)[0]


def private_k_means(points: Any, *, clusters: int, epsilon: float, seed: int) -> Any:
    """Centres in the unit box, whose bounds are told: left out, the peer takes the records' range."""
    from diffprivlib.models import KMeans

    bounds = np.zeros(points.shape[1]), np.ones(points.shape[1])
    return KMeans(n_clusters=clusters, epsilon=epsilon, bounds=bounds, random_state=seed).fit(points).cluster_centers_


def list_points(points: Any) -> None:
    """As lists, which pyclustering wants."""
    held["points"] = points.tolist()


def clique(*, intervals: int, threshold: int) -> Any:
    """Labels by CLIQUE's compiled core; -1 is noise."""
    from pyclustering.cluster import clique as peer

    found = peer.clique(held["points"], intervals, threshold).process()
    return _labels(found.get_clusters())


def _labels(clusters: list[list[int]]) -> Any:
    labels = np.full(len(held["points"]), -1, dtype=np.int64)
    for number, members in enumerate(clusters):
        labels[members] = number
    return labels


# ---- decoding ----


def list_reports(symbols: Any) -> None:
    """Reports of randomised response as a list of numbers."""
    held["reports"] = symbols.tolist()


def pure_response(*, epsilon: float, cells: int) -> Any:
    """pure-ldp: shares by direct encoding."""
    from pure_ldp.frequency_oracles.direct_encoding import DEServer

    return _estimated(DEServer(epsilon, cells))


def multi_response(*, epsilon: float, cells: int) -> Any:
    """multi-freq-ldpy: shares by generalised randomised response, clipped and made to sum to one."""
    from multi_freq_ldpy.pure_frequency_oracles.GRR import GRR_Aggregator_MI

    return np.asarray(GRR_Aggregator_MI(held["reports"], cells, epsilon))


def report_hashed(symbols: Any, *, epsilon: float, cells: int) -> None:
    """Reports of local hashing, by pure-ldp's own client: pairs of a hashed value and a seed."""
    from pure_ldp.frequency_oracles.local_hashing import LHClient

    client = LHClient(epsilon, cells, use_olh=True)
    held["reports"] = [client.privatise(symbol + 1) for symbol in symbols.tolist()]


def pure_hashed(*, epsilon: float, cells: int) -> Any:
    """pure-ldp: shares by optimal local hashing."""
    from pure_ldp.frequency_oracles.local_hashing import LHServer

    return _estimated(LHServer(epsilon, cells, use_olh=True))


def multi_hashed(*, epsilon: float, cells: int) -> Any:
    """multi-freq-ldpy: shares by optimal local hashing, clipped and made to sum to one."""
    from multi_freq_ldpy.pure_frequency_oracles.LH import LH_Aggregator_MI

    return np.asarray(LH_Aggregator_MI(held["reports"], cells, epsilon))


def report_signs(symbols: Any, *, epsilon: float, cells: int, seed: int) -> None:
    """Reports of Hadamard response at epsilon up to 1, as pure-ldp's client makes them one by one.

    A column is drawn; whoever's sign there is -1 takes its pair, which differs in the symbol's highest bit; either
    is swapped for the other with chance 1 / (1 + e^epsilon).
    """
    rng = np.random.default_rng(seed)
    own = symbols + 1
    drawn = rng.integers(0, 1 << math.ceil(math.log2(cells + 1)), len(own))
    highest = 1 << np.floor(np.log2(own)).astype(np.int64)
    is_other = (np.bitwise_count(drawn & own) & 1) ^ (rng.random(len(own)) <= 1 / (1 + math.exp(epsilon)))
    held["reports"] = np.where(is_other, drawn ^ highest, drawn).tolist()


def pure_signs(*, epsilon: float, cells: int) -> Any:
    """pure-ldp: shares by Hadamard response with the fast transform."""
    from pure_ldp.frequency_oracles.hadamard_response import HadamardResponseServer

    return _estimated(HadamardResponseServer(epsilon, cells))


def _estimated(server: Any) -> Any:
    """Shares of all symbols at once; asked for one by one they take longer."""
    server.aggregate_all(held["reports"])
    server.check_and_update_estimates()
    return np.asarray(server.get_estimates) / server.n

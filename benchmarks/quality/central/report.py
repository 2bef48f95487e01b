"""Tables of the central benchmark: NICV over that of k-means, and the gain over the uniform grid."""

from typing import Any

import pandas as pd

from benchmarks.quality import tables
from benchmarks.quality.central.methods import ONE_MEAN, OURS, PAPERS, PEER, WITH_DELTA

MAX_OVER_PAPERS = 1.05  # target: NICV of ours over that of the best paper's method, if q is at least MIN_Q
MIN_Q = 30.0
RCP_SETS = ("s1", "s3", "a1", "a3", "unbalance", "birch1", "check_ins")


def nicv_tables(summary: pd.DataFrame) -> str:
    """Return a table per epsilon: a line per set, a column per method, `one mean` last."""
    methods = tables.methods_of(summary, (OURS, WITH_DELTA, *PAPERS, PEER, ONE_MEAN))
    rows = {"set": "set", **tables.SHAPE, "q": _q_text}
    return tables.table_per_epsilon(summary, rows, methods, _ratio, reversed(tables.epsilons_of(summary)))


def rcp_table(summary: pd.DataFrame) -> str:
    """Return the RCP of ours in percent: a line per set, a column per epsilon."""
    chosen = summary[(summary.method == OURS) & summary.set.isin(RCP_SETS)]
    chosen = chosen[chosen.groupby("set").rcp.transform("count") > 0]
    epsilons = tables.epsilons_of(summary)[::-1]
    return tables.pivot(chosen, {"set": "set"}, "epsilon", epsilons, tables.figure("rcp", 0, percent=True))


def against_papers(summary: pd.DataFrame) -> str:
    """Return NICV of ours over that of the best paper's method, for every set and epsilon with q of at least 30."""
    papers = summary[summary.method.isin(PAPERS)].dropna(subset="nicv_ratio")
    best = papers.sort_values("nicv_ratio", kind="stable").groupby(["set", "epsilon"])[["method", "nicv_ratio"]].first()
    ours = summary[(summary.method == OURS) & (_q(summary) >= MIN_Q)].dropna(subset="nicv_ratio")
    compared = ours.join(best.add_prefix("best_"), on=["set", "epsilon"], how="inner").reset_index(drop=True)
    places = compared.groupby("set", sort=False).ngroup()
    compared = compared.assign(over=compared.nicv_ratio / compared.best_nicv_ratio, place=places)
    columns = {
        "set": "set",
        "ε": tables.epsilon_text,
        "q": _q_text,
        OURS: tables.figure("nicv_ratio", 3),
        "best of the papers'": tables.figure("best_nicv_ratio", 3),
        "which": "best_method",
        "over it": lambda row: tables.number(row.over, 2) + " ✗" * (row.over > MAX_OVER_PAPERS),
    }
    return tables.listing(compared.sort_values(["place", "epsilon"], ascending=[True, False]), columns)


def _q(summary: Any) -> Any:
    return summary.n * summary.epsilon / summary.clusters


def _q_text(row: Any) -> str:
    return f"{_q(row):.0f}"


def _ratio(row: Any) -> str:
    if pd.isna(row.nicv_ratio):
        return tables.NONE
    return f"{row.nicv_ratio:.3f}" if row.nicv_ratio < 2 else f"{row.nicv_ratio:.3g}"

"""Tables of the local benchmark: the means of ten sets, and ARI by epsilon."""

from typing import Any

import pandas as pd

from benchmarks.output import table
from benchmarks.quality import tables
from benchmarks.quality.local.data import RESAMPLED_SIZE, SHAPES, TEN
from benchmarks.quality.local.methods import METHODS

BEST = "best of the tuned, set by set"
MEASURES = ("ari", "accuracy", "purity", "fmi")


def ten_sets(summary: pd.DataFrame) -> str:
    """Return the mean ARI over the ten sets at 150,000 reports: a line per method, K given beside K automatic.

    A mean needs all ten sets. A refused run counts as ARI 0.
    """
    ten = summary[summary.set.isin(TEN) & (summary.n == RESAMPLED_SIZE)].fillna({"ari": 0.0})
    epsilons = tables.epsilons_of(ten)
    if not epsilons:
        return ""
    best = ten[ten.k == "tuned"].groupby("set", as_index=False).ari.max()
    best = best.assign(method=BEST, k="tuned", epsilon=float("nan"))
    every = pd.concat([ten.assign(method=ten.method.where(ten.k != "tuned", ten.method + " (tuned)")), best])
    columns = pd.MultiIndex.from_product([("given", "auto"), epsilons])
    groups = tables.at_every_epsilon(every).replace({"k": {"tuned": "given"}}).groupby(["method", "k", "epsilon"])
    means = groups.ari.mean()[groups.set.nunique() == len(TEN)].unstack(["k", "epsilon"])
    order = [name for name in (*METHODS, *(f"{name} (tuned)" for name in METHODS), BEST) if name in means.index]
    lines = means.reindex(index=order, columns=columns).map(lambda ari: tables.number(ari, 2))
    heads = ["method", *(f"{k}, ε={epsilon:g}" for k, epsilon in columns)]
    return table(heads, lines.reset_index().to_numpy().tolist())


def ari_table(group: pd.DataFrame) -> str:
    """Return the ARI of one set: a line per method and way to get K, a column per epsilon."""
    cells = tables.in_order(tables.at_every_epsilon(group), METHODS)
    return tables.pivot(cells, {"method": "method", "K": "k"}, "epsilon", tables.epsilons_of(group), _ari)


def shapes(summary: pd.DataFrame) -> str:
    """Return a table of ARI for every shape and size."""
    groups = {(name, n): group for name, n, group in tables.sets_of(summary[summary.set.isin(list(SHAPES))])}
    sizes = sorted({n for _, n in groups})
    names = [(name, n) for n in sizes for name in SHAPES if (name, n) in groups]
    return "\n".join(f"**{name}, {n:,} reports**\n\n{ari_table(groups[name, n])}" for name, n in names)


def overviews(summary: pd.DataFrame) -> str:
    """Return a table of all sets for every way to get K and every epsilon."""
    return "\n".join(
        f"**ε = {epsilon:g}, K {k}**\n\n{set_overview(summary, epsilon, k)}"
        for k in ("given", "auto")
        for epsilon in tables.epsilons_of(summary)
    )


def set_overview(summary: pd.DataFrame, epsilon: float, k: str) -> str:
    """Return the mean ARI at one epsilon: a line per set, a column per method."""
    chosen = summary[(summary.epsilon.isna() | (summary.epsilon == epsilon)) & summary.k.isin([k, "tuned"])]
    return tables.pivot(
        chosen,
        {"set": tables.name_text, "reports": tables.reports_text},
        "method",
        tables.methods_of(chosen, METHODS),
        tables.figure("ari", 2),
    )


def _ari(row: Any) -> str:
    return tables.NONE if pd.isna(row.ari) else f"{tables.number(row.ari, 2)} ± {tables.number(row.ari_sd, 2)}"

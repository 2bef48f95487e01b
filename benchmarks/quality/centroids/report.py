"""Tables of the centroids' benchmark: RMSE and ARI, NICV, the paper's ablation, time, labels and regret."""

from typing import Any

import pandas as pd

from benchmarks.quality import tables
from benchmarks.quality.centroids.methods import (
    ABLATION,
    AUTO,
    FCM,
    FUZZY,
    GRID,
    K_MEANS,
    LAPLACE_FCM,
    METHODS,
    ONE_ROUND,
    OURS,
)  # fmt: skip
from sfumato.sizing.grids import MAX_SHIFTED_FEATURES

MIN_TIMES_BETTER, MAX_OVER_BOUND = 10.0, 2.5  # targets of `phase_sketch` on blobs
TIMED = ("blobs_4", 100_000)  # the set and size of the table of times
AT = ["set", "n", "epsilon"]


def targets(summary: pd.DataFrame) -> str:
    """Return RMSE of `phase_sketch` on blobs over the bound, and under that of Laplace noise with fuzzy c-means."""
    plain = summary[summary.method == LAPLACE_FCM].set_index(AT).rmse.rename("plain")
    ours = summary[summary.method.isin([ONE_ROUND, OURS])].join(plain, on=AT).dropna(subset=["bound", "rmse", "ari"])
    ours = ours.assign(over=ours.rmse / ours.bound, better=ours.plain / ours.rmse)
    columns = {
        "method": "method",
        "features": tables.figure("n_features", 0),
        "reports": tables.reports_text,
        "ε": tables.epsilon_text,
        "ARI": tables.figure("ari", 3),
        "RMSE": lambda row: f"{tables.number(row.rmse, 4)} ± {tables.number(row.rmse_sd, 4)}",
        "bound": tables.figure("bound", 4),
        "over bound": lambda row: tables.number(row.over, 2) + " ✗" * (row.over > MAX_OVER_BOUND),
        "Laplace + FCM is worse by": lambda row: tables.number(row.better, 0) + " ✗" * (row.better < MIN_TIMES_BETTER),
    }
    return tables.listing(ours.sort_values("method", key=lambda names: names == OURS, kind="stable"), columns)


def rmse_tables(summary: pd.DataFrame) -> str:
    """Return RMSE (ARI) of every set with known means: a line per method and one for the bound."""
    return "\n".join(
        f"**{name}, {n:,} reports**\n\n{_rmse_table(group)}"
        for name, n, group in tables.sets_of(summary[summary.set.str.startswith("blobs")])
    )


def _rmse_table(group: pd.DataFrame) -> str:
    epsilons = tables.epsilons_of(group)
    bounds = group.groupby("epsilon").bound.first().reindex(epsilons)
    cells = tables.in_order(tables.at_every_epsilon(group), METHODS)
    last_line = ["*information bound*", *(tables.number(bound, 4) for bound in bounds)]
    return tables.pivot(cells, {"method": "method"}, "epsilon", epsilons, _rmse_and_ari, [last_line])


def _rmse_and_ari(row: Any) -> str:
    return tables.NONE if pd.isna(row.rmse) else f"{row.rmse:.4f} ({row.ari:.2f})"


def nicv_tables(summary: pd.DataFrame) -> str:
    """Return a table per epsilon of NICV over that of k-means: a line per set, a column per method."""
    shown = [name for name in METHODS if METHODS[name].kind != "paper" and name not in (FCM, K_MEANS, AUTO)]
    rows = {
        "set": tables.name_text,
        "reports": tables.reports_text,
        "features": tables.figure("n_features", 0),
        "K": tables.figure("clusters", 0),
    }
    return tables.table_per_epsilon(
        summary, rows, tables.methods_of(summary, shown), tables.figure("nicv_ratio", 2), tables.epsilons_of(summary)
    )


def ablation_tables(summary: pd.DataFrame) -> str:
    """Return the paper's two measures and RMSE for every set: a line per distance, `NoPriv` last."""
    schemes = {**ABLATION, FCM: "NoPriv"}
    measures = {"f_measure": "F-measure", "entropy": "Entropy", "rmse": "RMSE"}
    parts = []
    for name, n, group in tables.sets_of(summary[summary.method.isin(list(schemes))]):
        if group.method[group.method.isin(list(ABLATION))].nunique() < 2:
            continue  # nothing to compare
        epsilons = tables.epsilons_of(group)
        cells = tables.in_order(tables.at_every_epsilon(group), schemes).assign(
            scheme=lambda rows: rows.method.map(schemes)
        )
        cells = cells.rename(columns=measures).melt(["scheme", "epsilon"], [*measures.values()], "measure")
        known = cells.groupby(["scheme", "measure"]).value.transform("count") > 0
        rows = {"scheme": "scheme", "measure": "measure"}
        body = tables.pivot(cells[known], rows, "epsilon", epsilons, lambda row: tables.number(row.value, 3))
        parts.append(f"**{name}, {n:,} reports**\n\n{body}")
    return "\n".join(parts)


def time_table(summary: pd.DataFrame) -> str:
    """Return CPU seconds of the server on one set, over fuzzy c-means without privacy, and of the iterations alone."""
    group = summary[(summary.set == TIMED[0]) & (summary.n == TIMED[1]) & summary.time_ratio.notna()]
    epsilons = [epsilon for epsilon in tables.epsilons_of(group) if epsilon >= 1]
    cells = tables.in_order(tables.at_every_epsilon(group), METHODS)
    return tables.pivot(cells, {"method": "method"}, "epsilon", epsilons, _time) if epsilons else ""


def _time(row: Any) -> str:
    loop = "" if pd.isna(row.loop_ratio) else f"; {row.loop_ratio:.2f}"
    return f"{row.seconds:.2f} s ({tables.number(row.time_ratio, 2)}{loop})"


def label_table(summary: pd.DataFrame) -> str:
    """Return ARI of labels that devices give themselves, and of labels that noisy reports get, by two centroids."""
    chosen = summary[summary.report_ari.notna() & summary.set.str.startswith("blobs")]
    columns = {
        "set": "set",
        "method": "method",
        "ε": tables.epsilon_text,
        "on devices": tables.figure("ari", 3),
        "of noisy reports": tables.figure("report_ari", 3),
        "the same, true centroids": tables.figure("report_ari_true", 3),
    }
    return tables.listing(chosen[chosen.method.isin([FUZZY, "PrivKM"])], columns)


def regret_table(summary: pd.DataFrame) -> str:
    """Return NICV of `phase_sketch`, `grid_kmeans` and `auto`, and how much `auto` loses to the better of the two."""
    methods = [OURS, GRID, AUTO]
    chosen = summary[summary.method.isin(methods)]
    ratios = chosen.pivot(index=AT, columns="method", values="nicv_ratio").reindex(columns=methods).dropna()
    if ratios.empty:
        return ""
    regrets = ratios.div(ratios[[OURS, GRID]].min(axis=1), axis=0) - 1
    kept = chosen[chosen.method == AUTO].join(regrets, on=AT, how="inner")
    kept = kept.join(ratios.add_prefix("ratio "), on=AT)
    columns = {
        "set": tables.name_text,
        **tables.SHAPE,
        "reports": tables.reports_text,
        "ε": tables.epsilon_text,
        **{method: tables.figure(f"ratio {method}", 3) for method in methods},
        "regret": tables.figure(AUTO, 0, percent=True),
    }
    text = tables.listing(kept, columns)
    for is_few, group in kept.groupby(kept.n_features <= MAX_SHIFTED_FEATURES):
        features = "up to three features" if is_few else "four features"
        ours, grid, auto = (tables.number(100 * group[method].mean(), 0, " %") for method in methods)
        worst = tables.number(100 * group[AUTO].max(), 0, " %")
        text += (
            f"\nMean regret in {features}, {len(group)} rows: `{AUTO}` {auto} (at worst {worst}), "
            f"`{OURS}` throughout {ours}, `{GRID}` throughout {grid}.\n"
        )
    return text

"""Tables of summaries: pivots of formatted figures, as Markdown."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from benchmarks.output import table

Cell = Callable[[Any], str]  # (row of a summary) to its text
Columns = Mapping[str, Any]  # heads of a table, each with a `Cell` or the name of a column of the summary
NONE = "–"  # a run that was refused or not made


def number(value: float | None, digits: int, unit: str = "") -> str:
    """Format a number without a minus before zero; a missing number is a dash."""
    return NONE if value is None or pd.isna(value) else f"{round(value, digits) + 0.0:.{digits}f}{unit}"


def figure(column: str, digits: int, *, percent: bool = False) -> Cell:
    """Return a cell with a number of a row."""
    return lambda row: number(100 * row[column], digits, " %") if percent else number(row[column], digits)


SHAPE = {"features": figure("n_features", 0), "K": figure("clusters", 0)}


def name_text(row: Any) -> str:
    """Return the name of a data set with its marks."""
    return f"{row['set']}{row['mark']}"


def reports_text(row: Any) -> str:
    """Return the number of reports."""
    return f"{row.n:,}"


def epsilon_text(row: Any) -> str:
    """Return the epsilon, or an empty text if the method takes none."""
    return "" if pd.isna(row.epsilon) else f"{row.epsilon:g}"


def epsilons_of(summary: pd.DataFrame) -> list[float]:
    """Return the epsilons of a summary in ascending order."""
    return sorted(summary.epsilon.dropna().unique())


def methods_of(summary: pd.DataFrame, order: Iterable[str]) -> list[str]:
    """Return the methods that a summary has, in the given order."""
    present = set(summary.method)
    return [name for name in order if name in present]


def sets_of(summary: pd.DataFrame) -> Iterator[tuple[str, int, pd.DataFrame]]:
    """Yield marked name, size and rows of every data set, in the order in which they first appear."""
    for (name, n), group in summary.groupby(["set", "n"], sort=False):
        yield f"{name}{group.mark.iloc[0]}", n, group


def at_every_epsilon(summary: pd.DataFrame) -> pd.DataFrame:
    """Repeat the rows of methods that take no epsilon at every epsilon."""
    epsilons = epsilons_of(summary)
    lists = [epsilons if pd.isna(epsilon) else [epsilon] for epsilon in summary.epsilon]
    return summary.assign(epsilon=lists).explode("epsilon").dropna(subset="epsilon").astype({"epsilon": float})


def in_order(summary: pd.DataFrame, methods: Iterable[str]) -> pd.DataFrame:
    """Sort a summary by its methods, then by how they get K; equal rows keep their order."""
    orders = {"method": list(methods), "k": ["given", "auto", "tuned"]}
    return summary.sort_values([*orders], key=lambda values: values.map(orders[values.name].index), kind="stable")


def listing(summary: pd.DataFrame, columns: Columns) -> str:
    """Return a table with one line per row of a summary, and a cell or a column of the summary under each head."""
    return table([*columns], _texts(summary, columns).to_numpy().tolist())


def pivot(
    summary: pd.DataFrame,
    rows: Columns,
    column: str,
    order: Sequence[Any],
    cell: Cell,
    last_lines: Sequence[Sequence[str]] = (),
) -> str:
    """Return a table with one line per distinct `rows`, in their order, and one column per value of `column`.

    The summary has at most one row per cell. `order` has the values of `column` in the order of the table.
    """
    heads, texts = list(rows), _texts(summary, rows)
    cells = texts.assign(cell=_texts(summary, {"cell": cell}).cell, column=summary[column].to_numpy())
    lines = cells.pivot(index=heads, columns="column", values="cell").reindex(columns=order).fillna(NONE)
    lines = lines.reindex(texts.drop_duplicates().set_index(heads).index).reset_index()
    more_heads = [f"ε={value:g}" if column == "epsilon" else value for value in order]
    return table([*heads, *more_heads], [*lines.to_numpy().tolist(), *last_lines])


def table_per_epsilon(
    summary: pd.DataFrame, rows: Columns, methods: Sequence[str], cell: Cell, epsilons: Iterable[float]
) -> str:
    """Return a table per epsilon with a column per method, of the sets where another method than the last has NICV."""
    cells = at_every_epsilon(summary[summary.method.isin(methods)])
    parts = []
    for epsilon in epsilons:
        here = cells[cells.epsilon == epsilon]
        compared = here[here.nicv_ratio.notna() & (here.method != methods[-1])].set_index(["set", "n"]).index
        lines = here[here.set_index(["set", "n"]).index.isin(compared)]
        if not lines.empty:
            parts.append(f"**ε = {epsilon:g}**\n\n{pivot(lines, rows, 'method', methods, cell)}")
    return "\n".join(parts)


def _texts(summary: pd.DataFrame, columns: Columns) -> pd.DataFrame:
    rows = [row for _, row in summary.iterrows()]
    texts = {head: [cell(row) if callable(cell) else str(row[cell]) for row in rows] for head, cell in columns.items()}
    return pd.DataFrame(texts, columns=[*columns])

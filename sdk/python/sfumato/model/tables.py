"""Columns of numpy arrays, pandas data frames, and tables in HTML for notebooks."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-not-found,import-untyped,unused-ignore]

Columns = dict[str, NDArray[Any]]

_COLOURS = ("#4477aa", "#ccbb44", "#dddddd")


def add_column(columns: Columns, name: str, values: NDArray[Any]) -> None:
    """Add a column. A feature with the name of another column gets the prefix `feature_`."""
    columns[f"feature_{name}" if name in columns else name] = values


def new_frame(columns: Mapping[str, Any], index: Any = None) -> "DataFrame":
    """Return columns as a DataFrame. Raise ImportError if pandas is missing."""
    try:
        import pandas  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise ImportError("a frame needs pandas: pip install pandas") from None
    return pandas.DataFrame(dict(columns), index=index)


def html_table(rows: Mapping[str, str], picture: str = "") -> str:
    """Return rows of names and values as an HTML table, below a picture."""
    cells = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows.items())
    return f"{picture}<table>{''.join(cells)}</table>"


def html_bar(parts: Sequence[float], whole: float) -> str:
    """Return an SVG bar, 300 pixels wide, of up to three parts of a whole in different colours."""
    start, boxes = 0.0, list[str]()
    for part, colour in zip(parts, _COLOURS, strict=False):
        width = 300 * part / whole if whole > 0 else 0.0
        boxes.append(f'<rect x="{start:.1f}" width="{width:.1f}" height="12" fill="{colour}"/>')
        start += width
    return f'<svg width="300" height="12" role="img" xmlns="http://www.w3.org/2000/svg">{"".join(boxes)}</svg>'

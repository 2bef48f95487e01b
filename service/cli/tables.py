"""Tables and bars of block characters, as commands print them."""

from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table

BAR_CELLS = 24
ID_CELLS = 30
FILE_CELLS = 160  # line width if the output is not a terminal
CHARGED, RESERVED, FREE = "█", "▒", "░"
_EIGHTHS = " ▏▎▍▌▋▊▉"


def open_console(*, stderr: bool = False) -> Console:
    """Return a console on stdout or stderr that highlights nothing."""
    console = Console(stderr=stderr, highlight=False, soft_wrap=True)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, soft_wrap=True, width=FILE_CELLS)


def share_bar(part: float, whole: float) -> str:
    """Return a bar of BAR_CELLS characters for part / whole, with a resolution of an eighth of a cell."""
    share = min(max(part / whole, 0.0), 1.0) if whole > 0 else 0.0
    full, eighths = divmod(round(share * BAR_CELLS * 8), 8)
    return ("█" * full + (_EIGHTHS[eighths] if eighths else "")).ljust(BAR_CELLS)


def budget_bar(granted_nano: int, charged_nano: int, reserved_nano: int) -> str:
    """Return a bar of the charged, reserved and free budget.

    Charged and reserved amounts are rounded up, so that a small amount stays visible.
    """
    if granted_nano <= 0:
        return FREE * BAR_CELLS
    charged = -(-charged_nano * BAR_CELLS // granted_nano)
    reserved = min(-(-reserved_nano * BAR_CELLS // granted_nano), BAR_CELLS - charged)
    return CHARGED * charged + RESERVED * reserved + FREE * (BAR_CELLS - charged - reserved)


def new_table(*columns: str, numbers: Iterable[str] = ()) -> Table:
    """Return an empty table; the columns named in `numbers` are right-aligned."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        width = ID_CELLS if name in ("id", "round", "job") else None  # show ids in full
        justify: JustifyMethod = "right" if name in numbers else "left"
        table.add_column(name, justify=justify, no_wrap=width is not None, min_width=width, overflow="fold")
    return table


def plain(text: str) -> str:
    """Return a text without terminal control characters, as a table shows it."""
    return escape("".join(letter if letter.isprintable() else "\ufffd" for letter in text))

"""Tables, pages, charts and errors of the benchmarks. Charts have the style of the product's plots."""

import argparse
import io
import json
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

LEFT_ALIGNED = frozenset({"method", "set", "scheme", "measure", "which", "what", "against", "quartiles", "", "machine"})
INK, FAINT_INK, LINE = "#222222", "#666666", "#999999"
DOTS_PER_INCH = 150


class MissingTool(Exception):
    """A tool that a measurement needs is not on this machine.

    Parameters
    ----------
    what : str
        A sentence without its full stop.
    command : str
        The command that installs it.
    """

    def __init__(self, what: str, command: str) -> None:
        super().__init__(f"{what}: `{command}` installs it")


def read_runs(path: Path) -> list[dict[str, Any]]:
    """Return the runs of a file with one JSON object a line; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append_runs(path: Path, runs: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Append each run to a file as soon as it is measured, and yield it."""
    with path.open("a") as file:
        for run in runs:
            print(json.dumps(run), file=file, flush=True)
            yield run


def table(heads: Sequence[str], lines: Sequence[Sequence[str]], left: Collection[str] = LEFT_ALIGNED) -> str:
    """Return a Markdown table, or an empty text if it has no lines. Columns under heads of `left` are text."""
    if not lines:
        return ""
    rule = ["---" if head in left else "---:" for head in heads]
    return "".join(f"| {' | '.join(line)} |\n" for line in (heads, rule, *lines))


def fill(text: str, bodies: Mapping[str, str]) -> str:
    """Replace what stands between `<!-- begin: NAME -->` and `<!-- end: NAME -->` for each name of `bodies`.

    Raises
    ------
    ValueError
        The text lacks one of the blocks.
    """
    for name, body in bodies.items():
        begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"the page has no block {name}: add `{begin}` and `{end}`")
        text = f"{before}{begin}\n{body.strip()}\n{end}{after}"
    return text


def run_page_command(
    program: str,
    arguments: Sequence[str],
    blocks: Callable[[Path], Mapping[str, str]],
    pictures: Callable[[Path], Iterable[tuple[Path, str]]] | None = None,
) -> int:
    """Put tables into the marked blocks of pages, and copy pictures, if there are some.

    Parameters
    ----------
    blocks : callable
        (folder of results) to the content of each block by its name.
    pictures : callable, optional
        (folder of results) to paths of pictures, with the names of their copies.
    """
    description = "Put tables into the blocks `<!-- begin: NAME -->` to `<!-- end: NAME -->` of pages."
    parser = argparse.ArgumentParser(prog=f"{program} page", description=description)
    parser.add_argument("--results", type=Path, metavar="DIR", required=True, help="folder of results")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", nargs="+", required=True, help="Markdown files with marked blocks"
    )
    if pictures is not None:
        parser.add_argument("--images", type=Path, metavar="DIR", help="folder to copy pictures to; default: copy none")
    options = parser.parse_args(arguments)
    bodies = blocks(options.results)
    if not bodies:
        parser.error(f"there are no results in {options.results}")
    pages = {page: page.read_text(encoding="utf-8") for page in options.page}
    for name, body in bodies.items():
        page = next((each for each, text in pages.items() if f"<!-- begin: {name} -->" in text), options.page[0])
        try:
            pages[page] = fill(pages[page], {name: body})
        except ValueError as error:
            parser.error(str(error))
    for page, text in pages.items():
        page.write_text(text, encoding="utf-8")
    if pictures is not None and options.images is not None:
        for picture, name in pictures(options.results):
            shutil.copyfile(picture, options.images / name)
    return 0


@contextmanager
def chart_settings() -> Iterator[None]:
    """Apply the settings of matplotlib: text stays text, and equal figures give equal bytes."""
    ours: dict[Any, Any] = {
        "font.family": ["sans-serif"],
        "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
        "font.size": 8,
        "svg.fonttype": "none",
        "svg.hashsalt": "sfumato",
        "text.parse_math": False,
        "text.color": INK,
        "axes.edgecolor": LINE,
        "axes.labelcolor": INK,
        "axes.linewidth": 0.7,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": LINE,
        "ytick.color": LINE,
        "xtick.labelcolor": FAINT_INK,
        "ytick.labelcolor": FAINT_INK,
    }
    with matplotlib.rc_context(ours):
        yield


def add_heading(figure: Figure, title: str, caption: str) -> None:
    """Write the title, and the caption below it, at the upper left."""
    width, height = figure.get_size_inches()
    figure.text(0.12 / width, 1 - 0.14 / height, title, size=12, weight="bold", va="top")
    figure.text(0.12 / width, 1 - 0.4 / height, caption, size=8.5, color=FAINT_INK, va="top")


def save(figure: Figure, path: Path) -> None:
    """Write `path`.svg and `path`.png."""
    document = io.BytesIO()
    metadata = {"Date": None, "Creator": "sfumato"}
    figure.savefig(document, format="svg", dpi=DOTS_PER_INCH, metadata=metadata)
    path.with_suffix(".svg").write_bytes(document.getvalue())
    figure.savefig(path.with_suffix(".png"), format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})

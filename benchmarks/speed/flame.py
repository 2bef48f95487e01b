"""Draw samples of a profiler as a flame graph, as SVG and PNG without scripts.

    py-spy record -f raw -o stacks.txt -- python ...
    python -m benchmarks.speed.flame stacks.txt picture --below decode_and_plan --title "..."

Each line of the file is a stack, outermost frame first, separated by `;`, and its number of samples.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.output import add_heading, chart_settings, save

WIDTH_INCHES, ROW_INCHES = 11.0, 0.16
MIN_SHARE = 0.004  # smallest share of all samples that is drawn
LETTERS = 180  # letters in the width of the picture
COLOURS = ("#e8a33d", "#e58f4a", "#d9783f", "#eab65c")

_LINE = re.compile(r":\d+\)$")
_PATH = re.compile(r"\((?:[^():]*/)?([^/():]+)\.(?:py|pyx|so)")


@dataclass
class Frame:
    """A function, called by the frames above it."""

    name: str
    n_samples: int = 0
    below: dict[str, "Frame"] = field(default_factory=dict)


def read(lines: Iterable[str], below: str | None = None) -> Frame:
    """Return the tree of all stacks, or of the parts of stacks that `below` calls.

    Raises
    ------
    ValueError
        A line is no stack, or no stack has `below`.
    """
    root = Frame(below or "all")
    for line in lines:
        stack, _, number = line.strip().rpartition(" ")
        if not number.isdigit():
            raise ValueError(f"no stack: {line.strip()[:60]!r}")
        if not stack:  # a sample between two frames
            continue
        frames = [frame_name(frame) for frame in stack.split(";")]
        if below is not None:
            places = [place for place, name in enumerate(frames) if name.split(" ")[0] == below]
            if not places:
                continue
            frames = frames[places[0] + 1 :]
        _add(root, frames, int(number))
    if root.n_samples == 0:
        raise ValueError("no stack has the function of --below")
    return root


def _add(root: Frame, frames: Sequence[str], number: int) -> None:
    root.n_samples += number
    for name in frames:
        root = root.below.setdefault(name, Frame(name))
        root.n_samples += number


def frame_name(frame: str) -> str:
    """Return `function (file)` without line number and folder."""
    function = frame.split(" (")[0]
    path = _PATH.search(frame)
    return f"{function} ({path[1]})" if path else _LINE.sub("", function)


def render(root: Frame, title: str) -> Figure:
    """Draw the frames, the outermost one on top; a wider box has more samples."""
    boxes = list(_boxes(root, 0.0, 0, root.n_samples))
    n_rows = 1 + max(depth for _, _, depth, _ in boxes)
    height = 0.5 + ROW_INCHES * n_rows
    figure = Figure(figsize=(WIDTH_INCHES, height))
    add_heading(figure, title, f"{root.n_samples:,} samples; wide is long")
    axes = figure.add_axes((0, 0, 1, ROW_INCHES * n_rows / height), xlim=(0, 1), ylim=(n_rows - 0.5, -0.5))
    axes.set_axis_off()
    for frame, left, depth, share in boxes:
        colour = COLOURS[sum(map(ord, frame.name)) % len(COLOURS)]
        axes.barh(depth, share, left=left, height=0.93, color=colour)
        label, n_letters = f"{frame.name} {share:.1%}", int(share * LETTERS) - 1
        if n_letters >= 4:
            text = label if len(label) <= n_letters else label[: n_letters - 1] + "…"
            axes.text(left + 0.002, depth, text, fontsize=7, va="center")
    return figure


def _boxes(frame: Frame, left: float, depth: int, total: int) -> Iterator[tuple[Frame, float, int, float]]:
    share = frame.n_samples / total
    if share < MIN_SHARE:
        return
    yield frame, left, depth, share
    for each in sorted(frame.below.values(), key=lambda one: -one.n_samples):
        yield from _boxes(each, left, depth + 1, total)
        left += each.n_samples / total


def main(arguments: Sequence[str]) -> int:
    """Read stacks and write the picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.flame", description=__doc__)
    parser.add_argument("stacks", type=Path, metavar="FILE", help="stacks of the profiler")
    parser.add_argument("picture", type=Path, metavar="PATH", help="picture to write, without its ending")
    parser.add_argument("--below", metavar="FUNCTION", help="draw only the calls of this function")
    parser.add_argument("--title", default="Where the time goes", help="title of the picture")
    options = parser.parse_args(arguments)
    try:
        root = read(options.stacks.read_text(encoding="utf-8").splitlines(), options.below)
    except ValueError as error:
        parser.error(str(error))
    with chart_settings():
        save(render(root, options.title), options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

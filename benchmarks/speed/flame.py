"""Draw what a sampling profiler saw as a flame graph: a small SVG without scripts.

    py-spy record -f raw -o stacks.txt -- python ...
    python -m benchmarks.speed.flame stacks.txt picture.svg --below decode_and_plan --title "..."

Each line of the file is a stack, outermost frame first, split by `;`, and how often it was seen.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

WIDTH, ROW, TOP = 1000.0, 15.0, 34.0
LEAST_SHARE = 0.004  # of all samples: what is less is not drawn
LETTER = 5.6  # pixels wide
COLOURS = ("#e8a33d", "#e58f4a", "#d9783f", "#eab65c")

_LINE = re.compile(r":\d+\)$")
_PATH = re.compile(r"\((?:[^():]*/)?([^/():]+)\.(?:py|pyx|so)")


@dataclass
class Frame:
    """A function, called from the frames above it."""

    name: str
    n_samples: int = 0
    below: dict[str, "Frame"] = field(default_factory=dict)


def read(lines: Iterable[str], below: str | None = None) -> Frame:
    """The tree of all stacks, of a stack what is called by `below`.

    Raises
    ------
    ValueError
        A line is no stack, or none holds `below`.
    """
    root = Frame(below or "all")
    for line in lines:
        stack, _, number = line.strip().rpartition(" ")
        if not number.isdigit():
            raise ValueError(f"no stack: {line.strip()[:60]!r}")
        if not stack:  # seen between two frames
            continue
        frames = [named(frame) for frame in stack.split(";")]
        if below is not None:
            places = [place for place, name in enumerate(frames) if name.split(" ")[0] == below]
            if not places:
                continue
            frames = frames[places[0] + 1 :]
        _add(root, frames, int(number))
    if root.n_samples == 0:
        raise ValueError("no stack holds what was asked for")
    return root


def _add(root: Frame, frames: Sequence[str], number: int) -> None:
    root.n_samples += number
    for name in frames:
        root = root.below.setdefault(name, Frame(name))
        root.n_samples += number


def named(frame: str) -> str:
    """`function (file)`: no line, and nothing of where the file lies."""
    function = frame.split(" (")[0]
    path = _PATH.search(frame)
    return f"{function} ({path[1]})" if path else _LINE.sub("", function)


def drawn(root: Frame, title: str) -> str:
    """The picture, the outermost frame on top."""
    boxes = list(_boxes(root, 0.0, 0, root.n_samples))
    height = TOP + ROW * (1 + max(depth for _, _, depth, _ in boxes)) + 6
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" font-family="sans-serif">',
        f'<rect width="{WIDTH:g}" height="{height:g}" fill="#ffffff"/>',
        f'<text x="4" y="14" font-size="13">{escape(title)}</text>',
        f'<text x="4" y="28" font-size="10" fill="#555555">{root.n_samples:,} samples; wide is long</text>',
    ]
    for frame, left, depth, share in boxes:
        y = TOP + ROW * depth
        label = f"{frame.name} {share:.1%}"
        parts.append(
            f'<g><title>{escape(label)}</title><rect x="{left * WIDTH:.1f}" y="{y:g}" width="{share * WIDTH:.1f}" '
            f'height="{ROW - 1:g}" fill="{COLOURS[sum(map(ord, frame.name)) % len(COLOURS)]}"/>'
        )
        n_letters = int(share * WIDTH / LETTER) - 1
        if n_letters >= 4:
            text = label if len(label) <= n_letters else label[: n_letters - 1] + "…"
            parts.append(f'<text x="{left * WIDTH + 2:.1f}" y="{y + 10.5:g}" font-size="9.5">{escape(text)}</text>')
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _boxes(frame: Frame, left: float, depth: int, total: int) -> Iterator[tuple[Frame, float, int, float]]:
    share = frame.n_samples / total
    if share < LEAST_SHARE:
        return
    yield frame, left, depth, share
    for each in sorted(frame.below.values(), key=lambda one: -one.n_samples):
        yield from _boxes(each, left, depth + 1, total)
        left += each.n_samples / total


def main(arguments: Sequence[str]) -> int:
    """Read stacks, write the picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.flame", description=__doc__)
    parser.add_argument("stacks", type=Path, metavar="FILE")
    parser.add_argument("picture", type=Path, metavar="SVG")
    parser.add_argument("--below", metavar="FUNCTION", help="only what it calls")
    parser.add_argument("--title", default="Where the time goes")
    options = parser.parse_args(arguments)
    try:
        root = read(options.stacks.read_text(encoding="utf-8").splitlines(), options.below)
    except ValueError as error:
        parser.error(str(error))
    options.picture.write_text(drawn(root, options.title), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Drawings of the page of a series: the stream of shares, and small maps, as text of SVG without a library."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from service.console.forms import Json
from sfumato.plotting.shading import colour, to_xml_text

WIDTH, HEIGHT = 800, 240  # units of the drawing of the stream
MOST_WHISKERS = 400


def with_colours(clusters: Sequence[Json]) -> list[Json]:
    """Return clusters, oldest first, with a title and a colour that stay the same."""
    return [
        each | {"title": each["name"] or f"cluster {place}", "colour": colour(place)[1]}
        for place, each in enumerate(clusters)
    ]


def stream(windows: Sequence[Json], clusters: Sequence[Json], events: Sequence[Json]) -> Json | None:
    """Return the geometry of the stacked shares of the windows with clusters, oldest first; None without any.

    Shares are those of the windows alone, scaled to a sum of 1. A missing window is drawn across.
    """
    shown = [window for window in windows if window["clusters"]]
    if not shown or not clusters:
        return None
    first, last = shown[0]["index"], shown[-1]["index"]
    place = {each["id"]: number for number, each in enumerate(clusters)}
    shares, errors = np.zeros((2, len(clusters), len(shown)))
    for column, window in enumerate(shown):
        for each in window["clusters"]:
            if each["cluster_id"] in place:
                row = place[each["cluster_id"]]
                shares[row, column], errors[row, column] = each["share"], each["error"]
    shares /= np.maximum(shares.sum(axis=0), 1e-9)
    width = WIDTH / (last - first + 1)
    middles = [(window["index"] - first + 0.5) * width for window in shown]
    edges = [0.0, *middles, float(WIDTH)]
    tops = np.vstack([np.zeros(len(shown)), shares.cumsum(axis=0)])
    heights = np.pad(tops, ((0, 0), (1, 1)), mode="edge") * HEIGHT
    bands: list[Json] = []
    whiskers: list[str] = []
    for row, each in enumerate(clusters):
        if not shares[row].any():
            continue
        upper = [f"{x:.1f},{y:.1f}" for x, y in zip(edges, heights[row + 1], strict=True)]
        lower = [f"{x:.1f},{y:.1f}" for x, y in zip(edges, heights[row], strict=True)]
        bands.append({"colour": each["colour"], "title": each["title"], "points": " ".join(lower + upper[::-1])})
        for column in range(len(shown)):
            half = 2 * errors[row, column] * HEIGHT
            if half and len(whiskers) < MOST_WHISKERS and row + 1 < len(clusters):
                y = heights[row + 1, column + 1]
                whiskers.append(f"M{middles[column]:.1f} {max(y - half, 0):.1f}V{min(y + half, HEIGHT):.1f}")
    found = [
        {
            "window": each["window"],
            "alarm": round((each["window"] - first + 0.5) * width, 1),
            "x": round(max(each["change_first"] - first, 0) * width, 1),
            "width": round((each["change_last"] - max(each["change_first"], first) + 1) * width, 1),
        }
        for each in events
        if first <= each["window"] <= last
    ]
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "bands": bands,
        "whiskers": whiskers,
        "events": found,
        "first": first,
        "last": last,
        "n_windows": len(shown),
        "shares": {each["cluster_id"]: (each["share"], each["error"]) for each in shown[-1]["clusters"]},
    }


def map_svg(found: Json, clusters: Sequence[Json]) -> str:
    """Return a label map as SVG, one path per cluster. Of three features, the densest layer of each place is drawn."""
    model = found["model"]
    labels = np.array(model["labels"]).reshape(model["grid_shape"])
    if labels.ndim == 1:
        labels = labels[:, None]
    if labels.ndim == 3:
        densest = np.array(model["density"]).reshape(labels.shape).argmax(axis=2)
        labels = np.take_along_axis(labels, densest[..., None], axis=2)[..., 0]
    colours = {each["id"]: each["colour"] for each in clusters}
    rows = labels.T[::-1]  # the second feature points up
    paths: dict[int, list[str]] = {}
    for y, row in enumerate(rows.tolist()):
        x = 0
        for label, run in groupby(row):
            n = len(list(run))
            paths.setdefault(label, []).append(f"M{x} {y}h{n}v1h-{n}z")
            x += n
    height, width = rows.shape
    title = to_xml_text(f"Map of window {found['window']}")
    body = "".join(
        f'<path fill="{colours.get(found["cluster_ids"][label], "#dddddd")}" d="{"".join(parts)}"/>'
        for label, parts in sorted(paths.items())
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" preserveAspectRatio="none" '
        f'shape-rendering="crispEdges"><title>{title}</title>{body}</svg>'
    )

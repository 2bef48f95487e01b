"""Makes the SDK's coastline: `npm pack world-atlas@2.0.2 && python tools/coastline.py world-atlas-2.0.2.tgz`.

The package holds Natural Earth's 1:110m land as TopoJSON: arcs, quantised, each point as a step from the one before.
Written are its outer and inner rings, rounded to a tenth of a degree, without the points that then fall together:
the same bytes from the same package.
"""

import json
import sys
import tarfile
from pathlib import Path
from typing import Any

OUT = Path(__file__).parents[1] / "sdk" / "python" / "sfumato" / "coastline.json"
MEMBER, LICENCE = "package/land-110m.json", "package/LICENSE"
MAX_BYTES = 60_000
MIN_POINTS = 4  # a ring of fewer has no area

Json = dict[str, Any]
Point = tuple[float, float]


def arcs(topology: Json) -> list[list[Point]]:
    """Every arc in degrees."""
    (x_scale, y_scale), (x_origin, y_origin) = topology["transform"]["scale"], topology["transform"]["translate"]
    found = []
    for steps in topology["arcs"]:
        x = y = 0
        line = []
        for right, up in steps:
            x, y = x + right, y + up
            line.append((x * x_scale + x_origin, y * y_scale + y_origin))
        found.append(line)
    return found


def rings(topology: Json) -> list[list[int]]:
    """Every ring as x, y, x, y ... in tenths of a degree."""
    lines, found = arcs(topology), []
    for geometry in topology["objects"]["land"]["geometries"]:
        for polygon in geometry["arcs"]:
            for parts in polygon:
                ring: list[tuple[int, int]] = []
                for part in parts:  # ~i is arc i backwards
                    for x, y in lines[part] if part >= 0 else lines[~part][::-1]:
                        point = round(10 * x), round(10 * y)
                        if not ring or ring[-1] != point:
                            ring.append(point)
                if len(ring) >= MIN_POINTS:
                    found.append([value for point in ring for value in point])
    return found


def write(package: Path, out: Path) -> None:
    """Write the file and its licence from the package."""
    with tarfile.open(package) as archive:
        member, licence = archive.extractfile(MEMBER), archive.extractfile(LICENCE)
        if member is None or licence is None:
            raise SystemExit(f"{package.name} holds no {MEMBER}")
        found, terms = rings(json.load(member)), licence.read().decode()
    head = {
        "about": "Coastlines: rings of longitude, latitude in tenths of a degree.",
        "source": "Natural Earth 1:110m land, public domain, as in world-atlas 2.0.2, rounded to a tenth of a degree.",
    }
    lines = [f"{json.dumps(name)}: {json.dumps(text)}," for name, text in head.items()]
    body = ",\n".join(json.dumps(ring, separators=(",", ":")) for ring in found)
    text = "\n".join(["{", *lines, '"rings": [', body, "]", "}", ""])
    if len(text) > MAX_BYTES:
        raise SystemExit(f"{len(text)} bytes are more than {MAX_BYTES}")
    out.write_text(text, encoding="utf-8")
    out.with_suffix(".LICENSE").write_text(
        "The data are Natural Earth's (naturalearthdata.com), in the public domain. world-atlas, which packs them:\n\n"
        + terms,
        encoding="utf-8",
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    write(Path(sys.argv[1]), OUT)

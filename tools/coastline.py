"""Write the SDK's coastline: `npm pack world-atlas@2.0.2 && python tools/coastline.py world-atlas-2.0.2.tgz`.

The package contains the 1:110m land of Natural Earth as TopoJSON: quantised arcs with delta-encoded points. The output
has its outer and inner rings, rounded to a tenth of a degree, without duplicate points. The output is reproducible.
"""

import json
import sys
import tarfile
from pathlib import Path
from typing import Any

OUT = Path(__file__).parents[1] / "sdk" / "python" / "sfumato" / "model" / "coastline.json"
MEMBER, LICENCE = "package/land-110m.json", "package/LICENSE"
MAX_BYTES = 60_000
MIN_POINTS = 4  # a ring with fewer points has no area

Json = dict[str, Any]
Point = tuple[float, float]


def read_arcs(topology: Json) -> list[list[Point]]:
    """Return the arcs in degrees."""
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


def read_rings(topology: Json) -> list[list[int]]:
    """Return the rings as x, y, x, y ... in tenths of a degree."""
    lines, found = read_arcs(topology), []
    for geometry in topology["objects"]["land"]["geometries"]:
        for polygon in geometry["arcs"]:
            for parts in polygon:
                ring: list[tuple[int, int]] = []
                for part in parts:  # ~i is the reversed arc i
                    for x, y in lines[part] if part >= 0 else lines[~part][::-1]:
                        point = round(10 * x), round(10 * y)
                        if not ring or ring[-1] != point:
                            ring.append(point)
                if len(ring) >= MIN_POINTS:
                    found.append([value for point in ring for value in point])
    return found


def write(package: Path, out: Path) -> None:
    """Write the file and its licence."""
    with tarfile.open(package) as archive:
        member, licence = archive.extractfile(MEMBER), archive.extractfile(LICENCE)
        if member is None or licence is None:
            raise SystemExit(f"{package.name} contains no {MEMBER}")
        found, terms = read_rings(json.load(member)), licence.read().decode()
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

"""Which software made a row: the release, and a digest of the modules behind one method."""

import ast
import hashlib
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

ROOMS = ("benchmarks", "clustering")  # the SDK is held still by its published vectors
SHARED = ("benchmarks.quality.data", "clustering.simulate")  # behind every row
# These name every method, so they would tie each to all; followed only where they are asked for.
NOT_FOLLOWED = ("benchmarks.quality.methods", "clustering.registry", "clustering.central.run")


@lru_cache(maxsize=256)
def software_version(module: str, behind: tuple[str, ...] = SHARED) -> str:
    """`<release>+<8 hex digits>`: another wherever a module that `module` or `behind` leads to has changed."""
    digest = hashlib.sha256()
    for name, path in sorted(_followed((module, *behind)).items()):
        digest.update(name.encode() + b"\0" + path.read_bytes())
    return f"{version('sfumato-server')}+{digest.hexdigest()[:8]}"


def _followed(modules: tuple[str, ...]) -> dict[str, Path]:
    """Files of these modules of our rooms and of all they import, themselves or through others."""
    found: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        asked_for = name in modules or name not in NOT_FOLLOWED
        if name in found or not asked_for or name.split(".")[0] not in ROOMS:
            continue
        try:
            spec = find_spec(name)
        except ModuleNotFoundError:
            spec = None  # `from a.b import c`, where c is no module
        if spec is None or spec.origin is None:
            continue
        found[name] = Path(spec.origin)
        for node in ast.walk(ast.parse(found[name].read_bytes())):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found

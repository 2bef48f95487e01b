"""Software versions of rows: the release, and a digest of the modules that a method consists of."""

import ast
import hashlib
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from clustering import registry
from clustering.central import run

PACKAGES = ("benchmarks", "clustering")  # published test vectors fix the behaviour of the SDK
# A module that imports every method would tie each method to all others, so its imports count only if it is named.
REGISTRIES = (registry.__name__, run.__name__)


@lru_cache(maxsize=256)
def software_version(*modules: str) -> str:
    """Return `<release>+<8 hex digits>`, which differs once one of these modules or of their imports changes."""
    digest = hashlib.sha256()
    for name, path in sorted(imported(modules).items()):
        digest.update(name.encode() + b"\0" + path.read_bytes())
    return f"{version('sfumato-server')}+{digest.hexdigest()[:8]}"


def imported(modules: tuple[str, ...]) -> dict[str, Path]:
    """Return the files of these modules and of all modules of `PACKAGES` that they import, directly or not."""
    found: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name in found or name.split(".")[0] not in PACKAGES or (name in REGISTRIES and name not in modules):
            continue
        try:
            spec = find_spec(name)
        except ModuleNotFoundError:
            spec = None  # `from a.b import c`, where c is not a module
        if spec is None or spec.origin is None:
            continue
        found[name] = Path(spec.origin)
        for node in ast.walk(ast.parse(found[name].read_bytes())):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found

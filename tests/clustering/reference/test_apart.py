"""Comparators stay apart: no plan, no service and no worker imports them."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]
APART = "clustering.reference"


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def importers(folders: tuple[str, ...]) -> set[str]:
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert files
    return {
        str(path.relative_to(ROOT))
        for path in files
        if any(name == APART or name.startswith(APART + ".") for name in imported(path))
    }


class TestReference:
    def test_is_imported_by_itself_alone_among_what_ships(self):
        found = importers(("clustering", "sdk/python/sfumato", "models", "service", "workers", "demo", "migrations"))
        assert {name for name in found if not name.startswith("clustering/reference/")} == set()
        assert "clustering/reference/clique.py" not in found

    def test_is_imported_by_the_benchmark(self):
        assert "benchmarks/quality/methods.py" in importers(("benchmarks",))

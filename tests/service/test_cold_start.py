"""What a start loads, and what it leaves to whoever needs it."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Each takes from a hundredth of a second to half a one, and a gateway without Redis, records and clusters needs none.
NOT_FOR_A_GATEWAY = {
    "alembic", "clustering", "cryptography", "dask", "httpx", "jinja2", "matplotlib", "numba", "psycopg", "pyarrow",
    "redis", "scipy", "sklearn", "stamina",
}  # fmt: skip
NOT_FOR_HELP = NOT_FOR_A_GATEWAY | {"fastapi", "numpy", "pydantic", "sqlalchemy", "uvicorn"}


def loaded(code: str) -> set[str]:
    """Top-level packages that a fresh process has after this."""
    told = f"{code}\nimport json, sys\nprint(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", told], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


class TestAStart:
    def test_of_a_gateway_loads_nothing_it_may_never_need(self) -> None:
        found = loaded("import service.app, service.cli, service.logs, service.server")
        assert {"fastapi", "numpy", "sqlalchemy"} <= found
        assert found & NOT_FOR_A_GATEWAY == set()

    def test_of_the_command_line_loads_nothing_heavy(self) -> None:
        found = loaded("import service.cli")
        assert "typer" in found
        assert found & NOT_FOR_HELP == set()

    def test_looks_for_no_garbage_while_it_loads_and_never_again_among_what_it_loaded(self) -> None:
        code = (
            "import gc\n"
            "from models.loading import loading\n"
            "with loading():\n    assert not gc.isenabled()\n    import service.app\n"
            "assert gc.isenabled()\nassert gc.get_freeze_count() > 100_000, gc.get_freeze_count()"
        )
        assert "fastapi" in loaded(code)

    def test_that_fails_leaves_the_collector_on(self) -> None:
        code = (
            "import gc\nfrom models.loading import loading\n"
            "try:\n    with loading():\n        raise ImportError\n"
            "except ImportError:\n    assert gc.isenabled()\nelse:\n    raise AssertionError"
        )
        assert loaded(code)

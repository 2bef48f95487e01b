"""The packages that a start loads."""

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.process import gc_paused

ROOT = Path(__file__).parents[3]

NOT_FOR_A_GATEWAY = {
    "alembic", "clustering", "cryptography", "dask", "demo", "httpx", "jinja2", "matplotlib", "numba", "psycopg",
    "pyarrow", "redis", "scipy", "sklearn", "tenacity", "watchfiles", "workers",
}  # fmt: skip
NOT_FOR_HELP = NOT_FOR_A_GATEWAY | {"fastapi", "numpy", "pydantic", "sqlalchemy", "structlog", "uvicorn"}


def load(code: str) -> set[str]:
    """Return the top-level packages that a new process has loaded after running the code."""
    program = f"{code}\nimport json, sys\nprint(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(run.stdout.splitlines()[-1]))


class TestAStart:
    def test_of_a_gateway_loads_no_package_that_it_may_never_need(self, tmp_path: Path) -> None:
        """Check the packages and the garbage collection of one start."""
        modules = load(
            "import gc, sys\n"
            "from runtime.process import gc_paused\n"
            "with gc_paused():\n"
            "    assert not gc.isenabled()\n"
            "    import service.app, service.cli.main, service.cli.serve, runtime.logging, service.server.server\n"
            "    import service.ingestion.report_endpoint\n"
            "assert gc.isenabled()\n"
            "assert gc.get_freeze_count() > 100_000, gc.get_freeze_count()\n"
            "from pathlib import Path\n"
            "from runtime.settings import Settings\n"
            "from models.database.engine import Database\n"
            "from models.database.schema import check_start\n"
            f"settings = Settings(home=Path({str(tmp_path)!r}))\n"
            "assert 'no schema yet' in check_start(Database.from_settings(settings), is_pooled=False)\n"
            "service.app.create_app(settings)\n"
            "unneeded = {'numpy.ma', 'service.api.openapi.reference_page', 'sqlalchemy.dialects.postgresql'}\n"
            "assert unneeded.isdisjoint(sys.modules)"
        )
        assert {"fastapi", "numpy", "sqlalchemy"} <= modules
        assert modules & NOT_FOR_A_GATEWAY == set()

    def test_of_the_command_line_loads_no_heavy_package(self) -> None:
        modules = load("import service.cli.main")
        assert "typer" in modules
        assert modules & NOT_FOR_HELP == set()

    def test_that_fails_leaves_the_collector_on(self) -> None:
        with pytest.raises(ImportError), gc_paused():
            raise ImportError
        assert gc.isenabled()

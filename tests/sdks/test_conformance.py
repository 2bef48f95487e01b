"""The devices in Python and TypeScript pass the conformance kit. `make sdks` runs it against the Kotlin device."""

import re
import sys
from pathlib import Path

import pytest

from tests.sdks.packages import ROOT, run

pytestmark = pytest.mark.slow


def conform(*command: str | Path) -> None:
    said = run(sys.executable, "-m", "audit.conformance", "--", *command, cwd=ROOT)
    summary = re.search(r"(\d+) cases \((.*)\): all pass", said)
    assert summary is not None, said
    assert int(summary[1]) >= 400
    assert "sealed" in summary[2]


def test_the_python_device_conforms() -> None:
    conform(sys.executable, "-m", "audit.conformance.reference")


def test_the_typescript_device_conforms(typescript: Path) -> None:
    conform("node", typescript / "conformance.mjs")

"""The files of vectors, as they are committed."""

import json
from pathlib import Path
from typing import Any

from sfumato.specs.rounds import SPEC_VERSION
from tests.vectors.answers import answer_vectors
from tests.vectors.devices import device_vectors, refusal_vectors
from tests.vectors.reports import cap_vectors, report_vectors
from tests.vectors.sealed import sealed_vectors

DIRECTORY = Path(__file__).resolve().parents[2] / "openapi" / "vectors"


def rendered() -> dict[str, str]:
    """Every file's name and text."""
    parts: dict[str, list[Any]] = {
        "reports": report_vectors(),
        "caps": cap_vectors(),
        "devices": device_vectors(),
        "refusals": refusal_vectors(),
        "answers": answer_vectors(),
        "sealed": sealed_vectors(),
    }
    return {f"{name}.json": _text(name, cases) for name, cases in parts.items()}


def _text(name: str, cases: list[Any]) -> str:
    """One case a line, so that a change is read as what it is."""
    lines = ",\n".join(json.dumps(case, separators=(",", ":"), ensure_ascii=True) for case in cases)
    return f'{{"version": {SPEC_VERSION}, "{name}": [\n{lines}\n]}}\n'

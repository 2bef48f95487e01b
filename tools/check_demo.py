"""Judge the demo by the JSON object it prints: exit 1, and say why, where it falls short.

Usage: sfumato demo --json | tail -n 1 | python tools/check_demo.py
"""

import json
import sys
from typing import Any

MIN_REPORTS = 200_000
MIN_ARI = 0.95  # agreement with the same pipeline on unperturbed counts, at epsilon 2
MAX_SECONDS = 60.0


def complaints(summary: dict[str, Any]) -> list[str]:
    """What is wrong with a demo's summary; nothing, where it is as promised."""
    checks = {
        f"fewer than {MIN_REPORTS} reports": summary["reports"] >= MIN_REPORTS,
        f"ari_vs_unperturbed is below {MIN_ARI}": summary["ari_vs_unperturbed"] >= MIN_ARI,
        "the ledger was not verified": summary["ledger_verified"] is True,
        "more epsilon was posted than granted": 0
        < float(summary["epsilon_posted"])
        <= float(summary["epsilon_granted"]),
        f"it took more than {MAX_SECONDS:g} s": summary["seconds"] <= MAX_SECONDS,
    }
    return [complaint for complaint, holds in checks.items() if not holds]


def main() -> int:
    summary = json.loads(sys.stdin.read())
    wrong = complaints(summary)
    for complaint in wrong:
        sys.stderr.write(f"the demo falls short: {complaint}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

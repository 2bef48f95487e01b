"""Judge the demo by the JSON object it prints: exit 1, and say why, where it falls short.

Usage: sfumato demo [--production] --json | tail -n 1 | python tools/check_demo.py [--production]

With --production the file the object names as its result is looked at too: what was killed, and that
the clusters and the ledger are the same all the same.
"""

import json
import sys
from pathlib import Path
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


def production_complaints(summary: dict[str, Any]) -> list[str]:
    """What is wrong with the accidents of a demo as in production."""
    told = json.loads(Path(summary["result"]).read_text(encoding="utf-8")).get("production")
    if told is None:
        return ["it was none as in production"]
    killed = sorted(each["what"].split("-")[0] for each in told["killed"])
    checks = {
        "not one gateway and one worker were killed": killed == ["gateway", "worker"],
        "the clusters are not the same": told["same_clusters"] is True,
        "the ledger is not the same": told["same_ledger"] is True,
    }
    return [*told["complaints"], *(complaint for complaint, holds in checks.items() if not holds)]


def main() -> int:
    summary = json.loads(sys.stdin.read())
    wrong = complaints(summary)
    if "--production" in sys.argv[1:]:
        wrong += production_complaints(summary)
    for complaint in wrong:
        sys.stderr.write(f"the demo falls short: {complaint}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""The summary of the demo: agreement with exact counts, cost, and output files."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustering.metrics import adjusted_rand_index
from demo.production import Comparison
from demo.scenario import DemoResult, Scene
from demo.shuffled import ShuffledOutcome
from sfumato.plotting import figures
from sfumato.privacy.accounting import NANO
from sfumato.records.encodings import scale_many


@dataclass(frozen=True)
class Agreement:
    """Adjusted Rand indices (1 for equal clusterings) with exact counts and, if the data have labels, with them."""

    with_unperturbed: float
    with_labels: float | None


def compute_exact_labels(scene: Scene, seed: int) -> NDArray[np.int64]:
    """Return the labels of the same pipeline over exact instead of perturbed symbols.

    Only the demo can compute them, because it knows the records. `seed` determines the grid shifts of the devices.
    """
    from clustering.simulate import simulate  # loads numba, which the main process of the demo does not need

    points = scale_many(scene.features, scene.records)
    model = simulate(scene.algorithm, points, seed=seed, perturb=False, features=scene.features)
    return model.assign(scene.records)


def measure_agreement(
    scene: Scene, outcome: DemoResult, exact: NDArray[np.int64], own: NDArray[np.int64] | None
) -> Agreement:
    """Label every record with the private model, and compare the labels.

    Parameters
    ----------
    exact : ndarray of shape (n,), int64
        Labels from `compute_exact_labels`.
    own : ndarray of shape (n,), int64, or None
        Labels of the data. Negative labels are ignored.
    """
    found = outcome.model.assign(scene.records)
    known = None if own is None else own >= 0
    return Agreement(
        with_unperturbed=adjusted_rand_index(found, exact),
        with_labels=None if own is None else adjusted_rand_index(found[known], own[known]),
    )


def summarize(
    scene: Scene, outcome: DemoResult, agreement: Agreement, names: Sequence[str], seconds: float
) -> dict[str, Any]:
    """Return the summary as a JSON object."""
    balance = outcome.budget.balance
    summary: dict[str, Any] = {
        "dataset": scene.name,
        "reports": outcome.n_reports,
        "singles": scene.singles,
        "epsilon": scene.algorithm.epsilon,
        "n_clusters": outcome.model.n_clusters,
        "verdict": outcome.model.verdict.value,
        "ari_vs_unperturbed": agreement.with_unperturbed,
        "epsilon_charged": balance.charged_nano / NANO,
        "epsilon_granted": balance.granted_nano / NANO,
        "ledger_entries": len(outcome.ledger),
        "ledger_verified": outcome.verification.ok,
        "shares": outcome.model.sizes.tolist(),
        "share_errors": outcome.model.size_errors.tolist(),
        "warnings": list(outcome.model.warnings),
        "seconds": round(seconds, 2),
    }
    if agreement.with_labels is not None:
        summary["ari_vs_labels"] = agreement.with_labels
    if any(names):
        summary["cities"] = list(names)
    return summary


def summarize_shuffled(
    scene: Scene, outcome: ShuffledOutcome, agreement: float, local_agreement: float, seconds: float
) -> dict[str, Any]:
    """Return the summary of the demo with the trust model `shuffled` as a JSON object.

    Parameters
    ----------
    agreement, local_agreement : float
        Adjusted Rand indices of the shuffled and of the local clusters with those of exact counts.
    """
    return {
        "dataset": scene.name,
        "reports": outcome.shuffled.n_reports,
        "local_epsilon": outcome.local_epsilon,
        "shuffled_epsilon": outcome.epsilon,
        "shuffled_delta": outcome.delta,
        "sealed_bytes": outcome.sealed_bytes,
        "reports_before_release": outcome.n_before,
        "ari_vs_unperturbed": agreement,
        "local_ari_vs_unperturbed": local_agreement,
        "verdict": outcome.shuffled.model.verdict.value,
        "local_verdict": outcome.local.model.verdict.value,
        "compared_epsilon": outcome.local.result.epsilon,
        "ledger_verified": outcome.shuffled.verification.ok and outcome.local.verification.ok,
        "sealing_seconds": round(outcome.sealing_seconds, 2),
        "sending_seconds": round(outcome.sending_seconds, 2),
        "seconds": round(seconds, 2),
    }


def write_maps(out: Path, scene: Scene, outcome: DemoResult, names: Sequence[str]) -> dict[str, str]:
    """Write map.svg and map.png, and return their paths."""
    out.mkdir(parents=True, exist_ok=True)
    caption = figures.describe(outcome.model, epsilon=scene.algorithm.epsilon, n_reports=outcome.n_reports)
    options: figures.Options = {"title": scene.name, "caption": caption, "names": names}
    (out / "map.svg").write_text(figures.svg(outcome.model, **options), encoding="utf-8")
    (out / "map.png").write_bytes(figures.png(outcome.model, **options))
    return {"svg": str(out / "map.svg"), "png": str(out / "map.png")}


def write_panels(out: Path, title: str, panels: Sequence[figures.Panel]) -> dict[str, str]:
    """Write map.svg and map.png with maps side by side, and return their paths."""
    out.mkdir(parents=True, exist_ok=True)
    paths = {kind: out / f"map.{kind}" for kind in ("svg", "png")}
    with figures.settings():
        figure = figures.plot_beside(panels, title=title)
        for path in paths.values():
            figure.savefig(path)
    return {kind: str(path) for kind, path in paths.items()}


def write_result(out: Path, outcome: DemoResult, summary: dict[str, Any], comparison: Comparison | None = None) -> str:
    """Write result.json with the summary, the released model, the ledger and the comparison. Return its path."""
    document = {
        "summary": summary,
        "algorithm": dict(outcome.result.algorithm),
        "rounds": [{"id": r.id, "n_reports": r.n_reports, "epsilon": r.epsilon} for r in outcome.result.rounds],
        "software_version": outcome.result.software_version,
        "model": outcome.model.to_wire(),
        "ledger": [
            {name: getattr(entry, name) for name in entry.__slots__ if name != "at"} | {"at": entry.at.isoformat()}
            for entry in outcome.ledger
        ],
    }
    if comparison is not None:
        document["production"] = comparison.to_wire()
    path = out / "result.json"
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return str(path)

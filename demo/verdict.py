"""What the demo proved: agreement with exact counts, cost, files."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustering.metrics import adjusted_rand_index
from clustering.simulate import simulate
from demo.production import Proof
from demo.story import Ending, Scene
from sfumato import plot
from sfumato.accounting import NANO
from sfumato.encodings import scale_many


@dataclass(frozen=True)
class Agreement:
    """Adjusted Rand indices of the devices' labels, 1 for the same clusters; of labels only where there are some."""

    with_unperturbed: float
    with_labels: float | None


def exact_labels(scene: Scene, seed: int) -> NDArray[np.int64]:
    """Labels by the yardstick: the same pipeline over the same records' exact symbols.

    Only a demo can know them: it holds the records. `seed` is of the shifts that the
    yardstick's devices draw.
    """
    points = scale_many(scene.features, scene.records)
    model = simulate(scene.algorithm, points, seed=seed, perturb=False, features=scene.features)
    return model.assign(scene.records)


def agreement(scene: Scene, ending: Ending, exact: NDArray[np.int64], own: NDArray[np.int64] | None) -> Agreement:
    """Label every record with the private model, and compare.

    Parameters
    ----------
    exact : ndarray of shape (n,), int64
        The yardstick's labels.
    own : ndarray of shape (n,), int64, or None
        The data's own clusters; records below zero have none and are left out.
    """
    found = ending.model.assign(scene.records)
    known = None if own is None else own >= 0
    return Agreement(
        with_unperturbed=adjusted_rand_index(found, exact),
        with_labels=None if own is None else adjusted_rand_index(found[known], own[known]),
    )


def summary(scene: Scene, ending: Ending, agreed: Agreement, names: Sequence[str], seconds: float) -> dict[str, Any]:
    """The demo as one JSON object."""
    balance = ending.budget.balance
    told: dict[str, Any] = {
        "dataset": scene.name,
        "reports": ending.n_reports,
        "singles": scene.singles,
        "epsilon": scene.algorithm.epsilon,
        "n_clusters": ending.model.n_clusters,
        "ari_vs_unperturbed": agreed.with_unperturbed,
        "epsilon_posted": balance.posted_nano / NANO,
        "epsilon_granted": balance.granted_nano / NANO,
        "ledger_entries": len(ending.ledger),
        "ledger_verified": ending.verification.ok,
        "shares": ending.model.sizes.tolist(),
        "share_errors": ending.model.size_errors.tolist(),
        "warnings": list(ending.model.warnings),
        "seconds": round(seconds, 2),
    }
    if agreed.with_labels is not None:
        told["ari_vs_labels"] = agreed.with_labels
    if any(names):
        told["cities"] = list(names)
    return told


def draw(out: Path, scene: Scene, ending: Ending, names: Sequence[str]) -> dict[str, str]:
    """Write map.svg and map.png; returns where they are."""
    out.mkdir(parents=True, exist_ok=True)
    caption = plot.describe(ending.model, epsilon=scene.algorithm.epsilon, n_reports=ending.n_reports)
    options: plot.Options = {"title": scene.name, "caption": caption, "names": names}
    (out / "map.svg").write_text(plot.svg(ending.model, **options), encoding="utf-8")
    (out / "map.png").write_bytes(plot.png(ending.model, **options))
    return {"svg": str(out / "map.svg"), "png": str(out / "map.png")}


def store(out: Path, ending: Ending, told: dict[str, Any], proof: Proof | None = None) -> str:
    """Write result.json: the summary, the released model, the ledger, the accidents; returns where it is."""
    document = {
        "summary": told,
        "algorithm": dict(ending.result.algorithm),
        "rounds": [{"id": r.id, "n_reports": r.n_reports, "epsilon": r.epsilon} for r in ending.result.rounds],
        "software_version": ending.result.software_version,
        "model": ending.model.to_wire(),
        "ledger": [
            {name: getattr(entry, name) for name in entry.__slots__ if name != "at"} | {"at": entry.at.isoformat()}
            for entry in ending.ledger
        ],
    }
    if proof is not None:
        document["production"] = proof.to_wire()
    path = out / "result.json"
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return str(path)

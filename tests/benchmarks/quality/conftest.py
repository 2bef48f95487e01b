"""Tiny files of data sets, as the quality benchmark reads them."""

import json
from pathlib import Path

import numpy as np
import pytest


def write_set(path: Path, points, labels, kind: str) -> None:
    clusters = int(labels.max())
    meta = {"kind": kind, "k": clusters if clusters > 0 else None}
    np.savez(path, X=points, y=labels.astype(np.int16), meta=json.dumps(meta))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with `pair` (two blobs and noise points), `city` (no labels) and `deep` (an ignored kind)."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(1)
    labels = np.repeat([1, 2, 0], [60, 60, 10])
    centres = np.array([[50.0, 50.0], [10.0, -3.0], [40.0, 2.0]])
    write_set(folder / "pair.npz", centres[labels] + rng.normal(0, 1, (130, 2)), labels, "2-D shapes")
    write_set(folder / "city.npz", rng.normal(0, 1, (90, 2)), np.full(90, -1), "geo")
    write_set(folder / "deep.npz", rng.normal(0, 1, (20, 100)), np.ones(20), "high-d")
    return folder

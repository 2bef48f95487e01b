"""Sums over points, whose order is the code's: the same doubles whatever processor the kernels were compiled for."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from clustering.kernels.fuzzy import ABSOLUTE, EUCLIDEAN, fuzzy_step
from clustering.kernels.weighted_lloyd import weighted_lloyd_step
from clustering.phase_search import PublicWords
from clustering.weighted_kmeans import seeds

ROOT = Path(__file__).parent.parent.parent


def digest() -> str:
    """Of steps of fuzzy c-means and of Lloyd's, and of seeds; no logarithm is in them, which is the C library's."""
    rng = np.random.default_rng(3)
    told = hashlib.sha256()
    for d, k in ((1, 1), (2, 8), (8, 16), (17, 5)):
        points, centres, weights = rng.normal(size=(1_000, d)), rng.normal(size=(k, d)), rng.random(1_000)
        sums, masses, shares = np.empty((k, d)), np.empty((k, d)), np.empty(k)
        for kind in (EUCLIDEAN, ABSOLUTE):
            objective = fuzzy_step(points, centres, kind, 2.0, 0.3, 3e-7, sums, masses, shares)
            for each in (sums, masses, shares, np.float64(objective)):
                told.update(each.tobytes())
        labels, of_labels = np.empty(1_000, dtype=np.int64), np.empty(k)
        inertia = weighted_lloyd_step(points, weights, centres, labels, sums, of_labels)
        for each in (labels, sums, of_labels, np.float64(inertia), seeds(points, weights, 7, PublicWords(1))):
            told.update(each.tobytes())
    return told.hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("processor", ["x86-64", "haswell"])
def test_instructions_that_take_two_points_or_four_say_the_same(processor, tmp_path):
    if os.uname().machine != "x86_64":
        processor = "generic"  # the only one that is known everywhere
    asked = "from tests.clustering.test_same_doubles import digest; print(digest())"
    environment = os.environ | {
        "NUMBA_CPU_NAME": processor,
        "NUMBA_CPU_FEATURES": "",
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", asked], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == digest()

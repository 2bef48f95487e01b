"""Test that sums over points are the same doubles for every processor type."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from clustering.centroids.weighted_kmeans import choose_seeds
from clustering.kernels.fuzzy import ABSOLUTE, EUCLIDEAN, fuzzy_step
from clustering.kernels.kmeans import measure_inertia, weighted_lloyd_step
from clustering.random import PublicWords

ROOT = Path(__file__).parents[3]


def digest() -> str:
    """Return a digest of fuzzy c-means steps, Lloyd steps and seeds, without logarithms of the C library."""
    rng = np.random.default_rng(3)
    hashed = hashlib.sha256()
    for d, k in ((1, 1), (2, 8), (8, 16), (17, 5), (17, 40)):
        points, centres, weights = rng.normal(size=(1_000, d)), rng.normal(size=(k, d)), rng.random(1_000)
        sums, masses, shares = np.empty((k, d)), np.empty((k, d)), np.empty(k)
        for kind in (EUCLIDEAN, ABSOLUTE):
            objective = fuzzy_step(points, centres, kind, 2.0, 0.3, 3e-7, sums, masses, shares)
            for each in (sums, masses, shares, np.float64(objective)):
                hashed.update(each.tobytes())
        labels, of_labels = np.empty(1_000, dtype=np.int64), np.empty(k)
        weighted_lloyd_step(points, weights, centres, labels, sums, of_labels)
        inertia = measure_inertia(points, weights, centres, labels)
        for each in (labels, sums, of_labels, np.float64(inertia), choose_seeds(points, weights, 7, PublicWords(1))):
            hashed.update(each.tobytes())
    return hashed.hexdigest()


@pytest.mark.release
@pytest.mark.parametrize("processor", ["x86-64", "haswell"])
def test_vector_widths_give_equal_doubles(processor, tmp_path):
    if os.uname().machine != "x86_64":
        processor = "generic"  # available on all processors
    command = "from tests.clustering.kernels.test_same_doubles import digest; print(digest())"
    environment = os.environ | {
        "NUMBA_CPU_NAME": processor,
        "NUMBA_CPU_FEATURES": "",
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == digest()

"""Runs every mechanism and every algorithm once on next to nothing, so that no job waits for the compiler."""

from dataclasses import fields
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from clustering.decoders import decoder
from clustering.simulate import SeededEntropy, collect, simulate
from models import report
from sfumato.accounting import NANO
from sfumato.errors import SfumatoError
from sfumato.mechanisms import design, value_bytes
from sfumato.specs import ALGORITHMS, MECHANISMS, AnyAlgorithm, Feature, GridEncoding, RoundSpec
from workers.fold import Part, fold_part
from workers.process import describe

EPSILON = 4.0
N_FEATURES = (2, 1, 3)  # an algorithm is run for the first it takes: kernels do not differ by them
WIDE = 5  # features, from which some go another way

ALSO_WARM = frozenset({"auto"})  # runs the plans of others, and nothing of its own

# What keeps a plan small, where it has such a parameter.
SMALL = {
    "clusters": 2,
    "cells": 4,
    "height": 2,
    "cuts": 2,
    "projections": 2,
    "slots": 32,
    "max_iterations": 3,
}

# Ways of one algorithm that call kernels of their own.
WAYS: dict[str, tuple[dict[str, Any], ...]] = {
    "phase_sketch": ({"refine": "sign"}, {"refine": "lloyd"}),
    "dp_kmeans": ({"init": "subsets"},),
    "dp_bisecting_kmeans": ({"clusters": 3},),  # of two there is nothing to choose
    "gated_grid_kmeans": ({}, {"epsilon": 0.2}),  # noisy cells are weighed otherwise
}
WIDE_WAYS: dict[str, tuple[dict[str, Any], ...]] = {"gated_grid_kmeans": ({}, {"delta": 1e-6})}

_N_POINTS = 300

log = structlog.get_logger(__name__)


def warm_up() -> set[str]:
    """Compile what jobs will call, or load it from the cache.

    Returns
    -------
    set of str
        The algorithms whose kernels are warm. What could not run is logged and left to the job that
        needs it, which will say so under its own name.
    """
    _run_fold()
    points = np.linspace(0, 1, _N_POINTS * WIDE).reshape(_N_POINTS, -1)
    for kind in MECHANISMS:
        try:
            _run_mechanism(kind, points[:, :1])
        except SfumatoError:  # not for a grid's cells: the algorithm it is for runs it
            continue
        except Exception as error:
            log.error("warming_failed", mechanism=kind, **describe(error))
    return {tag for tag in ALGORITHMS if tag in ALSO_WARM or _run_algorithm(tag, points)}


def small(tag: str, **more: Any) -> AnyAlgorithm:
    """An algorithm's parameters, as small as they make sense."""
    algorithm = ALGORITHMS[tag]
    names = {field.name for field in fields(algorithm)}
    given: dict[str, Any] = {name: value for name, value in SMALL.items() if name in names}
    return algorithm(**{"epsilon": EPSILON, **given, **more})


def _run_algorithm(tag: str, points: NDArray[np.float64]) -> bool:
    """Whether it took one of the numbers of features, and ran."""
    refused: BaseException | None = None
    for n_features in N_FEATURES:
        try:
            for way in WAYS.get(tag, ({},)):
                simulate(small(tag, **way), points[:, :n_features], seed=0)
            for way in WIDE_WAYS.get(tag, ()):
                simulate(small(tag, **way), points[:, :WIDE], seed=0)
            return True
        except SfumatoError as error:
            refused = error
        except Exception as error:
            log.error("warming_failed", algorithm=tag, **describe(error))
            return False
    if refused is not None:
        log.error("warming_failed", algorithm=tag, **describe(refused))
    return False


def _run_fold() -> None:
    """What all folds share, over a log of one report that came twice; on parts of the ids, as Dask's workers do it."""
    encoding = GridEncoding((4,))
    spec = RoundSpec((Feature("x", 0.0, 1.0),), encoding, design("grr", 4, int(EPSILON * NANO)))
    packed = bytes(2 * (report.HEADER_BYTES + value_bytes(spec.mechanism)))
    for number in range(2):
        fold_part(spec, lambda: [packed], Part(number, 2, (1, 2, 3)), n_expected=2)


def _run_mechanism(kind: str, points: NDArray[np.float64]) -> None:
    encoding = GridEncoding((4,))
    spec = RoundSpec((Feature("x", 0.0, 1.0),), encoding, design(kind, 4, int(EPSILON * NANO)))
    entropy = SeededEntropy(0)
    collected = collect(spec, points, entropy, entropy.words(len(points)))
    decoder(spec.mechanism).frequencies(collected.tally)

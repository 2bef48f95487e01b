"""Compile the kernels of every mechanism and algorithm by running each once on tiny data, before jobs need them."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from clustering.rounds.decoders import decoder
from clustering.simulate import SeededEntropy, collect, simulate
from connections.log_records import describe
from models.collection import report_log
from sfumato.errors import SfumatoError
from sfumato.mechanisms import design
from sfumato.privacy.accounting import NANO
from sfumato.specs import ALGORITHMS, MECHANISMS, AnyAlgorithm, Feature, GridEncoding, RoundSpec
from workers.aggregation.aggregate import Part, aggregate_part

EPSILON = 4.0
N_FEATURES = (2, 1, 3)  # tried in order until the algorithm accepts one; they share kernels
N_WIDE_FEATURES = 17  # with five features and more, and with more than 16, some algorithms call other kernels

ALSO_WARM = frozenset({"auto"})  # has no kernels besides those of other algorithms

# Parameters that keep a plan small. Each applies to the algorithms that have it.
SMALL_PARAMETERS = {
    "clusters": 2,
    "cells": 4,
    "height": 2,
    "cuts": 2,
    "projections": 2,
    "slots": 32,
    "max_iterations": 3,
}

# Parameters for which an algorithm calls different kernels.
VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "phase_sketch": ({"refine": "sign"}, {"refine": "lloyd"}),
    "dp_kmeans": ({"init": "subsets"},),
    "dp_bisecting_kmeans": ({"clusters": 3},),  # with two clusters, the kernel that selects a cluster is not called
    "private_kmeans": ({}, {"epsilon": 0.2}),  # noisier cells have other weights
}
WIDE_VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {"private_kmeans": ({}, {"delta": 1e-6})}

_N_POINTS = 300

log = structlog.get_logger(__name__)


def warm_up() -> set[str]:
    """Compile the kernels that jobs call, or load them from the cache.

    Returns
    -------
    set of str
        The algorithms that ran.
    """
    return {name for name, is_warm in warm_up_each() if is_warm}


def warm_up_each() -> Iterator[tuple[str, bool]]:
    """Compile the kernels of the aggregation and of one mechanism or algorithm after the other, or load them.

    Yields
    ------
    tuple of str and bool
        A name, and whether it is that of an algorithm that ran. One that fails is logged; a job that needs it
        fails later with its own error.
    """
    _run_aggregation()
    points = np.linspace(0, 1, _N_POINTS * N_WIDE_FEATURES).reshape(_N_POINTS, -1)
    for kind in MECHANISMS:
        try:
            _run_mechanism(kind, points[:, :1])
        except SfumatoError:  # the mechanism does not fit a grid; its algorithm runs it
            pass
        except Exception as error:
            log.error("warmup_failed", mechanism=kind, **describe(error))
        yield kind, False
    for tag in ALGORITHMS:
        yield tag, tag in ALSO_WARM or _run_algorithm(tag, points)


def small_parameters(tag: str, **more: Any) -> AnyAlgorithm:
    """Return an algorithm with its smallest reasonable parameters."""
    algorithm = ALGORITHMS[tag]
    names = {field.name for field in fields(algorithm)}
    given: dict[str, Any] = {name: value for name, value in SMALL_PARAMETERS.items() if name in names}
    return algorithm(**{"epsilon": EPSILON, **given, **more})


def _run_algorithm(tag: str, points: NDArray[np.float64]) -> bool:
    """Run the variants of an algorithm. Return whether it accepted a number of features and did not fail."""
    rejection: BaseException | None = None
    for n_features in N_FEATURES:
        try:
            for variant in VARIANTS.get(tag, ({},)):
                simulate(small_parameters(tag, **variant), points[:, :n_features], seed=0)
            for variant in WIDE_VARIANTS.get(tag, ()):
                simulate(small_parameters(tag, **variant), points[:, :N_WIDE_FEATURES], seed=0)
            return True
        except SfumatoError as error:
            rejection = error
        except Exception as error:
            log.error("warmup_failed", algorithm=tag, **describe(error))
            return False
    if rejection is not None:
        log.error("warmup_failed", algorithm=tag, **describe(rejection))
    return False


def _run_aggregation() -> None:
    """Aggregate a log with one repeated report, in two parts, so that the kernels for Dask workers compile too."""
    encoding = GridEncoding((4,))
    spec = RoundSpec((Feature("x", 0.0, 1.0),), encoding, design("grr", 4, int(EPSILON * NANO)))
    packed = bytes(2 * (report_log.HEADER_BYTES + spec.mechanism.value_bytes))
    for number in range(2):
        aggregate_part(spec, lambda: [packed], Part(number, 2, (1, 2, 3)), n_expected=2)


def _run_mechanism(kind: str, points: NDArray[np.float64]) -> None:
    encoding = GridEncoding((4,))
    spec = RoundSpec((Feature("x", 0.0, 1.0),), encoding, design(kind, 4, int(EPSILON * NANO)))
    entropy = SeededEntropy(0)
    collected = collect(spec, points, entropy, entropy.words(len(points)))
    decoder(spec.mechanism).frequencies(collected.tally)

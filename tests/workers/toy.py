"""A plan for tests: each round depends on the earlier tallies, and the model on all tallies."""

import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from clustering.rounds.plan import Plan
from sfumato.mechanisms import design
from sfumato.model.cluster_model import ClusterModel
from sfumato.privacy.accounting import NANO
from sfumato.specs import Algorithm, Feature, GridEncoding, Participation, RoundSpec
from sfumato.specs.attributes import Categorical

PATIENCE_SECONDS = 240.0  # the machine may be busy, or compile kernels for the first time
THREE_ROUNDS = ((0.0, 0.5), (0.5, 1.0), (0.25, 0.75))  # the first two in parallel, the third across both


@dataclass(frozen=True)
class Toy:
    """Starts the plan in place of `clustering.registry.start`; can be sent to a spawned child.

    `gate` names a file. If it does not exist, the plan appends to the file `<gate>.reached` after its last round and
    never ends: it sleeps or, with `spins`, computes. `pause_seconds` is the time that the plan takes at its end.
    """

    draws: tuple[tuple[float, float], ...] = THREE_ROUNDS
    epsilon_nano: int = NANO // 4
    mechanism: str = "ss"
    gate: str = ""
    spins: bool = False
    pause_seconds: float = 0.0

    def __call__(
        self,
        params: Algorithm,
        features: tuple[Feature, ...],
        expected_reports: int,
        attributes: tuple[Categorical, ...] = (),
    ) -> Plan:
        """Return the plan."""
        cells, sizes = 12, []
        for lo, hi in self.draws:
            encoding = GridEncoding((cells,))
            mechanism = design(self.mechanism, encoding.n_symbols, self.epsilon_nano)
            collected = yield RoundSpec(features, encoding, mechanism, Participation.between(lo, hi))
            counts = collected.tally.counts[0]
            sizes.append(counts.max() / max(1, counts.sum()))
            cells = 12 + int(counts.argmax())  # the next round depends on this one
        time.sleep(self.pause_seconds)
        if self.gate:
            self._wait_at_gate()
        shares = np.array([*sizes, 1.0]) / (sum(sizes) + 1.0)
        centroids = np.linspace(features[0].lower, features[0].upper, len(shares))[:, None]
        return ClusterModel(
            "centroids", features, shares, np.zeros(len(shares)), centroids, diagnostics={"cells": cells}
        )

    def _wait_at_gate(self) -> None:
        go_on = partial(time.sleep, 3600)
        if self.spins:
            from tests.workers.spin import spin

            spin(0)  # compiles it before the test continues
            go_on = partial(spin, 1 << 62)
        is_shut = not Path(self.gate).exists()  # before the test continues, which may open the gate
        with Path(self.gate + ".reached").open("a") as marks:
            marks.write(f"{os.getpid()}\n")
        if is_shut:
            go_on()


def wait_for(condition, timeout: float = PATIENCE_SECONDS, every: float = 0.01):
    """Wait until `condition()` is true, and return its value."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(every)
    raise AssertionError(f"not within {timeout} s")

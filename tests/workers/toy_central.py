"""A central algorithm for tests: questions that follow from earlier answers, and places to stop at."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clustering.central.cells import GridCells
from clustering.concentrated_block import ConcentratedBlock
from clustering.curator import Curator
from sfumato.accounting import NANO
from sfumato.cluster_model import ClusterModel
from sfumato.specs import Auto, CentralAlgorithm, Feature

PRICES = (NANO // 2, NANO // 4 + 1, NANO // 8)  # of its questions
DELTA_ATTO = 10**12  # of its block, where it asks for one
BLOCK_PRICES = ((NANO // 2, 0), (NANO // 4 + 1, DELTA_ATTO), (0, 0), (0, 0))  # then: a count, a block, two within it


class Crash(BaseException):
    """The process ends here, as far as anybody can tell."""


@dataclass(frozen=True)
class StoppingCells:
    """A plain grid that stops when the curator looks: what is asked is charged then, and nothing is drawn yet."""

    grid: GridCells
    stop: Callable[[], None] = field(compare=False)

    @property
    def n_cells(self) -> int:
        return self.grid.n_cells

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        self.stop()
        return self.grid.index(points)


@dataclass(frozen=True)
class ToyCentral:
    """Runs in place of `clustering.central.run.run`; can be sent to a spawned child.

    It stops at `at`: ("before", i) ahead of question i, so when every earlier answer is kept;
    ("during", i) when question i is charged and not answered; ("after", 0) at its end. With a
    `gate` it marks a file of that name with `.reached` and waits without end while the gate
    is not there; without one it crashes, unless `stop` does something else.

    With `has_block` its questions are those of `BLOCK_PRICES`; a block draws nothing, so it is
    never stopped while it is asked for.
    """

    prices: tuple[int, ...] = PRICES
    has_block: bool = False
    at: tuple[str, int] | None = None
    gate: str = ""
    stop: Callable[[], None] | None = field(default=None, compare=False)

    def __call__(
        self, params: CentralAlgorithm | Auto, features: tuple[Feature, ...], curator: Curator
    ) -> ClusterModel:
        """The model, which holds every answer."""
        cells, answers = 3, []
        block: ConcentratedBlock | None = None
        for i, price in enumerate([epsilon for epsilon, _ in BLOCK_PRICES] if self.has_block else self.prices):
            self._stop_at("before", i)
            asked = StoppingCells(
                GridCells((cells,) + (1,) * (len(features) - 1)), lambda i=i: self._stop_at("during", i)
            )
            if self.has_block and i == 1:
                block = curator.concentrated(price, DELTA_ATTO)
                answers.append([])
                continue
            answer = curator.counts(asked, price) if block is None else block.counts(asked, block.left_pico // 2)
            answers.append(answer.tolist())
            cells = 3 + int(answer.argmax())  # the next question depends on what came of this one
        self._stop_at("after", 0)
        centroids = np.array([[(f.lower + f.upper) / 2 for f in features]])
        ones = np.ones(1)
        return ClusterModel("centroids", features, ones, 0 * ones, centroids, diagnostics={"answers": answers})

    def _stop_at(self, moment: str, i: int) -> None:
        if self.at != (moment, i):
            return
        if self.stop is not None:
            self.stop()
        elif not self.gate:
            raise Crash
        elif not Path(self.gate).exists():
            with Path(f"{self.gate}.reached").open("a") as marks:
                marks.write(f"{os.getpid()}\n")
            time.sleep(3600)

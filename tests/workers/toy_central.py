"""A central algorithm for tests: its queries depend on earlier answers, and it can stop at given moments."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clustering.central.cells import GridCells
from clustering.central.curator import Curator
from clustering.central.gaussian_block import ConcentratedBlock
from sfumato.model.cluster_model import ClusterModel
from sfumato.privacy.accounting import NANO
from sfumato.specs import Auto, CentralAlgorithm, Feature

PRICES = (NANO // 2, NANO // 4 + 1, NANO // 8)  # nano-epsilon of the queries
DELTA_ATTO = 10**12  # delta of the block
BLOCK_PRICES = ((NANO // 2, 0), (NANO // 4 + 1, DELTA_ATTO), (0, 0), (0, 0))  # a count, a block, two queries within it


class Crash(BaseException):
    """The process ends here."""


@dataclass(frozen=True)
class StoppingCells:
    """A grid that stops when the curator counts records: the query is charged, and no noise is drawn."""

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

    It stops at `at`: ("before", i) means before query i, after the earlier answers are stored. ("during", i) means that
    query i is charged and not answered. ("after", 0) means after the last query. With a `gate`, it appends to the file
    `<gate>.reached` and waits while the file `gate` does not exist. Otherwise it calls `stop`, by default a crash.

    With `has_block`, its queries cost `BLOCK_PRICES`. It cannot stop during query 1, because a block draws no noise.
    """

    prices: tuple[int, ...] = PRICES
    has_block: bool = False
    at: tuple[str, int] | None = None
    gate: str = ""
    stop: Callable[[], None] | None = field(default=None, compare=False)

    def __call__(
        self, params: CentralAlgorithm | Auto, features: tuple[Feature, ...], curator: Curator
    ) -> ClusterModel:
        """Return a model with all answers."""
        cells, answers = 3, []
        block: ConcentratedBlock | None = None
        for i, price in enumerate([epsilon for epsilon, _ in BLOCK_PRICES] if self.has_block else self.prices):
            self._stop_at("before", i)
            grid = GridCells((cells,) + (1,) * (len(features) - 1))
            counted = StoppingCells(grid, lambda i=i: self._stop_at("during", i))
            if self.has_block and i == 1:
                block = curator.open_block(price, DELTA_ATTO)
                answers.append([])
                continue
            answer = curator.counts(counted, price) if block is None else block.counts(counted, block.left_pico // 2)
            answers.append(answer.tolist())
            cells = 3 + int(answer.argmax())  # the next query depends on this answer
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

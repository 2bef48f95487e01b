"""Plans: local algorithms as generators that yield rounds and receive aggregates.

A plan yields the round to publish. It receives the round *as published* with its tally, or
with its sample of vectors. A plan is deterministic in its arguments and these aggregates and
keeps no other state. After an interruption, a caller restarts it and sends the stored aggregates.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clustering.errors import TallyMalformed, UnfitRound
from clustering.rounds.tally import Sample, Tally, keeps_vectors, noise_of
from sfumato.model.cluster_model import ClusterModel
from sfumato.specs import RoundSpec

# Apply a function of points, with further arguments, to each block of a round's vectors. Return the results in order.
MapBlocks = Callable[..., NDArray[np.float64]]


@dataclass(frozen=True)
class Collected:
    """A published round with its tally, or with its sample if the reports are vectors.

    Attributes
    ----------
    spec : RoundSpec
        Round as published.
    aggregate : Tally or Sample
    map_blocks : callable, optional
        Applies a function to blocks of the sample's vectors on other machines. Vectors are scaled to
        shares of the lattice's range. The results equal local ones to the last bit.
    may_clip : bool
        Whether values outside of the bounds were moved to them. Otherwise people outside were counted and removed.

    Raises
    ------
    TallyMalformed
        The aggregate does not belong to the round.
    """

    spec: RoundSpec
    aggregate: Tally | Sample
    map_blocks: MapBlocks | None = None
    may_clip: bool = True

    def __post_init__(self) -> None:
        if not _fits(self.spec, self.aggregate):
            raise TallyMalformed("the tally or sample belongs to a different round")

    @property
    def tally(self) -> Tally:
        """Return the tally; raise UnfitRound if the round has a sample."""
        if not isinstance(self.aggregate, Tally):
            raise UnfitRound("this round has a sample of vectors, not counts")
        return self.aggregate

    @property
    def sample(self) -> Sample:
        """Return the sample; raise UnfitRound if the round has a tally."""
        if not isinstance(self.aggregate, Sample):
            raise UnfitRound("this round has counts of symbols, no sample of vectors")
        return self.aggregate


def _fits(spec: RoundSpec, aggregate: Tally | Sample) -> bool:
    if not keeps_vectors(spec):
        shape = (spec.encoding.n_slots, spec.mechanism.tally_width)
        return isinstance(aggregate, Tally) and aggregate.counts.shape == shape
    mechanism = noise_of(spec)
    if not isinstance(aggregate, Sample) or aggregate.values.shape[1] != mechanism.n_numbers:
        return False
    lowest, highest = -mechanism.margin, mechanism.reach + mechanism.margin
    return aggregate.n_reports == 0 or bool(aggregate.values.min() >= lowest and aggregate.values.max() <= highest)


Plan = Generator[RoundSpec, Collected, ClusterModel]


def drive(plan: Plan, collect: Callable[[RoundSpec], Collected]) -> ClusterModel:
    """Run a plan to the end and return its model.

    Parameters
    ----------
    plan : Plan
        A plan that has not started.
    collect : callable
        Return the aggregate of a round, from devices, arrays of points or stored tallies.

    Returns
    -------
    ClusterModel

    Raises
    ------
    SfumatoError
        Errors of `collect` and of the plan propagate.
    """
    try:
        spec = next(plan)
        while True:
            spec = plan.send(collect(spec))
    except StopIteration as done:
        model: ClusterModel = done.value
        return model
    finally:
        plan.close()

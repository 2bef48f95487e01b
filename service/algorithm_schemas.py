"""The wire's algorithms and their parameters."""

from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema
from typing_extensions import TypeAliasType

from service.central_schemas import (
    AlgorithmParameters,
    DpBisectingKmeans,
    DpDensityPeaks,
    DpKmeans,
    DpQuadtreeKmeans,
    DpUniformGridKmeans,
    GatedGridKmeans,
)
from service.schemas import Double, Epsilon, example, integer
from sfumato import specs

Variant = Literal["sound", "paper"]


def _variant() -> Any:
    return Field("sound", description="`paper` is the method as its paper prints it, for comparison.")


class ShiftedGrid(AlgorithmParameters):
    """Clusters of any shape in 1 to 3 features: shifted coarse grids, one smooth density, its valleys."""

    model_config = example(type="shifted_grid", epsilon=2.0, clusters=6)

    type: Literal["shifted_grid"]
    epsilon: Epsilon = Field(description="What one device may spend.")
    clusters: Annotated[int, integer(1, specs.MAX_CLUSTERS)] | SkipJsonSchema[None] = Field(
        None, description="How many clusters; left out, they are counted."
    )
    cells: Annotated[int, integer(2, 64)] | SkipJsonSchema[None] = Field(
        None, description="Coarse cells a feature; left out, chosen by the reports expected."
    )
    shifts: Annotated[int, integer(1, 8)] = Field(4, description="Shifts a feature.")
    length_scale: Annotated[Double, Field(ge=0.005, le=1)] = Field(
        0.06, description="Correlation length of the log density's prior, as a share of a feature's range."
    )
    amplitude: Annotated[Double, Field(ge=0.1, le=10)] = Field(
        2.5, description="Standard deviation of the log density's prior."
    )


class UniformGrid(AlgorithmParameters):
    """One plain grid; dense cells that touch are joined."""

    model_config = example(type="uniform_grid", epsilon=1.0)

    type: Literal["uniform_grid"]
    epsilon: Epsilon = Field(description="What one device may spend.")
    clusters: Annotated[int, integer(1, specs.MAX_CLUSTERS)] | SkipJsonSchema[None] = Field(
        None, description="How many clusters; left out, every connected dense region is one."
    )
    cells: Annotated[int, integer(2, 1024)] | SkipJsonSchema[None] = Field(
        None, description="Cells a feature; left out, chosen by the reports expected."
    )
    variant: Variant = _variant()


class AdaptiveGridIterative(AlgorithmParameters):
    """A grid whose cells are split and merged from round to round."""

    model_config = example(type="adaptive_grid_iterative", epsilon=1.0, clusters=3)

    type: Literal["adaptive_grid_iterative"]
    epsilon: Epsilon = Field(description="What one device may spend.")
    clusters: Annotated[int, integer(1, specs.MAX_CLUSTERS)] | SkipJsonSchema[None] = Field(
        None, description="How many clusters; left out, they are counted."
    )
    passes: Annotated[int, integer(3, 8)] = Field(3, description="Rounds over the cells as adapted so far.")
    variant: Variant = _variant()


class AdaptiveGridTree(AlgorithmParameters):
    """All levels of a grid tree at once, each for its part of the devices, read from the top."""

    model_config = example(type="adaptive_grid_tree", epsilon=1.0, clusters=3)

    type: Literal["adaptive_grid_tree"]
    epsilon: Epsilon = Field(description="What one device may spend.")
    clusters: Annotated[int, integer(1, specs.MAX_CLUSTERS)] | SkipJsonSchema[None] = Field(
        None, description="How many clusters; left out, they are counted."
    )
    height: Annotated[int, integer(1, 9)] | SkipJsonSchema[None] = Field(
        None, description="Levels of the tree, each a round; left out, chosen by the reports expected."
    )
    variant: Variant = _variant()


class ValleyHashing(AlgorithmParameters):
    """Experimental, for clear groups in 2 to 64 features: cuts through one-dimensional valleys, then codes of sides."""

    model_config = example(type="valley_hashing", epsilon=1.0, clusters=7)

    type: Literal["valley_hashing"]
    epsilon: Epsilon = Field(description="What one device may spend.")
    clusters: Annotated[int, integer(1, specs.MAX_CLUSTERS)] | SkipJsonSchema[None] = Field(
        None, description="How many clusters; left out, they are counted."
    )
    cuts: Annotated[int, integer(1, specs.MAX_CODE_BITS)] = Field(8, description="At most so many cuts make the code.")
    projections: Annotated[int, integer(2, specs.MAX_PROJECTIONS)] | SkipJsonSchema[None] = Field(
        None, description="Directions that are looked along; left out, twice the number of features, at least 16."
    )
    seed: Annotated[int, integer(0, 2**32 - 1)] = Field(0, description="Of the random directions, which are public.")


class Auto(AlgorithmParameters):
    """The algorithm that the number of features, and for devices the reports expected, speak for; the result says
    which, and why."""

    model_config = example(type="auto", epsilon=1.0, clusters=3)

    type: Literal["auto"]
    epsilon: Epsilon = Field(description="What one device may spend; over records, what the job may.")
    clusters: Annotated[int, integer(1, specs.MAX_CLUSTERS)] | SkipJsonSchema[None] = Field(
        None, description="How many clusters; left out, they are counted. Needed over records."
    )


class NoisyFcm(AlgorithmParameters):
    """Fuzzy c-means over noisy vectors; for comparison, since its noise hides most clusters."""

    model_config = example(type="noisy_fcm", epsilon=8.0, clusters=4)

    type: Literal["noisy_fcm"]
    epsilon: Epsilon = Field(description="What one device may spend, over all features together.")
    clusters: Annotated[int, integer(2, specs.MAX_CLUSTERS)] = Field(description="How many clusters.")
    distance: Literal["mixed", "euclidean", "absolute", "laplace", "gaussian"] = Field(
        "mixed", description="Of a noisy vector from a centre."
    )
    m: Annotated[Double, Field(ge=1.05, le=16)] = Field(2.0, description="Fuzziness.")
    sigma0: Annotated[Double, Field(ge=1e-6, le=1e9)] | SkipJsonSchema[None] = Field(
        None,
        description="Least spread about a centre a feature, as a share of its range; left out, made of the noise.",
    )
    max_iterations: Annotated[int, integer(1, 1000)] = Field(300, description="Steps of the fit.")
    seed: Annotated[int, integer(0, 2**32 - 1)] = Field(0, description="Of where the fit starts, and of its errors.")


class GridKmeans(AlgorithmParameters):
    """k-means over the noisy cells of one plain grid, for 1 to 4 features."""

    model_config = example(type="grid_kmeans", epsilon=1.0, clusters=4)

    type: Literal["grid_kmeans"]
    epsilon: Epsilon = Field(description="What one device may spend.")
    clusters: Annotated[int, integer(1, specs.MAX_CLUSTERS)] = Field(description="How many clusters.")
    cells: Annotated[int, integer(2, 1024)] | SkipJsonSchema[None] = Field(
        None, description="Cells a feature; left out, chosen by the reports expected."
    )
    seed: Annotated[int, integer(0, 2**32 - 1)] = Field(0, description="Of the places k-means starts from.")


class LdpKmeans(AlgorithmParameters):
    """k-means by rounds of broadcast centroids: a device says which is nearest, and on which side of it it lies."""

    model_config = example(type="ldp_kmeans", epsilon=1.0, clusters=4)

    type: Literal["ldp_kmeans"]
    epsilon: Epsilon = Field(description="What one device may spend.")
    clusters: Annotated[int, integer(1, specs.MAX_CLUSTERS)] = Field(description="How many clusters.")
    rounds: Annotated[int, integer(3, 32)] = Field(8, description="Rounds, each for its own part of the devices.")
    seed: Annotated[int, integer(0, 2**32 - 1)] = Field(0, description="Of the first centroids, which are public.")


class PhaseSketch(AlgorithmParameters):
    """Centroids of round clusters in up to 64 features, from one small integer a device."""

    model_config = example(type="phase_sketch", epsilon=1.0, clusters=4)

    type: Literal["phase_sketch"]
    epsilon: Epsilon = Field(description="What one device may spend.")
    clusters: Annotated[int, integer(1, specs.MAX_SKETCHED_CLUSTERS)] | SkipJsonSchema[None] = Field(
        None, description="How many clusters; left out, they are counted, up to 16."
    )
    slots: Annotated[int, integer(32, specs.MAX_PHASE_SLOTS)] | SkipJsonSchema[None] = Field(
        None, description="Public waves; left out, 512, or 1024 from 16 features on."
    )
    seed: Annotated[int, integer(0, 2**32 - 1)] = Field(
        0, description="Of the waves, which are public, and of where the fit starts."
    )
    refine: Literal["auto", "none", "sign", "lloyd"] = Field(
        "auto",
        description="What follows the first round, each for other devices: nothing, a round of signs, or rounds that "
        "move particles. `auto` goes by what the first round tells, from 4 features on and where `clusters` is given; "
        "`sign` and `lloyd` need `clusters`.",
    )


Algorithm = TypeAliasType(
    "Algorithm",
    Annotated[
        ShiftedGrid
        | UniformGrid
        | AdaptiveGridIterative
        | AdaptiveGridTree
        | ValleyHashing
        | Auto
        | NoisyFcm
        | GridKmeans
        | LdpKmeans
        | PhaseSketch
        | DpKmeans
        | DpBisectingKmeans
        | DpUniformGridKmeans
        | DpQuadtreeKmeans
        | DpDensityPeaks
        | GatedGridKmeans,
        Field(discriminator="type", description="How clusters are found."),
    ],
)


def algorithm_to_domain(algorithm: Algorithm) -> specs.AnyAlgorithm:
    """The parameters as everything behind the wire knows them."""
    return specs.algorithm_from_wire(algorithm.model_dump())

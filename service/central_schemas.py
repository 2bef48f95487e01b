"""The wire's algorithms over records, and what the parameters of all algorithms have in common."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field, model_serializer, model_validator
from pydantic.json_schema import SkipJsonSchema

from service.schemas import Delta, Epsilon, Wire, check, example, integer
from sfumato import specs
from sfumato.specs.central import MAX_HEIGHT, MAX_STEPS_OF_LLOYD

MAX_CELLS = 1024  # a feature


class AlgorithmParameters(Wire):
    """Checked by the domain's own dataclass; what was left out is not told."""

    @model_validator(mode="after")
    def _possible(self) -> "AlgorithmParameters":
        check(lambda: specs.algorithm_from_wire(self.model_dump()))
        return self

    @model_serializer(mode="wrap")
    def _left_out_stays_out(self, serialise: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in serialise(self).items() if value is not None}


Clusters = Annotated[int, integer(1, specs.MAX_CLUSTERS), Field(description="How many clusters.")]
Steps = Annotated[int, integer(1, MAX_STEPS_OF_LLOYD)]
Seed = Annotated[int, integer(0, 2**32 - 1)]
CellsOfEach = Annotated[int, integer(1, MAX_CELLS)] | SkipJsonSchema[None]


def _epsilon() -> Any:
    return Field(description="What the job may spend of the dataset's budget.")


def _cells() -> Any:
    return Field(None, description="Cells a feature; left out, chosen by a count that is paid for.")


class DpKmeans(AlgorithmParameters):
    """Lloyd's k-means over records, each step on noisy sums and counts."""

    model_config = example(type="dp_kmeans", epsilon=1.0, clusters=4)

    type: Literal["dp_kmeans"]
    epsilon: Epsilon = _epsilon()
    clusters: Clusters
    init: Literal["random", "plusplus", "subsets"] = Field(
        "random",
        description="Where centres start: public places spread out, seeds from noisy cells, or noisy means of "
        "disjoint subsets; the last two are paid for.",
    )
    budget: Literal["halving", "uniform"] = Field("uniform", description="How epsilon is divided over the steps.")
    iterations: Steps = Field(5, description="Steps.")
    seed: Seed = Field(0, description="Of public choices.")


class DpBisectingKmeans(AlgorithmParameters):
    """Clusters of records split in two until there are enough."""

    model_config = example(type="dp_bisecting_kmeans", epsilon=1.0, clusters=4)

    type: Literal["dp_bisecting_kmeans"]
    epsilon: Epsilon = _epsilon()
    clusters: Clusters
    split: Literal["largest_sse", "total_sse"] = Field(
        "largest_sse",
        description="Which is split next: that of the largest noisy sum of squares, or that whose split leaves least.",
    )
    synopsis: bool = Field(False, description="Split noisy cells in place of records: no further cost a split.")
    iterations: Steps = Field(2, description="Steps of each split.")
    seed: Seed = Field(0, description="Of public choices.")


class DpUniformGridKmeans(AlgorithmParameters):
    """k-means on the noisy cells of one plain grid over records."""

    model_config = example(type="dp_uniform_grid_kmeans", epsilon=1.0, clusters=4)

    type: Literal["dp_uniform_grid_kmeans"]
    epsilon: Epsilon = _epsilon()
    clusters: Clusters
    cells: CellsOfEach = _cells()
    seed: Seed = Field(0, description="Of the places k-means starts from.")


class DpQuadtreeKmeans(AlgorithmParameters):
    """k-means on the leaves of a noisy tree over records, of any number of features."""

    model_config = example(type="dp_quadtree_kmeans", epsilon=1.0, clusters=4)

    type: Literal["dp_quadtree_kmeans"]
    epsilon: Epsilon = _epsilon()
    clusters: Clusters
    height: Annotated[int, integer(1, MAX_HEIGHT)] | SkipJsonSchema[None] = Field(
        None, description="Levels of the tree; left out, chosen by a count that is paid for."
    )
    seed: Seed = Field(0, description="Of the places k-means starts from.")


class DpDensityPeaks(AlgorithmParameters):
    """Density peaks of the noisy cells of one plain grid over records."""

    model_config = example(type="dp_density_peaks", epsilon=1.0, clusters=4)

    type: Literal["dp_density_peaks"]
    epsilon: Epsilon = _epsilon()
    clusters: Clusters
    cells: CellsOfEach = _cells()


class GatedGridKmeans(AlgorithmParameters):
    """The default over records: k-means on noisy cells, refined where the noise allows it."""

    model_config = example(type="gated_grid_kmeans", epsilon=1.0, clusters=4)

    type: Literal["gated_grid_kmeans"]
    epsilon: Epsilon = _epsilon()
    clusters: Clusters
    delta: Delta = Field(
        0.0,
        description="What it may spend of the dataset's delta, 0 or 1e-15 to 1e-3: with one the guarantee is "
        "approximate, and noise is Gaussian where that is less.",
    )
    seed: Seed = Field(0, description="Of the places k-means starts from.")

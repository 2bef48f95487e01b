"""Methods, and the runs that a benchmark plans of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.quality.data import DataSet

Kind = Literal["ours", "paper", "comparator", "open"]
K = Literal["given", "auto", "tuned"]
MAX_FEATURES = 64


@dataclass(frozen=True)
class Method:
    """A method of a benchmark. `open` methods are not private; `paper` is a paper's variant of a method of ours."""

    name: str  # in tables and on the command line
    kind: Kind
    module: str  # first module of the method: a change of it, or of a module that it imports, outdates its rows
    run: Callable[..., Any]  # the arguments depend on the benchmark
    k: tuple[K, ...] = ("given",)  # given as an argument, found by the method, or tuned on the true labels
    features: tuple[int, int] = (1, MAX_FEATURES)  # smallest and largest number
    takes_epsilon: bool = True
    needs_labels: bool = False
    seeds: int | None = None  # largest number of seeds

    def takes(self, data: DataSet) -> bool:
        """Return whether the method is run on a data set."""
        return self.features[0] <= data.n_features <= self.features[1] and (data.labelled or not self.needs_labels)


def by_name(*methods: Method) -> dict[str, Method]:
    """Return methods by their names."""
    return {method.name: method for method in methods}


@dataclass(frozen=True)
class Run:
    """A planned run; `epsilon` is None if the method takes none."""

    method: str
    set: str
    n: int
    k: K
    epsilon: float | None
    seed: int


def plan(
    sets: Sequence[DataSet],
    names: Sequence[str],
    epsilons: Sequence[float],
    n_seeds: int,
    methods: Mapping[str, Method],
) -> list[tuple[Run, DataSet]]:
    """Return every meaningful run, seed by seed, so that an interrupted benchmark covers all sets evenly.

    Raises
    ------
    ValueError
        A name that is no method.
    """
    unknown = [name for name in names if name not in methods]
    if unknown:
        raise ValueError(f"no method is called {unknown[0]}; there are {', '.join(methods)}")
    return [
        (Run(name, data.name, data.n, k, epsilon, seed), data)
        for seed in range(n_seeds)
        for data in sets
        for name in names
        if methods[name].takes(data) and seed < (methods[name].seeds or n_seeds)
        for k in methods[name].k
        for epsilon in (epsilons if methods[name].takes_epsilon else [None])
    ]

"""The definition of an algorithm: the facts about it besides its parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

from sfumato.errors import InvalidSpec
from sfumato.kinds import TrustModel
from sfumato.plain import to_plain
from sfumato.privacy.accounting import parse_delta, parse_epsilon
from sfumato.validation import parameters_of

if TYPE_CHECKING:
    from sfumato.specs.attributes import Categorical

__all__ = ["AlgorithmParameters", "Definition", "Group"]

Group = Literal["automatic", "shapes", "centroids", "comparators", "profile"]
Count = Literal["", "agreement", "bic", "excess", "noisy count", "regions"]

LOCAL: tuple[TrustModel, ...] = ("local", "shuffled")
CENTRAL: tuple[TrustModel, ...] = ("central",)
CELLS = frozenset({"grid", "shifted_grid", "tree_grid"})  # encodings with cells of the box as symbols


@dataclass(frozen=True, slots=True)
class Definition:
    """Facts about an algorithm besides its parameters. Lists, forms, forecasts and checks follow from it.

    Attributes
    ----------
    group : {"automatic", "shapes", "centroids", "comparators", "profile"}
        What it finds. Published methods are comparators.
    trust : tuple of {"local", "shuffled", "central"}
        Trust models of the datasets that it works on.
    max_features : int
        Largest number of features.
    reads : tuple of str
        Encodings that its plan reads in the first round. Empty over records.
    reads_later : tuple of str
        Encodings that its plan reads in later rounds; by default those of the first round.
    counts_by : str
        Method that estimates the number of clusters; empty if the number is required.
    has_block : bool
        Whether a δ pays for one block of queries with Gaussian noise above four features.
    max_attributes : int
        Largest number of attributes by which a job clusters beside its features.
    pools : bool
        Whether a job over several earlier rounds of one grid adds their tallies.
    periodic : bool
        Whether it takes periodic features.
    limitation : str
        Sentence that every forecast states; empty if there is none.
    """

    group: Group
    trust: tuple[TrustModel, ...]
    max_features: int
    reads: tuple[str, ...] = ()
    reads_later: tuple[str, ...] = ()
    counts_by: Count = ""
    has_block: bool = False
    max_attributes: int = 0
    pools: bool = False
    periodic: bool = False
    limitation: str = ""

    def encodings(self, *, is_first: bool) -> frozenset[str]:
        """Return the types of the encodings that a plan reads in its first round, or in later ones."""
        return frozenset(self.reads if is_first else self.reads_later or self.reads)

    @property
    def needs_records(self) -> bool:
        """Return whether it works on records that the service stores, and on no reports."""
        return self.trust == CENTRAL

    @property
    def reads_cells(self) -> bool:
        """Return whether the reports of the first round are cells of the box, so that sizes are sums of cells."""
        return bool(self.reads) and CELLS.issuperset(self.reads)

    @property
    def reads_vectors(self) -> bool:
        """Return whether the reports are noisy vectors, which are stored as a sample and not counted."""
        return "lattice" in self.reads


class AlgorithmParameters:
    """Base class of the parameters of an algorithm. It validates every declared parameter.

    Attributes
    ----------
    epsilon_nano : int
        The ε in units of 1e-9, parsed once.
    delta_atto : int
        The δ in units of 1e-18, parsed once; 0 for an algorithm without one.
    """

    __slots__ = ("delta_atto", "epsilon_nano")
    type: ClassVar[str]
    definition: ClassVar[Definition]
    epsilon_nano: int
    delta_atto: int

    def __post_init__(self) -> None:
        for name, declaration in parameters_of(type(self)).items():
            value = to_plain(getattr(self, name))
            if isinstance(value, Decimal):
                value = float(value)
            if declaration.kind is tuple and isinstance(value, list):
                value = tuple(value)
            declaration.validate(name, value)
            object.__setattr__(self, name, value)
        own: Any = self
        object.__setattr__(self, "epsilon_nano", parse_epsilon(own.epsilon))
        object.__setattr__(self, "delta_atto", parse_delta(getattr(own, "delta", 0.0)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the parameters alone, so that a copy validates itself and parses its cost."""
        return type(self), tuple(getattr(self, each.name) for each in fields(cast(Any, self)))

    def with_epsilon(self, epsilon: float, **changes: Any) -> Self:
        """Return a copy with another ε and other changes. It states its ε, also if `mu` was given before."""
        own: Any = self
        is_replaced = "mu" in parameters_of(type(self))
        return cast(Self, replace(own, epsilon=epsilon, **changes | ({"mu": None} if is_replaced else {})))

    def on_circles(self) -> Self:
        """Return the parameters of a job with periodic features. Raise InvalidSpec if it does not take them."""
        if not self.definition.periodic:
            raise InvalidSpec(f"{self.type} does not take periodic features")
        return self

    def require_attributes(self, attributes: "Sequence[Categorical]") -> None:
        """Raise InvalidSpec if the algorithm does not cluster by these attributes."""
        if not attributes:
            return
        most = self.definition.max_attributes
        if not most:
            names = ", ".join(each.name for each in attributes)
            taker = "private_kmeans" if self.definition.needs_records else "shifted_grid or phase_sketch"
            raise InvalidSpec(
                f"{self.type} takes no categories: use {taker}, or name features without the attributes {names}"
            )
        if len(attributes) > most:
            raise InvalidSpec(
                f"{self.type} clusters by {most} attribute{'s' * (most > 1)} at most, not {len(attributes)}: name "
                "fewer among features"
            )

    def require_features(self, n_features: int) -> None:
        """Raise InvalidSpec if the algorithm does not support the number of features."""
        if not 1 <= n_features <= self.definition.max_features:
            raise InvalidSpec(f"{self.type} takes 1 to {self.definition.max_features} features, not {n_features}")


def of_trust(kinds: Mapping[str, type[Any]], trust: str) -> dict[str, type[Any]]:
    """Return the algorithms that work on datasets of a trust model, by type."""
    return {tag: kind for tag, kind in kinds.items() if trust in kind.definition.trust}

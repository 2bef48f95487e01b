"""Attributes of records: columns that describe or form clusters, with a public vocabulary or public bins.

The vocabulary and the bins are public and never change. A vocabulary that is taken from the records would reveal rare
values, so take it from public knowledge, such as the list of your plans.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, ClassVar, Literal, cast

from sfumato.errors import InvalidSpec
from sfumato.validation import require, require_text, to_finite

MAX_ATTRIBUTES = 64
MAX_VALUES = 256
MIN_WEIGHT, MAX_WEIGHT = 0.01, 6.0  # with more weight, a category would lie outside of the unit box
DEFAULT_BINS = 8  # equal bins of a feature in a profile
OTHER, MISSING = "other", "missing"  # categories of unknown and of missing values

Unknown = Literal["refuse", "other"]
Missing = Literal["refuse", "category"]
Use = Literal["describe", "cluster"]


def _require_choice(value: object, choices: tuple[str, ...], what: str) -> None:
    require(isinstance(value, str) and value in choices, f"{what} must be one of {', '.join(choices)}")


@dataclass(frozen=True, slots=True)
class Categorical:
    """An attribute with a public vocabulary.

    Parameters
    ----------
    name : str
        1 to 64 bytes, unique among the features and attributes of the dataset.
    values : sequence of str
        2 to 256 unique values of 1 to 64 bytes. Values of records are compared after Unicode's form NFC, without outer
        white space.
    unknown : {'refuse', 'other'}
        Whether an upload with another value is rejected, or the value becomes the category `other`.
    missing : {'refuse', 'category'}
        Whether an upload with a missing value is rejected, or the value becomes the category `missing`.
    use : {'describe', 'cluster'}
        Whether profiles alone read the attribute, or jobs cluster by it, too, unless their features leave it out.
    weight : float
        0.01 to 6, for `cluster` only: the part of the attribute in squared distances. With 1, its categories vary about
        half as much as a feature that is even between its bounds.

    Raises
    ------
    InvalidSpec

    Examples
    --------
    >>> from sfumato import Categorical
    >>> Categorical("plan", ["free", "pro"], unknown="other").categories
    ('free', 'pro', 'other')
    """

    kind: ClassVar[str] = "categorical"
    name: str
    values: tuple[str, ...]
    unknown: Unknown = "refuse"
    missing: Missing = "refuse"
    use: Use = "describe"
    weight: float = 1.0

    def __post_init__(self) -> None:
        require_text(self.name, "the name of an attribute")
        given: Any = self.values
        require(isinstance(given, Iterable) and not isinstance(given, str), f"{self.name}: values must be a list")
        object.__setattr__(self, "values", tuple(given))
        require(2 <= len(self.values) <= MAX_VALUES, f"{self.name}: an attribute needs 2 to {MAX_VALUES} values")
        for value in self.values:
            require_text(value, f"{self.name}: a value")
        _require_choice(self.unknown, ("refuse", "other"), f"{self.name}: unknown")
        _require_choice(self.missing, ("refuse", "category"), f"{self.name}: missing")
        _require_choice(self.use, ("describe", "cluster"), f"{self.name}: use")
        object.__setattr__(self, "weight", to_finite(self.weight, f"{self.name}: weight"))
        require(
            MIN_WEIGHT <= self.weight <= MAX_WEIGHT,
            f"{self.name}: weight must lie between {MIN_WEIGHT:g} and {MAX_WEIGHT:g}",
        )
        require(
            self.clusters or self.weight == 1, f"{self.name}: a weight needs the use cluster: set it, or remove weight"
        )
        found = self.categories
        require(
            len(set(found)) == len(found),
            f"{self.name}: values must be unique, and differ from the categories other and missing if these are used",
        )
        require(
            not self.clusters or max(map(len, self.share_names)) <= 64,
            f"{self.name}: with the use cluster, its name and a category must have at most 61 characters together",
        )

    @property
    def clusters(self) -> bool:
        """Return whether jobs cluster by the attribute."""
        return self.use == "cluster"

    @property
    def share_names(self) -> tuple[str, ...]:
        """Return the names of the shares of the categories, which are features of clusters, such as `plan = pro`."""
        return tuple(f"{self.name} = {each}" for each in self.categories)

    @property
    def categories(self) -> tuple[str, ...]:
        """Return the values, then `other` and `missing` where the attribute has these categories."""
        return (*self.values, *(OTHER,) * (self.unknown == "other"), *(MISSING,) * (self.missing == "category"))


@dataclass(frozen=True, slots=True)
class Numeric:
    """A numeric attribute with public bins.

    Parameters
    ----------
    name : str
        1 to 64 bytes, unique among the features and attributes of the dataset.
    bins : sequence of float
        3 to 257 ascending edges. A value belongs to the bin that starts at or below it. The last bin has its upper
        edge. A value beyond the edges belongs to the nearest bin, or is refused, as `out_of_bounds` of the dataset
        states.
    missing : {'refuse', 'category'}
        Whether an upload with a missing value is rejected, or the value becomes the category `missing`.
    use : {'describe'}
        A numeric attribute describes clusters. A number that forms clusters is a feature.
    unit : str
        Unit of the edges, as text.

    Raises
    ------
    InvalidSpec

    Examples
    --------
    >>> from sfumato import Numeric
    >>> Numeric("age", [0, 18, 65, 120], missing="category").categories
    ('0 to 18', '18 to 65', '65 to 120', 'missing')
    """

    kind: ClassVar[str] = "numeric"
    name: str
    bins: tuple[float, ...]
    missing: Missing = "refuse"
    use: Literal["describe"] = "describe"
    unit: str = ""

    def __post_init__(self) -> None:
        require_text(self.name, "the name of an attribute")
        given: Any = self.bins
        require(isinstance(given, Iterable) and not isinstance(given, str), f"{self.name}: bins must be a list")
        object.__setattr__(self, "bins", tuple(to_finite(edge, f"{self.name}: an edge") for edge in given))
        require(3 <= len(self.bins) <= MAX_VALUES + 1, f"{self.name}: an attribute needs 3 to {MAX_VALUES + 1} edges")
        require(all(low < high for low, high in pairwise(self.bins)), f"{self.name}: the edges must be ascending")
        _require_choice(self.missing, ("refuse", "category"), f"{self.name}: missing")
        require(
            self.use == "describe",
            f"{self.name}: use must be describe: declare a number that forms clusters as a feature",
        )
        require(
            isinstance(self.unit, str) and len(self.unit) <= 64, f"{self.name}: a unit must have at most 64 characters"
        )
        require(
            len(set(self.categories)) == len(self.categories), f"{self.name}: the edges are too near to one another"
        )

    @property
    def categories(self) -> tuple[str, ...]:
        """Return the bins as text, then `missing` where the attribute has this category."""
        shown = [f"{edge:.6g}" for edge in self.bins]
        return (*(f"{low} to {high}" for low, high in pairwise(shown)), *(MISSING,) * (self.missing == "category"))


Attribute = Categorical | Numeric
_KINDS: dict[str, type[Attribute]] = {each.kind: each for each in (Categorical, Numeric)}


def clustering_attributes(attributes: Iterable[Attribute]) -> tuple[Categorical, ...]:
    """Return the attributes by which jobs cluster, in their order."""
    return tuple(each for each in attributes if isinstance(each, Categorical) and each.clusters)


def attribute_to_wire(attribute: Attribute) -> dict[str, Any]:
    """Return an attribute as JSON values, with its kind."""
    values = {each.name: getattr(attribute, each.name) for each in fields(attribute)}
    lists = {name: list(value) for name, value in values.items() if isinstance(value, tuple)}
    return {"kind": attribute.kind} | values | lists


def attribute_from_wire(wire: object) -> Attribute:
    """Return an attribute from JSON values. Raise InvalidSpec."""
    require(isinstance(wire, Mapping), "an attribute must be an object")
    members = dict(cast(Mapping[str, Any], wire))
    kind = _KINDS.get(str(members.pop("kind", None)))
    if kind is None:
        raise InvalidSpec(f"the kind of an attribute must be one of {', '.join(_KINDS)}")
    try:
        return kind(**members)
    except TypeError:
        raise InvalidSpec(f"{kind.__name__}: a member is missing, unknown or of the wrong type") from None


def read_attributes(given: object) -> tuple[Attribute, ...]:
    """Return attributes of an encoding, each given as such or as JSON values. Raise InvalidSpec."""
    require(isinstance(given, tuple), "attributes must be a list of attributes")
    read = tuple(attribute_from_wire(each) if isinstance(each, Mapping) else each for each in cast(Any, given))
    require(all(isinstance(each, Attribute) for each in read), "attributes must be a list of attributes")
    return read


def attributes_from_wire(wire: object) -> tuple[Attribute, ...]:
    """Return attributes from a JSON list. Raise InvalidSpec."""
    require(isinstance(wire, list), "attributes must be a list")
    return tuple(attribute_from_wire(each) for each in cast(list[object], wire))


def check_attributes(attributes: tuple[Attribute, ...], taken: Iterable[str]) -> None:
    """Raise InvalidSpec if there are too many attributes, or a name is repeated or taken by another column."""
    require(len(attributes) <= MAX_ATTRIBUTES, f"a dataset may have at most {MAX_ATTRIBUTES} attributes")
    used = set(taken)
    shares = [name for each in clustering_attributes(attributes) for name in each.share_names]
    for name in [*(attribute.name for attribute in attributes), *shares]:
        require(name not in used, f"the name {name!r} occurs twice: columns and shares need unique names")
        used.add(name)

"""Specification of the phases of public waves, and the integers of projections."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from sfumato.limits import MAX_FEATURES, MAX_PHASE_ATTRIBUTES, MAX_PHASE_CATEGORIES
from sfumato.specs.attributes import Categorical, read_attributes
from sfumato.validation import is_int, require, require_int

# Projections use integers: coordinates below LATTICE and weights up to MAX_WEIGHT. With 64 features every sum is
# below 2**40 and every product on a device below 2**53.
LATTICE = 1 << 20
MAX_WEIGHT = 1 << 14

TURN = 1 << 30  # phase units per turn
FULL_TURN = TURN // LATTICE  # weight that gives one turn across a feature's range
MAX_PHASES = 1 << 10
MAX_PHASE_SLOTS = 1 << 10


def check_rows(rows: tuple[tuple[int, ...], ...], name: str, most: int, lowest: int, highest: int) -> None:
    """Raise InvalidSpec unless there are 1 to `most` rows of equal length, of integers from `lowest` to `highest`."""
    require(isinstance(rows, tuple) and 1 <= len(rows) <= most, f"{name} must have 1 to {most} rows")
    require(all(isinstance(row, tuple) for row in rows), f"{name} must be rows of integers")
    require(
        1 <= len(rows[0]) <= MAX_FEATURES, f"a row of {name} must have 1 to {MAX_FEATURES} integers, not {len(rows[0])}"
    )
    require(all(len(row) == len(rows[0]) for row in rows), f"rows of {name} must have equal lengths")
    are_valid = all(is_int(number) and lowest <= number <= highest for row in rows for number in row)
    require(are_valid, f"{name} must be integers from {lowest} to {highest}")


@dataclass(frozen=True, slots=True)
class PhaseEncoding:
    """The phase of a public wave. The symbol is the part of a turn, of L equal parts, that contains the phase.

    The slot is the wave. A coordinate in [0, 1] is the integer floor(x * 2**20), at most
    2**20 - 1; the sum of weight times coordinate, modulo a turn of 2**30, is the phase, and
    the symbol is floor(L * phase / 2**30). So a wave's angular frequency is 2 pi weight / 1024
    radians across a feature's range.

    With categorical attributes, a wave has one character for each: an integer a below the number of categories m. The
    category c adds floor((a c mod m) * 2**30 / m) to the phase. The functions exp(2 pi i a c / m) are a basis of all
    functions of c, so the waves determine how categories and places occur together. A character of zero leaves an
    attribute out of a wave.

    The specification contains the weights and characters, and not a seed. A device then needs one sum of products, a
    remainder and a division of integers below 2**53, which are exact in every language, including
    JavaScript. A seed would save bytes, but every client would need the same generator, normal
    deviates and square roots to the last bit, and a plan could not choose its waves. A wave in 8
    features takes about 40 bytes, and 512 waves 20 kB. They are equal for all devices and are sent once
    per round, because later responses only confirm the ETag. The maximum of 1024 waves in 64 features
    takes about 300 kB.

    A wave of weight zero has the phase 0 for every record inside the bounds, and no characters. It shows how many
    records are outside, because those send a uniformly random phase (`sfumato.records.outside`).
    """

    type: ClassVar[str] = "phase"
    weights: tuple[tuple[int, ...], ...]  # weights of each wave, per feature
    phases: int  # L
    attributes: tuple[Categorical, ...] = ()  # their categories are part of the phases
    characters: tuple[tuple[int, ...], ...] = ()  # characters of each wave, per attribute; empty without attributes

    def __post_init__(self) -> None:
        check_rows(self.weights, "weights", MAX_PHASE_SLOTS, -MAX_WEIGHT, MAX_WEIGHT)
        require(any(any(row) for row in self.weights), "weights must have a row that is not all zero")
        require_int(self.phases, 4, MAX_PHASES, "phases")
        object.__setattr__(self, "attributes", read_attributes(self.attributes))
        if self.attributes:
            self._check_attributes()
            self._check_characters()
        else:
            require(self.characters == (), "characters need attributes: remove characters, or add attributes")

    def _check_attributes(self) -> None:
        n = len(self.attributes)
        require(
            n <= MAX_PHASE_ATTRIBUTES and all(isinstance(each, Categorical) for each in self.attributes),
            f"phases take at most {MAX_PHASE_ATTRIBUTES} attributes, and each must be categorical",
        )
        require(len({each.name for each in self.attributes}) == n, "the attributes of phases must have unique names")
        for each, m in zip(self.attributes, self.categories, strict=True):
            require(
                m <= MAX_PHASE_CATEGORIES,
                f"{each.name}: an attribute of phases may have at most {MAX_PHASE_CATEGORIES} categories, not {m}: "
                "join values",
            )

    def _check_characters(self) -> None:
        check_rows(self.characters, "characters", MAX_PHASE_SLOTS, 0, MAX_PHASE_CATEGORIES - 1)
        require(
            len(self.characters) == self.n_slots,
            f"characters must have one row for each wave: {len(self.characters)} rows for {self.n_slots} waves",
        )
        m = self.categories
        require(
            len(self.characters[0]) == len(m)
            and all(a < n for row in self.characters for a, n in zip(row, m, strict=True)),
            "a row of characters must have one integer for each attribute, below its number of categories",
        )
        require(
            all(any(weights) or not any(row) for weights, row in zip(self.weights, self.characters, strict=True)),
            "a wave of weight zero must have characters of zero, because it counts records outside",
        )
        columns = zip(*self.characters, strict=True)
        unused = [each.name for each, column in zip(self.attributes, columns, strict=True) if not any(column)]
        require(not unused, f"the attribute {', '.join(unused)} is in no wave: remove it, or give it characters")

    @property
    def n_features(self) -> int:
        return len(self.weights[0])

    @property
    def n_slots(self) -> int:
        return len(self.weights)

    @property
    def n_symbols(self) -> int:
        return self.phases

    def select(self, waves: Sequence[int]) -> "PhaseEncoding":
        """Return the encoding with some of the waves. Raise InvalidSpec if an attribute is in none of them."""
        characters = tuple(self.characters[wave] for wave in waves) if self.attributes else ()
        return replace(self, weights=tuple(self.weights[wave] for wave in waves), characters=characters)

    @property
    def categories(self) -> tuple[int, ...]:
        """Return m, the number of categories of each attribute."""
        return tuple(len(each.categories) for each in self.attributes)

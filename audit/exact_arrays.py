"""Devices in an array do not share their coins: the law of two reports is the product of the laws of each.

The vectorised code runs over words nobody knows, for two devices at once. It sees a coin that two
devices share, which the law of one device does not show. It does not see the noise of lattices, whose
loops two devices leave at different times: tests/statistics looks at that by chi-square.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from audit.check import Check, Finding, Setting
from audit.exact_mechanisms import EXAMPLES, specs
from audit.exact_words import NotEnumerable, Way, exact_law
from sfumato import mechanisms
from sfumato.entropy import Entropy
from sfumato.specs import MECHANISMS, DiscreteLaplaceMechanism, Mechanism

PerturbMany = Callable[[Mechanism, NDArray[np.int64], Entropy], NDArray[np.uint8]]

_PAIRS = ((0, 0), (0, 2))


def _reports(perturb_many: PerturbMany, mechanism: Mechanism, held: tuple[int, ...], way: Way) -> tuple[bytes, ...]:
    values = perturb_many(mechanism, np.array(held, dtype=np.int64), way)
    return tuple(value.tobytes() for value in values)


def look(kind: str, perturb_many: PerturbMany, _setting: Setting) -> list[Finding]:
    """One mechanism over three symbols, at epsilon 1."""
    mechanism = specs(EXAMPLES["tree_grid"], kind, 1.0).mechanism
    n_ways, why = 0, ""
    try:
        alone = {held: exact_law(partial(_reports, perturb_many, mechanism, (held,))) for held in (0, 2)}
        for first, second in _PAIRS:
            both = exact_law(partial(_reports, perturb_many, mechanism, (first, second)))
            n_ways += both.n_ways
            product = {
                one + other: chance * more
                for one, chance in alone[first].chances.items()
                for other, more in alone[second].chances.items()
            }
            if both.chances != product:
                why = why or f"two devices with {first} and {second} are not independent"
    except NotEnumerable as error:
        why = str(error)
    claim = "two devices in an array toss coins of their own"
    return [Finding(f"{kind} in arrays", claim, "exact", n_ways, holds=not why, why=why)]


CHECKS: tuple[Check, ...] = tuple(
    Check(f"{kind} in arrays", partial(look, kind, mechanisms.perturb_many))
    for kind in MECHANISMS
    if kind != DiscreteLaplaceMechanism.type
)

"""The published channels of all mechanisms, in exact fractions.

Local hashing is computed for given seeds. Coins of exp(-a/b) are replaced by coins of a power of a fraction.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import product
from math import ceil, log
from typing import Any, cast
from unittest.mock import patch

import numpy as np

from audit.checks.bounds import bound_exp
from audit.mechanisms.symbolic_random import ExecutionPath, NotEnumerable
from sfumato.device.checks import Record
from sfumato.mechanisms import discrete_laplace, olh
from sfumato.privacy.accounting import NANO
from sfumato.records.described import own_symbol
from sfumato.records.outside import check_outside
from sfumato.specs import (
    CentroidSignEncoding,
    DiscreteLaplaceMechanism,
    GrrMechanism,
    Mechanism,
    OlhMechanism,
    PhaseEncoding,
    RoundSpec,
    Symbol,
    vector_noise,
)


def _lattice_base(mechanism: DiscreteLaplaceMechanism) -> Fraction:
    """Return a fraction that replaces exp(-1/t). The distribution is an identity in it."""
    return Fraction(round(np.exp(-1 / mechanism.scale_numerator) * 64), 64)


@contextmanager
def lattice_coins(mechanism: Mechanism) -> Iterator[None]:
    """Replace coins of exp(-a/b) by coins with the power a t/b of a fraction, and count iterations, in this context."""
    if (noise := vector_noise(mechanism)) is None:
        yield
        return
    t, base = noise.scale_numerator, _lattice_base(noise)
    names = ("noise", "_noise_many", "pick", "pick_many")
    originals: dict[str, Any] = {name: getattr(discrete_laplace, name) for name in names}

    def start_loop(name: str, place: int) -> Callable[..., Any]:
        def draw(*arguments: Any) -> Any:
            arguments[place].begin_loop()
            return originals[name](*arguments)

        return draw

    def pick(path: ExecutionPath, bound: int, *n: int) -> Any:
        if bound == t:
            path.count_iteration()
        return originals["pick_many" if n else "pick"](path, bound, *n)

    def coin(a: int, b: int, path: ExecutionPath) -> bool:
        power = Fraction(a * t, b)
        if power.denominator != 1:
            raise NotEnumerable(f"a coin of exp(-{a}/{b}) at a scale of {t} units has no exact fraction")
        return path.coin(base**power.numerator)

    def coins(parts: Any, b: int, path: ExecutionPath) -> Any:
        return np.array([coin(a, b, path) for a in parts.tolist()], dtype=np.bool_)

    patches: dict[str, Any] = {
        "noise": start_loop("noise", 1),
        "_noise_many": start_loop("_noise_many", 2),
        "pick": pick,
        "pick_many": pick,
    }
    with patch.multiple(discrete_laplace, bernoulli_exp=coin, bernoulli_exp_many=coins, **patches):
        yield


def _published_channel(mechanism: Mechanism, own: Symbol, values: Sequence[bytes]) -> dict[bytes, Fraction]:
    """Return the published distribution of values for a symbol. For local hashing, use the seeds of `values`."""
    if (noise := vector_noise(mechanism)) is not None:
        return _published_lattice_channel(noise, cast(tuple[int, ...], own))
    own = cast(int, own)
    if not isinstance(mechanism, OlhMechanism):
        return {value: row[own] for value, row in mechanism.channel().items()}
    response = GrrMechanism(mechanism.hash_range, mechanism.keep_threshold)
    keep, other = response.support()
    heads = {value[: olh.SEED_BYTES] for value in values}
    distribution = {}
    for head, sent in product(heads, range(mechanism.hash_range)):
        a, b, c = (int.from_bytes(head[at : at + 4], "little") for at in (0, 4, 8))
        hashed = (a * own**2 + b * own + c) % (2**31 - 1) * mechanism.hash_range >> 31
        value = head + sent.to_bytes(response.value_bytes, "little")
        distribution[value] = (keep if hashed == sent else other) / len(heads)
    return distribution


def published_mixture(
    mechanism: Mechanism, symbols: Sequence[Symbol], values: Sequence[bytes]
) -> dict[bytes, Fraction]:
    """Return the mean of the published distributions of equally likely symbols."""
    mixture: dict[bytes, Fraction] = {}
    for own in symbols:
        for value, probability in _published_channel(mechanism, own, values).items():
            mixture[value] = mixture.get(value, Fraction(0)) + probability / len(symbols)
    return mixture


def equally_likely_symbols(spec: RoundSpec, point: Record, slot: int) -> list[Symbol]:
    """Return the symbols of a point as docs/vectors.md defines them: one, except outside of the bounds."""
    encoding, mechanism = spec.encoding, spec.mechanism
    if not (spec.counts_outside and check_outside(spec, point)):
        own = own_symbol(spec, point, slot)
        return [(*own, 0) if isinstance(own, tuple) and spec.counts_outside else own]
    if (noise := vector_noise(mechanism)) is not None:
        return [(*(noise.steps // 2,) * noise.n_features, noise.mark)]
    if isinstance(encoding, PhaseEncoding | CentroidSignEncoding):
        return list(range(encoding.n_symbols))
    return [encoding.n_symbols]


def _published_lattice_channel(mechanism: DiscreteLaplaceMechanism, own: tuple[int, ...]) -> dict[bytes, Fraction]:
    r = _lattice_base(mechanism) ** mechanism.scale_denominator
    low, high = -mechanism.margin, mechanism.reach + mechanism.margin
    distribution = {b"": Fraction(1)}
    for coordinate in own:
        part = {sent: (1 - r) / (1 + r) * r ** abs(sent - coordinate) for sent in range(low + 1, high)}
        part |= {low: r ** (coordinate - low) / (1 + r), high: r ** (high - coordinate) / (1 + r)}
        distribution = {
            value + (sent - low).to_bytes(mechanism.width, "little"): probability * more
            for (value, probability), (sent, more) in product(distribution.items(), part.items())
        }
    return distribution


def epsilon_of_ratio(mechanism: Mechanism, ratio: Fraction) -> float:
    """Return the logarithm of a ratio. For a lattice, it is in units of the fraction that replaces exp(-1/t)."""
    in_units = log(ratio.numerator) - log(ratio.denominator)
    if (noise := vector_noise(mechanism)) is not None:
        return in_units / -log(_lattice_base(noise)) / noise.scale_numerator
    return in_units


def claimed_ratio(mechanism: Mechanism) -> Fraction:
    """Return the largest ratio that the mechanism publishes."""
    if (noise := vector_noise(mechanism)) is not None:
        return _lattice_base(noise) ** -(noise.n_features * noise.steps * noise.scale_denominator)
    return mechanism.ratio()


def is_least_charge(mechanism: Mechanism, charged: int, ratio: Fraction) -> bool:
    """Return whether the charge is the least number of nano-epsilon that covers the ratio."""
    if (noise := vector_noise(mechanism)) is not None:
        units = log(ratio) / -log(_lattice_base(noise))
        return charged == ceil(Fraction(round(units), noise.scale_numerator) * NANO)
    least, before = bound_exp(Fraction(charged, NANO))[0], bound_exp(Fraction(max(charged - 1, 0), NANO))[1]
    return before < ratio <= least

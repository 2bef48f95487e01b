"""Records outside of the public bounds: their symbol, and the rounds that count them.

A record is outside if at least one of its values lies outside of the bounds of its feature. A round that counts such
records (`RoundSpec.out_of_bounds`) perturbs their symbol like all others, so neither taking part nor a report shows
whether a record is outside.

- Grids and nearest centroids have one more symbol, the last one.
- Phases and signs are uniformly random. A random phase adds nothing to any wave, and a random sign nothing to any sum.
  The distribution of a report is then a mean of the mechanism's distributions, so its ratio to any other is at most
  e^epsilon.
- Vectors have one more number, the mark. Its cost is 0; see `DiscreteLaplaceMechanism`.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sfumato.mechanisms import resize
from sfumato.privacy.entropy import Entropy, below, below_many
from sfumato.records.described import Described, own_symbol, read_record, read_records
from sfumato.records.encodings import scale_many, symbols
from sfumato.records.inputs import Records, to_record
from sfumato.specs import (
    MAX_PHASE_SLOTS,
    Feature,
    PhaseEncoding,
    RoundSpec,
    Symbol,
    adds_symbol,
)

WAVES_PER_REFERENCE = 8  # a round of phases has one wave of weight zero for each 8 others, or part of 8


def outside_features(features: Sequence[Feature], record: Records) -> tuple[str, ...]:
    """Return the names of the features with a value outside of its bounds. Raise the errors of `to_record`."""
    values = to_record(features, record)
    pairs = zip(features, values, strict=True)
    return tuple(feature.name for feature, value in pairs if not feature.lower <= value <= feature.upper)


def check_outside(spec: RoundSpec, record: Records) -> tuple[str, ...]:
    """Return the names of the features with a value outside of its bounds. Raise InvalidPoint for an invalid record."""
    return outside_features(spec.features, read_record(spec, record)[0])


def are_outside(features: Sequence[Feature], values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return whether each record of shape (n, d) has a value outside of its bounds: bool of shape (n,)."""
    lower = np.array([feature.lower for feature in features])
    upper = np.array([feature.upper for feature in features])
    return np.asarray(((values < lower) | (values > upper)).any(axis=1), dtype=np.bool_)


def encode(spec: RoundSpec, record: Records, slot: int, entropy: Entropy) -> Symbol:
    """Return the symbol of a record in a round, or its vector.

    Words are drawn only for a record outside in a round of phases or signs: a choice among the encoding's symbols.

    Raises
    ------
    InvalidPoint
        See `to_record`.
    """
    encoding, mechanism = spec.encoding, spec.mechanism
    if spec.counts_outside and check_outside(spec, record):
        if spec.has_outside_symbol:
            return encoding.n_symbols
        if mechanism.outside_vector is not None:
            return mechanism.outside_vector
        return below(entropy, encoding.n_symbols)
    own = own_symbol(spec, record, slot)
    return (*own, 0) if isinstance(own, tuple) and spec.counts_outside else own


def encode_many(
    spec: RoundSpec, records: Records | Described, slots: NDArray[np.int64], entropy: Entropy
) -> NDArray[np.int64]:
    """Return the symbols of records of shape (n, d) under slots of shape (n,), as `encode` does.

    Returns
    -------
    ndarray of shape (n,), or (n, n_numbers) for a lattice; int64
    """
    values, codes = read_records(spec, records)
    own = symbols(spec.encoding, scale_many(spec.features, values), slots, codes)
    if not spec.counts_outside:
        return own
    outside = are_outside(spec.features, values)
    mechanism = spec.mechanism
    if mechanism.outside_vector is not None:
        own = np.column_stack([own, np.zeros(len(own), dtype=np.int64)])
        own[outside] = mechanism.outside_vector
    elif spec.has_outside_symbol:
        own[outside] = spec.encoding.n_symbols
    else:
        own[outside] = below_many(entropy, spec.encoding.n_symbols, int(outside.sum()))
    return own


def count_outside(spec: RoundSpec) -> RoundSpec:
    """Return the round that counts records outside, at a cost that is at most that of the given one.

    The mechanism has the same kind and one more symbol, or the vectors a mark. A round of phases gets waves of weight
    zero, with the phase 0 for every record inside (`WAVES_PER_REFERENCE`). If there would be more than
    `MAX_PHASE_SLOTS` waves, some of the others are left out, evenly.

    Parameters
    ----------
    spec : RoundSpec
        A round that already counts records outside is returned unchanged.

    Raises
    ------
    InvalidSpec
        The mechanism does not support one symbol more, or a lattice has one step.
    """
    if spec.counts_outside:
        return spec
    encoding, mechanism = spec.encoding, spec.mechanism
    if mechanism.lattice is not None:
        mechanism = mechanism.marked()
    elif isinstance(encoding, PhaseEncoding):
        encoding = _with_references(encoding)
    elif adds_symbol(encoding):
        mechanism = resize(mechanism, encoding.n_symbols + 1)
    return replace(spec, encoding=encoding, mechanism=mechanism, out_of_bounds="count")


def is_reference(row: Sequence[int]) -> bool:
    """Return whether a wave has weight zero, so that it shows only how many records are outside."""
    return not any(row)


def _with_references(encoding: PhaseEncoding) -> PhaseEncoding:
    rows = encoding.weights
    if any(is_reference(row) for row in rows):
        return encoding
    n_references = -(-len(rows) // WAVES_PER_REFERENCE)
    n_kept = min(len(rows), MAX_PHASE_SLOTS - n_references)
    kept = encoding.select([place * len(rows) // n_kept for place in range(n_kept)])
    weights = kept.weights + ((0,) * encoding.n_features,) * n_references
    characters = kept.characters and kept.characters + ((0,) * len(encoding.attributes),) * n_references
    return replace(kept, weights=weights, characters=characters)

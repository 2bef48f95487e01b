"""Posterior of a report's cluster, given the published model and the report alone.

    P(c | slot, value)  ~  sum over x of  size_c P(x | c) P(value | symbol(x, slot))

The posterior is post-processing of perturbed reports, so it costs no privacy, and the noise limits its
accuracy. A device can label its own record exactly with the published model (`ClusterModel.assign`).
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InvalidSpec, ReportMalformed
from sfumato.model.cluster_likelihood import symbol_shares, vector_evidence, vector_posterior_terms
from sfumato.model.cluster_model import ClusterModel
from sfumato.specs import PhaseEncoding, RoundSpec, ShiftedGridEncoding, vector_noise

MAX_KEPT_ENTRIES = 1 << 22  # cached table entries of a round, 32 MB; other tables are computed again


class Reader:
    """Computes posteriors of one round's reports by one model, with cached tables.

    Parameters
    ----------
    model : ClusterModel
    spec : RoundSpec
        Published specification of the reports' round.

    Raises
    ------
    InvalidSpec
        The round has other features or attributes than the model, or too many symbols.
    """

    def __init__(self, model: ClusterModel, spec: RoundSpec) -> None:
        formed = spec.attributes if isinstance(spec.encoding, PhaseEncoding | ShiftedGridEncoding) else ()
        if spec.features != model.features[: model.n_numeric] or formed != model.attributes:
            raise InvalidSpec("the round must have the features and the attributes of the model")
        sizes = np.maximum(model.sizes, 0.0)
        self._prior = sizes / sizes.sum() if sizes.sum() > 0 else np.full(len(sizes), 1 / max(1, len(sizes)))
        self._spec = spec
        self._kept: dict[int, NDArray[np.float64]] = {}
        self._n_kept = MAX_KEPT_ENTRIES // max(1, model.n_clusters * spec.encoding.n_symbols)
        self._noise = vector_noise(spec.mechanism)
        if self._noise is not None:
            self._vectors = vector_evidence(model, self._noise)
            self._shares = None
        else:
            self._shares = symbol_shares(model, spec.encoding)

    def posterior(self, slots: ArrayLike, values: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Return P(cluster | report).

        Parameters
        ----------
        slots : array-like of shape (n,), integers
        values : ndarray of shape (n, value_bytes), uint8

        Returns
        -------
        ndarray of shape (n, n_clusters), rows of sum one
            A row has the clusters' shares if the report is uninformative under the model.

        Raises
        ------
        ReportMalformed
            The mechanism cannot produce a report; `index` is the first one.
        """
        mechanism, own_slots = self._spec.mechanism, np.asarray(slots, dtype=np.int64)
        if own_slots.shape != (len(values),) or values.shape != (len(values), mechanism.value_bytes):
            raise InvalidSpec("slots must have shape (n,) and values (n, value_bytes)")
        sound = (own_slots >= 0) & (own_slots < self._spec.encoding.n_slots) & mechanism.are_values(values)
        if not sound.all():
            raise ReportMalformed(int(np.argmin(sound)), "no device could have sent this")
        if self._noise is not None:
            logs = vector_posterior_terms(self._vectors, self._noise, values)
            like = np.exp(logs - logs.max(axis=1, keepdims=True, initial=-np.inf))
        else:
            like = self._counted(own_slots, values)
        joint = like * self._prior
        totals = joint.sum(axis=1, keepdims=True)
        found: NDArray[np.float64] = np.where(totals > 0, joint / np.where(totals > 0, totals, 1.0), self._prior)
        return found

    def _counted(self, slots: NDArray[np.int64], values: NDArray[np.uint8]) -> NDArray[np.float64]:
        like = np.ones((len(values), len(self._prior)))
        if self._shares is None:
            return like
        order = np.argsort(slots, kind="stable")
        starts = np.flatnonzero(np.diff(slots[order], prepend=-1))
        for rows in np.split(order, starts[1:]):
            if rows.size:
                like[rows] = self._spec.mechanism.likelihood(values[rows], self._table(int(slots[rows[0]])))
        return like

    def _table(self, slot: int) -> NDArray[np.float64]:
        assert self._shares is not None  # noqa: S101 - for the type checker
        found = self._kept.get(slot)
        if found is None:
            found = self._shares(slot)
            if self._spec.has_outside_symbol:  # the model describes people inside
                found = np.pad(found, ((0, 0), (0, 1)))
            if len(self._kept) < self._n_kept:
                self._kept[slot] = found
        return found


def posterior(model: ClusterModel, spec: RoundSpec, slots: ArrayLike, values: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return P(cluster | report) of each report of one round; see `Reader.posterior`.

    Parameters
    ----------
    model : ClusterModel
        With a label map, people are distributed by its density, at the middles of the cells. With
        centroids, they are isotropic normal distributions with the model's sizes and widths.
    spec : RoundSpec
    slots : array-like of shape (n,)
    values : ndarray of shape (n, value_bytes), uint8

    Returns
    -------
    ndarray of shape (n, n_clusters)

    Raises
    ------
    InvalidSpec, ReportMalformed
        As for `Reader` and its `posterior`.
    """
    return Reader(model, spec).posterior(slots, values)

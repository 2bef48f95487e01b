"""Which cluster a report came from: the posterior, given the published model and the report alone.

    P(c | slot, value)  ~  sum over x of  size_c P(x | c) P(value | symbol(x, slot))

It is post-processing of reports that were perturbed before they left, so it costs nothing, and
it is as unreliable as the noise makes it: that is what the noise is for. A device that labels
its own record with the published model (`ClusterModel.assign`) is right where this guesses.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato import mechanisms
from sfumato.channels import likelihood
from sfumato.cluster_model import ClusterModel
from sfumato.crowds import symbol_shares, vector_evidence, vector_posterior_terms
from sfumato.errors import InvalidSpec, ReportMalformed
from sfumato.specs import DiscreteLaplaceMechanism, RoundSpec

MAX_KEPT_ENTRIES = 1 << 22  # of a round's tables in memory, 32 MB; what does not fit is made anew each time


class Reader:
    """Reads reports of one round by one model: what they share is worked out once.

    Parameters
    ----------
    model : ClusterModel
    spec : RoundSpec
        The round the reports answer, as published.

    Raises
    ------
    InvalidSpec
        A round over other features than the model's, or of more symbols than can be held.
    """

    def __init__(self, model: ClusterModel, spec: RoundSpec) -> None:
        if spec.features != model.features:
            raise InvalidSpec("the round is over other features than the model")
        sizes = np.maximum(model.sizes, 0.0)
        self._prior = sizes / sizes.sum() if sizes.sum() > 0 else np.full(len(sizes), 1 / max(1, len(sizes)))
        self._spec = spec
        self._kept: dict[int, NDArray[np.float64]] = {}
        self._n_kept = MAX_KEPT_ENTRIES // max(1, model.n_clusters * spec.encoding.n_symbols)
        if isinstance(spec.mechanism, DiscreteLaplaceMechanism):
            self._vectors = vector_evidence(model, spec.mechanism)
            self._shares = None
        else:
            self._shares = symbol_shares(model, spec.encoding)

    def posterior(self, slots: ArrayLike, values: NDArray[np.uint8]) -> NDArray[np.float64]:
        """P(cluster | report).

        Parameters
        ----------
        slots : array-like of shape (n,), integers
        values : ndarray of shape (n, value_bytes), uint8

        Returns
        -------
        ndarray of shape (n, n_clusters), rows of sum one
            Each the shares of the clusters themselves where a report tells nothing under the
            model (of codes, a report of another round than the code's own).

        Raises
        ------
        ReportMalformed
            A report the mechanism could not have produced; `index` is its place.
        """
        mechanism, own_slots = self._spec.mechanism, np.asarray(slots, dtype=np.int64)
        if own_slots.shape != (len(values),) or values.shape != (len(values), mechanisms.value_bytes(mechanism)):
            raise InvalidSpec("slots have shape (n,) and values (n, value_bytes)")
        sound = (own_slots >= 0) & (own_slots < self._spec.encoding.n_slots) & mechanisms.are_values(mechanism, values)
        if not sound.all():
            raise ReportMalformed(int(np.argmin(sound)), "no device could have sent this")
        if isinstance(mechanism, DiscreteLaplaceMechanism):
            logs = vector_posterior_terms(self._vectors, mechanism, values)
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
                like[rows] = likelihood(self._spec.mechanism, values[rows], self._table(int(slots[rows[0]])))
        return like

    def _table(self, slot: int) -> NDArray[np.float64]:
        assert self._shares is not None  # noqa: S101 - for the type checker: who calls has looked
        found = self._kept.get(slot)
        if found is None:
            found = self._shares(slot)
            if len(self._kept) < self._n_kept:
                self._kept[slot] = found
        return found


def posterior(model: ClusterModel, spec: RoundSpec, slots: ArrayLike, values: NDArray[np.uint8]) -> NDArray[np.float64]:
    """P(cluster | report) of each report of one round: see `Reader.posterior`.

    Parameters
    ----------
    model : ClusterModel
        As published. Of a label map, people are where its density says, each cell's at its
        middle; of centroids, they are round normal crowds of the model's sizes and widths.
    spec : RoundSpec
    slots : array-like of shape (n,)
    values : ndarray of shape (n, value_bytes), uint8

    Returns
    -------
    ndarray of shape (n, n_clusters)

    Raises
    ------
    InvalidSpec, ReportMalformed
        As `Reader` and its `posterior`.
    """
    return Reader(model, spec).posterior(slots, values)

"""Recorded runs of central algorithms: their charges, reads, draws and answers, and journals that replay them."""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.central.privacy_loss import NoisyAnswer, TreeAnswer
from clustering.central.curator import Curator
from clustering.central.mapped_records import Selection, select_columns
from clustering.central.noise import Noise
from clustering.central.queries import Exact, Journal, Query, Records
from clustering.errors import TooFewRecords
from sfumato.model.cluster_model import ClusterModel
from sfumato.privacy.entropy import Entropy
from sfumato.specs import LATTICE, Feature
from sfumato.specs.attributes import Categorical

# fields of a query in the odometer of a model
ODOMETER_FIELDS = ("description", "epsilon_nano", "delta_atto", "rho_pico", "n_values")

RunCentral = Callable[[Any, tuple[Feature, ...], Curator], ClusterModel]


N_FEATURES = (1, 2, 5, 12)


class Method(NamedTuple):
    """A central algorithm with its parameters and its curator. Leaks are planted in the algorithm or the curator."""

    name: str
    params: Any
    run: RunCentral
    curator: type[Curator] = Curator
    n_features: tuple[int, ...] = N_FEATURES  # numbers of features that the replay covers
    columns: tuple[int, ...] = ()  # positions of the features that the job uses; empty for all
    attributes: tuple[Categorical, ...] = ()  # they take the place of the last features; see `encode_last`
    circles: tuple[int, ...] = ()  # indices of the periodic features


class DivergenceError(Exception):
    """Raised if a replay with the same answers behaves differently."""


class Recorder:
    """A journal and an entropy that record their events in one list.

    Parameters
    ----------
    journal : Journal
        Receives the charges and answers.
    entropy : Entropy
        Supplies the words.
    """

    def __init__(self, journal: Journal, entropy: Entropy) -> None:
        self._journal, self._entropy = journal, entropy
        self.events: list[
            tuple[str, int]
        ] = []  # charge, keep or read with the query number; draw with the number of words
        self.charges: list[Query] = []
        self.answers: list[NDArray[np.int64]] = []

    def charge(self, index: int, query: Query) -> NDArray[np.int64] | None:
        loss = self._journal.charge(index, query)
        self.events.append(("charge", index))
        self.charges.append(query)
        return loss

    def keep(self, index: int, answer: NDArray[np.int64]) -> None:
        self._journal.keep(index, answer)
        self.events.append(("keep", index))
        self.answers.append(answer.copy())

    def record_access(self) -> None:
        self.events.append(("read", len(self.charges) - 1))

    def words(self, n: int) -> NDArray[np.uint64]:
        self.events.append(("draw", n))
        return self._entropy.words(n)


class RecordedAnswers:
    """A journal with the answers of an earlier run. It requires equal queries and supplies no randomness."""

    def __init__(self, charges: Sequence[Query], answers: Sequence[NDArray[np.int64]]) -> None:
        self._charges, self._answers = charges, answers

    def charge(self, index: int, query: Query) -> NDArray[np.int64]:
        if index >= len(self._charges):
            raise DivergenceError(f"an additional query is sent, {query.description}")
        if query != (recorded := self._charges[index]):
            difference = (
                "other arguments"
                if query.description == recorded.description
                else f"{recorded.description} in the first run"
            )
            raise DivergenceError(f"query {index}, {query.description}, differs: {difference}")
        if index >= len(self._answers):
            raise DivergenceError(f"query {index}, {query.description}, was charged and has no answer")
        return self._answers[index]

    def keep(self, index: int, answer: NDArray[np.int64]) -> None:  # noqa: ARG002 - signature of the protocol
        raise DivergenceError(f"query {index} drew new noise, although it has an answer")

    def words(self, n: int) -> NDArray[np.uint64]:
        raise DivergenceError(f"the replay drew {n} words of noise, although every query has an answer")


class RecordingCurator(Curator):
    """A curator that records its answers with the exact values. It is the direct parent class before `Curator`."""

    def __init__(
        self,
        records: Records,
        epsilon_nano: int,
        journal: Recorder,
        entropy: Entropy,
        delta_atto: int = 0,
        *,
        selection: Selection | None = None,
    ) -> None:
        super().__init__(records, epsilon_nano, journal, entropy, delta_atto, selection=selection)
        self.recorder = journal
        self.recorded: dict[int, NoisyAnswer | TreeAnswer] = {}

    def _release(self, query: Query, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        def recorded_exact() -> NDArray[np.int64]:
            self.recorder.record_access()
            return exact()

        answer = super()._release(query, recorded_exact, noise)
        self.recorded[len(self._queries) - 1] = NoisyAnswer(query, exact(), noise, answer)
        return answer

    def halving_tree(self, epsilon_nano: int) -> NDArray[np.int64]:
        answer = super().halving_tree(epsilon_nano)
        points, scale = self._records.points, self._scale(3, epsilon_nano)
        self.recorded[len(self._queries) - 1] = TreeAnswer(self._queries[-1], points, scale, answer)
        return answer


class Run(NamedTuple):
    """The model document of a run, with its recorder and its curator."""

    document: str
    recorder: Recorder
    curator: RecordingCurator


def run_method(method: Method, records: Records, recorder: Recorder) -> Run:
    """Run a method on records with a recorder."""
    planted = () if method.curator is Curator else (method.curator,)  # overrides RecordingCurator
    kind: type[RecordingCurator] = type("Recording", (*planted, RecordingCurator), {})
    epsilon_nano, delta_atto = method.params.epsilon_nano, method.params.delta_atto
    features = features_of(len(method.columns) or records.n_features - len(method.attributes), method.circles)
    selection = Selection(np.array(method.columns)) if method.columns else None
    if method.attributes:
        records, selection = encode_last(records, method.attributes), select_columns(features, method.attributes)
    curator = kind(records, epsilon_nano, recorder, recorder, delta_atto, selection=selection)
    try:
        document = method.run(method.params, features, curator).to_wire()
    except TooFewRecords as refused:  # published as the error of the job
        odometer = [{name: getattr(query, name) for name in ODOMETER_FIELDS} for query in curator.odometer]
        document = {"error": str(refused), "diagnostics": {"odometer": odometer}}
    return Run(json.dumps(document, sort_keys=True), recorder, curator)


def encode_last(records: Records, attributes: tuple[Categorical, ...]) -> Records:
    """Return records with codes of categories in the last columns: the place of each number among equal parts."""
    points = records.points.copy()
    n_values = np.array([len(each.categories) for each in attributes])
    points[:, -len(n_values) :] = points[:, -len(n_values) :].astype(np.int64) * n_values // LATTICE
    return Records(points, records.max_per_user)


def features_of(n_features: int, circles: tuple[int, ...] = ()) -> tuple[Feature, ...]:
    """Return features with bounds that are neither [0, 1] nor symmetric. Those at `circles` are periodic."""
    return tuple(Feature(f"x{i}", -3.0, 5.0 + i, periodic=i in circles) for i in range(n_features))

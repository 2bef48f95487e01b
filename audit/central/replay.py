"""Replay check of central algorithms.

An algorithm runs on records. It runs again on neighbouring records, while the journal returns the answers of the first
run. A correct algorithm reads records only through its curator's answers. Therefore, it sends the same queries and
returns the same model, byte for byte. One run detects a branch on raw data. The privacy loss of the answers is exact,
because both the exact values and the noise are known.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import sqrt

import numpy as np

from audit.central.privacy_loss import NoisyAnswer, compute_privacy_loss, sum_noise_excess
from audit.central.recordings import (
    ODOMETER_FIELDS,
    DivergenceError,
    Method,
    RecordedAnswers,
    Recorder,
    Run,
    run_method,
)
from audit.checks.check import Check, Effort, Finding, Setting
from audit.checks.neighbours import N_OTHERS, Pair, make_pairs
from clustering.central.curator import LARGEST
from clustering.central.queries import MemoryJournal, Records
from clustering.central.run import run
from clustering.errors import BudgetOverdrawn, DeltaOverdrawn
from sfumato.privacy.accounting import NANO
from sfumato.privacy.entropy import Entropy
from sfumato.sizing.private_bounds import plan_bounds
from sfumato.specs import (
    Auto,
    DensityMap,
    DpBisectingKmeans,
    DpDensityPeaks,
    DpKmeans,
    DpQuadtreeKmeans,
    DpUniformGridKmeans,
    PrivateKmeans,
)
from sfumato.specs.attributes import Categorical

SAME_QUERIES = "queries and model depend on the records only through query answers"
PRIVACY_LOSS = "query answers reveal at most the charged epsilon"
CHARGE_ORDER = "a query is charged before records are read and noise is drawn; then the answer is stored"
PAYMENT = "the journal is charged the odometer's costs, and at most the declared budget"
NOISE_SCALE = "noise has its stated scale"

MAX_DEVIATIONS = 7.0  # largest deviation of the mean noise size in standard errors; error probability e^-26
ROUNDING = 1e-9  # error of floats


@dataclass
class ReplayResults:
    """The results of a method's replays over pairs of neighbours.

    Attributes
    ----------
    method : Method
    runs : int
    faults : dict
        The first fault per claim.
    charged, loss : float
        Epsilon of the transcript with the largest loss in relation to its charge.
    n_samples, excess : int, float
        The number of noise samples, and the sum of their standardised excess over the mean size.
    """

    method: Method
    runs: int = 0
    faults: dict[str, str] = field(default_factory=dict)
    charged: float = 0.0
    loss: float = 0.0
    n_samples: int = 0
    excess: float = 0.0

    def replay(self, pair: Pair, entropy: Entropy) -> None:
        """Use each dataset of a pair in turn: run on it, then replay on the other one."""
        for records, other in ((pair.more, pair.less), (pair.less, pair.more)):
            first = self.run_and_check(pair, records, Recorder(MemoryJournal(), entropy))
            if first is not None:
                stored = RecordedAnswers(first.recorder.charges, first.recorder.answers)
                self.replay_run(pair, first, other, Recorder(stored, stored))

    def run_and_check(self, pair: Pair, records: Records, recorder: Recorder) -> Run | None:
        """Run the method and check its charges. Return None if the queries exceed the declared budget."""
        self.runs += 1
        try:
            first = run_method(self.method, records, recorder)
        except (BudgetOverdrawn, DeltaOverdrawn) as refused:
            self._add_fault(PAYMENT, f"{pair.name}: the queries exceed the declared budget: {type(refused).__name__}")
            return None
        self._check_chargedorder(pair, first)
        self._check_payment(pair, first)
        self._measure(first)
        return first

    def replay_run(self, pair: Pair, first: Run, other: Records, recorder: Recorder) -> None:
        """Replay a run on a neighbour with the answers of the recorder's journal, and compare."""
        try:
            replayed = run_method(self.method, other, recorder)
        except DivergenceError as diverged:
            self._add_fault(SAME_QUERIES, f"{pair.name}: {diverged}")
        except Exception as error:  # any exception distinguishes the two datasets
            self._add_fault(SAME_QUERIES, f"{pair.name}: the replay ends with {type(error).__name__}: {error}")
        else:
            self._compare(pair, first, replayed)

    def _compare(self, pair: Pair, first: Run, replayed: Run) -> None:
        """Compare a run on a neighbour with the first run."""
        if len(replayed.recorder.charges) < len(first.recorder.charges):
            self._add_fault(
                SAME_QUERIES,
                f"{pair.name}: {len(replayed.recorder.charges)} queries instead of {len(first.recorder.charges)}",
            )
            return
        if replayed.document != first.document:
            self._add_fault(
                SAME_QUERIES, f"{pair.name}: the model differs: {_list_differences(first.document, replayed.document)}"
            )
        answers, other = first.curator.recorded, replayed.curator.recorded
        if answers.keys() != other.keys() or any(
            query.n_values and index not in answers for index, query in enumerate(first.recorder.charges)
        ):
            self._add_fault(PRIVACY_LOSS, f"{pair.name}: an answer was not made by its noise")
            return
        loss = compute_privacy_loss(first.recorder.charges, answers, other)
        if loss.why:
            self._add_fault(PRIVACY_LOSS, f"{pair.name}: {loss.why}")
        if loss.epsilon * max(self.charged, ROUNDING) > self.loss * loss.charged or self.charged == 0:
            self.charged, self.loss = loss.charged, loss.epsilon

    def findings(self) -> list[Finding]:
        """Return one finding per claim."""
        deviation = self.excess / sqrt(max(self.n_samples, 1))
        if abs(deviation) > MAX_DEVIATIONS:
            self._add_fault(
                NOISE_SCALE, f"the mean size deviates by {deviation:+.1f} standard errors over {self.n_samples} samples"
            )
        findings = []
        for claim in (SAME_QUERIES, PRIVACY_LOSS, CHARGE_ORDER, PAYMENT, NOISE_SCALE):
            why = self.faults.get(claim, "")
            is_loss, is_scale = claim == PRIVACY_LOSS, claim == NOISE_SCALE
            findings.append(
                Finding(
                    subject=self.method.name,
                    claim=claim,
                    method="mean size" if is_scale else "replay",
                    trials=self.n_samples if is_scale else self.runs,
                    charged=self.charged if is_loss else None,
                    measured=self.loss if is_loss else None,
                    holds=not why,
                    why=why,
                )
            )
        return findings

    def _add_fault(self, claim: str, why: str) -> None:
        self.faults.setdefault(claim, why)

    def _check_chargedorder(self, pair: Pair, run: Run) -> None:
        is_charged, n_samples = False, 0
        for what, number in run.recorder.events:
            if what == "charge":
                is_charged, n_samples = True, 0
            elif not is_charged:
                self._add_fault(CHARGE_ORDER, f"{pair.name}: a {what} outside of any charged query")
            elif what == "keep":
                is_charged = False
                query = run.recorder.charges[number]
                if query.n_values and not n_samples:
                    self._add_fault(
                        CHARGE_ORDER,
                        f"{pair.name}: {query.description} has an answer, but drew no noise from the entropy",
                    )
            n_samples += what == "draw"
        if len(run.recorder.answers) != len(run.recorder.charges):
            self._add_fault(CHARGE_ORDER, f"{pair.name}: an answer was not stored")

    def _check_payment(self, pair: Pair, run: Run) -> None:
        charges, curator = run.recorder.charges, run.curator
        declared = self.method.params.epsilon_nano, self.method.params.delta_atto
        paid = sum(each.epsilon_nano for each in charges), sum(each.delta_atto for each in charges)
        if tuple(charges) != curator.odometer:
            self._add_fault(PAYMENT, f"{pair.name}: the odometer differs from the charges of the journal")
        if any(part > most for part, most in zip(paid, declared, strict=True)):
            epsilons = f"epsilon {paid[0] / NANO} of {declared[0] / NANO}"
            self._add_fault(PAYMENT, f"{pair.name}: charged {epsilons}, delta {paid[1]} atto of {declared[1]}")
        published = json.loads(run.document)["diagnostics"]["odometer"]
        if published != [{name: getattr(each, name) for name in ODOMETER_FIELDS} for each in charges]:
            self._add_fault(PAYMENT, f"{pair.name}: the model's odometer differs from the charges of the journal")

    def _measure(self, run: Run) -> None:
        for noisy in run.curator.recorded.values():
            if isinstance(noisy, NoisyAnswer):
                is_counted = np.abs(noisy.answer) < LARGEST
                n_samples, excess = sum_noise_excess(noisy.noise, noisy.answer - noisy.exact, is_counted)
                self.n_samples += n_samples
                self.excess += excess


def _list_differences(document: str, other: str) -> str:
    """Return the names of the fields in which two documents differ."""
    one, two = json.loads(document), json.loads(other)
    differences = sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
    if "diagnostics" in differences:
        parts = one["diagnostics"], two["diagnostics"]
        names = sorted(parts[0].keys() | parts[1].keys())
        differences += [f"diagnostics.{name}" for name in names if parts[0].get(name) != parts[1].get(name)]
    return ", ".join(differences)


# ---- all algorithms ----

REPEATS = {Effort.QUICK: 1, Effort.FULL: 10, Effort.NIGHTLY: 100}

MAP_FEATURES = (1, 2, 3)
ATTRIBUTES = (
    Categorical("plan", ("free", "basic", "pro"), use="cluster"),
    Categorical("region", ("north", "south"), use="cluster", weight=3.0),
)

METHODS: tuple[Method, ...] = (
    Method("dp_kmeans", DpKmeans(1.0, 2, iterations=3), run),
    Method("dp_kmeans, halving", DpKmeans(4.0, 5, budget="halving", iterations=3), run),
    Method("dp_kmeans, plusplus", DpKmeans(2.0, 3, init="plusplus", iterations=2), run),
    Method("dp_kmeans, plusplus, halving", DpKmeans(8.0, 12, "plusplus", "halving", iterations=2), run),
    Method("dp_kmeans, subsets", DpKmeans(1.0, 3, init="subsets", iterations=2), run),
    Method("dp_kmeans, subsets, halving", DpKmeans(16.0, 8, init="subsets", budget="halving", iterations=2), run),
    Method("dp_bisecting_kmeans", DpBisectingKmeans(2.0, 3), run),
    Method("dp_bisecting_kmeans, total_sse", DpBisectingKmeans(16.0, 5, split="total_sse", iterations=1), run),
    Method("dp_bisecting_kmeans, synopsis", DpBisectingKmeans(4.0, 3, synopsis=True), run),
    Method("dp_bisecting_kmeans, synopsis, total_sse", DpBisectingKmeans(8.0, 4, "total_sse", synopsis=True), run),
    Method("dp_uniform_grid_kmeans", DpUniformGridKmeans(4.0, 3), run),
    Method("dp_uniform_grid_kmeans, cells", DpUniformGridKmeans(0.5, 2, cells=2), run),
    Method("dp_quadtree_kmeans", DpQuadtreeKmeans(4.0, 3), run),
    Method("dp_quadtree_kmeans, height", DpQuadtreeKmeans(8.0, 3, height=4), run),
    Method("dp_density_peaks", DpDensityPeaks(8.0, 3), run),
    Method("private_kmeans", PrivateKmeans(4.0, 3), run),
    Method("private_kmeans, large epsilon", PrivateKmeans(32.0, 2), run),
    Method("private_kmeans, delta", PrivateKmeans(16.0, 2, delta=1e-3), run),
    Method("private_kmeans, delta, one mean", PrivateKmeans(4.0, 1, delta=1e-3), run),
    Method("private_kmeans, delta, grid and rounds", PrivateKmeans(32.0, 9, delta=1e-3), run, n_features=(2, 4)),
    Method("feature check", PrivateKmeans(4.0, 2, check_features=True), run),
    Method(
        "feature check, delta, private bounds",
        PrivateKmeans(32.0, 2, delta=1e-3, bounds="private", check_features=True),
        run,
        n_features=(5,),
    ),
    Method("density_map", DensityMap(4.0), run, n_features=MAP_FEATURES[:1]),
    Method("density_map, cells", DensityMap(32.0, cells=6), run, n_features=MAP_FEATURES),
    Method("density_map, clusters", DensityMap(1.0, 3, cells=4), run, n_features=MAP_FEATURES),
    Method("auto", Auto(2.0, 3), run),
    Method("private bounds", PrivateKmeans(32.0, 2, bounds="private"), run, n_features=(1, 2)),
    Method("private bounds, delta", PrivateKmeans(32.0, 2, delta=1e-3, bounds="private"), run, n_features=(5, 12)),
    Method("columns", PrivateKmeans(4.0, 3), run, n_features=(12,), columns=(0, 4, 11)),
    Method("columns, private bounds", PrivateKmeans(32.0, 2, bounds="private"), run, n_features=(5,), columns=(1, 3)),
    Method("columns, delta", PrivateKmeans(16.0, 2, delta=1e-3), run, n_features=(12,), columns=(0, 1, 2, 3, 4, 5)),
    Method("categories", PrivateKmeans(8.0, 3), run, n_features=(3,), attributes=ATTRIBUTES),
    Method("categories, delta", PrivateKmeans(16.0, 3, delta=1e-3), run, n_features=(2, 6), attributes=ATTRIBUTES[:1]),
    Method(
        "categories, private bounds, feature check",
        PrivateKmeans(32.0, 2, bounds="private", check_features=True),
        run,
        n_features=(3,),
        attributes=ATTRIBUTES,
    ),
    Method("circles", PrivateKmeans(8.0, 3), run, n_features=(2, 5), circles=(1,)),
    Method("circles, delta", PrivateKmeans(32.0, 9, delta=1e-3), run, n_features=(2, 5), circles=(0,)),
    Method("circles, feature check", PrivateKmeans(4.0, 2, check_features=True), run, n_features=(2,), circles=(0,)),
    Method("circles, density_map", DensityMap(32.0, cells=6), run, n_features=(2,), circles=(0,)),
    Method("private bounds, dp_quadtree_kmeans", DpQuadtreeKmeans(32.0, 2, bounds="private"), run, n_features=(1,)),
)


def pairs_for(method: Method) -> Iterable[Pair]:
    """Yield all pairs for all numbers of features of a method, with enough records for its private bounds."""
    for d in method.n_features:
        n_others = N_OTHERS
        if getattr(method.params, "bounds", None) == "private":  # fewer are refused; a profile has no bounds
            needed = plan_bounds(method.params, len(method.columns) or d).needed_records
            n_others = max(n_others, needed + needed // 4)
        yield from make_pairs(d, n_others)


def check_replay(
    method: Method, setting: Setting, pairs: Iterable[Pair] | None = None, until_fault: bool = False
) -> Sequence[Finding]:
    """Replay a method over pairs of neighbours; by default, all pairs for all numbers of features.

    `until_fault` ends after the first pair with a fault; one fault is enough to detect a planted leak.
    """
    results = ReplayResults(method)
    chosen = list(pairs_for(method) if pairs is None else pairs)
    for number in range(REPEATS[setting.effort]):
        for i, pair in enumerate(chosen):
            entropy = setting.entropy(f"replay/{method.name}/{number}/{i}")
            results.replay(pair, entropy)
            if until_fault and results.faults:
                return results.findings()
    return results.findings()


def _make_check(method: Method) -> Check:
    return Check(f"{method.name}, replay", lambda setting: check_replay(method, setting))


CHECKS: tuple[Check, ...] = tuple(_make_check(method) for method in METHODS)

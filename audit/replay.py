"""Replay: a central algorithm over records, then over a neighbour's with the same answers: nothing else may differ.

An algorithm that is sound sees records through its curator's answers alone. So over a neighbour,
told the answers it was told before, it asks the same questions and comes to the same model, byte
for byte: one trial shows a branch on raw data. What the answers tell of a person is then exact,
for both exact values and the noise are known.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.check import Finding
from audit.curator_loss import Answered, Grown, epsilons_told, surprise
from audit.neighbours import Pair
from clustering.curator import LARGEST, Curator, Exact, Journal, MemoryJournal, Question, Records
from clustering.errors import BudgetOverdrawn, DeltaOverdrawn
from clustering.noise import Noise
from sfumato.accounting import NANO, parse_delta, parse_epsilon
from sfumato.cluster_model import ClusterModel
from sfumato.entropy import Entropy
from sfumato.specs import Feature

SAME = "a neighbour is asked the same, and the answers alone make the model"
TELLS = "no answer tells of a person more than it is charged"
ORDER = "a question is charged, then records are looked at and noise is drawn, then it is written down"
PAID = "the journal was paid what the odometer shows, and no more than was declared"
WIDTH = "noise is as wide as it says"

SHOWN = ("what", "epsilon_nano", "delta_atto", "rho_pico", "n_values")  # of a question, in a model's odometer
SPREADS = 7.0  # standard errors that the mean size of noise may be off: e^-26 of a chance
ROUNDING = 1e-9  # of floats

RunCentral = Callable[[Any, tuple[Feature, ...], Curator], ClusterModel]


class Method(NamedTuple):
    """A central algorithm with its parameters, and the curator it asks. Leaks are planted in either."""

    name: str
    params: Any
    run: RunCentral
    curator: type[Curator] = Curator


class Diverged(Exception):
    """Told the same answers, something else was done."""


class Tape:
    """A journal and a source of randomness that write one list of what happens, in order.

    Parameters
    ----------
    journal : Journal
        Behind it.
    entropy : Entropy
        Behind it.
    """

    def __init__(self, journal: Journal, entropy: Entropy) -> None:
        self._journal, self._entropy = journal, entropy
        self.events: list[tuple[str, int]] = []  # charge, keep, look and their question; draw and how many words
        self.charges: list[Question] = []
        self.answers: list[NDArray[np.int64]] = []

    def charge(self, index: int, question: Question) -> NDArray[np.int64] | None:
        told = self._journal.charge(index, question)
        self.events.append(("charge", index))
        self.charges.append(question)
        return told

    def keep(self, index: int, answer: NDArray[np.int64]) -> None:
        self._journal.keep(index, answer)
        self.events.append(("keep", index))
        self.answers.append(answer.copy())

    def look(self) -> None:
        self.events.append(("look", len(self.charges) - 1))

    def words(self, n: int) -> NDArray[np.uint64]:
        self.events.append(("draw", n))
        return self._entropy.words(n)


class Retelling:
    """The journal of a run that is over, and no randomness: each question must be the one that was asked then."""

    def __init__(self, charges: Sequence[Question], answers: Sequence[NDArray[np.int64]]) -> None:
        self._charges, self._answers = charges, answers

    def charge(self, index: int, question: Question) -> NDArray[np.int64]:
        if index >= len(self._charges):
            raise Diverged(f"a question more is asked, {question.what}")
        if question != (before := self._charges[index]):
            differs = "made of something else" if question.what == before.what else f"{before.what} before"
            raise Diverged(f"question {index}, {question.what}, is another one: {differs}")
        if index >= len(self._answers):
            raise Diverged(f"question {index}, {question.what}, was paid for and has no answer")
        return self._answers[index]

    def keep(self, index: int, answer: NDArray[np.int64]) -> None:  # noqa: ARG002 - the protocol's
        raise Diverged(f"question {index} was drawn anew, though it had its answer")

    def words(self, n: int) -> NDArray[np.uint64]:
        raise Diverged(f"{n} words of noise were drawn, though every answer was told")


class Watcher(Curator):
    """A curator that keeps what it answered, and what without noise. In a subclass it comes right above `Curator`."""

    def __init__(
        self, records: Records, epsilon_nano: int, journal: Tape, entropy: Entropy, delta_atto: int = 0
    ) -> None:
        super().__init__(records, epsilon_nano, journal, entropy, delta_atto)
        self.tape = journal
        self.seen: dict[int, Answered | Grown] = {}

    def _release(self, question: Question, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        def looked() -> NDArray[np.int64]:
            self.tape.look()
            return exact()

        answer = super()._release(question, looked, noise)
        self.seen[len(self._asked) - 1] = Answered(question, exact(), noise, answer)
        return answer

    def halving_tree(self, epsilon_nano: int) -> NDArray[np.int64]:
        answer = super().halving_tree(epsilon_nano)
        points, scale = self._records.points, self._scale(3, epsilon_nano)
        self.seen[len(self._asked) - 1] = Grown(self._asked[-1], points, scale, answer)
        return answer


class Run(NamedTuple):
    """What a run released, and what was seen behind the curtain."""

    document: str
    tape: Tape
    curator: Watcher


def run_on(method: Method, records: Records, tape: Tape) -> Run:
    """Run a method over records before the eyes of a tape."""
    broken = () if method.curator is Curator else (method.curator,)  # what is planted comes before who watches
    watched: type[Watcher] = type("Watched", (*broken, Watcher), {})
    epsilon_nano, delta_atto = parse_epsilon(method.params.epsilon), parse_delta(method.params.delta)
    curator = watched(records, epsilon_nano, tape, tape, delta_atto)
    model = method.run(method.params, features_of(curator.n_features), curator)
    return Run(json.dumps(model.to_wire(), sort_keys=True), tape, curator)


def features_of(n_features: int) -> tuple[Feature, ...]:
    """Bounds that are neither [0, 1] nor centred."""
    return tuple(Feature(f"x{i}", -3.0, 5.0 + i) for i in range(n_features))


@dataclass
class Replays:
    """What came of replaying a method over pairs of neighbours.

    Attributes
    ----------
    method : Method
    runs : int
    faults : dict
        By claim: what was seen first against it.
    charged, told : float
        Epsilon of the transcript that told the most for what it was charged.
    n_draws, surplus : int, float
        Of all noise that was drawn: how many, and by how many standard deviations above its mean in sum.
    """

    method: Method
    runs: int = 0
    faults: dict[str, str] = field(default_factory=dict)
    charged: float = 0.0
    told: float = 0.0
    n_draws: int = 0
    surplus: float = 0.0

    def replay(self, pair: Pair, entropy: Entropy) -> None:
        """Both of a pair in turn: run, and run again over the other with the answers that were given."""
        for records, other in ((pair.more, pair.less), (pair.less, pair.more)):
            first = self.run_first(pair, records, Tape(MemoryJournal(), entropy))
            if first is not None:
                told = Retelling(first.tape.charges, first.tape.answers)
                self.retell(pair, first, other, Tape(told, told))

    def run_first(self, pair: Pair, records: Records, tape: Tape) -> Run | None:
        """Run, and look at what was charged when; none where more was asked for than was declared."""
        self.runs += 1
        try:
            first = run_on(self.method, records, tape)
        except (BudgetOverdrawn, DeltaOverdrawn) as refused:
            self._fault(PAID, f"{pair.name}: more was asked than was declared: {type(refused).__name__}")
            return None
        self._check_order(pair, first)
        self._check_payment(pair, first)
        self._measure(first)
        return first

    def retell(self, pair: Pair, first: Run, other: Records, tape: Tape) -> None:
        """Run over a neighbour, by a tape whose journal has the answers of the first run, and compare."""
        try:
            again = run_on(self.method, other, tape)
        except Diverged as diverged:
            self._fault(SAME, f"{pair.name}: {diverged}")
        except Exception as error:  # whatever it is, it tells the two apart
            self._fault(SAME, f"{pair.name}: over the neighbour it ends with {type(error).__name__}: {error}")
        else:
            self._compare(pair, first, again)

    def _compare(self, pair: Pair, first: Run, again: Run) -> None:
        """Hold a run over a neighbour against the first."""
        if len(again.tape.charges) < len(first.tape.charges):
            self._fault(SAME, f"{pair.name}: {len(again.tape.charges)} questions, {len(first.tape.charges)} before")
            return
        if again.document != first.document:
            self._fault(SAME, f"{pair.name}: the model differs: {_difference(first.document, again.document)}")
        seen, other = first.curator.seen, again.curator.seen
        if seen.keys() != other.keys() or any(
            question.n_values and index not in seen for index, question in enumerate(first.tape.charges)
        ):
            self._fault(TELLS, f"{pair.name}: a question was answered in another way than by its noise")
            return
        told = epsilons_told(first.tape.charges, seen, other)
        if told.why:
            self._fault(TELLS, f"{pair.name}: {told.why}")
        if told.epsilon * max(self.charged, ROUNDING) > self.told * told.charged or self.charged == 0:
            self.charged, self.told = told.charged, told.epsilon

    def findings(self) -> list[Finding]:
        """One for each claim."""
        off = self.surplus / sqrt(max(self.n_draws, 1))
        if abs(off) > SPREADS:
            self._fault(WIDTH, f"its mean size is {off:+.1f} standard errors off over {self.n_draws} draws")
        found = []
        for claim in (SAME, TELLS, ORDER, PAID, WIDTH):
            why = self.faults.get(claim, "")
            is_told, is_width = claim == TELLS, claim == WIDTH
            found.append(
                Finding(
                    subject=self.method.name,
                    claim=claim,
                    method="mean size" if is_width else "replay",
                    trials=self.n_draws if is_width else self.runs,
                    charged=self.charged if is_told else None,
                    measured=self.told if is_told else None,
                    holds=not why,
                    why=why,
                )
            )
        return found

    def _fault(self, claim: str, why: str) -> None:
        self.faults.setdefault(claim, why)

    def _check_order(self, pair: Pair, run: Run) -> None:
        is_open, n_draws = False, 0
        for what, number in run.tape.events:
            if what == "charge":
                is_open, n_draws = True, 0
            elif not is_open:
                self._fault(ORDER, f"{pair.name}: a {what} outside of any question that was charged")
            elif what == "keep":
                is_open = False
                question = run.tape.charges[number]
                if question.n_values and not n_draws:
                    self._fault(ORDER, f"{pair.name}: {question.what} was answered, and no noise drawn of the entropy")
            n_draws += what == "draw"
        if len(run.tape.answers) != len(run.tape.charges):
            self._fault(ORDER, f"{pair.name}: an answer was not written down")

    def _check_payment(self, pair: Pair, run: Run) -> None:
        charges, curator = run.tape.charges, run.curator
        declared = parse_epsilon(self.method.params.epsilon), parse_delta(self.method.params.delta)
        paid = sum(each.epsilon_nano for each in charges), sum(each.delta_atto for each in charges)
        if tuple(charges) != curator.odometer:
            self._fault(PAID, f"{pair.name}: the odometer is not what the journal was paid")
        if any(part > most for part, most in zip(paid, declared, strict=True)):
            epsilons = f"epsilon {paid[0] / NANO} of {declared[0] / NANO}"
            self._fault(PAID, f"{pair.name}: paid {epsilons}, delta {paid[1]} atto of {declared[1]}")
        shown = json.loads(run.document)["diagnostics"]["odometer"]
        if shown != [{name: getattr(each, name) for name in SHOWN} for each in charges]:
            self._fault(PAID, f"{pair.name}: the model's odometer is not what the journal was paid")

    def _measure(self, run: Run) -> None:
        for seen in run.curator.seen.values():
            if isinstance(seen, Answered):
                n_draws, surplus = surprise(seen.noise, seen.answer - seen.exact, np.abs(seen.answer) < LARGEST)
                self.n_draws += n_draws
                self.surplus += surplus


def _difference(document: str, other: str) -> str:
    """Which fields of two documents differ."""
    one, two = json.loads(document), json.loads(other)
    found = sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
    if "diagnostics" in found:
        parts = one["diagnostics"], two["diagnostics"]
        names = sorted(parts[0].keys() | parts[1].keys())
        found += [f"diagnostics.{name}" for name in names if parts[0].get(name) != parts[1].get(name)]
    return ", ".join(found)

"""Checks of shuffled reports and their planted leaks, and brute force against closed forms."""

from itertools import product
from math import comb, exp

import numpy as np
import pytest

from audit.checks.check import Effort, Setting
from audit.mechanisms import shuffled_reports
from audit.mechanisms.exact_channels import example_round
from audit.mechanisms.shuffled_reports import CHECKS, SHUFFLED_EXAMPLES, compute_worst_deltas, enumerate_outcomes
from audit.planted.shuffling import LEAKS

SETTING = Setting(Effort.QUICK, 3)
REQUIRED = {"delta at 70 %", "fake reports counted as honest", "blanket of another mechanism"}
SUBJECTS = {  # each mechanism and each encoding once; a quick audit covers all pairs
    "shuffled grr x grid",
    "shuffled ss x shifted_grid",
    "shuffled oue x tree_grid",
    "shuffled olh x nearest_centroid",
    "shuffled hr x centroid_sign",
    "shuffled window x phase",
    "shuffled grr x two_cells",
    "shuffled olh in samples",
    "shuffled window in samples",
    "shuffled reports",
}


@pytest.fixture
def reduce_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffled_reports, "N_ELEMENTS", 500_000)
    monkeypatch.setattr(shuffled_reports, "N_SAMPLES", 5_000)


@pytest.mark.usefixtures("reduce_trials")
@pytest.mark.parametrize(
    "check", [check for check in CHECKS if check.subject in SUBJECTS], ids=lambda check: check.subject
)
def test_sound_code_passes(check) -> None:
    (finding,) = check.run(SETTING)
    assert finding.holds, finding.why
    assert finding.trials >= 8


@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.name)
def test_planted_leaks_are_detected(leak) -> None:
    (finding,) = leak.run(SETTING)
    assert not finding.holds
    assert finding.why


def test_required_leaks_are_planted() -> None:
    subjects = {check.subject for check in CHECKS}
    assert {leak.name for leak in LEAKS} >= REQUIRED
    assert {leak.subject for leak in LEAKS} <= subjects
    assert subjects >= SUBJECTS


class TestBruteForce:
    @pytest.mark.parametrize("n", [2, 7, 30])
    def test_two_symbols_have_the_delta_of_binomial_sums(self, n: int) -> None:
        keep, growths = 0.8, (1.0, 1.3)
        worst = np.zeros(2)
        for n_second in range(n):  # number of other people with the second value
            chances = [1 - keep] * (n - 1 - n_second) + [keep] * n_second
            others = np.ones(1)
            for chance in chances:
                others = np.convolve(others, [1 - chance, chance])
            laws = [np.convolve(others, [1 - chance, chance]) for chance in (1 - keep, keep)]
            for law, neighbour in (laws, laws[::-1]):
                worst = np.maximum(worst, [np.maximum(law - growth * neighbour, 0).sum() for growth in growths])
        outcomes = np.array([[keep, 1 - keep], [1 - keep, keep]])
        assert compute_worst_deltas(outcomes, n, growths) == pytest.approx(worst, rel=1e-12)

    def test_every_combination_of_other_values_is_covered(self) -> None:
        rng = np.random.default_rng(1)
        outcomes = rng.dirichlet(np.ones(3), size=3)
        growth, n, worst = exp(0.1), 3, 0.0
        for others in product(range(3), repeat=n - 1):
            laws = []
            for own in range(3):
                law: dict[tuple[int, ...], float] = {}
                for sent in product(range(3), repeat=n):
                    chance = float(outcomes[[own, *others], list(sent)].prod())
                    law[tuple(sorted(sent))] = law.get(tuple(sorted(sent)), 0.0) + chance
                laws.append(law)
            assert len(laws[0]) == comb(n + 2, 2)
            for law, neighbour in product(laws, repeat=2):
                worst = max(worst, sum(max(0.0, law[key] - growth * neighbour[key]) for key in law))
        assert compute_worst_deltas(outcomes, n, [growth]) == pytest.approx([worst], rel=1e-12)


class TestOutcomes:
    @pytest.mark.parametrize("kind", ["ss", "olh"])
    @pytest.mark.parametrize("encoding", ["shifted_grid", "two_cells"])
    def test_outcomes_of_each_point_are_a_distribution_within_the_local_guarantee(
        self, kind: str, encoding: str
    ) -> None:
        outcomes = enumerate_outcomes(example_round(SHUFFLED_EXAMPLES[encoding], kind, 1.0))
        assert len(outcomes) >= 2
        assert outcomes.sum(axis=1) == pytest.approx(1, abs=1e-12)
        assert (outcomes.max(axis=0) / outcomes.min(axis=0)).max() == pytest.approx(exp(1), rel=1e-9)

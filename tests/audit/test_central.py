"""Central algorithms, replayed and told apart: the sound ones pass, each planted leak is caught by the right claim."""

import numpy as np
import pytest

from audit import central, central_blackbox, central_service
from audit.central import METHODS, replayed
from audit.check import Effort, Setting
from audit.neighbours import pairs
from audit.planted import central as planted
from audit.planted import curator as planted_curator
from audit.replay import ORDER, PAID, SAME, TELLS, WIDTH, Method, Tape, run_on
from clustering.central.run import run
from clustering.curator import MemoryJournal
from sfumato.specs import (
    CENTRAL_ALGORITHMS,
    Auto,
    DpBisectingKmeans,
    DpKmeans,
    DpQuadtreeKmeans,
    DpUniformGridKmeans,
    GatedGridKmeans,
)

SETTING = Setting(Effort.QUICK, 11)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Once over each pair and few runs where a test is fast."""
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr(central, "REPEATS", dict.fromkeys(Effort, 1))
        monkeypatch.setattr(central_blackbox, "RUNS", 300)


STEPS, TREE = DpKmeans(1.0, 2, iterations=2), DpQuadtreeKmeans(1.0, 2, height=2)


def faults(findings):
    return {finding.claim: finding.why for finding in findings if not finding.holds}


class TestWhatIsLookedAt:
    @pytest.mark.parametrize("methods", [METHODS, [method for _, method in central_blackbox.METHODS]], ids=["a", "b"])
    def test_is_every_algorithm_in_each_of_its_forms(self, methods) -> None:
        params = [method.params for method in methods]
        assert {type(one) for one in params} == {*CENTRAL_ALGORITHMS.values(), Auto}
        steps = {(one.init, one.budget) for one in params if isinstance(one, DpKmeans)}
        assert steps == {(i, b) for i in ("random", "plusplus", "subsets") for b in ("uniform", "halving")}
        splits = {(one.split, one.synopsis) for one in params if isinstance(one, DpBisectingKmeans)}
        assert splits == {(split, s) for split in ("largest_sse", "total_sse") for s in (False, True)}
        assert {one.delta > 0 for one in params if isinstance(one, GatedGridKmeans)} == {False, True}

    @pytest.mark.parametrize(
        "method", [method for method in METHODS if method.params.delta], ids=lambda each: each.name
    )
    def test_is_a_concentrated_block_too(self, method: Method) -> None:
        asked = [
            question.what
            for pair in pairs(12)
            for question in run_on(method, pair.more, Tape(MemoryJournal(), SETTING.entropy(pair.name))).tape.charges
        ]
        assert asked.count("concentrated block") >= 4

    def test_is_named_once(self) -> None:
        checks = [*central.CHECKS, *central_blackbox.CHECKS, *central_service.CHECKS]
        assert len({check.subject for check in checks}) == len(checks)
        looked_at = (METHODS, central_blackbox.METHODS, central_service.METHODS)
        assert len(checks) == sum(map(len, looked_at))
        leaks = [(leak.name, leak.subject) for leak in (*planted.LEAKS, *planted_curator.LEAKS)]
        assert len(set(leaks)) == len(leaks)


class TestReplayed:
    @pytest.mark.parametrize("method", METHODS, ids=[method.name for method in METHODS])
    def test_holds(self, method: Method) -> None:
        found = replayed(method, SETTING, pairs(1 if "delta" not in method.name else 12)[4:8])
        assert faults(found) == {}
        assert next(finding.charged for finding in found if finding.claim == TELLS) == method.params.epsilon

    @pytest.mark.parametrize(
        ("params", "broken", "claim", "seen"),
        [
            (STEPS, planted.raw_labels, SAME, "diagnostics.labels"),
            (STEPS, planted.raw_inertia, SAME, "diagnostics.inertia"),
            (STEPS, planted.raw_seeds, SAME, "made of something else"),
            (STEPS, planted.empty_cluster_skip, SAME, "questions"),
            (TREE, planted.raw_bounds, SAME, "centroids"),
            (TREE, planted.one_level_more, PAID, "BudgetOverdrawn"),
        ],
        ids=lambda part: getattr(part, "__name__", ""),
    )
    def test_sees_a_broken_algorithm(self, params, broken, claim: str, seen: str) -> None:
        assert seen in faults(replayed(Method("broken", params, broken), SETTING, pairs(1)))[claim]

    @pytest.mark.parametrize(
        ("params", "broken", "claim", "seen"),
        [
            (STEPS, "NoiseAt70", TELLS, "tells epsilon"),
            (GatedGridKmeans(4.0, 2), "NoiseAt70", TELLS, "tells epsilon"),
            (DpKmeans(1.0, 9, iterations=3), "DrawsAt70", WIDTH, "standard errors off"),
            (STEPS, "UserBoundIgnored", TELLS, "a user's records"),
            (STEPS, "Uncentred", TELLS, "sums, tells"),
            (STEPS, "LocalSensitivity", TELLS, "depends on records"),
            (STEPS, "ChargesAfter", ORDER, "outside of any question"),
            (STEPS, "UnwrittenAnswer", ORDER, "not written down"),
            (STEPS, "SeedableNoise", ORDER, "no noise drawn"),
            (STEPS, "FloatNoise", TELLS, "another way than by its noise"),
            (DpUniformGridKmeans(1.0, 2, cells=2), "OneCountInTwoCells", TELLS, "counts, tells epsilon 2"),
        ],
    )
    def test_sees_a_broken_curator(self, params, broken: str, claim: str, seen: str) -> None:
        kind = getattr(planted_curator, broken)
        assert seen in faults(replayed(Method("broken", params, run, kind), SETTING, pairs(1)))[claim]

    @pytest.mark.parametrize("broken", ["GaussianAt70", "HalfPricedBlock"])
    def test_sees_a_broken_block(self, broken: str) -> None:
        method = Method("broken", GatedGridKmeans(16.0, 2, delta=1e-3), run, getattr(planted_curator, broken))
        assert TELLS in faults(replayed(method, SETTING, pairs(12)[2:7]))

    def test_sees_squares_that_nobody_paid_for(self) -> None:
        method = Method("broken", DpBisectingKmeans(1.0, 3, iterations=1), run, planted.RawSquares)
        assert SAME in faults(replayed(method, SETTING, pairs(1)))

    def test_sees_an_overspending_that_nobody_refused(self) -> None:
        method = Method("broken", TREE, planted.one_level_more, planted.Unlimited)
        assert "epsilon 1.15 of 1.0" in faults(replayed(method, SETTING, pairs(1)[:2]))[PAID]


class TestTold:
    def test_of_a_sound_method_less_than_it_is_charged(self) -> None:
        (found,) = central_blackbox.told_apart(Method("sound", STEPS, run), 1, SETTING)
        assert (found.holds, found.charged, found.trials) == (True, 1.0, 2 * central_blackbox.RUNS)
        assert found.measured is not None
        assert found.measured <= 1

    def test_of_raw_counts_more(self) -> None:
        (found,) = central_blackbox.told_apart(Method("broken", STEPS, planted.raw_labels), 1, SETTING)
        assert not found.holds
        assert found.measured is not None
        assert found.measured > 1.5
        assert "one record" in found.why

    def test_numbers_are_all_that_is_in_a_document(self) -> None:
        document = {"a": 1, "b": [2.5, {"c": True}], "d": "word", "e": None, "f": []}
        assert central_blackbox.numbers(document) == {"/a": 1.0, "/b#": 2.0, "/b/0": 2.5, "/b/1/c": 1.0, "/f#": 0.0}

    def test_a_mix_of_numbers_tells_what_none_of_them_does(self) -> None:
        rng = np.random.default_rng(0)
        models, others = (
            [{f"/{j}": float(x) for j, x in enumerate(row)} for row in rng.normal(shift, 1, (800, 20))]
            for shift in (0.6, 0.0)
        )
        seen, other = central_blackbox.best_scores(models, others, 0.0)
        best = max(abs(seen[400:].mean() - other[400:].mean()) / seen[400:].std(), 0)
        assert best > 2  # 0.6 of each alone, 2.7 of all twenty

    def test_a_number_that_one_side_lacks_is_told(self) -> None:
        models, others = [{"/a": 1.0, "/b": 2.0}] * 40, [{"/a": 1.0}] * 40
        seen, other = central_blackbox.best_scores(models, others, 0.0)
        assert len({*seen, *other}) == 2
        assert not set(seen) & set(other)


class TestItsJob:
    def test_is_replayed_by_who_claims_it_next(self) -> None:
        found = central_service.replayed(Method("a job", STEPS, run), SETTING)
        assert faults(found) == {}
        assert found[-1].claim == central_service.POSTED

    def test_is_found_out_where_its_journal_posts_less_or_forgets(self) -> None:
        method = Method("a job", STEPS, run)
        assert (
            "nano-epsilon posted"
            in faults(central_service.replayed(method, SETTING, planted.HalfPosted))[central_service.POSTED]
        )
        assert SAME in faults(central_service.replayed(method, SETTING, planted.Forgetful))


@pytest.mark.slow
@pytest.mark.timeout(1200)
class TestTheWholeOfIt:
    """As the audit runs it."""

    @pytest.mark.parametrize("leak", planted.LEAKS, ids=lambda leak: f"{leak.name}: {leak.subject}")
    def test_every_leak_is_caught(self, leak) -> None:
        assert faults(leak.run(Setting(Effort.QUICK, 1)))

    @pytest.mark.ci
    @pytest.mark.parametrize("seed", [1, 2])
    def test_no_sound_form_is_accused(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(central, "REPEATS", dict.fromkeys(Effort, 1))
        checks = (*central.CHECKS, *central_service.CHECKS)
        looked = {check.subject: faults(check.run(Setting(Effort.QUICK, seed))) for check in checks}
        accused = {subject: found for subject, found in looked.items() if found}
        assert accused == {}

"""Replay and black-box checks of central algorithms: sound ones pass, planted leaks are detected by the right claim."""

import numpy as np
import pytest

from audit.central import black_box, replay, service_jobs
from audit.central.recordings import Method, Recorder, run_method
from audit.central.replay import CHARGE_ORDER, METHODS, NOISE_SCALE, PAYMENT, PRIVACY_LOSS, SAME_QUERIES, check_replay
from audit.checks.check import Effort, Setting
from audit.checks.neighbours import make_pairs
from audit.planted import central as planted
from audit.planted import curator as planted_curator
from clustering.central.queries import MemoryJournal
from clustering.central.run import run
from sfumato.specs import (
    CENTRAL_ALGORITHMS,
    Auto,
    DensityMap,
    DpBisectingKmeans,
    DpKmeans,
    DpQuadtreeKmeans,
    DpUniformGridKmeans,
    PrivateKmeans,
)

SETTING = Setting(Effort.QUICK, 11)


@pytest.fixture(autouse=True)
def reduce_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the trials."""
    monkeypatch.setattr(replay, "REPEATS", dict.fromkeys(Effort, 1))
    monkeypatch.setattr(black_box, "N_RUNS", 150)


STEPS, TREE = DpKmeans(1.0, 2, iterations=2), DpQuadtreeKmeans(1.0, 2, height=2)


def list_faults(findings):
    return {finding.claim: finding.why for finding in findings if not finding.holds}


class TestCoverage:
    @pytest.mark.parametrize("methods", [METHODS, [method for _, method in black_box.METHODS]], ids=["a", "b"])
    def test_every_algorithm_and_variant_is_checked(self, methods) -> None:
        params = [method.params for method in methods]
        assert {type(params) for params in params} == {*CENTRAL_ALGORITHMS.values(), Auto}
        steps = {(params.init, params.budget) for params in params if isinstance(params, DpKmeans)}
        assert steps == {(i, b) for i in ("random", "plusplus", "subsets") for b in ("uniform", "halving")}
        splits = {(params.split, params.synopsis) for params in params if isinstance(params, DpBisectingKmeans)}
        assert splits == {(split, s) for split in ("largest_sse", "total_sse") for s in (False, True)}
        assert {params.delta > 0 for params in params if isinstance(params, PrivateKmeans)} == {False, True}

    @pytest.mark.parametrize(
        "method", [method for method in METHODS if method.params.delta], ids=lambda each: each.name
    )
    def test_concentrated_blocks_are_checked(self, method: Method) -> None:
        queries = []
        for pair in make_pairs(12)[4:7]:
            recorder = Recorder(MemoryJournal(), SETTING.entropy(pair.name))
            queries += run_method(method, pair.more, recorder).recorder.charges
        assert [query.description for query in queries].count("concentrated block") >= 2

    def test_names_are_unique(self) -> None:
        checks = [*replay.CHECKS, *black_box.CHECKS, *service_jobs.CHECKS]
        assert len({check.subject for check in checks}) == len(checks)
        methods = (METHODS, black_box.METHODS, service_jobs.METHODS)
        assert len(checks) == sum(map(len, methods))
        leaks = [(leak.name, leak.subject) for leak in (*planted.LEAKS, *planted_curator.LEAKS)]
        assert len(set(leaks)) == len(leaks)


class TestReplay:
    @pytest.mark.parametrize(
        ("params", "broken", "claim", "text"),
        [
            (STEPS, planted.publish_raw_labels, SAME_QUERIES, "diagnostics.labels"),
            (STEPS, planted.publish_raw_inertia, SAME_QUERIES, "diagnostics.inertia"),
            (STEPS, planted.start_at_raw_centres, SAME_QUERIES, "other arguments"),
            (STEPS, planted.skip_empty_clusters, SAME_QUERIES, "queries"),
            (TREE, planted.scale_by_raw_bounds, SAME_QUERIES, "centroids"),
            (TREE, planted.count_extra_level, PAYMENT, "BudgetOverdrawn"),
        ],
        ids=lambda part: getattr(part, "__name__", ""),
    )
    def test_a_broken_algorithm_is_detected(self, params, broken, claim: str, text: str) -> None:
        assert text in list_faults(check_replay(Method("broken", params, broken), SETTING, make_pairs(1)))[claim]

    @pytest.mark.parametrize(
        ("params", "broken", "claim", "text"),
        [
            (STEPS, "NoiseAt70", PRIVACY_LOSS, "reveals epsilon"),
            (PrivateKmeans(4.0, 2), "NoiseAt70", PRIVACY_LOSS, "reveals epsilon"),
            (DpKmeans(1.0, 9, iterations=3), "SamplesAt70", NOISE_SCALE, "standard errors"),
            (STEPS, "UserBoundIgnored", PRIVACY_LOSS, "user records"),
            (DensityMap(1.0, cells=4), "UserBoundIgnored", PRIVACY_LOSS, "user records"),
            (DensityMap(1.0, cells=4), "NoiseAt50", PRIVACY_LOSS, "reveals epsilon 0.04"),
            (STEPS, "UncentredSums", PRIVACY_LOSS, "sums, reveals"),
            (STEPS, "LocalSensitivity", PRIVACY_LOSS, "depends on records"),
            (STEPS, "LateCharge", CHARGE_ORDER, "outside of any charged query"),
            (STEPS, "UnstoredAnswer", CHARGE_ORDER, "not stored"),
            (STEPS, "SeededNoise", CHARGE_ORDER, "drew no noise"),
            (STEPS, "FloatNoise", PRIVACY_LOSS, "not made by its noise"),
            (DpUniformGridKmeans(1.0, 2, cells=2), "OverlappingCells", PRIVACY_LOSS, "counts, reveals epsilon 2"),
        ],
    )
    def test_a_broken_curator_is_detected(self, params, broken: str, claim: str, text: str) -> None:
        kind = getattr(planted_curator, broken)
        assert text in list_faults(check_replay(Method("broken", params, run, kind), SETTING, make_pairs(1)))[claim]

    @pytest.mark.parametrize("broken", ["GaussianAt70", "HalfChargedBlock"])
    @pytest.mark.release
    def test_a_broken_block_is_detected(self, broken: str) -> None:
        method = Method("broken", PrivateKmeans(16.0, 2, delta=1e-3), run, getattr(planted_curator, broken))
        assert PRIVACY_LOSS in list_faults(check_replay(method, SETTING, make_pairs(12)[2:7]))

    @pytest.mark.release
    def test_private_bounds_from_data_are_detected(self) -> None:
        params = PrivateKmeans(16.0, 2, delta=1e-3)
        faults = list_faults(
            check_replay(Method("broken", params, planted.narrow_to_raw_bounds), SETTING, make_pairs(5))
        )
        assert "differs" in faults[SAME_QUERIES]

    @pytest.mark.parametrize(("delta", "d", "text"), [(0.0, 2, "reveals epsilon "), (1e-3, 5, "reveals rho")])
    def test_histograms_with_the_noise_of_one_feature_are_detected(self, delta: float, d: int, text: str) -> None:
        params = PrivateKmeans(32.0, 2, delta=delta, bounds="private")
        method = Method("broken", params, run, planted.OneFeatureNoise, n_features=(d,))
        assert text in list_faults(check_replay(method, SETTING, [*replay.pairs_for(method)][2:4]))[PRIVACY_LOSS]

    def test_uncharged_squares_are_detected(self) -> None:
        method = Method("broken", DpBisectingKmeans(1.0, 3, iterations=1), run, planted.RawSquares)
        assert SAME_QUERIES in list_faults(check_replay(method, SETTING, make_pairs(1)))

    def test_overspending_is_detected(self) -> None:
        method = Method("broken", TREE, planted.count_extra_level, planted.UnlimitedCurator)
        assert "epsilon 1.15 of 1.0" in list_faults(check_replay(method, SETTING, make_pairs(1)[:2]))[PAYMENT]


class TestBlackBox:
    @pytest.mark.release
    def test_a_sound_method_reveals_less_than_the_charge(self) -> None:
        (findings,) = black_box.check_released_models(Method("sound", STEPS, run), 1, SETTING)
        assert (findings.holds, findings.charged, findings.trials) == (True, 1.0, 2 * black_box.N_RUNS)
        assert findings.measured <= 1

    @pytest.mark.release
    def test_raw_counts_reveal_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(black_box, "N_RUNS", 400)  # at 150, three errors hide what 1.2 shows
        (findings,) = black_box.check_released_models(Method("broken", STEPS, planted.publish_raw_labels), 1, SETTING)
        assert not findings.holds
        assert findings.measured > 2
        assert "no record, one in a corner" in findings.why

    def test_all_numbers_of_a_document_are_used(self) -> None:
        document = {"a": 1, "b": [2.5, {"c": True}], "d": "word", "e": None, "f": []}
        assert black_box.flatten_numbers(document) == {"/a": 1.0, "/b#": 2.0, "/b/0": 2.5, "/b/1/c": 1.0, "/f#": 0.0}

    def test_a_combination_of_numbers_separates_better_than_each_alone(self) -> None:
        rng = np.random.default_rng(0)
        models, others = (
            [{f"/{j}": float(x) for j, x in enumerate(row)} for row in rng.normal(shift, 1, (800, 20))]
            for shift in (0.6, 0.0)
        )
        text, other = black_box.select_statistic(models, others, 0.0)
        best = max(abs(text[400:].mean() - other[400:].mean()) / text[400:].std(), 0)
        assert best > 2  # each alone separates by 0.6, all twenty by 2.7

    def test_a_number_absent_on_one_side_separates(self) -> None:
        models, others = [{"/a": 1.0, "/b": 2.0}] * 40, [{"/a": 1.0}] * 40
        text, other = black_box.select_statistic(models, others, 0.0)
        assert len({*text, *other}) == 2
        assert not set(text) & set(other)


class TestServiceJob:
    def test_the_next_claim_replays_the_job(self) -> None:
        findings = service_jobs.check_job_replay(Method("job", STEPS, run), SETTING)
        assert list_faults(findings) == {}
        assert findings[-1].claim == service_jobs.LEDGER_CHARGES

    def test_a_journal_that_charges_less_or_forgets_is_detected(self) -> None:
        method = Method("job", STEPS, run)
        faults = list_faults(service_jobs.check_job_replay(method, SETTING, planted.HalfChargeJournal))
        assert "nano-epsilon charged" in faults[service_jobs.LEDGER_CHARGES]
        assert SAME_QUERIES in list_faults(service_jobs.check_job_replay(method, SETTING, planted.ForgetfulJournal))

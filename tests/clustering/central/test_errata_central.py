"""Test that no leak or error of Ma and Wu and Zhang and Cheng 2021 in docs/errata.md is present here."""

from dataclasses import replace
from math import log

import numpy as np
import pytest

from clustering.central.algorithms.dp_kmeans import split_halving
from clustering.central.algorithms.dp_quadtree_kmeans import choose_height
from clustering.central.noise import LaplaceNoise
from clustering.central.run import run
from sfumato.privacy.accounting import NANO, parse_epsilon
from sfumato.specs import Feature
from sfumato.specs.central import (
    DpBisectingKmeans,
    DpDensityPeaks,
    DpKmeans,
    DpQuadtreeKmeans,
    DpUniformGridKmeans,
)
from tests.clustering.central.journals import KeepingJournal, NoEntropy, curator_of

K, T = 5, 3
METHODS = [
    DpKmeans(1.0, K, iterations=T),
    DpKmeans(1.0, K, init="plusplus", iterations=T),
    DpKmeans(1.0, K, init="subsets", budget="halving", iterations=T),
    DpBisectingKmeans(1.0, K, iterations=T),
    DpBisectingKmeans(1.0, K, split="total_sse", iterations=T),
    DpBisectingKmeans(1.0, K, synopsis=True),
    DpBisectingKmeans(1.0, K, split="total_sse", synopsis=True),
    DpUniformGridKmeans(1.0, K),
    DpUniformGridKmeans(1.0, K, cells=9),
    DpQuadtreeKmeans(1.0, K),
    DpQuadtreeKmeans(1.0, K, height=4),
    DpDensityPeaks(1.0, K),
]
FEATURES = (Feature("x", -3.0, 5.0), Feature("y", 0.0, 1.0))


def blobs(n=3000, seed=1):
    random = np.random.default_rng(seed)
    middles = random.uniform(0.2, 0.8, (K, 2))
    points = middles[random.integers(0, K, n)] + random.normal(0, 0.03, (n, 2))
    return (np.clip(points, 0, 0.999) * 2**20).astype(np.int32)


def run_recorded(params, points, journal=None, seed=4, entropy=None):
    """Return the released document and the journal of a run."""
    journal = journal or KeepingJournal()
    curator = curator_of(points, parse_epsilon(params.epsilon), journal=journal, seed=seed, entropy=entropy)
    return run(params, FEATURES, curator).to_wire(), journal


@pytest.mark.parametrize("params", METHODS, ids=repr)
class TestNothingRawIsLookedAt:
    """The answers alone determine the model bit for bit, which excludes all leaks at once."""

    def test_the_answers_alone_make_the_model(self, params: object) -> None:
        document, journal = run_recorded(params, blobs())
        no_records = np.zeros((0, 2), dtype=np.int32)
        again, replayed = run_recorded(params, no_records, KeepingJournal(journal.answers), entropy=NoEntropy())
        assert again == document
        assert replayed.charges == journal.charges
        assert replayed.n_kept == 0

    def test_the_answers_do_tell_the_model(self, params: object) -> None:
        document, _ = run_recorded(params, blobs())
        other, _ = run_recorded(params, blobs(seed=2))
        assert other["centroids"] != document["centroids"]

    def test_it_costs_the_declared_epsilon_to_the_last_nano(self, params: object) -> None:
        for epsilon in (1.0, 0.123456789, 0.001000001):
            document, journal = run_recorded(replace(params, epsilon=epsilon), blobs())  # type: ignore[type-var]
            assert sum(query.epsilon_nano for query in journal.charges) == parse_epsilon(epsilon)
            assert document["diagnostics"]["spent_nano"] == parse_epsilon(epsilon)

    def test_the_released_document_has_no_label_of_a_record_and_no_raw_sum(self, params: object) -> None:
        document, _ = run_recorded(params, blobs())
        assert document["labels"] is None
        assert not {"sse", "inertia", "labels", "n_records"} & set(document["diagnostics"])
        assert all(document["privacy"][name] in ("dp", "post_processed", "public") for name in document)


def costs(journal: KeepingJournal) -> list[tuple[str, int, int]]:
    """Return descriptions and costs of the queries, without digests, which depend on the answers."""
    return [(query.description, query.epsilon_nano, query.n_values) for query in journal.charges]


DIRECT = [params for params in METHODS if isinstance(params, DpKmeans | DpBisectingKmeans)]


@pytest.mark.parametrize("params", [p for p in DIRECT if not getattr(p, "synopsis", False)], ids=repr)
def test_neighbours_get_the_same_queries_at_the_same_cost(params: object) -> None:
    points = blobs()
    _, with_everybody = run_recorded(params, points)
    _, with_one_less = run_recorded(params, points[1:])
    _, with_one_far_away = run_recorded(params, np.concatenate([points, [[0, 2**20 - 1]]]))
    assert costs(with_everybody) == costs(with_one_less) == costs(with_one_far_away)


class TestPaper001:
    def test_the_split_is_chosen_by_noisy_sums_of_squares_that_were_paid_for(self) -> None:
        """Changed noise in the sums of squares changes which cluster is split."""
        params = DpBisectingKmeans(1.0, 3, iterations=1)
        document, journal = run_recorded(params, blobs())
        charged = [query.description for query in journal.charges]
        assert charged == ["sums", "counts", "squares", "sums", "counts"]
        turned = list(journal.answers)
        turned[2] = turned[2][::-1].copy()
        other, _ = run_recorded(params, blobs(), KeepingJournal(turned), entropy=NoEntropy())
        assert other["centroids"] != document["centroids"]

    def test_a_tenth_of_each_depth_goes_to_the_choice_and_siblings_cost_one_of_them(self) -> None:
        _, journal = run_recorded(DpBisectingKmeans(1.0, 8, iterations=3), blobs())
        charged = costs(journal)
        depth, steps = 4, 3
        per_depth = [charged[i : i + 2 * steps + 1] for i in range(0, (depth - 1) * (2 * steps + 1), 2 * steps + 1)]
        for level, queries in enumerate(per_depth, start=1):
            assert sum(cost for _, cost, _ in queries) == pytest.approx(NANO / depth, abs=1)
            what, cost, n_values = queries[-1]
            assert (what, n_values) == ("squares", 2**level)  # all clusters of a depth at once
            assert cost == pytest.approx(NANO / depth / 10, abs=1)

    @pytest.mark.parametrize(("clusters", "steps"), [(15, 3), (2, 5), (256, 1)])
    def test_noise_in_every_iteration_does_not_overspend(self, clusters: int, steps: int) -> None:
        """The paper's k - 1 bisections of T steps at epsilon/k each cost 2.8 epsilon at k = 15, T = 3."""
        printed = (clusters - 1) * steps / clusters
        assert printed == pytest.approx({15: 2.8, 2: 2.5, 256: 255 / 256}[clusters])
        _, journal = run_recorded(DpBisectingKmeans(1.0, clusters, iterations=steps), blobs())
        assert sum(query.epsilon_nano for query in journal.charges) == NANO

    def test_the_first_centre_is_no_raw_mean(self) -> None:
        """A run without records succeeds, so no exact count is a divisor."""
        document, _ = run_recorded(DpBisectingKmeans(1.0, 4), np.zeros((0, 2), dtype=np.int32))
        assert np.isfinite(document["centroids"]).all()
        assert document["diagnostics"]["low_confidence"]


class TestPaper003:
    @pytest.mark.parametrize("params", METHODS, ids=repr)
    def test_bounds_are_the_declared_ones_and_not_the_least_and_largest_record(self, params: object) -> None:
        """A record at the far corner changes no cell. With equal answers the model is equal."""
        points = blobs()
        document, journal = run_recorded(params, points)
        far = np.concatenate([points, [[2**20 - 1, 2**20 - 1]]]).astype(np.int32)
        again, _ = run_recorded(params, far, KeepingJournal(journal.answers), entropy=NoEntropy())
        assert again == document

    @pytest.mark.parametrize("params", [DpQuadtreeKmeans(1.0, K), DpUniformGridKmeans(1.0, K)], ids=repr)
    def test_centres_start_from_noisy_cells_and_not_from_k_means_on_records(self, params: object) -> None:
        """With answers from other records, the model is that of the answers, not of the curator's records."""
        theirs, journal = run_recorded(params, blobs(seed=7))
        replayed_model, _ = run_recorded(params, blobs(seed=1), KeepingJournal(journal.answers), entropy=NoEntropy())
        assert replayed_model == theirs

    def test_the_height_goes_by_a_noisy_count(self) -> None:
        params = DpQuadtreeKmeans(1.0, K)
        document, journal = run_recorded(params, blobs())
        assert journal.charges[0].description == "count"
        assert document["diagnostics"]["height"] == choose_height(int(journal.answers[0][0]) * 0.98, 2, K)
        more = [np.array([1_000_000])]
        higher, _ = run_recorded(params, blobs(), KeepingJournal(more))  # simulates larger noise
        assert higher["diagnostics"]["height"] > document["diagnostics"]["height"]
        assert (
            choose_height(1e6, 8, 8) > log(1e6) / 8
        )  # the paper's height ignores epsilon and is one level in eight features

    @pytest.mark.parametrize("height", [1, 4, 20])
    def test_max_h_levels_are_counted_and_not_one_more(self, height: int) -> None:
        """The paper's levels 0 to maxH at epsilon_1/maxH each cost 1.075 epsilon at maxH = 4, gamma = .3."""
        assert pytest.approx(1.075) == 1 + 0.3 / 4
        everywhere = np.random.default_rng(0).integers(0, 2**20, (20_000, 2)).astype(np.int32)
        _, journal = run_recorded(DpQuadtreeKmeans(32.0, K, height=height), everywhere)
        levels = journal.charges[1:-1]
        assert 1 <= len(levels) <= height
        assert len(levels) == height or height == 20
        assert all(level.epsilon_nano == pytest.approx(32 * NANO * 0.294 / height, abs=2) for level in levels)
        assert sum(query.epsilon_nano for query in journal.charges) == 32 * NANO

    def test_halving_spends_all_of_epsilon(self) -> None:
        """The paper's last step also takes half, so epsilon/2^T is never used."""
        assert split_halving(NANO, 4) == (NANO // 2, NANO // 4, NANO // 8, NANO // 8)

    def test_subsets_are_not_by_the_order_of_records(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One more record at the head changes the exact sum of one subset only."""
        monkeypatch.setattr(LaplaceNoise, "draw", lambda self, _: np.zeros(len(self.sensitivities), np.int64))
        points = blobs()
        more = np.concatenate([[[5, 5]], points]).astype(np.int32)
        sums = [
            run_recorded(DpKmeans(1.0, K, init="subsets"), records)[1].answers[0].reshape(K, 2)
            for records in (points, more)
        ]
        assert (sums[0] != sums[1]).any(axis=1).sum() == 1

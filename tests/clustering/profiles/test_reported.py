"""Profiles from reports: errors, distinctions, and the warnings about few reports and dishonest devices."""

import json
from math import sqrt
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from clustering.profiles.reported import profile_reports
from clustering.profiles.shares import Noise, make_consistent
from clustering.random import SeededEntropy
from clustering.rounds.counting import count
from clustering.rounds.plan import Collected
from sfumato.device.bulk import perturb_records
from sfumato.model.cluster_model import ClusterModel
from sfumato.profiles.cluster_profile import ClusterProfile, profile_from_wire
from sfumato.profiles.profile_round import profile_round
from sfumato.specs import Feature, Profile, RoundSpec
from sfumato.specs.attributes import Categorical

K, WIDTHS = 4, (8, 2, 5)
SIZES = np.array([0.4, 0.3, 0.2, 0.1])
FEATURES = (Feature("x", 0, K),)
ATTRIBUTES = tuple(Categorical(f"a{j}", [f"v{v}" for v in range(n)]) for j, n in enumerate(WIDTHS))
N = 20_000


def round_of(epsilon: float) -> RoundSpec:
    centroids = np.arange(K)[:, None] + 0.5
    model = ClusterModel("centroids", FEATURES, SIZES, np.zeros(K), centroids)
    params = Profile(of="job_1", attributes=[each.name for each in ATTRIBUTES], epsilon=epsilon)
    return profile_round(params, model, ATTRIBUTES, counts_outside=True)


def people(seed: int, n: int = N) -> tuple[dict[str, Any], list[NDArray[np.float64]]]:
    """Return records of which 3 % are outside, and the true shares. The first attribute differs between clusters."""
    chance = np.random.default_rng(seed)
    labels = chance.choice(K, n, p=SIZES)
    inside = chance.random(n) > 0.03
    columns: dict[str, Any] = {"x": np.where(inside, labels + 0.5, K + 1.0)}
    shares = []
    for place, (attribute, width) in enumerate(zip(ATTRIBUTES, WIDTHS, strict=True)):
        codes = chance.integers(0, width, n)
        if place == 0:
            codes = np.where(chance.random(n) < 0.5, labels, codes)
        columns[attribute.name] = np.array(attribute.values, dtype=object)[codes]
        table = np.zeros((K, width))
        np.add.at(table, (labels[inside], codes[inside]), 1)
        shares.append(table / table.sum(axis=1, keepdims=True))
    return columns, shares


def profile(spec: RoundSpec, columns: dict[str, Any], seed: int) -> ClusterProfile:
    sent = perturb_records(spec, columns, SeededEntropy(seed))
    return profile_reports("job_1", Collected(spec, count(spec, sent.slots.astype(np.int64), sent.values)))


class TestProfile:
    @pytest.mark.parametrize("epsilon", [1.5, 3.0, 7.0])
    def test_states_the_errors_that_it_has(self, epsilon: float) -> None:
        """Errors that are stated 30 % too small or too large fail."""
        spec, ratios, sizes = round_of(epsilon), [], []
        for seed in range(4):
            columns, shares = people(seed)
            found = profile(spec, columns, seed)
            for each, true in zip(found.attributes, shares, strict=True):
                assert each.shares is not None
                assert each.share_errors is not None
                ratios.append(((each.shares - true) / each.share_errors)[:3].ravel())
            inside = columns["x"] < K
            own = np.bincount(columns["x"][inside].astype(int), minlength=K) / inside.sum()
            sizes.append((found.sizes - own) / found.size_errors)
        assert 0.75 < sqrt(np.mean(np.concatenate(ratios) ** 2)) < 1.25
        assert 0.5 < sqrt(np.mean(np.concatenate(sizes) ** 2)) < 1.6

    def test_lists_the_values_that_distinguish_clusters(self) -> None:
        columns, _ = people(1)
        found = profile(round_of(4.0), columns, 1)
        assert {each.attribute for each in found.distinctions[:4]} == {"a0"}
        assert {(each.cluster, each.value) for each in found.distinctions} >= {(c, f"v{c}") for c in range(3)}
        associations = [each.association for each in found.attributes]
        assert associations[0] == pytest.approx(0.35, abs=0.05)
        assert max(associations[1:]) < 0.03
        assert found.diagnostics["outside_share"] == pytest.approx(0.03, abs=0.01)
        assert found.warnings == ()
        assert profile_from_wire(json.loads(json.dumps(found.to_wire()))).to_wire() == found.to_wire()

    def test_of_few_reports_says_that_it_is_poor(self) -> None:
        columns, _ = people(2, 1_000)
        found = profile(round_of(0.5), columns, 2)
        assert found.too_small
        assert "Too few records" in " ".join(found.warnings)
        columns, _ = people(2)
        noisy = profile(round_of(1.0), columns, 2)
        assert any("errors above 5%" in warning for warning in noisy.warnings)

    def test_warns_if_devices_choose_one_attribute(self) -> None:
        spec = round_of(2.0)
        columns, _ = people(3)
        sent = perturb_records(spec, columns, SeededEntropy(3))
        slots = sent.slots.astype(np.int64)
        slots[: N // 25] = 1  # 4 % of the devices
        found = profile_reports("job_1", Collected(spec, count(spec, slots, sent.values)))
        assert "slots are not uniform" in found.warnings[0]


class TestConsistency:
    def test_of_people_who_report_one_attribute_has_no_error_of_the_draw_for_equal_weights(self) -> None:
        tables = [np.array([[60.0, 40.0], [10.0, 10.0]]), np.array([[50.0, 54.0], [8.0, 8.0]])]
        found = make_consistent(tables, Noise(0.0001, n_drawn=2))
        assert found.numbers.tolist() == pytest.approx([102, 18])
        assert found.number_variance == pytest.approx(0.0001, rel=0.01)
        unequal = make_consistent([tables[0], np.array([[104.0], [16.0]])], Noise(4.0, n_drawn=2))
        assert unequal.number_variance > 2.7  # 8/3 from the noise alone

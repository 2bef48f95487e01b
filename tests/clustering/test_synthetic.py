"""Synthetic people: resampled densities, symbols' shares, and tallies with the mechanism's noise and no other."""

import numpy as np
import pytest

from clustering.decoders import decoder
from clustering.errors import UnfitRound
from clustering.plan import Collected
from clustering.synthetic import People, resampled, symbol_shares
from sfumato.encodings import symbols
from sfumato.mechanisms import design
from sfumato.specs import (
    Draw,
    Feature,
    GridEncoding,
    HalfspaceCodeEncoding,
    RoundSpec,
    ShiftedGridEncoding,
    TreeGridEncoding,
)

XY = (Feature("x", 0, 1), Feature("y", 0, 1))
DENSITY = np.random.default_rng(3).dirichlet(np.ones(16)).reshape(4, 4)


def spec_of(encoding, kind="auto", epsilon_nano=10**9, draw=None):
    return RoundSpec(XY, encoding, design(kind, encoding.n_symbols, epsilon_nano), draw or Draw())


class TestResampled:
    @pytest.mark.parametrize("cells", [(4, 4), (8, 8), (2, 4), (3, 5), (1, 7)])
    def test_keeps_the_mass_of_every_box(self, cells):
        fine = np.repeat(np.repeat(DENSITY, 210, axis=0), 210, axis=1) / 210**2  # 840 = 3 * 5 * 7 * 8
        blocks = fine.reshape(cells[0], 840 // cells[0], cells[1], 840 // cells[1])
        assert resampled(DENSITY, cells) == pytest.approx(blocks.sum(axis=(1, 3)))


class TestShares:
    @pytest.mark.parametrize(
        "encoding",
        [GridEncoding((3, 5)), ShiftedGridEncoding(2, 4, 2), TreeGridEncoding(2, (1, 1, 2, 2, 2, 2, 1))],
    )
    def test_are_those_of_points_drawn_evenly_from_the_cells(self, encoding):
        rng = np.random.default_rng(4)
        cell = rng.choice(16, 200_000, p=DENSITY.ravel())
        points = (np.stack([cell // 4, cell % 4], axis=1) + rng.random((200_000, 2))) / 4
        shares = symbol_shares(encoding, DENSITY)
        for slot in range(encoding.n_slots):
            drawn = symbols(encoding, points, np.full(len(points), slot, dtype=np.int64))
            seen = np.bincount(drawn, minlength=encoding.n_symbols) / len(points)
            assert seen == pytest.approx(shares[slot], abs=0.006)

    def test_of_an_encoding_without_cells_are_refused(self):
        with pytest.raises(UnfitRound, match="over cells"):
            symbol_shares(HalfspaceCodeEncoding(((1, 0),), (0,)), DENSITY)


class TestAnswers:
    @pytest.mark.parametrize("kind", ["grr", "ss", "oue", "olh", "hr"])
    def test_have_the_noise_of_the_mechanism(self, kind):
        spec = spec_of(GridEncoding((4, 4)), kind)
        people, reading = People(DENSITY, (20_000,)), decoder(spec.mechanism)
        truth = reading_of(people.answer(spec, 0, None))
        errors = np.array([reading_of(people.answer(spec, 0, throw)) - truth for throw in range(150)])
        predicted = np.array([reading.variance(share, 20_000) for share in truth])
        # 150 throws of 16 symbols know the ratio to 3 %
        assert 0.88 < (errors**2).mean() / predicted.mean() < 1.12
        assert np.abs(errors.mean(axis=0)).max() < 5 * np.sqrt(predicted.max() / 150)

    def test_are_the_same_people_whatever_the_coins_and_others_in_another_sample(self):
        spec = spec_of(GridEncoding((4, 4)))
        one, again = (People(DENSITY, (1000,)).answer(spec, 0, None) for _ in range(2))
        assert one.tally == again.tally
        assert one.tally != People(DENSITY, (1000,), 1).answer(spec, 0, None).tally
        noisy = [People(DENSITY, (1000,)).answer(spec, 0, throw).tally for throw in (0, 0, 1)]
        assert noisy[0] == noisy[1] != noisy[2]

    def test_rounds_for_parts_of_the_draws_have_everybody_between_them(self):
        parts = [Draw.between(0, 0.3), Draw.between(0.3, 0.77), Draw.between(0.77, 1)]
        people = People(DENSITY, 1001)
        encoding = GridEncoding((4, 4))
        n = [people.answer(spec_of(encoding, draw=part), i, 0).tally.n_reports for i, part in enumerate(parts)]
        assert sum(n) == 1001
        assert n == pytest.approx([300, 471, 230], abs=1)

    def test_nobody_answers_a_round_without_reports(self):
        answered = People(DENSITY, (0,)).answer(spec_of(ShiftedGridEncoding(2, 3, 2), "hr"), 0, 0)
        assert answered.tally.n_reports == 0


def reading_of(collected: Collected):
    return decoder(collected.spec.mechanism).frequencies(collected.tally)[0]

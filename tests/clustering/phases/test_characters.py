"""Test the characters of categories in public waves: their numbers, their balance, and what they determine."""

from itertools import combinations

import numpy as np
import pytest

from clustering.phases.characters import characters_for
from clustering.phases.waves import waves_for
from clustering.random import PublicWords
from sfumato.specs import MAX_PHASE_ATTRIBUTES, MAX_PHASE_CATEGORIES
from sfumato.specs.attributes import Categorical

NANO = 10**9
SHARES = {1: [0.5, 0.5], 2: [1 / 3, 1 / 3, 1 / 3], 3: [0.3, 0.3, 0.2, 0.2], 4: [0.3, 0.3, 0.2, 0.2]}
MOST = (MAX_PHASE_CATEGORIES,) * MAX_PHASE_ATTRIBUTES


@pytest.mark.parametrize("categories", [(5,), (2,), (2, 7), (5, 5, 5), (2, 16, 3, 9), MOST])
class TestCharacters:
    def test_waves_have_the_planned_numbers_of_attributes(self, categories: tuple[int, ...]) -> None:
        per_wave = (characters_for(1024, categories, PublicWords(1)) > 0).sum(axis=1)
        assert np.bincount(per_wave) / 1024 == pytest.approx(np.array(SHARES[len(categories)]), abs=0.005)
        for part in np.split(per_wave, 8):  # at each frequency
            assert np.bincount(part) / 128 == pytest.approx(np.array(SHARES[len(categories)]), abs=0.03)

    def test_sets_of_attributes_are_equally_frequent(self, categories: tuple[int, ...]) -> None:
        has = characters_for(1024, categories, PublicWords(2)) > 0
        for size in range(1, min(len(categories), 3) + 1):
            of_size = has[has.sum(axis=1) == size]
            counts = [of_size[:, chosen].all(axis=1).sum() for chosen in combinations(range(len(categories)), size)]
            assert max(counts) - min(counts) <= 1

    def test_the_characters_of_an_attribute_are_equally_frequent(self, categories: tuple[int, ...]) -> None:
        for column, m in zip(characters_for(1024, categories, PublicWords(3)).T, categories, strict=True):
            counts = np.bincount(column, minlength=m)[1:]
            assert len(counts) == m - 1
            assert counts.max() - counts.min() <= 1

    def test_the_seed_determines_them(self, categories: tuple[int, ...]) -> None:
        first = characters_for(64, categories, PublicWords(4))
        assert (first == characters_for(64, categories, PublicWords(4))).all()
        assert (first != characters_for(64, categories, PublicWords(5))).any()


def test_the_most_categories_have_each_character_alone_and_in_all_as_often_as_stated() -> None:
    characters = characters_for(1024, MOST, PublicWords(6))
    alone = characters[(characters > 0).sum(axis=1) == 1]
    for place in range(len(MOST)):
        assert np.bincount(characters[:, place], minlength=16)[1:].min() >= 20
        assert np.bincount(alone[:, place], minlength=16)[1:].mean() >= 5


class TestWavesWithAttributes:
    ATTRIBUTES = (
        Categorical("a", ["x", "y", "z"], use="cluster"),
        Categorical("b", ["u", "v"], unknown="other", use="cluster"),
    )

    def test_have_the_weights_of_waves_without_them(self) -> None:
        encoding = waves_for(3, 4, None, NANO, 7, attributes=self.ATTRIBUTES)
        assert encoding.weights == waves_for(3, 4, 1024, NANO, 7).weights
        assert (encoding.attributes, encoding.categories) == (self.ATTRIBUTES, (3, 3))
        assert np.array(encoding.characters).shape == (1024, 2)

    def test_may_be_fewer(self) -> None:
        assert len(waves_for(3, 4, 256, NANO, 7, attributes=self.ATTRIBUTES).characters) == 256

"""Mixtures with category shares and their waves, for tests of the fits of phases."""

import numpy as np

from clustering.phases.category_mixture import CategoryMixture, CategoryWaves, cluster_values
from clustering.phases.characters import characters_for
from clustering.phases.mixture_fit import Mixture
from clustering.random import PublicWords
from sfumato.specs.attributes import Categorical

NOISE = 0.02  # standard deviation of each part of a value


def attribute(name: str, n_values: int) -> Categorical:
    """Return an attribute that forms clusters."""
    values = tuple(f"v{place}" for place in range(n_values))
    return Categorical(name, values, unknown="refuse", missing="refuse", use="cluster")


def usual(favourites, n_values: int, share: float = 0.7):
    """Return category shares: each cluster has its favourite, and the others are even."""
    return (1 - share) / (n_values - 1) * (1 - np.eye(n_values)[favourites]) + share * np.eye(n_values)[favourites]


def mixture_of(centres, sizes, favourites, categories, width: float = 0.08) -> CategoryMixture:
    """Return a mixture of clusters of one width; `favourites` has a row of codes for each cluster."""
    codes = np.array(favourites)
    shares = tuple(usual(codes[:, place], m) for place, m in enumerate(categories))
    places = Mixture(np.array(centres, dtype=float), np.array(sizes, dtype=float), np.full(len(sizes), width))
    return CategoryMixture(places, shares)


def waves_of(mixture: CategoryMixture, n_waves: int = 300, noise: float = NOISE, seed: int = 1) -> CategoryWaves:
    """Return the values of waves of a mixture, with normal noise."""
    chance = np.random.default_rng(seed)
    d, categories = mixture.places.centres.shape[1], tuple(each.shape[1] for each in mixture.shares)
    directions = chance.normal(size=(n_waves, d))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    omegas = directions * np.exp(chance.uniform(np.log(4), np.log(30), n_waves))[:, None]
    characters = characters_for(n_waves, categories, PublicWords(seed))
    empty = CategoryWaves.of(omegas, characters, categories, np.zeros(n_waves, complex), np.ones(n_waves), n_waves)
    values = cluster_values(empty, mixture) @ mixture.places.shares
    values += noise * (chance.normal(size=n_waves) + 1j * chance.normal(size=n_waves))
    return empty._replace(values=values, weights=np.full(n_waves, 1 / (2 * max(noise, NOISE) ** 2)))

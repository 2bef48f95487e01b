"""Generated reference shapes: clusters of many kinds in any number of features, with their labels.

The seed of a sample determines its geometry (places, widths, shares, margins of the bounds), so that a table over many
seeds describes a kind of data.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_circles, make_moons

from sfumato.forecast.families import Family

Points = NDArray[np.float64]
Labels = NDArray[np.int64]
Rng = np.random.Generator
Draw = Callable[
    [int, Rng, Rng], tuple[Points, Labels]
]  # (number of points, generator of the geometry, generator of the points)

_RANGE_POINTS = 5_000  # points of a separate sample; its range gives the bounds
MANY = 12  # number of clusters from which those of very different sizes are many small ones
_MARGINS = (0.02, 0.10)  # margin of the bounds on each side, as a share of the range


@dataclass(frozen=True)
class Shape:
    """A kind of data."""

    name: str
    n_features: int
    n_clusters: int
    draw: Draw
    is_blobs: bool = False  # centroids describe the clusters completely
    family: Family = "curved"

    def sample(self, n_points: int, seed: int) -> tuple[Points, Labels]:
        """Return points in [0, 1]^d and their clusters; the geometry depends on the seed only."""
        outline, _ = self.draw(_RANGE_POINTS, np.random.default_rng(seed), np.random.default_rng([seed, 1]))
        points, labels = self.draw(n_points, np.random.default_rng(seed), np.random.default_rng([seed, 2]))
        lower, upper = outline.min(axis=0), outline.max(axis=0)
        margin = np.random.default_rng([seed, 3]).uniform(*_MARGINS, 2)[:, None] * (upper - lower)
        lower, upper = lower - margin[0], upper + margin[1]
        return ((points - lower) / (upper - lower)).clip(0, 1), labels


def moons(n: int, geometry: Rng, people: Rng) -> tuple[Points, Labels]:
    """Draw two half moons."""
    noise, state = geometry.uniform(0.04, 0.1), int(people.integers(1 << 31))
    points, labels = make_moons(n, noise=noise, random_state=state)
    return points, labels.astype(np.int64)


def circles(n: int, geometry: Rng, people: Rng) -> tuple[Points, Labels]:
    """Draw a circle within a circle."""
    factor, state = geometry.uniform(0.4, 0.6), int(people.integers(1 << 31))
    points, labels = make_circles(n, factor=factor, noise=0.05, random_state=state)
    return points, labels.astype(np.int64)


def rings(n: int, geometry: Rng, people: Rng) -> tuple[Points, Labels]:
    """Draw four rings side by side."""
    labels = people.integers(0, 4, n)
    angle = people.uniform(0, 2 * np.pi, n)
    radius = geometry.uniform(0.28, 0.36, 4)[labels] + people.normal(0, 0.03, n)
    centres = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=np.float64)
    return centres[labels] + radius[:, None] * np.column_stack([np.cos(angle), np.sin(angle)]), labels


def smile(n: int, geometry: Rng, people: Rng) -> tuple[Points, Labels]:
    """Draw a face: two eyes, the lips and the outline."""
    labels = people.choice(4, n, p=[0.15, 0.15, 0.25, 0.45])
    points = np.empty((n, 2))
    eye = geometry.uniform(0.05, 0.08)
    for which, x in ((0, -0.35), (1, 0.35)):
        inside = labels == which
        points[inside] = np.array([x, 0.35]) + people.normal(0, eye, (inside.sum(), 2))
    for which, radius, begin, end in ((2, 0.55, 1.15 * np.pi, 1.85 * np.pi), (3, 1.0, 0.0, 2 * np.pi)):
        inside = labels == which
        angle = people.uniform(begin, end, inside.sum())
        spread = radius + people.normal(0, 0.04, inside.sum())
        points[inside] = spread[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    return points, labels


def moons_and_blobs(n: int, geometry: Rng, people: Rng) -> tuple[Points, Labels]:
    """Draw two half moons and two blobs beside them."""
    labels = people.choice(4, n, p=[0.3, 0.3, 0.2, 0.2])
    points, halves = moons(n, geometry, people)
    centres = np.array([[0.0, 2.0], [1.5, 2.2]]) + geometry.uniform(-0.2, 0.2, (2, 2))
    blob = labels >= 2
    points[blob] = centres[labels[blob] - 2] + people.normal(0, 0.2, (blob.sum(), 2))
    return points, np.where(blob, labels, halves)


def blobs(
    n_clusters: int, n_features: int, *, width: float = 0.06, unequal: bool = False, sheared: bool = False
) -> Draw:
    """Return a function that draws normal clusters at random places that are not too close to each other."""

    def draw(n: int, geometry: Rng, people: Rng) -> tuple[Points, Labels]:
        centres = _apart(n_clusters, n_features, geometry, 4.5 * width)
        widths = width * geometry.uniform(0.7, 1.4, n_clusters)
        shares = geometry.dirichlet(np.full(n_clusters, 1.5 if unequal else 30.0))
        shares = (shares + 0.03) / (shares + 0.03).sum()
        labels = people.choice(n_clusters, n, p=shares)
        noise = people.normal(0, 1, (n, n_features)) * widths[labels, None]
        if sheared:
            noise = noise @ (np.eye(n_features) + 0.6 * np.triu(np.ones((n_features, n_features)), 1))
        return centres[labels] + noise, labels.astype(np.int64)

    return draw


def _apart(n_clusters: int, n_features: int, geometry: Rng, gap: float) -> Points:
    """Return places in the unit box, no two closer than the gap, which shrinks after 64 failed attempts."""
    centres = np.empty((0, n_features))
    while len(centres) < n_clusters:
        tried = geometry.random((64, n_features))
        for place in tried:
            if len(centres) == 0 or np.linalg.norm(centres - place, axis=1).min() >= gap:
                centres = np.vstack([centres, place])
                break
        else:
            gap *= 0.9
    return centres


def linked_rings(n: int, geometry: Rng, people: Rng) -> tuple[Points, Labels]:
    """Draw two linked rings in three features."""
    labels = people.integers(0, 2, n)
    angle, noise = people.uniform(0, 2 * np.pi, n), people.normal(0, geometry.uniform(0.06, 0.1), (n, 3))
    flat = np.column_stack([np.cos(angle), np.sin(angle), np.zeros(n)])
    upright = np.column_stack([1 + np.cos(angle), np.zeros(n), np.sin(angle)])
    return np.where(labels[:, None] == 0, flat, upright) + noise, labels


def ball_in_shell(n: int, geometry: Rng, people: Rng) -> tuple[Points, Labels]:
    """Draw a ball within a shell in three features."""
    labels = people.integers(0, 2, n)
    direction = people.normal(0, 1, (n, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    inner = geometry.uniform(0.2, 0.3) * people.random(n) ** (1 / 3)
    return direction * np.where(labels == 0, inner, 1 + people.normal(0, 0.05, n))[:, None], labels


def sheets(n: int, geometry: Rng, people: Rng) -> tuple[Points, Labels]:
    """Draw two half moons, extended along a third feature."""
    points, labels = moons(n, geometry, people)
    return np.column_stack([points, people.uniform(0, 1, n)]), labels


def _of_blobs(n_features: int, counts: tuple[int, ...], width: float) -> tuple[Shape, ...]:
    """Return even, unequal and sheared blobs for each number of clusters."""
    kinds = {"blobs": {}, "unequal": {"unequal": True}, "sheared": {"sheared": True}}
    shapes = []
    for count in counts:
        for kind, how in kinds.items():
            family: Family = "many_small" if kind == "unequal" and count >= MANY else "compact"
            if kind == "sheared" and n_features > 1:
                family = "elongated"
            draw = blobs(count, n_features, width=width, **how)
            shapes.append(Shape(f"{kind}{count}", n_features, count, draw, is_blobs=True, family=family))
    return tuple(shapes)


SHAPES: tuple[Shape, ...] = (
    *_of_blobs(1, (2, 3, 6), 0.03),
    *_of_blobs(1, (12,), 0.012),
    Shape("moons", 2, 2, moons),
    Shape("circles", 2, 2, circles),
    *_of_blobs(2, (2, 3), 0.07),
    Shape("rings", 2, 4, rings),
    Shape("smile", 2, 4, smile),
    Shape("moons_and_blobs", 2, 4, moons_and_blobs),
    *_of_blobs(2, (5, 8), 0.045),
    *_of_blobs(2, (12, 20), 0.028),
    Shape("linked_rings", 3, 2, linked_rings),
    Shape("ball_in_shell", 3, 2, ball_in_shell),
    Shape("sheets", 3, 2, sheets),
    *_of_blobs(3, (3, 6), 0.07),
    *_of_blobs(3, (12,), 0.05),
    *_of_blobs(6, (3, 6, 12), 0.09),
    *_of_blobs(16, (3, 6, 12), 0.12),
)

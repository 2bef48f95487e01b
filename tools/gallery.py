"""Draw the pictures of docs/images/gallery: `python -m tools.gallery [NAME ...]`.

The inputs follow from formulas and a seed, and the noise is simulated, so the pictures show no release.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.series_populations import POPULATIONS, draw, round_spec
from clustering.central.cells import to_places
from clustering.central.curator import Curator
from clustering.central.profile_clusters import describe_columns, label_records, profile_clusters
from clustering.central.queries import MemoryJournal, Records
from clustering.profiles.reported import profile_reports
from clustering.rounds.counting import count as count_reports
from clustering.rounds.plan import Collected
from clustering.series.follow import Memory, follow
from clustering.series.observed import Measured
from clustering.series.shares import window_shares
from clustering.simulate import SeededEntropy, simulate
from sfumato import specs
from sfumato.device.bulk import perturb_records
from sfumato.model.cluster_model import ClusterModel
from sfumato.plotting.figures import plot
from sfumato.plotting.series import plot_shares
from sfumato.profiles.profile_round import profile_round
from sfumato.specs.attributes import Categorical, Numeric

CARDS, CARDS_TITLE = "cards", "A profile describes the clusters"  # the picture of a profile over records
REPORTED, REPORTED_TITLE = "reported_cards", "A profile from reports has larger errors"
REPORTED_EPSILON = 2.0
CATEGORIES, CATEGORIES_TITLE = "categories", "shifted_grid finds the clusters of each category"
SERIES, SERIES_TITLE = "series", "A series finds a cluster that grows"
EPSILON, N_REPORTS, N_WINDOWS = 2.0, 200_000, 20  # ε and reports of a window, and the windows of the series
FOLDER = Path(__file__).parents[1] / "docs" / "images" / "gallery"
DOTS_PER_INCH = 70
POINTS_SHOWN = 1_000
SEED = 1

Points = NDArray[np.float64]


def draw_blobs(n_points: int, rng: np.random.Generator) -> Points:
    """Draw three round clusters."""
    return rng.choice([(0.2, 0.3), (0.7, 0.2), (0.5, 0.8)], size=n_points) + rng.normal(scale=0.06, size=(n_points, 2))


def draw_moons(n_points: int, rng: np.random.Generator) -> Points:
    """Draw two interlocked half moons."""
    angle, is_upper = rng.uniform(0, np.pi, n_points), rng.random(n_points) < 0.5
    x = np.where(is_upper, np.cos(angle), 1 - np.cos(angle))
    y = np.where(is_upper, np.sin(angle), 0.5 - np.sin(angle))
    return np.stack([0.37 + 0.26 * x, 0.41 + 0.36 * y], axis=1) + rng.normal(scale=0.02, size=(n_points, 2))


def draw_rings(n_points: int, rng: np.random.Generator) -> Points:
    """Draw a disc within a ring."""
    angle = rng.uniform(0, 2 * np.pi, n_points)
    radius = np.where(rng.random(n_points) < 0.3, 0.0, 0.36) + rng.normal(scale=0.03, size=n_points)
    return np.stack([0.5 + radius * np.cos(angle), 0.5 + radius * np.sin(angle)], axis=1)


def draw_lattice(n_points: int, rng: np.random.Generator) -> Points:
    """Draw nine small clusters in a lattice."""
    return 0.2 + 0.3 * rng.integers(3, size=(n_points, 2)) + rng.normal(scale=0.04, size=(n_points, 2))


def draw_four_features(n_points: int, rng: np.random.Generator) -> Points:
    """Draw three round clusters in four features."""
    centres = np.array([(0.2, 0.3, 0.7, 0.5), (0.7, 0.2, 0.3, 0.8), (0.5, 0.8, 0.5, 0.2)])
    return rng.choice(centres, size=n_points) + rng.normal(scale=0.06, size=(n_points, 4))


@dataclass(frozen=True)
class Picture:
    """An algorithm, its input, and the title of the picture."""

    algorithm: specs.AnyAlgorithm
    draw: Callable[[int, np.random.Generator], Points]
    n_points: int
    title: str


PICTURES = {
    "auto": Picture(specs.Auto(2, 3), draw_blobs, 50_000, "auto selects shifted_grid in two features"),
    "shifted_grid": Picture(specs.ShiftedGrid(2, 2), draw_moons, 100_000, "shifted_grid finds half moons"),
    "uniform_grid": Picture(specs.UniformGrid(2, 3), draw_blobs, 50_000, "uniform_grid has coarse borders"),
    "adaptive_grid_iterative": Picture(
        specs.AdaptiveGridIterative(2, 3), draw_blobs, 50_000, "adaptive_grid_iterative divides uneven cells"
    ),
    "adaptive_grid_tree": Picture(
        specs.AdaptiveGridTree(2, 3), draw_blobs, 50_000, "adaptive_grid_tree descends where cells are uneven"
    ),
    "phase_sketch": Picture(
        specs.PhaseSketch(2, 3), draw_four_features, 50_000, "phase_sketch locates centroids in four features"
    ),
    "noisy_fcm": Picture(specs.NoisyFcm(8, 3), draw_blobs, 50_000, "noisy_fcm needs a large ε"),
    "grid_kmeans": Picture(specs.GridKmeans(2, 9), draw_lattice, 50_000, "grid_kmeans finds nine centroids"),
    "ldp_kmeans": Picture(specs.LdpKmeans(2, 3), draw_blobs, 50_000, "ldp_kmeans moves centroids in eight rounds"),
    "dp_kmeans": Picture(specs.DpKmeans(1, 3), draw_blobs, 20_000, "dp_kmeans may end in a poor optimum"),
    "dp_bisecting_kmeans": Picture(
        specs.DpBisectingKmeans(1, 3), draw_blobs, 20_000, "dp_bisecting_kmeans splits one cluster at a time"
    ),
    "dp_uniform_grid_kmeans": Picture(
        specs.DpUniformGridKmeans(1, 9), draw_lattice, 20_000, "dp_uniform_grid_kmeans weighs the cells of one grid"
    ),
    "dp_quadtree_kmeans": Picture(
        specs.DpQuadtreeKmeans(1, 9), draw_lattice, 20_000, "dp_quadtree_kmeans divides dense boxes"
    ),
    "dp_density_peaks": Picture(
        specs.DpDensityPeaks(1, 3), draw_blobs, 20_000, "dp_density_peaks joins cells to denser neighbours"
    ),
    "density_map": Picture(specs.DensityMap(0.5, 2), draw_rings, 100_000, "density_map finds a disc within a ring"),
    "private_kmeans": Picture(specs.PrivateKmeans(0.5, 3), draw_blobs, 20_000, "private_kmeans finds three centroids"),
    "clear": Picture(specs.ShiftedGrid(2), draw_blobs, 50_000, "Enough reports: a reliable map"),
    "faint": Picture(specs.ShiftedGrid(0.5), draw_blobs, 2_000, "Too few reports: a doubtful map"),
}


def draw_picture(picture: Picture) -> Figure:
    """Return the plot of one picture, with a part of the points where no density is drawn."""
    points = picture.draw(picture.n_points, np.random.default_rng(SEED)).clip(0, 1)
    model = simulate(picture.algorithm, points, seed=SEED)
    noun = "records" if picture.algorithm.definition.needs_records else "reports"
    caption = f"ε = {picture.algorithm.epsilon:g} · {picture.n_points:,} {noun} · verdict: {model.verdict.value}"
    figure = plot(model, title=picture.title, caption=caption)
    if model.density is None and points.shape[1] == 2:
        x, y = points[:POINTS_SHOWN].T
        figure.axes[0].scatter(x, y, s=1, color="#222222")
    return figure


@dataclass(frozen=True)
class Customers:
    """Three clusters of generated people, released, and two attributes: codes of plan, and visits."""

    model: ClusterModel
    points: Points
    plan: NDArray[np.int64]
    visits: NDArray[np.int64]


FEATURES = (specs.Feature("east", 0, 1), specs.Feature("north", 0, 1))
ATTRIBUTES = (Categorical("plan", ("free", "basic", "pro")), Numeric("visits", (0, 2, 4, 6, 8, 10)))


def draw_customers(n_people: int) -> Customers:
    """Draw people with attributes that depend on their cluster."""
    rng = np.random.default_rng(SEED)
    labels = rng.integers(0, 3, n_people)
    centres = np.array([(0.2, 0.3), (0.7, 0.2), (0.5, 0.8)])
    points = (centres[labels] + rng.normal(scale=0.06, size=(n_people, 2))).clip(0, 1)
    plan = (rng.random(n_people)[:, None] > np.array([(0.7, 0.9), (0.3, 0.5), (0.5, 0.8)])[labels]).sum(axis=1)
    visits = rng.poisson(np.array([1.0, 4.0, 2.0])[labels]).clip(0, 9)
    model = simulate(specs.PrivateKmeans(0.5, 3), points, seed=SEED, features=FEATURES)
    return Customers(model, points, plan, visits)


def draw_cards() -> Figure:
    """Return the cards of three clusters from 20,000 records."""
    people = draw_customers(20_000)
    records = np.column_stack([to_places(people.points), people.plan, people.visits // 2]).astype(np.int32)
    params = specs.Profile(of="job_gallery", attributes=("plan", "visits"), epsilon=0.3)
    curator = Curator(Records(records), params.epsilon_nano, MemoryJournal(), SeededEntropy(SEED))
    described = describe_columns(FEATURES, ATTRIBUTES, ATTRIBUTES)
    labelling = label_records(people.model, FEATURES)
    return profile_clusters(params, people.model, labelling, described, curator).plot(rows=3)


def draw_reported_cards() -> Figure:
    """Return the cards of the same clusters from 50,000 reports. Each person reports one of the attributes."""
    people = draw_customers(50_000)
    params = specs.Profile(of="job_gallery", attributes=("plan", "visits"), epsilon=REPORTED_EPSILON)
    spec = profile_round(params, people.model, ATTRIBUTES, counts_outside=False)
    columns = dict(zip(("east", "north"), people.points.T, strict=True))
    named = np.array(ATTRIBUTES[0].categories, dtype=object)[people.plan]
    sent = perturb_records(spec, columns | {"plan": named, "visits": people.visits}, SeededEntropy(SEED))
    tally = count_reports(spec, sent.slots.astype(np.int64), sent.values)
    return profile_reports("job_gallery", Collected(spec, tally)).plot(rows=3)


def draw_categories() -> Figure:
    """Return the maps of two plans from 100,000 reports. Two groups of different plans have the same place."""
    rng, plan = np.random.default_rng(SEED), Categorical("plan", ("free", "pro"), use="cluster")
    group = rng.integers(0, 4, (100_000, 1))
    centres = np.array([(0.25, 0.3), (0.75, 0.3), (0.25, 0.3), (0.5, 0.8)])  # two of each plan
    points = (centres[group[:, 0]] + rng.normal(scale=0.06, size=(len(group), 2))).clip(0, 1)
    params = specs.ShiftedGrid(2, 4)
    model = simulate(params, points, seed=SEED, features=FEATURES, attributes=(plan,), codes=group // 2)
    caption = f"ε = {params.epsilon:g} · {len(group):,} reports · verdict: {model.verdict.value}"
    return plot(model, title=CATEGORIES_TITLE, caption=caption)


def draw_series() -> Figure:
    """Return the shares of the clusters of a series of simulated tallies. One cluster grows in window 6."""
    spec, rng, numbers = round_spec(EPSILON, 16), np.random.default_rng(SEED), count()
    memory, earlier = Memory(), None
    windows: dict[int, Measured] = {}
    curves: dict[str, tuple[list[int], list[float], list[float]]] = {}
    events = []
    for index in range(N_WINDOWS):
        windows[index] = Measured(draw(POPULATIONS[0], "grows", index, spec, N_REPORTS, rng))
        params = specs.ShiftedGrid(EPSILON, cells=16)
        step = follow(params, windows, index, memory, earlier, lambda kind: f"{kind}_{next(numbers)}")
        memory, earlier = step.memory, step.map
        shares, errors = window_shares(windows[index], step.map.labels, step.fit.density)
        for name, share, error in zip(step.map.ids, shares, errors, strict=True):
            places, means, widths = curves.setdefault(name, ([], [], []))
            places.append(index)
            means.append(float(share))
            widths.append(float(error))
        if step.event is not None:
            events.append((step.event.window, step.event.first, step.event.last))
    titled = {f"cluster {number}": curve for number, curve in enumerate(curves.values())}
    return plot_shares(titled, events, title=f"ε = {EPSILON:g} · {N_REPORTS:,} reports in each window")


def render_page() -> str:
    """Return the page of all pictures as Markdown."""
    parts = [
        "# Gallery",
        "`python -m tools.gallery` draws these pictures. The points follow from formulas, and the noise is simulated.",
    ]
    for name, picture in PICTURES.items():
        page = "tutorials/trust.md" if name in ("clear", "faint") else f"algorithms/{name}.md"
        parts += [f"## {picture.title}", f"[![{picture.title}](images/gallery/{name}.png)]({page})"]
    parts += [f"## {CARDS_TITLE}", f"[![{CARDS_TITLE}](images/gallery/{CARDS}.png)](tutorials/customers.md)"]
    parts += [f"## {REPORTED_TITLE}", f"[![{REPORTED_TITLE}](images/gallery/{REPORTED}.png)](profiles.md#from-reports)"]
    link = "profiles.md#categories-from-reports"
    parts += [f"## {CATEGORIES_TITLE}", f"[![{CATEGORIES_TITLE}](images/gallery/{CATEGORIES}.png)]({link})"]
    parts += [f"## {SERIES_TITLE}", f"[![{SERIES_TITLE}](images/gallery/{SERIES}.png)](series.md)"]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    others = {CARDS: draw_cards, REPORTED: draw_reported_cards, CATEGORIES: draw_categories, SERIES: draw_series}
    for name in sys.argv[1:] or (*PICTURES, *others):
        figure = others[name]() if name in others else draw_picture(PICTURES[name])
        figure.savefig(FOLDER / f"{name}.png", dpi=DOTS_PER_INCH)

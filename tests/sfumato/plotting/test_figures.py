"""Pictures of models: valid documents, repeatable, with the values of the model."""

import contextlib
import io
import math
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from sfumato.api import parsers
from sfumato.errors import InvalidSpec
from sfumato.model.cluster_model import ClusterModel
from sfumato.plotting import figures
from sfumato.plotting.shading import is_adaptive, shade
from sfumato.records.mixed import expand_features
from sfumato.specs import Feature, Place
from sfumato.specs.attributes import Categorical
from tests.sfumato.answers import DATASET, JOB, RESULT, ok, serving

SVG = "{http://www.w3.org/2000/svg}"


def label_map(n_features: int = 2, cells: int = 12, clusters: int = 3) -> ClusterModel:
    """Return slabs along the first feature, with the largest density in the middle."""
    shape = (cells,) * n_features
    labels = np.minimum(np.indices(shape)[0] * clusters // cells, clusters - 1)
    density = np.prod(np.sin((np.indices(shape) + 0.5) / cells * np.pi), axis=0)
    density /= density.sum()
    sizes = np.bincount(labels.ravel(), weights=density.ravel())
    features = tuple(Feature(name, -10.0, 30.0, "m") for name in ("across", "up", "deep")[:n_features])
    centres = np.full((clusters, n_features), 10.0)
    centres[:, 0] = -10 + 40 * (np.arange(clusters) + 0.5) / clusters
    return ClusterModel(
        "label_map",
        features,
        sizes,
        np.full(clusters, 0.004),
        centroids=centres,
        label_map=labels,
        density=density,
        diagnostics={"n_reports": 12345},
    )


def centroids(n_features: int, clusters: int = 5) -> ClusterModel:
    places = np.random.default_rng(3).uniform(0, 1, size=(clusters, n_features))
    features = tuple(Feature(f"x{place}", 0.0, 1.0) for place in range(n_features))
    return ClusterModel(
        "centroids", features, np.full(clusters, 1 / max(clusters, 1)), np.full(clusters, np.nan), centroids=places
    )


def texts(document: str) -> list[str]:
    root = ElementTree.fromstring(document)  # noqa: S314  # our own document
    return ["".join(element.itertext()).strip() for element in root.iter(f"{SVG}text")]


def words(figure: Figure) -> list[str]:
    """Return the texts of a figure without drawing it."""
    return [text.get_text() for text in figure.findobj(Text)]


def pixels(image: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(image)).convert("RGB"), dtype=np.int64)


PROGRAM = """
import hashlib, sys, numpy as np
from sfumato.plotting import figures
print("matplotlib" in sys.modules)
from sfumato.model.cluster_model import ClusterModel
from sfumato.specs import Feature
features = (Feature("a", 0, 1), Feature("b", 0, 1))
model = ClusterModel("centroids", features, np.ones(1), np.zeros(1), centroids=np.full((1, 2), .5))
print(hashlib.sha256(figures.svg(model, title="t").encode()).hexdigest())
"""


class TestSvg:
    @pytest.mark.parametrize("n_features", [1, 2, 3])
    def test_is_a_valid_document_with_the_texts_of_the_model(self, n_features: int) -> None:
        model = label_map(n_features)
        document = figures.svg(model, title="Three slabs", caption="as measured", names=("west", "middle", "east"))
        written = texts(document)
        assert {"Three slabs", "as measured", "1  middle, 50.0 ± 0.4 %"} <= set(written)
        assert {f"{feature.name} (m)" for feature in model.features} <= set(written)
        assert "<dc:date>" not in document

    def test_is_that_of_a_result(self) -> None:
        result = parsers.parse_result(RESULT)
        assert len(figures.plot(result).axes) == len(figures.plot(result.model).axes)

    def test_of_a_job_names_its_result(self) -> None:
        with pytest.raises(InvalidSpec, match=r"for a job, give job\.result\(\)"):
            figures.plot(object())  # type: ignore[arg-type]

    def test_is_equal_in_threads(self) -> None:
        documents: list[str] = []
        model = label_map(cells=4)
        threads = [threading.Thread(target=lambda: documents.append(figures.svg(model))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(documents)) == 1
        assert len(documents) == 2

    def test_is_equal_in_another_process_and_loads_matplotlib_on_use(self) -> None:
        here = io.StringIO()
        with contextlib.redirect_stdout(here):
            exec(PROGRAM, {})  # noqa: S102  # the program of this test
        there = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
        assert there.splitlines() == ["False", here.getvalue().splitlines()[1]]

    @pytest.mark.parametrize("name", ["<script>alert(1)</script>&", "a $b$ \\frac{", "nul \x00 and \x1b 日本 \ud800"])
    def test_shows_any_name_literally(self, name: str) -> None:
        model = replace(label_map(), features=(Feature(name, 0.0, 1.0), Feature("up", 0.0, 1.0)), warnings=(name,))
        document = figures.svg(model, title=name, caption=name, names=(name,))
        assert "<script>" not in document
        shown = [text for text in texts(document) if text.startswith(name[:2])]
        assert len(shown) >= 4  # title, caption, axis, warning

    def test_wraps_and_limits_long_texts(self) -> None:
        warning = "Cluster 2 could be noise. " * 20
        written = words(figures.plot(replace(label_map(), warnings=(warning,))))
        assert sum("could be noise" in text for text in written) > 1  # wrapped over lines
        document = figures.svg(replace(label_map(), warnings=("word " * 5000,)), title="x" * 5000, caption="y " * 5000)
        assert "The result has more warnings." in texts(document)
        assert len(document) < 300_000

    def test_lists_a_limited_number_of_clusters(self) -> None:
        written = words(figures.plot(centroids(2, clusters=60)))
        assert "and 36 more" in written
        assert "59" in written  # its number is on the map

    def test_states_that_there_is_no_cluster(self) -> None:
        for n_features in (2, 64):
            assert "No cluster stands out from the noise." in words(figures.plot(centroids(n_features, clusters=0)))


class TestPng:
    def test_has_the_requested_size_and_no_text_chunk(self) -> None:
        for dots_per_inch in (100, 200):
            image = Image.open(io.BytesIO(figures.png(label_map(cells=4), dots_per_inch=dots_per_inch)))
            assert (image.format, image.width) == ("PNG", 8 * dots_per_inch)
            assert image.info.get("Software") is None


class TestMap:
    def test_the_first_feature_is_horizontal_and_each_cluster_has_its_hue(self) -> None:
        image = pixels(figures.png(replace(label_map(), centroids=None), dots_per_inch=100))
        middle = image[int(image.shape[0] * 0.4)]
        blue, green = middle[130], middle[-60 - 240]  # left slab, right slab; the legend is on the right
        assert blue[2] > blue[0] + 20
        assert green[1] > green[0] + 20
        assert green[1] > green[2]

    def test_latitude_is_vertical_even_as_the_first_feature(self) -> None:
        model = label_map()
        straight = (Feature("longitude", 0.0, 90.0), Feature("latitude", -45.0, 45.0))
        centres = np.array([[15.0, 9.0], [45.0, 0.0], [70.0, -9.0]])
        upright = replace(model, features=straight, centroids=centres)
        assert model.label_map is not None
        assert model.density is not None
        swapped = replace(
            model,
            features=straight[::-1],
            label_map=model.label_map.T,
            density=model.density.T,
            centroids=centres[:, ::-1],
        )
        off = np.abs(pixels(figures.png(upright)) - pixels(figures.png(swapped)))
        assert off.max() <= 1  # rounding: the other axis is interpolated first

    def test_longitude_is_narrowed_by_the_cosine_of_the_middle_latitude(self) -> None:
        def ratio(latitude: float) -> float:
            features = (Feature("lon", 0.0, 10.0), Feature("lat", latitude - 2.5, latitude + 2.5))
            (axes,) = figures.plot(replace(label_map(), features=features)).axes
            box, size = axes.get_position(), axes.figure.get_size_inches()
            return float(box.width * size[0] / (box.height * size[1]))

        assert ratio(0) == pytest.approx(2.0, rel=1e-6)
        assert ratio(60) == pytest.approx(1.0, rel=1e-6)

    def test_a_number_is_inside_its_cluster(self) -> None:
        model = label_map()
        ring = np.zeros((12, 12), dtype=np.int64)
        ring[4:8, 4:8] = 1  # cluster 0 surrounds cluster 1, and both have their centre in the middle
        model = replace(
            model,
            label_map=ring,
            sizes=np.array([0.7, 0.3]),
            size_errors=np.zeros(2),
            centroids=np.array([[10.0, 10.0], [10.0, 10.0]]),
        )
        (axes,) = figures.plot(model).axes
        positions = {text.get_text(): text.get_position() for text in axes.texts}
        assert model.assign([positions["0"], positions["1"]]).tolist() == [0, 1]

    def test_a_number_stays_on_the_map(self) -> None:
        model = replace(label_map(), centroids=np.array([[-999.0, 10.0], [10.0, 10.0], [25.0, 999.0]]))
        (axes,) = figures.plot(model).axes
        positions = np.array([text.get_position() for text in axes.texts])
        assert ((positions >= -10) & (positions <= 30)).all()

    def test_draws_outlines(self) -> None:
        without, with_outline = (
            figures.plot(label_map(), outlines=lines).axes[0] for lines in ((), [[(-5.0, -5.0), (20.0, 25.0)]])
        )
        assert len(with_outline.collections) == len(without.collections) + 1


class TestCategories:
    def model(self, n_features: int) -> ClusterModel:
        """Return the slabs, of which a fifth of the people has another category."""
        plain, plan = label_map(n_features), Categorical("plan", ("free", "pro"), use="cluster")
        assert plain.label_map is not None
        assert plain.density is not None
        assert plain.centroids is not None
        return replace(
            plain,
            features=expand_features(plain.features, (plan,)),
            sizes=np.concatenate([0.8 * plain.sizes, 0.2 * plain.sizes]),
            size_errors=np.full(6, 0.004),
            centroids=np.vstack([np.hstack([plain.centroids, np.tile(row, (3, 1))]) for row in np.eye(2)]),
            label_map=np.stack([plain.label_map, plain.label_map + 3], axis=-1),
            density=np.stack([0.8 * plain.density, 0.2 * plain.density], axis=-1),
            attributes=(plan,),
        )

    def test_maps_have_one_scale_of_tones(self) -> None:
        free, pro = (axes.images[0].get_array() for axes in figures.plot(self.model(2)).axes)
        assert free is not None
        assert pro is not None
        assert free.min() == pytest.approx(0, abs=0.1)  # the darkest tone has no red
        assert pro.sum(axis=2).min() > free.sum(axis=2).min() + 0.3

    def test_lines_have_one_axis(self) -> None:
        free, pro = figures.plot(self.model(1)).axes
        assert free.get_ylim() == pro.get_ylim()
        heights = [float(max(patch.get_data().values.max() for patch in axes.patches)) for axes in (free, pro)]  # type: ignore[attr-defined]
        assert heights[0] == pytest.approx(4 * heights[1])


class TestBeside:
    @pytest.mark.parametrize(("n_features", "clusters"), [(1, 2), (2, 5), (2, 24), (3, 0), (3, 30)])
    def test_every_text_is_within_the_figure(self, n_features: int, clusters: int) -> None:
        few, many = centroids(n_features, 1), centroids(n_features, clusters)
        figure = figures.plot_beside([figures.Panel(few, "few", 10, ("Ur",)), figures.Panel(many, "many")], title="All")
        figure.canvas.draw()
        assert {"All", "few\n1 cluster · 10 reports · verdict: doubtful"} <= set(words(figure))
        assert [legend.get_texts()[0].get_text()[:6] for legend in figure.legends[:1]] == ["0  Ur,"]
        for legend in figure.legends:
            (left, low), (right, high) = legend.get_window_extent().get_points() / figure.dpi
            assert 0 < left < right < 12
            assert 0 < low < high < figure.get_size_inches()[1]


class TestPlace:
    def test_areas_are_as_they_are_on_earth(self) -> None:
        latitude, longitude = Place(0.0, 0.0, 60.0, 90.0).features
        errors = np.tile([1.0, 0.5], (3, 1))
        model = replace(label_map(), features=(longitude, latitude), centroid_errors=errors)
        model = replace(model, centroids=np.array([[45.0, 20.0], [45.0, 40.0], [45.0, 50.0]]))
        (axes,) = figures.plot(model).axes
        ticks = dict(zip([each.get_text() for each in axes.get_yticklabels()], axes.get_yticks(), strict=True))
        assert ticks["30°N"] == pytest.approx(60 * 0.5 / math.sin(math.pi / 3))
        heights = [patch.height for patch in axes.patches]
        assert heights[1] / heights[0] == pytest.approx(
            math.cos(math.radians(40)) / math.cos(math.radians(20)), rel=1e-3
        )
        assert model.to_columns()["error_km"][0] == pytest.approx(
            111.19 * math.hypot(math.cos(math.radians(20)), 0.5), rel=1e-3
        )

    def test_of_a_latitude_alone_has_cells_of_unequal_widths(self) -> None:
        latitude = Place(0.0, 0.0, 60.0, 90.0).features[0]
        (axes,) = figures.plot(replace(label_map(1), features=(latitude,))).axes
        edges = axes.patches[-1].get_data().edges
        assert np.diff(edges)[-1] > 1.5 * np.diff(edges)[0]


class TestEllipses:
    def test_contain_95_percent_of_the_noise(self) -> None:
        errors = np.array([[1.0, 2.0], [0.5, 0.5], [np.nan, 1.0]])
        (axes,) = figures.plot(replace(label_map(), centroid_errors=errors)).axes
        drawn = [(patch.width / 2, patch.height / 2) for patch in axes.patches]
        assert drawn == [pytest.approx((2.4477, 4.8955), rel=1e-4), pytest.approx((1.2239, 1.2239), rel=1e-4)]
        scattered = np.random.default_rng(1).normal(0, (1.0, 2.0), size=(40_000, 2))
        inside = ((scattered / drawn[0]) ** 2).sum(axis=1) <= 1
        assert inside.mean() == pytest.approx(0.95, abs=0.005)

    def test_over_the_seam_of_a_circle_are_drawn_at_both_ends(self) -> None:
        model = replace(label_map(), centroid_errors=np.ones((3, 2)))
        model = replace(model, features=(replace(model.features[0], periodic=True), model.features[1]))
        (axes,) = figures.plot(model).axes
        drawn = [patch.center[0] for patch in axes.patches[:3]]
        assert drawn == pytest.approx([x - 10 / 3 for x in (-40, 0, 40)])

    def test_are_explained_if_they_are_drawn(self) -> None:
        explanation = "Ellipses about centres contain them with 95% confidence, as far as the noise is concerned."
        assert explanation in words(figures.plot(replace(label_map(), centroid_errors=np.ones((3, 2)))))
        assert explanation not in words(figures.plot(label_map()))

    def test_of_one_feature_are_bars(self) -> None:
        model = replace(label_map(1), centroid_errors=np.full((3, 1), 2.0))
        (axes,) = figures.plot(model).axes
        (bars,) = axes.containers[-1].lines[2]
        assert [float(np.ptp(segment[:, 0])) for segment in bars.get_segments()] == pytest.approx(
            [2 * 1.96 * 2] * 3, rel=1e-3
        )

    def test_have_the_errors_of_their_pair_of_features(self) -> None:
        model = replace(label_map(3), centroid_errors=np.tile([1.0, 2.0, 3.0], (3, 1)))
        sizes = [axes.patches[0].width / axes.patches[0].height for axes in figures.plot(model).axes]
        assert sizes == pytest.approx([1 / 2, 1 / 3, 2 / 3])


class TestAdaptiveCells:
    def blocks(self) -> ClusterModel:
        """Return sixteen fine cells in one corner, and coarse cells of four by four elsewhere."""
        density = np.ones((16, 16)) / 256
        density[:4, :4] = np.arange(1, 17).reshape(4, 4) / 500
        density[8:, 8:] = 2 / 256
        return replace(
            label_map(), label_map=(np.indices((16, 16))[0] > 7).astype(np.int64), density=density, centroids=None,
            sizes=np.array([0.5, 0.5]), size_errors=np.zeros(2),
        )  # fmt: skip

    def test_are_recognised_by_equal_neighbours(self) -> None:
        density = self.blocks().density
        assert density is not None
        assert is_adaptive(density)
        assert not is_adaptive(np.random.default_rng(1).random((16, 16)))
        assert not is_adaptive(np.zeros((4, 4)))

    def test_are_drawn_without_interpolation(self) -> None:
        model = self.blocks()
        assert model.density is not None
        assert model.label_map is not None
        image = shade(model.label_map, model.density, smooth=False)
        assert len(np.unique(image.reshape(-1, 3), axis=0)) == 19  # 16 fine, even ones in two hues, dense ones
        (axes,) = figures.plot(model).axes
        assert len(axes.collections) == 3  # edges of cells, and borders twice


class TestGeography:
    def europe(self, n_features: int = 2) -> ClusterModel:
        features = (Feature("longitude", -10.0, 30.0, "degrees"), Feature("latitude", 35.0, 60.0, "degrees"))
        others = (Feature("age", 0.0, 100.0, "years"),)
        model = label_map(n_features)
        return replace(model, features=(*others, *features) if n_features == 3 else features)

    def test_has_coasts_a_graticule_and_a_scale(self) -> None:
        (with_coast,), (without,) = figures.plot(self.europe()).axes, figures.plot(self.europe(), outlines=()).axes
        assert len(with_coast.collections) == len(without.collections) + 1
        assert {"10°W", "20°E", "40°N", "500 km at 47.5°N"} <= set(texts(figures.svg(self.europe())))
        features = (Feature("longitude", -180.0, 180.0, "degrees"), Feature("latitude", -60.0, 80.0, "degrees"))
        written = texts(figures.svg(replace(label_map(), features=features)))
        assert {"120°W", "0°", "60°E", "30°S", "60°N", "5,000 km at 10°N"} <= set(written)

    def test_is_recognised_among_other_features(self) -> None:
        figure = figures.plot(self.europe(3))
        titles = [(axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes]
        assert ("longitude (degrees)", "latitude (degrees)") in titles
        assert "500 km at 47.5°N" in words(figure)

    def test_needs_degrees(self) -> None:
        features = (Feature("longitude", -10.0, 30.0, "km"), Feature("latitude", 35.0, 60.0, "km"))
        assert not any("°" in text for text in texts(figures.svg(replace(label_map(), features=features))))


class TestDescribe:
    def test_states_the_cost_the_number_of_reports_and_the_verdict(self) -> None:
        assert figures.describe(label_map(), epsilon=2.0) == (
            f"3 clusters · ε = 2 per installation · 12,345 reports · verdict: {label_map().verdict.value}"
        )
        assert figures.describe(centroids(2, clusters=1), n_reports=7) == "1 cluster · 7 reports · verdict: doubtful"

    def test_shares_have_the_digits_of_their_errors(self) -> None:
        model = replace(label_map(), sizes=np.array([0.25, 0.5, 0.25]), size_errors=np.array([0.01, 0.0001, np.nan]))
        assert [figures.share(model, cluster) for cluster in range(3)] == ["25.0 ± 1.0 %", "50.00 ± 0.01 %", "25.0 %"]


class TestDuration:
    def test_a_picture_takes_less_than_a_second(self) -> None:
        figures.svg(label_map())  # matplotlib is loaded
        began = time.process_time()
        figures.svg(label_map(cells=64, clusters=30), title="t")
        assert time.process_time() - began < 1.0

    @pytest.mark.slow
    def test_a_fine_grid_has_a_bounded_picture(self) -> None:
        labels = np.random.default_rng(1).integers(0, 256, size=(512, 512))
        model = replace(label_map(cells=512, clusters=256), label_map=labels)
        began = time.process_time()
        document = figures.svg(model)
        assert len(document) < 10_000_000
        assert time.process_time() - began < 8.0  # about 1 on an idle machine


class TestAxes:
    def test_of_the_caller_contain_the_first_panel(self) -> None:
        figure = Figure()
        ax = figure.add_subplot()
        assert figures.plot(label_map(), ax, title="t") is figure
        assert (figure.axes, ax.get_title(), ax.get_xlabel()) == ([ax], "t", "across (m)")


class TestResources:
    def test_a_result_plots_itself_with_its_cost(self) -> None:
        result = parsers.parse_result(RESULT)
        caption = figures.describe(
            result.model, epsilon=result.epsilon, n_reports=sum(r.n_reports for r in result.rounds)
        )
        assert any(caption in text.get_text() for text in result.plot().texts)
        assert caption in texts(result._repr_html_())

    def test_a_job_plots_its_result(self) -> None:
        _, client = serving({"GET jobs/job_1": ok(JOB), "GET jobs/job_1/result": ok(RESULT)})
        assert type(client.get_job("job_1").plot(title="t")).__name__ == "Figure"

    def test_jobs_and_datasets_are_tables_in_a_notebook(self) -> None:
        assert "<td>collecting</td>" in parsers.parse_job(JOB)._repr_html_()
        assert "<td>doubtful</td>" in parsers.parse_job(JOB | {"verdict": "doubtful"})._repr_html_()
        assert "&lt;b&gt;" in parsers.parse_dataset(DATASET | {"name": "<b>"})._repr_html_()

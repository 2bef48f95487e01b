"""Pictures: well-formed, the same every time, and showing what the model says."""

import io
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from sfumato import plot
from sfumato.cluster_model import ClusterModel
from sfumato.shading import is_adaptive, shaded
from sfumato.specs import Feature, HalfspaceCodeEncoding

SVG = "{http://www.w3.org/2000/svg}"


def label_map(n_features: int = 2, cells: int = 12, clusters: int = 3) -> ClusterModel:
    """Slabs along the first feature, with more people in the middle."""
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


def pixels(image: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(image)).convert("RGB"), dtype=np.int64)


class TestSvg:
    @pytest.mark.parametrize("n_features", [1, 2, 3])
    def test_is_well_formed_and_names_what_it_shows(self, n_features: int) -> None:
        model = label_map(n_features)
        written = texts(plot.svg(model, title="Three slabs", caption="as measured", names=("west", "middle", "east")))
        assert "Three slabs" in written
        assert "as measured" in written
        assert {f"{feature.name} (m)" for feature in model.features} <= set(written)
        assert "1  middle, 50.0 ± 0.4 %" in written

    @pytest.mark.parametrize("model", [label_map(1), label_map(2), label_map(3), centroids(2), centroids(5)])
    def test_is_the_same_every_time(self, model: ClusterModel) -> None:
        assert plot.svg(model, title="t") == plot.svg(model, title="t")

    def test_is_the_same_from_many_threads(self) -> None:
        model, alone = label_map(), plot.svg(label_map(), title="t")
        made: list[str] = []
        threads = [threading.Thread(target=lambda: made.append(plot.svg(model, title="t"))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert made == [alone] * 4

    def test_is_the_same_in_another_process(self) -> None:
        program = (
            "import hashlib, numpy as np\n"
            "from sfumato import plot\n"
            "from sfumato.cluster_model import ClusterModel\n"
            "from sfumato.specs import Feature\n"
            "f = (Feature('a', 0, 1), Feature('b', 0, 1))\n"
            "m = ClusterModel('centroids', f, np.ones(1), np.zeros(1), centroids=np.full((1, 2), .5))\n"
            "print(hashlib.sha256(plot.svg(m, title='t').encode()).hexdigest())\n"
        )
        runs = [
            subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
            for _ in range(2)
        ]
        assert len(runs[0].strip()) == 64
        assert runs[0] == runs[1]

    def test_carries_no_date(self) -> None:
        assert "<dc:date>" not in plot.svg(label_map())

    @pytest.mark.parametrize(
        "name", ["<script>alert(1)</script>", "a $b$ \\frac{", "nul \x00 and \x1b", "日本 \ud800", "&"]
    )
    def test_takes_any_name_for_what_it_is(self, name: str) -> None:
        model = replace(label_map(), features=(Feature(name, 0.0, 1.0), Feature("up", 0.0, 1.0)), warnings=(name,))
        document = plot.svg(model, title=name, caption=name, names=(name,))
        assert "<script>" not in document
        shown = [text for text in texts(document) if text.startswith(name[:2])]
        assert len(shown) >= 4  # title, caption, axis, small print

    def test_prints_the_models_warnings(self) -> None:
        warning = "Cluster 2 could be noise. " * 20
        written = texts(plot.svg(replace(label_map(), warnings=(warning,))))
        assert sum("could be noise" in text for text in written) > 1  # wrapped over lines

    def test_long_words_cannot_make_the_picture_endless(self) -> None:
        document = plot.svg(replace(label_map(), warnings=("word " * 5000,)), title="x" * 5000, caption="y " * 5000)
        assert "More warnings stand in the result." in texts(document)
        assert len(document) < 300_000

    def test_lists_only_so_many_clusters(self) -> None:
        written = texts(plot.svg(centroids(2, clusters=60)))
        assert "and 36 more" in written
        assert "59" in written  # its number stands on the map

    def test_degrees_are_written_as_on_maps(self) -> None:
        features = (Feature("longitude", -180.0, 180.0, "degrees"), Feature("latitude", -60.0, 80.0, "degrees"))
        written = texts(plot.svg(replace(label_map(), features=features)))
        assert {"120°W", "0°", "60°E", "30°S", "60°N", "5,000 km at 10°N"} <= set(written)


class TestPng:
    def test_has_the_size_asked_for(self) -> None:
        for dots_per_inch in (100, 200):
            image = Image.open(io.BytesIO(plot.png(label_map(), dots_per_inch=dots_per_inch)))
            assert image.format == "PNG"
            assert image.width == 8 * dots_per_inch

    def test_is_the_same_every_time(self) -> None:
        assert plot.png(label_map(), title="t") == plot.png(label_map(), title="t")

    def test_carries_no_text_chunk(self) -> None:
        assert Image.open(io.BytesIO(plot.png(label_map()))).info.get("Software") is None


class TestMap:
    def test_the_first_feature_goes_across_and_each_cluster_has_its_hue(self) -> None:
        image = pixels(plot.png(replace(label_map(), centroids=None), dots_per_inch=100))
        middle = image[int(image.shape[0] * 0.4)]
        blue, green = middle[130], middle[-60 - 240]  # left slab, right slab; the legend stands on the right
        assert blue[2] > blue[0] + 20
        assert green[1] > green[0] + 20
        assert green[1] > green[2]

    def test_latitude_goes_up_even_where_it_comes_first(self) -> None:
        model = label_map()
        straight = (Feature("longitude", 0.0, 90.0), Feature("latitude", -45.0, 45.0))
        centres = np.array([[15.0, 9.0], [45.0, 0.0], [70.0, -9.0]])
        there = replace(model, features=straight, centroids=centres)
        assert model.label_map is not None
        assert model.density is not None
        swapped = replace(
            model,
            features=straight[::-1],
            label_map=model.label_map.T,
            density=model.density.T,
            centroids=centres[:, ::-1],
        )
        off = np.abs(pixels(plot.png(there)) - pixels(plot.png(swapped)))
        assert off.max() <= 1  # rounding, interpolated along the other axis first

    def test_longitude_is_narrowed_by_the_cosine_of_the_middle_latitude(self) -> None:
        def ratio(latitude: float) -> float:
            features = (Feature("lon", 0.0, 10.0), Feature("lat", latitude - 2.5, latitude + 2.5))
            (axes,) = plot.figure(replace(label_map(), features=features)).axes
            box, size = axes.get_position(), axes.figure.get_size_inches()
            return float(box.width * size[0] / (box.height * size[1]))

        assert ratio(0) == pytest.approx(2.0, rel=1e-6)
        assert ratio(60) == pytest.approx(1.0, rel=1e-6)

    def test_a_number_stands_in_its_own_cluster(self) -> None:
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
        (axes,) = plot.figure(model).axes
        seats = {text.get_text(): text.get_position() for text in axes.texts}
        assert model.assign([seats["0"], seats["1"]]).tolist() == [0, 1]

    def test_a_number_stays_on_the_map(self) -> None:
        model = replace(label_map(), centroids=np.array([[-999.0, 10.0], [10.0, 10.0], [25.0, 999.0]]))
        (axes,) = plot.figure(model).axes
        seats = np.array([text.get_position() for text in axes.texts])
        assert ((seats >= -10) & (seats <= 30)).all()

    def test_outlines_are_drawn(self) -> None:
        bare = pixels(plot.png(label_map()))
        outlined = pixels(plot.png(label_map(), outlines=[[(-5.0, -5.0), (20.0, 25.0)]]))
        assert (bare != outlined).any()


class TestEllipses:
    def test_have_the_half_axes_that_hold_95_of_100(self) -> None:
        errors = np.array([[1.0, 2.0], [0.5, 0.5], [np.nan, 1.0]])
        (axes,) = plot.figure(replace(label_map(), centroid_errors=errors)).axes
        drawn = [(patch.width / 2, patch.height / 2) for patch in axes.patches]
        assert drawn == [pytest.approx((2.4477, 4.8955), rel=1e-4), pytest.approx((1.2239, 1.2239), rel=1e-4)]
        scattered = np.random.default_rng(1).normal(0, (1.0, 2.0), size=(40_000, 2))
        inside = ((scattered / drawn[0]) ** 2).sum(axis=1) <= 1
        assert inside.mean() == pytest.approx(0.95, abs=0.005)

    def test_are_explained_where_they_are_drawn_alone(self) -> None:
        words = "Ellipses about centres hold them with 95% confidence, as far as the noise goes."
        assert words in texts(plot.svg(replace(label_map(), centroid_errors=np.ones((3, 2)))))
        assert words not in texts(plot.svg(label_map()))

    def test_of_one_feature_are_bars(self) -> None:
        model = replace(label_map(1), centroid_errors=np.full((3, 1), 2.0))
        (axes,) = plot.figure(model).axes
        (bars,) = axes.containers[-1].lines[2]
        assert [float(np.ptp(segment[:, 0])) for segment in bars.get_segments()] == pytest.approx(
            [2 * 1.96 * 2] * 3, rel=1e-3
        )

    def test_follow_the_pair_of_features(self) -> None:
        model = replace(label_map(3), centroid_errors=np.tile([1.0, 2.0, 3.0], (3, 1)))
        sizes = [axes.patches[0].width / axes.patches[0].height for axes in plot.figure(model).axes]
        assert sizes == pytest.approx([1 / 2, 1 / 3, 2 / 3])


class TestAdaptiveCells:
    def blocks(self) -> ClusterModel:
        """Sixteen fine cells in one corner, and coarse ones of four by four elsewhere."""
        density = np.ones((16, 16)) / 256
        density[:4, :4] = np.arange(1, 17).reshape(4, 4) / 500
        density[8:, 8:] = 2 / 256
        return replace(
            label_map(), label_map=(np.indices((16, 16))[0] > 7).astype(np.int64), density=density, centroids=None,
            sizes=np.array([0.5, 0.5]), size_errors=np.zeros(2),
        )  # fmt: skip

    def test_are_known_by_neighbours_that_hold_the_same(self) -> None:
        density = self.blocks().density
        assert density is not None
        assert is_adaptive(density)
        assert not is_adaptive(np.random.default_rng(1).random((16, 16)))
        assert not is_adaptive(np.zeros((4, 4)))

    def test_are_drawn_as_they_are(self) -> None:
        model = self.blocks()
        assert model.density is not None
        assert model.label_map is not None
        image = shaded(model.label_map, model.density, smooth=False)
        assert (
            len(np.unique(image[:, :].reshape(-1, 3), axis=0)) == 19
        )  # 16 fine, and even ones under two hues, and crowded ones
        (axes,) = plot.figure(model).axes
        assert len(axes.collections) == 3  # edges of cells, and borders twice

    def test_zero_clusters_are_a_sentence(self) -> None:
        assert "No cluster stands out from the noise." in texts(plot.svg(centroids(2, clusters=0)))
        assert "No cluster stands out from the noise." in texts(plot.svg(centroids(64, clusters=0)))


class TestGeography:
    def europe(self, n_features: int = 2) -> ClusterModel:
        features = (Feature("longitude", -10.0, 30.0, "degrees"), Feature("latitude", 35.0, 60.0, "degrees"))
        others = (Feature("age", 0.0, 100.0, "years"),)
        model = label_map(n_features)
        return replace(model, features=(*others, *features) if n_features == 3 else features)

    def test_has_coasts_unless_none_are_wanted(self) -> None:
        coast, none = plot.figure(self.europe()), plot.figure(self.europe(), outlines=())
        (with_coast,), (without,) = coast.axes, none.axes
        assert len(with_coast.collections) == len(without.collections) + 1

    def test_has_a_graticule_and_a_scale(self) -> None:
        written = texts(plot.svg(self.europe()))
        assert {"10°W", "20°E", "40°N", "500 km at 47.5°N"} <= set(written)

    def test_is_found_among_other_features(self) -> None:
        drawn = plot.figure(self.europe(3)).axes
        titles = [(axes.get_xlabel(), axes.get_ylabel()) for axes in drawn]
        assert ("longitude (degrees)", "latitude (degrees)") in titles
        assert "500 km at 47.5°N" in texts(plot.svg(self.europe(3)))

    def test_is_none_of_kilometres(self) -> None:
        features = (Feature("longitude", -10.0, 30.0, "km"), Feature("latitude", 35.0, 60.0, "km"))
        assert not any("°" in text for text in texts(plot.svg(replace(label_map(), features=features))))

    def test_is_drawn_by_the_model_itself(self) -> None:
        drawn = self.europe().plot(title="t", names=("a", "b", "c"))
        assert type(drawn).__name__ == "Figure"
        assert any("500 km" in text.get_text() for text in drawn.axes[0].texts)


class TestCodes:
    def codes(self, clusters: int = 4, n_features: int = 5) -> ClusterModel:
        return ClusterModel(
            "codes",
            tuple(Feature(f"x{place}", 0.0, 1.0) for place in range(n_features)),
            np.full(clusters, 1 / clusters),
            np.full(clusters, np.nan) if clusters == 1 else np.full(clusters, 0.01),
            encoding=HalfspaceCodeEncoding(((1,) * n_features,) * 8, tuple(range(8))),
            label_map=np.arange(256) % clusters,
            warnings=("this may be noise",),
        )

    @pytest.mark.parametrize("n_features", [1, 2, 5, 64])
    @pytest.mark.parametrize("clusters", [1, 4, 256])
    def test_are_drawn_as_bars_of_their_sizes(self, clusters: int, n_features: int) -> None:
        model = self.codes(clusters, n_features)
        (axes,) = plot.figure(model).axes
        assert [round(bar.get_height(), 9) for bar in axes.patches] == [round(100 / clusters, 9)] * clusters
        written = texts(plot.svg(model))
        assert {"cluster", "share of people (%)", "this may be noise"} <= set(written)
        assert f"0  {plot.share(model, 0)}" in written

    def test_are_the_same_every_time(self) -> None:
        assert plot.svg(self.codes(), title="t") == plot.svg(self.codes(), title="t")


class TestDescribe:
    def test_says_cost_and_reports(self) -> None:
        assert plot.describe(label_map(), epsilon=2.0) == "3 clusters · ε = 2 per person · 12,345 reports"
        assert plot.describe(centroids(2, clusters=1), n_reports=7) == "1 cluster · 7 reports"

    def test_shares_show_what_is_known(self) -> None:
        model = replace(label_map(), sizes=np.array([0.25, 0.5, 0.25]), size_errors=np.array([0.01, 0.0001, np.nan]))
        assert [plot.share(model, cluster) for cluster in range(3)] == ["25.0 ± 1.0 %", "50.00 ± 0.01 %", "25.0 %"]


class TestCost:
    def test_importing_loads_no_matplotlib(self) -> None:
        program = "import sys; from sfumato import plot; print('matplotlib' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "False"

    def test_a_picture_takes_less_than_a_second(self) -> None:
        plot.svg(label_map())  # matplotlib is loaded
        began = time.process_time()
        plot.svg(label_map(cells=64, clusters=30), title="t")
        assert time.process_time() - began < 1.0

    @pytest.mark.parametrize("speckled", [False, True])
    def test_the_finest_grid_makes_no_endless_picture(self, speckled: bool) -> None:
        model = label_map(cells=1024, clusters=256)
        if speckled:
            model = replace(model, label_map=np.random.default_rng(1).integers(0, 256, size=(1024, 1024)))
        began = time.process_time()
        document = plot.svg(model)
        assert len(document) < 10_000_000
        assert time.process_time() - began < 25.0  # some 3

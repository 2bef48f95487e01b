"""Every estimator treats frames of any index and order alike, and its parts agree with each other."""

import pickle
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from clustering.estimators import PrivateEstimator
from sfumato import clusters_frame, labels_frame
from tests.clustering.test_estimators import ALL

N_RECORDS = 600
BOUNDS = ([0, 0], [1, 1000])  # features of very different ranges
NAMES = ["age", "income"]
FRAMES: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "as fitted": lambda frame: frame,
    "filtered": lambda frame: frame[frame["age"] > 0.5],
    "sorted": lambda frame: frame.sort_values("income"),
    "sampled": lambda frame: frame.sample(50, random_state=1),
    "a string index": lambda frame: frame.set_index("p" + frame.index.astype(str)),
    "a repeated index": lambda frame: frame.set_index(np.zeros(len(frame), dtype=int)),
    "two indices": lambda frame: frame.set_index([frame.index % 7, frame.index]),
    "dates as index": lambda frame: frame.set_index(pd.date_range("2026-01-01", periods=len(frame))),
    "one row": lambda frame: frame.iloc[[7]],
    "a fancy type": lambda frame: frame.astype("Float64"),
}


def people() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    places = [rng.normal([place, 500], [0.05, 200], size=(N_RECORDS // 2, 2)) for place in (0.2, 0.8)]
    return pd.DataFrame(np.concatenate(places).clip(0, [1, 1000]), columns=NAMES)


@cache
def fitted(kind: type[PrivateEstimator]) -> Any:
    return kind(n_clusters=2, epsilon=16, bounds=BOUNDS).fit(people())


@pytest.mark.parametrize("kind", ALL)
class TestEveryEstimator:
    def test_gives_each_row_its_own_label(self, kind: type[PrivateEstimator]) -> None:
        estimator, frame = fitted(kind), people()
        labels = pd.Series(estimator.labels_, index=frame.index)
        assert (estimator.predict(frame) == estimator.labels_).all()
        for name, change in FRAMES.items():
            some = change(frame.assign(row=frame.index))
            rows, some = some["row"].astype(int).to_numpy(), some[NAMES]
            expected = labels.loc[rows].to_numpy()
            assert estimator.predict(some).tolist() == expected.tolist(), name
            released = labels_frame(estimator.model_, some[NAMES[::-1]])  # names are matched in any order
            assert released.index.equals(some.index), name
            assert released["cluster"].tolist() == expected.tolist(), name
            assert some.assign(cluster=released["cluster"].to_numpy())["cluster"].tolist() == expected.tolist(), name

    def test_is_nearest_to_the_centroid_of_its_label(self, kind: type[PrivateEstimator]) -> None:
        estimator, frame = fitted(kind), people()
        assert hasattr(estimator, "transform") == hasattr(estimator, "get_feature_names_out")
        if not hasattr(estimator, "transform"):
            assert estimator.model_.label_map is not None
            return
        beyond = frame * [3, 3] - [1, 1000]  # some outside of the bounds
        for points in (frame, beyond, frame.iloc[[3]]):
            assert (estimator.transform(points).argmin(axis=1) == estimator.predict(points)).all()
        names = estimator.get_feature_names_out().tolist()
        assert names == [f"{kind.__name__.lower()}{place}" for place in range(estimator.model_.n_clusters)]
        framed = clone(estimator).set_output(transform="pandas").fit(frame).transform(frame.iloc[[5, 3]])
        assert framed.index.tolist() == [5, 3]

    def test_is_the_same_after_a_clone_and_a_copy_by_pickle(self, kind: type[PrivateEstimator]) -> None:
        estimator, frame = fitted(kind), people()
        copied = pickle.loads(pickle.dumps(estimator))  # noqa: S301
        assert (copied.predict(frame) == estimator.labels_).all()
        assert clone(copied).get_params() == estimator.get_params()
        assert (copied.n_features_in_, copied.feature_names_in_.tolist()) == (2, NAMES)
        assert clusters_frame(copied.model_).equals(clusters_frame(estimator.model_))
        with pytest.raises(ValueError, match="feature names should match"):
            estimator.predict(frame[NAMES[::-1]])

    def test_labels_the_records_of_fit_predict(self, kind: type[PrivateEstimator]) -> None:
        estimator = clone(fitted(kind))
        found = estimator.fit_predict(people().to_numpy())
        assert found.tolist() == estimator.labels_.tolist() == estimator.predict(people().to_numpy()).tolist()
        assert (found.dtype, found.shape) == (np.int64, (N_RECORDS,))
        assert not hasattr(estimator, "feature_names_in_")

"""Uploads with records outside of the bounds, which are clipped."""

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.service.api import Api, refused

CSV = {"Content-Type": "text/csv"}
N = 400
LIMITS = [(4, False, 201), (5, True, 201), (200, True, 201), (201, True, 409)]


def rows(n_outside: int, seed: int = 3) -> NDArray[np.float64]:
    """Return records in [0, 1] x [-1, 1], of which some are beyond the upper bound of y, and one of x too."""
    values = np.random.default_rng(seed).uniform([0.1, -0.9], [0.9, 0.9], (N, 2)).round(3)
    values[:n_outside, 1] += 5
    values[0, 0] = -8
    return values


def csv(values: NDArray[np.float64]) -> str:
    return "x,y\n" + "".join(f"{x},{y}\n" for x, y in values.tolist())


@pytest.mark.parametrize(("n_clipped", "warns", "status"), LIMITS)
def test_are_named_with_their_features_and_refused_if_they_are_most(
    api: Api, n_clipped: int, warns: bool, status: int
) -> None:
    path = f"/datasets/{api.dataset(trust='central', out_of_bounds='clip')['id']}/records"
    content = csv(rows(n_clipped))
    sentence = f"{n_clipped} of 400 records were clipped to the bounds. Values at a bound: {n_clipped} in y, 1 in x."
    answer = api.post(path, content=content, headers=CSV)
    if status == 409:
        document = refused(answer, 409, "mostly_clipped")
        assert document["detail"].startswith(sentence)
        assert api.get(path).json()["n_records"] == 0
        answer = api.post(f"{path}?accept_clipping=true", content=content, headers=CSV)
    assert answer.status_code == 201
    assert answer.json()["n_clipped"] == n_clipped
    assert answer.json()["warnings"] == [sentence] * warns


def test_of_all_parts_count_together(api: Api) -> None:
    path = f"/datasets/{api.dataset(trust='central', out_of_bounds='clip')['id']}/records"

    def send(name: str, n_clipped: int, more: str = "") -> list[int]:
        values = rows(n_clipped, seed=ord(name))
        answers = [
            api.post(f"{path}?upload={name}&part=1{more}", content=csv(values[:210]), headers=CSV),
            api.post(f"{path}?upload={name}&part=2&last=true{more}", content=csv(values[210:]), headers=CSV),
        ]
        sentences.append(answers[1].json().get("warnings"))
        return [each.status_code for each in answers]

    sentences: list[list[str] | None] = []
    assert send("a", 205) == [201, 409]  # nearly all of the first part, and most of the whole
    assert send("a", 205, "&accept_clipping=true") == [201, 201]
    assert send("b", 190) == [201, 201]  # nearly all of the first part, and fewer than half of the whole
    assert sentences[1:] == [
        [f"{n} of 400 records were clipped to the bounds. Values at a bound: {n} in y, 1 in x."] for n in (205, 190)
    ]

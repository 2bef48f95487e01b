"""What is made by hand: datasets, rounds of their own, uploads of records; and forms that carry files."""

import pytest

from service.console.visits import MAX_FILE_BYTES, MAX_FORM_BYTES
from tests.service.api import Api
from tests.service.console import DATASET, ORIGIN, ROUND, UPLOAD, Console, multipart, once, words


@pytest.fixture
def console(api: Api) -> Console:
    """An admin's session."""
    return Console(api)


class TestADataset:
    def test_is_made_as_the_form_says(self, api: Api, console: Console) -> None:
        answer = console.post("/datasets", DATASET | {"min_reports": "7", "keep_reports": "true"})
        assert answer.status_code == 303
        made = api.get(f"/datasets/{answer.headers['location'].rpartition('/')[2]}").json()
        assert (made["name"], made["trust"], made["min_reports"], made["keep_reports"]) == ("made", "local", 7, True)
        assert made["features"] == [
            {"name": "x", "lower": 0.0, "upper": 1.0, "unit": ""},
            {"name": "y", "lower": -1.0, "upper": 1.0, "unit": "m"},
        ]
        assert api.get(f"/datasets/{made['id']}/budget").json()["granted"] == 3

    def test_is_central_with_what_belongs_to_that(self, api: Api, console: Console) -> None:
        form = DATASET | {
            "trust": "central", "delta": "1e-6", "user_feature": "who", "max_records_per_user": "3",
            "out_of_bounds": "refuse", "min_reports": "9",
        }  # fmt: skip
        made = api.get(f"/datasets/{console.post('/datasets', form).headers['location'].rpartition('/')[2]}").json()
        assert (made["trust"], made["user_feature"], made["max_records_per_user"]) == ("central", "who", 3)
        assert made["out_of_bounds"] == "refuse"

    def test_has_names_with_commas_quotes_and_64_features(self, api: Api, console: Console) -> None:
        lines = ['"a, b", 0, 1, "m, or so"', *(f"f{i},0,{i}" for i in range(1, 64))]
        answer = console.post("/datasets", DATASET | {"features": "\r\n".join(["", *lines, "  "])})
        made = api.get(f"/datasets/{answer.headers['location'].rpartition('/')[2]}").json()
        assert len(made["features"]) == 64
        assert made["features"][0] == {"name": "a, b", "lower": 0.0, "upper": 1.0, "unit": "m, or so"}

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"features": ""}, "at least 1 item"),
            ({"features": "x, 1, 0"}, "feature 1: lower must lie below upper"),
            ({"features": "x, 0, 1\ny, zero, 1"}, "feature 2 lower:"),
            ({"features": "x, 0, 1, m, more"}, "feature 1: a line is name, lower, upper, unit"),
            ({"features": "x, 0, 1\nx, 0, 2"}, "must differ"),
            ({"features": "\n".join(f"f{i},0,1" for i in range(65))}, "at most 64 items"),
            ({"epsilon": "99"}, "less than or equal to 32"),
            ({"epsilon": "nan"}, "number"),
            ({"name": ""}, "at least 1 character"),
            ({"trust": "both"}, "'local' or 'central'"),
            ({"min_reports": "-1"}, "greater than or equal to 1"),
            ({"trust": "central", "delta": "0.5"}, "less than or equal to 0.001"),
        ],
    )
    def test_that_cannot_be_keeps_what_was_typed_and_says_why(
        self, console: Console, change: dict[str, str], said: str
    ) -> None:
        answer = console.post("/datasets", DATASET | change)
        assert answer.status_code == 422
        assert said in words(answer)
        assert 'value="made"' in answer.text or change.get("name") == ""
        assert 'role="alert"' in answer.text

    def test_sent_twice_is_made_once(self, console: Console) -> None:
        form = DATASET | {"once": once(console.text("/datasets/new"))}
        assert len({console.post("/datasets", form).headers["location"] for _ in range(2)}) == 1


class TestARound:
    def test_says_what_it_spends_before_it_does_and_then_does(self, api: Api, console: Console) -> None:
        at = f"/datasets/{api.dataset()['id']}"
        review = console.post(f"{at}/rounds", ROUND | {"step": "review"})
        assert "This spends at most 0.5 of the ε 8 left" in words(review)
        assert api.get(f"{at}/budget").json()["posted"] == 0
        opened = console.post(f"{at}/rounds", ROUND | {"step": "submit", "once": once(review.text)})
        shown = api.get(f"/rounds/{opened.headers['location'].rpartition('/')[2]}").json()
        assert shown["spec"]["encoding"] == {"type": "grid", "cells": [4, 4]}
        assert 0 < api.get(f"{at}/budget").json()["posted"] <= 0.5
        back = console.post(f"{at}/rounds", ROUND | {"step": ""})
        assert 'value="0.5"' in back.text

    def test_under_shifts(self, api: Api, console: Console) -> None:
        at = f"/datasets/{api.dataset()['id']}/rounds"
        form = ROUND | {"step": "submit", "encoding": "shifted_grid", "shifts": "2", "collect_days": "0.5"}
        shown = api.get(console.post(at, form).headers["location"].removeprefix("/console")).json()
        assert shown["spec"]["encoding"] == {"type": "shifted_grid", "n_features": 2, "cells": 4, "shifts": 2}

    @pytest.mark.parametrize(
        ("change", "status", "said"),
        [
            ({"epsilon": "99", "step": "review"}, 422, "epsilon lies in"),
            ({"epsilon": "x", "step": "review"}, 422, "epsilon lies in"),
            ({"epsilon": "x"}, 422, "number"),
            ({"epsilon": "9"}, 409, "8 is free"),
            ({"target_reports": "none"}, 422, "integer"),
            ({"cells": "0"}, 422, "greater than or equal to 1"),
            ({"cells": "100000"}, 422, ""),
            ({"mechanism": "magic"}, 422, "'grr'"),
            ({"collect_days": "-1"}, 422, "greater than or equal to 1"),
        ],
    )
    def test_that_cannot_be_says_why(
        self, api: Api, console: Console, change: dict[str, str], status: int, said: str
    ) -> None:
        answer = console.post(f"/datasets/{api.dataset()['id']}/rounds", {"step": "submit"} | ROUND | change)
        assert answer.status_code == status
        assert said in words(answer)
        assert 'role="alert"' in answer.text

    def test_beyond_what_is_left_says_so_before_it_is_tried(self, api: Api, console: Console) -> None:
        at = f"/datasets/{api.dataset()['id']}/rounds"
        assert "8 is left: it will be refused" in words(console.post(at, ROUND | {"step": "review", "epsilon": "9"}))

    def test_of_a_central_dataset_is_refused(self, api: Api, console: Console) -> None:
        at = f"/datasets/{api.dataset(trust='central')['id']}/rounds"
        assert console.post(at, ROUND | {"step": "submit"}).status_code == 409


class TestAnUpload:
    @pytest.fixture
    def at(self, api: Api) -> str:
        """Where records of a central dataset go."""
        return f"/datasets/{api.dataset(trust='central')['id']}/records"

    def test_is_stored_and_counted(self, api: Api, console: Console, at: str) -> None:
        answer = console.upload(at, **UPLOAD)
        assert answer.status_code == 200
        assert "2 records are stored, encrypted; 1 of them had a value moved to a bound" in words(answer)
        assert "0.25" not in answer.text
        assert api.get(at).json()["n_records"] == 2
        assert "Records 2" in words(console.get(at))

    def test_sent_twice_is_stored_once(self, api: Api, console: Console, at: str) -> None:
        name = once(console.text(at))
        for _ in range(2):
            assert console.upload(at, **UPLOAD, once=name).status_code == 200
        assert api.get(at).json()["n_records"] == 2

    @pytest.mark.parametrize(
        ("name", "content", "status", "said"),
        [
            ("people.csv", b"x,y\n0.5,secret\n", 422, "y is not a finite number"),
            ("people.csv", b"x\n0.5\n", 422, "column y is missing"),
            ("people.csv", b"", 422, ""),
            ("people.txt", b"x,y\n1,1\n", 422, "name ends in .csv"),
            ("people", b"x,y\n1,1\n", 422, "name ends in .csv"),
            ("", b"", 422, "a file is needed"),
            ("people.npy", b"x,y\n1,1\n", 400, ""),
            ("people.arrow", bytes(range(100)), 400, ""),
            ("people.json", b"{", 400, ""),
        ],
    )
    def test_that_cannot_be_stores_nothing_and_repeats_nothing(
        self, api: Api, console: Console, at: str, name: str, content: bytes, status: int, said: str
    ) -> None:
        answer = console.upload(at, name=name, content=content)
        assert answer.status_code in (status, 400, 422)
        assert said in words(answer)
        assert "secret" not in answer.text
        assert 'role="alert"' in answer.text
        assert api.get(at).json()["n_records"] == 0

    def test_of_a_local_dataset_is_refused(self, api: Api, console: Console) -> None:
        at = f"/datasets/{api.dataset()['id']}/records"
        assert "nobody uploads records" in words(console.get(at))
        assert console.upload(at, **UPLOAD).status_code == 409

    def test_of_another_dataset_s_key_leads_nowhere(self, api: Api, other: Api, at: str) -> None:
        assert Console(other).upload(at, **UPLOAD).status_code == 404


class TestAFormWithAFile:
    def test_is_bounded(self, api: Api, console: Console) -> None:
        at = f"/datasets/{api.dataset(trust='central')['id']}/records"
        answer = console.upload(at, "big.csv", b"x" * (MAX_FILE_BYTES + MAX_FORM_BYTES))
        assert answer.status_code == 413

    def test_is_taken_by_its_own_page_alone(self, api: Api, console: Console) -> None:
        body, media_type = multipart({"csrf": (None, console.csrf.encode()), "name": (None, b"k")})
        headers = {"origin": ORIGIN, "cookie": console.cookie, "content-type": media_type}
        assert console.http.post("/console/keys", content=body, headers=headers).status_code == 400

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda body: body[:-6],
            lambda body: body[3:],
            lambda body: b"",
            lambda body: body.replace(b'name="csrf"', b"x=y"),
            lambda body: body.replace(b"\r\n\r\n", b"\r\n"),
            lambda body: body.replace(b'name="csrf"', b'name="\xff"'),
            lambda body: body.replace(b'name="file"', b'name="csrf"'),
            lambda body: body * 2,
        ],
    )
    def test_that_is_broken_is_a_refusal(self, api: Api, console: Console, spoil: object) -> None:
        at = f"/datasets/{api.dataset(trust='central')['id']}/records"
        body, media_type = multipart({"csrf": (None, console.csrf.encode()), "file": ("a.csv", b"x,y\n1,1\n")})
        headers = {"origin": ORIGIN, "cookie": console.cookie, "content-type": media_type}
        answer = console.http.post(f"/console{at}", content=spoil(body), headers=headers)  # type: ignore[operator]
        assert 400 <= answer.status_code < 500
        assert api.get(at).json()["n_records"] == 0

    def test_without_the_session_s_word_is_refused(self, api: Api, console: Console) -> None:
        at = f"/datasets/{api.dataset(trust='central')['id']}/records"
        body, media_type = multipart({"file": ("a.csv", b"x,y\n1,1\n")})
        headers = {"origin": ORIGIN, "cookie": console.cookie, "content-type": media_type}
        assert console.http.post(f"/console{at}", content=body, headers=headers).status_code == 403

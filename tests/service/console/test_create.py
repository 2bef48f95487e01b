"""Tests of the forms for datasets, standalone rounds and record uploads."""

import pytest

from service.console.request import MAX_FILE_BYTES, MAX_FORM_BYTES
from sfumato.privacy.shuffling import TRUST_STATEMENT
from sfumato.settings import all_settings
from tests.service.api import FEATURES, SQLITE_ONLY, Api
from tests.service.console.session import DATASET, ROUND, UPLOAD, Console, multipart, once, words
from tests.service.shuffler import SHUFFLER


@SQLITE_ONLY
class TestADataset:
    def test_is_created_from_the_form(self, api: Api, console: Console) -> None:
        created = api.get(console.location("/datasets", DATASET | {"min_reports": "7", "keep_reports": "true"})).json()
        expected = {"name": "made", "trust": "local", "min_reports": 7, "keep_reports": True, "features": FEATURES}
        assert created | expected == created
        assert api.budget(created["id"])["granted"] == 3

    def test_is_central_with_its_options(self, api: Api, console: Console) -> None:
        form = DATASET | {
            "trust": "central", "delta": "1e-6", "user_feature": "who", "max_records_per_user": "3",
            "out_of_bounds": "refuse", "min_reports": "9", "source": "ward-1", "fold_user_case": "true",
        }  # fmt: skip
        created = api.get(console.location("/datasets", form)).json()
        expected = {"trust": "central", "user_feature": "who", "max_records_per_user": 3, "out_of_bounds": "refuse"}
        expected |= {"source": "ward-1", "fold_user_case": True}
        assert created | expected == created

    def test_has_each_declared_setting_in_the_form_and_on_the_page_of_settings(
        self, api: Api, console: Console
    ) -> None:
        form = console.text("/datasets/new")
        simple = [each for each in all_settings().values() if not each.parameter.is_object]
        assert [each.name for each in simple if f'name="{each.name}"' not in form] == []
        for trust in ("local", "central"):
            page = words(console.get(f"/datasets/{api.dataset(trust=trust)['id']}/settings"))
            for each in simple:
                assert (each.parameter.label in page) == (trust in each.trusts), each.name

    def test_is_shuffled_after_the_form_states_what_it_promises(self, api: Api, console: Console) -> None:
        assert TRUST_STATEMENT in words(console.get("/datasets/new"))
        form = DATASET | {"trust": "shuffled", "shuffled_epsilon": "1.5", "shuffled_delta": "1e-5"}
        form |= {f"shuffler_{name}": value for name, value in SHUFFLER.items()}
        path = console.location("/datasets", form)
        created = api.get(path).json()
        assert (created["trust"], created["shuffler"]) == ("shuffled", SHUFFLER)
        assert "ε 1.5 of 1.5, δ 1e-5 of 1e-5" in words(console.get(path)).replace("1e-05", "1e-5")
        assert "ε 1.5, δ 1e-05" in words(console.get(f"{path}/ledger"))  # the grant
        gaussian = console.location("/datasets", form | {"accounting": "gaussian"})
        assert api.get(gaussian).json()["accounting"] == "gaussian"
        shown = words(console.get(gaussian))
        assert "Remaining towards the service 100.0 % of ε 1.5, δ 1e-05" in shown
        assert "Certified towards the service ε 0, δ 1e-05" in shown
        refused = console.post("/datasets", form | {"shuffler_url": "shuffler", "shuffled_delta": "1"})
        assert refused.status_code == 422
        for name in ("shuffler_url", "shuffled_delta"):
            assert f'id="f-{name}-wrong"' in refused.text

    def test_accepts_commas_quotes_and_64_features(self, api: Api, console: Console) -> None:
        lines = ['"a, b", 0, 1, "m, or so"', *(f"f{i},0,{i}" for i in range(1, 64))]
        path = console.location("/datasets", DATASET | {"features": "\r\n".join(["", *lines, "  "])})
        features = api.get(path).json()["features"]
        assert len(features) == 64
        assert features[0] == {"name": "a, b", "lower": 0.0, "upper": 1.0, "unit": "m, or so"}
        assert console.text(f"{path}/settings").count("<bdi>f") == 63

    def test_with_a_circle(self, api: Api, console: Console) -> None:
        path = console.location("/datasets", DATASET | {"features": "hour, 0, 24, h, periodic\nx, 0, 1"})
        assert [each.get("periodic", False) for each in api.get(path).json()["features"]] == [True, False]
        assert "hour 0 24 h circle x 0 1 line" in words(console.get(f"{path}/settings"))

    def test_with_a_place(self, api: Api, console: Console) -> None:
        lines = "lat, 58, 71.2, degrees, latitude\nlon, 5, 31.2, degrees, longitude"
        path = console.location("/datasets", DATASET | {"features": lines})
        assert [each["coordinate"] for each in api.get(path).json()["features"]] == ["latitude", "longitude"]
        assert "lat 58 71.2 degrees latitude lon 5 31.2 degrees longitude" in words(console.get(f"{path}/settings"))

    def test_that_is_invalid_keeps_the_input_and_shows_errors(self, console: Console) -> None:
        for field, value, message in (
            ("features", "", "at least 1 item"),
            ("features", "x, 1, 0", "feature 1: lower must be less than upper"),
            ("features", "x, 0, 1\ny, zero, 1", "feature 2 lower:"),
            ("features", "x, 0, 1, m, more", "feature 1: a line must be: name, lower, upper, unit"),
            ("features", "x, 0, 1\nx, 0, 2", "must be unique"),
            ("features", "\n".join(f"f{i},0,1" for i in range(65)), "at most 64 features"),
            ("dimensions", "1537", "less than or equal to 1536"),
            ("dimensions", "8", "an embedding needs the trust model central"),
            ("epsilon", "99", "less than or equal to 32"),
            ("epsilon", "nan", "number"),
            ("name", "", "at least 1 character"),
            ("trust", "both", "'local', 'shuffled' or 'central'"),
            ("min_reports", "-1", "greater than or equal to 1"),
        ):
            response = console.post("/datasets", DATASET | {field: value})
            assert response.status_code == 422, (field, value)
            assert message in words(response)
            assert 'value="made"' in response.text or field == "name"
            assert 'role="alert"' in response.text
        response = console.post("/datasets", DATASET | {"trust": "central", "delta": "0.5"})
        assert "less than or equal to 0.001" in words(response)
        response = console.post(
            "/datasets", DATASET | {"trust": "central", "user_feature": "east", "features": "east,0,9"}
        )
        assert 'id="f-user_feature-wrong" role="alert">user_feature must not be' in response.text


@SQLITE_ONLY
class TestARound:
    def test_shows_its_cost_before_it_opens(self, api: Api, console: Console) -> None:
        dataset_id = api.dataset()["id"]
        at = f"/datasets/{dataset_id}/rounds"
        review = console.post(at, ROUND | {"step": "review"})
        assert "This round spends at most ε 0.5 of the remaining ε 8" in words(review)
        assert api.budget(dataset_id)["charged"] == 0
        opened = console.location(at, ROUND | {"step": "submit", "once": once(review.text)})
        assert api.get(opened).json()["spec"]["encoding"] == {"type": "grid", "cells": [4, 4]}
        assert 0 < api.budget(dataset_id)["charged"] <= 0.5
        assert 'value="0.5"' in console.post(at, ROUND | {"step": ""}).text
        review = console.post(at, ROUND | {"step": "review", "epsilon": "9"})
        assert "It will be rejected" in words(review)

    def test_under_shifts(self, api: Api, console: Console) -> None:
        at = f"/datasets/{api.dataset()['id']}/rounds"
        form = ROUND | {"step": "submit", "encoding": "shifted_grid", "shifts": "2", "collect_days": "0.5"}
        spec = api.get(console.location(at, form)).json()["spec"]
        assert spec["encoding"] == {"type": "shifted_grid", "n_features": 2, "cells": 4, "shifts": 2}

    def test_that_is_invalid_shows_errors(self, api: Api, console: Console) -> None:
        at = f"/datasets/{api.dataset()['id']}/rounds"
        for change, status, message in (
            ({"epsilon": "99", "step": "review"}, 422, "epsilon must lie in"),
            ({"epsilon": "x", "step": "review"}, 422, "epsilon must lie in"),
            ({"epsilon": "x"}, 422, "number"),
            ({"epsilon": "9"}, 409, "8 is free"),
            ({"target_reports": "none"}, 422, "integer"),
            ({"cells": "0"}, 422, "greater than or equal to 1"),
            ({"cells": "100000"}, 422, ""),
            ({"mechanism": "magic"}, 422, "'grr'"),
            ({"collect_days": "-1"}, 422, "greater than or equal to 1"),
        ):
            response = console.post(at, {"step": "submit"} | ROUND | change)
            assert response.status_code == status, change
            assert message in words(response)
            assert 'role="alert"' in response.text

    def test_shows_each_error_beside_its_field(self, api: Api, console: Console) -> None:
        at = f"/datasets/{api.dataset()['id']}/rounds"
        for encoding in ("grid", "shifted_grid"):
            for name, value in (("cells", "0"), ("cells", "2.5"), ("cells", "9" * 400), ("collect_days", "-1")):
                text = console.post(at, ROUND | {"step": "submit", "encoding": encoding, name: value}).text
                assert f'id="f-{name}-wrong" role="alert">the value must' in text, (encoding, name, value)
                assert 'class="problem"' not in text


@SQLITE_ONLY
class TestAnUpload:
    @pytest.fixture
    def at(self, api: Api) -> str:
        """Return the path of the records page of a central dataset."""
        return f"/datasets/{api.dataset(trust='central')['id']}/records"

    def test_is_stored_once_and_counted(self, api: Api, console: Console, at: str) -> None:
        name = once(console.text(at))
        for _ in range(2):
            response = console.upload(at, **UPLOAD, once=name)
            assert response.status_code == 200
        assert "2 records are stored, encrypted. Records with a clipped value: 1" in words(response)
        assert "Too few records: a job over two clusters at the whole ε of the dataset needs at least 5 more." in words(
            response
        )
        assert "0.25" not in response.text
        assert api.get(at).json()["n_records"] == 2
        assert "Records 2" in words(console.get(at))

    def test_that_is_invalid_stores_nothing_and_repeats_no_value(self, api: Api, console: Console, at: str) -> None:
        for name, content, status, message in (
            ("people.csv", b"x,y\n0.5,secret\n", 422, "y must be a finite number"),
            ("people.csv", b"x\n0.5\n", 422, "column y is missing"),
            ("people.csv", b"", 422, ""),
            ("people.txt", b"x,y\n1,1\n", 422, "one of the extensions .csv"),
            ("people", b"x,y\n1,1\n", 422, "one of the extensions .csv"),
            ("", b"", 422, "choose a file"),
            ("people.npy", b"x,y\n1,1\n", 400, ""),
            ("people.arrow", bytes(range(100)), 400, ""),
            ("people.json", b"{", 400, ""),
            ("big.csv", b"x" * (MAX_FILE_BYTES + MAX_FORM_BYTES), 413, ""),
        ):
            response = console.upload(at, name=name, content=content)
            assert response.status_code in (status, 422), name
            assert message in words(response)
            assert "secret" not in response.text
            assert 'role="alert"' in response.text
        assert api.get(at).json()["n_records"] == 0

    def test_of_a_local_dataset_is_rejected(self, api: Api, console: Console) -> None:
        at = f"/datasets/{api.dataset()['id']}/records"
        assert "records cannot be uploaded" in words(console.get(at))
        assert console.upload(at, **UPLOAD).status_code == 409

    def test_is_accepted_by_its_own_path_and_with_the_form_token_only(
        self, console: Console, at: str, api: Api
    ) -> None:
        body, media_type = multipart({"csrf": (None, console.csrf.encode()), "name": (None, b"k")})
        assert console.send("/keys", body, media_type).status_code == 400
        body, media_type = multipart({"file": ("a.csv", b"x,y\n1,1\n")})
        assert console.send(at, body, media_type).status_code == 403

    def test_that_is_malformed_is_rejected(self, api: Api, console: Console, at: str) -> None:
        body, media_type = multipart({"csrf": (None, console.csrf.encode()), "file": ("a.csv", b"x,y\n1,1\n")})
        for malformed in (
            body[:-6],
            body[3:],
            b"",
            body.replace(b'name="csrf"', b"x=y"),
            body.replace(b"\r\n\r\n", b"\r\n"),
            body.replace(b'name="csrf"', b'name="\xff"'),
            body.replace(b'name="file"', b'name="csrf"'),
            body * 2,
        ):
            assert 400 <= console.send(at, malformed, media_type).status_code < 500
        assert api.get(at).json()["n_records"] == 0

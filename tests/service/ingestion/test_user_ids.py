"""User ids: variants that look the same are one user, and invisible characters are refused."""

import io
import json
import unicodedata

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given, settings

from service.ingestion.record_validation import InvalidUserId, normalise_user_id
from tests.service.api import SQLITE_ONLY, Api, refused
from tests.service.ingestion.test_records import AGAIN, arrow, count, send

FORMS = ("NFC", "NFD", "NFKC", "NFKD")
SPACES = st.text(" \t\n\r\v\f\u00a0\u2003\u3000\u2028\x85", max_size=3)
LETTERS = "aZé7ß\u0130\u0131σςΣﬁÅÅ\u1e9b\u0323\u0344가각ヴﾊﾞ０Ａ²Ⅳ-_@. \u00a0"
IDS = st.text(LETTERS, min_size=1, max_size=12)
INVISIBLE = "\0\x1f\x7f\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u180e\u200b\u200c\u200d\u200e\u202e\u2060\u2066\u2800"
INVISIBLE += "\u3164\ufe0f\ufeff\uffa0\ufff9\ufdd0\ue000\ud800\U000e0001\U000e0100\U0001d173\U000e01ef\U0003fffe"


def wide(text: str) -> str:
    """Return the text with the full-width forms of its ASCII characters."""
    return "".join(chr(ord(each) + 0xFEE0) if "!" <= each <= "~" else each for each in text)


def accepted(user: str | int, *, fold_case: bool) -> bytes | None:
    try:
        return normalise_user_id(user, fold_case=fold_case)
    except InvalidUserId:
        return None


class TestNormalisation:
    @given(IDS, st.booleans(), SPACES, SPACES, st.sampled_from(FORMS), st.booleans())
    @settings(max_examples=100, deadline=None, database=None)
    def test_of_variants_gives_one_id(
        self, user: str, fold_case: bool, before: str, after: str, form: str, is_wide: bool
    ) -> None:
        stored = accepted(user, fold_case=fold_case)
        variant = unicodedata.normalize(form, wide(user) if is_wide else user)
        assert accepted(before + variant + after, fold_case=fold_case) == stored
        assume(stored is not None)
        assert accepted(stored.decode(), fold_case=fold_case) == stored

    @given(st.text(LETTERS.replace(" ", "").replace("\u00a0", ""), min_size=1, max_size=6), st.sampled_from(INVISIBLE))
    @settings(max_examples=50, deadline=None, database=None)
    def test_refuses_an_invisible_character_at_any_inner_place(self, user: str, character: str) -> None:
        for at in range(1, len(user)):
            with pytest.raises(InvalidUserId) as refused_id:
                normalise_user_id(user[:at] + character + user[at:])
            assert str(refused_id.value) == "must not contain control, zero-width or unassigned characters"

    @pytest.mark.parametrize("character", ["\u200b", "\ufeff", "\u2060", "\u00ad"])
    def test_refuses_an_invisible_character_at_the_ends(self, character: str) -> None:
        for user in (character + "anna", "anna" + character, character):
            assert accepted(user, fold_case=False) is None

    @pytest.mark.parametrize(
        ("one", "other"),
        [("Anna", "aNNA"), ("STRASSE", "straße"), ("ΣΊΣΥΦΟΣ", "σίσυφος"), ("É", "e\u0301"), ("Ａ", "a")],
    )
    def test_folds_case_only_if_declared(self, one: str, other: str) -> None:
        assert accepted(one, fold_case=True) == accepted(other, fold_case=True) is not None
        assert accepted(one, fold_case=False) != accepted(other, fold_case=False)

    def test_bounds_the_length_before_and_after(self) -> None:
        assert normalise_user_id(10**63) == b"1" + b"0" * 63
        assert normalise_user_id("ａ" * 64) == b"a" * 64
        for user in (10**64, -(10**5000), "a" * 65, "é" * 33, "\ufdfa" * 4, "a" * 10**6, "", " \t", "\u3000"):
            assert accepted(user, fold_case=True) is None


@SQLITE_ONLY
class TestUpload:
    VARIANTS = ("José", "Jose\u0301", " José ", "\u00a0Ｊｏｓé")

    def test_counts_variants_as_one_user_in_every_format(self, api: Api) -> None:
        dataset_id = api.dataset(trust="central", user_feature="who", max_records_per_user=2)["id"]
        rows = [[user, 0.5, 0.5] for user in self.VARIANTS]
        bodies = (
            ("application/json", json.dumps({"columns": ["who", "x", "y"], "rows": rows}).encode()),
            ("text/csv", ("who,x,y\n" + "".join(f"{user},0.5,0.5\n" for user in self.VARIANTS)).encode()),
            ("application/vnd.apache.arrow.stream", arrow(who=self.VARIANTS, x=[0.5] * 4, y=[0.5] * 4)),
        )
        for form in bodies:
            assert send(api, dataset_id, form, query=AGAIN).status_code == 201
        counts = count(api, dataset_id)
        assert (counts["n_records"], counts["n_users"], counts["n_used"]) == (12, 1, 2)

    def test_folds_case_if_the_dataset_declares_it(self, api: Api) -> None:
        body = ("text/csv", b"who,x,y\nanna,0.5,0.5\nANNA,0.5,0.5\n")
        for fold, n_users in ((False, 2), (True, 1)):
            dataset = api.dataset(trust="central", user_feature="who", fold_user_case=fold)
            assert dataset["fold_user_case"] is fold
            assert send(api, dataset["id"], body).status_code == 201
            assert count(api, dataset["id"])["n_users"] == n_users

    def test_names_the_record_of_a_refused_id_and_not_the_id(self, api: Api) -> None:
        dataset_id = api.dataset(trust="central", user_feature="who")["id"]
        text = "who,x,y\nanna,0.5,0.5\nse\u200bcret,0.5,0.5\n".encode()
        rows = {"columns": ["who", "x", "y"], "rows": [["anna", 0.5, 0.5], ["se\u202ecret", 0.5, 0.5]]}
        table = arrow(who=["anna", "se\u00adcret"], x=[0.5] * 2, y=[0.5] * 2)
        for form in (
            ("text/csv", text),
            ("application/json", json.dumps(rows).encode()),
            ("application/vnd.apache.arrow.stream", table),
        ):
            problem = refused(send(api, dataset_id, form), 422, "validation_failed")
            assert "record 2: who must not contain control, zero-width" in problem["detail"]
            assert "cret" not in json.dumps(problem)
        assert count(api, dataset_id)["n_records"] == 0

    @pytest.mark.parametrize("marker", ["\\N", "(null)", " undefined ", "#N/A N/A", "1.#QNAN", "#VALUE!", " NaN", "."])
    def test_refuses_a_missing_user_in_every_format(self, api: Api, marker: str) -> None:
        dataset_id = api.dataset(trust="central", user_feature="who")["id"]
        rows = {"columns": ["who", "x", "y"], "rows": [["anna", 0.5, 0.5], [marker, 0.5, 0.5]]}
        for form in (
            ("text/csv", f"who,x,y\nanna,0.5,0.5\n{marker},0.5,0.5\n".encode()),
            ("application/json", json.dumps(rows).encode()),
            ("application/vnd.apache.arrow.stream", arrow(who=["anna", marker], x=[0.5] * 2, y=[0.5] * 2)),
        ):
            problem = refused(send(api, dataset_id, form), 422, "validation_failed")
            assert "record 2: who is missing" in problem["detail"]

    def test_refuses_a_missing_number_in_every_format(self, api: Api) -> None:
        dataset_id = api.dataset(trust="central")["id"]
        array = io.BytesIO()
        np.save(array, [[0.5, 0.5], [0.5, np.nan]])
        for form in (
            *(("text/csv", f"x,y\n1,1\n1,{cell}\n".encode()) for cell in ("", "\\N", "(null)", "1.#IND", -(2**63))),
            *(
                ("application/json", f'{{"columns":["x","y"],"rows":[[1,1],[1,{cell}]]}}'.encode())
                for cell in ("null", '"NA"')
            ),
            ("application/vnd.apache.arrow.stream", arrow(x=[0.5] * 2, y=[1, -(2**63)])),
            ("application/x-npy", array.getvalue()),
        ):
            problem = refused(send(api, dataset_id, form), 422, "validation_failed")
            assert "record 2: y must be a finite number" in problem["detail"]

    def test_a_dataset_without_users_cannot_fold_case(self, api: Api) -> None:
        features = [{"name": "x", "lower": 0, "upper": 1}]
        body = {"name": "d", "trust": "central", "features": features, "epsilon": 1, "fold_user_case": True}
        refused(api.post("/datasets", body), 422, "validation_failed")

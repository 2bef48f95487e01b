"""The deletion of one person's records through the API."""

import pytest

from tests.service.api import Api, refused

CSV = {"Content-Type": "text/csv"}


@pytest.fixture
def dataset_id(api: Api) -> str:
    made = api.dataset(trust="central", user_feature="who", fold_user_case=True, max_records_per_user=5)
    rows = "x,y,who\n0.1,0.2,Ann\n0.3,0.4,bob\n0.5,0.6,ANN\n0.7,0.8,17\n"
    assert api.post(f"/datasets/{made['id']}/records", content=rows, headers=CSV).status_code == 201
    return str(made["id"])


class TestDeletion:
    def test_removes_one_person_under_every_spelling(self, api: Api, dataset_id: str) -> None:
        path = f"/datasets/{dataset_id}/records"
        answers = [api.request("DELETE", path, params={"user": user}) for user in (" ann ", "0017", "nobody")]
        assert {(each.status_code, each.content, frozenset(each.headers)) for each in answers} == {
            (204, b"", frozenset(answers[0].headers))
        }
        counts = api.get(path).json()
        assert (counts["n_records"], counts["n_users"]) == (1, 1)
        events = api.list_all("/audit", limit=20, action="person.deleted")
        assert [(each["subject_id"], each["details"]) for each in events] == [(dataset_id, {})] * 3
        assert api.budget(dataset_id)["charged_nano"] == 0

    def test_of_all_needs_an_explicit_parameter(self, api: Api, dataset_id: str) -> None:
        path = f"/datasets/{dataset_id}/records"
        for query in ("", "?all=false", "?all=true&user=ann", "?user=", "?users=ann", "?user=nan", "?user=7.0"):
            refused(api.delete(path + query), 422, "validation_failed")
        assert api.get(path).json()["n_records"] == 4
        assert api.delete(f"{path}?all=true").status_code == 204
        assert api.get(path).json()["n_records"] == 0

    def test_needs_a_dataset_with_users_and_the_scope_for_records(self, api: Api, dataset_id: str) -> None:
        other = api.dataset(trust="central")["id"]
        refused(api.delete(f"/datasets/{other}/records?user=a"), 409, "conflict")
        refused(api.key("jobs").delete(f"/datasets/{dataset_id}/records?user=ann"), 403, "forbidden")

"""The scope `grants`, the source of a dataset, and the operator's ceilings over HTTP and on the command line."""

from collections.abc import Iterator
from decimal import Decimal

import pytest
from pydantic import ValidationError

from models.database.engine import Database
from models.identity import keys, tenants
from models.tables.identity import Scope
from models.tables.ledger import Ceiling
from runtime.settings import Settings
from sfumato.privacy.accounting import NANO
from tests.models.world import World
from tests.service.api import FEATURES, GRID, SQLITE_KIND_ONLY, SQLITE_ONLY, UNIFORM, Api, refused
from tests.service.commands import run_command

BODY = {"name": "d", "trust": "local", "features": FEATURES, "epsilon": 1, "min_reports": 1}


def set_ceilings(api: Api, **quotas: str) -> None:
    with api.database.transaction() as session:
        changes = {name: Decimal(value) for name, value in quotas.items()}
        tenants.set_quotas(session, api.caller().tenant_id, changes, now=api.database.clock())


@SQLITE_ONLY
class TestScope:
    def test_only_grants_permits_a_grant_and_a_source(self, api: Api) -> None:
        keeper, officer = api.key("datasets"), api.key("grants")
        dataset = keeper.dataset()
        path = f"/datasets/{dataset['id']}"
        for change in (
            keeper.post(f"{path}/grants", {"epsilon": 1}),
            keeper.patch(path, {"source": "ward-1"}),
            keeper.patch(path, {"source": "ward-1", "name": "n"}),
            keeper.post("/datasets", BODY | {"source": "ward-1"}),
            officer.patch(path, {"source": "ward-1", "name": "n"}),
            officer.patch(path, {"name": "n"}),
            officer.post("/datasets", BODY),
        ):
            refused(change, 403, "forbidden")
        assert dataset["source"] is None

        officer.made(f"{path}/grants", {"epsilon": 1})
        changed = officer.patch(path, {"source": "ward-1"})
        assert changed.json() == dataset | {"source": "ward-1"} == officer.get(path).json()
        assert officer.budget(dataset["id"])["granted"] == 9
        assert api.key("datasets", "grants").dataset(source="ward-1")["source"] == "ward-1"

    @pytest.mark.parametrize("label", ["", " a", "ä", "a" * 65, 1])
    def test_malformed_sources_are_refused(self, api: Api, label: object) -> None:
        refused(api.post("/datasets", BODY | {"source": label}), 422, "validation_failed")
        refused(api.patch(f"/datasets/{api.dataset()['id']}", {"source": label}), 422, "validation_failed")


class TestCeilings:
    def test_of_a_dataset_limits_creation_and_grants(self, api: Api) -> None:
        set_ceilings(api, max_dataset_epsilon="2.5", max_dataset_delta="1e-6")
        keeper = api.key("datasets")
        problem = refused(keeper.post("/datasets", BODY | {"epsilon": 3}), 409, "budget_exhausted")
        numbers = {"ceiling": "dataset", "short": "epsilon", "limit": 2.5, "spent": 0, "requested": 3}
        assert problem.items() >= numbers.items()
        dataset_id = keeper.made("/datasets", BODY | {"trust": "central", "epsilon": 2})["id"]
        problem = refused(api.post(f"/datasets/{dataset_id}/grants", {"epsilon": 0.6}), 409, "budget_exhausted")
        assert problem.items() >= (numbers | {"spent": 2, "requested": 0.6}).items()
        problem = refused(
            api.post(f"/datasets/{dataset_id}/grants", {"epsilon": 0, "delta": 2e-6}), 409, "budget_exhausted"
        )
        assert (problem["short"], problem["limit"], problem["requested"]) == ("delta", 1e-6, 2e-6)
        api.made(f"/datasets/{dataset_id}/grants", {"epsilon": 0.5, "delta": 1e-6})

    def test_of_a_source_withstands_a_recreated_dataset(self, api: Api) -> None:
        set_ceilings(api, max_source_epsilon="2")
        keeper = api.key("datasets", "jobs")
        round_body = {"encoding": GRID, "mechanism": "grr", "epsilon": 1, "target_reports": 10}
        for _ in range(2):  # opens rounds until the source is exhausted, and deletes the evidence
            dataset_id = keeper.dataset()["id"]
            keeper.made(f"/datasets/{dataset_id}/rounds", round_body)
            assert keeper.delete(f"/datasets/{dataset_id}").status_code == 204
        dataset_id = keeper.dataset()["id"]
        job = {"dataset_id": dataset_id, "algorithm": UNIFORM, "target_reports": 1000}
        for path, body in ((f"/datasets/{dataset_id}/rounds", round_body), ("/jobs", job)):
            problem = refused(keeper.post(path, body), 409, "budget_exhausted")
            assert (problem["ceiling"], problem["limit"]) == ("source", 2)
            assert 1.99 < problem["spent"] <= 2
        api.patch(f"/datasets/{dataset_id}", {"source": "ward-2"})
        assert keeper.post("/jobs", job).status_code == 202

    @SQLITE_ONLY
    def test_default_to_the_settings_and_are_shown(self, api: Api) -> None:
        names = [f"max_{of}_{amount}" for of in ("dataset", "source") for amount in ("epsilon", "delta")]
        assert [api.get("/limits").json()[name] for name in names] == [None] * 4
        set_ceilings(api, max_source_epsilon="0.000000001", max_dataset_delta="0")
        assert [api.get("/limits").json()[name] for name in names] == [None, 0, 1e-9, None]

    @SQLITE_ONLY
    def test_of_the_settings_apply_without_a_quota(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SFUMATO_MAX_DATASET_EPSILON", "8.5")
        monkeypatch.setenv("SFUMATO_MAX_SOURCE_DELTA", "1e-6")
        set_ceilings(api, max_source_epsilon="3")
        with api.database.reading() as session:
            found = tenants.limits(session, api.caller().tenant_id, Settings())
        assert (found.dataset_ceiling, found.source_ceiling) == (Ceiling(8_500_000_000), Ceiling(3 * NANO, 10**12))
        for wrong in ("-1", "0.0000000001", "nan", "2000000"):
            with pytest.raises(ValidationError):
                Settings(max_dataset_epsilon=wrong)  # type: ignore[arg-type]


@SQLITE_KIND_ONLY
class TestCommands:
    @pytest.fixture
    def world(self, database_url: str, no_settings: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
        monkeypatch.setenv("SFUMATO_DATABASE_URL", database_url)
        opened = Database(database_url)
        yield World(opened)
        opened.close()

    def test_operator_grants_above_the_ceiling_and_sets_sources(self, world: World) -> None:
        first, second = world.new_dataset(epsilon_nano=NANO), world.new_dataset(epsilon_nano=NANO)
        run_command("tenant", "set-quota", "tenant", "max_dataset_epsilon=1")
        granted = run_command("ledger", "grant", first.id, "0.5").stdout
        assert granted == f"{first.id}: granted epsilon 1.5, delta 0 in total\n"
        world.submit(first)
        run_command("ledger", "set-source", first.id, "ward-1")
        spent = run_command("ledger", "set-source", second.id, "ward-1").stdout
        assert spent == "ward-1: charged or reserved epsilon 1, delta 0\n"
        for arguments in (
            ("grant", "ds_" + "0" * 26, "1"),
            ("grant", first.id, "33"),
            ("grant", first.id, "1", "--delta", "1e-6"),
            ("set-source", first.id, "ward 1"),
        ):
            run_command("ledger", *arguments, status=1)

    def test_operator_sets_ceilings_of_a_tenant(self, world: World) -> None:
        set_quota = ("tenant", "set-quota", "tenant")
        shown = run_command(*set_quota, "max_source_epsilon=8.50", "max_source_delta=1e-6", "max_datasets=30").stdout
        assert shown == "tenant: max_datasets=30 max_source_epsilon=8.5 max_source_delta=0.000001\n"
        for quota, message in (
            ("max_source_epsilon=0.0000000001", "multiple of 1e-09 from 0 to 1e+06"),
            ("max_source_delta=0.01", "multiple of 1e-18 from 0 to 0.001"),
            ("max_datasets=1.5", "an integer from 1"),
            ("max_source_epsilon=nan", "write a quota as"),
        ):
            assert message in run_command(*set_quota, quota, status=1).output
        assert run_command(*set_quota, "max_source_epsilon=default", "max_source_delta=default").stdout == (
            "tenant: max_datasets=30\n"
        )

    def test_operator_creates_a_key_for_grants(self, world: World) -> None:
        secret = run_command("keys", "create", "officer", "--scope", "grants", "--tenant", "tenant").stdout.strip()
        with world.database.reading() as session:
            caller = keys.authenticate(session, keys.hash_secret(secret), now=world.now)
        assert caller is not None
        assert caller.scopes == {Scope.GRANTS}

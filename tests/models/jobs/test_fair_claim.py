"""Claims serve tenants in turns: no tenant waits for the jobs of another, and quotas are never exceeded."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, func, select

from models.database.engine import Database
from models.errors import LimitExceeded, NotFound
from models.identity.caller import Caller
from models.identity.tenants import LARGEST, limits, set_quotas
from models.jobs import claims
from models.jobs.claims import Claim
from models.tables.identity import TenantQuota
from models.tables.jobs import Job, JobState, Result
from runtime.settings import Settings
from sfumato.privacy.accounting import NANO
from tests.databases import on_postgresql, on_sqlite
from tests.models.world import LEASE, World, cancel, submit, succeed, together


class Tenants:
    """Some tenants with one dataset each; a letter names a tenant."""

    def __init__(self, world: World, names: str) -> None:
        self.world = world
        self.callers: dict[str, Caller] = {name: world.new_caller(name) for name in names}
        self.within = {
            name: world.new_dataset(caller=caller, epsilon_nano=10_000 * NANO) for name, caller in self.callers.items()
        }
        self._names = {caller.tenant_id: name for name, caller in self.callers.items()}

    def submit(self, name: str, n: int = 1, **other: int) -> list[str]:
        with self.world.database.transaction() as session:
            return [
                submit(
                    session, self.callers[name], self.within[name], epsilon_nano=NANO, now=self.world.now, **other
                ).id
                for _ in range(n)
            ]

    def claim(self) -> tuple[str, Claim] | None:
        held = self.world.claim()
        return None if held is None else (self._names[self.world.job(held.job_id).tenant_id], held)

    def next(self) -> str:
        claimed = self.claim()
        assert claimed is not None
        return claimed[0]

    def finish(self, held: Claim) -> None:
        self.world.write(succeed, held)

    def set_quota(self, name: str, **changes: int | None) -> None:
        self.world.write(set_quotas, self.callers[name].tenant_id, dict(changes), now=self.world.now)


class TestManyJobsOfOneTenant:
    @pytest.mark.parametrize("n_before", [0, 7])
    def test_delay_another_tenant_by_at_most_one_claim(self, world: World, n_before: int) -> None:
        tenants = Tenants(world, "ab")
        tenants.submit("a", 40)
        for _ in range(n_before):
            claimed = tenants.claim()
            assert claimed is not None
            tenants.finish(claimed[1])
        tenants.submit("b")

        assert "b" in [tenants.next(), tenants.next()]

    def test_delay_another_tenant_by_at_most_one_claim_if_they_keep_running(self, world: World) -> None:
        tenants = Tenants(world, "ab")
        tenants.submit("a", 20)
        assert [tenants.next() for _ in range(5)] == ["a"] * 5
        tenants.submit("b", 2)

        assert [tenants.next() for _ in range(2)] == ["b", "b"]

    def test_each_tenant_gets_the_same_share(self, world: World) -> None:
        tenants = Tenants(world, "abc")
        for name, n in (("a", 24), ("b", 10), ("c", 10)):
            tenants.submit(name, n)
        served: Counter[str] = Counter()
        running: list[Claim] = []
        for turn in range(27):
            claimed = tenants.claim()
            assert claimed is not None
            served[claimed[0]] += 1
            running.append(claimed[1])
            if turn % 7 < 4 or len(running) > 4:  # one ends, now the oldest, now the newest
                tenants.finish(running.pop(0 if turn % 2 else -1))

        assert max(served.values()) - min(served.values()) <= 2

    def test_use_all_workers_if_no_other_tenant_has_jobs(self, world: World) -> None:
        tenants = Tenants(world, "ab")
        tenants.submit("a", 4)

        assert [tenants.next() for _ in range(4)] == ["a"] * 4
        assert tenants.claim() is None

    def test_resumed_jobs_take_turns_like_new_ones(self, world: World) -> None:
        tenants = Tenants(world, "ab")
        tenants.submit("a", 3)
        for _ in range(3):
            tenants.next()
        tenants.submit("b", 2)
        world.now += LEASE  # every lease has expired

        assert [tenants.next() for _ in range(4)] == ["b", "a", "b", "a"]


def reference(waiting: dict[str, int], running: dict[str, int], turns: dict[str, int], caps: dict[str, int]) -> str:
    """Return the tenant with the next turn, or an empty string."""
    may = [name for name in sorted(waiting) if waiting[name] and running[name] < caps.get(name, 1000)]
    return min(may, key=lambda name: (running[name], turns[name], name), default="")


@on_sqlite  # the other has the same statements, and a race
class TestNextTenant:
    def test_matches_the_reference(self, database_url: str) -> None:
        database = Database(database_url)
        acts = st.lists(st.sampled_from(["submit a", "submit b", "submit c", "claim", "claim", "end"]), max_size=20)

        @given(acts=acts, caps=st.dictionaries(st.sampled_from("abc"), st.integers(1, 2)))
        @settings(max_examples=12)
        def play(acts: list[str], caps: dict[str, int]) -> None:
            with database.transaction() as session:
                session.execute(delete(Result))
                session.execute(delete(Job))
                session.execute(delete(TenantQuota))
            tenants = Tenants(World(database), "abc")
            for name, cap in caps.items():
                tenants.set_quota(name, max_running_jobs=cap)
            waiting, running, turns = (dict.fromkeys("abc", 0) for _ in range(3))
            held: list[tuple[str, Claim]] = []
            for turn, act in enumerate(acts, 1):
                if act.startswith("submit"):
                    tenants.submit(act[-1])
                    waiting[act[-1]] += 1
                elif act == "claim":
                    claimed, expected = tenants.claim(), reference(waiting, running, turns, caps)
                    assert (claimed[0] if claimed else "") == expected
                    if claimed:
                        held.append(claimed)
                        waiting[expected] -= 1
                        running[expected] += 1
                        turns[expected] = turn
                elif held:
                    name, claim = held.pop(0)
                    tenants.finish(claim)
                    running[name] -= 1

        play()
        database.close()


class TestRunningQuota:
    def test_is_not_exceeded_by_concurrent_claims(self, world: World) -> None:
        tenants = Tenants(world, "ab")
        tenants.set_quota("a", max_running_jobs=2)
        tenants.submit("a", 8)
        tenants.submit("b", 3)

        together([world.claim] * 8)
        while world.claim() is not None:
            pass

        with world.database.reading() as session:
            counted = select(Job.tenant_id, func.count()).where(Job.state == JobState.RUNNING).group_by(Job.tenant_id)
            running = {tenant_id: n for tenant_id, n in session.execute(counted)}  # noqa: C416 - rows are no pairs to mypy
            assert not claims.is_any_waiting(session, now=world.now)  # idle workers stop polling
        assert running == {tenants.callers["a"].tenant_id: 2, tenants.callers["b"].tenant_id: 3}

    def test_is_free_again_after_a_job_or_its_lease_ends(self, world: World) -> None:
        tenants = Tenants(world, "a")
        tenants.set_quota("a", max_running_jobs=1)
        tenants.submit("a", 3)
        first = tenants.claim()
        assert first is not None
        assert tenants.claim() is None

        tenants.finish(first[1])
        assert tenants.next() == "a"
        assert tenants.claim() is None
        world.now += LEASE
        assert tenants.next() == "a"

    def test_does_not_delay_the_end_of_a_canceled_job(self, world: World) -> None:
        tenants = Tenants(world, "a")
        world.caller = tenants.callers["a"]
        tenants.set_quota("a", max_running_jobs=1)
        suspended, _ = tenants.submit("a", 2)
        held = world.claimed()
        cancel(world, suspended)
        world.open_for(held)
        world.claimed()

        assert world.job(suspended).state == JobState.CANCELED


class TestConcurrentClaims:
    @on_postgresql
    def test_serve_different_tenants(self, world: World) -> None:
        tenants = Tenants(world, "ab")
        tenants.submit("a", 5)
        tenants.submit("b", 5)

        with world.database.transaction() as session:  # a claim under way: of the first tenant
            assert claims.claim(session, now=world.now, lease_microseconds=LEASE, max_attempts=5) is not None
            assert tenants.next() == "b"


@on_sqlite
class TestTenantQuota:
    def test_overrides_the_setting_until_it_is_removed(self, world: World) -> None:
        chosen = Settings(max_active_jobs=7)
        found = []
        for value in (2, None):
            Tenants(world, "a").set_quota("a", max_active_jobs=value)
            found.append(world.read(limits, world.new_caller("a").tenant_id, chosen).max_active_jobs)

        assert found == [2, 7]

    def test_applies_to_its_tenant_only(self, world: World) -> None:
        tenants = Tenants(world, "ab")
        tenants.set_quota("a", max_datasets=1)

        with world.database.reading() as session:
            held = [limits(session, tenants.callers[name].tenant_id, Settings()).max_datasets for name in "ab"]
        assert held == [1, 10_000]

    @pytest.mark.parametrize(
        ("name", "value", "error"),
        [
            ("max_datasets", 0, LimitExceeded),
            ("max_datasets", LARGEST + 1, LimitExceeded),
            ("max_open_rounds", 65, LimitExceeded),
            ("max_running_jobs", 0, LimitExceeded),
            ("turn", 1, NotFound),
            ("max_nonsense", 1, NotFound),
        ],
    )
    def test_invalid_quota_is_rejected(self, world: World, name: str, value: int, error: type[Exception]) -> None:
        tenants = Tenants(world, "a")
        with pytest.raises(error):
            tenants.set_quota("a", **{name: value})

    def test_error_names_the_limit_and_the_remedy(self, world: World) -> None:
        tenants = Tenants(world, "a")
        with pytest.raises(LimitExceeded, match=r"3 unfinished jobs \(max_active_jobs\): wait until one ends, cancel"):
            tenants.submit("a", 4, max_active_jobs=3)

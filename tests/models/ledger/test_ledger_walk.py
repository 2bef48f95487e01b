"""The audit's walks of the ledger on both databases, and jobs with actions in any order."""

from itertools import count

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from numpy.typing import NDArray
from sqlalchemy.exc import DBAPIError

from audit.checks.check import Effort, Setting
from audit.ledger import chain as ledger_chain
from audit.ledger import jobs as ledger_jobs
from audit.ledger import walks
from audit.ledger.chain import DETECTED_BY_AUDITOR, DETECTED_BY_SERVICE, find_faults, make_history
from audit.ledger.jobs import LEASE, JobWalk, WorkerActions
from audit.planted.ledger import charge_epsilon_only, charge_job_once
from models.database.engine import Database
from models.jobs import lifecycle


@pytest.fixture
def database_kind() -> str:
    """Return SQLite only: these tests check rules that do not depend on the database."""
    return "sqlite"


SETTING = Setting(Effort.QUICK, 11)
WORDS = st.lists(st.integers(0, 2**64 - 1), max_size=6)
SLOW_SETTINGS = settings(
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


class GivenWords:
    """Entropy that returns the words chosen by hypothesis, then zeros."""

    def __init__(self, words_left: list[int]) -> None:
        self._words = words_left

    def words(self, n: int) -> NDArray[np.uint64]:
        first, self._words = self._words[:n], self._words[n:]
        return np.array(first + [0] * (n - len(first)), dtype=np.uint64)


class JobMachine(RuleBasedStateMachine):
    """Jobs with actions in any order; the audit compares the ledger after each step."""

    database: Database  # set by the test
    actions = WorkerActions()
    numbers = count()

    @initialize()
    def start(self) -> None:
        self.walk = JobWalk(self.database, GivenWords([]), self.actions, f"machine {next(self.numbers)}")

    @rule(words=WORDS)
    def submit(self, words: list[int]) -> None:
        self._run(self.walk.submit, words)

    @rule()
    def claim(self) -> None:
        self.walk.claim()

    @rule(words=WORDS)
    def charge_next(self, words: list[int]) -> None:
        self._run(self.walk.charge_next, words)

    @rule(words=WORDS)
    def charge_another(self, words: list[int]) -> None:
        self._run(self.walk.charge_next, words)

    @rule(words=WORDS)
    def close_rounds(self, words: list[int]) -> None:
        self._run(self.walk.close, words)

    @rule(words=WORDS)
    def rerun(self, words: list[int]) -> None:
        self._run(self.walk.rerun, words)

    @rule(words=WORDS)
    def crash(self, words: list[int]) -> None:
        self._run(self.walk.crash, words)

    @rule(words=WORDS)
    def keep(self, words: list[int]) -> None:
        self._run(self.walk.keep, words)

    @rule(words=WORDS)
    def fail(self, words: list[int]) -> None:
        self._run(self.walk.fail, words)

    @rule(words=WORDS)
    def succeed(self, words: list[int]) -> None:
        self._run(self.walk.succeed, words)

    @rule()
    def cancel(self) -> None:
        self.walk.cancel()

    @rule()
    def expire_leases(self) -> None:
        self.walk.expire_leases()

    @invariant()
    def ledger_is_correct(self) -> None:
        self.walk.compare()
        assert self.walk.fault == ""

    def teardown(self) -> None:
        """End every job, so that the next machine claims its own. No reservation remains."""
        with self.database.transaction() as session:
            for dataset_id in self.walk.dataset_ids.values():
                lifecycle.cancel_all(session, dataset_id, now=self.database.clock())
        for _ in self.walk.jobs:
            self.walk.claim(delay=1000 * LEASE)
        self.walk.compare()
        assert self.walk.fault == ""

    def _run(self, step, words: list[int]) -> None:
        self.walk.entropy = GivenWords(words)
        step()


class TestJobs:
    @pytest.mark.slow
    def test_charges_are_correct_for_any_sequence_of_actions(self, database: Database) -> None:
        class Machine(JobMachine):
            pass

        Machine.database = database
        run_state_machine_as_test(Machine, settings=settings(SLOW_SETTINGS, max_examples=8, stateful_step_count=25))

    @pytest.mark.parametrize("charge", [charge_job_once, charge_epsilon_only], ids=lambda charge: charge.__name__)
    def test_the_machine_detects_a_missing_charge(self, database: Database, charge) -> None:
        class Machine(JobMachine):
            actions = WorkerActions(charge=charge)

        Machine.database = database
        machine = Machine()
        machine.start()
        machine.submit([1 << 63] * 4)  # a job over records with delta and three queries
        machine.claim()
        machine.ledger_is_correct()
        machine.charge_next([])
        machine.charge_next([])
        with pytest.raises(AssertionError, match="has a reservation other than"):
            machine.ledger_is_correct()

    @pytest.mark.slow
    def test_the_audits_walk_finds_no_fault(self, database: Database) -> None:
        finding = ledger_jobs.run_walks(database, SETTING, 120, WorkerActions())
        assert finding.holds, finding.why


class TestCharges:
    @pytest.mark.slow
    def test_the_audits_walk_finds_no_fault(self, database: Database) -> None:
        findings = walks.run_walks(database, SETTING, 150)
        assert [finding.why for finding in findings] == [""] * 3

    def test_concurrent_charges_never_overspend(self, database: Database) -> None:
        (finding,) = walks.check_concurrent_charges(database, SETTING)
        assert finding.holds, finding.why
        assert finding.trials == walks.N_CONCURRENT_TRIALS * walks.N_WRITERS


class TestTampering:
    @pytest.mark.slow
    def test_all_tampering_is_detected(self, database: Database) -> None:
        chain = make_history(database, SETTING, "ds_tampered")

        @given(st.sampled_from(DETECTED_BY_AUDITOR), WORDS, st.booleans())
        @settings(SLOW_SETTINGS, max_examples=60)
        def check(tamper: ledger_chain.Tamper, words: list[int], with_head: bool) -> None:
            entries = tamper(chain.entries, GivenWords(words))
            if with_head and entries[: len(chain.entries)] == chain.entries:
                return  # entries after the head do not change the history
            try:
                detected = list(find_faults(database, chain, entries, with_head=with_head))
            except DBAPIError:
                return  # the database rejects the entry
            assert detected
            if tamper in DETECTED_BY_SERVICE and not with_head:
                assert detected[0].startswith("the service: ")

        check()
        assert list(find_faults(database, chain, chain.entries, with_head=True)) == []  # all changes were rolled back

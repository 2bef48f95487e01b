"""The audit's walks of the ledger, over both databases, and a job's charges in any order that hypothesis thinks of."""

from itertools import count

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from numpy.typing import NDArray
from sqlalchemy.exc import DBAPIError

from audit import ledger as audited
from audit import ledger_chain, ledger_jobs
from audit.check import Effort, Setting
from audit.ledger_chain import SEEN_BY_THE_SERVICE, SEEN_FROM_OUTSIDE, chain_of, faults
from audit.ledger_jobs import LEASE, JobWalk, Work
from audit.planted.ledger import epsilon_alone, one_name
from models import job as jobs
from models.db import Database

SETTING = Setting(Effort.QUICK, 11)
WORDS = st.lists(st.integers(0, 2**64 - 1), max_size=6)
UNHURRIED = settings(
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


class Given:
    """Words that hypothesis chose, then zeros: an entropy that shrinks."""

    def __init__(self, chosen: list[int]) -> None:
        self._chosen = chosen

    def words(self, n: int) -> NDArray[np.uint64]:
        drawn, self._chosen = self._chosen[:n], self._chosen[n:]
        return np.array(drawn + [0] * (n - len(drawn)), dtype=np.uint64)


class JobMachine(RuleBasedStateMachine):
    """Jobs submitted, claimed, worked on, lost and ended in any order; after each step, the audit's comparison."""

    database: Database  # set by the test
    work = Work()
    numbers = count()

    @initialize()
    def begin(self) -> None:
        self.walk = JobWalk(self.database, Given([]), self.work, f"machine {next(self.numbers)}")

    @rule(words=WORDS)
    def submit(self, words: list[int]) -> None:
        self._do(self.walk.submit, words)

    @rule()
    def claim(self) -> None:
        self.walk.claim()

    @rule(words=WORDS)
    def draw(self, words: list[int]) -> None:
        self._do(self.walk.draw, words)

    @rule(words=WORDS)
    def draw_once_more(self, words: list[int]) -> None:
        self._do(self.walk.draw, words)

    @rule(words=WORDS)
    def close_rounds(self, words: list[int]) -> None:
        self._do(self.walk.close, words)

    @rule(words=WORDS)
    def run_again(self, words: list[int]) -> None:
        self._do(self.walk.repeat, words)

    @rule(words=WORDS)
    def crash_before_the_commit(self, words: list[int]) -> None:
        self._do(self.walk.crash, words)

    @rule(words=WORDS)
    def keep_an_answer(self, words: list[int]) -> None:
        self._do(self.walk.keep, words)

    @rule(words=WORDS)
    def fail(self, words: list[int]) -> None:
        self._do(self.walk.fail, words)

    @rule(words=WORDS)
    def succeed(self, words: list[int]) -> None:
        self._do(self.walk.succeed, words)

    @rule()
    def cancel(self) -> None:
        self.walk.cancel()

    @rule()
    def lose_every_lease(self) -> None:
        self.walk.lapse()

    @invariant()
    def what_was_drawn_is_posted(self) -> None:
        self.walk.compare()
        assert self.walk.fault == ""

    def teardown(self) -> None:
        """Every job ends, so that the next machine claims its own; by then nothing is held."""
        with self.database.transaction() as session:
            for dataset_id in self.walk.dataset_ids.values():
                jobs.cancel_all(session, dataset_id, now=self.database.clock())
        for _ in self.walk.jobs:
            self.walk.claim(later=1000 * LEASE)
        self.walk.compare()
        assert self.walk.fault == ""

    def _do(self, step, words: list[int]) -> None:
        self.walk.entropy = Given(words)
        step()


class TestJobs:
    @pytest.mark.slow
    @pytest.mark.ci
    def test_whatever_becomes_of_a_job_what_was_drawn_is_posted(self, database: Database) -> None:
        class Machine(JobMachine):
            pass

        Machine.database = database
        run_state_machine_as_test(Machine, settings=settings(UNHURRIED, max_examples=8, stateful_step_count=25))

    @pytest.mark.parametrize("charge", [one_name, epsilon_alone], ids=lambda charge: charge.__name__)
    def test_the_machine_notices_a_charge_that_falls_short(self, database: Database, charge) -> None:
        class Machine(JobMachine):
            work = Work(charge=charge)

        Machine.database = database
        machine = Machine()
        machine.begin()
        machine.submit([1 << 63] * 4)  # over records, with delta, for three questions
        machine.claim()
        machine.what_was_drawn_is_posted()
        machine.draw([])
        machine.draw([])
        with pytest.raises(AssertionError, match="holds something else"):
            machine.what_was_drawn_is_posted()

    @pytest.mark.slow
    @pytest.mark.ci
    def test_the_audits_walk_finds_no_fault(self, database: Database) -> None:
        finding = ledger_jobs.walked(database, SETTING, 120, Work())
        assert finding.holds, finding.why


class TestCharges:
    @pytest.mark.slow
    @pytest.mark.ci
    def test_the_audits_walk_finds_no_fault(self, database: Database) -> None:
        found = audited.walked(database, SETTING, 150)
        assert [finding.why for finding in found] == [""] * 3

    def test_writers_at_once_never_overspend(self, database: Database) -> None:
        (finding,) = audited.at_once(database, SETTING)
        assert finding.holds, finding.why
        assert finding.trials == audited.MEETINGS * audited.WRITERS


class TestTampering:
    @pytest.mark.slow
    @pytest.mark.ci
    def test_whatever_is_done_to_history_is_seen(self, database: Database) -> None:
        chain = chain_of(database, SETTING, "ds_tampered")

        @given(st.sampled_from(SEEN_FROM_OUTSIDE), WORDS, st.booleans())
        @settings(UNHURRIED, max_examples=60)
        def look(tamper: ledger_chain.Tamper, words: list[int], with_end: bool) -> None:
            entries = tamper(chain.entries, Given(words))
            if with_end and entries[: len(chain.entries)] == chain.entries:
                return  # what goes on from the end is no tampering
            try:
                seen = list(faults(database, chain, entries, with_end=with_end))
            except DBAPIError:
                return  # the database itself takes no such entry
            assert seen
            if tamper in SEEN_BY_THE_SERVICE and not with_end:
                assert seen[0].startswith("the service: ")

        look()
        assert list(faults(database, chain, chain.entries, with_end=True)) == []  # and it was all undone

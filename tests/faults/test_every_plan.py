"""Run algorithms in the service while their worker is killed between and during rounds. No bit of a result changes.

Devices report over HTTP by the SDK. The result equals the one of the same plan in this process over the stored tallies,
and the tallies equal those of the sent reports.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from itertools import cycle
from pathlib import Path
from time import sleep

import numpy as np
import psutil
import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import undefer

from clustering.registry import start
from clustering.rounds.counting import RoundAggregator
from clustering.rounds.law import checking_law
from clustering.rounds.outside import counting_outside
from clustering.rounds.plan import Collected, drive
from clustering.rounds.tally import read_aggregate
from clustering.simulate import SeededEntropy
from models.database.types import canonical_json
from models.jobs import jobs
from models.tables import rounds as rounds_tables
from models.tables.jobs import Result
from models.tables.rounds import Round
from sfumato import Client, Feature, perturb_records
from sfumato.privacy.accounting import cost
from sfumato.sizing.rounds import expected_reports
from sfumato.specs import LOCAL_ALGORITHMS, Algorithm, RoundSpec
from tests.faults.service_under_test import ServiceUnderTest, service, wait_until

N_DEVICES = 4000
SMALL = {  # parameters that make an algorithm small
    "clusters": 2,
    "cells": 4,
    "height": 2,
    "cuts": 3,
    "projections": 4,
    "slots": 32,
    "rounds": 3,
    "max_iterations": 50,
}
LAST_MESSAGE_SECONDS = 1.0
LEAST_ROUNDS = {"adaptive_grid_iterative": 3, "adaptive_grid_tree": 2, "ldp_kmeans": 3}
REFINED_ROUNDS = {"auto": 5, "lloyd": 5, "sign": 2, "none": 1}
N_FEATURES = {"phase_sketch": 4}  # algorithms that need more than two features to run several rounds
EPSILON = 8.0

Kill = Callable[[ServiceUnderTest], None]  # kills processes of a running service

N_WORKERS = 2  # workers of the slow test, and jobs killed at once

on_sqlite = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)


def small(tag: str, **more: object) -> Algorithm:
    """An algorithm with small parameters."""
    kind = LOCAL_ALGORITHMS[tag]
    names = {field.name for field in fields(kind)}
    return kind(epsilon=EPSILON, **{name: value for name, value in SMALL.items() if name in names}, **more)


def variants(tag: str) -> list[dict[str, str]]:
    names = {field.name for field in fields(LOCAL_ALGORITHMS[tag])}
    if "refine" in names:
        return [{"refine": refine} for refine in REFINED_ROUNDS]
    return [{"variant": "sound"}, {"variant": "paper"}] if "variant" in names else [{}]


SEVERAL = ("uniform_grid", "adaptive_grid_tree", "ldp_kmeans", "phase_sketch")  # at least 1, 2, 3 and 5 rounds
EVERY_VARIANT = [small(tag, **more) for tag in LOCAL_ALGORITHMS for more in variants(tag)]


@dataclass
class SeededDevices:
    """The same devices for all rounds of a collection, with seeded records, draws and coins."""

    features: tuple[Feature, ...]
    records: np.ndarray
    draws: np.ndarray
    sent: dict[str, tuple[np.ndarray, np.ndarray]]  # round id -> slots, values

    @classmethod
    def of(cls, n_features: int) -> "SeededDevices":
        chance = np.random.default_rng(n_features)
        centres = np.where(chance.random(N_DEVICES) < 0.6, 2.5, 7.5)[:, None]
        records = chance.normal(centres, 0.7, size=(N_DEVICES, n_features))
        features = tuple(Feature(f"x{i}", 0.0, 10.0) for i in range(n_features))
        return cls(features, records, SeededEntropy(n_features).words(N_DEVICES), {})

    def answer(self, client: Client, round_id: str, spec: RoundSpec) -> None:
        """Report for the devices with draws that participate in the round."""
        reports = perturb_records(spec, self.records, SeededEntropy(len(self.sent)), draws=self.draws)
        self.sent[round_id] = (reports.slots.astype(np.int64), reports.values)
        client.send_reports(round_id, *reports)


class Run:
    """A job from its submission to its result."""

    def __init__(self, running: ServiceUnderTest, client: Client, params: Algorithm) -> None:
        self._running, self._client, self._params = running, client, params
        self.devices = SeededDevices.of(N_FEATURES.get(params.type, 2))
        self.dataset_id = client.create_dataset(
            "t", self.devices.features, epsilon=32, min_reports=1, keep_reports=True
        ).id
        self.job_id = client.submit_job(self.dataset_id, params, target_reports=N_DEVICES).id

    @property
    def state(self) -> str:
        return self._client.get_job(self.job_id).state

    def await_round(self) -> str | None:
        """The round it waits for devices with; None once it is over."""

        def found() -> str | None:
            job = self._client.get_job(self.job_id)
            assert job.error is None, job
            return "over" if job.is_final else job.progress.open_round_id

        round_id = str(wait_until(found))
        return None if round_id == "over" else round_id

    def answer(self, round_id: str) -> None:
        """Its devices report to the round, which is full then."""
        assert self.state == "collecting"
        self.devices.answer(self._client, round_id, self._client.get_round(round_id).spec)

    def check(self) -> None:
        """One result, bit for bit that of the stored tallies, which are those of what was sent."""
        with self._running.database.reading() as session:
            document = jobs.get_result(session, self.job_id).document
            n_results = session.scalar(select(func.count()).where(Result.job_id == self.job_id))
            query = select(Round).where(Round.job_id == self.job_id).order_by(Round.index)
            stored = list(session.scalars(query.options(undefer(Round.tally))))
        assert n_results == 1
        assert [used["id"] for used in document["rounds"]] == [each.id for each in stored] == list(self.devices.sent)
        least = REFINED_ROUNDS.get(getattr(self._params, "refine", ""), LEAST_ROUNDS.get(self._params.type, 1))
        assert len(stored) >= least
        for each in stored:
            slots, values = self.devices.sent[each.id]
            counting = RoundAggregator(each.spec)
            counting.add(slots, values)
            assert read_aggregate(each.spec, each.tally or b"") == counting.result()
            assert (
                each.target_reports
                == expected_reports(N_DEVICES, each.spec.participation)
                <= len(slots)
                == each.n_reports
            )
        assert canonical_json(document["model"]) == canonical_json(self._model_of(stored))
        price = cost(((each.spec.participation.lo, each.spec.participation.hi), each.epsilon_nano) for each in stored)
        assert document["epsilon_nano"] == price
        balance = self._client.budget(self.dataset_id).balance
        assert (balance.charged_nano, balance.reserved_nano) == (price, 0)
        assert self._client.verify_ledger(self.dataset_id).ok

    def _model_of(self, stored: list[rounds_tables.Round]) -> dict:
        """Return the model of the same plan in this process, over the same tallies."""
        answers = iter(stored)

        def collect(wanted: RoundSpec) -> Collected:
            answered = next(answers)
            assert answered.spec == wanted
            return Collected(answered.spec, read_aggregate(answered.spec, answered.tally or b""))

        plan = start(self._params, self.devices.features, N_DEVICES)
        model = drive(checking_law(counting_outside(plan, opens_counting=True)), collect)
        assert next(answers, None) is None
        return model.to_wire()


@contextmanager
def client_of(running: ServiceUnderTest) -> Iterator[Client]:
    """The SDK's client of it."""
    with Client(f"http://127.0.0.1:{running.port}", running.secret) as client:
        yield client


@contextmanager
def frozen(running: ServiceUnderTest) -> Iterator[None]:
    """While it lasts, jobs are claimed and not computed."""
    children = wait_until(running.ready_children)
    sleep(LAST_MESSAGE_SECONDS)  # a job process may be about to report the end of its claim
    for child in children:
        child.suspend()
    yield
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.resume()


def kill_children(running: ServiceUnderTest) -> None:
    """The computing processes alone; their supervisors hand the job back."""
    for child in running.children():
        child.kill()


def kill_supervisors(running: ServiceUnderTest) -> None:
    """The supervisors alone; the kernel ends their children, and the lease has to lapse."""
    while running.workers:
        running.kill_supervisor()


def kill_at_work(chance: np.random.Generator) -> Kill:
    """The computing processes, some time after they went on with their work."""

    def kill(running: ServiceUnderTest) -> None:
        children = running.children()
        for child in children:
            child.resume()
        sleep(chance.uniform(0, 0.05))
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()

    return kill


class TestSeveralAlgorithms:
    @on_sqlite
    @pytest.mark.slow
    def test_kills_between_and_during_rounds_do_not_change_results(self, database_url: str, tmp_path: Path) -> None:
        with service(database_url, tmp_path) as running, client_of(running) as client:
            runs = [Run(running, client, small(tag)) for tag in SEVERAL]
            asked = [(run, run.await_round() or "") for run in runs]
            with frozen(running):
                for run, round_id in asked[::2]:
                    run.answer(round_id)
                wait_until(lambda: "running" in [run.state for run in runs])
                running.kill_workers()  # one job is claimed, some are next, the others wait for devices
            running.start()
            for run in runs:
                while (round_id := run.await_round()) is not None:
                    if round_id not in run.devices.sent:
                        run.answer(round_id)
            for run in runs:
                run.check()


@pytest.mark.release
@pytest.mark.timeout(2400)
class TestEveryVariant:
    def test_kills_in_all_rounds_do_not_change_results(self, database_url: str, tmp_path: Path) -> None:
        ways = cycle([kill_children, kill_supervisors, kill_at_work(np.random.default_rng(1))])
        with service(database_url, tmp_path, n_workers=N_WORKERS) as running, client_of(running) as client:
            runs = [Run(running, client, params) for params in EVERY_VARIANT]
            while asked := [(run, round_id) for run in runs if (round_id := run.await_round()) is not None]:
                for begin in range(0, len(asked), N_WORKERS):  # the other jobs are between rounds
                    self.kill_during(running, asked[begin : begin + N_WORKERS], next(ways))
            for run in runs:
                run.check()

    def kill_during(self, running: ServiceUnderTest, asked: list[tuple[Run, str]], kill: Kill) -> None:
        """Kill the workers as soon as each has claimed a job with a full round."""
        with frozen(running):
            for run, round_id in asked:
                run.answer(round_id)
            wait_until(lambda: all(run.state == "running" for run, _ in asked))
            kill(running)
        running.start()
        for run, _ in asked:
            run.await_round()  # idle workers take the next jobs as soon as their rounds are full

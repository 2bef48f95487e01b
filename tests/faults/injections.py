"""A seeded schedule of faults, and their injection into a deployment.

An injection is a fault at a step, such as `kill@child.result`. A fault without a step stands alone (`flush_redis`), or
has a step at which a process is paused during the fault (`kill_postgres@gateway.received`). A fault counts when it
happened: a process reached the step, or a request met the trouble.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from runtime.redis_client import TIMEOUT_SECONDS
from tests.faults.deployment import LEASE_SECONDS, Deployment, is_alive
from tests.faults.relay import TROUBLES, Trouble
from tests.faults.steps import CHILD_STEPS, GATEWAY_STEPS, STEPS, SUPERVISOR_STEPS

MAX_PENDING = 8  # faults that wait for their step or request
PENDING_SECONDS = 60.0  # seconds until a pending fault counts as missed
RESPONSES_BETWEEN_FAULTS = 10
MAX_RESPONSES_SECONDS = 5.0  # time limit of the wait for these responses
SPREAD_SECONDS = 1.0  # delay range of faults without a step
MAX_TRIES_FACTOR = 10
SLOW_REDIS_SECONDS = 2.0  # duration of `slow_redis`

HEADS = {
    "reports": b"POST /v1/rounds/rnd_",
    "jobs": b"POST /v1/jobs ",
    "records": b"POST /v1/datasets/ds_",
    "any": b"",
}
PROCESSES = {"gateway": GATEWAY_STEPS, "supervisor": SUPERVISOR_STEPS, "child": CHILD_STEPS}
FAULTS = {
    "kill": "SIGKILL of the process at the step, or of any of its kind",
    "kill_supervisor": "SIGKILL of the supervisor of the child at the step; the kernel ends the child",
    "stop": "SIGSTOP of the process at the step, or of any of its kind; SIGCONT later",
    "stop_worker": "SIGSTOP of the child at the step and of its supervisor for longer than the lease; SIGCONT later",
    "stop_then_kill": "SIGSTOP of the process at the step, or of any of its kind; SIGKILL later",
    "clock": "the clock of a machine jumps by up to a quarter of an hour, either way",
    "fill_disk": "the disk for data is full",
    **TROUBLES,
    "kill_postgres": "SIGQUIT to PostgreSQL, which recovers",
    "restart_postgres": "fast shutdown of PostgreSQL (SIGINT), and its start later",
    "stop_postgres": "SIGSTOP to PostgreSQL; SIGCONT later",
    "kill_redis": "SIGKILL to Redis, which begins empty",
    "stop_redis": "SIGSTOP to Redis; SIGCONT later",
    "slow_redis": "Redis answers late, before or after the timeout of the service",
    "flush_redis": "FLUSHALL",
    "cut_network": "the network between the service and its servers is interrupted",
}
SERVER_FAULTS = tuple(FAULTS)[tuple(FAULTS).index("kill_postgres") :]
WEIGHTS = {"kill": 24, "stop": 8, "stop_then_kill": 5, "fill_disk": 4, "clock": 6} | dict.fromkeys(TROUBLES, 4)  # or 2
AMOUNTS = {  # ranges in seconds
    "stop": (0.1 * LEASE_SECONDS, 3.0 * LEASE_SECONDS),
    "stop_worker": (1.3 * LEASE_SECONDS, 2.0 * LEASE_SECONDS),
    "stop_then_kill": (0.1 * LEASE_SECONDS, 3.0 * LEASE_SECONDS),
    "clock": (-900.0, 900.0),
    "slow_redis": (0.2 * TIMEOUT_SECONDS, 2.0 * TIMEOUT_SECONDS),
}


@dataclass(frozen=True)
class Injection:
    """One fault of a schedule."""

    fault: str
    step: str = ""  # step, kind of process or kind of request
    amount: float = 0.0  # seconds: duration of the fault or offset of the clock

    def __str__(self) -> str:
        return f"{self.fault}@{self.step}" if self.step else self.fault

    @classmethod
    def parse(cls, text: str) -> "Injection":
        """Parse a fault such as `kill@child.result` or `stop@child.result=3` (3 seconds); raise ValueError."""
        name, _, seconds = text.partition("=")
        fault, _, step = name.partition("@")
        if fault not in FAULTS:
            raise ValueError(f"unknown fault {fault}. Valid faults: {', '.join(FAULTS)}")
        if step and step not in (*STEPS, *HEADS, "gateway", "supervisor", "child"):
            raise ValueError(f"unknown step {step}. Valid steps: {', '.join(STEPS)}")
        return cls(fault, step, float(seconds or 0))


def faults_of(backend: str) -> list[str]:
    """Return the faults that apply to a backend."""
    return [fault for fault in FAULTS if backend != "sqlite" or fault not in SERVER_FAULTS]


def schedule(seed: str, backend: str) -> Iterator[Injection]:
    """Yield an endless sequence of faults; equal seeds give equal sequences."""
    rng = random.Random(f"faults {seed} {backend}")  # noqa: S311 - a schedule, not a secret
    faults = faults_of(backend)
    weights = [WEIGHTS.get(fault, 2) for fault in faults]
    while True:
        fault = rng.choices(faults, weights)[0]
        yield Injection(fault, rng.choice(_steps(fault, rng.choice(list(PROCESSES)))), _draw_amount(rng, fault))


def each_kind(seed: str, backend: str) -> Iterator[Injection]:
    """Yield each fault once, for each kind of process that it applies to and at any point, in a random order."""
    rng = random.Random(f"kinds {seed} {backend}")  # noqa: S311 - a schedule, not a secret
    kinds = {(fault, _steps(fault, process)[0]) for fault in faults_of(backend) for process in PROCESSES}
    for fault, step in rng.sample(sorted(kinds), len(kinds)):
        yield Injection(fault, step, _draw_amount(rng, fault))


def _steps(fault: str, process: str) -> list[str]:
    """Return the steps of a fault. The first means any point."""
    if fault in ("kill_supervisor", "stop_worker"):
        process = "child"
    if fault in ("kill", "stop", "stop_then_kill", "kill_supervisor", "stop_worker"):
        return [process, *PROCESSES[process]]
    if fault in TROUBLES:
        return ["any", *HEADS]
    return ["", *STEPS] if fault in SERVER_FAULTS else [""]


def _draw_amount(rng: random.Random, fault: str) -> float:
    return rng.uniform(*AMOUNTS.get(fault, (0.2, 2.0)))


@dataclass(eq=False)
class _PendingFault:
    injection: Injection
    deadline: float
    not_before: float
    trouble: Trouble | None = None


class Injector:
    """Injects faults into a deployment.

    Parameters
    ----------
    deployment : Deployment
    seed : str
        Selects the gateway or worker if the fault does not.
    """

    def __init__(self, deployment: Deployment, seed: str) -> None:
        self._deployment, self._rng = deployment, random.Random(f"injector {seed}")  # noqa: S311 - no secret

    def run(
        self,
        faults: Iterator[Injection],
        n_faults: int,
        print_line: Callable[[str], None],
        count_responses: Callable[[], int],
    ) -> tuple[list[str], list[str]]:
        """Inject this number of faults. Return those that happened and those that were missed.

        Several faults are pending at a time, so that rare steps delay no others. They become pending in the order of
        the schedule and happen as processes and requests reach them. Between two faults, some requests receive a
        response (`count_responses`), because a service that only restarts would lose nothing.
        """
        injected: list[str] = []
        missed: list[str] = []
        pending: list[_PendingFault] = []
        max_tries = n_faults * MAX_TRIES_FACTOR
        while len(injected) < n_faults and len(injected) + len(missed) < max_tries:
            while len(pending) < MAX_PENDING:
                pending.append(self._prepare(next(faults)))
            files = os.listdir(self._deployment.steps)
            for each in pending:
                paused = self._find_opportunity(each, files)
                if paused is None and time.monotonic() < each.deadline:
                    continue
                pending.remove(each)
                was_applied = paused is not None and self._inject(each, paused)
                (injected if was_applied else missed).append(str(each.injection))
                print_line(f"  {each.injection!s:<36} {'' if was_applied else 'missed'}")
                self._cancel(each)
                if was_applied:
                    self._await_responses(count_responses)
                break
            else:
                time.sleep(0.02)
        for each in pending:
            self._cancel(each)
        return injected, missed

    def _await_responses(self, count_responses: Callable[[], int]) -> None:
        target, deadline = count_responses() + RESPONSES_BETWEEN_FAULTS, time.monotonic() + MAX_RESPONSES_SECONDS
        while count_responses() < target and time.monotonic() < deadline:
            if any(name.startswith("paused.") for name in os.listdir(self._deployment.steps)):
                return  # a paused process may block all requests
            time.sleep(0.02)

    def _prepare(self, injection: Injection) -> "_PendingFault":
        """Make a fault pending."""
        pending = _PendingFault(injection, time.monotonic() + PENDING_SECONDS, not_before=time.monotonic())
        if injection.fault in TROUBLES:
            pending.trouble = Trouble(injection.fault, HEADS[injection.step or "any"], injection.amount or 0.5)
            self._deployment.entry.arm(pending.trouble)
        elif injection.step not in STEPS:
            pending.not_before += self._rng.uniform(0, SPREAD_SECONDS)
        return pending

    def _find_opportunity(self, pending: "_PendingFault", files: list[str]) -> str | None:
        """Return the file of a process paused at the step, or empty if none is needed; None if the fault must wait."""
        injection = pending.injection
        if pending.trouble is not None:
            return "" if pending.trouble.happened.is_set() else None
        if injection.step not in STEPS:
            has_process = injection.step not in PROCESSES or self._processes(injection.step)
            return "" if has_process and time.monotonic() >= pending.not_before else None
        for name in files:
            if name.startswith(f"paused.{injection.step}."):
                return name
        if f"arm.{injection.step}" not in files:
            (self._deployment.steps / f"arm.{injection.step}").touch()
        return None

    def _cancel(self, pending: "_PendingFault") -> None:
        if pending.trouble is not None:
            self._deployment.entry.disarm(pending.trouble)
        for pattern in ("arm.{}", "paused.{}.*"):  # a process may have arrived in between
            for each in self._deployment.steps.glob(pattern.format(pending.injection.step or "nowhere")):
                each.unlink(missing_ok=True)

    def _inject(self, pending: "_PendingFault", paused: str) -> bool:
        """Inject a fault and restart ended processes. Return whether it happened."""
        if pending.trouble is not None:
            return True
        try:
            return self._apply(pending.injection, int(paused.rpartition(".")[2]) if paused else 0)
        finally:
            if paused:
                (self._deployment.steps / paused).unlink(missing_ok=True)
            self._deployment.remove_ended()
            self._deployment.start()

    def _apply(self, injection: Injection, pid: int) -> bool:
        fault, deployment, seconds = injection.fault, self._deployment, injection.amount or 1.5
        if injection.step.split(".")[0] in PROCESSES and fault not in SERVER_FAULTS:
            return self._signal(injection, pid, seconds)
        if fault == "clock":
            deployment.shift_clock(self._rng.choice([*deployment.gateways, *deployment.workers]), injection.amount)
        elif fault == "fill_disk":
            deployment.fill_disk(seconds)
        elif fault == "kill_postgres":
            deployment.restart_postgres(signal.SIGQUIT)
        elif fault == "restart_postgres":
            deployment.restart_postgres(signal.SIGINT, seconds)
        elif fault == "kill_redis":
            deployment.kill_redis()
        elif fault == "flush_redis":
            deployment.flush_redis()
        elif fault == "cut_network":
            deployment.cut_network(seconds)
        elif fault == "slow_redis":
            deployment.slow_redis(seconds, SLOW_REDIS_SECONDS)
        elif fault in ("stop_postgres", "stop_redis"):
            deployment.stop_server(fault.removeprefix("stop_"), seconds)
        return True

    def _signal(self, injection: Injection, pid: int, seconds: float) -> bool:
        deployment = self._deployment
        if not pid:
            pid = self._rng.choice(self._processes(injection.step) or [0])
        name = deployment.find_name(pid) if pid else None
        if name is None:
            return False
        fault, own_pid = injection.fault, deployment.running[name]
        pids = [own_pid, pid] if fault == "stop_worker" else [pid]
        if fault.startswith("stop"):
            self._stop(pids, injection.step, seconds)
        if fault in ("stop", "stop_worker"):
            _send_signal(pids, signal.SIGCONT)
        elif own_pid == pid or fault == "kill_supervisor":
            deployment.kill(name)
        else:
            _send_signal(pids, signal.SIGKILL)
        return True

    def _stop(self, pids: list[int], step: str, seconds: float) -> None:
        """Stop processes for some seconds, and release them from the step."""
        _send_signal(pids, signal.SIGSTOP)
        for paused in self._deployment.steps.glob(f"paused.{step}.*"):
            paused.unlink(missing_ok=True)
        time.sleep(seconds)

    def _processes(self, kind: str) -> list[int]:
        """Return the ids of the processes of a kind."""
        deployment = self._deployment
        if kind == "child":
            return [child.pid for name in deployment.workers for child in deployment.children(name)]
        names = deployment.gateways if kind == "gateway" else deployment.workers
        return [pid for name in names if (pid := deployment.running.get(name)) and is_alive(pid)]


def _send_signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

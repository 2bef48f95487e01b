"""Faults: a schedule of them from a seed, and how each is done to a world.

An injection is a fault at a step, written `kill@child.result`; a fault that needs no step stands alone
(`flush_redis`), or before one that holds a process meanwhile (`kill_postgres@gateway.received`). One
counts when it happened: the process was at the step, a request met the trouble.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import psutil

from tests.faults.relay import TROUBLES, Trouble
from tests.faults.steps import CHILD_STEPS, GATEWAY_STEPS, STEPS, SUPERVISOR_STEPS
from tests.faults.world import LEASE_SECONDS, World

AT_ONCE = 8  # faults that wait for their moment
MOMENT_SECONDS = 60.0  # they wait no longer
ANSWERS_BETWEEN = 10  # requests that are answered between two faults
ANSWERS_SECONDS = 5.0  # unless they take longer
SPREAD_SECONDS = 1.0  # over which those are spread that need no moment
MOST_TRIES = 10  # times as many as are wanted are tried at most
STOPPED_SECONDS = (1.3 * LEASE_SECONDS, 2.0 * LEASE_SECONDS)  # longer than the lease
CLOCK_SECONDS = (-900, 900)

HEADS = {
    "reports": b"POST /v1/rounds/rnd_",
    "jobs": b"POST /v1/jobs ",
    "records": b"POST /v1/datasets/ds_",
    "any": b"",
}
FAULTS = {
    "kill": "SIGKILL of the process at the step, or of any of its kind",
    "kill_supervisor": "SIGKILL of the supervisor of the child at the step; the kernel ends the child",
    "stop": "SIGSTOP of the process at the step, and of its supervisor, for longer than the lease",
    "clock": "the clock of a machine jumps by up to a quarter of an hour, either way",
    "fill_disk": "no room for data",
    "kill_postgres": "SIGQUIT to PostgreSQL, which recovers",
    "kill_redis": "SIGKILL to Redis, which begins empty",
    "stop_redis": "SIGSTOP to Redis",
    "flush_redis": "FLUSHALL",
    "cut_network": "nothing passes between the service and its servers",
    **TROUBLES,
}
SERVERS = ("kill_postgres", "kill_redis", "stop_redis", "flush_redis", "cut_network")


@dataclass(frozen=True)
class Injection:
    """One fault of a schedule."""

    fault: str
    step: str = ""  # or a kind of process; or of request
    amount: float = 0.0  # seconds, where the fault lasts or jumps

    def __str__(self) -> str:
        return f"{self.fault}@{self.step}" if self.step else self.fault

    @classmethod
    def parse(cls, text: str) -> "Injection":
        """`kill@child.result` as a fault, `stop@child.result=3` as one of 3 seconds; raises ValueError."""
        name, _, seconds = text.partition("=")
        fault, _, step = name.partition("@")
        if fault not in FAULTS:
            raise ValueError(f"no fault is called {fault}; there are {', '.join(FAULTS)}")
        if step and step not in (*STEPS, *HEADS, "gateway", "supervisor", "child"):
            raise ValueError(f"no step is called {step}; there are {', '.join(STEPS)}")
        return cls(fault, step, float(seconds or 0))


def schedule(seed: str, backend: str) -> Iterator[Injection]:
    """Faults without end, the same ones for a seed."""
    chance = random.Random(f"faults {seed} {backend}")  # noqa: S311 - a schedule, not a secret
    while True:
        yield _drawn(chance, is_sqlite=backend == "sqlite")


def _drawn(chance: random.Random, *, is_sqlite: bool) -> Injection:
    kind = chance.choices(
        ["gateway", "supervisor", "child", "relay", "clock", "disk", "server"],
        [22, 8, 22, 22, 8, 4, 0 if is_sqlite else 14],
    )[0]
    if kind == "relay":
        return Injection(chance.choice(list(TROUBLES)), chance.choice(list(HEADS)), chance.uniform(0.2, 1.0))
    if kind == "clock":
        return Injection("clock", amount=chance.uniform(*CLOCK_SECONDS))
    if kind == "disk":
        return Injection("fill_disk", amount=chance.uniform(0.3, 1.5))
    if kind == "server":
        return Injection(chance.choice(SERVERS), chance.choice(["", *STEPS]), chance.uniform(0.3, 2.0))
    steps = {"gateway": GATEWAY_STEPS, "supervisor": SUPERVISOR_STEPS, "child": CHILD_STEPS}[kind]
    step = chance.choice([kind, *steps])  # the kind alone: whatever it is at
    weights = {"kill": 6, "stop": 2} | ({"kill_supervisor": 1} if kind == "child" else {})
    fault = chance.choices(list(weights), list(weights.values()))[0]
    return Injection(fault, step, chance.uniform(*STOPPED_SECONDS))


@dataclass(eq=False)
class _Waiting:
    injection: Injection
    deadline: float
    not_before: float
    trouble: Trouble | None = None


class Injector:
    """Does faults to a world.

    Parameters
    ----------
    world : World
    seed : str
        Of which gateway or worker is meant, where nothing else says.
    """

    def __init__(self, world: World, seed: str) -> None:
        self._world, self._chance = world, random.Random(f"injector {seed}")  # noqa: S311 - no secret

    def run(
        self, faults: Iterator[Injection], n_wanted: int, say: Callable[[str], None], n_answered: Callable[[], int]
    ) -> tuple[list[str], list[str]]:
        """Have so many happen; those that did, and those whose moment did not come.

        A few at once wait for their moment, so that rare steps hold nothing up: they begin to wait in
        the schedule's order and happen as processes and requests come by. Between two of them some
        requests are answered (`n_answered`): a service that only ever begins again loses nothing.
        """
        injected: list[str] = []
        missed: list[str] = []
        waiting: list[_Waiting] = []
        most = n_wanted * MOST_TRIES
        while len(injected) < n_wanted and len(injected) + len(missed) < most:
            while len(waiting) < AT_ONCE:
                waiting.append(self._begin(next(faults)))
            files = os.listdir(self._world.steps)
            for each in waiting:
                held = self._held(each, files)
                if held is None and time.monotonic() < each.deadline:
                    continue
                waiting.remove(each)
                has_happened = held is not None and self._inject(each, held)
                (injected if has_happened else missed).append(str(each.injection))
                say(f"  {each.injection!s:<36} {'' if has_happened else 'missed'}")
                self._give_up(each)
                if has_happened:
                    self._await_answers(n_answered)
                break
            else:
                time.sleep(0.02)
        for each in waiting:
            self._give_up(each)
        return injected, missed

    def _await_answers(self, n_answered: Callable[[], int]) -> None:
        enough, deadline = n_answered() + ANSWERS_BETWEEN, time.monotonic() + ANSWERS_SECONDS
        while n_answered() < enough and time.monotonic() < deadline:
            if any(name.startswith("held.") for name in os.listdir(self._world.steps)):
                return  # it may hold everybody up
            time.sleep(0.02)

    def _begin(self, injection: Injection) -> "_Waiting":
        """Let it wait for its moment."""
        waiting = _Waiting(injection, time.monotonic() + MOMENT_SECONDS, not_before=time.monotonic())
        if injection.fault in TROUBLES:
            waiting.trouble = Trouble(injection.fault, HEADS[injection.step or "any"], injection.amount or 0.5)
            self._world.door.arm(waiting.trouble)
        elif injection.step not in STEPS:
            waiting.not_before += self._chance.uniform(0, SPREAD_SECONDS)
        return waiting

    def _held(self, waiting: "_Waiting", files: list[str]) -> str | None:
        """Its moment: the name of the file that holds a process at its step, or nothing; None while it has not come."""
        injection = waiting.injection
        if waiting.trouble is not None:
            return "" if waiting.trouble.happened.is_set() else None
        if injection.step not in STEPS:
            return "" if time.monotonic() >= waiting.not_before else None
        for name in files:
            if name.startswith(f"held.{injection.step}."):
                return name
        if f"arm.{injection.step}" not in files:
            (self._world.steps / f"arm.{injection.step}").touch()
        return None

    def _give_up(self, waiting: "_Waiting") -> None:
        if waiting.trouble is not None:
            self._world.door.disarm(waiting.trouble)
        for pattern in ("arm.{}", "held.{}.*"):  # somebody may have come at the last moment
            for each in self._world.steps.glob(pattern.format(waiting.injection.step or "nowhere")):
                each.unlink(missing_ok=True)

    def _inject(self, waiting: "_Waiting", held: str) -> bool:
        """Do it and bring back what it ended; whether it happened."""
        if waiting.trouble is not None:
            return True
        try:
            return self._do(waiting.injection, int(held.rpartition(".")[2]) if held else 0)
        finally:
            if held:
                (self._world.steps / held).unlink(missing_ok=True)
            self._world.forget_ended()
            self._world.start()

    def _do(self, injection: Injection, pid: int) -> bool:
        fault, world, seconds = injection.fault, self._world, injection.amount or 1.5
        if fault in ("kill", "stop", "kill_supervisor"):
            return self._signal(injection, pid, seconds)
        if fault == "clock":
            world.turn_clock(self._chance.choice([*world.gateways, *world.workers]), injection.amount)
        elif fault == "fill_disk":
            world.fill_disk(seconds)
        elif fault == "kill_postgres":
            world.kill_postgres()
        elif fault == "kill_redis":
            world.kill_redis()
        elif fault == "flush_redis":
            world.flush_redis()
        elif fault == "cut_network":
            world.cut_network(seconds)
        elif fault == "stop_redis":
            assert world.redis is not None
            assert world.redis.process is not None
            world.redis.process.send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            world.redis.process.send_signal(signal.SIGCONT)
        return True

    def _signal(self, injection: Injection, pid: int, seconds: float) -> bool:
        world = self._world
        pid = pid or self._any(injection.step)
        name = world.name_of(pid) if pid else None
        if name is None:
            return False
        above = world.running[name]
        if injection.fault == "stop":
            self._stop([above, pid], injection.step, seconds)
        elif above == pid or injection.fault == "kill_supervisor":
            world.kill(name)
        else:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return True

    def _stop(self, pids: list[int], step: str, seconds: float) -> None:
        """Stop them, have them come from the step once they go on, and let them go on."""
        for pid in dict.fromkeys(pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        for held in self._world.steps.glob(f"held.{step}.*"):
            held.unlink(missing_ok=True)
        time.sleep(seconds)
        for pid in dict.fromkeys(pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _any(self, kind: str) -> int:
        """Some process of a kind; 0 where there is none at the moment."""
        world = self._world
        if kind == "child":
            pids = [child.pid for name in world.workers for child in world.children(name)]
        else:
            names = world.gateways if kind == "gateway" else world.workers
            pids = [world.running[name] for name in names if name in world.running]
        pids = [pid for pid in pids if psutil.pid_exists(pid)]
        return self._chance.choice(pids) if pids else 0

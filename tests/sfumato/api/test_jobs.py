"""Submitted jobs with their client, and the progress line."""

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sfumato.api import parsers
from sfumato.api.client import Client
from sfumato.api.progress import BAR_CELLS, ProgressLine, format_job, show_progress
from sfumato.api.resources import Job
from sfumato.api.submitted_jobs import SubmittedJob
from sfumato.device.bulk import perturb_records
from sfumato.errors import InvalidSpec, JobTimeout
from sfumato.specs import Participation, UniformGrid, to_wire
from tests.sfumato.answers import JOB, RESULT, ROUND, ok, receipt, serving
from tests.sfumato.scripted import round_spec


def a_job(**changes: Any) -> Job:
    return parsers.parse_job(JOB | changes)


def collecting(n_received: int, target: int | None = 10_000) -> Job:
    return a_job(progress=JOB["progress"] | {"n_received": n_received, "target_reports": target})


def a_submitted(client: Client) -> SubmittedJob:
    return SubmittedJob.of(client, a_job())


def with_round(round_id: str | None) -> dict[str, Any]:
    return JOB | {"progress": JOB["progress"] | {"open_round_id": round_id}}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestSubmittedJob:
    def test_waits_and_fetches_its_result(self) -> None:
        service, client = serving(
            {
                "POST jobs": ok(JOB, 202),
                "GET jobs/job_1": [ok(JOB), ok(JOB | {"state": "succeeded"})],
                "GET jobs/job_1/result": ok(RESULT),
            }
        )
        job = client.submit_job("ds_1", UniformGrid(epsilon=1), target_reports=10)
        done = job.wait()
        assert (job.state, done.state) == ("collecting", "succeeded")
        assert done.result().job_id == "job_1"
        assert service.requests[1].url.params["wait"] == "30"  # no progress is shown, so polls may be long

    def test_is_refreshed_and_cancelled(self) -> None:
        cancel = ok(JOB | {"state": "canceled"})
        _, client = serving({"GET jobs/job_1": ok(JOB), "POST jobs/job_1/cancel": cancel})
        assert client.get_job("job_1").refresh().cancel().state == "canceled"

    def test_equals_the_job_of_another_client(self) -> None:
        _, client = serving({"GET jobs/job_1": ok(JOB)})
        _, another = serving({"GET jobs/job_1": ok(JOB)})
        job = client.get_job("job_1")
        assert isinstance(job, Job)
        assert "client" not in repr(job)
        assert job == another.get_job("job_1")

    def test_sends_records_to_every_round_as_devices(self) -> None:
        halves = [Participation(0, 1 << 63), Participation(1 << 63, 1 << 64)]
        specs = [to_wire(replace(round_spec(), participation=half)) for half in halves]
        states = [with_round(None), with_round("rnd_1"), with_round("rnd_1"), with_round(None), with_round("rnd_2")]
        service, client = serving(
            {
                "GET jobs/job_1": [*map(ok, states), ok(JOB | {"state": "succeeded"})],
                "GET rounds/rnd_1": ok(ROUND | {"spec": specs[0]}),
                "GET rounds/rnd_2": ok(ROUND | {"id": "rnd_2", "spec": specs[1]}),
                "POST rounds/rnd_1/reports": receipt,
                "POST rounds/rnd_2/reports": receipt,
            }
        )
        records = np.full((400, len(round_spec().features)), 0.5)
        assert a_submitted(client).send_as_devices(records).state == "succeeded"
        sent = [len(each.content) for each in service.requests if each.method == "POST"]
        assert len(sent) == 2
        report_bytes = len(perturb_records(round_spec(), records[:1]).values[0]) + 20
        assert sum(sent) == 400 * report_bytes  # each person reports to one of the rounds

    def test_waits_for_a_round(self) -> None:
        _, client = serving(
            {"GET jobs/job_1": [ok(with_round(None)), ok(with_round("rnd_1"))], "GET rounds/rnd_1": ok(ROUND)}
        )
        assert a_submitted(client).wait_for_round(timeout_seconds=60).id == "rnd_1"

    def test_does_not_wait_for_a_round_of_a_final_job(self) -> None:
        _, client = serving({"GET jobs/job_1": ok(JOB | {"state": "failed"})})
        with pytest.raises(InvalidSpec, match="the job is failed and opens no further round"):
            a_submitted(client).wait_for_round()

    def test_waits_for_a_round_no_longer_than_its_timeout(self) -> None:
        _, client = serving({"GET jobs/job_1": ok(with_round(None))})
        with pytest.raises(JobTimeout):
            a_submitted(client).wait_for_round(timeout_seconds=0.2)

    def test_reports_progress_to_a_callable(self) -> None:
        _, client = serving({"GET jobs/job_1": [ok(JOB), ok(JOB), ok(JOB | {"state": "failed"})]})
        states: list[str] = []
        assert client.get_job("job_1").wait(progress=lambda job: states.append(job.state)).state == "failed"
        assert states == ["collecting", "failed"]


class TestProgressLine:
    def test_is_written_to_a_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        terminal = Terminal()
        monkeypatch.setattr("sys.stderr", terminal)
        _, client = serving({"GET jobs/job_1": [ok(JOB), ok(JOB), ok(JOB | {"state": "succeeded"})]})
        client.get_job("job_1").wait()
        first, *drawn = terminal.getvalue().split("\r")
        assert first == ""
        assert drawn[0].startswith("collecting [###")
        assert "5 of 10 reports, round 1" in drawn[0]
        assert drawn[-1].startswith("succeeded, 0:0")
        assert drawn[-1].endswith("\n")

    def test_is_written_to_a_notebook(self, monkeypatch: pytest.MonkeyPatch) -> None:
        notebook = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
        monkeypatch.setattr("sys.stderr", notebook)
        with show_progress(None) as update:
            assert update is not None
            update(collecting(5_000))
        assert "collecting [###" in notebook.getvalue()

    def test_ends_after_a_time_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        terminal = Terminal()
        monkeypatch.setattr("sys.stderr", terminal)
        _, client = serving({"GET jobs/job_1": ok(JOB)})
        with pytest.raises(JobTimeout):
            client.get_job("job_1").wait(timeout_seconds=0)
        assert terminal.getvalue().endswith("\n")

    @pytest.mark.parametrize(("stream", "progress"), [(io.StringIO(), None), (Terminal(), False), (None, None)])
    def test_is_not_written_without_a_terminal(
        self, monkeypatch: pytest.MonkeyPatch, stream: Any, progress: bool | None
    ) -> None:
        monkeypatch.setattr("sys.stderr", stream)
        with show_progress(progress) as update:
            assert update is None

    def test_is_written_anywhere_on_request(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stream = io.StringIO()
        monkeypatch.setattr("sys.stderr", stream)
        with show_progress(True) as update:
            assert update is not None
            update(a_job())
        assert "collecting" in stream.getvalue()

    def test_covers_a_longer_line(self) -> None:
        stream = io.StringIO()
        line = ProgressLine(stream, clock=lambda: 0.0)
        line.update(collecting(9_999))
        line.update(a_job(state="running"))
        first, second = stream.getvalue().split("\r")[1:]
        assert len(second) == len(first)
        assert second.rstrip() == "running, 0:00"

    def test_stays_within_a_narrow_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "20")
        stream = io.StringIO()
        ProgressLine(stream).update(collecting(5))
        assert len(stream.getvalue().removeprefix("\r")) == 19

    @pytest.mark.parametrize(("n_received", "full"), [(0, 0), (5_000, 15), (9_999, 29), (10_000, 30), (99_999, 30)])
    def test_is_as_full_as_the_round(self, n_received: int, full: int) -> None:
        text = format_job(collecting(n_received), 42.9)
        assert text.count("#") == full
        assert text.count("#") + text.count("-") == BAR_CELLS
        assert text.endswith(f"{n_received:,} of 10,000 reports, round 1, 0:42")

    @pytest.mark.parametrize("job", [a_job(state="running"), collecting(5, None), a_job(state="queued")])
    def test_has_no_bar_without_a_target(self, job: Job) -> None:
        assert format_job(job, 3_661) == f"{job.state}, 61:01"

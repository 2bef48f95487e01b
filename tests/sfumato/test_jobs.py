"""A job that knows its client, and the line that says how far it is."""

import io
from typing import Any

import pytest

from sfumato import resources
from sfumato.errors import ApiProblem, JobTimeout
from sfumato.progress import BAR_CELLS, ProgressLine, described, shown
from sfumato.resources import Job
from tests.sfumato.answers import JOB, RESULT, ok, serving
from tests.sfumato.scripted import refusal


def a_job(**changes: Any) -> Job:
    return resources.job(JOB | changes)


def collecting(n_received: int, target: int | None = 10_000) -> Job:
    return a_job(progress=JOB["progress"] | {"n_received": n_received, "target_reports": target})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestASubmittedJob:
    def test_waits_and_fetches_its_result(self) -> None:
        service, client = serving(
            {
                "POST jobs": ok(JOB, 202),
                "GET jobs/job_1": [ok(JOB), ok(JOB | {"state": "succeeded"})],
                "GET jobs/job_1/result": ok(RESULT),
            }
        )
        from sfumato.specs import UniformGrid

        job = client.submit_job("ds_1", UniformGrid(epsilon=1), target_reports=10)
        done = job.wait()
        assert (job.state, done.state) == ("collecting", "succeeded")
        assert done.result().job_id == "job_1"
        assert service.requests[1].url.params["wait"] == "30"  # nobody looks, so the service may take its time

    def test_is_refreshed_and_cancelled(self) -> None:
        _, client = serving(
            {"GET jobs/job_1": ok(JOB), "POST jobs/job_1/cancel": ok(JOB | {"state": "canceled"})},
        )
        assert client.get_job("job_1").refresh().cancel().state == "canceled"

    def test_has_no_result_before_it_succeeded(self) -> None:
        _, client = serving({"GET jobs/job_1": ok(JOB), "GET jobs/job_1/result": refusal(409, "job_not_finished")})
        with pytest.raises(ApiProblem, match="job_not_finished"):
            client.get_job("job_1").result()

    def test_is_a_job_and_says_nothing_of_its_client(self) -> None:
        _, client = serving({"GET jobs/job_1": ok(JOB)})
        _, another = serving({"GET jobs/job_1": ok(JOB)})
        job = client.get_job("job_1")
        assert isinstance(job, Job)
        assert "client" not in repr(job)
        assert job == another.get_job("job_1")

    def test_is_told_to_a_callable(self) -> None:
        _, client = serving({"GET jobs/job_1": [ok(JOB), ok(JOB), ok(JOB | {"state": "failed"})]})
        seen: list[str] = []
        assert client.get_job("job_1").wait(progress=lambda job: seen.append(job.state)).state == "failed"
        assert seen == ["collecting", "failed"]


class TestTheLine:
    def test_is_drawn_on_a_terminal_and_left_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
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

    def test_ends_where_waiting_does(self, monkeypatch: pytest.MonkeyPatch) -> None:
        terminal = Terminal()
        monkeypatch.setattr("sys.stderr", terminal)
        _, client = serving({"GET jobs/job_1": ok(JOB)})
        with pytest.raises(JobTimeout):
            client.get_job("job_1").wait(timeout_seconds=0)
        assert terminal.getvalue().endswith("\n")

    @pytest.mark.parametrize(("stream", "progress"), [(io.StringIO(), None), (Terminal(), False), (None, None)])
    def test_is_not_drawn_where_nobody_looks(
        self, monkeypatch: pytest.MonkeyPatch, stream: Any, progress: bool | None
    ) -> None:
        monkeypatch.setattr("sys.stderr", stream)
        with shown(progress) as tell:
            assert tell is None

    def test_is_drawn_anywhere_when_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stream = io.StringIO()
        monkeypatch.setattr("sys.stderr", stream)
        with shown(True) as tell:
            assert tell is not None
            tell(a_job())
        assert "collecting" in stream.getvalue()

    def test_covers_what_was_longer_before(self) -> None:
        stream = io.StringIO()
        line = ProgressLine(stream, clock=lambda: 0.0)
        line.tell(collecting(9_999))
        line.tell(a_job(state="running"))
        first, second = stream.getvalue().split("\r")[1:]
        assert len(second) == len(first)
        assert second.rstrip() == "running, 0:00"

    def test_stays_within_a_narrow_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "20")
        stream = io.StringIO()
        ProgressLine(stream).tell(collecting(5))
        assert len(stream.getvalue().removeprefix("\r")) == 19

    @pytest.mark.parametrize(("n_received", "full"), [(0, 0), (5_000, 15), (9_999, 29), (10_000, 30), (99_999, 30)])
    def test_is_as_full_as_the_round(self, n_received: int, full: int) -> None:
        text = described(collecting(n_received), 42.9)
        assert text.count("#") == full
        assert text.count("#") + text.count("-") == BAR_CELLS
        assert text.endswith(f"{n_received:,} of 10,000 reports, round 1, 0:42")

    @pytest.mark.parametrize("job", [a_job(state="running"), collecting(5, None), a_job(state="queued")])
    def test_has_no_bar_where_no_length_is_known(self, job: Job) -> None:
        assert described(job, 3_661) == f"{job.state}, 61:01"

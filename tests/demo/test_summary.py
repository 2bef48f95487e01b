"""Tests of the demo's output: agreement, summary, files and tables."""

import io
import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from clustering.simulate import simulate
from demo import output, summary
from demo.scenario import DemoResult, Scene, Step
from sfumato.api.budgets import Budget
from sfumato.api.resources import Result, ResultRound
from sfumato.plotting import figures
from sfumato.privacy.ledger import GENESIS_HASH, Balance, Head, LedgerEntry, Verification
from sfumato.records.encodings import scale_many
from sfumato.specs import Feature, ShiftedGrid, to_wire

FEATURES = (Feature("left", -1.0, 1.0, "m"), Feature("right", -1.0, 1.0, "m"))


@pytest.fixture(scope="module")
def scene() -> Scene:
    """Return a scene with two groups of 4,000 people."""
    rng = np.random.default_rng(2)
    records = rng.normal(0, 0.1, size=(8000, 2)) + np.where(np.arange(8000)[:, None] % 2, 0.5, -0.5)
    return Scene("Two [heaps]", FEATURES, records, ShiftedGrid(epsilon=4, clusters=2), singles=10)


@pytest.fixture(scope="module")
def result(scene: Scene) -> DemoResult:
    model = simulate(scene.algorithm, scale_many(FEATURES, scene.records), seed=1, features=FEATURES)
    now = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
    entry = LedgerEntry(
        id="led_1",
        dataset_id="ds_1",
        seq=1,
        kind="grant",
        epsilon_nano=3_999_999_997,
        reference="ds_1",
        reservation=None,
        actor="key_1",
        at=now,
        granted_nano=3_999_999_997,
        reserved_nano=0,
        charged_nano=0,
        prev_hash=GENESIS_HASH,
        hash="ab" * 32,
    )
    result = Result(
        job_id="job_1",
        dataset_id="ds_1",
        algorithm=to_wire(scene.algorithm),
        epsilon=4.0,
        rounds=(ResultRound("rnd_1", 0, 8000, 4.0),),
        model=model,
        software_version="0",
        created_at=now,
    )
    head = Head(1, entry.hash)
    return DemoResult(result, (entry,), Budget("ds_1", Balance(3_999_999_997), 3_999_999_997, head), Verification(head))


class TestAgreement:
    def test_agreement_ignores_the_names_of_clusters(self, scene: Scene, result: DemoResult) -> None:
        exact = summary.compute_exact_labels(scene, seed=5)
        turns = np.arange(8000) % 2
        agreed = summary.measure_agreement(scene, result, exact, 7 - turns)
        assert agreed.with_unperturbed == pytest.approx(1.0, abs=0.01)
        assert agreed.with_labels == pytest.approx(1.0, abs=0.01)

    def test_records_without_a_label_are_ignored(self, scene: Scene, result: DemoResult) -> None:
        turns = np.arange(8000) % 2
        wrong = turns.copy()
        wrong[:4000] = np.random.default_rng(1).integers(0, 2, size=4000)
        half = summary.measure_agreement(scene, result, turns, wrong).with_labels
        wrong[:4000] = -1
        left_out = summary.measure_agreement(scene, result, turns, wrong).with_labels
        assert half is not None
        assert half < 0.5
        assert left_out == pytest.approx(1.0, abs=0.01)

    def test_different_clusters_do_not_agree(self, scene: Scene, result: DemoResult) -> None:
        other = np.random.default_rng(1).integers(0, 2, size=8000)
        agreed = summary.measure_agreement(scene, result, other, None)
        assert agreed.with_unperturbed == pytest.approx(0.0, abs=0.01)
        assert agreed.with_labels is None


class TestSummary:
    def test_the_summary_is_json_and_contains_the_cost(self, scene: Scene, result: DemoResult) -> None:
        document = summary.summarize(scene, result, summary.Agreement(0.5, None), ("a", "b"), 1.234)
        assert json.loads(json.dumps(document)) == document
        assert document["reports"] == 8000
        assert document["epsilon_granted"] == 3.999999997
        assert document["cities"] == ["a", "b"]
        assert "ari_vs_labels" not in document

    def test_the_summary_contains_the_agreement_with_labels(self, scene: Scene, result: DemoResult) -> None:
        document = summary.summarize(scene, result, summary.Agreement(0.5, 0.25), (), 1.0)
        assert document["ari_vs_labels"] == 0.25
        assert "cities" not in document


class TestFiles:
    def test_two_pictures_and_the_result_are_written(self, tmp_path: Path, scene: Scene, result: DemoResult) -> None:
        paths = summary.write_maps(tmp_path / "new" / "out", scene, result, ())
        paths["result"] = summary.write_result(tmp_path / "new" / "out", result, {"reports": 8000})
        assert "Two [heaps]" in Path(paths["svg"]).read_text()
        assert Path(paths["png"]).read_bytes().startswith(b"\x89PNG")
        document = json.loads(Path(paths["result"]).read_text())
        assert document["summary"] == {"reports": 8000}
        assert document["ledger"][0]["epsilon_nano"] == 3_999_999_997
        assert document["ledger"][0]["at"] == "2026-05-04T03:02:01+00:00"
        assert document["model"]["n_clusters"] == 2

    def test_two_maps_with_their_names_and_verdicts_are_in_one_picture(
        self, tmp_path: Path, result: DemoResult
    ) -> None:
        model = result.model
        panels = [figures.Panel(model, "Local [x]", 8000, ("Ur", "Uruk")), figures.Panel(model, "Shuffled")]
        paths = summary.write_panels(tmp_path / "new", "Two $heaps$", panels)
        picture = Path(paths["svg"]).read_text()
        texts = ("Two $heaps$", "Local [x]", "Shuffled", "Uruk", f"8,000 reports · verdict: {model.verdict.value}")
        assert [text for text in texts if text not in picture] == []
        assert Path(paths["png"]).read_bytes().startswith(b"\x89PNG")


class TestTables:
    def printed(self, *shown: object) -> str:
        console = Console(file=io.StringIO(), width=80, color_system=None)
        for function, *arguments in shown:  # type: ignore[misc]
            function(console, *arguments)
        written = console.file
        assert isinstance(written, io.StringIO)
        return written.getvalue()

    def test_the_table_shows_every_cluster(self, result: DemoResult) -> None:
        text = self.printed((output.print_clusters, result, ("Ur [x]", "Uruk")))
        assert "Ur [x]" in text
        assert "Uruk" in text
        assert figures.share(result.model, 0) in text
        assert "left, right" in text

    def test_the_table_shows_exact_ledger_amounts(self, result: DemoResult) -> None:
        text = self.printed((output.print_ledger, result))
        assert "3.999999997" in text
        assert "ds_1" in text

    def test_a_broken_chain_is_shown(self, scene: Scene, result: DemoResult) -> None:
        document = summary.summarize(scene, result, summary.Agreement(0.5, None), (), 1.0)
        paths = {"svg": "a", "png": "b", "result": "c"}
        assert "its hash chain is valid" in self.printed((output.print_conclusion, document | paths))
        assert "is broken" in self.printed((output.print_conclusion, document | paths | {"ledger_verified": False}))

    def test_progress_bars_of_steps_with_and_without_a_total(self) -> None:
        console = Console(file=io.StringIO(), width=80)
        bars = output.ProgressBars(console)
        bars.begin(Step.START, None)
        bars.end(Step.START)
        bars.begin(Step.SINGLES, 4)
        bars.advance(Step.SINGLES, 3)
        start, singles = bars.progress.tasks
        assert start.finished
        assert (singles.completed, singles.total, singles.finished) == (3, 4, False)
        bars.end(Step.SINGLES)
        assert bars.progress.finished


class TestEpsilon:
    @pytest.mark.parametrize(
        ("nano", "text"), [(0, "0"), (1, "0.000000001"), (2_000_000_000, "2"), (123, "0.000000123")]
    )
    def test_amounts_are_formatted_exactly(self, nano: int, text: str) -> None:
        assert output.format_epsilon(nano) == text

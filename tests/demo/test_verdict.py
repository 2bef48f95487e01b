"""What the demo says of a result: agreement, the summary, files, tables."""

import io
import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from clustering.simulate import simulate
from demo import show, verdict
from demo.story import Ending, Scene, Step
from sfumato import plot
from sfumato.encodings import scale_many
from sfumato.ledger import GENESIS_HASH, Balance, Head, LedgerEntry, Verification
from sfumato.resources import Budget, Result, ResultRound
from sfumato.specs import Feature, ShiftedGrid, to_wire

FEATURES = (Feature("left", -1.0, 1.0, "m"), Feature("right", -1.0, 1.0, "m"))


@pytest.fixture(scope="module")
def scene() -> Scene:
    """Two heaps of 4,000 people, in turns."""
    rng = np.random.default_rng(2)
    records = rng.normal(0, 0.1, size=(8000, 2)) + np.where(np.arange(8000)[:, None] % 2, 0.5, -0.5)
    return Scene("Two [heaps]", FEATURES, records, ShiftedGrid(epsilon=4, clusters=2), singles=10)


@pytest.fixture(scope="module")
def ending(scene: Scene) -> Ending:
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
        posted_nano=0,
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
    return Ending(result, (entry,), Budget("ds_1", Balance(3_999_999_997), 3_999_999_997, head), Verification(head))


class TestAgreement:
    def test_is_full_with_the_same_clusters_under_other_names(self, scene: Scene, ending: Ending) -> None:
        exact = verdict.exact_labels(scene, seed=5)
        turns = np.arange(8000) % 2
        agreed = verdict.agreement(scene, ending, exact, 7 - turns)
        assert agreed.with_unperturbed == pytest.approx(1.0, abs=0.01)
        assert agreed.with_labels == pytest.approx(1.0, abs=0.01)

    def test_leaves_out_records_without_a_label(self, scene: Scene, ending: Ending) -> None:
        turns = np.arange(8000) % 2
        wrong = turns.copy()
        wrong[:4000] = np.random.default_rng(1).integers(0, 2, size=4000)
        half = verdict.agreement(scene, ending, turns, wrong).with_labels
        wrong[:4000] = -1
        left_out = verdict.agreement(scene, ending, turns, wrong).with_labels
        assert half is not None
        assert half < 0.5
        assert left_out == pytest.approx(1.0, abs=0.01)

    def test_of_other_clusters_is_none(self, scene: Scene, ending: Ending) -> None:
        other = np.random.default_rng(1).integers(0, 2, size=8000)
        agreed = verdict.agreement(scene, ending, other, None)
        assert agreed.with_unperturbed == pytest.approx(0.0, abs=0.01)
        assert agreed.with_labels is None


class TestSummary:
    def test_is_json_and_says_what_was_spent(self, scene: Scene, ending: Ending) -> None:
        told = verdict.summary(scene, ending, verdict.Agreement(0.5, None), ("a", "b"), 1.234)
        assert json.loads(json.dumps(told)) == told
        assert told["reports"] == 8000
        assert told["epsilon_granted"] == 3.999999997
        assert told["cities"] == ["a", "b"]
        assert "ari_vs_labels" not in told

    def test_says_how_labels_agree_where_there_are_some(self, scene: Scene, ending: Ending) -> None:
        told = verdict.summary(scene, ending, verdict.Agreement(0.5, 0.25), (), 1.0)
        assert told["ari_vs_labels"] == 0.25
        assert "cities" not in told


class TestFiles:
    def test_are_a_picture_twice_and_the_result(self, tmp_path: Path, scene: Scene, ending: Ending) -> None:
        paths = verdict.draw(tmp_path / "new" / "out", scene, ending, ())
        paths["result"] = verdict.store(tmp_path / "new" / "out", ending, {"reports": 8000})
        assert "Two [heaps]" in Path(paths["svg"]).read_text()
        assert Path(paths["png"]).read_bytes().startswith(b"\x89PNG")
        document = json.loads(Path(paths["result"]).read_text())
        assert document["summary"] == {"reports": 8000}
        assert document["ledger"][0]["epsilon_nano"] == 3_999_999_997
        assert document["ledger"][0]["at"] == "2026-05-04T03:02:01+00:00"
        assert document["model"]["n_clusters"] == 2


class TestTables:
    def printed(self, *shown: object) -> str:
        console = Console(file=io.StringIO(), width=80, color_system=None)
        for function, *arguments in shown:  # type: ignore[misc]
            function(console, *arguments)
        written = console.file
        assert isinstance(written, io.StringIO)
        return written.getvalue()

    def test_show_every_cluster_with_its_label_and_city(self, ending: Ending) -> None:
        text = self.printed((show.clusters, ending, ("Ur [x]", "Uruk")))
        assert "Ur [x]" in text
        assert "Uruk" in text
        assert plot.share(ending.model, 0) in text
        assert "left, right" in text

    def test_show_the_ledger_exactly(self, ending: Ending) -> None:
        text = self.printed((show.ledger, ending))
        assert "3.999999997" in text
        assert "ds_1" in text

    def test_a_broken_chain_is_said_aloud(self, scene: Scene, ending: Ending) -> None:
        told = verdict.summary(scene, ending, verdict.Agreement(0.5, None), (), 1.0)
        paths = {"svg": "a", "png": "b", "result": "c"}
        assert "every hash of its chain holds" in self.printed((show.last_word, told | paths))
        assert "does not hold" in self.printed((show.last_word, told | paths | {"ledger_verified": False}))

    def test_progress_goes_through_steps_known_and_unknown(self) -> None:
        console = Console(file=io.StringIO(), width=80)
        bars = show.Bars(console)
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
    def test_is_written_exactly(self, nano: int, text: str) -> None:
        assert show.epsilon(nano) == text

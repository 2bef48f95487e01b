"""Tests of the aggregation against a plain Python implementation."""

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from clustering.rounds.counting import check_packed
from clustering.rounds.tally import Tally
from models.tables.rounds import RoundState
from sfumato.mechanisms import design
from sfumato.specs import Feature, GridEncoding, GrrMechanism, RoundSpec, ShiftedGridEncoding
from tests import naive
from tests.databases import on_both_databases
from tests.workers.collection import Collection, packed_reports
from workers.aggregation.aggregate import Aggregation, Part, aggregate, aggregate_part, aggregate_round
from workers.aggregation.duplicate_filter import new_keys
from workers.aggregation.id_set import NEW, REPEATED, IdSet

FEATURES = (Feature("x", 0, 1), Feature("y", 0, 1))


def spec_of(kind: str) -> RoundSpec:
    encoding = GridEncoding((30, 30)) if kind == "grr" else ShiftedGridEncoding(2, cells=4, shifts=3)
    return RoundSpec(FEATURES, encoding, design(kind, encoding.n_symbols, 2_000_000_000))


def naive_aggregation(spec: RoundSpec, rows: list[bytes]) -> Aggregation:
    """Aggregate in plain Python: one report at a time, with a set of ids."""
    width = 20 + spec.mechanism.value_bytes
    counts = np.zeros((spec.encoding.n_slots, spec.mechanism.tally_width), dtype=np.int64)
    reports = np.zeros(spec.encoding.n_slots, dtype=np.int64)
    seen: set[bytes] = set()
    n_repeated = n_malformed = 0
    for row in rows:
        if len(row) % width:
            n_malformed += -(-len(row) // width)
            continue
        for begin in range(0, len(row), width):
            record = row[begin : begin + width]
            report_id, slot, value = record[:16], int.from_bytes(record[16:20], "little"), record[20:]
            if slot >= spec.encoding.n_slots or not spec.mechanism.is_value(value):
                n_malformed += 1
            elif report_id in seen:
                n_repeated += 1
            else:
                seen.add(report_id)
                reports[slot] += 1
                for symbol in naive.supported_symbols(spec.mechanism, value):
                    counts[slot, symbol] += 1
    return Aggregation(Tally(counts, reports), n_repeated, n_malformed)


def rows_with_repeats(spec: RoundSpec, seed: int) -> list[bytes]:
    """Batches in which ids come again: within a batch, across batches, with other bytes behind them."""
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 1 << 63, size=(400, 2), dtype=np.uint64)
    words[0] = 0  # the id of zeros is an id like any other
    words[1:40, 0] = words[0, 0]  # ids that agree in one half only are different
    words[40:80, 1] = words[0, 1]
    rows = []
    for batch in range(8):
        chosen = words[rng.integers(0, len(words), size=int(rng.integers(1, 120)))]
        rows.append(packed_reports(spec, len(chosen), seed * 100 + batch, ids=chosen))
    return rows


def log_of(rows: list[bytes]) -> Callable[[], list[bytes]]:
    return lambda: rows


class CountedLog:
    """A log that knows how often it was read."""

    def __init__(self, rows: list[bytes]) -> None:
        self.rows, self.n_readings = rows, 0

    def __call__(self) -> list[bytes]:
        self.n_readings += 1
        return self.rows


@pytest.mark.parametrize("kind", ["ss", "grr", "oue", "olh", "hr"])
class TestAgainstThePlainTwin:
    @pytest.mark.parametrize("seed", range(5))
    def test_repeats_within_and_across_batches_count_once(self, kind: str, seed: int) -> None:
        spec = spec_of(kind)
        rows = rows_with_repeats(spec, seed)
        expected = naive_aggregation(spec, rows)
        assert expected.n_repeated > 50
        assert aggregate(spec, log_of(rows), n_expected=2000) == expected

    @pytest.mark.parametrize("n_expected", [0, 1, 10_000])
    def test_a_wrong_expectation_changes_nothing(self, kind: str, n_expected: int) -> None:
        spec = spec_of(kind)
        rows = rows_with_repeats(spec, 7)
        assert aggregate(spec, log_of(rows), n_expected=n_expected) == naive_aggregation(spec, rows)

    @pytest.mark.parametrize("n_threads", [1, 2])
    def test_a_log_is_read_once_and_once_more_where_ids_came_twice(self, kind: str, n_threads: int) -> None:
        spec = spec_of(kind)
        for rows, n_expected_readings in ((rows_with_repeats(spec, 8), 2), ([packed_reports(spec, 300, 8)], 1)):
            log = CountedLog(rows)
            assert aggregate(spec, log, n_expected=400, n_threads=n_threads) == naive_aggregation(spec, rows)
            assert log.n_readings == n_expected_readings

    def test_parts_add_up_to_the_whole(self, kind: str) -> None:
        spec, keys = spec_of(kind), new_keys()
        rows = [*rows_with_repeats(spec, 10), b"cut"]
        expected = naive_aggregation(spec, rows)
        parts = [aggregate_part(spec, log_of(rows), Part(number, 3, keys), n_expected=400) for number in range(3)]
        total = Tally.empty(spec)
        for counting, _ in parts:
            assert counting.result().n_reports > 20
            total = total + counting.result()
        assert total == expected.tally
        assert sum(counted.n_repeated for _, counted in parts) == expected.n_repeated
        assert {(counted.n_broken, counted.n_bytes) for _, counted in parts} == {(1, sum(map(len, rows)))}

    def test_malformed_rows_are_dropped_and_counted(self, kind: str) -> None:
        spec = spec_of(kind)
        width = 20 + spec.mechanism.value_bytes
        rows = [bytearray(row) for row in rows_with_repeats(spec, 9)]
        rows[0] += b"\x00"  # cut somewhere: the whole row is in doubt
        rows[1][16:20] = b"\xff\xff\xff\xff"  # a slot there is not
        rows[2][20:width] = b"\xff" * (width - 20)  # a value no device sends
        expected = naive_aggregation(spec, [bytes(row) for row in rows])
        assert expected.n_malformed == -(-len(rows[0]) // width) + 2
        assert aggregate(spec, log_of([bytes(row) for row in rows]), n_expected=400) == expected

    def test_an_empty_log_gives_an_empty_tally(self, kind: str) -> None:
        spec = spec_of(kind)
        assert aggregate(spec, log_of([]), n_expected=0) == Aggregation(Tally.empty(spec), 0, 0)


class TestTwoThreads:
    @pytest.fixture(autouse=True)
    def short_chunks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("workers.aggregation.aggregate.JOINED_BYTES", 1)

    @pytest.mark.parametrize("kind", ["ss", "grr", "olh"])
    def test_count_chunks_in_turn_and_add_them_up(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        spec = spec_of(kind)
        rows = [
            *(packed_reports(spec, 50, seed) for seed in range(40)),
            b"cut",
            b"\xff" * (20 + spec.mechanism.value_bytes),
        ]
        expected = naive_aggregation(spec, rows)
        assert (expected.tally.n_reports, expected.n_malformed) == (2000, 2)
        met, arrived = threading.Barrier(2, timeout=60), threading.local()

        def check(spec: RoundSpec, records: NDArray[np.uint8]) -> NDArray[np.uint8]:
            if not hasattr(arrived, "once"):  # the first chunk of each thread waits for that of the other one
                arrived.once = True
                met.wait()
            return check_packed(spec, records)

        monkeypatch.setattr("workers.aggregation.aggregate.check_packed", check)
        assert aggregate(spec, log_of(rows), n_expected=2000, n_threads=2) == expected

    def test_count_in_turn_only_into_small_tallies(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("workers.aggregation.aggregate.MAX_OWN_COUNTERS", 900)
        for kind, names in (("grr", {"count-log"}), ("hr", set())):
            encoding = GridEncoding((30, 30))
            spec = RoundSpec(FEATURES, encoding, design(kind, encoding.n_symbols, 2_000_000_000))
            seen: set[str] = set()

            def log(spec: RoundSpec = spec, seen: set[str] = seen) -> Iterator[bytes]:
                for seed in range(20):
                    seen.update(each.name.split("_")[0] for each in threading.enumerate())
                    time.sleep(0.001)
                    yield packed_reports(spec, 10, seed)

            aggregate(spec, log, n_expected=200, n_threads=2)
            assert seen & {"count-log"} == names

    def test_end_when_the_log_cannot_be_read(self) -> None:
        spec = spec_of("grr")

        def log() -> Iterator[bytes]:
            yield packed_reports(spec, 50, 1)
            raise ConnectionError("the database went away")

        with pytest.raises(ConnectionError, match="went away"):
            aggregate(spec, log, n_expected=100, n_threads=2)
        assert [each for each in threading.enumerate() if each.name.startswith("count-log")] == []

    def test_end_when_one_of_them_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        spec, n_read = spec_of("grr"), 0
        packed = packed_reports(spec, 50, 1)

        def log() -> Iterator[bytes]:
            nonlocal n_read
            while True:  # an endless log, so a thread that does not stop would hang
                n_read += 1
                yield packed

        def fail(*_: object) -> None:
            if threading.current_thread() is not threading.main_thread():
                raise MemoryError("no memory for the tally")

        monkeypatch.setattr("clustering.rounds.counting.count_numbers", fail)
        with pytest.raises(MemoryError, match="no memory"):
            aggregate(spec, log, n_expected=100, n_threads=2)
        assert n_read > 0


class TestTheFirstCounts:
    def test_of_reports_with_one_id_the_first_in_the_log_counts(self) -> None:
        mechanism = GrrMechanism.design(900, 1_000_000_000)
        spec = RoundSpec(FEATURES, GridEncoding((30, 30)), mechanism)
        rows = [bytes(16) + bytes(4) + symbol.to_bytes(2, "little") for symbol in (5, 6, 7)]
        tally = aggregate(spec, log_of(rows), n_expected=3).tally
        assert tally.counts[0, 5] == 1
        assert tally.n_reports == 1


class TestIdSet:
    def test_it_grows_and_forgets_nothing(self) -> None:
        ids = np.arange(1, 80_001, dtype=np.uint64).reshape(-1, 2)
        ids = np.concatenate([np.zeros((1, 2), dtype=np.uint64), ids])
        grown = IdSet(1)
        for part in np.array_split(ids, 50):
            assert (grown.add(part) == NEW).all()
        assert (grown.add(ids[::-1].copy()) == REPEATED).all()

    def test_what_it_says_does_not_depend_on_its_keys(self) -> None:
        ids = np.random.default_rng(2).integers(0, 50, size=(1000, 2), dtype=np.uint64)
        assert (IdSet(1000, keys=(1, 2)).add(ids) == IdSet(1000).add(ids)).all()

    def test_ids_that_differ_in_few_bits_do_not_crowd(self) -> None:
        IdSet(1).add(np.ones((1, 2), dtype=np.uint64))  # compiled
        counting = np.zeros((400_000, 2), dtype=np.uint64)
        counting[:, 1] = np.arange(400_000, dtype=np.uint64) << np.uint64(40)
        began = time.process_time()
        assert (IdSet(len(counting)).add(counting) == NEW).sum() == len(counting)
        assert time.process_time() - began < 5  # some .05 s; crowded into one run of places it would be minutes


@on_both_databases
class TestStoredLog:
    def test_the_log_in_the_database_gives_the_same_tally(self, collection: Collection) -> None:
        spec = RoundSpec((Feature("x", 0.0, 10.0),), GridEncoding((12,)), design("ss", 12, 500_000_000))
        round_id = collection.open_alone(spec, target_reports=300)
        asked = collection.get_open_round()
        collection.answer(asked, 250, batches=40)
        collection.answer(asked, 50, batches=1)  # the same seed: 50 ids come again
        collection.close(round_id)
        with collection.database.reading() as session:
            closed = session.get_one(type(asked), round_id)
        assert closed.state == RoundState.CLOSED
        aggregation = aggregate_round(collection.database, closed)
        assert aggregation == naive_aggregation(spec, [packed_reports(spec, 250, 0), packed_reports(spec, 50, 0)])
        assert (aggregation.tally.n_reports, aggregation.n_repeated) == (250, 50)

    def test_rows_larger_than_a_page_and_tiny_ones_are_all_read(
        self, collection: Collection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("_PAGE_BYTES", "_STREAM_BYTES"):
            monkeypatch.setattr(f"models.collection.report_log.{name}", 2000)
        spec = RoundSpec((Feature("x", 0.0, 10.0),), GridEncoding((12,)), design("ss", 12, 500_000_000))
        collection.open_alone(spec, target_reports=1200)
        asked = collection.get_open_round()
        for seed, (n, batches) in enumerate([(100, 100), (500, 1), (100, 50), (400, 2), (100, 100)]):
            collection.answer(asked, n, batches=batches, seed=1000 * seed)
        assert aggregate_round(collection.database, asked).tally.n_reports == 1200

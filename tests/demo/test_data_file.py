"""Tests of records from files: valid files, and the errors for invalid ones."""

from pathlib import Path

import numpy as np
import pytest

from demo import data_file
from demo.data_file import DataError


def csv(folder: Path, text: str, name: str = "people.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def npz(folder: Path, **arrays: np.ndarray) -> Path:
    path = folder / "people.npz"
    np.savez(path, **arrays)
    return path


class TestCsv:
    def test_all_columns_except_labels_and_identifiers_are_read(self, tmp_path: Path) -> None:
        read = data_file.read(csv(tmp_path, "uid,lon, lat,label\n7,1.5,2,b\n8,-3,4e1,a\n\n9,0,0,\n"), None)
        assert read.names == ("lon", "lat")
        assert read.values.tolist() == [[1.5, 2.0], [-3.0, 40.0], [0.0, 0.0]]
        assert read.labels is not None
        assert read.labels.tolist() == [1, 0, -1]  # the last has none

    def test_named_columns_are_read_in_the_given_order(self, tmp_path: Path) -> None:
        read = data_file.read(csv(tmp_path, "a,b,c,d\n1,2,x,4\n5,6,y,8\n"), ["d", "a"])
        assert read.names == ("d", "a")
        assert read.values.tolist() == [[4.0, 1.0], [8.0, 5.0]]
        assert read.labels is None

    def test_files_of_spreadsheets_are_read(self, tmp_path: Path) -> None:
        path = tmp_path / "sheet.csv"
        path.write_bytes('\ufeff"a","b"\r\n"1","2"\r\n'.encode())
        assert data_file.read(path, None).values.tolist() == [[1.0, 2.0]]

    @pytest.mark.parametrize(
        ("text", "names", "complaint"),
        [
            ("", None, "has no header"),
            ("a,b\n", None, "contains no record"),
            ("a,b\n1,2\n3,private\n", None, "line 3: b is not a number"),
            ("a,b\n1,2\n3\n", None, "line 3: the header has 2 columns"),
            ("a,b\n1,2\n3,nan\n", None, "record 2 has a value that is not a finite number"),
            ("a,b\n1,2\ninf,3\n", None, "record 2 has a value that is not a finite number"),
            ("a,b\n1,2\n", ["a", "z"], "has no column z; it has a, b"),
            ("a,b,c,d\n1,2,3,4\n", None, "choose 1 to 3 with --features"),
            ("label,id\n1,2\n", None, "choose 1 to 3 with --features"),
        ],
    )
    def test_the_error_names_the_problem_but_no_value(
        self, tmp_path: Path, text: str, names: list[str] | None, complaint: str
    ) -> None:
        with pytest.raises(DataError) as caught:
            data_file.read(csv(tmp_path, text), names)
        assert complaint in str(caught.value)
        assert "private" not in str(caught.value)

    def test_a_binary_file_is_rejected(self, tmp_path: Path) -> None:
        path = tmp_path / "people.csv"
        path.write_bytes(b"a,b\n\xff\xfe\x00,1\n")
        with pytest.raises(DataError, match="not a CSV file in UTF-8"):
            data_file.read(path, None)


class TestNpz:
    def test_x_and_y_are_read_and_other_arrays_ignored(self, tmp_path: Path) -> None:
        points = np.array([[1, 2], [3, 4]], dtype=np.float32)
        read = data_file.read(npz(tmp_path, X=points, y=np.array([0, 1]), uid=np.array([5, 5])), ["lon", "lat"])
        assert read.names == ("lon", "lat")
        assert read.values.dtype == np.float64
        assert np.array_equal(read.values, points)
        assert read.labels is not None
        assert read.labels.tolist() == [0, 1]

    def test_negative_labels_are_no_labels(self, tmp_path: Path) -> None:
        assert data_file.read(npz(tmp_path, X=np.ones((2, 1)), y=np.array([-1, -1])), None).labels is None

    def test_a_one_dimensional_array_is_one_feature(self, tmp_path: Path) -> None:
        read = data_file.read(npz(tmp_path, X=np.arange(3.0)), None)
        assert read.names == ("x1",)
        assert read.values.shape == (3, 1)

    @pytest.mark.parametrize(
        ("arrays", "names", "complaint"),
        [
            ({"Z": np.ones((2, 2))}, None, "contains no array X"),
            ({"X": np.ones((2, 4))}, None, "X has shape (2, 4)"),
            ({"X": np.ones((2, 2, 2))}, None, "X has shape (2, 2, 2)"),
            ({"X": np.ones((0, 2))}, None, "contains no record"),
            ({"X": np.ones((2, 2))}, ["a"], "X has 2 columns, --features names 1"),
            ({"X": np.ones((2, 2)), "y": np.ones(3)}, None, "y has shape (3,)"),
            ({"X": np.array([[1, np.nan]])}, None, "record 1 has a value that is not a finite number"),
            ({"X": np.array([["a", "b"]])}, None, "not an NPZ file of numbers"),
            ({"X": np.array([[{}, {}]], dtype=object)}, None, "not an NPZ file of numbers"),
        ],
    )
    def test_the_error_names_the_problem(
        self, tmp_path: Path, arrays: dict[str, np.ndarray], names: list[str] | None, complaint: str
    ) -> None:
        with pytest.raises(DataError) as caught:
            data_file.read(npz(tmp_path, **arrays), names)
        assert complaint in str(caught.value)

    def test_an_invalid_file_is_rejected(self, tmp_path: Path) -> None:
        path = tmp_path / "people.npz"
        path.write_bytes(b"not a zip archive")
        with pytest.raises(DataError, match="not an NPZ file"):
            data_file.read(path, None)


class TestFiles:
    def test_a_missing_file_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"there is no file .*gone\.csv"):
            data_file.read(tmp_path / "gone.csv", None)

    def test_other_suffixes_are_rejected(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"must end in \.csv or \.npz"):
            data_file.read(csv(tmp_path, "a\n1\n", "people.xlsx"), None)


class TestBounds:
    def test_bounds_are_parsed(self) -> None:
        assert data_file.parse_bounds("-180:180,-6e1:80.5") == [(-180.0, 180.0), (-60.0, 80.5)]
        (first, second) = data_file.make_features(("a", "b"), [(-1.0, 1.0), (0.0, 2.0)])
        assert (first.name, first.lower, second.upper) == ("a", -1.0, 2.0)

    @pytest.mark.parametrize("text", ["", "1", "1:2:3", "a:b", "1:2,", "1-2"])
    def test_malformed_bounds_are_rejected(self, text: str) -> None:
        with pytest.raises(DataError, match="lo:hi,lo:hi"):
            data_file.parse_bounds(text)

    @pytest.mark.parametrize("bounds", [[(1.0, 1.0)], [(2.0, 1.0)], [(np.nan, 1.0)], [(0.0, np.inf)], []])
    def test_invalid_bounds_are_rejected(self, bounds: list[tuple[float, float]]) -> None:
        with pytest.raises(DataError, match="--bounds"):
            data_file.make_features(("a",), bounds)

    def test_the_range_of_the_data_contains_all_values(self) -> None:
        values = np.array([[1.0, 5.0], [2.0, 5.0], [1e300, 5.0]])
        for (lower, upper), column in zip(data_file.find_ranges(values), values.T, strict=True):
            assert lower <= column.min()
            assert column.max() <= upper
            assert lower < upper

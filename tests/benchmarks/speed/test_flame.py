"""Flame graphs: from stacks to a picture of functions and shares."""

import pytest

from benchmarks.speed import flame

STACKS = [
    "main (/opt/somewhere/app.py:3);work (/opt/somewhere/app.py:9);sum (/opt/venv/numpy/core.py:1) 6",
    "main (/opt/somewhere/app.py:3);work (/opt/somewhere/app.py:11) 2",
    "main (/opt/somewhere/app.py:4);<listcomp> (app.py:5) 2",
    " 7",
]


def test_samples_are_summed_by_function():
    root = flame.read(STACKS)
    assert root.n_samples == 10
    (main,) = root.below.values()
    assert {name: frame.n_samples for name, frame in main.below.items()} == {"work (app)": 8, "<listcomp> (app)": 2}


def test_below_keeps_only_the_calls_of_a_function():
    root = flame.read(STACKS, "work")
    assert (root.name, root.n_samples) == ("work", 8)
    assert {frame.n_samples for frame in root.below.values()} == {6}


@pytest.mark.parametrize(("lines", "below"), [(["no number here"], None), (STACKS, "nowhere"), ([], None)])
def test_input_without_stacks_is_refused(lines, below):
    with pytest.raises(ValueError, match="stack"):
        flame.read(lines, below)


def test_the_picture_has_functions_and_no_paths(tmp_path):
    (tmp_path / "stacks.txt").write_text("\n".join(STACKS))
    assert flame.main([str(tmp_path / "stacks.txt"), str(tmp_path / "out.svg"), "--title", "a < b"]) == 0
    text = (tmp_path / "out.svg").read_text()
    assert "work (app) 80.0%" in text
    assert "&lt;listcomp&gt;" in text
    assert "a &lt; b" in text
    assert "/opt" not in text
    assert "script" not in text


def test_a_file_without_stacks_ends_with_a_message(tmp_path, capsys):
    (tmp_path / "stacks.txt").write_text("nothing\n")
    with pytest.raises(SystemExit):
        flame.main([str(tmp_path / "stacks.txt"), str(tmp_path / "out.svg")])
    assert "no stack" in capsys.readouterr().err

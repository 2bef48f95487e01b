"""The picture of additive and Gaussian accounting."""

from pathlib import Path

from tools.accounting_picture import compute_curves, draw


class TestPicture:
    def test_shows_where_each_kind_reaches_the_grant(self) -> None:
        curves = compute_curves()
        assert curves["additive"][10] <= 2 < curves["additive"][11]
        assert curves["gaussian"][112] <= 2 < curves["gaussian"][113]

    def test_is_a_picture_of_the_curves(self, tmp_path: Path) -> None:
        draw(tmp_path / "accounting.svg")
        assert "<svg" in (tmp_path / "accounting.svg").read_text(encoding="utf-8")

"""The list of values that distinguish a cluster."""

from clustering.profiles.distinctions import LISTED, Distinction, list_clearest


def _distinction(value: int, difference: tuple[float, float, float], *, cluster: int = 0) -> Distinction:
    share = 0.2 + difference[0]
    return Distinction(cluster, 0, value, share, 0.01, 0.2, difference, (share / 0.2, 0.5, 2.0))


class TestListClearest:
    def test_a_short_list_is_complete_and_has_no_warning(self):
        found = [_distinction(value, (0.1, 0.05, 0.15)) for value in range(LISTED)]
        assert list_clearest(found) == (found, [])

    def test_of_many_values_the_clearest_differences_stay_in_order(self):
        rare = [_distinction(value, (0.02, 0.015 - 1e-5 * value, 0.025)) for value in range(LISTED)]
        large = [_distinction(LISTED, (-0.15, -0.2, -0.1)), _distinction(LISTED + 1, (0.3, 0.2, 0.4))]
        unclear = [_distinction(LISTED + 2, (0.4, -0.1, 0.9))]
        kept, (warning,) = list_clearest([*rare, *large, *unclear])
        assert kept == [*rare[: LISTED - 2], *large]
        assert warning.startswith(f"{LISTED + 3} values distinguish a cluster. The list has the {LISTED} clearest")

    def test_each_cluster_has_a_limit_of_its_own(self):
        many = [_distinction(value, (0.1, 0.05, 0.15)) for value in range(LISTED + 1)]
        other = _distinction(0, (0.01, 0.001, 0.02), cluster=1)
        kept, _ = list_clearest([*many, other])
        assert kept == [*many[:LISTED], other]

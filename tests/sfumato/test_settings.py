"""Settings of datasets: one declaration, which the interfaces of all languages and pages follow."""

from collections.abc import Mapping
from dataclasses import fields
from types import NoneType
from typing import Any, cast, get_args

import pytest

from sfumato import Client
from sfumato.api.resources import Dataset
from sfumato.errors import InvalidSetting
from sfumato.settings import (
    SETTINGS,
    CentralSettings,
    DatasetOptions,
    LocalSettings,
    ShuffledSettings,
    Shuffler,
    all_settings,
    settings_of,
)
from sfumato.specs.attributes import Categorical

OTHER: Mapping[str, Any] = {
    "min_reports": 7,
    "keep_reports": True,
    "out_of_bounds": "clip",
    "shuffler": Shuffler("Example Foundation", "https://shuffler.example", "key"),
    "user_feature": "who",
    "fold_user_case": True,
    "max_records_per_user": 3,
    "attributes": (Categorical("plan", ("free", "pro")),),
}  # a value of each setting that is not its default

FOREIGN = [
    (trust, name)
    for trust, kind in SETTINGS.items()
    for name, setting in all_settings().items()
    if trust not in setting.trusts and name not in kind.ignored
]


class TestDeclarations:
    def test_are_those_of_the_keyword_arguments_and_of_the_resource(self) -> None:
        declared = all_settings()
        assert declared.keys() == DatasetOptions.__annotations__.keys() == OTHER.keys()
        resource = {each.name: each.type for each in fields(Dataset)}
        for name, setting in declared.items():
            assert name in resource, name
            for annotation in (DatasetOptions.__annotations__[name], resource[name]):
                options = {option for option in get_args(annotation) if option is not NoneType}
                if setting.parameter.kind in (int, bool):
                    assert annotation is setting.parameter.kind
                elif setting.parameter.kind is str and not setting.parameter.choices:
                    assert options == {str}

    def test_have_a_label_and_an_attribute_of_the_method(self) -> None:
        for name, setting in all_settings().items():
            assert setting.parameter.label, name
            assert f"{name} : " in str(Client.create_dataset.__doc__)


class TestSettings:
    @pytest.mark.parametrize("trust", SETTINGS)
    def test_have_defaults(self, trust: str) -> None:
        given = {"shuffler": OTHER["shuffler"]} if trust == "shuffled" else {}
        found: Any = settings_of(trust, cast(DatasetOptions, given))
        assert found.trust == trust
        assert found.out_of_bounds == ("clip" if trust == "central" else "count")

    def test_take_the_given_values(self) -> None:
        own = {name: value for name, value in OTHER.items() if "central" in all_settings()[name].trusts}
        assert settings_of("central", cast(DatasetOptions, own)) == CentralSettings(**own)
        assert settings_of("local", {"min_reports": 7, "keep_reports": True}) == LocalSettings(
            min_reports=7, keep_reports=True
        )

    @pytest.mark.parametrize(("trust", "name"), FOREIGN)
    def test_of_other_trust_models_are_refused_unless_they_are_defaults(self, trust: str, name: str) -> None:
        needed = {"shuffler": OTHER["shuffler"]} if trust == "shuffled" else {}
        with pytest.raises(InvalidSetting, match=f"{name} applies to .* datasets only: leave it out") as caught:
            settings_of(trust, cast(DatasetOptions, needed | {name: OTHER[name]}))
        assert caught.value.member == name
        settings_of(trust, cast(DatasetOptions, needed | {name: all_settings()[name].default}))

    @pytest.mark.parametrize(
        ("trust", "given", "member", "message"),
        [
            ("shuffled", {}, "shuffler", "a shuffled dataset needs a shuffler"),
            ("local", {"min_reports": 0}, "min_reports", "in the range 1 to"),
            ("local", {"min_reports": True}, "min_reports", "must be an integer"),
            ("local", {"keep_reports": 1}, "keep_reports", "must be true or false"),
            ("local", {"out_of_bounds": "refuse"}, "out_of_bounds", "must be one of count, clip"),
            ("central", {"out_of_bounds": "count"}, "out_of_bounds", "must be one of clip, refuse"),
            ("central", {"user_feature": ""}, "user_feature", "must be a text"),
            ("central", {"user_feature": "a\u200b"}, "user_feature", "must be"),
            ("central", {"fold_user_case": True}, "fold_user_case", "needs a user_feature"),
            ("central", {"max_records_per_user": 2}, "max_records_per_user", "needs a user_feature"),
            ("central", {"user_feature": "u", "max_records_per_user": 10**7}, "max_records_per_user", "in the range"),
        ],
    )
    def test_that_are_invalid_name_the_member(self, trust: str, given: Any, member: str, message: str) -> None:
        with pytest.raises(InvalidSetting, match=message) as caught:
            settings_of(trust, given)
        assert caught.value.member == member

    def test_of_shuffled_datasets_keep_no_reports(self) -> None:
        assert not hasattr(ShuffledSettings(shuffler=OTHER["shuffler"]), "keep_reports")

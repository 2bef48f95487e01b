"""Annotations of the public methods of both clients: they resolve and name the returned types, also in `help`."""

import inspect
import pydoc
import re
import typing
from collections.abc import AsyncIterator, Generator, Iterator
from types import NoneType
from typing import Any

import httpx
import pytest

from sfumato import AsyncClient, Client
from sfumato.api.resources import Dataset
from sfumato.api.submitted_jobs import SubmittedJob
from sfumato.transport.exchange import Listing

CLIENTS = [Client, AsyncClient]


def methods(client: type) -> dict[str, Any]:
    """Return the public methods."""
    return {name: each for name, each in inspect.getmembers(client, callable) if not name.startswith("_")}


@pytest.mark.parametrize("client", CLIENTS)
class TestMethods:
    def test_have_annotations_that_resolve(self, client: type) -> None:
        assert len(methods(client)) > 40
        for name, method in methods(client).items():
            hints = typing.get_type_hints(method)
            shown = inspect.signature(method).return_annotation
            assert hints["return"] == (NoneType if shown is None else shown), name
            assert typing.get_origin(hints["return"]) not in (Generator, Listing), name
            assert set(inspect.signature(method).parameters) - {"self"} == set(hints) - {"return"}, name
        assert typing.get_type_hints(client.__init__, localns={"httpx": httpx})["url"] == str | None

    def test_are_the_only_ones_in_help(self, client: type) -> None:
        text = pydoc.render_doc(client, renderer=pydoc.plaintext)
        listed = set(re.findall(r"^ \|  (?:async )?(\w+)\(", text, re.M))
        assert listed >= set(methods(client))
        assert {name for name in listed if name.startswith("_") and not name.endswith("__")} == set()
        assert "Generator[" not in text


def test_return_types_are_those_of_the_client() -> None:
    assert typing.get_type_hints(Client.datasets)["return"] == Iterator[Dataset]
    assert typing.get_type_hints(Client.submit_job)["return"] is SubmittedJob
    listed = typing.get_type_hints(AsyncClient.datasets)["return"]
    assert typing.get_origin(listed) is AsyncIterator

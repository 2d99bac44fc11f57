"""The client's guide documents every option of both forms. tests/docs runs its examples."""

import inspect
from dataclasses import fields
from pathlib import Path

import pytest

from nsq_compat import client
from nsq_compat.client import aio
from nsq_compat.client.settings import ConnectionSettings, SubscriptionSettings
from tests.docs.blocks import blocks

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
KINDS = ["Consumer", "LogReader", "Producer"]


def options_of(made: type) -> set[str]:
    parameters = inspect.signature(made).parameters
    return {name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY}


def test_every_option_is_in_the_guide():
    names = {each.name for settings in (ConnectionSettings, SubscriptionSettings) for each in fields(settings)}
    for kind in KINDS:
        names |= options_of(getattr(client, kind)) | options_of(getattr(aio, kind))
    assert [name for name in sorted(names) if f"`{name}" not in PAGE.read_text()] == []


@pytest.mark.parametrize("kind", KINDS)
def test_both_forms_have_the_same_options_except_those_of_publishing_in_threads(kind):
    for_threads = {"batch_linger", "batch_workers"}
    assert options_of(getattr(client, kind)) - for_threads == options_of(getattr(aio, kind))


def test_the_example_with_fastapi_is_valid():
    (example,) = (block.text for block in blocks("client.md", PAGE.read_text()) if "import FastAPI" in block.text)
    compile(example, "client.md", "exec")

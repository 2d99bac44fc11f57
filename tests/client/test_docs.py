"""The client's guide documents every option. tests/docs runs its examples."""

import inspect
from dataclasses import fields
from pathlib import Path

from nsq_compat.client.consumer import Consumer
from nsq_compat.client.log_reader import LogReader
from nsq_compat.client.producer import Producer
from nsq_compat.client.settings import ConnectionSettings, SubscriptionSettings

DOCS = Path(__file__).parents[2] / "docs"


def test_every_option_is_in_the_guide():
    page = (DOCS / "client.md").read_text()
    names = {each.name for settings in (ConnectionSettings, SubscriptionSettings) for each in fields(settings)}
    for made in (Consumer, LogReader, Producer):
        names |= {
            name
            for name, parameter in inspect.signature(made).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        }
    assert [name for name in sorted(names) if f"`{name}" not in page] == []

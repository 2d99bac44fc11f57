"""What the client's pages show is run as it stands, with addresses that exist; what they say of options is complete."""

import doctest
import inspect
import re
import signal
import subprocess
import sys
import threading
from dataclasses import fields
from pathlib import Path

import pytest

from nsq_compat.client.consumer import Consumer
from nsq_compat.client.producer import Producer
from nsq_compat.client.settings import ConnectionSettings
from nsq_compat.client.subscription import SubscriptionSettings

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("client.md", "coming-from-pynsq.md", "dedupe.md")


def examples() -> list[tuple[str, str]]:
    return [
        (f"{page} {number}", code)
        for page in PAGES
        for number, code in enumerate(re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL), 1)
    ]


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in examples()])
def test_an_example_does_what_it_says(nsqd, lookupd, code):
    for channel in ("archive", "later", "by-hand", "pynsq", "once"):
        nsqd.create_channel("orders", channel)
    with Producer(nsqd.tcp_address) as producer:
        producer.publish_many("orders", [b"%d" % number for number in range(20)])
    lookupd.addresses = [nsqd.tcp_address]
    host, _, port = nsqd.tcp_address.rpartition(":")
    code = code.replace("127.0.0.1:4150", nsqd.tcp_address).replace("127.0.0.1:4161", lookupd.address)
    code = code.replace('("127.0.0.1", 4150)', f'("{host}", {port})')
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        end = threading.Timer(40, process.kill)
        end.start()
        assert process.stdout.readline().strip(), process.stderr.read()
        if "signal" in code or "nsq.run" in code:
            process.send_signal(signal.SIGTERM)
        status = process.wait()
        end.cancel()
        assert status == 0, process.stderr.read()


def test_what_the_page_on_duplicates_computes_is_right():
    failed, tried = doctest.testfile(str(DOCS / "dedupe.md"), module_relative=False)
    assert (failed, tried) == (0, 3)


def test_every_option_is_in_the_guide():
    page = (DOCS / "client.md").read_text()
    names = {each.name for settings in (ConnectionSettings, SubscriptionSettings) for each in fields(settings)}
    for made in (Consumer, Producer):
        names |= {
            name
            for name, parameter in inspect.signature(made).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        }
    assert [name for name in sorted(names) if f"`{name}" not in page] == []

import asyncio
import ssl
from dataclasses import fields
from functools import partial
from typing import Any, get_type_hints

import pytest

from nsq_compat.client import aio
from nsq_compat.client.consumer import Consumer
from nsq_compat.client.log_reader import LogReader
from nsq_compat.client.producer import Producer
from nsq_compat.client.settings import (
    ConnectionOptions,
    ConnectionSettings,
    SubscriptionOptions,
    SubscriptionSettings,
    address_list,
)


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout": 0},
        {"heartbeat_interval": 0.5},
        {"msg_timeout": 0.5},
        {"deflate_level": 0},
        {"deflate_level": 10},
        {"sample_rate": 100},
        {"sample_rate": -1},
        {"snappy": True, "deflate": True},
    ],
)
def test_a_wrong_value_is_named(wrong):
    (name, *_) = wrong
    with pytest.raises(ValueError, match=name):
        ConnectionSettings(**wrong)


@pytest.mark.parametrize("name", ["timeout", "msg_timeout", "requeue_delay", "max_in_flight", "sample_rate"])
def test_a_value_that_is_not_a_number_is_named(name):
    for wrong, kind in (("5", TypeError), (float("inf"), ValueError)):
        options: dict[str, Any] = {name: wrong}
        with pytest.raises(kind, match=f"{name} must be a .*number, not {wrong!r}"):
            SubscriptionSettings(**options)


@pytest.mark.parametrize("kind", [Producer, aio.Producer])
def test_the_timeout_of_publishes_is_a_number(kind):
    with pytest.raises(TypeError, match="publish_timeout must be a number, not '5'"):
        kind("127.0.0.1:1", publish_timeout="5")


def test_the_timeout_of_one_publish_is_a_number():
    with Producer("127.0.0.1:1") as producer, pytest.raises(TypeError, match="^timeout must be a number, not '5'$"):
        producer.publish("t", b"x", timeout="5")  # type: ignore[arg-type]

    async def publish():
        async with aio.Producer("127.0.0.1:1") as producer:
            await producer.publish("t", b"x", timeout="5")  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="^timeout must be a number, not '5'$"):
        asyncio.run(publish())


def test_times_are_milliseconds_on_the_wire():
    request = ConnectionSettings(heartbeat_interval=1.5, msg_timeout=2.25, output_buffer_timeout=30).identify()
    assert (request.heartbeat_interval, request.msg_timeout, request.output_buffer_timeout) == (1500, 2250, 30)
    assert request.feature_negotiation


def test_the_client_id_is_the_short_hostname_unless_given():
    assert ConnectionSettings(hostname="a.b.example").identify().client_id == "a"
    assert ConnectionSettings(hostname="a.b.example", client_id="x").identify().client_id == "x"


@pytest.mark.parametrize(("secret", "sent"), [(None, b""), ("geheim", b"geheim"), (b"\xff", b"\xff")])
def test_a_secret_is_text_or_bytes(secret, sent):
    assert ConnectionSettings(auth_secret=secret).secret() == sent


def test_without_tls_options_authority_and_name_are_checked():
    context = ConnectionSettings(tls_v1=True).tls_context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert not context.hostname_checks_common_name


def test_tls_options_of_pynsq():
    context = ConnectionSettings(
        tls_options={"cert_reqs": ssl.CERT_NONE, "ciphers": "ECDHE+AESGCM", "ssl_version": 5}
    ).tls_context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)


@pytest.mark.parametrize(
    ("make", "name", "rule"),
    [
        (
            partial(Consumer, "t", "c", print),
            "max_inflight",
            "unknown option 'max_inflight'; did you mean max_in_flight",
        ),
        (partial(aio.Consumer, "t", "c"), "nsqd_addresses", "did you mean nsqd_tcp_addresses"),
        (partial(Producer, "h:1"), "publish_timeuot", "did you mean publish_timeout"),
        (partial(aio.Producer, "h:1"), "banana", "unknown option 'banana', see docs/client.md, Options"),
        (partial(LogReader, "t", nsqd_http_addresses="h:1"), "request_timout", "did you mean request_timeout"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_names(make, name, rule):
    with pytest.raises(TypeError, match=rule):
        make(**{name: 1})


def test_an_unknown_tls_option_is_named():
    with pytest.raises(ValueError, match="ca_cert$"):
        ConnectionSettings(tls_options={"ca_cert": "x"}).tls_context()


def test_a_given_ssl_context_is_unchanged():
    context = ssl.create_default_context()
    assert ConnectionSettings(tls_options=context).tls_context() is context


@pytest.mark.parametrize(
    ("given", "addresses"), [("h:1", ["h:1"]), (["h:1", "h:2"], ["h:1", "h:2"]), (("h:1",), ["h:1"]), (None, [])]
)
def test_addresses_are_one_or_several(given, addresses):
    assert address_list(given) == addresses


@pytest.mark.parametrize(
    ("settings", "options"),
    [(ConnectionSettings, ConnectionOptions), (SubscriptionSettings, SubscriptionOptions)],
)
def test_type_checkers_know_the_same_options(settings, options):
    types = get_type_hints(settings)
    assert {each.name: types[each.name] for each in fields(settings)} == get_type_hints(options)

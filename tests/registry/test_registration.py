"""Producers and registrations: their names and encoding."""

import json

from nsq_compat.protocol.lookup_commands import PeerInfo
from nsq_compat.registry.registration import Producer, Registration

INFO = PeerInfo("node<1>", "höst", 4151, 4150, "r", "z", "1.3.0")


def test_a_producer_is_encoded_in_nsqs_order_and_spelling():
    producer = Producer("127.0.0.1:5000", INFO, 0.0, 0)
    assert (
        producer.described
        == (
            '{"remote_address":"127.0.0.1:5000","hostname":"höst","broadcast_address":"node\\u003c1\\u003e",'
            '"tcp_port":4150,"http_port":4151,"version":"1.3.0","topology_zone":"z","topology_region":"r"'
        ).encode()
    )


def test_a_description_with_a_closing_brace_is_a_json_object():
    described = Producer("127.0.0.1:5000", PeerInfo(broadcast_address='"}'), 0.0, 0).described
    assert json.loads(described + b"}")["broadcast_address"] == '"}'


def test_a_node_is_named_by_its_broadcast_address():
    assert Producer("127.0.0.1:5000", INFO, 0.0, 0).node == "node<1>:4151"


def test_two_equal_producers_are_two():
    assert Producer("a", INFO, 0.0, 0) != Producer("a", INFO, 0.0, 0)


def test_a_registration_with_a_channel_has_the_category_channel():
    assert Registration("t").category == "topic"
    assert Registration("t", "c").category == "channel"

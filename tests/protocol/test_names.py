import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol.names import is_ephemeral, is_valid_name, network_of, network_of_peer

ALLOWED = string.ascii_letters + string.digits + "._-"


@pytest.mark.parametrize(
    "name", ["a", "A.b_c-9", ".", "..", "-", "a" * 64, "a#ephemeral", "x" * 54 + "#ephemeral", ".#ephemeral"]
)
def test_valid_names(name):
    assert is_valid_name(name)
    assert is_valid_name(name.encode())


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a" * 65,
        "x" * 55 + "#ephemeral",
        "#ephemeral",
        "a#ephemeralb",
        "a#ephemeral#ephemeral",
        "a#Ephemeral",
        "a#",
        "a b",
        "a\n",
        "a#ephemeral\n",
        "\na",
        "a\0",
        "a/b",
        "\u00e9t\u00e9",
        "\u0661",  # a digit outside ASCII
        "\uff21",
    ],
)
def test_invalid_names(name):
    assert not is_valid_name(name)
    assert not is_valid_name(name.encode())


def test_bytes_that_are_not_text_are_not_a_name():
    assert not is_valid_name(b"a\xff")


@given(st.text(max_size=70) | st.text(ALLOWED, max_size=70), st.sampled_from(["", "#ephemeral"]))
def test_a_name_is_legal_by_the_rule_spelled_out(stem, suffix):
    name = stem + suffix
    expected = bool(stem) and set(stem) <= set(ALLOWED) and len(name) <= 64
    assert is_valid_name(name) == expected
    assert is_valid_name(name.encode("utf-8")) == expected


def test_only_the_suffix_makes_a_name_ephemeral():
    assert is_ephemeral("t#ephemeral")
    assert not is_ephemeral("ephemeral")


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        # The other side of a connection that was not accepted, and a path. They take turns, too.
        ("tls://127.0.0.1", "tls://127.0.0.1"),
        ("/run/a:b", "/run/a:b"),
    ],
)
def test_clients_are_told_apart_by_address_or_network(host, network):
    assert network_of(host) == network


@pytest.mark.parametrize(
    ("peer", "network"), [("127.0.0.1:5", "127.0.0.1"), ("[2001:db8::1]:5", "2001:db8::/64"), ("@", "")]
)
def test_the_port_of_a_client_does_not_count(peer, network):
    assert network_of_peer(peer) == network

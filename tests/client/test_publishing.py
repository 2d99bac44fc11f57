"""What is checked before anything is sent."""

from collections import deque

import pytest

from nsq_compat.client.publishing import checked, publish_of
from nsq_compat.protocol.headers import HeaderError


@pytest.mark.parametrize(
    ("topic", "bodies", "headers", "error"),
    [
        (b"t", [b"x"], (), "a topic must be str, not bytes"),
        ("t", ["x"], (), r"a message body must be bytes, such as body.encode\(\), not str"),
        ("t", [b"x", {"a": 1}], (), r"a message body must be bytes, such as json.dumps\(body\).encode\(\), not dict"),
        ("t", [None], (), "a message body must be bytes, .*, not NoneType"),
        ("t", b"abc", (), "bodies must be a list of messages, not bytes"),
        ("t", "abc", (), "bodies must be a list of messages, not str"),
        ("t", {b"x": 1}, (), "bodies must be a list of messages, not dict"),
        ("t", (each for each in [b"x"]), (), "bodies must be a list of messages, not generator"),
        ("t", [b"x"], {"a": "b"}, "headers must be a list with a dict for each message, not dict"),
        ("t", [b"x"], "a", "headers must be a list with a dict for each message, not str"),
        ("t", [b"x"], [[("a", "b")]], "the headers of a message must be a dict, not list"),
        ("t", [b"x"], [{"a": 1}], "the value of header 'a' must be str, not int"),
        ("t", [b"x"], [{"a": b"1"}], "the value of header 'a' must be str, not bytes"),
        ("t", [b"x"], [{1: "a"}], "the name of a header must be str, not int"),
    ],
)
def test_a_wrong_type_is_named_with_the_right_one(topic, bodies, headers, error):
    with pytest.raises(TypeError, match=f"^{error}$"):
        checked(topic, bodies, headers)


@pytest.mark.parametrize(
    ("bodies", "headers", "error"),
    [
        ([], (), "bodies is empty: there is no message to publish"),
        ((), (), "bodies is empty: there is no message to publish"),
        ([b"x", b""], (), "an NSQ message cannot be empty"),
        ([b"x"], [{"a": "b"}, {}], "1 messages cannot have 2 sets of headers"),
    ],
)
def test_what_nsqd_would_refuse_is_a_value_error(bodies, headers, error):
    with pytest.raises(ValueError, match=f"^{error}$"):
        checked("t", bodies, headers)
    with pytest.raises(HeaderError, match="invalid header name"):
        checked("t", [b"x"], [{"a b": "c"}])


@pytest.mark.parametrize("bodies", [[b"x"], checked("t", [b"x"], [{"a": "b"}])])
def test_a_delay_is_a_number_of_seconds(bodies):
    with pytest.raises(TypeError, match="^defer must be a number, not '1s'$"):
        publish_of("t", bodies, "1s")  # type: ignore[arg-type]
    assert b" 1500\n" in publish_of("t", bodies, 1.5).command


@pytest.mark.parametrize("make", [list, tuple, deque])
def test_bodies_may_be_any_sequence_of_bytes(make):
    buffer = bytearray(b"two")
    bodies = checked("t", make([b"one", buffer, memoryview(b"three")]), ())
    buffer[:] = b"2"
    publish = publish_of("t", bodies, 0.0)
    assert not publish.has_headers
    assert publish.command.endswith(b"\0\0\0\3one\0\0\0\3two\0\0\0\5three")


@pytest.mark.parametrize("headers", [None, (), [], [None, None], [{}, {}]])
def test_headers_may_be_left_out(headers):
    assert checked("t", [b"x", b"y"], headers) == [b"x", b"y"]

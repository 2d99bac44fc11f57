"""Why the standby was not reached, as /mirror and the log say it."""

import socket

import pytest

from nsq_compat.nsqd.mirror import _why


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "connection refused"),
        (TimeoutError("no answer; is this nsqd's TCP port?"), "no answer; is this nsqd's TCP port?"),
        (socket.gaierror(-2, "Name or service not known"), "cannot resolve the name: Name or service not known"),
        (ValueError("invalid frame size 1213486160, not 4 to 268435456"), "invalid frame size"),
    ],
)
def test_a_failure_to_reach_the_standby_is_named(error, text):
    assert _why(error).startswith(text)

"""A command's line by itself: valid lines pass, and errors are found in nsqd's order."""

import pytest

from nsq_compat.protocol.commands import CLOSING, COMMANDS, INIT, SUBSCRIBED
from nsq_compat.protocol.errors import FatalClientError
from nsq_compat.session.admission import check, delay_of

ID = b"0123456789abcdef"


@pytest.mark.parametrize(
    ("line", "state"),
    [
        (b"NOP", CLOSING),
        (b"NOP and more", INIT),
        (b"IDENTIFY", INIT),
        (b"AUTH", INIT),
        (b"SUB t c#ephemeral", INIT),
        (b"PUB t", SUBSCRIBED),
        (b"MPUB t", CLOSING),
        (b"DPUB t 10", INIT),
        (b"RDY", SUBSCRIBED),
        (b"FIN " + ID, CLOSING),
        (b"REQ " + ID + b" 0", SUBSCRIBED),
        (b"TOUCH " + ID, SUBSCRIBED),
        (b"CLS", SUBSCRIBED),
    ],
)
def test_a_valid_command_in_the_right_state_passes(line, state):
    tokens = line.split(b" ")
    assert check(tokens, state, heartbeats=True) is COMMANDS[tokens[0]]


@pytest.mark.parametrize(
    ("line", "state", "said"),
    [
        (b"", INIT, b"E_INVALID invalid command "),
        (b"nop", INIT, b"E_INVALID invalid command nop"),
        (b"SUB t c", SUBSCRIBED, b"E_INVALID cannot SUB in current state"),
        (b"SUB", CLOSING, b"E_INVALID cannot SUB in current state"),
        (b"SUB t", INIT, b"E_INVALID SUB insufficient number of parameters"),
        (b"SUB bad! bad!", INIT, b'E_BAD_TOPIC SUB topic name "bad!" is not valid'),
        (b"SUB t bad!", INIT, b'E_BAD_CHANNEL SUB channel name "bad!" is not valid'),
        (b"MPUB bad!", INIT, b'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "bad!" is not valid'),
        (b"AUTH x", INIT, b"E_INVALID AUTH invalid number of parameters"),
        (b"FIN", SUBSCRIBED, b"E_INVALID FIN insufficient number of params"),
        (b"FIN short", SUBSCRIBED, b"E_INVALID invalid message ID"),
    ],
)
def test_the_first_error_is_named(line, state, said):
    with pytest.raises(FatalClientError) as refusal:
        check(line.split(b" "), state, heartbeats=True)
    assert refusal.value.data == said


def test_a_client_without_heartbeats_may_not_subscribe():
    with pytest.raises(FatalClientError) as refusal:
        check([b"SUB"], INIT, heartbeats=False)
    assert refusal.value.data == b"E_INVALID cannot SUB with heartbeats disabled"
    check([b"PUB", b"t"], INIT, heartbeats=False)


@pytest.mark.parametrize(("raw", "delay"), [(b"0", 0), (b"", 0), (b"1500", 1.5), (b"60000", 60)])
def test_a_delay_is_in_seconds(raw, delay):
    assert delay_of([b"DPUB", b"t", raw], 60_000) == delay


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"60001", b"E_INVALID DPUB timeout 60001 out of range 0-60000"),
        (b"-1", b"E_INVALID DPUB could not parse timeout -1"),
        (b"1.5", b"E_INVALID DPUB could not parse timeout 1.5"),
    ],
)
def test_a_delay_beyond_the_limit_is_refused(raw, said):
    with pytest.raises(FatalClientError) as refusal:
        delay_of([b"DPUB", b"t", raw], 60_000)
    assert refusal.value.data == said

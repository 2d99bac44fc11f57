"""The command table, and the parameters of commands; `session/test_errors.py` has the errors of each command."""

import pytest

from nsq_compat.protocol.commands import BEYOND_64_BITS, CLOSING, COMMANDS, INIT, PUB, SUBSCRIBED, check, parse_number

ID = b"0123456789abcdef"


def test_commands_are_found_by_their_exact_name():
    assert {name.decode("ascii") for name in COMMANDS} == {spec.name for spec in COMMANDS.values()}
    assert COMMANDS[b"PUB"] is PUB
    assert len(COMMANDS) == 15


@pytest.mark.parametrize(
    ("line", "states"),
    [
        (b"NOP and more", [INIT, SUBSCRIBED, CLOSING]),
        (b"IDENTIFY", [INIT]),
        (b"AUTH", [INIT]),
        (b"SUB t c#ephemeral", [INIT]),
        (b"PUB t", [INIT, SUBSCRIBED, CLOSING]),
        (b"MPUB t", [INIT, SUBSCRIBED, CLOSING]),
        (b"DPUB t 10", [INIT, SUBSCRIBED, CLOSING]),
        (b"HPUB t", [INIT, SUBSCRIBED, CLOSING]),
        (b"HMPUB t", [INIT, SUBSCRIBED, CLOSING]),
        (b"RDY", [SUBSCRIBED, CLOSING]),
        (b"FIN " + ID, [SUBSCRIBED, CLOSING]),
        (b"REQ " + ID + b" 0", [SUBSCRIBED, CLOSING]),
        (b"TOUCH " + ID, [SUBSCRIBED, CLOSING]),
        (b"CLS", [SUBSCRIBED]),
    ],
)
def test_a_valid_line_passes_in_the_states_of_its_command(line, states):
    tokens = line.split(b" ")
    spec = COMMANDS[tokens[0]]
    assert spec.states == set(states)
    assert all(check(tokens, state, heartbeats=True, headers=True) is spec for state in states)


@pytest.mark.parametrize(("raw", "value"), [(b"", 0), (b"0", 0), (b"007", 7), (b"2500", 2500), (b"0" * 30 + b"9", 9)])
def test_digits_are_a_number_and_an_empty_parameter_is_zero(raw, value):
    assert parse_number(raw) == value


@pytest.mark.parametrize("raw", [b"-1", b"+1", b"1.0", b" 1", b"1 ", b"1\n", b"0x1", b"\xd9\xa3", b"1_000"])
def test_other_parameters_are_not_numbers(raw):
    assert parse_number(raw) is None


@pytest.mark.parametrize("raw", [b"1" + b"0" * 19, b"18446744073709551617", b"9" * 4000])
def test_a_number_beyond_64_bits_exceeds_every_limit(raw):
    assert parse_number(raw) == BEYOND_64_BITS


def test_the_largest_int64_is_read_exactly():
    assert parse_number(b"9223372036854775807") == 2**63 - 1

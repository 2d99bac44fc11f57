"""The command table, compared with nsqd."""

import pytest

from nsq_compat.protocol.commands import BEYOND_64_BITS, CLOSING, COMMANDS, INIT, PUB, SUBSCRIBED, parse_number

ALWAYS = {INIT, SUBSCRIBED, CLOSING}
PARAMETERS = "insufficient number of parameters"
PARAMS = "insufficient number of params"


def test_states_have_the_numbers_that_stats_show():
    assert (INIT, SUBSCRIBED, CLOSING) == (0, 3, 4)


def test_commands_are_found_by_their_exact_name():
    assert {name.decode("ascii") for name in COMMANDS} == {spec.name for spec in COMMANDS.values()}
    assert COMMANDS[b"PUB"] is PUB
    assert COMMANDS.get(b"pub") is None
    assert COMMANDS.get(b"") is None
    assert len(COMMANDS) == 12


@pytest.mark.parametrize(
    ("name", "states"),
    [
        (b"IDENTIFY", {INIT}),
        (b"AUTH", {INIT}),
        (b"SUB", {INIT}),
        (b"RDY", {SUBSCRIBED, CLOSING}),
        (b"FIN", {SUBSCRIBED, CLOSING}),
        (b"REQ", {SUBSCRIBED, CLOSING}),
        (b"TOUCH", {SUBSCRIBED, CLOSING}),
        (b"CLS", {SUBSCRIBED}),
        (b"NOP", ALWAYS),
        (b"PUB", ALWAYS),
        (b"MPUB", ALWAYS),
        (b"DPUB", ALWAYS),
    ],
)
def test_a_command_is_allowed_in_certain_states(name, states):
    assert COMMANDS[name].states == states


@pytest.mark.parametrize(
    ("name", "tokens", "missing_params"),
    [
        (b"SUB", 3, PARAMETERS),
        (b"PUB", 2, PARAMETERS),
        (b"MPUB", 2, PARAMETERS),
        (b"DPUB", 3, PARAMETERS),
        (b"FIN", 2, PARAMS),
        (b"REQ", 3, PARAMS),
        (b"TOUCH", 2, PARAMS),
    ],
)
def test_missing_parameters_have_nsqs_error_texts(name, tokens, missing_params):
    spec = COMMANDS[name]
    assert (spec.tokens, spec.missing_params) == (tokens, missing_params)


@pytest.mark.parametrize("name", [b"IDENTIFY", b"AUTH", b"RDY", b"CLS", b"NOP"])
def test_other_commands_need_no_parameter(name):
    assert COMMANDS[name].tokens == 1


def test_commands_with_topics_channels_and_ids():
    assert {name for name, spec in COMMANDS.items() if spec.has_topic} == {b"SUB", b"PUB", b"MPUB", b"DPUB"}
    assert {name for name, spec in COMMANDS.items() if spec.has_channel} == {b"SUB"}
    assert {name for name, spec in COMMANDS.items() if spec.has_message_id} == {b"FIN", b"REQ", b"TOUCH"}


@pytest.mark.parametrize("spec", COMMANDS.values(), ids=lambda spec: spec.name)
def test_the_minimum_number_of_tokens(spec):
    named = [spec.has_topic or spec.has_message_id, spec.has_channel]
    assert spec.tokens >= 1 + sum(named)


@pytest.mark.parametrize(
    ("name", "code", "noun", "whole"),
    [
        (b"IDENTIFY", "E_BAD_BODY", "body", "body"),
        (b"AUTH", "E_BAD_BODY", "body", "body"),
        (b"MPUB", "E_BAD_BODY", "body", "body"),
        (b"PUB", "E_BAD_MESSAGE", "message body", "message"),
        (b"DPUB", "E_BAD_MESSAGE", "message body", "message"),
    ],
)
def test_bodies_have_nsqs_error_texts(name, code, noun, whole):
    body = COMMANDS[name].body
    assert body is not None
    assert (body.code, body.noun, body.whole) == (code, noun, whole)


def test_five_commands_have_a_body_and_one_has_many_messages_in_it():
    assert {name for name, spec in COMMANDS.items() if spec.body} == {b"IDENTIFY", b"AUTH", b"PUB", b"MPUB", b"DPUB"}
    bodies = {name: spec.body for name, spec in COMMANDS.items() if spec.body}
    assert {name for name, body in bodies.items() if body.multiple} == {b"MPUB"}
    assert {name for name, body in bodies.items() if body.is_message} == {b"PUB", b"DPUB"}


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

"""Errors of nsqd for invalid commands, compared byte for byte, because clients match them."""

import struct

import pytest

from nsq_conformance.behaviours.limits import Connect
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.raw_client import RawClient, batch, sized

ID = b"0123456789abcdef"
LONGEST_LINE = 16384


def test_an_unknown_magic_is_refused(nsqd: NsqdProcess) -> None:
    with RawClient(nsqd.tcp_address, magic=b"  V1") as client:
        assert client.error() == b"E_BAD_PROTOCOL"
        assert client.is_closed()


def test_eof_within_the_magic_is_no_error(nsqd: NsqdProcess) -> None:
    with RawClient(nsqd.tcp_address, magic=b"  V") as client:
        assert client.ends_sending().is_closed()


# Errors that close the connection after one frame.
FATAL = {
    "an unknown command": (b"PUBLISH t\n", b"E_INVALID invalid command PUBLISH"),
    "an empty line": (b"\n", b"E_INVALID invalid command "),
    "a command in lower case": (b"nop\n", b"E_INVALID invalid command nop"),
    "a second carriage return": (b"NOP\r\r\n", b"E_INVALID invalid command NOP\r"),
    "a tab between parameters": (b"PUB\tt\n", b"E_INVALID invalid command PUB\tt"),
    "RDY before SUB": (b"RDY 1\n", b"E_INVALID cannot RDY in current state"),
    "FIN before SUB": (b"FIN " + ID + b"\n", b"E_INVALID cannot FIN in current state"),
    "REQ before SUB": (b"REQ " + ID + b" 0\n", b"E_INVALID cannot REQ in current state"),
    "TOUCH before SUB": (b"TOUCH " + ID + b"\n", b"E_INVALID cannot TOUCH in current state"),
    "CLS before SUB": (b"CLS\n", b"E_INVALID cannot CLS in current state"),
    "SUB without a channel": (b"SUB t\n", b"E_INVALID SUB insufficient number of parameters"),
    "SUB to a bad topic": (b"SUB a$b ch\n", b'E_BAD_TOPIC SUB topic name "a$b" is not valid'),
    "SUB to a bad channel": (b"SUB t a$b\n", b'E_BAD_CHANNEL SUB channel name "a$b" is not valid'),
    "SUB with two spaces": (b"SUB  t ch\n", b'E_BAD_TOPIC SUB topic name "" is not valid'),
    "PUB without a topic": (b"PUB\n", b"E_INVALID PUB insufficient number of parameters"),
    "PUB to a bad topic": (b"PUB a$b\n" + sized(b"x"), b'E_BAD_TOPIC PUB topic name "a$b" is not valid'),
    "PUB of an empty body": (b"PUB t\n" + sized(b""), b"E_BAD_MESSAGE PUB invalid message body size 0"),
    "PUB of a negative size": (
        b"PUB t\n" + struct.pack(">i", -1),
        b"E_BAD_MESSAGE PUB invalid message body size -1",
    ),
    "PUB of too many bytes": (b"PUB t\n" + struct.pack(">i", 2001), b"E_BAD_MESSAGE PUB message too big 2001 > 2000"),
    "DPUB without a delay": (b"DPUB t\n", b"E_INVALID DPUB insufficient number of parameters"),
    "DPUB to a bad topic": (b"DPUB a$b 1\n", b'E_BAD_TOPIC DPUB topic name "a$b" is not valid'),
    "DPUB with a delay that is not a number": (b"DPUB t x\n", b"E_INVALID DPUB could not parse timeout x"),
    "DPUB with a negative delay": (b"DPUB t -1\n", b"E_INVALID DPUB could not parse timeout -1"),
    "DPUB with a fraction": (b"DPUB t 1.5\n", b"E_INVALID DPUB could not parse timeout 1.5"),
    "DPUB with too long a delay": (b"DPUB t 30001\n", b"E_INVALID DPUB timeout 30001 out of range 0-30000"),
    "DPUB of an empty body": (b"DPUB t 1\n" + sized(b""), b"E_BAD_MESSAGE DPUB invalid message body size 0"),
    "DPUB of too many bytes": (
        b"DPUB t 1\n" + struct.pack(">i", 2001),
        b"E_BAD_MESSAGE DPUB message too big 2001 > 2000",
    ),
    "MPUB without a topic": (b"MPUB\n", b"E_INVALID MPUB insufficient number of parameters"),
    "MPUB to a bad topic": (b"MPUB a$b\n", b'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "a$b" is not valid'),
    "MPUB of an empty body": (b"MPUB t\n" + sized(b""), b"E_BAD_BODY MPUB invalid body size 0"),
    "MPUB of too many bytes": (b"MPUB t\n" + struct.pack(">i", 6001), b"E_BAD_BODY MPUB body too big 6001 > 6000"),
    "MPUB of no messages": (b"MPUB t\n" + sized(batch()), b"E_BAD_BODY MPUB invalid message count 0"),
    "MPUB of a negative number of messages": (
        b"MPUB t\n" + sized(struct.pack(">i", -1)),
        b"E_BAD_BODY MPUB invalid message count -1",
    ),
    "MPUB of more messages than fit": (
        b"MPUB t\n" + sized(struct.pack(">i", 1200)),
        b"E_BAD_BODY MPUB invalid message count 1200",
    ),
    "MPUB with an empty message": (
        b"MPUB t\n" + sized(batch(b"x", b"")),
        b"E_BAD_MESSAGE MPUB invalid message(1) body size 0",
    ),
    "MPUB with a message that is too big": (
        b"MPUB t\n" + sized(batch(b"x", b"x" * 2001)),
        b"E_BAD_MESSAGE MPUB message too big 2001 > 2000",
    ),
    "IDENTIFY of an empty body": (b"IDENTIFY\n" + sized(b""), b"E_BAD_BODY IDENTIFY invalid body size 0"),
    "IDENTIFY of too many bytes": (
        b"IDENTIFY\n" + struct.pack(">i", 6001),
        b"E_BAD_BODY IDENTIFY body too big 6001 > 6000",
    ),
    "IDENTIFY that is not JSON": (
        b"IDENTIFY\n" + sized(b"{"),
        b"E_BAD_BODY IDENTIFY failed to decode JSON body",
    ),
    "AUTH where there is none": (b"AUTH\n" + sized(b"secret"), b"E_AUTH_DISABLED AUTH disabled"),
    "AUTH with a parameter": (b"AUTH x\n" + sized(b"secret"), b"E_INVALID AUTH invalid number of parameters"),
    "AUTH of an empty body": (b"AUTH\n" + sized(b""), b"E_BAD_BODY AUTH invalid body size 0"),
}


@pytest.mark.parametrize(("sent", "refusal"), FATAL.values(), ids=FATAL)
def test_refused_and_closed(client: RawClient, sent: bytes, refusal: bytes) -> None:
    client.sends(sent)
    assert client.error() == refusal
    assert client.is_closed()


# The same for a consumer.
FATAL_TO_A_CONSUMER = {
    "a second SUB": (b"SUB t ch\n", b"E_INVALID cannot SUB in current state"),
    "IDENTIFY after SUB": (b"IDENTIFY\n" + sized(b"{}"), b"E_INVALID cannot IDENTIFY in current state"),
    "AUTH after SUB": (b"AUTH\n" + sized(b"secret"), b"E_INVALID cannot AUTH in current state"),
    "RDY above the limit": (b"RDY 51\n", b"E_INVALID RDY count 51 out of range 0-50"),
    "RDY that is not a number": (b"RDY x\n", b"E_INVALID RDY could not parse count x"),
    "a negative RDY": (b"RDY -1\n", b"E_INVALID RDY could not parse count -1"),
    "FIN without an id": (b"FIN\n", b"E_INVALID FIN insufficient number of params"),
    "FIN with a short id": (b"FIN abc\n", b"E_INVALID invalid message ID"),
    "REQ without a time": (b"REQ " + ID + b"\n", b"E_INVALID REQ insufficient number of params"),
    "REQ with a short id": (b"REQ abc 0\n", b"E_INVALID invalid message ID"),
    "REQ with a time that is not a number": (b"REQ " + ID + b" x\n", b"E_INVALID REQ could not parse timeout x"),
    "TOUCH without an id": (b"TOUCH\n", b"E_INVALID TOUCH insufficient number of params"),
    "TOUCH with a short id": (b"TOUCH abc\n", b"E_INVALID invalid message ID"),
    "a second CLS": (b"CLS\nCLS\n", b"E_INVALID cannot CLS in current state"),
}


@pytest.mark.parametrize(("sent", "refusal"), FATAL_TO_A_CONSUMER.values(), ids=FATAL_TO_A_CONSUMER)
def test_a_consumer_is_refused_and_closed(client: RawClient, topic: str, sent: bytes, refusal: bytes) -> None:
    client.subscribes(topic).sends(sent)
    if sent.startswith(b"CLS"):
        assert client.response() == b"CLOSE_WAIT"
    assert client.error() == refusal
    assert client.is_closed()


HARMLESS = {
    "FIN": (b"FIN " + ID + b"\n", b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"),
    "REQ": (b"REQ " + ID + b" 0\n", b"E_REQ_FAILED REQ 0123456789abcdef failed ID not in flight"),
    "TOUCH": (b"TOUCH " + ID + b"\n", b"E_TOUCH_FAILED TOUCH 0123456789abcdef failed ID not in flight"),
}


@pytest.mark.parametrize(("sent", "refusal"), HARMLESS.values(), ids=HARMLESS)
def test_an_answer_to_no_message_in_flight_is_refused_and_the_connection_stays(
    client: RawClient, topic: str, sent: bytes, refusal: bytes
) -> None:
    client.subscribes(topic).sends(sent)
    assert client.error() == refusal
    client.publishes(topic, b"still here").is_ready(1)
    assert client.message().body == b"still here"


# EOF in the middle of a command.
CUT_OFF = {
    "the size of a PUB": (b"PUB t\n\0\0", b"E_BAD_MESSAGE PUB failed to read message body size"),
    "the body of a PUB": (b"PUB t\n\0\0\0\5ab", b"E_BAD_MESSAGE PUB failed to read message body"),
    "the size of a DPUB": (b"DPUB t 1\n", b"E_BAD_MESSAGE DPUB failed to read message body size"),
    "the size of an MPUB": (b"MPUB t\n\0", b"E_BAD_BODY MPUB failed to read body size"),
    "the count of an MPUB": (b"MPUB t\n\0\0\0\x20\0", b"E_BAD_BODY MPUB failed to read message count"),
    "the size of a message of an MPUB": (
        b"MPUB t\n\0\0\0\x20\0\0\0\1\0",
        b"E_BAD_MESSAGE MPUB failed to read message(0) body size",
    ),
    "a message of an MPUB": (
        b"MPUB t\n\0\0\0\x20\0\0\0\1\0\0\0\5a",
        b"E_BAD_MESSAGE MPUB failed to read message body",
    ),
    "the size of an IDENTIFY": (b"IDENTIFY\n\0", b"E_BAD_BODY IDENTIFY failed to read body size"),
    "the body of an IDENTIFY": (b"IDENTIFY\n\0\0\0\5{", b"E_BAD_BODY IDENTIFY failed to read body"),
    "the size of an AUTH": (b"AUTH\n\0", b"E_BAD_BODY AUTH failed to read body size"),
    "the body of an AUTH": (b"AUTH\n\0\0\0\5{", b"E_BAD_BODY AUTH failed to read body"),
}


@pytest.mark.parametrize(("sent", "refusal"), CUT_OFF.values(), ids=CUT_OFF)
def test_eof_is_reported_within(client: RawClient, sent: bytes, refusal: bytes) -> None:
    client.sends(sent).ends_sending()
    assert client.error() == refusal
    assert client.is_closed()


def test_eof_within_a_line_is_no_error(client: RawClient) -> None:
    assert client.sends(b"PUB some_to").ends_sending().is_closed()


def test_a_client_that_ends_sending_still_gets_the_answers(client: RawClient, topic: str) -> None:
    client.sends(b"PUB %b\n" % topic.encode() + sized(b"x")).ends_sending()
    assert client.response() == b"OK"
    assert client.is_closed()


# Go's %q.
QUOTED = {
    "a quotation mark": (b'a"', rb'"a\""'),
    "a backslash": (b"a\\", rb'"a\\"'),
    "a zero": (b"a\0", rb'"a\x00"'),
    "a bell": (b"a\a", rb'"a\a"'),
    "a tab": (b"a\t", rb'"a\t"'),
    "a carriage return within": (b"a\rb", rb'"a\rb"'),
    "DEL": (b"a\x7f", rb'"a\x7f"'),
    "a byte that is not UTF-8": (b"a\xff", rb'"a\xff"'),
    "a letter that prints": ("é".encode(), '"é"'.encode()),
    "a character that does not print": ("\u200b".encode(), rb'"\u200b"'),
}


@pytest.mark.parametrize(("name", "quoted"), QUOTED.values(), ids=QUOTED)
def test_an_invalid_name_is_quoted(client: RawClient, name: bytes, quoted: bytes) -> None:
    client.sends(b"SUB %b ch\n" % name)
    assert client.error() == b"E_BAD_TOPIC SUB topic name %b is not valid" % quoted


GOOD_NAMES = {
    "one letter": "{0}",
    "a dot first": ".{0}",
    "a minus first": "-{0}",
    "digits": "123{0}",
    "64 characters": "{0:x<64}",
    "ephemeral": "{0}#ephemeral",
    "64 characters with ephemeral": "{0:x<54}#ephemeral",
}


@pytest.mark.parametrize("form", GOOD_NAMES.values(), ids=GOOD_NAMES)
def test_a_valid_name(client: RawClient, topic: str, form: str) -> None:
    name = form.format(topic.rpartition(".")[2] + "t")
    client.subscribes(name, name)


BAD_NAMES = {
    "65 characters": b"x" * 65,
    "65 characters with ephemeral": b"x" * 55 + b"#ephemeral",
    "only ephemeral": b"#ephemeral",
    "something behind ephemeral": b"a#ephemeralx",
    "a hash": b"a#b",
    "a slash": b"a/b",
    "a colon": b"a:b",
    "a letter beyond ASCII": "é".encode(),
}


@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES)
def test_an_invalid_name(client: RawClient, name: bytes) -> None:
    client.sends(b"PUB %b\n" % name + sized(b"x"))
    assert client.error().startswith(b"E_BAD_TOPIC PUB topic name ")


def test_a_carriage_return_before_the_newline_is_not_part_of_the_line(client: RawClient, topic: str) -> None:
    client.sends(b"PUB %b\r\n" % topic.encode() + sized(b"x"))
    assert client.response() == b"OK"


def test_extra_parameters_are_ignored(client: RawClient, topic: str) -> None:
    client.sends(b"PUB %b and more\n" % topic.encode() + sized(b"x"))
    assert client.response() == b"OK"
    client.sends(b"SUB %b ch and more\n" % topic.encode())
    assert client.response() == b"OK"


def test_the_longest_line_is_16384_bytes_with_its_newline(client: RawClient, topic: str) -> None:
    start = b"PUB %b " % topic.encode()
    client.sends(start + b"x" * (LONGEST_LINE - 1 - len(start)) + b"\n" + sized(b"x"))
    assert client.response() == b"OK"


def test_a_longer_line_closes_the_connection_without_an_error(client: RawClient) -> None:
    client.sends(b"x" * LONGEST_LINE + b"\n")
    assert client.is_closed()


def test_commands_after_a_fatal_error_are_not_executed(nsqd: NsqdProcess, client: RawClient, topic: str) -> None:
    client.sends(b"SUB\n" + b"PUB %b\n" % topic.encode() + sized(b"x"))
    assert client.error() == b"E_INVALID SUB insufficient number of parameters"
    assert client.is_closed()
    assert nsqd.topic_stats(topic) is None


def test_one_connections_error_does_not_affect_others(client: RawClient, connect: Connect, topic: str) -> None:
    other = connect().sends(b"WRONG\n")
    assert other.error() == b"E_INVALID invalid command WRONG"
    client.publishes(topic, b"x")


def test_a_message_of_another_consumer_cannot_be_answered(connect: Connect, topic: str) -> None:
    owner, thief = connect().subscribes(topic, ready=1), connect().subscribes(topic)
    message = owner.publishes(topic, b"mine").message()
    for verb in (b"FIN", b"TOUCH", b"REQ"):
        thief.sends(b"%b %b 0\n" % (verb, message.id))
        assert thief.error() == b"E_%b_FAILED %b %b failed client does not own message" % (verb, verb, message.id)
    owner.finishes(message).has_been_heard()

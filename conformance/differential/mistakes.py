"""Generators of errors that clients and networks make. Each is the last act of its connection."""

import struct

from nsq_conformance.differential.account import Client
from nsq_conformance.differential.acts import TOPIC, UNKNOWN_ID
from nsq_conformance.differential.conversation import Conversation, batch, sized
from nsq_conformance.differential.vocabulary import (
    BAD_DELAYS,
    BAD_NAMES,
    CHANNELS,
    MAX_BODY_SIZE,
    MAX_MSG_SIZE,
    NUMBERS,
)


def send_invalid(conversation: Conversation, client: Client) -> None:
    """Send a complete but invalid command."""
    name, number = conversation.random.choice(BAD_NAMES), conversation.random.choice(NUMBERS)
    topic, channel = conversation.topic_without_consumers(), conversation.random.choice(CHANNELS)
    size = conversation.random.choice((0, -1, MAX_MSG_SIZE + 1, MAX_BODY_SIZE + 1, 2**31 - 1, -(2**31)))
    count = conversation.random.choice((0, -1, 1, 3, 2**31 - 1))
    bare_rdy = b"RDY\n" if client.state == "init" else b"RDY x\n"  # valid for a consumer
    wrong = conversation.random.choice((
        b"PUB %b\n" % name + sized(b"x"),
        b"MPUB %b\n" % name + sized(batch([b"x"])),
        b"DPUB %b %b\n" % (topic, conversation.random.choice(BAD_DELAYS)) + sized(b"x"),
        b"SUB %b %b\n" % (topic, name),
        b"SUB %b %b\n" % (name, channel),
        b"RDY %b\n" % (number if client.state == "init" else b"51"),  # a valid count would cause a race
        b"REQ %b %b\n" % (UNKNOWN_ID, number),
        b"FIN %b\n" % name,
        b"TOUCH %b\n" % UNKNOWN_ID,
        b"PUB %b\n" % topic + struct.pack(">i", size),
        b"MPUB %b\n" % topic + struct.pack(">i", size),
        b"MPUB %b\n" % topic + sized(struct.pack(">i", count) + sized(b"x")),
        b"MPUB %b\n" % topic + sized(struct.pack(">i", 2) + sized(b"x") + struct.pack(">i", size)),
        b"IDENTIFY\n" + struct.pack(">i", size),
        b"AUTH\n" + sized(b"secret"),
        b"AUTH %b\n" % name + sized(b"secret"),
        b"%b\n" % name,
        b"pub %b\n" % topic + sized(b"x"),
        b"PUB  %b\n" % topic + sized(b"x"),
        b"PUB %b extra\r\n" % topic + sized(b"x"),
        b"NOP\r\r\n",
        b"NOP extra\r\n",
        b"PUB\n", b"SUB\n", bare_rdy, b"FIN\n", b"REQ\n", b"TOUCH\n", b"DPUB\n", b"MPUB\n", b"CLS extra\n",
        b"X" * conversation.random.choice((16383, 16384, 17000)) + b"\n",
    ))  # fmt: skip
    conversation.shut_down(client, wrong)


def break_off(conversation: Conversation, client: Client) -> None:
    """Send a valid command, truncated or with one byte changed."""
    topic = conversation.topic_without_consumers()
    data = conversation.random.choice((
        b"PUB %b\n" % topic + sized(conversation.body()),
        b"MPUB %b\n" % topic + sized(batch(conversation.bodies(3))),
        b"DPUB %b 3599999\n" % topic + sized(conversation.body()),
        b"IDENTIFY\n" + sized(b"{}"),
        b"SUB %b c\n" % topic,
    ))  # fmt: skip
    place = conversation.random.randrange(len(data))
    if conversation.random.random() < 0.5:
        return conversation.shut_down(client, data[:place])
    if TOPIC in data[max(0, place - len(TOPIC) + 1) : place + len(TOPIC)]:
        place = 0
    return conversation.shut_down(client, data[:place] + conversation.random.randbytes(1) + data[place + 1 :])

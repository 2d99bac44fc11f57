"""Generates a stream from a seed: mostly valid commands, and some of the errors that clients and networks make.

Streams avoid results that depend on timing: a channel has one consumer, and a command without a reply is followed by
one with a reply.
"""

from collections.abc import Callable
from typing import Final

from nsq_conformance.differential.account import Client
from nsq_conformance.differential.acts import Act
from nsq_conformance.differential.commands import (
    answer,
    close_gently,
    consume,
    identify,
    publish,
    publish_deferred,
    publish_many,
    send_nops,
    subscribe,
)
from nsq_conformance.differential.conversation import Conversation
from nsq_conformance.differential.mistakes import break_off, send_invalid
from nsq_conformance.differential.requests import control, publish_over_http

Step = Callable[[Conversation, Client], None]


def stream(seed: int) -> list[Act]:
    """The stream of a seed, which is always the same."""
    conversation = Conversation(seed)
    for _ in range(conversation.random.randint(2, 24)):
        client = conversation.some_client()
        (step,) = conversation.random.choices(list(_STEPS), list(_STEPS.values()))
        step(conversation, client)
    conversation.end()
    return conversation.acts


def _connect_or_consume(conversation: Conversation, client: Client) -> None:
    (subscribe if client.state == "init" else consume)(conversation, client)


def _answer_if_there_is_something(conversation: Conversation, client: Client) -> None:
    (answer if client.held else _connect_or_consume)(conversation, client)


_STEPS: Final[dict[Step, int]] = {
    publish: 6,
    publish_many: 2,
    publish_deferred: 2,
    identify: 3,
    _connect_or_consume: 6,
    _answer_if_there_is_something: 8,
    send_nops: 1,
    send_invalid: 1,
    break_off: 1,
    close_gently: 1,
    control: 2,
    publish_over_http: 1,
}
"""The possible steps and their weights."""

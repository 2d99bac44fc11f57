"""Generators of valid and invalid HTTP requests."""

from collections.abc import Callable
from typing import Final

from nsq_conformance.differential.account import Account, Client
from nsq_conformance.differential.acts import Wait
from nsq_conformance.differential.conversation import Conversation, batch
from nsq_conformance.differential.vocabulary import CHANNELS

Effect = Callable[[Account, bytes, bytes], None]


def control(conversation: Conversation, client: Client) -> None:
    """Send an action on a topic or channel, in some cases without a required name."""
    topic = conversation.topic()
    what, act = conversation.random.choice(list(_ACTS))
    if conversation.account.has_consumers(topic):
        act = "create"  # other actions would race with deliveries to a consumer
    query = {"topic": topic.decode()}
    channel = conversation.random.choice(CHANNELS)
    if what == "channel":
        query["channel"] = channel.decode()
    if conversation.random.random() < 0.1:
        query.pop(conversation.random.choice(list(query)))
        return conversation.request("POST", f"/{what}/{act}", query)
    conversation.settle(topic)
    conversation.request("POST", f"/{what}/{act}", query)
    _ACTS[what, act](conversation.account, topic, channel)
    if act == "delete":
        conversation.acts.append(Wait())
    return None


def publish_over_http(conversation: Conversation, client: Client) -> None:
    random = conversation.random
    if random.random() < 0.6:
        topic, bodies = conversation.topic(), conversation.bodies(4)
        if random.random() < 0.5:
            del bodies[1:]
            conversation.request("POST", "/pub", {"topic": topic.decode()}, bodies[0])
        else:
            conversation.request("POST", "/mpub", {"topic": topic.decode()}, b"\n".join(bodies))
        return conversation.published(topic, bodies)
    query = {"topic": conversation.topic_without_consumers().decode()}
    path, body = random.choice((("/pub", conversation.body()), ("/mpub", b"\n".join(conversation.bodies(4)))))
    if random.random() < 0.6:
        query["defer"] = random.choice(("x", "-1", "3600001", "1.5", ""))
    else:
        query["binary"] = random.choice(("true", "false", "1", "x"))
        body = batch(conversation.bodies(3)) if random.random() < 0.7 else body
    return conversation.request("POST", path, query, body)


# --- Effects: none if there is no such topic or channel --------------------------------------------------------------


def _create_topic(account: Account, topic: bytes, channel: bytes) -> None:
    account.topic(topic)


def _create_channel(account: Account, topic: bytes, channel: bytes) -> None:
    if topic in account.topics:
        account.topic(topic).channel(channel)


def _empty_topic(account: Account, topic: bytes, channel: bytes) -> None:
    if topic in account.topics:
        account.topic(topic).backlog.clear()


def _empty_channel(account: Account, topic: bytes, channel: bytes) -> None:
    if topic in account.topics and channel in account.topic(topic).channels:
        account.topic(topic).channel(channel).waiting.clear()


def _delete_topic(account: Account, topic: bytes, channel: bytes) -> None:
    account.topics.pop(topic, None)


def _delete_channel(account: Account, topic: bytes, channel: bytes) -> None:
    if topic in account.topics and channel in account.topic(topic).channels:
        account.drop_channel(topic, channel)


def _pausing_topic(paused: bool) -> Effect:
    def effect(account: Account, topic: bytes, channel: bytes) -> None:
        if topic in account.topics:
            account.topic(topic).pause(paused)

    return effect


def _pausing_channel(paused: bool) -> Effect:
    def effect(account: Account, topic: bytes, channel: bytes) -> None:
        if topic in account.topics and channel in account.topic(topic).channels:
            account.topic(topic).channel(channel).is_paused = paused

    return effect


_ACTS: Final[dict[tuple[str, str], Effect]] = {
    ("topic", "create"): _create_topic,
    ("topic", "empty"): _empty_topic,
    ("topic", "pause"): _pausing_topic(True),
    ("topic", "unpause"): _pausing_topic(False),
    ("topic", "delete"): _delete_topic,
    ("channel", "create"): _create_channel,
    ("channel", "empty"): _empty_channel,
    ("channel", "pause"): _pausing_channel(True),
    ("channel", "unpause"): _pausing_channel(False),
    ("channel", "delete"): _delete_channel,
}

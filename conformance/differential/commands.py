"""Generators of valid commands."""

import json

from nsq_conformance.differential.account import Channel, Client
from nsq_conformance.differential.conversation import Conversation, batch, sized
from nsq_conformance.differential.vocabulary import CHANNELS, DOCUMENTS, EDGES, INTEGERS, MAX_DELAY_MS, TEXTS


def publish(conversation: Conversation, client: Client) -> None:
    topic, bodies = conversation.topic(), conversation.bodies(4)
    lines = b"".join(b"PUB %b\n" % topic + sized(body) for body in bodies)
    conversation.send(client, lines, len(bodies))
    conversation.published(topic, bodies)


def publish_many(conversation: Conversation, client: Client) -> None:
    topic, bodies = conversation.topic(), conversation.bodies(6)
    conversation.send(client, b"MPUB %b\n" % topic + sized(batch(bodies)))
    conversation.published(topic, bodies)


def publish_deferred(conversation: Conversation, client: Client) -> None:
    topic, body = conversation.topic(), conversation.body()
    delay_ms = conversation.random.choice((MAX_DELAY_MS - 1, MAX_DELAY_MS))
    conversation.account.topic(topic).is_settled = False
    conversation.send(client, b"DPUB %b %d\n" % (topic, delay_ms) + sized(body))


def identify(conversation: Conversation, client: Client) -> None:
    if client.state != "init":
        return conversation.shut_down(client, b"IDENTIFY\n" + sized(b"{}"))
    if conversation.random.random() < 0.15:
        return conversation.shut_down(client, b"IDENTIFY\n" + sized(conversation.random.choice(DOCUMENTS)))
    random = conversation.random
    members = {name: random.choice(EDGES) for name in random.sample(INTEGERS, random.randint(0, 2))}
    members |= dict.fromkeys(random.sample(TEXTS, random.randint(0, 2)), "x")
    if random.random() < 0.1:
        members[random.choice(TEXTS)] = random.choice(EDGES)
    members["feature_negotiation"] = random.choice((True, True, False, None))
    if random.random() < 0.2:
        members["tls_v1"] = random.choice((True, False, None))  # the nsqd have no certificates
    if random.random() < 0.1:  # refused together; one alone would start compression
        members |= {"snappy": True, "deflate": True}
    # The generator does not know whether it is refused, so it is the last act of the connection.
    data = b"IDENTIFY\n" + sized(json.dumps(members).encode())
    harmless = not {*INTEGERS, "snappy"} & set(members) and all(
        isinstance(members.get(name, ""), str) for name in TEXTS
    )
    return (
        conversation.send(client, data)
        if harmless
        else conversation.shut_down(client, data + b"PUB %b\n" % conversation.topic_without_consumers() + sized(b"x"))
    )


def subscribe(conversation: Conversation, client: Client) -> None:
    name, channel_name = conversation.topic(), conversation.random.choice(CHANNELS)
    topic = conversation.account.topic(name)
    known = topic.channels.get(channel_name)
    if client.state != "init" or not topic.is_certain or (known and known.consumer):
        return send_nops(conversation, client)
    if known is None:  # its messages depend on the background work of nsqd
        conversation.settle(name)
    client.state, client.topic, client.channel = "subscribed", name, channel_name
    conversation.send(client, b"SUB %b %b\n" % (name, channel_name))
    topic.channel(channel_name).consumer = client
    if conversation.random.random() < 0.8:
        consume(conversation, client)
    return None


def consume(conversation: Conversation, client: Client) -> None:
    ready = conversation.random.choice((0, 1, 2, 3, 10, 49, 50))
    conversation.sync(client, b"RDY %d\n" % ready)
    if client.state == "subscribed":
        client.ready = ready
        conversation.deliver(_channel(conversation, client))


def answer(conversation: Conversation, client: Client) -> None:
    channel = _channel(conversation, client)
    body = conversation.random.choice(client.held)
    choices = [(b"FIN", b""), (b"FIN", b""), (b"TOUCH", b""), (b"REQ", b" %d" % MAX_DELAY_MS)]
    # The order of several waiting messages is not certain.
    if client.ready - len(client.held) + 1 > len(channel.waiting) and not channel.is_paused:
        choices.append((b"REQ", b" 0"))
    verb, tail = conversation.random.choice(choices)
    conversation.answer(client, verb, body, tail)
    if verb != b"TOUCH":
        client.held.remove(body)
    conversation.sync(client)
    if tail == b" 0":
        channel.waiting.append(body)
    elif conversation.random.random() < 0.2:  # a second answer to the same message
        again = conversation.random.choice((b"FIN", b"TOUCH"))
        conversation.answer(client, again, body)
        conversation.sync(client)
        if again == b"FIN" and verb == b"TOUCH":
            client.held.remove(body)
    conversation.deliver(channel)


def send_nops(conversation: Conversation, client: Client) -> None:
    if client.state == "init":
        conversation.send(client, b"NOP\n" * conversation.random.randint(1, 3), 0)
    else:
        conversation.sync(client, b"NOP\n")


def close_gently(conversation: Conversation, client: Client) -> None:
    if client.state == "subscribed":
        client.ready, client.state = 0, "closing"
        conversation.send(client, b"CLS\n")
    else:
        conversation.shut_down(client, b"CLS\n")


def _channel(conversation: Conversation, client: Client) -> Channel:
    return conversation.account.topic(client.topic).channels[client.channel]

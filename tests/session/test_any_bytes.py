"""What holds for any bytes in any cut.

*Any bytes lead to frames, to an error frame, or to a fatal error frame and a close; never to another exception*, and
the cut they come in changes nothing.
"""

import json
from itertools import repeat
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol.message import MessageIds
from tests.cuts import cut
from tests.v2_client import ASKS_FOR_HEADERS, identify, payload

SMALL = {"max_msg_size": 50, "max_body_size": 200, "max_rdy_count": 20}
MOST_BYTES_PER_BYTE = 64
"""No input may earn more reply than this: a client that is not read from must not make nsqd hold ever more."""

FRAMES_THAT_CLOSE = (
    *(b"E_INVALID", b"E_BAD_", b"E_SUB_FAILED", b"E_AUTH", b"E_PUB", b"E_MPUB", b"E_DPUB", b"E_HPUB", b"E_HMPUB"),
    b"E_IDENTIFY",
)

numbers = st.sampled_from([b"", b"0", b"1", b"5", b"20", b"21", b"-1", b"x", b"3600000", b"3600001", b"9" * 30])
names = st.sampled_from([b"t", b"u", b"c", b"", b"a b", b"bad!", b"x#ephemeral", b"n" * 64, b"n" * 65, b"\xff"])
sizes = st.sampled_from([-(1 << 31), -1, 0, 1, 49, 50, 51, 200, 201, (1 << 31) - 1])
bodies = st.binary(max_size=12)


def sized(body, size=None):
    return (len(body) if size is None else size).to_bytes(4, "big", signed=True) + body


@st.composite
def documents(draw):
    keys = st.sampled_from(
        [
            "heartbeat_interval",
            "msg_timeout",
            "sample_rate",
            "output_buffer_size",
            "feature_negotiation",
            "client_id",
            "snappy",
            "deflate",
            "deflate_level",
            "tls_v1",
        ]
    )
    values: st.SearchStrategy[Any] = st.sampled_from([0, -1, 1, 50, 1000, 60_000, True, False, None, "me", [], 1.5])
    return json.dumps(draw(st.dictionaries(keys, values, max_size=3))).encode()


@st.composite
def message_ids(draw):
    """Some of these are the ids of the first messages of a topic."""
    return draw(st.sampled_from([*first_ids(), b"0123456789abcdef", b"short", b"", b"with a space it i"]))


def first_ids():
    return list(map(MessageIds(0).take_one, repeat(1_700_001_000_000_000_000, 4)))


@st.composite
def mpubs(draw):
    messages = draw(st.lists(bodies, max_size=4))
    count = draw(st.sampled_from([len(messages)] * 5 + [-1, 0, 1, 39, 40]))
    content = sized(b"", count)[:4] + b"".join(map(sized, messages))
    return b"MPUB %b\n%b" % (
        draw(names),
        draw(st.sampled_from([sized(content), sized(content, 1), sized(content, 201)])),
    )


payloads = st.one_of(
    st.binary(max_size=12),
    st.builds(
        payload,
        st.binary(max_size=4),
        st.dictionaries(st.sampled_from(["a", "Bc", "a b", ""]), st.text(max_size=3), max_size=2),
    ),
)


@st.composite
def hmpubs(draw):
    messages = draw(st.lists(payloads, max_size=3))
    count = draw(st.sampled_from([len(messages)] * 5 + [-1, 0, 1]))
    content = sized(b"", count)[:4] + b"".join(map(sized, messages))
    return b"HMPUB %b\n%b" % (draw(names), draw(st.sampled_from([sized(content)] * 3 + [sized(content, 1)])))


commands = st.one_of(
    st.builds(lambda name, body: b"PUB %b\n%b" % (name, sized(body)), names, bodies),
    st.builds(lambda body: b"PUB t\n" + sized(body), st.binary(min_size=1, max_size=5)),
    st.builds(lambda body, size: b"PUB t\n%b" % sized(body, size), bodies, sizes),
    st.builds(lambda name, delay, body: b"DPUB %b %b\n%b" % (name, delay, sized(body)), names, numbers, bodies),
    mpubs(),
    st.just(identify(**ASKS_FOR_HEADERS)),
    st.builds(lambda name, body: b"HPUB %b\n%b" % (name, sized(body)), names, payloads),
    st.builds(lambda delay, body: b"HPUB t %b\n%b" % (delay, sized(body)), numbers, payloads),
    hmpubs(),
    st.builds(lambda topic, channel: b"SUB %b %b\n" % (topic, channel), names, names),
    st.just(b"SUB t c\n"),
    st.builds(lambda count: b"RDY %b\n" % count, numbers),
    st.builds(lambda each: b"FIN %b\n" % each, message_ids()),
    st.builds(lambda each, delay: b"REQ %b %b\n" % (each, delay), message_ids(), numbers),
    st.builds(lambda each: b"TOUCH %b\r\n" % each, message_ids()),
    st.builds(lambda document: b"IDENTIFY\n" + sized(document), documents()),
    st.builds(lambda body: b"AUTH\n" + sized(body), bodies),
    st.sampled_from([b"NOP\n", b"CLS\n", b"RDY\n", b"\n", b"\r\n", b"nop\n", b"NOP\r\r\n"]),
    st.binary(max_size=8),
)
commands_on_t = commands.filter(lambda data: data == b"SUB t c\n" or not data.startswith((b"SUB", b"IDENTIFY")))
conversations = st.lists(commands, max_size=12).map(b"".join)


cuts = st.lists(st.integers(1, 150), max_size=8)


@given(conversations, cuts, st.booleans())
def test_any_bytes_lead_to_frames_or_to_an_error_frame_and_a_close(make_nsqd, data, positions, half_close):
    nsqd = make_nsqd(**SMALL)
    client = nsqd.connect().says(b"", *cut(data, positions))
    if half_close:
        client.stops_sending().and_is_closed()
    else:
        nsqd.waits(30)
    frames = client.hears_anything()
    assert client.unparsed == b""
    assert len(client.bytes_heard) <= MOST_BYTES_PER_BYTE * (len(data) + 1) + 1000
    for frame in frames[:-1]:
        assert not frame.data.startswith(FRAMES_THAT_CLOSE) or frame.type != 1
    if frames and frames[-1].type == 1 and frames[-1].data.startswith(FRAMES_THAT_CLOSE):
        client.and_is_closed()


@given(st.binary(max_size=300), cuts)
def test_noise_behind_the_magic_is_harmless(make_nsqd, data, positions):
    nsqd = make_nsqd(**SMALL)
    nsqd.connect().says(b"", *cut(data, positions)).stops_sending().and_is_closed()


@given(st.binary(max_size=40), cuts)
def test_noise_in_place_of_the_magic_is_harmless(make_nsqd, data, positions):
    nsqd = make_nsqd(**SMALL)
    client = nsqd.connect(b"").says(b"", *cut(data, positions))
    assert client.is_open == (len(data) < 4 or data.startswith(b"  V2"))
    client.stops_sending().and_is_closed()


@given(conversations, cuts)
def test_the_same_bytes_in_any_cut_get_the_same_replies(make_nsqd, data, positions):
    """Each piece is answered before the next comes; messages come when there is a chance, so they are left out."""
    whole, pieces = (make_nsqd(**SMALL).connect() for _ in range(2))
    # No client is ready for messages, so that none of them can be answered in one conversation and not in the other.
    data = data.replace(b"RDY", b"NOP")
    whole.says(data)
    pieces.says(b"", *cut(data, positions))
    assert pieces.hears_anything() == whole.hears_anything()
    assert pieces.is_open == whole.is_open
    assert pieces.stats == whole.stats


@given(conversations, conversations, cuts, cuts)
def test_the_same_bytes_in_any_cut_get_the_same_bytes(make_nsqd, first, second, cuts_of_first, cuts_of_second):
    """With everything that is to be sent asked for at the same two moments, whatever the cuts: equal to the byte."""
    prologue = b"SUB t c\nRDY 3\n" + b"".join(b"PUB t\n" + sized(b"%d" % number) for number in range(4))
    said = [prologue + first, second]
    whole = converse(make_nsqd(**SMALL), [[each] for each in said])
    pieces = converse(make_nsqd(**SMALL), [cut(said[0], cuts_of_first), cut(said[1], cuts_of_second)])
    assert pieces.bytes_heard == whole.bytes_heard
    assert pieces.is_open == whole.is_open
    assert pieces.stats == whole.stats


def converse(nsqd, turns):
    client = nsqd.connect()
    for pieces in turns:
        for piece in pieces:
            client.session.receive_data(piece, nsqd.now, nsqd.now_ns)
        client.woken = True
        nsqd.turns()
    return client


@given(conversations, cuts)
def test_a_consumer_is_never_given_more_than_it_is_ready_for(make_nsqd, data, positions):
    nsqd = make_nsqd(**SMALL)
    producer, consumer = nsqd.connect(), nsqd.connect().subscribes()
    producer.publishes(*[b"%d" % number for number in range(30)])
    before = 0
    for piece in cut(data, positions):
        stats = consumer.says(piece).stats
        assert stats.in_flight_count <= max(before, stats.ready_count)
        before = stats.in_flight_count


@given(st.lists(st.tuples(st.integers(0, 2), commands_on_t), max_size=25), st.booleans())
def test_every_message_is_somewhere_whatever_three_clients_do(make_nsqd, steps, time_passes):
    """Conservation: what was published and not finished is waiting, in flight or deferred."""
    nsqd = make_nsqd(**SMALL)
    clients = [nsqd.connect().subscribes().says(b"RDY 5\n"), nsqd.connect().subscribes(), nsqd.connect()]
    for number, data in steps:
        clients[number].says(data)
        if time_passes:
            nsqd.waits(7)
    channel = nsqd.broker.topics["t"].channels["c"]
    held = channel.depth + channel.in_flight_count + channel.deferred_count
    assert held + sum(client.stats.finish_count for client in clients) == channel.message_count


events = st.one_of(
    st.tuples(st.just("says"), st.integers(0, 2), commands_on_t),
    st.tuples(st.just("answers"), st.integers(0, 2), st.sampled_from([b"FIN", b"REQ", b"TOUCH"])),
    st.tuples(
        st.sampled_from(["pause", "unpause", "empty", "reads", "stops_reading", "disconnects"]), st.integers(0, 2)
    ),
    st.tuples(st.just("waits"), st.sampled_from([0.5, 3, 20])),
)


@given(st.lists(events, max_size=40), st.sampled_from([0, 0, 50]), st.booleans())
def test_no_ready_consumer_waits_while_there_are_messages(make_nsqd, steps, sample_rate, topology_aware):
    nsqd = make_nsqd(max_rdy_count=20, topology_aware=topology_aware, topology_zone="z", topology_region="r")
    clients = [nsqd.connect() for _ in range(3)]
    for client, place in zip(clients, ({"topology_zone": "z"}, {"topology_region": "r"}, {}), strict=True):
        client.identifies(sample_rate=sample_rate, msg_timeout=5000, **place).hears(b"OK").subscribes(ready=2)
    channel = nsqd.broker.topics["t"].channels["c"]
    producer = nsqd.connect()
    producer.publishes(*[b"%d" % number for number in range(20)])
    for name, *details in steps:
        play(nsqd, clients, channel, name, *details)
        for client in clients:
            stats = client.stats
            if client.session.subscription in channel.consumers and client.reads and not channel.paused:
                assert not channel.depth or stats.in_flight_count >= stats.ready_count


def play(nsqd, clients, channel, name, which, what=None):
    """One event of the above."""
    if name == "waits":
        nsqd.waits(which)
    elif name == "says":
        clients[which].says(what)
    elif name == "answers":
        for message_id in list(clients[which].session.subscription.in_flight.frames)[:2]:
            clients[which].says(b"%b %b%b\n" % (what, message_id, b" 0" if what == b"REQ" else b""))
    elif name == "reads":
        clients[which].reads_on()
    elif name in ("pause", "unpause", "empty"):
        getattr(channel, name)()
    else:
        getattr(clients[which], name)()
    nsqd.turns()

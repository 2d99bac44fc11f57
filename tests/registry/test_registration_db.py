"""The registration database: which producers a lookup lists, for how long, and what is cached."""

import gc
import json
import logging
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol.lookup_commands import PeerInfo
from nsq_compat.registry.registration_db import Producer, Registration, RegistrationDb

INACTIVE_AFTER = 300.0
TOMBSTONE_LIFETIME = 45.0
START_NS = 1_700_000_000_000_000_000


class Directory:
    """A database, a clock that moves by hand, and short questions."""

    def __init__(self) -> None:
        self.db = RegistrationDb(INACTIVE_AFTER, TOMBSTONE_LIFETIME)
        self.now = 1000.0
        self._ports = iter(range(40_000, 60_000))

    @property
    def now_ns(self) -> int:
        return START_NS + int(self.now * 1e9)

    def joins(self, host: str = "node", http_port: int = 4151) -> Producer:
        info = PeerInfo(broadcast_address=host, http_port=http_port, tcp_port=4150, version="1.3.0")
        return self.db.identify(f"127.0.0.1:{next(self._ports)}", info, self.now, self.now_ns)

    def pings(self, producer: Producer) -> None:
        self.db.heard_of(producer, self.now, self.now_ns)

    def tombstones(self, topic: str, node: str) -> None:
        self.db.tombstone(topic, node, self.now, self.now_ns)

    def found(self, topic: str) -> list[Producer]:
        return list(self.db.lookup(topic, self.now)[1])

    def nodes(self) -> list[Producer]:
        return list(self.db.nodes(self.now))


@pytest.fixture
def directory() -> Directory:
    return Directory()


def test_a_topic_is_found_with_its_channels_and_producers(directory):
    one, other = directory.joins(), directory.joins()
    directory.db.register(one, "orders", "archive")
    directory.db.register(one, "orders", "archive")
    directory.db.register(other, "orders")
    channels, producers = directory.db.lookup("orders", directory.now)
    assert list(channels) == ["archive"]
    assert producers == (one, other)
    assert list(directory.db.topics) == ["orders"]


def test_unregistered_names_are_not_found(directory):
    directory.db.register(directory.joins(), "orders", "archive")
    for topic in ("other", "*", "", "\udcff"):
        with pytest.raises(KeyError):
            directory.db.lookup(topic, directory.now)
        assert not directory.db.channels(topic)


def test_a_lookup_is_cached_until_a_change(directory):
    producer = directory.joins()
    directory.db.register(producer, "t")
    first = directory.db.lookup("t", directory.now)[1]
    directory.now += INACTIVE_AFTER - 1
    assert directory.db.lookup("t", directory.now)[1] is first
    directory.db.register(directory.joins(), "t")
    assert len(directory.found("t")) == 2


# --- Leaving ----------------------------------------------------------------------------------------------------------


def test_unregistering_a_topic_unregisters_its_channels_and_logs_it(directory, caplog):
    producer, other = directory.joins(), directory.joins()
    directory.db.register(producer, "t", "c")
    directory.db.register(other, "t", "d")
    with caplog.at_level(logging.WARNING):
        directory.db.unregister(producer, "t")
    assert [record.message for record in caplog.records] == [
        f"client({producer.id}) unexpected UNREGISTER category:channel key:t subkey:c"
    ]
    assert not producer.channels
    assert directory.found("t") == [other]


@pytest.mark.parametrize("leaves", [True, False])
def test_thousands_of_registrations_end_with_a_limited_number_of_log_lines(directory, caplog, leaves):
    producer, other = directory.joins(), directory.joins()
    for number in range(3000):
        directory.db.register(producer, "t", f"c{number}")
    directory.db.register(other, "t", "c0")
    with caplog.at_level(logging.INFO):
        if leaves:
            directory.db.forget(producer)
        else:
            directory.db.unregister(producer, "t")
    assert len(caplog.records) == 1002
    more = 2001 if leaves else 2000  # with the topic
    assert f"DB: client({producer.id}) UNREGISTER of {more} more topics and channels" in caplog.messages
    assert (producer.topics, producer.channels) == ({}, {})
    assert directory.found("t") == [other]
    assert [list(each.producers) for each in directory.db.registrations() if each.producers] == [[other], [other]]


def test_a_topic_with_thousands_of_channels_is_deleted_with_a_limited_number_of_log_lines(directory, caplog):
    for number in range(3000):
        directory.db.create_channel("t", f"c{number}")
    with caplog.at_level(logging.INFO):
        caplog.clear()
        directory.db.delete_topic("t")
    assert caplog.messages[999:] == [
        "DB: removing channel(c999) from topic(t)",
        "DB: removing 2000 more channels from topic(t)",
        "DB: removing topic(t)",
    ]
    assert not [*directory.db.registrations()]


def test_a_removed_producer_leaves_its_names_even_ephemeral_ones(directory, caplog):
    producer = directory.joins()
    directory.db.register(producer, "t#ephemeral", "c#ephemeral")
    with caplog.at_level(logging.INFO):
        directory.db.forget(producer)
        directory.db.forget(producer)
    assert {record.message.partition(" UNREGISTER ")[2] for record in caplog.records} == {
        "category:channel key:t#ephemeral subkey:c#ephemeral",
        "category:topic key:t#ephemeral subkey:",
        "category:client key: subkey:",
    }
    assert len(caplog.records) == 3
    assert list(directory.db.topics) == ["t#ephemeral"]
    assert list(directory.db.channels("t#ephemeral")) == ["c#ephemeral"]
    assert directory.nodes() == directory.found("t#ephemeral") == []


def test_nothing_refers_to_a_removed_producer(directory):
    producer = directory.joins("a")
    for topic in ("t", "u"):
        directory.db.register(producer, topic, "c")
        assert directory.found(topic)
    directory.tombstones("t", "a:4151")
    name = producer.id = "of this test"
    directory.db.forget(producer)
    del producer
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, Producer) and each.id == name]


# --- Silence and tombstones -------------------------------------------------------------------------------------------


def test_a_silent_producer_is_hidden_until_it_sends_a_command(directory):
    producer, lively = directory.joins(), directory.joins()
    for each in (producer, lively):
        directory.db.register(each, "t")
    directory.now += INACTIVE_AFTER
    directory.pings(lively)
    assert directory.found("t") == directory.nodes() == [producer, lively]
    directory.now += 0.001
    assert directory.found("t") == directory.nodes() == [lively]
    directory.pings(producer)
    assert directory.found("t") == directory.nodes() == [producer, lively]
    assert producer.last_update_ns == directory.now_ns


def test_a_tombstone_hides_one_topic_of_a_producer_for_a_while(directory):
    producer, other = directory.joins("a"), directory.joins("b")
    for each in (producer, other):
        directory.db.register(each, "t")
        directory.db.register(each, "u")
    directory.tombstones("t", "a:4151")
    assert directory.found("t") == [other]
    assert directory.found("u") == directory.nodes() == [producer, other]
    assert directory.db.is_tombstoned(producer, "t", directory.now)
    directory.now += TOMBSTONE_LIFETIME - 0.001
    assert directory.found("t") == [other]
    directory.now += 0.001
    assert directory.found("t") == [producer, other]
    assert not directory.db.is_tombstoned(producer, "t", directory.now)


@pytest.mark.parametrize("node", ["::1:4151", "[::1]:4151"])
def test_an_ipv6_node_may_be_named_with_or_without_brackets(directory, node):
    producer = directory.joins("::1")
    directory.db.register(producer, "t")
    directory.tombstones("t", node)
    assert directory.found("t") == []


@pytest.mark.parametrize("node", ["a:4152", "b:4151", "a", "", "[a:4151", "*", "\udcff:1"])
def test_a_tombstone_for_an_unknown_node_hides_no_producer(directory, node):
    producer = directory.joins("a")
    directory.db.register(producer, "t")
    directory.tombstones("t", node)
    directory.tombstones("nothing", "a:4151")
    assert directory.found("t") == [producer]


# --- Records ---------------------------------------------------------------------------------------------------------

INFO = PeerInfo("node<1>", "höst", 4151, 4150, "r", "z", "1.3.0")


def test_a_producer_is_encoded_in_nsqs_order_and_spelling():
    producer = Producer("127.0.0.1:5000", INFO, 0.0, 0)
    assert (
        producer.described
        == (
            '{"remote_address":"127.0.0.1:5000","hostname":"höst","broadcast_address":"node\\u003c1\\u003e",'
            '"tcp_port":4150,"http_port":4151,"version":"1.3.0","topology_zone":"z","topology_region":"r"'
        ).encode()
    )


def test_a_description_with_a_closing_brace_is_a_json_object():
    described = Producer("127.0.0.1:5000", PeerInfo(broadcast_address='"}'), 0.0, 0).described
    assert json.loads(described + b"}")["broadcast_address"] == '"}'


def test_a_node_is_named_by_its_broadcast_address():
    assert Producer("127.0.0.1:5000", INFO, 0.0, 0).node == "node<1>:4151"


def test_two_equal_producers_are_two():
    assert Producer("a", INFO, 0.0, 0) != Producer("a", INFO, 0.0, 0)


def test_a_registration_with_a_channel_has_the_category_channel():
    assert Registration("t").category == "topic"
    assert Registration("t", "c").category == "channel"


# --- Operators --------------------------------------------------------------------------------------------------------


def test_names_may_exist_before_any_producer(directory, caplog):
    with caplog.at_level(logging.INFO):
        directory.db.create_topic("t")
        directory.db.create_channel("u", "c")
    assert [record.message for record in caplog.records] == [
        "DB: adding topic(t)",
        "DB: adding channel(c) in topic(u)",
        "DB: adding topic(u)",
    ]
    assert list(directory.db.topics) == ["t", "u"]
    assert directory.found("u") == []


def test_a_deleted_topic_is_gone_with_its_channels_until_it_is_registered_again(directory, caplog):
    producer = directory.joins("a")
    directory.db.register(producer, "t", "c")
    directory.tombstones("t", "a:4151")
    with caplog.at_level(logging.INFO):
        directory.db.delete_topic("t")
        directory.db.delete_topic("t")
    assert [record.message for record in caplog.records] == [
        "DB: removing channel(c) from topic(t)",
        "DB: removing topic(t)",
    ]
    assert not directory.db.topics
    assert not directory.db.channels("t")
    assert (producer.topics, producer.channels, producer.tombstones) == ({}, {}, {})
    directory.db.register(producer, "t")
    assert directory.found("t") == [producer]


def test_a_deleted_channel_leaves_its_topic(directory):
    producer = directory.joins()
    directory.db.register(producer, "t", "c")
    directory.db.delete_channel("t", "c")
    assert not directory.db.channels("t")
    assert directory.found("t") == [producer]
    for topic, channel in (("t", "c"), ("x", "c")):
        with pytest.raises(KeyError):
            directory.db.delete_channel(topic, channel)


# --- Against a model that remembers and searches everything -----------------------------------------------------------


class Model:
    """What NSQ does, told in one flat map: (category, topic, channel) to producers."""

    def __init__(self) -> None:
        self.map: dict[tuple[str, str, str], dict[Producer, float | None]] = {}

    def add(self, key: tuple[str, str, str], producer: Producer | None = None) -> None:
        producers = self.map.setdefault(key, {})
        if producer is not None:
            producers.setdefault(producer, None)

    def remove(self, key: tuple[str, str, str], producer: Producer, name: str) -> None:
        producers = self.map.get(key, {})
        producers.pop(producer, None)
        if not producers and name.endswith("#ephemeral"):
            self.map.pop(key, None)

    def matching(self, category: str, topic: str) -> list[tuple[str, str, str]]:
        return [key for key in self.map if key[:2] == (category, topic)]

    def found(self, topic: str, now: float) -> set[Producer]:
        return {
            producer
            for producer, tombstone in self.map[("topic", topic, "")].items()
            if now <= producer.last_update + INACTIVE_AFTER
            and (tombstone is None or now >= tombstone + TOMBSTONE_LIFETIME)
        }


TOPICS = ("t", "u", "e#ephemeral")
CHANNELS = ("c", "f#ephemeral")
events = st.one_of(
    st.tuples(
        st.sampled_from(["register", "unregister"]),
        st.integers(0, 2),
        st.sampled_from(TOPICS),
        st.sampled_from(["", *CHANNELS]),
    ),
    st.tuples(st.sampled_from(["forget", "ping"]), st.integers(0, 2)),
    st.tuples(st.sampled_from(["tombstone"]), st.sampled_from(TOPICS), st.sampled_from(["n0:4151", "n1:4151"])),
    st.tuples(st.sampled_from(["create_topic", "delete_topic"]), st.sampled_from(TOPICS)),
    st.tuples(
        st.sampled_from(["create_channel", "delete_channel"]), st.sampled_from(TOPICS), st.sampled_from(CHANNELS)
    ),
    st.tuples(st.just("wait"), st.sampled_from([10, 44.5, 45, 299.5, 300, 301])),
)


def of_the_model(model: Model, directory: Directory, producers: list[Producer]) -> dict[str, Callable[..., object]]:
    def register(number: int, topic: str, channel: str) -> None:
        if channel:
            model.add(("channel", topic, channel), producers[number])
        model.add(("topic", topic, ""), producers[number])

    def unregister(number: int, topic: str, channel: str) -> None:
        if channel:
            model.remove(("channel", topic, channel), producers[number], channel)
            return
        for key in model.matching("channel", topic):
            model.remove(key, producers[number], "")
        model.remove(("topic", topic, ""), producers[number], topic)

    def forget(number: int) -> None:
        for key in list(model.map):
            model.remove(key, producers[number], "")

    def tombstone(topic: str, node: str) -> None:
        of_topic = model.map.get(("topic", topic, ""), {})
        for producer in of_topic:
            if producer.node == node:
                of_topic[producer] = directory.now

    def delete_topic(topic: str) -> None:
        for key in [*model.matching("channel", topic), *model.matching("topic", topic)]:
            del model.map[key]

    def create_channel(topic: str, channel: str) -> None:
        model.add(("channel", topic, channel))
        model.add(("topic", topic, ""))

    return {
        "register": register,
        "unregister": unregister,
        "forget": forget,
        "tombstone": tombstone,
        "create_topic": lambda topic: model.add(("topic", topic, "")),
        "delete_topic": delete_topic,
        "create_channel": create_channel,
        "delete_channel": lambda topic, channel: model.map.pop(("channel", topic, channel), None),
    }


@given(st.lists(events, max_size=60))
def test_queries_return_the_same_as_a_search_of_one_flat_map(steps):
    directory, model = Directory(), Model()
    producers = [directory.joins(f"n{number}") for number in range(3)]
    in_model = of_the_model(model, directory, producers)
    for name, *details in steps:
        play(directory, producers, name, *details)
        if name in in_model:
            in_model[name](*details)
        if name == "forget":
            producers[details[0]] = directory.joins(f"n{details[0]}")
        compare(directory, model, producers)


def play(directory: Directory, producers: list[Producer], name: str, *details) -> None:
    db = directory.db
    if name == "wait":
        directory.now += details[0]
    elif name == "ping":
        directory.pings(producers[details[0]])
    elif name == "tombstone":
        directory.tombstones(*details)
    elif name == "delete_channel":
        if details[1] in db.channels(details[0]):
            db.delete_channel(*details)
    elif name in ("register", "unregister", "forget"):
        getattr(db, name)(producers[details[0]], *details[1:])
    else:
        getattr(db, name)(*details)


def compare(directory: Directory, model: Model, producers: list[Producer]) -> None:
    db, now = directory.db, directory.now
    assert set(db.topics) == {topic for category, topic, _ in model.map if category == "topic"}
    for topic in TOPICS:
        assert set(db.channels(topic)) == {key[2] for key in model.matching("channel", topic)}
        if topic in db.topics:
            assert set(directory.found(topic)) == model.found(topic, now)
    registered = {(each.category, each.topic, each.channel): set(each.producers) for each in db.registrations()}
    assert registered == {key: set(of_key) for key, of_key in model.map.items()}
    assert set(db.producers) == set(producers)
    for producer in producers:
        assert {("topic", topic, "") for topic in producer.topics} | {
            ("channel", each.topic, each.channel) for of_topic in producer.channels.values() for each in of_topic
        } == {key for key, of_key in model.map.items() if producer in of_key}
        assert set(producer.tombstones) <= set(producer.topics)

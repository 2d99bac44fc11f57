"""A cluster of two nsqlookupds and three nsqds, of which some are killed and restarted.

Consumers that know only the nsqlookupds find all nsqds, and every message is accounted for. With ``--other-nsqd`` and
``--other-nsqlookupd`` every second daemon is of another kind.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from nsq_conformance.clients import Client
from nsq_conformance.cluster import PATIENCE, Cluster, count, end, eventually, producers
from nsq_conformance.daemons import command_of
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.pynsq_client import numbered_lines

pytestmark = pytest.mark.timeout(300)
LINES = 150
SLOWLY = {"hold_ms": 3, "max_in_flight": 10, "timeout": 2 * PATIENCE}
"""Options that keep messages in flight at any time, so that a kill hits some."""


@pytest.fixture(params=["pynsq", "gonsq", "nsqjs"])
def client(request: pytest.FixtureRequest) -> Client:
    """The clients without gnsq: if a node dies while gnsq connects, its RDY loop ends with an AttributeError, and it
    consumes no more messages.
    """
    chosen: Client = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture
def cluster(
    pytestconfig: pytest.Config, nsqd_command: str, nsqlookupd_command: str, tmp_path: Path
) -> Iterator[Cluster]:
    others = [command_of(name, pytestconfig) for name in ("other-nsqd", "other-nsqlookupd")]
    with Cluster(tmp_path, [nsqd_command, others[0]], [nsqlookupd_command, others[1]]) as cluster:
        yield cluster


class Publications:
    """Published messages with distinct bodies."""

    def __init__(self, client: Client, topic: str, folder: Path) -> None:
        self.bodies: set[bytes] = set()
        self._client = client
        self._topic = topic
        self._folder = folder

    def publish(self, nsqds: Sequence[NsqdProcess]) -> None:
        """Publish to each nsqd; returns when all have answered OK."""
        for nsqd in nsqds:
            file = self._folder / f"published{len(self.bodies)}"
            file.write_text("".join(f"{file.name} {number}\n" for number in range(LINES)))
            assert self._client.publishing(nsqd.tcp_address, self._topic, file).report()["published"] == LINES
            self.bodies.update(numbered_lines(file))


@pytest.fixture
def published(client: Client, topic: str, tmp_path: Path) -> Publications:
    return Publications(client, topic, tmp_path)


def bodies_in(out: Path) -> set[bytes]:
    return set(out.read_bytes().split(b"\n")[:-1])


def test_every_message_arrives_although_an_nsqlookupd_and_an_nsqd_are_killed(
    cluster: Cluster, client: Client, topic: str, published: Publications, tmp_path: Path
) -> None:
    dying_nsqd, *other_nsqds = cluster.nsqds
    dying_nsqlookupd, other_nsqlookupd = cluster.nsqlookupds
    expected = 9 * LINES
    out, late = tmp_path / "out", tmp_path / "late"
    consumer = client.discovering(cluster.lookupd_http, topic, "ch", expected, out, distinct=1, **SLOWLY)

    published.publish(cluster.nsqds)
    eventually(lambda: all(count(each, topic, "ch", "client_count") == 1 for each in cluster.nsqds), consumer)
    dying_nsqlookupd.kill()
    published.publish(cluster.nsqds)
    end(dying_nsqd)
    eventually(lambda: producers(other_nsqlookupd, topic) == 2, consumer)
    published.publish(other_nsqds)
    dying_nsqd.start()
    dying_nsqlookupd.start()
    published.publish([dying_nsqd])

    assert consumer.report(4 * PATIENCE)["finished"] >= expected
    assert bodies_in(out) == published.bodies
    # A new consumer that knows only the restarted nsqlookupd, which had lost its registrations, finds all nsqds.
    eventually(lambda: producers(dying_nsqlookupd, topic) == 3)
    other_nsqlookupd.kill()
    arrived_before = set(published.bodies)
    for each in cluster.nsqds:
        each.create_channel(topic, "late")
    newcomer = client.discovering([dying_nsqlookupd.http_address], topic, "late", 3 * LINES, late, timeout=PATIENCE)
    published.publish(cluster.nsqds)
    newcomer.report(2 * PATIENCE)
    assert bodies_in(late) == published.bodies - arrived_before


def restart_nsqlookupds(cluster: Cluster) -> None:
    for each in cluster.nsqlookupds:
        each.kill()
    for each in cluster.nsqlookupds:
        each.start()


def restart_nsqds(cluster: Cluster) -> None:
    for each in cluster.nsqds:
        end(each)
    for each in cluster.nsqds:
        each.start()


def restart_everything_nsqds_first(cluster: Cluster) -> None:
    for nsqd in cluster.nsqds:
        end(nsqd)
    for nsqlookupd in cluster.nsqlookupds:
        nsqlookupd.kill()
    for nsqd in cluster.nsqds:
        nsqd.start()
    for nsqlookupd in cluster.nsqlookupds:
        nsqlookupd.start()


@pytest.mark.parametrize("restart", [restart_nsqlookupds, restart_nsqds, restart_everything_nsqds_first])
def test_a_consumer_that_polls_during_a_restart_recovers_without_help(
    cluster: Cluster,
    client: Client,
    topic: str,
    published: Publications,
    tmp_path: Path,
    restart: Callable[[Cluster], None],
) -> None:
    out = tmp_path / "out"
    consumer = client.discovering(cluster.lookupd_http, topic, "ch", 6 * LINES, out, distinct=1, timeout=2 * PATIENCE)
    published.publish(cluster.nsqds)
    eventually(lambda: all(count(each, topic, "ch", "client_count") == 1 for each in cluster.nsqds), consumer)
    restart(cluster)
    published.publish(cluster.nsqds)
    consumer.report(4 * PATIENCE)
    assert bodies_in(out) == published.bodies


def test_a_new_topic_gets_the_channels_it_has_on_other_nodes(
    cluster: Cluster, client: Client, topic: str, published: Publications
) -> None:
    first, *others = cluster.nsqds
    first.create_channel(topic, "ch")
    eventually(lambda: all(producers(each, topic) == 1 for each in cluster.nsqlookupds))
    published.publish(others)
    eventually(lambda: all(count(each, topic, "ch", "depth") == LINES for each in others))

"""Publish ids in a live nsqd: over HTTP and TCP, through kill -9, and where a standby has taken over."""

import itertools
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from nsq_conformance.cluster import eventually
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from tests.nsqd.conftest import connect
from tests.v2_client import ASKS_FOR_HEADERS, hmpub, hpub, pub

POLICY = '[[policies]]\ntopic = "t|moved|merged"\ndedup_window = "10m"\n'
_ends = itertools.count()


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[NsqdProcess]:
    with process(tmp_path, "data") as nsqd:
        nsqd.create_channel("t", "c")
        yield nsqd


def process(folder: Path, name: str, *options: str) -> NsqdProcess:
    path = folder / name
    path.mkdir(exist_ok=True)
    config = folder / "nsqd.cfg"
    config.write_text(POLICY)
    return NsqdProcess(installed_nsqd(), path, options=[f"--config={config}", *options])


def post(nsqd: NsqdProcess, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    answer = nsqd.asks("POST", path, body, **headers)
    return answer.status, answer.body


def says(nsqd: NsqdProcess, *commands: bytes) -> None:
    with connect(nsqd, **ASKS_FOR_HEADERS) as producer:
        producer.says(*commands).hears(*[b"OK"] * len(commands))


def takes(nsqd: NsqdProcess, topic: bytes = b"t") -> list[bytes]:
    """All messages of the channel, which are finished."""
    end = b"end %d" % next(_ends)
    says(nsqd, pub(end, topic=topic))
    bodies: list[bytes] = []
    with connect(nsqd) as consumer:
        consumer.subscribes(topic, b"c", ready=1)
        while end not in bodies:
            bodies += [each.body for each in consumer.takes(1, finishing=True)]
    return sorted(each for each in bodies if not each.startswith(b"end"))


def test_an_id_over_http_and_one_over_tcp_are_the_same(nsqd):
    assert post(nsqd, "/pub?topic=t&id=a%201", b"one") == (200, b"OK")
    assert post(nsqd, "/pub?topic=t&id=a+1", b"two") == (200, b"OK")
    assert post(nsqd, "/pub?%69d=a%201&topic=t&defer=5", b"three") == (200, b"OK")
    assert post(nsqd, "/pub?topic=t", b"four", **{"X-NSQ-Header-NSQ-Id": "a 1"}) == (200, b"OK")
    says(nsqd, hpub(b"five", {"nsq-id": "a 1"}), hmpub([(b"six", {"nsq-id": "a 1"}), (b"seven", {})]))
    assert takes(nsqd) == [b"one", b"seven"]
    assert (nsqd.topic_stats("t") or {})["duplicate_count"] == 5
    metrics = nsqd.asks("GET", "/metrics").body
    assert b'nsqd_topic_duplicates_total{topic="t"} 5.0' in metrics
    assert b'nsqd_topic_publish_ids{topic="t"} 1.0' in metrics
    assert b'nsqd_topic_forgotten_ids_total{topic="t"} 0.0' in metrics


def test_the_answer_says_what_has_become_of_an_id(nsqd):
    def answers(query, **headers):
        answer = nsqd.asks("POST", f"/pub?{query}", b"body", **headers)
        assert answer.body == b"OK"
        return answer.headers.get("X-NSQ-Id")

    given = {"X-NSQ-Header-NSQ-Id": "b"}
    assert [answers("topic=t&id=a"), answers("topic=t&id=a"), answers("topic=t", **given)] == ["new", "known", "new"]
    assert [answers("topic=none&id=a"), answers("topic=none&id=a")] == ["no-window", "no-window"]
    assert answers("topic=t") is None
    assert answers("topic=t", **{"X-NSQ-Header-Customer": "42"}) is None
    assert nsqd.logs("TOPIC(none): messages have the header nsq-id, but no policy sets dedup_window")


def test_a_client_that_asks_learns_over_tcp_if_an_id_has_no_effect(nsqd):
    batch = [(b"m", {"nsq-id": str(number)}) for number in range(5000)]  # published in steps
    with connect(nsqd, feature_negotiation=True, nsq_compat={"headers": True, "ids": True}) as producer:
        for topic, answer in ((b"none", b"OK no-window"), (b"t", b"OK")):
            producer.says(hpub(b"m", {"nsq-id": "a"}, topic), hmpub(batch, topic)).hears(answer, answer)
            producer.says(pub(b"m", topic=topic)).hears(b"OK")


def test_stats_name_the_window(nsqd):
    assert post(nsqd, "/pub?topic=none", b"one") == (200, b"OK")
    assert (nsqd.topic_stats("t") or {})["dedup_window"] == "10m0s"
    assert "dedup_window" not in (nsqd.topic_stats("none") or {})


def test_stats_are_as_before_without_duplicates(nsqd):
    assert post(nsqd, "/pub?topic=t&id=a", b"one") == (200, b"OK")
    assert not {"duplicate_count", "forgotten_id_count"} & (nsqd.topic_stats("t") or {}).keys()


def test_requests_with_and_without_an_id_alternate_on_a_connection(nsqd):
    with closing(HTTPConnection(nsqd.http_address, timeout=30)) as connection:
        for number in range(12):
            query = ("", "&id=same", f"&id={number}")[number % 3]
            connection.request("POST", f"/pub?topic=t{query}", b"%02d" % number)
            assert connection.getresponse().read() == b"OK"
    assert takes(nsqd) == [b"%02d" % number for number in range(12) if number % 3 != 1 or number == 1]


@pytest.mark.parametrize(
    ("path", "headers", "status", "answer"),
    [
        ("/pub?topic=t&id=", {}, 400, b"INVALID_HEADER: the value of header nsq-id must have 1 to 128 bytes, not 0"),
        ("/pub?topic=t&id", {}, 400, b"must have 1 to 128 bytes, not 0"),
        ("/pub?topic=t&id=" + 129 * "x", {}, 400, b"must have 1 to 128 bytes, not 129"),
        ("/pub?topic=t&id=%00", {}, 400, b"has a control character"),
        ("/pub?topic=t&id=%ff", {}, 400, b"is not UTF-8"),
        ("/pub?topic=t&id=a", {"X-NSQ-Header-NSQ-Id": "b"}, 400, b"the header nsq-id is there twice"),
        ("/mpub?topic=t&id=a", {}, 400, b"INVALID_ID: only the message of a /pub has an id"),
        ("/mpub?topic=t&idea=a", {}, 200, b"OK"),
        ("/pub?topic=t&id=%C3%A4", {}, 200, b"OK"),
    ],
)
def test_ids_over_http_are_checked(nsqd, path, headers, status, answer):
    found = post(nsqd, path, b"body", **headers)
    assert found[0] == status
    assert answer in found[1]


def test_an_invalid_id_over_tcp_ends_the_connection(nsqd):
    with connect(nsqd, **ASKS_FOR_HEADERS) as producer:
        producer.says(hpub(b"m", {"nsq-id": ""}))
        producer.hears(b"E_BAD_MESSAGE HPUB the value of header nsq-id must have 1 to 128 bytes, not 0")


def test_ids_are_known_after_kill_9_and_after_a_stop(tmp_path):
    for life in range(4):
        with process(tmp_path, "data") as nsqd:
            nsqd.create_channel("t", "c")
            says(nsqd, hpub(b"a", {"nsq-id": "a"}), hpub(b"%d" % life, {"nsq-id": str(life)}))
            found = nsqd.topic_stats("t") or {}
            assert found["message_count"] == (1 if life else 2)
            assert found.get("duplicate_count", 0) == (1 if life else 0)
            if life:
                assert nsqd.logs("publish ids read from the log")
            if life % 2:
                nsqd.kill()


def test_ids_are_known_where_a_standby_has_taken_over(tmp_path):
    accepting = ["--mirror-accept", "--mirror-takeover-after=manual", "--node-id=2"]
    topics = (b"moved", b"merged")
    with process(tmp_path, "standby", *accepting) as standby:
        says(standby, pub(b"own", topic=b"merged"))  # so that one topic is merged, and one is moved
        standby.create_channel("merged", "c")
        mirrored = [f"--mirror-to={standby.tcp_address}", "--mirror-timeout=60s", "--node-id=1"]
        with process(tmp_path, "primary", *mirrored) as primary:
            eventually(lambda: primary.asks("GET", "/mirror").json()["standby"]["state"] == "in sync")
            for topic in topics:
                primary.create_channel(topic.decode(), "c")
                says(primary, hpub(b"finished", {"nsq-id": "f"}, topic))
                takes(primary, topic)
                says(primary, hpub(b"waiting", {"nsq-id": "w"}, topic))
            primary.kill()
        (lost,) = standby.asks("GET", "/mirror").json()["primaries"]
        assert post(standby, f"/mirror/adopt?identity={lost['identity']}")[0] == 200
        for topic in topics:
            says(standby, hpub(b"again", {"nsq-id": "f"}, topic), hpub(b"again", {"nsq-id": "w"}, topic))
            assert b"again" not in takes(standby, topic)
        standby.kill()
    with process(tmp_path, "standby", *accepting) as standby:
        for topic in topics:
            says(standby, hpub(b"again", {"nsq-id": "f"}, topic), hpub(b"new", {"nsq-id": "n"}, topic))
            found = takes(standby, topic)
            assert b"new" in found
            assert b"again" not in found


def test_a_batch_in_steps_is_published_once(nsqd):
    batch = [(b"%d" % number, {"nsq-id": str(number)}) for number in range(3000)]
    says(nsqd, hmpub(batch))
    says(nsqd, hmpub([*batch, (b"new", {"nsq-id": "new"})]))
    found = nsqd.topic_stats("t") or {}
    assert (found["message_count"], found["duplicate_count"]) == (3001, 3000)

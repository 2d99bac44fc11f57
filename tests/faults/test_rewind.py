"""A channel is rewound while consumers are connected and messages in flight, and nsqd is killed meanwhile (P9).

A ledger counts the deliveries of every message. Between two rewinds the channel delivers all that it has. So a message
that was published before the last pause has come once for its publish, and once for each rewind to it or before it.
"""

import json
import threading
import time
from collections import Counter
from functools import partial
from random import Random
from typing import Any

import pytest

from tests.faults.conftest import StartDaemon
from tests.faults.daemon import Daemon, wait_until
from tests.v2_client import GONE, Message, split_frames

REWINDS = 200
KILLS = 12
POLICY = '[[policies]]\ntopic = "t"\nretain_for = "1h"\n'


class Ledger:
    """Consumers that finish what they get, in threads, and what they got."""

    def __init__(self, daemon: Daemon, consumers: int) -> None:
        self.counts: Counter[bytes] = Counter()
        self._daemon = daemon
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._consume, args=(number,)) for number in range(consumers)]

    def __enter__(self) -> "Ledger":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _consume(self, number: int) -> None:
        try:
            with self._daemon.client() as consumer:
                consumer.subscribes(ready=5 + 20 * number)
                while not self._end.is_set():
                    messages = consumer.takes(1, within=0.2)
                    with self._lock:
                        self.counts.update(message.body for message in messages)
                    time.sleep(0.001 * number)  # so that some are in flight when the channel is rewound
                    consumer.finishes(messages)
        except GONE:
            pass  # nsqd was killed


def rewind(daemon: Daemon, offset: int) -> dict[str, Any]:
    status, answer = daemon.http("channel/rewind", b"", topic="t", channel="c", to=offset)
    assert status == 200, answer
    found: dict[str, Any] = json.loads(answer)
    return found


def is_drained(daemon: Daemon) -> bool:
    return daemon.unfinished("t") == {"c": 0}


@pytest.fixture
def config(tmp_path) -> str:
    path = tmp_path / "nsqd.toml"
    path.write_text(POLICY)
    return f"--config={path}"


@pytest.mark.timeout(600)
def test_every_message_comes_once_more_for_each_rewind_under_load(start: StartDaemon, config: str) -> None:
    random = Random(7)
    daemon = start(config, "--mem-queue-size=50")
    daemon.create_channel("t", "c")
    expected: Counter[bytes] = Counter()
    bodies: list[bytes] = []  # by offset
    with Ledger(daemon, 3) as ledger, daemon.client() as producer:
        for number in range(REWINDS):
            settled = len(bodies)
            some = [b"%d" % each for each in range(settled, settled + 1 + random.randrange(40))]
            if random.random() < 0.3:
                producer.defers(some[0], 1).publishes(*some[1:])
            else:
                producer.publishes(*some)
            bodies += some
            expected.update(some)
            offset = random.randrange(len(bodies))
            assert rewind(daemon, offset)["offset"] == offset
            expected.update(bodies[offset:settled])
            wait_until(partial(is_drained, daemon))
            with ledger._lock:
                counts = ledger.counts.copy()
            # What was published just before the rewind may have been taken by then. If not, it is passed over if the
            # rewind leads behind it.
            for at, body in enumerate(some, settled):
                assert counts[body] - (at >= offset) in (0, 1)
                expected[body] = counts[body]
            assert counts == expected, number
    assert daemon.ping() == "OK"


@pytest.mark.timeout(600)
def test_a_rewind_that_was_answered_survives_kill_9(start: StartDaemon, config: str) -> None:
    random = Random(3)
    daemon = start(config, "--mem-queue-size=50")
    daemon.create_channel("t", "c")
    published = [b"%d" % number for number in range(2000)]
    daemon.publishes(*published)
    least: Counter[bytes] = Counter(published)
    counts: Counter[bytes] = Counter()
    for _ in range(KILLS):
        with Ledger(daemon, 2) as ledger:
            wait_until(partial(is_drained, daemon))
            offset = random.randrange(len(published))
            rewind(daemon, offset)
            least.update(published[offset:])
            time.sleep(random.choice([0, 0.02, 0.2]))
            daemon.kill()
        counts += ledger.counts
        daemon = start(config, "--mem-queue-size=50", data_path=daemon.data_path)
    with Ledger(daemon, 2) as ledger:
        wait_until(partial(is_drained, daemon))
    counts += ledger.counts
    assert counts.keys() == set(published), "nothing invented, nothing lost"
    assert not {body: (counts[body], number) for body, number in least.items() if counts[body] < number}
    status, answer = daemon.http("topic/offsets", topic="t")
    assert status == 200
    assert (json.loads(answer)["first"], json.loads(answer)["next"]) == (0, len(published))


def test_readers_and_a_rewound_channel_get_everything_but_what_is_damaged(start: StartDaemon, config: str) -> None:
    random = Random(11)
    options = (config, "--max-bytes-per-file=15000")
    daemon = start(*options)
    daemon.create_channel("t", "c")
    bodies = [b"%04d" % number + bytes(random.randrange(100)) for number in range(1500)]
    with daemon.client() as producer:
        for begin in range(0, len(bodies), 50):
            producer.publishes(*bodies[begin : begin + 50])
    assert daemon.consumes(len(bodies)) == bodies
    daemon.stop()
    files = sorted((daemon.data_path / "nsq_compat" / "t.topic").glob("log.*"))
    for path in (files[1], files[2], *files[5:-1]):
        content = bytearray(path.read_bytes())
        place = random.randrange(len(content) // 3, len(content) // 2)
        content[place : place + 500] = random.choice([bytes(500), random.randbytes(500), content[:500]])
        path.write_bytes(content)
    files[4].unlink()  # and the one before it is whole

    daemon = start(*options, data_path=daemon.data_path)
    found: dict[int, bytes] = {}
    lost: set[int] = set()
    following = 0
    while following < len(bodies):
        answer = daemon.asks(
            "GET", f"/topic/read?topic=t&from={following}&max_bytes={random.choice([1, 5000, 50_000])}"
        )
        first, end = (int(answer.headers[f"x-nsq-{which}-offset"]) for which in ("first", "next"))
        if first > following:
            assert answer.headers["x-nsq-gap"] == f"{following}-{first - 1}"
            lost |= set(range(following, first))
        frames, _ = split_frames(answer.body)
        found.update(enumerate((Message.of(frame).body for frame in frames), first))
        assert len(frames) == end - first
        following = end
    assert len(lost) > 100
    assert found == {offset: body for offset, body in enumerate(bodies) if offset not in lost}
    assert rewind(daemon, 0)["depth"] == len(bodies)
    assert daemon.consumes(len(found)) == list(found.values())
    wait_until(partial(is_drained, daemon))
    assert "damaged at" in daemon.log
    assert f"LOG({files[3]}): damaged at its end: the next file is missing" in daemon.log

"""A monkey-patched program with the client, which prints what it observed.

Its arguments are nsqd's TCP and HTTP addresses and a topic.
"""

from gevent import monkey

monkey.patch_all()

import json  # noqa: E402
import sys  # noqa: E402

import gevent  # noqa: E402

import nsq_compat.client as nsq  # noqa: E402

ADDRESS, HTTP_ADDRESS, TOPIC = sys.argv[1:]
COUNT = 40

seen: list[str] = []
at_once = {"now": 0, "most": 0}
turns = 0


def tick() -> None:
    """Another greenlet, which must be scheduled all the time."""
    global turns
    while True:
        gevent.sleep(0.001)
        turns += 1


def handle(message: nsq.Message) -> None:
    at_once["now"] += 1
    at_once["most"] = max(at_once.values())
    gevent.sleep(0.01)
    at_once["now"] -= 1
    seen.append(message.body.decode())


ticker = gevent.spawn(tick)
with nsq.Producer(ADDRESS) as producer:
    producer.publish_many(TOPIC, [b"%d" % number for number in range(COUNT)])
    asynchronous = producer.publish_async(TOPIC, b"asynchronous").result(20)
consumer = nsq.Consumer(TOPIC, "c", handle, nsqd_tcp_addresses=ADDRESS, max_in_flight=10, concurrency=10)
with gevent.Timeout(40), consumer:
    while len(seen) <= COUNT:
        gevent.sleep(0.01)
reader = nsq.LogReader(TOPIC, nsqd_http_addresses=HTTP_ADDRESS, follow=True)
logged: list[bytes] = []


def publish_last() -> None:
    """Once the reader waits for it."""
    while len(logged) <= COUNT:
        gevent.sleep(0.01)
    with nsq.Producer(ADDRESS) as producer:
        producer.publish(TOPIC, b"last")


gevent.spawn(publish_last)
with gevent.Timeout(40):
    for message in reader:
        logged.append(message.body)
        if message.body == b"last":
            reader.stop()
report = {
    "logged": len(logged),
    "seen": len(set(seen)),
    "most at once": at_once["most"],
    "turns": turns,
    "nodes": list(asynchronous.nodes),
}
print(json.dumps(report))

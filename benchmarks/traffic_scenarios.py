"""The table of traffic scenarios: bodies of several sizes, many topics, consumers of different speeds, connections that
come and go; and most of nsqd's other scenarios through go-nsq, NSQ's library for Go, which most users run.
"""

from dataclasses import replace

from benchmarks.nsqd_scenarios import BACKLOG, MAX_MESSAGES, SCENARIOS, in_memory
from benchmarks.scenarios import Kind, Scenario, grouped, load_of
from benchmarks.traffic_aims import aim_of

_KILOBYTE = 1024
_LARGE = 4 * _KILOBYTE


def _shapes() -> tuple[Scenario, ...]:
    large: dict[str, str | float] = {"size": _LARGE, "most": MAX_MESSAGES // 5}
    mixed: dict[str, str | float] = {"spread": "true", "most": MAX_MESSAGES // 10}
    return (
        in_memory(
            "mpub-20x4k",
            "MPUB of 20 bodies of 4 KB, 4 connections that wait for each OK; one channel keeps all messages",
            publish="mpub",
            batch=20,
            publishers=4,
            **large,
        ),
        in_memory(
            "pub-pipelined-4k",
            "PUB of 4 KB, 2 connections with up to 100 unanswered each, 50 in a write",
            publish="pub",
            publishers=2,
            burst=50,
            outstanding=2,
            **large,
        ),
        in_memory(
            "deliver-fin-4k",
            "deliver-fin-rdy2500 with bodies of 4 KB",
            prefill="true",
            consumers=2,
            rdy=2500,
            **large,
        ),
        in_memory(
            "deliver-fin-64k",
            "a channel with bodies of 64 KB filled in advance, drained by 2 consumers at RDY 100",
            prefill="true",
            consumers=2,
            rdy=100,
            size=64 * _KILOBYTE,
            most=MAX_MESSAGES // 100,
        ),
        in_memory(
            "mixed-drained",
            "PUB of 50 bytes to 64 KiB (log-normal, median 1 KiB), 2 connections with up to 100 unanswered each, 50 in"
            " a write, while 2 consumers at RDY 2500 drain; until all messages are finished",
            publish="pub",
            publishers=2,
            burst=50,
            outstanding=2,
            consumers=2,
            rdy=2500,
            **mixed,
        ),
        replace(
            in_memory(
                "drained-200-topics",
                "PUB to 200 topics in turn, a channel with a consumer at RDY 100 each, on 10 connections, each waits"
                " for its OK before the next; until all messages are finished",
                publish="pub",
                publishers=10,
                topics=200,
                consumers=1,
                rdy=100,
            ),
            connections=210,
        ),
        in_memory(
            "fanout-20-uneven",
            "MPUB of 200 into a topic with 20 channels, a consumer on each at RDY 2500, 1250, ... 19 and again;"
            " deliveries are counted",
            publish="mpub",
            batch=200,
            channels=20,
            consumers=1,
            rdy=2500,
            uneven="true",
            most=2 * MAX_MESSAGES // 20,
        ),
        in_memory(
            "http-pub-1",
            "POST /pub on one keep-alive connection, which waits for each answer",
            publish="http-pub",
        ),
        Scenario(
            "backlog-drained",
            f"a channel with {BACKLOG // 10:,} messages in its log, drained by 2 consumers at RDY 2500 while 2"
            " connections publish MPUBs of 200; until all messages are finished",
            load_of(publish="mpub", batch=200, publishers=2, consumers=2, rdy=2500, backlog=BACKLOG // 10),
        ),
        *(
            Scenario(
                f"connections-{name}",
                f"10 clients connect{how}, send IDENTIFY, and close when it is answered, again and again; connections"
                " are counted",
                load_of(churn="true", publishers=10, most=20_000, **flags),
                tls=bool(flags),
            )
            for name, how, flags in (("plain", "", {}), ("tls", " with TLS", {"tls": "true"}))
        ),
    )


_BY_GO_NSQ = (
    *("mpub-200x200", "mpub-10x200", "pub-sync-1-poller", "pub-sync-10", "pub-pipelined", "deliver-fin-rdy2500"),
    *("publish-while-consuming", "fanout-10", "latency-1k", "latency-10k", "mpub-20x4k", "pub-pipelined-4k"),
    *("deliver-fin-4k", "deliver-fin-64k", "pub-drained-64k", "mixed-drained", "drained-200-topics"),
    *("fanout-20-uneven", "mpub-200x200-tls", "pub-sync-10-tls"),
)


def _by_go_nsq(scenario: Scenario) -> Scenario:
    """The same with NSQ's own library for Go, which most users run: where they differ, the lower ratio counts."""
    load = tuple(each for each in scenario.load if each not in ("-thread=true", "-unbuffered=true"))
    return replace(
        scenario,
        name=f"{scenario.name}-go-nsq",
        what=f"`{scenario.name}` through go-nsq",
        load=(*load, "-client=go-nsq"),
        aim=None,
    )


_SHAPES = grouped("Shapes of real traffic", *_shapes())
_KINDS_BY_GO_NSQ = {Kind.THROUGHPUT: "Through go-nsq", Kind.LATENCY: "Latency through go-nsq"}
_THROUGH_GO_NSQ = tuple(
    replace(_by_go_nsq(each), group=title)
    for kind, title in _KINDS_BY_GO_NSQ.items()
    for each in (*SCENARIOS, *_SHAPES)
    if each.name in _BY_GO_NSQ and each.kind is kind
)

TRAFFIC_SCENARIOS = tuple(replace(each, aim=aim_of(each.name)) for each in (*_SHAPES, *_THROUGH_GO_NSQ))

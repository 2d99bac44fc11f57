"""The kinds of load, as a table: how the generator in ``load/`` is called and what nsqd is told.

Every server is given the same, starts anew for every run, and has memory for all messages of a run, so that no figure
depends on a disk, unless the scenario is about that. What is not drained is bounded by `MOST` messages, everything else
by time.
"""

from dataclasses import dataclass
from enum import Enum

MOST = 1_000_000
BACKLOG = 2_000_000
BODY_SIZE = 200


class Kind(Enum):
    """Which table of the result a scenario belongs to."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"
    IDLE = "idle"
    QUESTIONS = "questions"
    REGISTRATION = "registration"


@dataclass(frozen=True, slots=True)
class Scenario:
    """`load` are flags of the generator. `what` is a sentence for the result. With `tls` nsqd has a certificate."""

    name: str
    what: str
    load: tuple[str, ...]
    kind: Kind = Kind.THROUGHPUT
    options: tuple[str, ...] = (f"--mem-queue-size={MOST}",)
    tls: bool = False


def load_of(**flags: str | float) -> tuple[str, ...]:
    """Flags of the generator."""
    return tuple(f"-{name}={value}" for name, value in flags.items())


def _sync(connections: int) -> Scenario:
    plural = "connections" if connections > 1 else "connection"
    return Scenario(
        f"pub-sync-{connections}",
        f"PUB on {connections} {plural}, each awaits its OK before the next",
        load_of(publish="pub", publishers=connections),
    )


def _latency(name: str, rate: int, **flags: str) -> Scenario:
    asks = ", which asks not to be buffered" if flags else ""
    return Scenario(
        name,
        f"{rate:,} PUB a second whatever is answered, one consumer at RDY 100{asks}: from write to delivery",
        load_of(publish="pub", rate=rate, consumers=1, rdy=100, **flags),
        Kind.LATENCY,
    )


# What lies between socket and session, and the generator's words for it.
_LAYERS = {
    "tls": ("TLS", {"tls": "true"}),
    "snappy": ("snappy", {"compression": "snappy"}),
    "deflate": ("deflate", {"compression": "deflate"}),
    "tls-deflate": ("deflate over TLS", {"tls": "true", "compression": "deflate"}),
}


def _layered() -> tuple[Scenario, ...]:
    """Publishing and consuming, through each of them."""
    loads: dict[str, dict[str, str | float]] = {
        "mpub-200x200": {"publish": "mpub", "batch": 200, "publishers": 4},
        "pub-pipelined": {"publish": "pub", "publishers": 2, "burst": 50, "outstanding": 2},
        "pub-sync-10": {"publish": "pub", "publishers": 10},
        "deliver-fin-rdy2500": {"prefill": "true", "consumers": 2, "rdy": 2500},
    }
    return tuple(
        Scenario(f"{load}-{layer}", f"{load} through {what}", load_of(**flags, **asked), tls="tls" in asked)
        for load, flags in loads.items()
        for layer, (what, asked) in _LAYERS.items()
        if layer == "tls" or load != "pub-sync-10"
    )


SCENARIOS = (
    Scenario(
        "mpub-200x200",
        "MPUB of 200, 4 connections that await each OK; the one channel keeps everything",
        load_of(publish="mpub", batch=200, publishers=4),
    ),
    Scenario(
        "mpub-drained",
        "MPUB of 200, 2 connections, while 2 consumers at RDY 2500 drain the channel; until all is finished",
        load_of(publish="mpub", batch=200, publishers=2, consumers=2, rdy=2500),
    ),
    Scenario(
        "deliver-fin-rdy2500",
        "a channel filled before, drained by 2 consumers at RDY 2500; the FINs of one read leave in one write",
        load_of(prefill="true", consumers=2, rdy=2500),
    ),
    Scenario(
        "publish-while-consuming",
        "PUB, 1 connection with up to 100 unanswered, while 2 consumers at RDY 2500 drain; until all is finished",
        load_of(publish="pub", burst=50, outstanding=2, consumers=2, rdy=2500),
    ),
    _sync(1),
    _sync(10),
    _sync(100),
    Scenario(
        "pub-pipelined",
        "PUB, 2 connections with up to 100 unanswered each, 50 in a write",
        load_of(publish="pub", publishers=2, burst=50, outstanding=2),
    ),
    Scenario(
        "rdy1-pingpong",
        "a channel filled before, one consumer at RDY 1: each message waits for the FIN of the one before",
        load_of(prefill="true", consumers=1, rdy=1),
    ),
    Scenario(
        "rdy1-20-consumers",
        "a channel filled before, 20 consumers at RDY 1",
        load_of(prefill="true", consumers=20, rdy=1),
    ),
    Scenario(
        "fanout-10",
        "MPUB of 200 into a topic with 10 channels, a consumer at RDY 2500 on each; counted are deliveries",
        load_of(publish="mpub", batch=200, channels=10, consumers=1, rdy=2500, most=MOST // 5),
    ),
    Scenario(
        "mpub-3-channels",
        "MPUB of 200, 4 connections that await each OK, into a topic with 3 channels that keep everything in memory",
        load_of(publish="mpub", batch=200, publishers=4, channels=3),
    ),
    Scenario(
        "mpub-3-channels-spilled",
        "the same with memory for 10,000 messages a channel, the default; the rest goes to the disk",
        load_of(publish="mpub", batch=200, publishers=4, channels=3),
        options=(),
    ),
    Scenario(
        "backlog-3-channels",
        f"the same until {BACKLOG:,} messages wait in each of the 3 channels, however long it takes",
        load_of(publish="mpub", batch=200, publishers=4, channels=3, most=BACKLOG, seconds=60),
        options=(),
    ),
    Scenario(
        "deliver-fin-from-disk",
        "as deliver-fin-rdy2500, without memory (--mem-queue-size=0): everything is read from the disk",
        load_of(prefill="true", consumers=2, rdy=2500),
        options=("--mem-queue-size=0",),
    ),
    Scenario(
        "http-pub",
        "POST /pub on 10 keep-alive connections, each awaits its answer",
        load_of(publish="http-pub", publishers=10),
    ),
    Scenario(
        "http-mpub",
        "POST /mpub of 100 lines on 4 keep-alive connections",
        load_of(publish="http-mpub", batch=100, publishers=4),
    ),
    *_layered(),
    _latency("latency-light", 1_000),
    _latency("latency-unbuffered", 1_000, unbuffered="true"),
    _latency("latency-10k", 10_000),
    Scenario(
        "idle-1000",
        "1000 subscribed connections without a message and with a heartbeat a second",
        load_of(idle=1000),
        Kind.IDLE,
    ),
)

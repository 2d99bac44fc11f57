"""The table of nsqd's scenarios.

Every server gets the same load, is started anew for every run, and may keep all messages of a run in memory, so that
figures do not depend on a disk unless the scenario measures it. Scenarios without consumers are limited to
`MAX_MESSAGES`, the others by time.
"""

from dataclasses import replace

from benchmarks.nsqd_aims import AIMS
from benchmarks.scenarios import Kind, Scenario, grouped, load_of

MAX_MESSAGES = 1_000_000
BACKLOG = 2_000_000
BODY_SIZE = 200
LATENCY_SECONDS = 10.0
"""Long enough for a 99th percentile at 1,000 messages a second, which a single disturbance must not determine."""

_MEMORY = (f"--mem-queue-size={MAX_MESSAGES}",)
_KILOBYTE = 1024


def in_memory(name: str, what: str, **flags: str | float) -> Scenario:
    return Scenario(name, what, load_of(**flags), options=_MEMORY)


def _sync(connections: int, what: str = "", **flags: str | float) -> Scenario:
    plural = "connections" if connections > 1 else "connection"
    return in_memory(
        f"pub-sync-{connections}",
        f"PUB{what} on {connections:,} {plural}, each waits for its OK before the next",
        publish="pub",
        publishers=connections,
        **flags,
    )


def _lone(name: str, what: str, **flags: str) -> Scenario:
    scenario = _sync(1, **flags)
    return replace(scenario, name=f"{scenario.name}{name}", what=f"{scenario.what}{what}")


def _fan_out(channels: int) -> Scenario:
    plural = "channels" if channels > 1 else "channel"
    return in_memory(
        f"fanout-{channels}",
        f"MPUB of 200 into a topic with {channels} {plural}, a consumer at RDY 2500 on each; deliveries are counted",
        publish="mpub",
        batch=200,
        channels=channels,
        consumers=1,
        rdy=2500,
        most=min(MAX_MESSAGES, 2 * MAX_MESSAGES // channels),
    )


# --- TLS and compression, with the generator's flags ------------------------------------------------------------------

_PIECES = 240

_LAYERS = {
    "tls": ("TLS", {"tls": "true"}),
    "snappy": ("snappy", {"compression": "snappy"}),
    "deflate": ("deflate, level 6,", {"compression": "deflate"}),
    "tls-deflate": ("deflate over TLS", {"tls": "true", "compression": "deflate"}),
}


def _through(layer: str) -> tuple[Scenario, ...]:
    """Scenarios that publish and consume over a layer."""
    loads: dict[str, dict[str, str | float]] = {
        "mpub-200x200": {"publish": "mpub", "batch": 200, "publishers": 4},
        "pub-pipelined": {"publish": "pub", "publishers": 2, "burst": 50, "outstanding": 2},
        "pub-sync-10": {"publish": "pub", "publishers": 10},
        "deliver-fin-rdy2500": {"prefill": "true", "consumers": 2, "rdy": 2500},
    }
    what, asked = _LAYERS[layer]
    return tuple(
        Scenario(
            f"{load}-{layer}",
            f"{load} through {what}".rstrip(","),
            load_of(**flags, **asked),
            options=_MEMORY,
            tls="tls" in asked,
        )
        for load, flags in loads.items()
        if layer == "tls" or load != "pub-sync-10"
    )


def _in_pieces(layer: str) -> Scenario:
    """Publishing as by Go programs: their compressor writes to the socket in pieces of this size."""
    whole = _through(layer)[0]
    return replace(
        whole,
        name=f"{whole.name}-pieces",
        what=f"{whole.what}, each MPUB in pieces of {_PIECES} bytes, as Go's compressor writes it",
        load=(*whole.load, f"-pieces={_PIECES}"),
    )


# --- Latency ----------------------------------------------------------------------------------------------------------


def _latency(name: str, rate: int, *, buffered: bool = False, busy_poll: str = "") -> Scenario:
    how = "with nsqd's default output buffer" if buffered else "which turns output buffering off"
    flags = {} if buffered else {"unbuffered": "true"}
    load = load_of(publish="pub", rate=rate, consumers=1, rdy=100, **flags)
    time = f"{LATENCY_SECONDS:.0f} s or more"
    what = f"{rate:,} PUB a second for {time}, at a fixed rate, one consumer at RDY 100, {how}"
    ours: tuple[str, ...] = ()
    if busy_poll:
        ours = (f"--busy-poll-time={busy_poll}",)
        what = f"{what}; ours with {ours[0]}"
    return Scenario(name, what, load, Kind.LATENCY, options=_MEMORY, ours=ours, least_seconds=LATENCY_SECONDS)


def _loaded(percent: int) -> Scenario:
    load: dict[str, str | float] = {"publish": "pub", "burst": 100, "outstanding": 2, "unbuffered": "true"}
    return Scenario(
        f"latency-{percent}-percent",
        f"{percent} % of the rate that this server reached a second before (pipelined PUB, 1 connection; 1 consumer at"
        " RDY 2500, not buffered), each message at its scheduled time; messages due at once are written together",
        load_of(**load, consumers=1, rdy=2500, capacity=percent / 100),
        Kind.LATENCY,
        options=_MEMORY,
    )


def _delayed(name: str, what: str, **flags: str) -> Scenario:
    # Go's nsqd looks for new channels with deferred messages every five seconds.
    load = load_of(rate=1000, consumers=1, rdy=2500, unbuffered="true", pause=6, **flags)
    return Scenario(
        name,
        f"1,000 messages a second, {what} with a delay of 100 to 1,000 ms: how much later they arrive",
        load,
        Kind.LATENCY,
        options=_MEMORY,
    )


# --- Idle connections -------------------------------------------------------------------------------------------------


def _idle(connections: int) -> Scenario:
    return Scenario(
        f"idle-{connections}",
        f"{connections:,} subscribed connections without a message and with a heartbeat a second",
        load_of(idle=connections),
        Kind.IDLE,
        options=_MEMORY,
        connections=connections,
    )


def _at(level: str, scenario: Scenario) -> Scenario:
    what = f"`{scenario.name}` with ours at `--durability={level}`; Go's nsqd has only one level"
    return replace(scenario, name=f"{scenario.name}-{level}", what=what, ours=(f"--durability={level}",))


_MPUB = in_memory(
    "mpub-200x200",
    "MPUB of 200, 4 connections that wait for each OK; one channel keeps all messages",
    publish="mpub",
    batch=200,
    publishers=4,
)

_ALL = (
    *grouped(
        "Publishing",
        _MPUB,
        in_memory("mpub-10x200", "mpub-200x200 with MPUB of 10", publish="mpub", batch=10, publishers=4),
        _lone("", ", from a thread that only reads and writes", thread="true"),
        _lone("-poller", ", with Go's poller and scheduler, as in a Go program"),
        *map(_sync, (10, 100)),
        replace(_sync(1000), connections=1000),
        in_memory(
            "pub-pipelined",
            "PUB, 2 connections with up to 100 unanswered each, 50 in a write",
            publish="pub",
            publishers=2,
            burst=50,
            outstanding=2,
        ),
        in_memory(
            "http-pub",
            "POST /pub on 10 keep-alive connections, each waits for its answer",
            publish="http-pub",
            publishers=10,
        ),
        in_memory(
            "http-mpub",
            "POST /mpub of 100 lines on 4 keep-alive connections",
            publish="http-mpub",
            batch=100,
            publishers=4,
        ),
    ),
    *grouped(
        "Delivering",
        in_memory(
            "rdy1-pingpong",
            "a channel filled in advance, one consumer at RDY 1: each message waits for the FIN of the one before",
            prefill="true",
            consumers=1,
            rdy=1,
        ),
        in_memory(
            "rdy1-20-consumers",
            "a channel filled in advance, 20 consumers at RDY 1",
            prefill="true",
            consumers=20,
            rdy=1,
        ),
        *(
            in_memory(
                f"deliver-fin-rdy{ready}",
                f"a channel filled in advance, drained by 2 consumers at RDY {ready}; the FINs for one read are sent"
                " together",
                prefill="true",
                consumers=2,
                rdy=ready,
            )
            for ready in (100, 2500)
        ),
        in_memory(
            "mpub-drained",
            "MPUB of 200, 2 connections, while 2 consumers at RDY 2500 drain the channel; until all messages are"
            " finished",
            publish="mpub",
            batch=200,
            publishers=2,
            consumers=2,
            rdy=2500,
        ),
        in_memory(
            "publish-while-consuming",
            "PUB, 1 connection with up to 100 unanswered, while 2 consumers at RDY 2500 drain; until all messages are"
            " finished",
            publish="pub",
            burst=50,
            outstanding=2,
            consumers=2,
            rdy=2500,
        ),
        *map(_fan_out, (1, 5, 10, 20)),
    ),
    *grouped(
        "Larger bodies",
        *(
            replace(_sync(10, f" of {size} KB", size=size * _KILOBYTE, most=most), name=f"pub-sync-10-{size}k")
            for size, most in ((1, MAX_MESSAGES // 2), (64, MAX_MESSAGES // 100))
        ),
        in_memory(
            "mpub-drained-1k",
            "mpub-drained with MPUB of 50 bodies of 1 KB",
            publish="mpub",
            batch=50,
            publishers=2,
            consumers=2,
            rdy=2500,
            size=_KILOBYTE,
            most=MAX_MESSAGES // 2,
        ),
        in_memory(
            "pub-drained-64k",
            "PUB of 64 KB, 2 connections with up to 4 unanswered, while 2 consumers at RDY 100 drain",
            publish="pub",
            publishers=2,
            outstanding=4,
            consumers=2,
            rdy=100,
            size=64 * _KILOBYTE,
            most=MAX_MESSAGES // 100,
        ),
    ),
    *grouped(
        "1,000 topics",
        in_memory(
            "pub-1000-topics",
            "PUB to 1,000 topics in turn, a channel each, on 10 connections, each waits for its OK before the next",
            publish="pub",
            publishers=10,
            topics=1000,
        ),
        replace(
            in_memory(
                "drained-1000-topics",
                "pub-1000-topics with a consumer at RDY 100 on each channel, until all messages are finished",
                publish="pub",
                publishers=10,
                topics=1000,
                consumers=1,
                rdy=100,
            ),
            connections=1010,
        ),
    ),
    *grouped("TLS", *_through("tls")),
    *grouped("Snappy", *_through("snappy")),
    *grouped("Deflate", *_through("deflate"), *_through("tls-deflate"), *map(_in_pieces, ("deflate", "tls-deflate"))),
    *grouped(
        "Levels of durability (`os`, the default, is everywhere else)",
        *(_at(level, scenario) for scenario in (_MPUB, _sync(10), _sync(100)) for level in ("memory", "fsync")),
    ),
    *grouped(
        "Through the disk",
        Scenario(
            "mpub-to-disk",
            "mpub-200x200 with memory for 10,000 messages, the default; further messages go to the disk",
            load_of(publish="mpub", batch=200, publishers=4),
        ),
        Scenario(
            "drain-from-disk",
            "deliver-fin-rdy2500 with memory for 10,000 messages: a backlog that did not fit into memory",
            load_of(prefill="true", consumers=2, rdy=2500, most=MAX_MESSAGES // 2),
        ),
        Scenario(
            "deliver-fin-from-disk",
            "deliver-fin-rdy2500 without memory (`--mem-queue-size=0`): every message is read from the disk",
            load_of(prefill="true", consumers=2, rdy=2500, most=MAX_MESSAGES // 2),
            options=("--mem-queue-size=0",),
        ),
        Scenario(
            "backlog-3-channels",
            f"MPUB of 200, 4 connections, until {BACKLOG:,} messages wait in each of 3 channels, however long it takes",
            load_of(publish="mpub", batch=200, publishers=4, channels=3, most=BACKLOG, seconds=60),
        ),
    ),
    *grouped(
        "Latency, from the producer's write to the consumer's read",
        _latency("latency-1k", 1_000),
        _latency("latency-1k-busy-poll", 1_000, busy_poll="5ms"),
        _latency("latency-10k", 10_000),
        _latency("latency-1k-buffered", 1_000, buffered=True),
        _latency("latency-10k-buffered", 10_000, buffered=True),
        *map(_loaded, (25, 50, 75)),
    ),
    *grouped(
        "Lateness of delayed messages",
        _delayed("dpub-delay", "published by DPUB", publish="dpub"),
        _delayed("req-delay", "requeued once by REQ", publish="pub", requeue="true"),
    ),
    *grouped("Idle connections", *map(_idle, (1000, 10_000))),
    *grouped(
        "Starting with many messages on disk",
        Scenario(
            "start-1000-topics",
            "a start on a data path with 1,000,000 messages in 1,000 topics with a channel each: until both listeners"
            " are open",
            load_of(fill="true", topics=1000, most=MAX_MESSAGES),
            Kind.START,
        ),
    ),
)

SCENARIOS = tuple(replace(scenario, aim=AIMS.get(scenario.name)) for scenario in _ALL)

"""The ratios to Go's nsqd that each scenario must reach (floor) and should reach (aim), and reasons for missed aims.

Every run measures the ratios. The reasons are written by hand, and shown only if a run misses the aim. Check them again
if the figure beside them changes.
"""

from benchmarks.scenarios import ABOVE_FLOOR, INTERPRETED, Aim, aim_of_floors


def _each(row: str, floor: float, aim: float, **why: str) -> dict[str, Aim]:
    """One row of the table for several scenarios, each with its reason. Hyphens in names are underscores here."""
    return {name.replace("_", "-"): Aim(row, floor, aim, sentence) for name, sentence in why.items()}


def _of_floors(row: str, rate: float, cpu: float, **why: str) -> dict[str, Aim]:
    """The same for a real load, by its floors."""
    return {name.replace("_", "-"): aim_of_floors(row, rate, cpu, sentence) for name, sentence in why.items()}


def _p99(row: str, floor: float, aim: float, part: float = 1.0, **why: str) -> dict[str, Aim]:
    return {
        name.replace("_", "-"): Aim(row, floor, aim, sentence, figures=("p99",), less_is_better=True, interpreted=part)
        for name, sentence in why.items()
    }


_LOG = "nsqd writes every message to its topic's log before the OK, Go's keeps it in memory"
_ONE_CPU = "one nsqd uses one CPU, Go's uses all"
_LONE = f"receiving and answering each message by itself is most of the cost; {_LOG}; {_ONE_CPU}"
_CIPHER = "the cipher is the larger part of the cost, and the same for both"

AIMS: dict[str, Aim] = {
    **_of_floors("MPUB 200 x 200 B", 1.6, 2.5, mpub_200x200=f"{_LOG}; {_ONE_CPU}"),
    **_of_floors(
        "MPUB 10 x 200 B",
        1.0,
        1.3,
        mpub_10x200=f"only ten messages share the cost of a request, not 200; {_LOG}; {_ONE_CPU}",
    ),
    **_each(
        "deliver + FIN, RDY 2,500",
        2,
        4,
        deliver_fin_rdy2500=f"each FIN is looked up and each message taken from a list by itself; {_ONE_CPU}",
    ),
    **_each(
        "publish while consuming",
        2,
        4,
        publish_while_consuming=f"one thread reads, writes the log and delivers; {_ONE_CPU}",
    ),
    **_of_floors(
        "fan-out to 10 channels",
        3.0,
        4.0,
        fanout_10=f"each batch still takes ten sends and ten series of FINs, however little is copied; {_ONE_CPU}",
    ),
    **_of_floors(
        "PUB synchronous, 1 connection",
        0.95,
        0.85,
        pub_sync_1=f"most of the time is two processes waking each other, and polling takes a CPU; {_LOG}",
        pub_sync_1_poller=f"polling takes a CPU, and the generator's scheduler prolongs it; {_LOG}",
    ),
    **_each("PUB synchronous, 10 and 100 connections", 0.7, 1.0, pub_sync_10=_LONE, pub_sync_100=_LONE),
    **_each("PUB pipelined", 2, 4, pub_pipelined=_ONE_CPU),
    **_each(
        "RDY 1 ping-pong",
        0.7,
        1.0,
        rdy1_pingpong="most of the time is two processes waking each other, the same for both",
    ),
    **_each("HTTP /pub keep-alive, 10 connections", 1.0, 1.5, http_pub=_LONE),
    **_each("HTTP /mpub", 1.0, 1.5, http_mpub=f"{_LOG}; {_ONE_CPU}"),
    **_p99(
        "p99 latency at 1 k/s and 10 k/s",
        0.6,
        0.6 / ABOVE_FLOOR,
        INTERPRETED,
        latency_1k="most of the time is two wake-ups, with CPU caches that other processes used meanwhile",
        latency_10k="the larger part is the system's wake-ups, the same for both; nsqd also writes the log",
    ),
    **_p99(
        "p99 latency at 1 k/s with --busy-poll-time=5ms",
        0.7,
        0.2,
        latency_1k_busy_poll="the generator's wake-ups remain, and it uses one of the two CPUs",
    ),
    **_p99(
        "p99 latency with RDY > 1 and output buffering on",
        0.1,
        0.02,
        latency_1k_buffered="the rest is the time of a wake-up",
        latency_10k_buffered="at this rate Go's buffer is full, and sent, long before its 250 ms end",
    ),
    **_each(
        "publish and drain through disk, default mem-queue-size",
        2,
        5,
        mpub_to_disk=f"both write each message once; {_ONE_CPU}",
        drain_from_disk="reading blocks is cheap, and FINs cost as much as in memory",
    ),
    **_each(
        "TLS, snappy, deflate, both ways",
        1.0,
        1.5,
        mpub_200x200_tls=f"{_CIPHER}; {_LOG}; {_ONE_CPU}",
        pub_pipelined_tls=_ONE_CPU,
        deliver_fin_rdy2500_tls=f"{_CIPHER}; {_ONE_CPU}",
        mpub_200x200_snappy=f"{_LOG}; {_ONE_CPU}",
        pub_pipelined_snappy=_ONE_CPU,
        deliver_fin_rdy2500_snappy=_ONE_CPU,
        mpub_200x200_deflate=f"{_LOG}; {_ONE_CPU}",
        mpub_200x200_deflate_pieces=f"each MPUB arrives in a hundred pieces; {_LOG}; {_ONE_CPU}",
        pub_pipelined_deflate=_ONE_CPU,
        deliver_fin_rdy2500_deflate=f"compression is nearly all of the cost, with the same algorithm; {_ONE_CPU}",
    ),
    **_of_floors(
        "TLS, PUB synchronous", 1.1, 1.1, pub_sync_10_tls=f"{_LONE}; each message also takes two calls of OpenSSL"
    ),
    **_of_floors(
        "PUB of 64 KB, drained", 0.9, 0.9, pub_drained_64k="bodies are read from the log and checked (decision 41)"
    ),
    **_of_floors(
        "1,000 topics",
        1.0,
        1.2,
        drained_1000_topics="each message takes reads, writes and a place in the queue for itself alone (decision 42)",
    ),
    "idle-10000": Aim(
        "memory per idle connection",
        1.0,
        0.5,
        "a session and its buffers",
        figures=("idle_connection_bytes",),
        less_is_better=True,
    ),
}

HEADLINES: dict[str, str] = {
    "MPUB 200 x 200 B": "`MPUB`, 200 messages of 200 bytes each time",
    "PUB synchronous, 1 connection": "`PUB`, one connection that waits for each OK",
    "HTTP /pub keep-alive, 10 connections": "HTTP `/pub`, 10 connections",
    "deliver + FIN, RDY 2,500": "delivery and FIN, `RDY 2500`",
    "p99 latency at 1 k/s and 10 k/s": "latency, 99th percentile (less is better)",
    "memory per idle connection": "memory of an idle connection (less is better)",
}
"""The rows in README.md, and their names there."""

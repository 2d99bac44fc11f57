"""The ratios to Go's nsqd that traffic scenarios must reach (floor) and should reach (aim), by messages per second and
by CPU time, and reasons for missed aims. The same holds through go-nsq: where it disagrees with the generator's own
client, the lower ratio counts.
"""

from benchmarks.scenarios import INTERPRETED, Aim, aim_of_floors

_LOG = "nsqd writes every message to its topic's log before the OK, Go's keeps it in memory"
_ONE_CPU = "one nsqd uses one CPU, Go's uses all"
_SPREAD = "each message takes reads, writes and a place in the queue for itself alone (decision 42)"
_BY_GO_NSQ = (
    "go-nsq reads and writes each message and each FIN by itself, which is most of the cost, and limits both servers"
)

_RAW: dict[str, Aim] = {
    "mpub-20x4k": aim_of_floors("MPUB 20 x 4 KB", 1.0, 1.0, f"{_ONE_CPU} (decision 44)"),
    "pub-pipelined-4k": aim_of_floors("PUB of 4 KB pipelined", 1.3, 1.3, f"{_LOG}; {_ONE_CPU}"),
    "deliver-fin-4k": aim_of_floors("deliver + FIN, 4 KB", 1.5, 1.5, "the kernel copies each body twice"),
    "deliver-fin-64k": aim_of_floors(
        "deliver + FIN, 64 KB", 1.2, 1.2, "bodies are read from the log and checked (decision 41)"
    ),
    "drained-200-topics": aim_of_floors("200 topics", 1.0, 1.2, _SPREAD),
    "connections-plain": aim_of_floors(
        "connections that come and go", 0.9, 0.9, f"most of the cost is the kernel's, for accepting; {_ONE_CPU}"
    ),
    "connections-tls": aim_of_floors(
        "connections that come and go", 0.9, 0.9, "most of the cost is OpenSSL's handshake (decision 43)"
    ),
    "http-pub-1": aim_of_floors("HTTP /pub keep-alive, 1 connection", 0.9, 1.2, "most of the time is two wake-ups"),
}

_OF_OTHERS: dict[str, Aim] = {
    "mpub-200x200": aim_of_floors("MPUB 200 x 200 B", 1.6, 2.5, _BY_GO_NSQ),
    "mpub-10x200": aim_of_floors("MPUB 10 x 200 B", 1.0, 1.3, _BY_GO_NSQ),
    "pub-sync-1-poller": aim_of_floors("PUB synchronous, 1 connection", 0.95, 0.85, _BY_GO_NSQ),
    "fanout-10": aim_of_floors("fan-out to 10 channels", 3.0, 4.0, _BY_GO_NSQ),
    "pub-drained-64k": aim_of_floors("PUB of 64 KB, drained", 0.9, 0.9, _BY_GO_NSQ),
    "pub-sync-10-tls": aim_of_floors("TLS, PUB synchronous", 1.1, 1.1, _BY_GO_NSQ),
    **{
        f"latency-{rate}": Aim(
            "p99 latency", 0.9, 0.6, _BY_GO_NSQ, figures=("p99",), less_is_better=True, interpreted=INTERPRETED
        )
        for rate in ("1k", "10k")
    },
}
"""Scenarios of nsqd's own page, here for go-nsq."""


def aim_of(scenario: str) -> Aim | None:
    """The aim of a traffic scenario by its name."""
    own = scenario.removesuffix("-go-nsq")
    return _RAW.get(scenario) if own == scenario else {**_RAW, **_OF_OTHERS}.get(own)

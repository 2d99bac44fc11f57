"""The ratios to Go's nsqd that traffic scenarios must reach (floor) and should reach (aim), by messages per second and
by CPU time, and reasons for missed aims. The same holds through go-nsq: where it disagrees with the generator's own
client, the lower ratio counts.
"""

from benchmarks.scenarios import Aim

_INTERPRETED = 0.75
"""The part of a floor and of an aim that an interpreted nsqd has to reach."""
_ABOVE_FLOOR = 1.5
"""An aim is so many times the floor."""

_LOG = "nsqd writes every message to its topic's log before the OK, Go's keeps it in memory"
_ONE_CPU = "one nsqd uses one CPU, Go's uses all"
_SPREAD = "each message takes reads, writes and a place in the queue for itself alone (decision 42)"
_BY_GO_NSQ = (
    "go-nsq reads and writes each message and each FIN by itself, which is most of the cost, and limits both servers"
)


def _aim(row: str, rate: float, cpu: float, why: str) -> Aim:
    """The floors by messages per second and by CPU time."""
    by_cpu = None if cpu == rate else (cpu, cpu * _ABOVE_FLOOR)
    return Aim(row, rate, rate * _ABOVE_FLOOR, why, cpu=by_cpu, interpreted=_INTERPRETED)


_RAW: dict[str, Aim] = {
    "mpub-20x4k": _aim("MPUB 20 x 4 KB", 1.0, 1.0, f"{_ONE_CPU} (decision 44)"),
    "pub-pipelined-4k": _aim("PUB of 4 KB pipelined", 1.3, 1.3, f"{_LOG}; {_ONE_CPU}"),
    "deliver-fin-4k": _aim("deliver + FIN, 4 KB", 1.5, 1.5, "the kernel copies each body twice"),
    "deliver-fin-64k": _aim("deliver + FIN, 64 KB", 1.2, 1.2, "bodies are read from the log and checked (decision 41)"),
    "drained-200-topics": _aim("200 topics", 1.0, 1.2, _SPREAD),
    "connections-plain": _aim(
        "connections that come and go", 0.9, 0.9, f"most of the cost is the kernel's, for accepting; {_ONE_CPU}"
    ),
    "connections-tls": _aim(
        "connections that come and go", 0.9, 0.9, "most of the cost is OpenSSL's handshake (decision 43)"
    ),
    "http-pub-1": _aim("HTTP /pub keep-alive, 1 connection", 0.9, 1.2, "most of the time is two wake-ups"),
}

_OF_OTHERS: dict[str, Aim] = {
    "mpub-200x200": _aim("MPUB 200 x 200 B", 1.6, 2.5, _BY_GO_NSQ),
    "mpub-10x200": _aim("MPUB 10 x 200 B", 1.0, 1.3, _BY_GO_NSQ),
    "pub-sync-1-poller": _aim("PUB synchronous, 1 connection", 0.95, 0.85, _BY_GO_NSQ),
    "fanout-10": _aim("fan-out to 10 channels", 3.0, 4.0, _BY_GO_NSQ),
    "pub-drained-64k": _aim("PUB of 64 KB, drained", 0.9, 0.9, _BY_GO_NSQ),
    "pub-sync-10-tls": _aim("TLS, PUB synchronous", 1.1, 1.1, _BY_GO_NSQ),
    **{
        f"latency-{rate}": Aim(
            "p99 latency", 0.9, 0.6, _BY_GO_NSQ, figures=("p99",), less_is_better=True, interpreted=_INTERPRETED
        )
        for rate in ("1k", "10k")
    },
}
"""Scenarios of nsqd's own page, here for go-nsq."""


def aim_of(scenario: str) -> Aim | None:
    """The aim of a traffic scenario by its name."""
    own = scenario.removesuffix("-go-nsq")
    return _RAW.get(scenario) if own == scenario else {**_RAW, **_OF_OTHERS}.get(own)

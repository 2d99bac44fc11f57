"""The table of bystander scenarios: a quiet client publishes every 5 ms while other connections abuse nsqd.

nsqd runs with its default options. The quiet client's latency is measured; a scenario's `load` describes the abuse and
its amount.
"""

from dataclasses import replace

from benchmarks.scenarios import Aim, Kind, Scenario, grouped, load_of

_LONGEST_MS = 10.0
_LOOP_SECONDS = 10.0
_DUE_WITHIN = 30
_BODY_LIMIT = 5 * 2**20
"""Size limit of a request: the default of `--max-body-size`."""

_FIVE_BYTES = 500_000
_LINES = _BODY_LIMIT // 2
_NOPS = 2_000_000
_PATTERNS = 50_000
_CONNECTIONS = 9_000
_TOPICS = 20_000

_ASKED = Aim("p99 of a quiet client's PUB", 1.0, 1.0, figures=("p99",), less_is_better=True, longest_ms=_LONGEST_MS)


def _beside(name: str, what: str, abuse: str, count: int, why: str = "", **flags: str | float) -> Scenario:
    return Scenario(
        f"bystander-{name}",
        what,
        load_of(abuse=abuse, count=count, **flags),
        Kind.BYSTANDER,
        least_seconds=_LOOP_SECONDS,
        aim=replace(_ASKED, why=why),
    )


def _deferred(thousands: int, why: str = "") -> Scenario:
    return _beside(
        f"deferred-{thousands}k",
        f"{thousands},000 DPUBs on 2 connections, due at random moments within {_DUE_WITHIN} s, consumed by 2"
        " connections at RDY 2,500 until all are finished",
        "deferred",
        thousands * 1000,
        within=f"{_DUE_WITHIN}s",
        why=why,
    )


BYSTANDER_SCENARIOS = grouped(
    "A quiet client's PUB while others abuse nsqd",
    replace(_beside("alone", f"nothing, for {_LOOP_SECONDS:.0f} s", "none", 1), aim=None),
    _deferred(
        100,
        why="So few messages slow neither nsqd: both p99 are those of a quiet client alone, where waking the event loop"
        " takes longer than waking a goroutine.",
    ),
    _deferred(400),
    _beside(
        "http-mpub",
        f"4 connections in a loop, each an HTTP /mpub of {_LINES:,} lines of one byte",
        "http-mpub",
        _LINES,
    ),
    _beside(
        "mpub",
        f"1 connection in a loop, MPUB of {_FIVE_BYTES:,} messages of 5 bytes",
        "mpub",
        _FIVE_BYTES,
    ),
    _beside(
        "deflate-bomb",
        f"5 connections in a loop through deflate, {_NOPS:,} NOPs and a PUB in each request, compressed to a thousandth"
        " of that; up to 2 requests unanswered",
        "bombs",
        _NOPS,
    ),
    replace(
        _beside(
            "close-9000",
            f"{_CONNECTIONS:,} connections subscribe to one channel one after the other, and all are closed at once",
            "connections",
            _CONNECTIONS,
            why="The kernel hands out the ends of 9,000 connections, which came first; reading each takes 3 us.",
            seconds=3,
        ),
        connections=_CONNECTIONS,
    ),
    replace(
        _beside(
            "auth-50k",
            f"4 connections in a loop: connect, AUTH, for which the auth server sends {_PATTERNS:,} patterns, PUB,"
            " which the last pattern allows, close; nsqd may refuse so many patterns",
            "auth",
            _PATTERNS,
        ),
        auth=True,
    ),
    _beside(
        "stats-20k",
        f"1 connection in a loop, /stats?format=json of {_TOPICS:,} topics, in turn with /metrics if nsqd has that",
        "stats",
        _TOPICS,
    ),
)

"""The table of nsqlookupd's scenarios: numbers of nsqd and topics, and queries.

1,000 nsqd with 200 topics each are 200,000 registrations of topics and as many of channels, with shared topics or
without. Real clusters are between these extremes.
"""

from benchmarks.scenarios import Kind, Scenario, grouped, load_of

_NSQDS = 1000
_TOPICS = 200


def _lookup(name: str, what: str, all_topics: int, **flags: str | float) -> Scenario:
    return Scenario(
        name,
        f"/lookup, {_NSQDS:,} nsqd with {_TOPICS} topics each, {what}",
        load_of(nsqds=_NSQDS, topics=_TOPICS, **{"all-topics": all_topics}, **flags),
        Kind.QUESTIONS,
    )


LOOKUPD_SCENARIOS = (
    *grouped(
        "Queries",
        _lookup("lookup-shared", "the same for all: an answer names 1,000 producers", _TOPICS),
        _lookup("lookup-mixed", "out of 2,000: an answer names 100 producers", 10 * _TOPICS),
        _lookup("lookup-own", "all different: an answer names one producer", _NSQDS * _TOPICS),
        _lookup("lookup-fresh", "out of 2,000; a connection for each query", 10 * _TOPICS, fresh="true"),
        _lookup("lookup-calm", "out of 2,000; 200 queries a second", 10 * _TOPICS, rate=200),
        Scenario(
            "lookup-small",
            "/lookup, 5 nsqd with 20 topics each, the same for all",
            load_of(nsqds=5, topics=20, **{"all-topics": 20}),
            Kind.QUESTIONS,
        ),
        Scenario(
            "nodes",
            f"/nodes, {_NSQDS:,} nsqd with {_TOPICS} topics each; 2 clients",
            load_of(nsqds=_NSQDS, topics=_TOPICS, **{"all-topics": _TOPICS}, ask="nodes", clients=2),
            Kind.QUESTIONS,
        ),
    ),
    *grouped(
        "Registration",
        Scenario(
            "register",
            f"{_NSQDS:,} nsqd identify themselves and register a channel of each of {_TOPICS} topics, the same for all",
            load_of(nsqds=_NSQDS, topics=_TOPICS, **{"all-topics": _TOPICS}, ask="register"),
            Kind.REGISTRATION,
        ),
    ),
)

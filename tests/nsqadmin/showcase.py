"""Clusters that fill nsqadmin's pages, and a visit to every page: for test_pages.py and `scripts/pictures`.

The pages follow from the application's URL map and from the links and forms of the pages themselves, so a new page is
visited without being listed here.
"""

import itertools
import json
import math
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast
from urllib.parse import parse_qsl, urlsplit

from werkzeug.exceptions import HTTPException
from werkzeug.routing import MapAdapter

import nsq_compat.client as nsq
from nsq_compat.nsqadmin.options import NsqadminOptions
from nsq_compat.protocol.message import make_frame
from nsq_compat.web.admin.access import AdminService
from nsq_compat.web.admin.app import create_app
from nsq_compat.web.admin.sessions import Sessions
from nsq_compat.web.admin.users import make_line
from nsq_conformance.nsqadmin_process import NsqadminProcess, installed_nsqadmin
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd
from tests.cluster.daemon import Daemon
from tests.nsqadmin.browser import Browser, until

_WITHOUT_PAGES: Final = ("api", "operations", "assets", "proxy")
"""Blueprints that answer programs."""
_SAME_LAYOUT: Final = (
    "sort",
    "desc",
    "page",
    "nodes",
    "clients",
    "limit",
    "t",
    "span",
    "node",
    "topic",
    "channel",
    "next",
    "at",
)
"""Parameters that change the data of a page, and not its parts."""


@dataclass
class Site:
    nsqadmin: NsqadminProcess
    arguments: Mapping[str, str] = field(default_factory=dict)
    """A topic, channel, node and message, for the rules of the URL map."""
    user: str = ""
    """Name and password of a user to log in."""

    def url(self, path: str) -> str:
        return f"http://{self.nsqadmin.http_address}{path}"

    def log_in(self, browser: Browser) -> None:
        if self.user:
            browser.open(self.url("/login"))
            browser.find("input[name=name]").type(self.user)
            browser.find("input[name=password]").type(f"{self.user}\n")
            browser.find(".visitor", self.user)


# --- Visits -----------------------------------------------------------------------------------------------------------


def visit(browser: Browser, site: Site, without: Collection[str] = ()) -> Iterator[str]:
    """Open a page of each kind, and yield its path while it is open. `without` are blueprints to leave out."""
    adapter = _adapter()
    waiting = [adapter.build(endpoint, site.arguments, append_unknown=False) for endpoint in _page_endpoints(adapter)]
    seen = set()
    while waiting:
        path = waiting.pop(0)
        kind = _kind(adapter, path)
        if kind is None or kind in seen or kind[0].partition(".")[0] in without:
            continue
        seen.add(kind)
        browser.open(site.url(path))
        found = browser.run("""
            const forms = [...document.forms].filter(form => form.method === 'get');
            for (const search of document.querySelectorAll('input[type=search]')) search.value ||= 'none has this name';
            for (const needed of document.querySelectorAll('input[required]')) needed.value ||= 'oldest';
            const asked = forms.map(form => form.action.split('?')[0] + '?' + new URLSearchParams(new FormData(form)));
            for (const form of forms) form.reset();
            return [...document.querySelectorAll('a[href]')].map(link => link.href).concat(asked)""")
        own = [urlsplit(url) for url in found if url.startswith(site.url("/"))]
        waiting += [f"{url.path}?{url.query}" for url in own]
        yield path
    assert len(seen) > 1


def _adapter() -> MapAdapter:
    sessions = Sessions(time.time, idle_timeout=1.0, timeout=1.0)
    service = cast(AdminService, SimpleNamespace(options=NsqadminOptions(), sessions=sessions))
    return create_app(service).url_map.bind("nsqadmin")


def _page_endpoints(adapter: MapAdapter) -> list[str]:
    rules = [rule for rule in adapter.map.iter_rules() if "GET" in (rule.methods or ())]
    return [rule.endpoint for rule in rules if rule.endpoint.partition(".")[0] not in _WITHOUT_PAGES]


def _kind(adapter: MapAdapter, path: str) -> tuple[str, ...] | None:
    """Equal for pages that consist of the same parts. None for URLs that are no pages."""
    url = urlsplit(path)
    try:
        endpoint, _ = adapter.match(url.path, "GET")
    except HTTPException:
        return None
    if endpoint.partition(".")[0] in _WITHOUT_PAGES:
        return None
    query = [(name, value if name == "confirm" else "") for name, value in parse_qsl(url.query)]
    return (endpoint, *(f"{name}={value}" for name, value in sorted(query) if name not in _SAME_LAYOUT))


def name_of(path: str) -> str:
    """A name for the page: overview, topics, topic, topic-delete."""
    endpoint, *parameters = _kind(_adapter(), path) or ("",)
    blueprint, _, page = endpoint.partition(".")
    confirm = [value for name, _, value in (each.partition("=") for each in parameters) if name == "confirm"]
    confirm += ["confirm" for each in parameters if each == "to="]
    return "-".join([blueprint if page in ("list_", "show") else page, *confirm])


# --- A cluster with traffic -------------------------------------------------------------------------------------------

_POLICIES: Final = """
[[policies]]
topic = "emails"
max_attempts = 2

[[policies]]
topic = "clicks"
max_depth = 1000000
when_full = "drop-oldest"

[[policies]]
topic = "orders"
retain_for = "72h"
retain_bytes = 5000000000
"""


@contextmanager
def shop(folder: Path, *options: str) -> Iterator[Site]:
    """Topics of a shop on two nsqds: busy, delayed, paused, failing, and one that only nsqlookupd knows."""
    with ExitStack() as stack:
        lookupd = stack.enter_context(NsqlookupdProcess(installed_nsqlookupd()))
        nsqds = [stack.enter_context(_nsqd(folder / name, lookupd, zone)) for name, zone in (("n1", "a"), ("n2", "b"))]
        for path in ("/topic/create?topic=legacy", "/channel/create?topic=legacy&channel=import"):
            assert lookupd.asks("POST", path).status == 200
        for nsqd in nsqds:
            for topic, channel in (("payments", "ledger"), ("orders", "archive"), ("signups", "crm")):
                nsqd.create_channel(topic, channel)
            nsqd.asks("POST", "/channel/pause?topic=payments&channel=ledger")
        stack.enter_context(_traffic(nsqds))
        nsqadmin = stack.enter_context(
            NsqadminProcess(
                installed_nsqadmin(),
                options=[f"--lookupd-http-address={lookupd.http_address}", "--sample-interval=1s", *options],
            )
        )
        until(lambda: "emails.send.dead" in lookupd.get("/topics")["topics"], "dead letters")
        first = min(nsqds, key=lambda nsqd: nsqd.http_address)  # of which a message is shown unless a node is named
        (message,) = first.asks("GET", "/topic/recent?topic=orders&limit=1").json()["messages"]
        arguments = {"topic": "orders", "channel": "archive", "node": nsqds[0].http_address}
        yield Site(nsqadmin, arguments | {"message_id": message["id"]})


@contextmanager
def _nsqd(folder: Path, lookupd: NsqlookupdProcess, zone: str) -> Iterator[NsqdProcess]:
    folder.mkdir()
    (folder / "nsqd.toml").write_text(_POLICIES)
    options = [
        *("--broadcast-address=127.0.0.1", f"--lookupd-tcp-address={lookupd.tcp_address}", "--mem-queue-size=200"),
        *(f"--config={folder / 'nsqd.toml'}", "--topology-region=north", f"--topology-zone={zone}"),
        *(f"--e2e-processing-latency-percentile={quantile}" for quantile in (0.99, 0.5)),
    ]
    with NsqdProcess(installed_nsqd(), folder, options=options) as process:
        yield process


@contextmanager
def _traffic(nsqds: list[NsqdProcess]) -> Iterator[None]:
    """Publish and consume in the background."""
    stop = threading.Event()
    addresses = [nsqd.tcp_address for nsqd in nsqds]

    def publish() -> None:
        with ExitStack() as stack:
            producers = [stack.enter_context(nsq.Producer(address)) for address in addresses]
            for number in itertools.count():
                producer = producers[number % len(producers)]
                for topic, bodies in _bodies(number).items():
                    producer.publish_many(topic, bodies)
                if number == 0:
                    producer.publish("payments", b'{"invoice": 1, "due": "tomorrow"}', defer=3600)
                if stop.wait(0.2):
                    return

    def fail(message: Any) -> None:
        message.requeue(delay=0)

    def slowly(message: Any) -> None:
        stop.wait(0.4)

    with ExitStack() as stack:
        for topic, channel, handler in (
            ("orders", "billing", lambda message: None),
            ("orders", "archive", slowly),
            ("clicks", "analytics", lambda message: None),
            ("emails", "send", fail),
        ):
            options: Any = {"nsqd_tcp_addresses": addresses, "max_in_flight": 20, "backoff": False}
            stack.enter_context(nsq.Consumer(topic, channel, handler, **options))
        thread = threading.Thread(target=publish)
        thread.start()
        stack.callback(thread.join)
        stack.callback(stop.set)
        yield


def _bodies(number: int) -> dict[str, list[bytes]]:
    """What is published in one step."""
    wave = 1 + math.sin(number / 40)
    order = {
        "id": 41_000 + number,
        "customer": f"c{number * 7 % 9973}",
        "total": 19.9,
        "items": [{"sku": "A-17", "n": 2}],
    }
    bodies = {
        "clicks": [b'{"path": "/shoes"}'] * (5 + round(20 * wave)),
        "orders": [json.dumps(order).encode()] * (1 + round(2 * wave)),
    }
    if number % 25 == 0:
        bodies["payments"] = [json.dumps({"invoice": number, "amount": 120.5}).encode()]
        bodies["emails"] = [b"To: customer@example.com\n\nYour order is on its way."]
        bodies["signups"] = [b"\x00\x01\xfe\xff binary \x80" * 4]
        bodies["reports"] = [b"daily"]
    return bodies


# --- Other clusters ---------------------------------------------------------------------------------------------------


NO_SUCH: Final = {"topic": "none", "channel": "none", "node": "127.0.0.1:4151", "message_id": "0123456789abcdef"}


@contextmanager
def empty(_folder: Path) -> Iterator[Site]:
    """An nsqlookupd that knows no nsqd."""
    with NsqlookupdProcess(installed_nsqlookupd()) as lookupd:
        options = [f"--lookupd-http-address={lookupd.http_address}"]
        with NsqadminProcess(installed_nsqadmin(), options=options) as nsqadmin:
            yield Site(nsqadmin, NO_SUCH)


@contextmanager
def down(_folder: Path) -> Iterator[Site]:
    """Neither the nsqlookupd nor any nsqd answers."""
    with Daemon() as daemon:
        address = daemon.address
    with NsqadminProcess(installed_nsqadmin(), options=[f"--lookupd-http-address={address}"]) as nsqadmin:
        yield Site(nsqadmin, NO_SUCH)


LONG: Final = ("topic-" + "w" * 58, "channel_" + "w" * 46 + "#ephemeral")


@contextmanager
def widest(_folder: Path, *options: str) -> Iterator[Site]:
    """The longest names, numbers of seven digits everywhere, and every badge; on nsqds and nsqlookupds of this test."""
    with ExitStack() as stack:
        nsqds = [stack.enter_context(Daemon()) for _ in range(3)]
        with Daemon() as gone:
            unreachable = gone
        lookupd = stack.enter_context(Daemon())
        topic, channel = LONG
        nodes = []
        for number, daemon in enumerate([*nsqds, unreachable]):
            info = daemon.info(hostname=f"nsqd-{number}-" + "h" * 57, version=f"1.{number}.0-long-prerelease")
            daemon.says("info", info | {"start_time": _long_ago(), "nsq_compat": "0.1.0", "compiled": True})
            daemon.says("stats", _wide_stats(topic, channel))
            daemon.says("ping", b"NOK - " + b"x" * 100, 500)
            messages = [_wide_message(number) for number in range(3)]
            daemon.says("channel/peek", {"messages": messages, "deferred": messages, "in_flight": messages})
            daemon.says("topic/recent", {"messages": messages})
            daemon.says("topic/message", _wide_state(channel))
            daemon.says("topic/offsets", _wide_log()).does("topic/read", _wide_frames)
            place = {"topology_region": "r" * 20, "topology_zone": "z" * 20}
            nodes.append(
                info
                | place
                | {"remote_address": "127.0.0.1:54321", "topics": [topic, "t"], "tombstones": [False, True]}
            )
        lookupd.says("nodes", {"producers": nodes}).says("lookup", {"channels": [channel], "producers": nodes})
        lookupd.says("topics", {"topics": [topic, "u" * 64]}).says("channels", {"channels": [channel]})
        options = (f"--lookupd-http-address={lookupd.address}", "--sample-interval=1s", *options)
        nsqadmin = stack.enter_context(NsqadminProcess(installed_nsqadmin(), options=options))
        arguments = {"topic": topic, "channel": channel, "node": nsqds[0].address, "message_id": "0123456789abcdef"}
        yield Site(nsqadmin, arguments)


@contextmanager
def viewer(folder: Path) -> Iterator[Site]:
    """The same for a user without permission for actions."""
    (folder / "users").write_text(make_line("vic", "viewer", "vic") + "\n")
    with widest(folder, f"--user-file={folder / 'users'}") as site:
        site.user = "vic"
        yield site


def _wide_stats(topic: str, channel: str) -> dict[str, Any]:
    quantiles = [{"quantile": quantile, "value": 1_234_567_890 * quantile} for quantile in (1.0, 0.99, 0.95, 0.5)]
    counts = dict.fromkeys(("depth", "message_count", "dropped_count", "rejected_count"), 3_456_789)
    shared = {
        **counts,
        "backend_depth": 1_234_567,
        "paused": True,
        "e2e_processing_latency": {"count": 5, "percentiles": quantiles},
        **{f"{distance}_msg_count": 1_234_567 for distance in ("zone_local", "region_local", "global")},
    }
    kinds = ("in_flight", "deferred", "requeue", "timeout", "dead_letter", "client")
    client = {
        **dict.fromkeys(("in_flight_count", "finish_count", "requeue_count", "message_count"), 3_456_789),
        "client_id": "c" * 64,
        "hostname": "h" * 64,
        "remote_address": "10.123.123.123:54321",
        "connect_ts": 1,
        "user_agent": "consumer-" + "u" * 55,
        "tls": True,
        "deflate": True,
        "snappy": True,
        "authed": True,
        "tls_version": "TLS1.3",
        "tls_cipher_suite": "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "sample_rate": 99,
        "auth_identity": "i" * 64,
        "auth_identity_url": "https://example.com/" + "i" * 64,
        "topology_region": "r" * 20,
        "topology_zone": "z" * 20,
    }
    policy = {"max_attempts": 5, "dead_letter_topic": "d" * 64, "max_depth": 1_000_000, "when_full": "drop-oldest"}
    counted = {f"{kind}_count": 3_456_789 for kind in kinds}
    channels = [
        {**shared, **counted, "channel_name": name, "policy": policy, "clients": [client]} for name in (channel, "c")
    ]
    topics = [{**shared, "topic_name": name, "message_bytes": 10**12, "channels": channels} for name in (topic, "t")]
    build = {
        "version": "0.1.0",
        "compiled": True,
        "disk_free_bytes": 10**12,
        "disk_bytes": 2 * 10**12,
        "mirroring": _wide_mirroring(topic),
    }
    own = {"health": "NOK - " + "x" * 100, "start_time": _long_ago(), "version": "1.3.0", "nsq_compat": build}
    return {**own, "topics": topics}


def _long_ago() -> int:
    """Of the longest durations, ``1108d 23h``, at each hour of a day."""
    return int(time.time()) - (1108 * 24 + 23) * 3600 - 60


def _wide_mirroring(topic: str) -> dict[str, Any]:
    """A standby that is lost, and copies in each state."""
    host = "nsqd-" + "h" * 55
    primary = {"broadcast_address": host, "http_port": 4151, "epoch": 12, "last_seen": _long_ago()}
    states: tuple[dict[str, Any], ...] = (
        {"connected": True, "complete": True},
        {"connected": True, "complete": False},
        {"connected": False, "complete": True},
        {"connected": False, "complete": True, "taken_over": [topic, "t"]},
    )
    return {
        "standby": {
            "address": f"{host}:4150",
            "state": "not connected",
            "since": 1_700_000_000,
            "seconds": 123_456.7,
            "behind": 3_456_789,
            "failure": "no answer; is this nsqd's TCP port?",
            "when_lost": "refuse",
        },
        "accepts": True,
        "primaries": [
            {**primary, "identity": f"{number:032x}", "address": f"{number}-{host}:4150", **state}
            for number, state in enumerate(states)
        ],
    }


def _wide_log() -> dict[str, Any]:
    times = {"first_timestamp": 1_600_000_000 * 10**9, "last_timestamp": 1_700_000_000 * 10**9}
    policy = {"retain_for": "8760h0m0s", "retain_bytes": 50_000_000_000}
    counts = {"bytes": 10**12, "offset": 123_456_789_012, "channel_depth": 3_456_789, "depth": 123_456_789}
    return {"first": 123_456_789_012, "next": 123_987_654_321, **times, **policy, **counts}


def _wide_frames(handler: BaseHTTPRequestHandler) -> None:
    """Messages after a gap."""
    bodies = (b"xxx" * 100, b"\xff\xff\xff\xff", b'{"a": [1, 2]}')
    data = b"".join(make_frame(b"0123456789abcdef", 1_700_000_000 * 10**9, body) for body in bodies)
    handler.send_response(200)
    first = 123_456_789_112
    for name, value in (("First-Offset", first), ("Next-Offset", first + 3), ("Gap", f"123456789012-{first - 1}")):
        handler.send_header(f"X-NSQ-{name}", str(value))
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def _wide_message(number: int) -> dict[str, Any]:
    body = ("eHh4" * 100, "/////w==", "eyJhIjogWzEsIDJdfQ==")[number]
    times = {"timestamp": 1_700_000_000_000_000_000, "until": 1_700_000_000_000_000_000}
    return {"id": "0123456789abcdef", **times, "attempts": 65535, "size": 123_456_789, "body": body}


def _wide_state(channel: str) -> dict[str, Any]:
    """A dead letter in every state."""
    headers = {
        "nsq-origin-topic": "t" * 64,
        "nsq-origin-channel": "c" * 64,
        "nsq-attempts": "65535",
        "nsq-dead-letter-reason": "expired",
        "nsq-origin-message-id": "0123456789abcdef",
        "nsq-first-published": "1600000000000000000",
    }
    client = {"hostname": "h" * 64, "remote_address": "10.123.123.123:54321", "user_agent": "consumer-" + "u" * 55}
    times = dict.fromkeys(("since", "deadline"), 1_700_000_000_000_000_000)
    states = ("in_flight", "waiting", "deferred", "dead_lettering", "held", "gone", "unknown")
    message = _wide_message(0) | {"offset": 123_456_789_012, "segment": 123_456_789, "headers": headers}
    channels = [{"channel_name": channel, "state": state, "attempts": 65535, **times} for state in states]
    channels[0]["client"] = client
    return {"message": message, "held": True, "channels": channels}

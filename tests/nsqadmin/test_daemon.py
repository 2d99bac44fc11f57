"""Samples of the cluster in intervals; notifications in order, in the background."""

import base64
from collections.abc import Callable, Iterator

import gevent
import pytest

from nsq_compat.nsqadmin import daemon as daemon_module
from nsq_compat.nsqadmin.daemon import Daemon
from nsq_compat.nsqadmin.options import NsqadminOptions
from nsq_compat.policy.access import hash_of
from nsq_compat.protocol.durations import MILLISECOND
from nsq_compat.web.admin.users import make_line
from tests.cluster import daemon as other

Start = Callable[..., Daemon]


@pytest.fixture
def nsqd() -> Iterator[other.Daemon]:
    channel = {"channel_name": "c", "depth": 2, "clients": [{"ready_count": 0}], "client_count": 1}
    body = base64.b64encode(b"x").decode()
    with other.Daemon() as nsqd:
        nsqd.says("info", nsqd.info())
        nsqd.says("stats", {"health": "OK", "topics": [{"topic_name": "t", "channels": [channel]}]})
        nsqd.says("channel/peek", {"messages": [{"id": "i", "timestamp": 5 * 10**9, "size": 1, "body": body}]})
        yield nsqd.says("hook", b"")


@pytest.fixture
def make(nsqd: other.Daemon) -> Iterator[Start]:
    """An nsqadmin that samples this nsqd every 10 ms when started."""
    made: list[Daemon] = []

    def make(**options: object) -> Daemon:
        given = {"nsqd_http_addresses": (nsqd.address,), "sample_interval": 10 * MILLISECOND, **options}
        made.append(Daemon(NsqadminOptions(http_address="127.0.0.1:0", **given)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for daemon in made:
        daemon.stop()


def until(condition: Callable[[], object]) -> None:
    with gevent.Timeout(30):
        while not condition():
            gevent.sleep(0.01)


# --- Files ------------------------------------------------------------------------------------------------------------


def test_a_revoked_token_does_not_wait_for_the_logins_of_a_removed_user_to_end(make, tmp_path, monkeypatch):
    """That writes the session file, which another process may have locked."""
    users, tokens = tmp_path / "users", tmp_path / "access.toml"
    users.write_text(make_line("ada", "admin", "ada-pw"))
    tokens.write_text(f'[[tokens]]\nname = "a"\nhash = "{hash_of(b"a")}"\npermissions = ["admin"]\n')
    for each in (users, tokens):
        each.chmod(0o600)
    daemon = make(user_file=str(users), access_file=str(tokens), session_file=str(tmp_path / "sessions"))
    assert daemon.access.tokens.find(b"a", 0.0) is not None
    found = []
    monkeypatch.setattr(daemon.sessions, "end_all", lambda name: found.append(daemon.access.tokens.find(b"a", 0.0)))
    users.write_text("")
    tokens.write_text("")
    daemon.reload()
    assert found == [None]


# --- Samples ----------------------------------------------------------------------------------------------------------


def test_samples_feed_the_history_and_the_first_has_clients(make, nsqd):
    daemon = make()
    daemon.start()
    until(lambda: sum(heard.startswith("GET stats") for heard in nsqd.heard) >= 6)
    daemon.stop()
    assert [topic.topic_name for topic in daemon.history.latest.topics] == ["t"]
    assert daemon.history.oldest == {("t", "c"): 5.0}
    assert daemon.history.not_ready == {("t", "c")}
    queries = [heard for heard in nsqd.heard if heard.startswith("GET stats?format=json&include_mem=false")]
    assert any("include_clients" not in query for query in queries)


def test_an_interval_of_zero_turns_sampling_off(make, nsqd):
    make(sample_interval=0).start()
    gevent.sleep(0.05)
    assert nsqd.heard == []


def test_sampling_continues_after_a_failure(make, caplog, monkeypatch):
    daemon = make()
    failures = iter([ZeroDivisionError("once")])
    add = daemon.history.add

    def fails_once(snapshot: object) -> None:
        if failure := next(failures, None):
            raise failure
        add(snapshot)

    monkeypatch.setattr(daemon.history, "add", fails_once)
    daemon.start()
    until(lambda: daemon.history.latest)
    assert "SAMPLER: failed" in caplog.text


# --- Notifications ----------------------------------------------------------------------------------------------------


def notify(daemon: Daemon, *actions: str) -> None:
    daemon.start()
    for action in actions:
        daemon.notify({"action": action})


@pytest.mark.parametrize("status", [200, 500])
def test_notifications_are_sent_in_order_whatever_the_endpoint_answers(make, nsqd, status):
    nsqd.says("hook", b"", status)
    notify(make(notification_http_endpoint=f"http://{nsqd.address}/hook"), "one", "two")
    until(lambda: len(nsqd.orders) == 2)
    assert nsqd.orders == ['hook {"action":"one"}', 'hook {"action":"two"}']


def test_an_unreachable_endpoint_is_logged(make, caplog):
    notify(make(notification_http_endpoint="http://127.0.0.1:1/"), "one")
    until(lambda: "failed to POST notification - Post" in caplog.text)


def test_without_an_endpoint_no_notification_is_queued(make, nsqd):
    daemon = make()
    notify(daemon, "one")
    assert daemon._notifications.empty()


def test_notifications_beyond_the_limit_are_dropped_and_logged(make, caplog, monkeypatch):
    monkeypatch.setattr(daemon_module, "MAX_NOTIFICATIONS", 2)
    daemon = make(notification_http_endpoint="http://127.0.0.1:1/")
    for _ in range(3):
        daemon.notify({"action": "x"})
    assert caplog.text.count("notification dropped") == 1

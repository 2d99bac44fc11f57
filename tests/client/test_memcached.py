"""With a real memcached; failures are simulated by an address without one."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pymemcache.client.base import PooledClient

from nsq_compat.client.dedupe import Deduplicated, KeyState
from nsq_compat.client.memcached import MemcachedFilter
from tests.client.waiting import wait_until


@pytest.fixture(scope="module")
def memcached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A private memcached on a Unix socket."""
    path = tmp_path_factory.mktemp("memcached") / "socket"
    as_user = ["-u", "root"] if os.getuid() == 0 else []
    process = subprocess.Popen(["memcached", *as_user, "-s", str(path), "-m", "16"])
    wait_until(path.exists)
    yield path
    process.terminate()
    process.wait()


@pytest.fixture
def client(memcached: Path) -> Iterator[PooledClient]:
    with closing(PooledClient(str(memcached), timeout=5, connect_timeout=5)) as client:
        client.flush_all(noreply=False)
        yield client


def test_a_key_is_new_then_busy_then_seen_by_every_client(client):
    one, other = MemcachedFilter(client, 1000), MemcachedFilter(client, 1000)
    assert [one.claim(b"a"), other.claim(b"a")] == [KeyState.NEW, KeyState.BUSY]
    one.keep(b"a")
    assert other.claim(b"a") is KeyState.SEEN


def test_a_key_that_was_not_handled_is_new_again(client):
    filter_ = MemcachedFilter(client, 1000)
    filter_.claim(b"a")
    filter_.forget(b"a")
    assert filter_.claim(b"a") is KeyState.NEW


def test_only_the_key_in_a_slot_is_kept_or_forgotten(client):
    filter_ = MemcachedFilter(client, 1)
    filter_.claim(b"a")
    filter_.claim(b"b")
    filter_.keep(b"a")
    filter_.forget(b"a")
    assert filter_.claim(b"b") is KeyState.BUSY
    assert filter_.claim(b"a") is KeyState.NEW


def test_a_claim_expires_and_a_kept_key_stays(client):
    filter_ = MemcachedFilter(client, 1000, claim_seconds=1)
    filter_.claim(b"killed")
    filter_.claim(b"handled")
    filter_.keep(b"handled")
    wait_until(lambda: filter_.claim(b"killed") is KeyState.NEW)
    assert filter_.claim(b"handled") is KeyState.SEEN


def test_filters_with_different_prefixes_are_independent(client):
    MemcachedFilter(client, 1000, prefix="one-").claim(b"a")
    assert MemcachedFilter(client, 1000, prefix="other-").claim(b"a") is KeyState.NEW


def test_a_slot_that_others_keep_changing_makes_the_key_new(client):
    class Racing:
        """Another client writes between every read and write."""

        def gets(self, key):
            found = client.gets(key)
            client.set(key, b"+another key", noreply=False)
            return found

        add, cas = client.add, client.cas

    assert MemcachedFilter(Racing(), 1000).claim(b"a") is KeyState.NEW


def test_without_memcached_every_key_is_new_and_failures_are_counted(tmp_path, caplog):
    filter_ = MemcachedFilter(PooledClient(str(tmp_path / "nobody")), 1000)
    assert [filter_.claim(b"a"), filter_.claim(b"a")] == [KeyState.NEW, KeyState.NEW]
    filter_.keep(b"a")
    filter_.forget(b"a")
    assert filter_.failures == 4
    assert "memcached" in caplog.text


@pytest.mark.parametrize(("slots", "claim_seconds"), [(0, 1), (1, 0)])
def test_wrong_sizes_are_refused_at_once(client, slots, claim_seconds):
    with pytest.raises(ValueError, match="1 or more"):
        MemcachedFilter(client, slots, claim_seconds=claim_seconds)


def test_consumers_share_a_filter(make_nsqd, start_consumer, client):
    bodies = []
    pair = [make_nsqd(), make_nsqd()]
    handlers = []
    for fake in pair:
        handlers.append(Deduplicated(lambda message: bodies.append(message.body), MemcachedFilter(client, 1000)))
        start_consumer(handlers[-1], nsqd_tcp_addresses=fake.address, max_in_flight=10)
        wait_until(lambda fake=fake: fake.said("RDY"))  # type: ignore[misc]
        fake.send_messages([b"one", b"two"])
        wait_until(lambda fake=fake: len(fake.peer.finished) == 2)  # type: ignore[misc]
    assert bodies == [b"one", b"two"]
    assert [handler.duplicates for handler in handlers] == [0, 2]

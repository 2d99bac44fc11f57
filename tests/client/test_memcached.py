"""With a real memcached; failures are simulated by an address without one."""

import pytest
from pymemcache.client.base import PooledClient

from nsq_compat.client.dedupe import KeyState
from nsq_compat.client.memcached import MemcachedFilter
from tests.client.waiting import wait_until


def test_a_key_is_new_then_busy_then_seen_by_every_client(memcached):
    one, other = MemcachedFilter(memcached, 1000), MemcachedFilter(memcached, 1000)
    assert [one.claim(b"a"), other.claim(b"a")] == [KeyState.NEW, KeyState.BUSY]
    one.keep(b"a")
    assert other.claim(b"a") is KeyState.SEEN


def test_a_claim_expires_and_a_kept_key_stays(memcached):
    filter_ = MemcachedFilter(memcached, 1000, claim_seconds=1)
    filter_.claim(b"killed")
    filter_.claim(b"handled")
    filter_.keep(b"handled")
    wait_until(lambda: filter_.claim(b"killed") is KeyState.NEW)
    assert filter_.claim(b"handled") is KeyState.SEEN


def test_filters_with_different_prefixes_are_independent(memcached):
    MemcachedFilter(memcached, 1000, prefix="one-").claim(b"a")
    assert MemcachedFilter(memcached, 1000, prefix="other-").claim(b"a") is KeyState.NEW


def test_a_slot_that_others_keep_changing_makes_the_key_new(memcached):
    class Racing:
        """Another client writes between every read and write."""

        def gets(self, key):
            found = memcached.gets(key)
            memcached.set(key, b"+another key", noreply=False)
            return found

        add, cas = memcached.add, memcached.cas

    assert MemcachedFilter(Racing(), 1000).claim(b"a") is KeyState.NEW


def test_without_memcached_every_key_is_new_and_failures_are_counted(tmp_path, caplog):
    filter_ = MemcachedFilter(PooledClient(str(tmp_path / "nobody")), 1000)
    assert [filter_.claim(b"a"), filter_.claim(b"a")] == [KeyState.NEW, KeyState.NEW]
    filter_.keep(b"a")
    filter_.forget(b"a")
    assert filter_.failures == 4
    assert "memcached" in caplog.text


@pytest.mark.parametrize(("slots", "claim_seconds"), [(0, 1), (1, 0)])
def test_wrong_sizes_are_refused_at_once(memcached, slots, claim_seconds):
    with pytest.raises(ValueError, match="1 or more"):
        MemcachedFilter(memcached, slots, claim_seconds=claim_seconds)

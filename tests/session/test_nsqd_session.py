"""A client's figures in /stats."""


def test_stats_have_the_client_as_a_consumer_and_as_a_producer(nsqd):
    client = nsqd.connect(host="10.0.0.1").subscribes(ready=5)
    client.says(b"PUB b\n\0\0\0\1x" + 2 * b"PUB t\n\0\0\0\1y").hears(b"OK", b"OK", b"OK", b"y", b"y")
    stats = client.stats
    assert (stats.client_id, stats.hostname, stats.state, stats.version) == ("10.0.0.1", "10.0.0.1", 3, "V2")
    assert (stats.ready_count, stats.in_flight_count, stats.message_count) == (5, 2, 2)
    assert stats.pub_counts == (("b", 1), ("t", 2))
    assert not stats.tls
    assert not stats.authed


def test_a_client_that_has_not_sent_auth_is_not_authed(make_nsqd):
    stats = make_nsqd(auth_required=True).connect().stats
    assert (stats.authed, stats.auth_identity) == (False, "")

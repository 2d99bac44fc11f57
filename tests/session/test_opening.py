"""The first four bytes, lines, and how a conversation begins and ends."""

import pytest

BAD_PROTOCOL = b"E_BAD_PROTOCOL"


def test_nsqd_says_nothing_until_it_is_spoken_to(nsqd):
    nsqd.connect().hears().and_stays()


@pytest.mark.parametrize("opening", [b"  V1", b"  V3", b" V2 ", b"V2\n\n", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\0"])
def test_another_magic_is_refused(nsqd, opening):
    nsqd.connect(opening).hears(BAD_PROTOCOL).and_is_closed()


def test_the_magic_may_come_in_pieces(nsqd):
    client = nsqd.connect(b" ").says(b" ", b"V").hears().and_stays()
    client.says(b"2NOP\nPUB t\n\0\0\0\1a").hears(b"OK")


def test_a_wrong_magic_is_not_judged_before_it_is_complete(nsqd):
    client = nsqd.connect(b"xyz").hears().and_stays()
    client.says(b"!").hears(BAD_PROTOCOL).and_is_closed()


@pytest.mark.parametrize("opening", [b"", b"  V", b"xy"])
def test_an_end_before_the_magic_is_complete_needs_no_answer(nsqd, opening):
    nsqd.connect(opening).stops_sending().hears().and_is_closed()


def test_a_client_without_a_magic_gets_no_heartbeat_and_is_closed(nsqd):
    client = nsqd.connect(b"  V")
    nsqd.waits(59.9)
    client.hears().and_stays()
    nsqd.waits(0.2)
    client.hears().and_is_closed()


def test_heartbeats_count_from_the_magic(nsqd):
    client = nsqd.connect(b"")
    nsqd.waits(20)
    client.says(b"  V2")
    nsqd.waits(29.9)
    client.hears()
    nsqd.waits(0.2)
    client.hears(b"_heartbeat_")


def test_a_line_may_end_like_one_of_windows(client):
    client.says(b"NOP\r\nPUB t\r\n\0\0\0\1a").hears(b"OK")


def test_a_carriage_return_before_an_empty_line_belongs_to_the_body(client):
    client.says(b"PUB t\n\0\0\0\2a\r\n").hears(b"OK", b"E_INVALID invalid command ").and_is_closed()


def test_surplus_parameters_are_ignored(client):
    client.says(b"NOP one two\n").hears()
    client.says(b"PUB t spare\n\0\0\0\1a").hears(b"OK")
    client.says(b"DPUB t 0 spare\n\0\0\0\1a").hears(b"OK")
    client.says(b"IDENTIFY spare\n\0\0\0\2{}").hears(b"OK")
    client.says(b"SUB t c spare\n").hears(b"OK")
    client.says(b"RDY 1 spare\n").hears(b"a")
    client.says(b"FIN %b spare\n" % client.id_of(b"a")).hears(b"a")
    client.says(b"TOUCH %b spare\n" % client.id_of(b"a")).hears()
    client.says(b"REQ %b 0 spare\n" % client.id_of(b"a")).hears(b"a")
    client.says(b"CLS spare\n").hears(b"CLOSE_WAIT")


def test_the_longest_line_has_16384_bytes(client):
    client.says(b"NOP" + b" " * (16384 - 4) + b"\n").hears().and_stays()
    client.says(b"NOP" + b" " * (16384 - 5) + b"\r\n").hears().and_stays()


@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_a_longer_line_ends_the_connection_without_a_word(client, ending):
    client.says(b"NOP" + b" " * (16384 - 3) + ending).hears().and_is_closed()


def test_replies_owed_before_an_over_long_line_still_come(client):
    client.says(b"PUB t\n\0\0\0\1a" + b"x" * 20000).hears(b"OK").and_is_closed()


def test_the_length_of_a_line_says_nothing_about_a_body(client, build):
    client.says_with_body(b"PUB t", b"x" * 100_000).hears(b"OK")


def test_a_client_that_stops_sending_gets_its_replies(client):
    client.says(b"PUB t\n\0\0\0\1aNO").stops_sending().hears(b"OK").and_is_closed()


def test_commands_after_the_close_get_no_reply(client):
    client.says(b"WRONG\n").hears(b"E_INVALID invalid command WRONG").and_is_closed()
    client.session.receive_data(b"PUB t\n\0\0\0\1a", 2000.0, 0)
    client.session.end_of_input()
    assert client.session.data_to_send(2000.0) == b""


# --- Figures in /stats ------------------------------------------------------------------------------------------------


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

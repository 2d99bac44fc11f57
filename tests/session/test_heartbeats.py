"""Signs of life: what nsqd sends on its own, and how long it waits for a client."""

import pytest

from nsq_compat.protocol import mirror

BEAT = b"_heartbeat_"


@pytest.fixture
def client(nsqd):
    return nsqd.connect().identifies(heartbeat_interval=1000).hears(b"OK")


def test_a_silent_client_is_closed_after_two_intervals_without_a_word(nsqd, client):
    nsqd.waits(1)
    client.hears(BEAT)
    nsqd.waits(0.999)
    client.hears().and_stays()
    nsqd.waits(0.001)
    client.hears().and_is_closed()


def test_unless_told_otherwise_the_interval_is_half_a_minute(nsqd):
    client = nsqd.connect()
    nsqd.waits(59.9)
    client.hears(BEAT).and_stays()
    nsqd.waits(0.1)
    client.and_is_closed()


def test_a_client_that_says_nop_lives_on(nsqd, client):
    for _ in range(10):
        nsqd.waits(1)
        client.hears(BEAT).says(b"NOP\n")
    client.and_stays()


def test_heartbeats_come_however_busy_the_client_is(nsqd, client):
    for _ in range(7):
        nsqd.waits(0.125)
        client.publishes(b"x")
    nsqd.waits(0.125)
    client.hears(BEAT)


def test_any_complete_command_is_a_sign_of_life(nsqd, client):
    client.subscribes()
    for command in (b"RDY 0\n", b"FIN 0123456789abcdef\n", b"PUB t\n\0\0\0\1a", b"NOP\n", b"CLS\n"):
        nsqd.waits(1.9)
        client.says(command)
        client.hears_anything()
    client.and_stays()


def test_parts_of_a_command_are_none(nsqd, client):
    for piece in (b"PUB ", b"t\n\0\0", b"\0\x09abcd"):
        nsqd.waits(0.5)
        client.says(piece)
    nsqd.waits(0.5)
    client.hears(BEAT, b"E_BAD_MESSAGE PUB failed to read message body").and_is_closed()


def test_a_complete_command_counts_even_with_part_of_the_next_behind_it(nsqd, client):
    nsqd.waits(1.5)
    client.says(b"NOP\nPU")
    nsqd.waits(1.9)
    client.and_stays()
    nsqd.waits(0.1)
    client.and_is_closed()


def test_the_deadline_counts_from_the_end_of_the_command_before(nsqd, client):
    nsqd.waits(1)
    client.says(b"PUB t\n\0\0\0\2a")
    nsqd.waits(0.9)
    client.says(b"b").hears(BEAT, b"OK")
    nsqd.waits(1.9)
    client.and_stays()


def test_without_heartbeats_nsqd_waits_forever_and_refuses_sub(nsqd):
    client = nsqd.connect().identifies(heartbeat_interval=-1).hears(b"OK")
    nsqd.waits(1_000_000)
    client.hears().and_stays().publishes(b"still here")
    client.says(b"SUB t c\n").hears(b"E_INVALID cannot SUB with heartbeats disabled").and_is_closed()


def test_sub_without_heartbeats_is_refused_before_its_parameters_are_checked(nsqd):
    client = nsqd.connect().identifies(heartbeat_interval=-1).hears(b"OK")
    client.says(b"SUB\n").hears(b"E_INVALID cannot SUB with heartbeats disabled").and_is_closed()


def test_heartbeats_count_from_the_first_identify(nsqd):
    client = nsqd.connect()
    nsqd.waits(29.5)
    client.identifies().hears(b"OK")
    nsqd.waits(29.9)
    client.hears()
    nsqd.waits(0.2)
    client.hears(BEAT)


def test_a_late_heartbeat_is_sent_once(nsqd, client):
    client.reads = False
    nsqd.waits(0.5)
    client.says(b"NOP\n")
    nsqd.now += 1.9
    client.reads = True
    client.says(b"NOP\n").hears(BEAT)
    nsqd.waits(0.6)
    client.hears(BEAT)


def test_how_long_a_send_may_take_is_one_interval(nsqd, client):
    assert client.session.write_timeout == 1.0
    assert nsqd.connect().session.write_timeout == 30.0
    assert nsqd.connect().identifies(heartbeat_interval=-1).session.write_timeout is None


def test_a_closing_consumer_still_hears_heartbeats(nsqd, client):
    client.subscribes().says(b"CLS\n").hears(b"CLOSE_WAIT")
    nsqd.waits(1)
    client.hears(BEAT).and_stays()


def test_a_command_of_a_primary_may_take_longer_than_the_primary_may_be_silent(nsqd, client):
    class Standby:
        def execute(self, session, verb, argument, body):
            nsqd.waits(20)  # for its disk; what the primary says meanwhile is not read
            return verb.encode()

        def ended(self, session): ...

    client.session._standby = Standby()
    client.says(mirror.command("files") + mirror.command("ends"))
    heard = [frame.data for frame in client.hears_anything()]
    assert heard == [*20 * [BEAT], b"files", *20 * [BEAT], b"ends"]
    nsqd.waits(0.9)
    client.and_stays()
    nsqd.waits(1.1)
    client.and_is_closed()

"""The exact texts of errors, which clients match and logs contain."""

import pytest

LONG_NAME = b"n" * 65

WRONG_WHEN_JUST_CONNECTED = [
    (b"\n", b"E_INVALID invalid command "),
    (b"\r\n", b"E_INVALID invalid command "),
    (b" NOP\n", b"E_INVALID invalid command "),
    (b"nop\n", b"E_INVALID invalid command nop"),
    (b"HELLO world\n", b"E_INVALID invalid command HELLO"),
    (b"NOP\r\r\n", b"E_INVALID invalid command NOP\r"),
    (b"PUB\tt\n", b"E_INVALID invalid command PUB\tt"),
    (b"\xff\x00\xc3\xa9 x\n", b"E_INVALID invalid command \xff\x00\xc3\xa9"),
    # SUB
    (b"SUB\n", b"E_INVALID SUB insufficient number of parameters"),
    (b"SUB t\n", b"E_INVALID SUB insufficient number of parameters"),
    (b"SUB bad! t\n", b'E_BAD_TOPIC SUB topic name "bad!" is not valid'),
    (b"SUB bad! worse!\n", b'E_BAD_TOPIC SUB topic name "bad!" is not valid'),
    (b"SUB  c\n", b'E_BAD_TOPIC SUB topic name "" is not valid'),
    (b"SUB t bad!\n", b'E_BAD_CHANNEL SUB channel name "bad!" is not valid'),
    (b"SUB t \n", b'E_BAD_CHANNEL SUB channel name "" is not valid'),
    (b"SUB t #ephemeral\n", b'E_BAD_CHANNEL SUB channel name "#ephemeral" is not valid'),
    (b"SUB t c#ephemerals\n", b'E_BAD_CHANNEL SUB channel name "c#ephemerals" is not valid'),
    (b"SUB t " + LONG_NAME + b"\n", b'E_BAD_CHANNEL SUB channel name "' + LONG_NAME + b'" is not valid'),
    (b'SUB t a\0\xffb"\\\xc3\xa9\n', rb'E_BAD_CHANNEL SUB channel name "a\x00\xffb\"\\' + b'\xc3\xa9" is not valid'),
    (b"SUB t c\r\r\n", rb'E_BAD_CHANNEL SUB channel name "c\r" is not valid'),
    # A command in the wrong state: said before anything is said of its parameters.
    (b"RDY x\n", b"E_INVALID cannot RDY in current state"),
    (b"FIN\n", b"E_INVALID cannot FIN in current state"),
    (b"FIN 0123456789abcdef\n", b"E_INVALID cannot FIN in current state"),
    (b"REQ\n", b"E_INVALID cannot REQ in current state"),
    (b"TOUCH\n", b"E_INVALID cannot TOUCH in current state"),
    (b"CLS\n", b"E_INVALID cannot CLS in current state"),
    # PUB
    (b"PUB\n", b"E_INVALID PUB insufficient number of parameters"),
    (b"PUB  t\n", b'E_BAD_TOPIC PUB topic name "" is not valid'),
    (b"PUB bad!\n", b'E_BAD_TOPIC PUB topic name "bad!" is not valid'),
    (b"PUB " + LONG_NAME + b"\n", b'E_BAD_TOPIC PUB topic name "' + LONG_NAME + b'" is not valid'),
    (b"PUB t\n\0\0\0\0", b"E_BAD_MESSAGE PUB invalid message body size 0"),
    (b"PUB t\n\xff\xff\xff\xff", b"E_BAD_MESSAGE PUB invalid message body size -1"),
    (b"PUB t\n\x80\0\0\0", b"E_BAD_MESSAGE PUB invalid message body size -2147483648"),
    (b"PUB t\n\0\0\0\x65", b"E_BAD_MESSAGE PUB message too big 101 > 100"),
    # DPUB
    (b"DPUB\n", b"E_INVALID DPUB insufficient number of parameters"),
    (b"DPUB t\n", b"E_INVALID DPUB insufficient number of parameters"),
    (b"DPUB bad! x\n", b'E_BAD_TOPIC DPUB topic name "bad!" is not valid'),
    (b"DPUB t x\n", b"E_INVALID DPUB could not parse timeout x"),
    (b"DPUB t -1\n", b"E_INVALID DPUB could not parse timeout -1"),
    (b"DPUB t 1.5\n", b"E_INVALID DPUB could not parse timeout 1.5"),
    (b"DPUB t +1\n", b"E_INVALID DPUB could not parse timeout +1"),
    (b"DPUB t \xd9\xa3\n", b"E_INVALID DPUB could not parse timeout \xd9\xa3"),
    (b"DPUB t 3600001\n", b"E_INVALID DPUB timeout 3600001 out of range 0-3600000"),
    (b"DPUB t 18446744073709552\n", b"E_INVALID DPUB timeout 18446744073709552 out of range 0-3600000"),
    (b"DPUB t 5\n\0\0\0\0", b"E_BAD_MESSAGE DPUB invalid message body size 0"),
    (b"DPUB t 5\n\0\0\0\x65", b"E_BAD_MESSAGE DPUB message too big 101 > 100"),
    # MPUB
    (b"MPUB\n", b"E_INVALID MPUB insufficient number of parameters"),
    (b"MPUB bad!\n", b'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "bad!" is not valid'),
    (b"MPUB t\n\0\0\0\0", b"E_BAD_BODY MPUB invalid body size 0"),
    (b"MPUB t\n\xff\xff\xff\xff", b"E_BAD_BODY MPUB invalid body size -1"),
    (b"MPUB t\n\0\0\3\xe9", b"E_BAD_BODY MPUB body too big 1001 > 1000"),
    (b"MPUB t\n\0\0\0\1\0\0\0\0", b"E_BAD_BODY MPUB invalid message count 0"),
    (b"MPUB t\n\0\0\0\1\xff\xff\xff\xfe", b"E_BAD_BODY MPUB invalid message count -2"),
    (b"MPUB t\n\0\0\0\1\0\0\0\xc8", b"E_BAD_BODY MPUB invalid message count 200"),
    (b"MPUB t\n\0\0\0\1\0\0\0\2\0\0\0\1a\0\0\0\0", b"E_BAD_MESSAGE MPUB invalid message(1) body size 0"),
    (b"MPUB t\n\0\0\0\1\0\0\0\1\xff\xff\xff\xff", b"E_BAD_MESSAGE MPUB invalid message(0) body size -1"),
    (b"MPUB t\n\0\0\0\1\0\0\0\1\0\0\0\x65", b"E_BAD_MESSAGE MPUB message too big 101 > 100"),
    # IDENTIFY
    (b"IDENTIFY\n\0\0\0\0", b"E_BAD_BODY IDENTIFY invalid body size 0"),
    (b"IDENTIFY\n\xff\xff\xff\xff", b"E_BAD_BODY IDENTIFY invalid body size -1"),
    (b"IDENTIFY\n\0\0\3\xe9", b"E_BAD_BODY IDENTIFY body too big 1001 > 1000"),
    (b"IDENTIFY\n\0\0\0\1{", b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
    # AUTH, on a daemon without an auth server
    (b"AUTH secret\n", b"E_INVALID AUTH invalid number of parameters"),
    (b"AUTH \n", b"E_INVALID AUTH invalid number of parameters"),
    (b"AUTH\n\0\0\0\0", b"E_BAD_BODY AUTH invalid body size 0"),
    (b"AUTH\n\0\0\3\xe9", b"E_BAD_BODY AUTH body too big 1001 > 1000"),
    (b"AUTH\n\0\0\0\6secret", b"E_AUTH_DISABLED AUTH disabled"),
]

WRONG_WHEN_SUBSCRIBED = [
    (b"IDENTIFY\n", b"E_INVALID cannot IDENTIFY in current state"),
    (b"AUTH too much\n", b"E_INVALID cannot AUTH in current state"),
    (b"SUB\n", b"E_INVALID cannot SUB in current state"),
    (b"RDY x\n", b"E_INVALID RDY could not parse count x"),
    (b"RDY -1\n", b"E_INVALID RDY could not parse count -1"),
    (b"RDY 1.0\n", b"E_INVALID RDY could not parse count 1.0"),
    (b"RDY 2501\n", b"E_INVALID RDY count 2501 out of range 0-2500"),
    (b"RDY 18446744073709551617\n", b"E_INVALID RDY count 18446744073709551616 out of range 0-2500"),
    (b"FIN\n", b"E_INVALID FIN insufficient number of params"),
    (b"FIN \n", b"E_INVALID invalid message ID"),
    (b"FIN 0123456789abcde\n", b"E_INVALID invalid message ID"),
    (b"FIN 0123456789abcde\r\n", b"E_INVALID invalid message ID"),
    (b"FIN 01234567 9abcdef\n", b"E_INVALID invalid message ID"),
    (b"FIN 0123456789abcdef0\n", b"E_INVALID invalid message ID"),
    (b"REQ 0123456789abcdef\n", b"E_INVALID REQ insufficient number of params"),
    (b"REQ short x\n", b"E_INVALID invalid message ID"),
    (b"REQ 0123456789abcdef x\n", b"E_INVALID REQ could not parse timeout x"),
    (b"REQ 0123456789abcdef -1\n", b"E_INVALID REQ could not parse timeout -1"),
    (b"TOUCH\n", b"E_INVALID TOUCH insufficient number of params"),
    (b"TOUCH short\n", b"E_INVALID invalid message ID"),
]

WRONG_WHEN_CLOSING = [
    (b"IDENTIFY\n", b"E_INVALID cannot IDENTIFY in current state"),
    (b"AUTH\n", b"E_INVALID cannot AUTH in current state"),
    (b"SUB t c\n", b"E_INVALID cannot SUB in current state"),
    (b"CLS\n", b"E_INVALID cannot CLS in current state"),
    (b"FIN short\n", b"E_INVALID invalid message ID"),
]

# Where the input ends, and what could not be read because of it. None: nothing is said.
UNREADABLE = [
    (b"", None),
    (b"NOP", None),
    (b"PUB t\r", None),
    (b"PUB t\n", b"E_BAD_MESSAGE PUB failed to read message body size"),
    (b"PUB t\n\0\0\0", b"E_BAD_MESSAGE PUB failed to read message body size"),
    (b"PUB t\n\0\0\0\2", b"E_BAD_MESSAGE PUB failed to read message body"),
    (b"PUB t\n\0\0\0\2a", b"E_BAD_MESSAGE PUB failed to read message body"),
    (b"DPUB t 1\n\0", b"E_BAD_MESSAGE DPUB failed to read message body size"),
    (b"DPUB t 1\n\0\0\0\2a", b"E_BAD_MESSAGE DPUB failed to read message body"),
    (b"MPUB t\n", b"E_BAD_BODY MPUB failed to read body size"),
    (b"MPUB t\n\0\0\0\x63", b"E_BAD_BODY MPUB failed to read message count"),
    (b"MPUB t\n\0\0\0\x63\0\0", b"E_BAD_BODY MPUB failed to read message count"),
    (b"MPUB t\n\0\0\0\x63\0\0\0\2", b"E_BAD_MESSAGE MPUB failed to read message(0) body size"),
    (b"MPUB t\n\0\0\0\x63\0\0\0\2\0\0\0\1a\0\0", b"E_BAD_MESSAGE MPUB failed to read message(1) body size"),
    (b"MPUB t\n\0\0\0\x63\0\0\0\2\0\0\0\1a\0\0\0\1", b"E_BAD_MESSAGE MPUB failed to read message body"),
    (b"MPUB t\n\0\0\0\x63\0\0\0\2\0\0\0\2a", b"E_BAD_MESSAGE MPUB failed to read message body"),
    (b"IDENTIFY\n\0\0\0", b"E_BAD_BODY IDENTIFY failed to read body size"),
    (b"IDENTIFY\n\0\0\0\2{", b"E_BAD_BODY IDENTIFY failed to read body"),
    (b"AUTH\n", b"E_BAD_BODY AUTH failed to read body size"),
    (b"AUTH\n\0\0\0\2s", b"E_BAD_BODY AUTH failed to read body"),
]

UNKNOWN_ID = b"0123456789abcdef"


@pytest.fixture
def client(make_nsqd):
    return make_nsqd(max_msg_size=100, max_body_size=1000).connect()


@pytest.mark.parametrize(("said", "heard"), WRONG_WHEN_JUST_CONNECTED)
def test_a_mistake_before_subscribing_is_named_and_ends_the_connection(client, said, heard):
    client.says(said).hears(heard).and_is_closed()


@pytest.mark.parametrize(("said", "heard"), WRONG_WHEN_SUBSCRIBED)
def test_a_mistake_of_a_consumer_is_named_and_ends_the_connection(client, said, heard):
    client.subscribes()
    client.says(said).hears(heard).and_is_closed()


@pytest.mark.parametrize(("said", "heard"), WRONG_WHEN_CLOSING)
def test_a_mistake_after_cls_is_named_and_ends_the_connection(client, said, heard):
    client.subscribes()
    client.says(b"CLS\n").hears(b"CLOSE_WAIT")
    client.says(said).hears(heard).and_is_closed()


@pytest.mark.parametrize(("said", "heard"), UNREADABLE)
def test_the_end_of_input_names_what_could_not_be_read(client, said, heard):
    client.says(said).hears().and_stays()
    client.stops_sending().hears(*[heard] if heard else []).and_is_closed()


@pytest.mark.parametrize(("said", "heard"), UNREADABLE)
def test_a_deadline_says_the_same_as_an_end_of_input(nsqd, said, heard):
    client = nsqd.connect().identifies(heartbeat_interval=1000).hears(b"OK")
    client.says(said)
    nsqd.waits(1.999)
    client.hears(b"_heartbeat_").and_stays()
    nsqd.waits(0.001)
    client.hears(*[heard] if heard else []).and_is_closed()


@pytest.mark.parametrize(("said", "heard"), WRONG_WHEN_JUST_CONNECTED)
def test_a_mistake_is_answered_however_its_bytes_come_in(client, said, heard):
    for position in range(len(said)):
        client.says(said[position : position + 1])
    client.hears(heard).and_is_closed()


@pytest.mark.parametrize("name", [b"FIN", b"TOUCH", b"REQ"])
@pytest.mark.parametrize("leaving", [False, True])
def test_an_error_about_a_message_that_is_not_in_flight_is_not_fatal(consumer, name, leaving):
    if leaving:
        consumer.says(b"CLS\n").hears(b"CLOSE_WAIT")
    delay = b" 0" if name == b"REQ" else b""
    consumer.says(name + b" " + UNKNOWN_ID + delay + b"\n").hears(
        b"E_%b_FAILED %b %b failed ID not in flight" % (name, name, UNKNOWN_ID)
    )
    consumer.and_stays().publishes(b"still served", topic=b"other")


def test_an_id_is_echoed_as_it_came(consumer):
    consumer.says(b"FIN \xff\0nothexadecimal\n").hears(
        b"E_FIN_FAILED FIN \xff\0nothexadecimal failed ID not in flight"
    )  # fmt: skip


def test_commands_before_an_error_take_effect_and_those_after_it_do_not(nsqd):
    client = nsqd.connect()
    client.says(b"PUB t\n\0\0\0\1aPUB t\n\0\0\0\1bPUB t\n\0\0\0\0PUB t\n\0\0\0\1c").hears(
        b"OK", b"OK", b"E_BAD_MESSAGE PUB invalid message body size 0"
    )
    client.and_is_closed().says(b"PUB t\n\0\0\0\1d").hears()
    assert nsqd.broker.topics["t"].message_count == 2


def test_a_name_too_long_to_be_one_is_quoted_whole(client):
    name = b"x" * 16000
    client.says(b"PUB " + name + b"\n").hears(
        b'E_BAD_TOPIC PUB topic name "' + name + b'" is not valid'
    ).and_is_closed()


def test_an_exiting_topic_refuses_publishes(nsqd, build):
    producer = nsqd.connect()
    producer.publishes(b"one")
    nsqd.broker.close()
    producer.says(b"PUB t\n\0\0\0\1a").hears(b"E_PUB_FAILED PUB failed exiting").and_is_closed()
    nsqd.connect().says(b"DPUB t 1\n\0\0\0\1a").hears(b"E_DPUB_FAILED DPUB failed exiting").and_is_closed()
    nsqd.connect().says(build.mpub([b"a"])).hears(b"E_MPUB_FAILED MPUB failed exiting").and_is_closed()
    nsqd.connect().says(build.mpub([b"a"], b"new")).hears(b"E_MPUB_FAILED MPUB failed exiting").and_is_closed()
    nsqd.connect().says(b"SUB t c\n").hears(b"E_SUB_FAILED SUB failed exiting").and_is_closed()
    nsqd.connect().says(b"SUB new c\n").hears(b"E_SUB_FAILED SUB failed exiting").and_is_closed()

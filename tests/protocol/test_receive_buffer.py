from nsq_compat.protocol.receive_buffer import ReceiveBuffer


def test_there_is_nothing_to_gather_until_enough_has_come():
    buffer = ReceiveBuffer(needed=3)
    assert not buffer.append(b"a")
    assert not buffer.append(b"b")
    assert buffer.append(b"c")
    assert buffer.gather() == b"abc"


def test_what_was_not_consumed_comes_before_what_is_received_next():
    buffer = ReceiveBuffer(needed=1)
    buffer.append(b"abc")
    buffer.gather()
    buffer.position = 2
    assert buffer.append(b"de")
    assert buffer.gather() == b"cde"
    assert buffer.position == 0


def test_a_read_is_used_without_a_copy_when_nothing_waits():
    buffer = ReceiveBuffer(needed=1)
    read = b"a whole read"
    buffer.append(read)
    assert buffer.gather() is read


def test_what_is_handed_back_is_gone():
    buffer = ReceiveBuffer(needed=1)
    buffer.append(b"abc")
    buffer.gather()
    buffer.position = 1
    buffer.append(b"d")
    assert buffer.hand_back() == b"bcd"
    assert buffer.hand_back() == b""

from nsq_compat.protocol.receive_buffer import ReceiveBuffer


def test_a_reader_continues_when_enough_bytes_have_arrived():
    buffer = ReceiveBuffer(needed=3)
    assert not buffer.append(b"a")
    assert not buffer.append(b"b")
    assert buffer.append(b"c")
    assert buffer.gather() == b"abc"


def test_unread_bytes_come_before_new_ones():
    buffer = ReceiveBuffer(needed=1)
    buffer.append(b"abc")
    buffer.gather()
    buffer.position = 2
    assert buffer.append(b"de")
    assert buffer.gather() == b"cde"
    assert buffer.position == 0


def test_a_single_piece_is_used_without_a_copy():
    buffer = ReceiveBuffer(needed=1)
    read = b"a whole read"
    buffer.append(read)
    assert buffer.gather() is read


def test_handing_back_empties_the_buffer():
    buffer = ReceiveBuffer(needed=1)
    buffer.append(b"abc")
    buffer.gather()
    buffer.position = 1
    buffer.append(b"d")
    assert buffer.hand_back() == b"bcd"
    assert buffer.hand_back() == b""

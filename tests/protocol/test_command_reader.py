"""The command reader, compared with a naive reader of the whole input; `session/test_errors.py` has its error texts."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsq_compat.protocol import schema
from nsq_compat.protocol.command_reader import (
    MAX_LINE,
    Command,
    CommandReader,
    Finish,
    Publish,
    SimpleCommand,
)
from nsq_compat.protocol.commands import COMMANDS, CommandSpec
from nsq_compat.protocol.errors import E_INVALID, FatalClientError, SilentClose
from tests.cuts import cut

MAX_MSG_SIZE = 20
MAX_BODY_SIZE = 60
ID = b"0123456789abcdef"

# --- Saying it short --------------------------------------------------------------------------------------------------


def sized(body: bytes) -> bytes:
    encoded: bytes = schema.SIZED_BODY.build(body)
    return encoded


def number(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


def pub(body: bytes, line: bytes = b"PUB t\n") -> bytes:
    return line + sized(body)


def mpub(*bodies: bytes) -> bytes:
    encoded: bytes = schema.MPUB_BODY.build({"bodies": bodies})
    return b"MPUB t\n" + encoded


def admit(tokens: Sequence[bytes]) -> CommandSpec:
    """Admit every known command in any state."""
    if tokens[0] not in COMMANDS:
        raise FatalClientError(E_INVALID, b"invalid command " + tokens[0])
    return COMMANDS[tokens[0]]


def new_reader(max_msg_size: int = MAX_MSG_SIZE, max_body_size: int = MAX_BODY_SIZE) -> CommandReader:
    return CommandReader(admit, max_msg_size=max_msg_size, max_body_size=max_body_size)


@pytest.fixture
def reader() -> CommandReader:
    return new_reader()


@pytest.fixture
def admitted() -> list[Sequence[bytes]]:
    """The lines that `noting_reader` passed to `admit`."""
    return []


@pytest.fixture
def noting_reader(admitted) -> CommandReader:
    def note(tokens: Sequence[bytes]) -> CommandSpec:
        admitted.append(tokens)
        return admit(tokens)

    return CommandReader(note, max_msg_size=MAX_MSG_SIZE, max_body_size=MAX_BODY_SIZE)


Event = tuple[object, ...]


def flat(commands: Iterable[Command]) -> Iterator[Event]:
    """One event for each command; runs are split."""
    for command in commands:
        if isinstance(command, Finish):
            yield from ((b"FIN", message_id) for message_id in command.ids)
        elif isinstance(command, Publish) and command.spec.name == "PUB":
            yield from ((*command.tokens, body) for body in command.bodies)
        elif isinstance(command, Publish):
            yield (*command.tokens, *command.bodies)
        elif command.spec.name == "FIN" and len(command.tokens) > 1:
            yield (b"FIN", command.tokens[1])
        else:
            yield (*command.tokens, command.body)


class Heard(NamedTuple):
    """The commands of an input, and the data of the error frame that ended it, if any."""

    events: list[Event]
    error: bytes | None


def hear(reader: CommandReader, pieces: Iterable[bytes]) -> Heard:
    """Feed all pieces, then EOF."""
    events: list[Event] = []
    try:
        for piece in pieces:
            alone = reader.receive_single(piece)
            for command in reader.receive_data(piece) if alone is None else [alone]:
                events += flat([command])
        reader.end_of_input()
    except FatalClientError as error:
        return Heard(events, error.data)
    except SilentClose:
        return Heard(events, None)
    raise AssertionError("the end of the input is always an error")


def single(reader: CommandReader, data: bytes) -> Command:
    (command,) = reader.receive_data(data)
    return command


def alone_or_first(reader: CommandReader, data: bytes) -> Any:
    return reader.receive_single(data) or single(reader, data)


# --- Lines ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "limit"), [(b"IDENTIFY", 8192), (b"AUTH", 32768)])
def test_a_document_has_a_lower_limit_than_a_body(command, limit):
    largest = command + b"\n" + sized(b"x" * limit)
    assert hear(new_reader(max_body_size=1 << 20), [largest]).error is None
    too_big = command + b"\n" + number(limit + 1)
    refusal = b"E_BAD_BODY %s body too big %d > %d" % (command, limit + 1, limit)
    assert hear(new_reader(max_body_size=1 << 20), [too_big]).error == refusal


@pytest.mark.parametrize(
    ("line", "tokens"),
    [
        (b"NOP\n", [b"NOP"]),
        (b"NOP\r\n", [b"NOP"]),
        (b"NOP and more\n", [b"NOP", b"and", b"more"]),
        (b"NOP \n", [b"NOP", b""]),
        (b"SUB  c\n", [b"SUB", b"", b"c"]),
        (b"SUB t c\r\n", [b"SUB", b"t", b"c"]),
        (b"SUB t c\r\r\n", [b"SUB", b"t", b"c\r"]),
        (b"SUB t\tc\n", [b"SUB", b"t\tc"]),
        (b"RDY 5\n", [b"RDY", b"5"]),
        (b"CLS\n", [b"CLS"]),
        (b"REQ " + ID + b" 0\n", [b"REQ", ID, b"0"]),
        (b"TOUCH " + ID + b"\r\n", [b"TOUCH", ID]),
        (b"RDY \xff\x00\n", [b"RDY", b"\xff\x00"]),
    ],
)
def test_a_line_is_split_at_single_spaces_and_may_end_with_one_carriage_return(reader, line, tokens):
    assert single(reader, line) == SimpleCommand(COMMANDS[tokens[0]], tokens, b"")


def line_of(length: int) -> bytes:
    return b"NOP " + b"x" * (length - 5) + b"\n"


def test_an_unfinished_line_is_refused_as_soon_as_it_is_too_long(reader):
    assert list(reader.receive_data(b"x" * 16383)) == []
    with pytest.raises(SilentClose, match="line too long"):
        list(reader.receive_data(b"x"))


def test_an_id_of_any_length_is_passed_to_admission(noting_reader, admitted):
    for message_id in (ID[:15], ID + b"0", ID * 100, b""):
        assert single(noting_reader, b"FIN " + message_id + b"\n") == SimpleCommand(
            COMMANDS[b"FIN"], [b"FIN", message_id], b""
        )
    assert [tokens[1] for tokens in admitted] == [ID[:15], ID + b"0", ID * 100, b""]


# --- Runs of FIN ------------------------------------------------------------------------------------------------------


def test_many_fins_are_few_commands(reader):
    ids = [b"%016x" % each for each in range(1000)]
    runs = list(reader.receive_data(b"".join(b"FIN " + each + b"\n" for each in ids)))
    assert runs == [Finish(ids[:256]), Finish(ids[256:512]), Finish(ids[512:768]), Finish(ids[768:])]


def test_a_run_of_fins_ends_where_something_else_begins(reader):
    ids = [b"%016x" % each for each in range(4)]
    first, second, third, fourth = (b"FIN " + each + b"\n" for each in ids)
    assert list(reader.receive_data(first + second + b"NOP\n" + third + fourth)) == [
        Finish(ids[:2]),
        SimpleCommand(COMMANDS[b"NOP"], [b"NOP"], b""),
        Finish(ids[2:]),
    ]


@pytest.mark.parametrize("ending", [b"\r\n", b" extra\n", b" \n", b" extra\r\n"])
def test_a_fin_with_an_unusual_ending_is_a_fin(reader, ending):
    usual = b"FIN " + ID + b"\n"
    unusual = b"FIN " + ID + ending
    assert hear(reader, [usual + unusual + usual]) == Heard([(b"FIN", ID)] * 3, None)


@pytest.mark.parametrize("message_id", [b"01234567 9abcdef", b"01234567\r9abcdef", b"\x00" * 16, b"\xff" * 16])
def test_an_id_of_any_bytes_is_read_the_same_in_a_run_and_alone(message_id):
    usual = b"FIN " + ID + b"\n"
    unusual = b"FIN " + message_id + b"\n"
    alone = hear(new_reader(), [usual, unusual, usual])
    assert hear(new_reader(), [usual + unusual + usual]) == alone
    assert alone.events[1] == (b"FIN", message_id.split(b" ")[0])


def test_an_id_ends_with_its_line(reader):
    heard = hear(reader, [b"FIN 012345678901234\nFIN " + ID + b"\n"])
    assert heard.events == [(b"FIN", b"012345678901234"), (b"FIN", ID)]


def test_a_newline_ends_an_id_even_if_sixteen_bytes_would_fit(reader):
    heard = hear(reader, [b"FIN 0123456789abcd\nX\nFIN " + ID + b"\n"])
    assert heard == Heard([(b"FIN", b"0123456789abcd")], b"E_INVALID invalid command X")


# --- Runs of PUB ------------------------------------------------------------------------------------------------------


def test_pubs_to_one_topic_are_one_command_and_admitted_once(noting_reader, admitted):
    run = single(noting_reader, pub(b"one") + pub(b"two") + pub(b"three"))
    assert run == Publish(COMMANDS[b"PUB"], [b"PUB", b"t"], [b"one", b"two", b"three"])
    assert admitted == [[b"PUB", b"t"]]


def test_single_pubs_are_admitted_once_for_each_topic(noting_reader, admitted):
    said = [pub(b"one"), pub(b"two"), b"NOP\n", pub(b"three"), pub(b"four", b"PUB u\n"), pub(b"five")]
    assert hear(noting_reader, said) == Naive(b"".join(said)).hear()
    assert admitted == [[b"PUB", b"t"], [b"NOP"], [b"PUB", b"u"]]


@pytest.mark.parametrize(("topics", "judged"), [(200, 200), (300, 900)])
def test_the_number_of_remembered_lines_is_limited(noting_reader, admitted, topics, judged):
    lines = [b"PUB topic%d\n" % number for number in range(topics)]
    for _ in range(3):
        said = [pub(b"x", line) for line in lines]
        assert [alone_or_first(noting_reader, each).tokens[1] for each in said] == [line[4:-1] for line in lines]
    assert len(admitted) == judged


@pytest.mark.parametrize(
    ("data", "bodies"),
    [
        (pub(b"two"), [b"two"]),
        (pub(b"x" * MAX_MSG_SIZE), [b"x" * MAX_MSG_SIZE]),
        (pub(b"x" * (MAX_MSG_SIZE + 1)), None),
        (pub(b""), None),
        (b"PUB t\n", None),
        (b"PUB t\n\0\0", None),
        (pub(b"two")[:-1], None),
        (pub(b"two") + b"N", None),
        (pub(b"two", b"PUB u\n"), None),
        (pub(b"two", b"PUB t\r\n"), None),
        (mpub(b"two"), None),
    ],
)
def test_a_single_pub_is_read_if_its_line_is_known_and_it_is_regular(reader, data, bodies):
    assert reader.receive_single(pub(b"one")) is None
    single(reader, pub(b"one"))
    alone = reader.receive_single(data)
    assert (alone and list(alone.bodies)) == bodies


@pytest.mark.parametrize(
    ("data", "bodies"),
    [
        (mpub(b"one", b"two"), [b"one", b"two"]),
        (mpub(b"one"), [b"one"]),
        (mpub(b"one", b"three"), None),
        (mpub(b"x" * MAX_MSG_SIZE, b"y" * MAX_MSG_SIZE), [b"x" * MAX_MSG_SIZE, b"y" * MAX_MSG_SIZE]),
        (mpub(*[b"x" * MAX_MSG_SIZE] * 3), None),
        (mpub(b"x" * (MAX_MSG_SIZE + 1)), None),
        (mpub(*[b"x"] * 11), [b"x"] * 11),
        (mpub(*[b"x"] * 12), None),
        (b"MPUB t\n" + number(4) + number(0), None),
        (b"MPUB t\n" + number(8) + number(1) + number(0), None),
        (b"MPUB t\n" + number(8) + number(0) + number(1), None),
        (b"MPUB t\n" + number(8) + number(-1) + number(-4), None),
        (b"MPUB t\n" + number(9) + number(1) + sized(b"one"), None),
        (b"MPUB t\n" + number(11) + number(2) + sized(b"one"), None),
        (b"MPUB t\n" + number(18) + number(1) + sized(b"one") + sized(b"two"), None),
        (b"MPUB t\n" + number(5) + b"\0\0\0\1\0", None),
        (b"MPUB t\n\0\0", None),
        (b"MPUB t\n", None),
        (pub(b"one"), None),
    ],
)
def test_a_single_mpub_is_read_if_its_messages_have_one_size_and_it_is_regular(reader, data, bodies):
    single(reader, mpub(b"any"))
    alone = reader.receive_single(data)
    assert (alone and list(alone.bodies)) == bodies


def test_no_single_command_is_read_after_a_part_of_another(reader):
    single(reader, pub(b"one"))
    fin = b"FIN " + ID + b"\n"
    assert reader.receive_single(fin) == Finish([ID])
    for beginning in (b"P", b"PUB t\n", b"PUB t\n" + number(7)):
        reader = new_reader()
        single(reader, pub(b"one"))
        assert list(reader.receive_data(beginning)) == []
        assert reader.receive_single(pub(b"two")) is None
        assert reader.receive_single(fin) is None


def test_a_pub_with_the_size_of_the_last_one_has_its_own_topic(reader):
    to_t, to_u, batch = b"PUB t\n", b"PUB u\n", mpub(b"one")
    for data in (pub(b"one", to_t), pub(b"one", to_u), batch):
        single(reader, data)
    for data in (pub(b"one", to_t), pub(b"two", to_t), pub(b"one", to_u), pub(b"two", to_t), batch, pub(b"one", to_t)):
        alone = reader.receive_single(data)
        assert alone == Publish(COMMANDS[data[: data.index(b" ")]], data[: data.index(b"\n")].split(b" "), (data[-3:],))


def test_a_pub_as_long_as_the_last_one_with_another_size_field_is_not_read_alone(reader):
    single(reader, pub(b"one"))
    assert reader.receive_single(pub(b"two")) is not None
    assert reader.receive_single(b"PUB t\n" + number(2) + b"two") is None
    assert reader.receive_single(b"") is None


COMMANDS_OF_MANY_KINDS = st.one_of(
    st.builds(pub, st.binary(max_size=MAX_MSG_SIZE + 2), st.sampled_from([b"PUB t\n", b"PUB u\n"])),
    st.builds(lambda bodies: mpub(*bodies), st.lists(st.binary(min_size=1, max_size=MAX_MSG_SIZE), max_size=4)),
    st.builds(lambda size, count: mpub(*[b"x" * size] * count), st.integers(0, 21), st.integers(0, 12)),
    st.sampled_from([b"FIN " + ID + b"\n", b"FIN " + ID[1:] + b"\n", b"NOP\n"]),
)


@given(st.lists(COMMANDS_OF_MANY_KINDS, max_size=8))
def test_single_commands_are_the_same_as_consecutive_ones(commands):
    assert hear(new_reader(), commands) == hear(new_reader(), [b"".join(commands)])


@pytest.mark.parametrize("line", [b"PUB u\n", b"PUB t extra\n", b"PUB t\r\n", b"PUB t \n"])
def test_a_pub_with_another_line_begins_another_run(reader, line):
    commands = list(reader.receive_data(pub(b"one") + pub(b"two") + pub(b"three", line) + pub(b"four", line)))
    assert [command.bodies for command in commands] == [[b"one", b"two"], [b"three", b"four"]]
    assert commands[1].tokens == line[:-1].removesuffix(b"\r").split(b" ")


def test_a_pub_is_refused_by_its_line_before_its_body_arrives():
    def refuse(tokens: Sequence[bytes]) -> CommandSpec:
        raise FatalClientError("E_BAD_TOPIC", "no")

    reader = CommandReader(refuse, max_msg_size=MAX_MSG_SIZE, max_body_size=MAX_BODY_SIZE)
    with pytest.raises(FatalClientError, match="E_BAD_TOPIC"):
        list(reader.receive_data(b"PUB bad!\n"))


# --- Bodies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [b"IDENTIFY", b"AUTH"])
def test_a_document_may_be_as_large_as_the_limit_of_bodies(reader, name):
    body = b"x" * MAX_BODY_SIZE
    assert single(reader, name + b"\n" + sized(body)) == SimpleCommand(COMMANDS[name], [name], body)


LINES = {"IDENTIFY": b"IDENTIFY\n", "AUTH": b"AUTH\n", "PUB": b"PUB t\n", "DPUB": b"DPUB t 0\n", "MPUB": b"MPUB t\n"}


# --- MPUB -------------------------------------------------------------------------------------------------------------


def test_an_mpub_is_one_command_with_its_bodies(reader):
    assert single(reader, mpub(b"one", b"two")) == Publish(COMMANDS[b"MPUB"], [b"MPUB", b"t"], [b"one", b"two"])


@pytest.mark.parametrize("size", [1, 15, MAX_BODY_SIZE])
def test_the_count_of_an_mpub_and_not_its_size_determines_its_end(reader, size):
    data = b"MPUB t\n" + number(size) + number(2) + sized(b"one") + sized(b"two") + b"NOP\n"
    assert hear(reader, [data]) == Heard([(b"MPUB", b"t", b"one", b"two"), (b"NOP", b"")], None)


def test_the_largest_count_is_that_of_messages_of_one_byte(reader):
    bodies = [b"x"] * ((MAX_BODY_SIZE - 4) // 5)
    assert hear(reader, [mpub(*bodies)]) == Heard([(b"MPUB", b"t", *bodies)], None)


@pytest.mark.parametrize("places", [[], [40], [7, 11, 15, 20, 39, 40, 63]])
def test_the_total_size_of_messages_is_limited(places):
    bodies = [b"x" * MAX_MSG_SIZE] * 3
    data = b"MPUB t\n" + number(10) + number(3) + b"".join(map(sized, bodies))
    assert hear(new_reader(), cut(data, places)) == Heard([], b"E_BAD_BODY MPUB body too big 76 > 60")


@pytest.mark.parametrize("count", [3, 4, 5, 127, 128, 129, 300])
@pytest.mark.parametrize("odd", [None, 0, 1, 2, 100, -1])
def test_messages_of_one_size_are_read_as_others_are(count, odd):
    bodies = [b"%03d" % number for number in range(count)]
    if odd is not None and odd < count:
        bodies[odd] += b", longer than the others"
    data = mpub(*bodies) + b"NOP\n"
    for places in ([], [9], [14], [len(data) // 2], [len(data) - 5], [len(data) - 4]):
        reader = new_reader(max_msg_size=100, max_body_size=len(data))
        assert hear(reader, cut(data, places)) == Heard([(b"MPUB", b"t", *bodies), (b"NOP", b"")], None)


@pytest.mark.parametrize(
    ("size", "error"),
    [
        (20, b"E_BAD_BODY MPUB body too big 100 > 99"),
        (21, b"E_BAD_MESSAGE MPUB message too big 21 > 20"),
        (0, b"E_BAD_MESSAGE MPUB invalid message(0) body size 0"),
    ],
)
def test_messages_of_one_size_are_refused_as_others_are(size, error):
    data = b"MPUB t\n" + number(99) + number(4) + sized(b"x" * size) * 4
    assert hear(new_reader(max_msg_size=20, max_body_size=99), [data]) == Heard([], error)


def test_a_count_allocates_no_memory_before_messages_arrive():
    reader = new_reader(max_msg_size=1 << 30, max_body_size=1 << 30)
    assert list(reader.receive_data(b"MPUB t\n" + number(1 << 30) + number(200_000_000))) == []
    assert list(reader.receive_data(number(1 << 29) + b"begin")) == []
    assert list(reader.receive_data(b"of much")) == []


# --- One command at a time --------------------------------------------------------------------------------------------


def test_bytes_after_a_command_are_not_read_before_the_next_step(noting_reader, admitted):
    commands = noting_reader.receive_data(b"NOP\nRDY 1\nWHAT\n")
    assert admitted == []
    next(commands)
    assert admitted == [[b"NOP"]]
    next(commands)
    assert admitted == [[b"NOP"], [b"RDY", b"1"]]
    with pytest.raises(FatalClientError):
        next(commands)


BEHIND = b"\x16\x03\x01 not NSQ at all\n"


def test_the_bytes_after_a_command_can_be_handed_back_while_iterating(reader):
    rest = b""
    for command in reader.receive_data(b"NOP\nIDENTIFY\n" + sized(b"{}") + BEHIND):
        if command.spec.name == "IDENTIFY":
            rest = reader.hand_back()
    assert rest == BEHIND


def test_the_bytes_after_a_command_can_be_handed_back_afterwards(reader):
    for command in reader.receive_data(b"NOP\nIDENTIFY\n" + sized(b"{}") + BEHIND):
        if command.spec.name == "IDENTIFY":
            break
    assert reader.hand_back() == BEHIND


def test_after_handing_back_the_reader_is_empty(reader):
    for _ in reader.receive_data(b"NOP\n" + BEHIND):
        assert reader.hand_back() == BEHIND
        assert reader.hand_back() == b""
    assert reader.hand_back() == b""
    assert single(reader, b"RDY 1\n") == SimpleCommand(COMMANDS[b"RDY"], [b"RDY", b"1"], b"")


def test_several_pieces_are_handed_back_as_one(reader):
    for piece in (b"RD", b"Y 1\r", b"\nsome", b"thing"):
        list(reader.receive_data(piece))
    assert reader.hand_back() == b"something"


def test_nothing_is_handed_back_when_nothing_is_left(reader):
    assert reader.hand_back() == b""
    list(reader.receive_data(b"NOP\n"))
    assert reader.hand_back() == b""


# --- Any cut, any bytes -----------------------------------------------------------------------------------------------


class Naive:
    """Reads a complete input as nsqd does."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def hear(self) -> Heard:
        events: list[Event] = []
        try:
            while True:
                events.append(self.command(self.line()))
        except FatalClientError as error:
            return Heard(events, error.data)
        except SilentClose:
            return Heard(events, None)

    def line(self) -> list[bytes]:
        newline = self.data.find(b"\n", self.position)
        if newline < 0 or newline - self.position >= MAX_LINE:
            raise SilentClose
        line = self.data[self.position : newline]
        self.position = newline + 1
        return line.removesuffix(b"\r").split(b" ")

    def command(self, tokens: list[bytes]) -> Event:
        name = admit(tokens).name
        if name in ("IDENTIFY", "AUTH"):
            return (*tokens, self.body("E_BAD_BODY", f"{name} %s body%s", f"{name} body too big", MAX_BODY_SIZE))
        if name in ("PUB", "DPUB"):
            words = f"{name} %s message body%s"
            return (*tokens, self.body("E_BAD_MESSAGE", words, f"{name} message too big", MAX_MSG_SIZE))
        if name == "MPUB":
            return (*tokens, *self.messages())
        return (b"FIN", tokens[1]) if name == "FIN" and len(tokens) > 1 else (*tokens, b"")

    def messages(self) -> list[bytes]:
        size = self.number("E_BAD_BODY", "MPUB failed to read body size")
        self.check(size, "E_BAD_BODY", "MPUB invalid body size", "MPUB body too big", MAX_BODY_SIZE)
        count = self.number("E_BAD_BODY", "MPUB failed to read message count")
        if not 0 < count <= (MAX_BODY_SIZE - 4) // 5:
            raise FatalClientError("E_BAD_BODY", f"MPUB invalid message count {count}")
        bodies: list[bytes] = []
        total = 4
        for index in range(count):
            size = self.number("E_BAD_MESSAGE", f"MPUB failed to read message({index}) body size")
            invalid = f"MPUB invalid message({index}) body size"
            self.check(size, "E_BAD_MESSAGE", invalid, "MPUB message too big", MAX_MSG_SIZE)
            total += 4 + size
            self.check(total, "E_BAD_BODY", "", "MPUB body too big", MAX_BODY_SIZE)
            bodies.append(self.bytes(size, "E_BAD_MESSAGE", "MPUB failed to read message body"))
        return bodies

    def body(self, code: str, words: str, too_big: str, limit: int) -> bytes:
        size = self.number(code, words % ("failed to read", " size"))
        self.check(size, code, words % ("invalid", " size"), too_big, limit)
        return self.bytes(size, code, words % ("failed to read", ""))

    def check(self, size: int, code: str, invalid: str, too_big: str, limit: int) -> None:
        if size <= 0:
            raise FatalClientError(code, f"{invalid} {size}")
        if size > limit:
            raise FatalClientError(code, f"{too_big} {size} > {limit}")

    def number(self, code: str, failure: str) -> int:
        return int.from_bytes(self.bytes(4, code, failure), "big", signed=True)

    def bytes(self, count: int, code: str, failure: str) -> bytes:
        taken = self.data[self.position : self.position + count]
        if len(taken) < count:
            raise FatalClientError(code, failure)
        self.position += count
        return taken


bodies = st.binary(max_size=MAX_MSG_SIZE + 1)
sizes = st.sampled_from([0, 1, 3, MAX_MSG_SIZE, MAX_MSG_SIZE + 1, MAX_BODY_SIZE, MAX_BODY_SIZE + 1, -1, 1 << 30])
endings = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b" extra\n", b" \n", b"\r\r\n", b""])
ids = st.one_of(
    st.just(ID),
    st.just(ID),
    st.binary(min_size=14, max_size=18),
    st.text("0\r\n F", min_size=16, max_size=16).map(str.encode),
    st.text("0\n", min_size=16, max_size=16).map(str.encode),
)
fragments = st.one_of(
    st.builds(lambda message_id, ending: b"FIN " + message_id + ending, ids, endings),
    st.integers(1, 5).map(lambda count: (b"FIN " + ID + b"\n") * count),
    st.builds(pub, st.binary(min_size=1, max_size=5)),
    st.builds(lambda count, body: pub(body) * count, st.integers(1, 4), st.binary(min_size=1, max_size=3)),
    st.builds(
        lambda line, ending, body: pub(body, line + ending), st.sampled_from([b"PUB t", b"PUB"]), endings, bodies
    ),
    st.builds(lambda body: b"DPUB t 5\n" + sized(body), bodies),
    st.builds(lambda name, body: name + sized(body), st.sampled_from([b"IDENTIFY\n", b"AUTH\r\n"]), bodies),
    st.builds(lambda contents: mpub(*contents), st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=5)),
    st.builds(lambda contents: mpub(*contents), st.lists(bodies, max_size=4)),
    st.builds(lambda contents: mpub(*contents), st.lists(st.binary(min_size=2, max_size=2), min_size=4, max_size=9)),
    st.builds(
        lambda size, count, contents: b"MPUB t\n" + number(size) + number(count) + b"".join(map(sized, contents)),
        sizes,
        st.integers(-1, 12),
        st.lists(st.binary(min_size=1, max_size=9), max_size=4),
    ),
    st.builds(lambda line, size: line + number(size), st.sampled_from(list(LINES.values())), sizes),
    st.builds(
        lambda line, ending: line + ending, st.sampled_from([b"NOP", b"RDY 5", b"CLS", b"SUB a b", b"F"]), endings
    ),
    st.sampled_from([line_of(16383), line_of(16384), line_of(16385), b"x" * 16384]),
    st.binary(max_size=6),
)
inputs = st.lists(fragments, max_size=8).map(b"".join)
places = st.lists(st.integers(0, 1 << 20), max_size=12)


@given(inputs, places)
@example(b"FIN 0123456789abcd\nX\nFIN " + ID + b"\n", [19])
@example(pub(b"a") + pub(b"b"), [11, 17])
@example(pub(b"a") + pub(b"x" * MAX_MSG_SIZE) + b"PUB t\n\0\0\0\3th", [])
@example(pub(b"a") + pub(b"b") + b"PUB t\n\0\0\0\x15", [])
@example(pub(b"a\r") + mpub(b"x" * 20, b"x" * 20, b"x" * 4) + b"\n", [])
def test_the_result_does_not_depend_on_how_the_input_is_split(data, places):
    expected = Naive(data).hear()
    assert hear(new_reader(), [data]) == expected
    assert hear(new_reader(), cut(data, places)) == expected


@given(st.lists(fragments, max_size=8))
@example([pub(b"a"), pub(b"b"), pub(b"c", b"PUB t\r\n"), pub(b"d"), b"FIN " + ID + b"\n", b"FIN " + ID + b"\n"])
@example([pub(b"a"), b"PUB t\n", b"\0\0\0\1", b"b", pub(b"c") + b"NO", b"P\n", pub(b"")])
@example([pub(b"a"), b"PUB t\n" + number(21), pub(b"PUB t\n" + sized(b"b"))])
def test_commands_are_the_same_one_by_one_and_all_at_once(fragments_one_by_one):
    expected = Naive(b"".join(fragments_one_by_one)).hear()
    assert hear(new_reader(), fragments_one_by_one) == expected


CONVERSATION = b"".join(
    [
        *(b"IDENTIFY\n", sized(b"{}"), b"SUB t c\r\n", b"RDY 2\n"),
        *(b"FIN " + ID + b"\n" for _ in range(3)),
        *(b"FIN " + ID + b"\r\n", b"REQ " + ID + b" 0\n", b"TOUCH " + ID + b"\n"),
        *(pub(b"one"), pub(b"two"), pub(b"a\nb"), pub(b"x", b"PUB u\n")),
        *(mpub(b"a", b"PUB t\n", b"c"), b"DPUB t 5\n", sized(b"later"), b"NOP\n", b"CLS\n", b"WHAT is this\n"),
    ]
)


def test_a_conversation_may_come_byte_by_byte():
    expected = Naive(CONVERSATION).hear()
    assert len(expected.events) == 17
    assert hear(new_reader(), cut(CONVERSATION, range(len(CONVERSATION)))) == expected


def test_a_conversation_may_be_cut_anywhere_twice():
    expected = Naive(CONVERSATION).hear()
    for first in range(0, len(CONVERSATION), 3):
        for second in range(first, len(CONVERSATION), 5):
            assert hear(new_reader(), cut(CONVERSATION, [first, second])) == expected


@given(st.lists(st.binary(max_size=40)))
def test_any_bytes_lead_to_commands_an_error_or_a_close(pieces):
    assert hear(new_reader(), pieces) == Naive(b"".join(pieces)).hear()


# --- Cost -------------------------------------------------------------------------------------------------------------


class Watched(CommandReader):
    """Counts the bytes of every buffer that it scans."""

    looked_at = 0
    _last = b""

    def _next_command(self, end: int) -> Command | None:
        if self._buffer is not self._last:
            self._last = self._buffer
            self.looked_at += end
        return super()._next_command(end)


MEGABYTE = 1 << 20


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(pub(b"x" * MEGABYTE), id="one big message"),
        pytest.param(b"IDENTIFY\n" + sized(b"x" * 8192), id="one big document"),
        pytest.param(mpub(b"x" * MEGABYTE), id="one big message in an MPUB"),
        pytest.param(mpub(*[b"x" * 100_000] * 10), id="some big messages in an MPUB"),
        pytest.param(mpub(*[b"x" * 100] * 10_000), id="many small messages in an MPUB"),
        pytest.param(pub(b"x" * 100_000) * 10, id="some big PUBs"),
        pytest.param(pub(b"x" * 100) * 10_000, id="many small PUBs"),
        pytest.param((b"FIN " + ID + b"\n") * 50_000, id="many FINs"),
    ],
)
@pytest.mark.interpreted
def test_input_in_small_pieces_is_scanned_about_once(data):
    reader = Watched(admit, max_msg_size=MEGABYTE, max_body_size=2 * MEGABYTE)
    events = 0
    for start in range(0, len(data), 1024):
        events += len(list(flat(reader.receive_data(data[start : start + 1024]))))
    assert events == len(list(flat(new_reader(MEGABYTE, 2 * MEGABYTE).receive_data(data))))
    assert reader.looked_at < 1.5 * len(data)


def test_an_incomplete_body_is_kept_in_the_pieces_received():
    reader = new_reader(max_msg_size=MEGABYTE)
    pieces = [b"x" * 1024 for _ in range(1000)]
    list(reader.receive_data(b"PUB t\n" + number(MEGABYTE)))
    for piece in pieces:
        assert list(reader.receive_data(piece)) == []
    assert all(kept is piece for kept, piece in zip(reader._chunks, pieces, strict=True))


def test_bytes_that_were_read_are_released(reader):
    list(reader.receive_data(pub(b"x" * 20) * 1000 + b"NO"))
    assert reader._buffer == b""
    assert reader._chunks == [b"NO"]

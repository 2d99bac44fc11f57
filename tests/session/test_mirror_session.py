"""The primary's connection to its standby, in bytes."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.client.settings import ConnectionSettings
from nsq_compat.log.mirrored_files import Changes
from nsq_compat.protocol.errors import NsqError
from nsq_compat.protocol.frames import OK, error_frame, response_frame
from nsq_compat.protocol.mirror import REMOVE, Change, command, decode_changes
from nsq_compat.session.mirror_session import Ended, MirrorSession

NOW = 1000.0
IDENTIFIED = response_frame(json.dumps({"max_rdy_count": 2500, "version": "1.3.0"}).encode())
PATH = "nsq_compat/t.topic/log"


class Asked:
    """An answer that a test can look at."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def set(self, value: bytes) -> None:
        self.seen.append(value)

    def set_exception(self, error: Exception) -> None:
        self.seen.append(error)


class Primary:
    """A session with its changes; `acknowledged` are the positions."""

    def __init__(self, **settings: object) -> None:
        self.changes = Changes()
        self.changes.make_all_live()
        self.acknowledged: list[int] = []
        self.wakes = 0
        self.session = MirrorSession(
            ConnectionSettings(heartbeat_interval=1, **settings).identify(),  # type: ignore[arg-type]
            self.changes,
            auth_secret=b"",
            wake=self.wake,
            on_acknowledged=self.acknowledged.append,
            timeout=5.0,
            now=NOW,
        )

    def wake(self) -> None:
        self.wakes += 1

    def changes_by(self, *data: bytes) -> None:
        for each in data:
            self.changes.note("t.topic", Change(REMOVE, PATH, 0, each))

    def sends(self, now: float = NOW) -> bytes:
        return self.session.data_to_send(now)

    def hears(self, *frames: bytes, now: float = NOW) -> None:
        self.session.receive_data(b"".join(frames), now, 0)


@pytest.fixture
def primary() -> Primary:
    primary = Primary()
    assert primary.sends().startswith(b"  V2IDENTIFY\n")
    primary.hears(IDENTIFIED)
    return primary


def sent_changes(data: bytes) -> Sequence[bytes]:
    """The data of all changes in the commands."""
    found: list[bytes] = []
    line = b"MIRROR changes\n"
    while data:
        assert data.startswith(line)
        begin = len(line) + 4
        size = int.from_bytes(data[len(line) : begin], "big")
        found += [change.data for change in decode_changes(data[begin : begin + size])]
        data = data[begin + size :]
    return found


def test_changes_are_sent_together_and_acknowledged_with_their_position(primary):
    primary.changes_by(b"a", b"b")
    assert primary.sends() == b""  # the copy comes first
    primary.session.sends_changes = True
    assert sent_changes(primary.sends()) == [b"a", b"b"]
    primary.changes_by(b"c")
    assert sent_changes(primary.sends()) == [b"c"]
    primary.hears(OK)
    assert primary.acknowledged == [2]
    primary.hears(OK)
    assert primary.acknowledged == [2, 3]


@pytest.mark.parametrize("cut", range(1, 40))
def test_answers_may_come_together_or_in_pieces(primary, cut):
    primary.session.sends_changes = True
    answer = Asked()
    for number in range(3):
        primary.changes_by(b"%d" % number)
        primary.sends()
    primary.session.ask(command("files"), answer)
    primary.sends()
    data = OK * 3 + OK
    primary.hears(data[:cut])
    primary.hears(data[cut:])
    assert primary.acknowledged[-1] == 3
    assert answer.seen == [b"OK"]


def test_answers_that_come_together_are_acknowledged_once(primary):
    primary.session.sends_changes = True
    for number in range(3):
        primary.changes_by(b"%d" % number)
        primary.sends()
    wakes = primary.wakes
    primary.hears(OK, OK, OK)
    assert primary.acknowledged == [3]
    assert primary.wakes == wakes, "there is nothing to send"


def test_a_standby_that_does_not_answer_is_sent_no_more(primary):
    primary.session.sends_changes = True
    for number in range(20):
        primary.changes_by(b"%d" % number)
        primary.sends()
    assert primary.changes.position - primary.changes.position_taken == 4
    primary.hears(OK)
    assert sent_changes(primary.sends()) == [b"16", b"17", b"18", b"19"]


def test_a_copy_and_commands_have_answers(primary):
    files, applied = Asked(), Asked()
    primary.session.ask(command("files"), files)
    primary.session.ask_to_apply([Change(REMOVE, PATH)], applied)
    assert primary.sends() == command("files") + command("changes", Change(REMOVE, PATH).encode())
    primary.hears(response_frame(b"{}"), OK)
    assert (files.seen, applied.seen, primary.acknowledged) == ([b"{}"], [b"OK"], [])


def test_a_refusal_ends_the_connection_and_says_why(primary):
    hello, later = Asked(), Asked()
    primary.session.ask(command("hello"), hello)
    primary.session.ask(command("files"), later)
    primary.sends()
    primary.hears(error_frame(b"E_INVALID invalid command MIRROR"))
    assert primary.session.closing
    assert primary.session.failure == "E_INVALID invalid command MIRROR"
    (refusal,), (end,) = hello.seen, later.seen
    assert isinstance(refusal, NsqError)
    assert isinstance(end, Ended)
    never = Asked()
    primary.session.ask(command("files"), never)
    assert isinstance(never.seen[0], Ended)


def test_a_silent_standby_is_left_and_one_that_never_answered(primary):
    assert primary.session.next_wakeup == NOW + 3
    primary.hears(response_frame(b"_heartbeat_"), now=NOW + 2)
    assert primary.sends(NOW + 4) == b"NOP\n"
    primary.sends(NOW + 5)
    assert primary.session.failure == "no sign of life"
    mute = Primary()
    mute.sends(NOW + 4.9)
    assert not mute.session.closing
    mute.sends(NOW + 5)
    assert mute.session.failure == "no answer; is this nsqd's TCP port?"


def test_tls_comes_before_everything_else():
    primary = Primary(tls_v1=True)
    hello = Asked()
    primary.session.ask(command("hello"), hello)
    primary.sends()
    primary.hears(response_frame(json.dumps({"max_rdy_count": 2500, "tls_v1": True}).encode()))
    upgrade = primary.session.upgrade
    assert upgrade is not None
    assert primary.sends() == b""
    upgrade.done(None, NOW)
    primary.hears(OK)
    assert primary.sends() == command("hello")


@given(st.lists(st.binary(max_size=60), max_size=4), st.booleans())
def test_any_bytes_are_answers_or_end_the_connection(pieces, is_identified):
    primary = Primary()
    asked = Asked()
    primary.session.ask(command("files"), asked)
    if is_identified:
        primary.hears(IDENTIFIED)
    for piece in pieces:
        primary.hears(piece)
        primary.sends()
    primary.session.end_of_input()
    assert primary.session.closing
    assert len(asked.seen) == 1


def test_a_standby_that_answers_heartbeats_only_is_left(primary):
    answer = Asked()
    primary.session.ask(command("files"), answer)
    for second in range(31):
        primary.hears(response_frame(b"_heartbeat_"), now=NOW + second)
        assert primary.sends(NOW + second)
        assert not answer.seen
    primary.hears(response_frame(b"_heartbeat_"), now=NOW + 31)
    primary.sends(NOW + 31)
    assert [str(each) for each in answer.seen] == ["a command has no answer after 30 s"]


def test_commands_that_are_answered_one_after_the_other_may_take_long(primary):
    answers = [Asked() for _ in range(4)]
    for answer in answers:
        primary.session.ask(command("files"), answer)
    for number in range(4):
        for second in range(20):
            primary.hears(response_frame(b"_heartbeat_"), now=NOW + 20 * number + second)
            primary.sends(NOW + 20 * number + second)
        primary.hears(response_frame(b"{}"), now=NOW + 20 * number + 19)
    assert [answer.seen for answer in answers] == [[b"{}"]] * 4

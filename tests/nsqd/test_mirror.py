"""The connection to the standby: why it was not reached, and what happens while it ends."""

import socket
import time
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import gevent
import pytest
from gevent.event import Event

from nsq_compat.client.settings import ConnectionSettings
from nsq_compat.log.files import OsFiles
from nsq_compat.log.identity import Identity
from nsq_compat.log.mirrored_files import Changes, Confirmations
from nsq_compat.net.event_loop import LoopTick
from nsq_compat.net.tls import StandardTls
from nsq_compat.nsqd.mirror import Mirror, State, _why
from nsq_compat.protocol.mirror import REMOVE, Change
from nsq_compat.session.mirror_session import Ended


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "connection refused"),
        (TimeoutError("no answer; is this nsqd's TCP port?"), "no answer; is this nsqd's TCP port?"),
        (socket.gaierror(-2, "Name or service not known"), "cannot resolve the name: Name or service not known"),
        (ValueError("invalid frame size 1213486160, not 4 to 268435456"), "invalid frame size"),
    ],
)
def test_a_failure_to_reach_the_standby_is_named(error, text):
    assert _why(error).startswith(text)


def mirror_of(changes, tmp_path, timeout=60.0):
    settings = ConnectionSettings()
    confirmations = Confirmations(changes)
    confirmations.is_started = True
    return Mirror(
        "127.0.0.1:4150", settings, partial(StandardTls, settings.tls_context()), LoopTick(gevent.get_hub().loop),
        files=OsFiles(), data_path=str(tmp_path), changes=changes, confirmations=confirmations,
        identity=Identity("a"), refuses=False, timeout=timeout, describe=dict, forget=lambda adopted: None,
    )  # fmt: skip


def test_nothing_is_confirmed_once_changes_are_not_noted(tmp_path):
    changes = Changes()
    mirror = mirror_of(changes, tmp_path)
    mirror._note(State.IN_SYNC)
    changes.make_all_live()
    session = mirror._make_session(cast(Any, SimpleNamespace(wake=lambda: None)), 0.0, 0)
    mirror._leave(session)
    changes.note("t.topic", Change(REMOVE, "nsq_compat/t.topic/log"))
    answers: list[OSError | None] = []
    mirror._confirmations.confirm(answers.append)
    assert answers == []
    assert session.closing


def test_nobody_waits_once_the_standby_counts_as_lost(tmp_path):
    mirror = mirror_of(Changes(), tmp_path, timeout=0.05)
    answered = Event()
    mirror._confirmations._waiting.append((1, 1000, lambda error: answered.set()))  # it begins in a later round
    mirror._watching.start()
    assert answered.wait(30)
    mirror._watching.kill()


def test_a_standby_is_not_lost_while_nsqd_stands_still(tmp_path):
    changes = Changes()
    mirror = mirror_of(changes, tmp_path, timeout=0.1)
    mirror._note(State.IN_SYNC)
    changes.make_all_live()
    changes.note("t.topic", Change(REMOVE, "nsq_compat/t.topic/log"))
    answers: list[OSError | None] = []
    mirror._confirmations.confirm(answers.append)
    mirror._watching.start()
    gevent.sleep()  # it waits for its first round
    time.sleep(0.3)  # as after SIGSTOP
    gevent.sleep(0.001)
    mirror._confirmations.acknowledge(1)
    mirror._watching.kill()
    assert answers == [None]
    assert mirror.state is State.IN_SYNC


def test_files_on_the_way_when_the_connection_ends_are_compared_again(tmp_path):
    changes = Changes()
    folder = tmp_path / "nsq_compat" / "t.topic"
    folder.mkdir(parents=True)
    for number in (1, 2):
        (folder / f"log.{number:020}").write_bytes(b"m")
    mirror = mirror_of(changes, tmp_path)

    class Session:
        def ask(self, request, answer):
            answer.set(b"{}")

        def ask_to_apply(self, some, answer):
            answer.set_exception(Ended("closed"))

    session: Any = Session()
    with pytest.raises(Ended):
        mirror._copy(session)
    assert changes.equal == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"adopted": {"../../elsewhere": [0, ""]}},
        {"adopted": {"a b\nREGISTER c": [0, ""]}},
        {"adopted": {"t": [0, ""]}, "channels": {"t": ["c", "../c"]}},
        {"adopted": {"t": [0, ""]}, "channels": {"t": [1]}},
        {"adopted": {"t": [0, ""]}, "channels": {"t": "c"}},
        {"adopted": {"t": ["0", ""]}},
        {"adopted": {"t": 0}},
    ],
)
def test_what_a_standby_cannot_have_taken_over_is_not_created(tmp_path, wrong):
    mirror = mirror_of(Changes(), tmp_path)
    forgotten: list[object] = []
    mirror._forget = forgotten.append
    mirror._identity.may_lack_files = True
    with pytest.raises(ValueError, match="in a way that no nsqd does"):
        mirror._forget_adopted(cast(Any, None), {"identity": "s", "takeover": "1", **wrong})
    assert not forgotten
    assert not mirror._identity.forgotten


@pytest.mark.parametrize("verb", ["hello", "ends", "files"])
def test_an_answer_of_the_wrong_shape_ends_the_connection(tmp_path, verb, caplog):
    mirror = mirror_of(Changes(), tmp_path)
    mirror._identity.ends = {}

    class Session:
        def ask(self, request, answer):
            answer.set(b"[1]" if request.startswith(f"MIRROR {verb}\n".encode()) else b"{}")

    (tmp_path / "nsq_compat").mkdir()
    failures: list[str] = []
    mirror._fail = failures.append
    mirror._complete(cast(Any, Session()))
    assert failures == ["the standby's answer is not an object"]
    assert "internal error" not in caplog.text

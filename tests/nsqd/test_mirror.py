"""The connection to the standby: why it was not reached, and what happens while it ends."""

import socket
from typing import Any

import pytest

from nsq_compat.client.settings import ConnectionSettings
from nsq_compat.log.files import OsFiles
from nsq_compat.log.identity import Identity
from nsq_compat.log.mirrored_files import Changes
from nsq_compat.nsqd.mirror import Mirror, State, _why


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


def test_nothing_is_confirmed_while_a_lost_connection_is_closed(tmp_path):
    changes = Changes()
    mirror = Mirror(
        "127.0.0.1:4150", ConnectionSettings(), files=OsFiles(), data_path=str(tmp_path), changes=changes,
        identity=Identity("a"), refuses=False, timeout=60.0, describe=dict, forget=lambda adopted: None,
    )  # fmt: skip
    seen = []

    class Link:
        def close(self):  # others run meanwhile, and publish
            seen.append(mirror.state)

    link: Any = Link()
    mirror.state = State.IN_SYNC
    mirror._leave(link)
    assert seen == [State.GONE]
    assert mirror.state_of_standby()["state"] == "not connected"

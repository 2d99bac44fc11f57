from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol import command_writer as write
from nsq_compat.protocol import commands as table
from nsq_compat.protocol.command_reader import CommandReader, Finish, Publish, SimpleCommand
from nsq_compat.protocol.commands import COMMANDS, CommandSpec
from nsq_compat.protocol.identify import IdentifyRequest, decode_identify
from nsq_compat.protocol.schema import MPUB_BODY

bodies = st.binary(min_size=1, max_size=100)
ids = st.binary(min_size=16, max_size=16).filter(lambda id: not set(id) & set(b"\n\r "))


def read(data: bytes) -> list[Finish | Publish | SimpleCommand]:
    def admit(tokens: Sequence[bytes]) -> CommandSpec:
        return COMMANDS[tokens[0]]

    return list(CommandReader(admit, max_msg_size=1 << 20, max_body_size=5 << 20).receive_data(data))


@pytest.mark.parametrize(
    ("data", "spec", "tokens"),
    [
        (write.NOP, table.NOP, [b"NOP"]),
        (write.CLS, table.CLS, [b"CLS"]),
        (write.ready(2500), table.RDY, [b"RDY", b"2500"]),
        (write.subscribe("t", "c#ephemeral"), table.SUB, [b"SUB", b"t", b"c#ephemeral"]),
        (write.requeue(b"0123456789abcdef", 90_000), table.REQ, [b"REQ", b"0123456789abcdef", b"90000"]),
        (write.touch(b"0123456789abcdef"), table.TOUCH, [b"TOUCH", b"0123456789abcdef"]),
    ],
)
def test_the_command_reader_reads_the_lines(data, spec, tokens):
    (line,) = read(data)
    assert isinstance(line, SimpleCommand)
    assert (line.spec, list(line.tokens)) == (spec, tokens)


@given(st.lists(ids, min_size=1))
def test_the_command_reader_reads_fins_as_one_run(finished):
    (run,) = read(write.finish(finished))
    assert isinstance(run, Finish)
    assert list(run.ids) == finished


@given(bodies, st.integers(0, 3_600_000))
def test_the_command_reader_reads_the_messages(body, delay_ms):
    published, deferred = read(write.publish("t", body) + write.publish_deferred("t", body, delay_ms))
    assert isinstance(published, Publish)
    assert isinstance(deferred, SimpleCommand)
    assert list(published.bodies) == [body]
    assert (deferred.body, deferred.tokens[2]) == (body, b"%d" % delay_ms)


@given(st.lists(bodies, min_size=1, max_size=20))
def test_an_mpub_has_the_declared_layout(together):
    data = write.publish_many("t", together)
    (command,) = read(data)
    assert isinstance(command, Publish)
    assert list(command.bodies) == together
    assert data.removeprefix(b"MPUB t\n") == MPUB_BODY.build({"bodies": together})


def test_identify_and_auth_are_read():
    request = IdentifyRequest(client_id="c", hostname="h", feature_negotiation=True, heartbeat_interval=1000)
    identify, auth = read(write.identify(request) + write.auth(b"secret"))
    assert isinstance(identify, SimpleCommand)
    assert isinstance(auth, SimpleCommand)
    assert decode_identify(identify.body) == request
    assert auth.body == b"secret"

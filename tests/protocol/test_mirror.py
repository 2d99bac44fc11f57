"""Changes of files: the fast codec agrees with the declaration, and any bytes lead to changes or to ``ValueError``.

The same is true of a standby's answers.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol import mirror
from nsq_compat.protocol.mirror import Change, command, decode_changes, ends_in, object_in, sizes_in, sums_in

KINDS = range(mirror.WRITE, mirror.REMOVE_FOLDER + 1)
changes = st.builds(
    Change, st.sampled_from(KINDS), st.text(max_size=20), st.integers(0, 1 << 60), st.binary(max_size=50)
)


@given(changes)
def test_a_change_is_encoded_as_declared(change):
    declared = mirror.CHANGE.parse(change.encode())
    path = change.path.encode()
    assert (declared.kind, declared.path, declared.offset, declared.data) == (
        change.kind,
        path,
        change.offset,
        change.data,
    )
    fields = {"kind": change.kind, "path_size": len(path), "offset": change.offset, "size": len(change.data)}
    assert mirror.CHANGE.build({**fields, "path": path, "data": change.data}) == change.encode()


@given(st.lists(changes, max_size=5))
def test_changes_are_decoded_in_order(some):
    body = b"".join(each.encode() for each in some)
    assert list(decode_changes(body)) == some


@given(st.lists(changes, min_size=1, max_size=3), st.data())
def test_a_body_that_ends_early_is_an_error(some, data):
    body = b"".join(each.encode() for each in some)
    ends = {len(b"".join(each.encode() for each in some[:count])) for count in range(len(some) + 1)}
    size = data.draw(st.integers(0, len(body)).filter(lambda size: size not in ends))
    with pytest.raises(ValueError, match="not complete"):
        list(decode_changes(body[:size]))


@given(st.binary(max_size=100))
def test_any_bytes_are_changes_or_an_error(body):
    try:
        found = list(decode_changes(body))
    except ValueError:
        return
    assert b"".join(each.encode() for each in found) == body


def test_a_command_has_its_body_behind_its_size():
    assert command("changes", b"abc") == b"MIRROR changes\n\0\0\0\3abc"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("read", [object_in, sizes_in, sums_in, ends_in])
@given(json_values.map(json.dumps).map(str.encode) | st.binary(max_size=20))
def test_any_answer_of_a_standby_is_of_its_shape_or_an_error(read, answer):
    try:
        found = read(answer)
    except ValueError:
        return
    if read is sums_in:
        assert all(type(each) is int for each in found)
    if read is sizes_in:
        assert all(type(size) is int for sizes in found.values() for size in sizes.values())
    if read is ends_in:
        assert all(len(end) == 3 and all(type(each) is int for each in end) for end in found.values())


@pytest.mark.parametrize(
    ("read", "answer"),
    [
        (object_in, b"[" * 100_000),
        (object_in, b"[]"),
        (object_in, b"OK"),
        (sizes_in, b'{"t.topic": []}'),
        (sizes_in, b'{"t.topic": {"log": "1"}}'),
        (sums_in, b"1"),
        (sums_in, b'["1"]'),
        (ends_in, b'{"t": [1, 2]}'),
        (ends_in, b'{"t": [1, 2, null]}'),
    ],
)
def test_an_answer_of_another_shape_is_an_error(read, answer):
    with pytest.raises(ValueError):  # noqa: PT011 - json has texts of its own
        read(answer)


def test_answers_of_a_standby():
    assert sizes_in(b'{"t.topic": {"log": 1}}') == {"t.topic": {"log": 1}}
    assert sums_in(b"[1, 2]") == [1, 2]
    assert ends_in(b'{"t": [1, 2, -1]}') == {"t": (1, 2, -1)}

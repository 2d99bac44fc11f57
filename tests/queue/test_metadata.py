"""nsqd.dat, in and out of Go's form."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol.go_json import JsonError
from nsq_compat.queue.files import OsFiles
from nsq_compat.queue.metadata import (
    ChannelMetadata,
    MetadataError,
    TopicMetadata,
    decode_metadata,
    encode_metadata,
    load_metadata,
    save_metadata,
)

names = st.from_regex(r"[.a-zA-Z0-9_-]{1,64}", fullmatch=True)
channels = st.builds(ChannelMetadata, names, st.booleans())
topics = st.builds(TopicMetadata, names, st.booleans(), st.lists(channels, max_size=3).map(tuple))


def test_the_form_is_gos_to_the_byte():
    assert encode_metadata([TopicMetadata("t", False, (ChannelMetadata("c", True),)), TopicMetadata("u", True)]) == (
        b'{"topics":[{"name":"t","paused":false,"channels":[{"name":"c","paused":true}]},'
        b'{"name":"u","paused":true,"channels":null}],"version":"1.3.0"}'
    )


def test_no_topics_are_null():
    assert encode_metadata([]) == b'{"topics":null,"version":"1.3.0"}'


def test_what_is_ephemeral_is_left_out():
    written = encode_metadata(
        [TopicMetadata("t", False, (ChannelMetadata("c#ephemeral"),)), TopicMetadata("u#ephemeral")]
    )
    assert decode_metadata(written) == (TopicMetadata("t"),)


@given(st.lists(topics, max_size=4))
def test_what_is_written_is_read_again(given_topics):
    assert decode_metadata(encode_metadata(given_topics)) == tuple(given_topics)


@pytest.mark.parametrize("data", [b"null", b"{}", b'{"topics":null}', b'{"topics":[],"extra":[1,{}]}'])
def test_nothing_is_no_topics(data):
    assert decode_metadata(data) == ()


def test_keys_match_in_any_case():
    assert decode_metadata(b'{"TOPICS":[{"Name":"t","PAUSED":true}]}') == (TopicMetadata("t", True),)


def test_names_that_are_not_legal_are_left_out_with_a_warning(caplog):
    data = b'{"topics":[null,{"name":"a b"},{"name":"t","channels":[{"name":"!"},{"name":"c"}]}]}'
    assert decode_metadata(data) == (TopicMetadata("t", False, (ChannelMetadata("c"),)),)
    assert caplog.messages == [
        "skipping creation of invalid topic ",
        "skipping creation of invalid topic a b",
        "skipping creation of invalid channel !",
    ]


@pytest.mark.parametrize(
    "data",
    [b"", b" \n", b"{", b"[]", b"3", b'"s"', b"{} x", b'{"topics":{}}', b'{"topics":[{"name":1}]}', b'{"version":1}',
     b'{"topics":[{"name":"t","paused":"yes"}]}', b'{"topics":["t"]}', b"\xff", b"[" * 100_000],
)  # fmt: skip
def test_anything_else_is_refused(data):
    with pytest.raises(JsonError):
        decode_metadata(data)


def test_a_missing_file_is_a_fresh_start(tmp_path):
    assert load_metadata(OsFiles(), str(tmp_path)) is None


def test_an_empty_file_is_not(tmp_path):
    (tmp_path / "nsqd.dat").write_bytes(b"")
    with pytest.raises(MetadataError) as caught:
        load_metadata(OsFiles(), str(tmp_path))
    assert str(caught.value) == f"failed to parse metadata in {tmp_path}/nsqd.dat - unexpected end of JSON input"


def test_a_file_that_cannot_be_read_says_why(tmp_path):
    (tmp_path / "nsqd.dat").mkdir()
    with pytest.raises(MetadataError, match="failed to read metadata from .*/nsqd.dat - is a directory"):
        load_metadata(OsFiles(), str(tmp_path))


def test_saving_replaces_the_file_for_its_owner_only(tmp_path):
    save_metadata(OsFiles(), str(tmp_path), [TopicMetadata("old")])
    save_metadata(OsFiles(), str(tmp_path), [TopicMetadata("t", True)])
    assert load_metadata(OsFiles(), str(tmp_path)) == (TopicMetadata("t", True),)
    assert os.listdir(tmp_path) == ["nsqd.dat"]
    assert os.stat(tmp_path / "nsqd.dat").st_mode & 0o777 == 0o600

"""What files are called, and that their names can be read back."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.tools.nsq_to_file.file_names import BadFormat, FileNames, Name, Recognized, datetime_text

DEFAULT = "<TOPIC>.<HOST><REV>.<DATETIME>.log"
MOMENT = time.struct_time((2026, 11, 21, 4, 5, 6, 0, 0, -1))
NOW_NS = int(time.mktime(MOMENT)) * 10**9


def names(filename_format=DEFAULT, datetime_format="%Y-%m-%d_%H", **options) -> FileNames:
    given = {"hostname": "vm.example.org", "pid": 77, "needs_revisions": True, "gzip": False}
    return FileNames.of(filename_format, datetime_format, **{**given, **options})


def test_every_token_has_its_value_and_the_revision_stays_open():
    name = names("<DATETIME>/<TOPIC>/<HOST>.<PID><REV>").name("orders", NOW_NS)
    assert name.with_revision(3) == "2026-11-21_04/orders/vm.77-000003"


def test_without_files_of_the_same_name_there_are_no_revisions():
    assert names(needs_revisions=False).name("t", NOW_NS) == Name("t.vm.2026-11-21_04.log")


def test_with_files_of_the_same_name_a_format_without_revisions_is_refused():
    with pytest.raises(BadFormat, match="missing <REV> in --filename-format when gzip, rotation, or work dir enabled"):
        names("<TOPIC>.log")


@pytest.mark.parametrize("given_format", ["<TOPIC><REV>", "<TOPIC><REV>.gz"])
def test_compressed_files_have_one_suffix(given_format):
    name = names(given_format, gzip=True).name("t", NOW_NS)
    assert name.with_revision(0) == "t-000000.gz"
    assert name.is_gzip


def test_the_host_can_be_named():
    name = names("<HOST><REV>", host_identifier="dc1-<SHORT_HOST>-<HOSTNAME>").name("t", NOW_NS)
    assert name.with_revision(0) == "dc1-vm-vm.example.org-000000"


def test_a_leading_slash_stays_below_the_folder():
    assert names("/a/<TOPIC><REV>").name("t", NOW_NS).with_revision(0) == "a/t-000000"


def test_a_topic_cannot_lead_out_of_the_folder():
    with pytest.raises(BadFormat, match="leads out"):
        names("<TOPIC>/x<REV>").name("..", NOW_NS)


@pytest.mark.parametrize(
    ("datetime_format", "text"),
    [
        ("%Y-%m-%d_%H", "2026-11-21_04"),
        ("%y%I%M%S%p", "26040506AM"),
        ("%B %b %A %a", "November Nov Saturday Sat"),
        ("100%% %j %", "100% %j %"),
        ("2006-01-02", "2006-01-02"),
        ("%%Y", "%Y"),
    ],
)
def test_dates_use_the_codes_of_nsq_and_other_text_stays(datetime_format, text):
    moment = time.struct_time((2026, 11, 21, 4, 5, 6, 5, 325, -1))
    assert datetime_text(datetime_format, int(time.mktime(moment)) * 10**9) == text


TOPICS = st.from_regex(r"\A[.a-zA-Z0-9_-]{1,10}(#ephemeral)?\Z").filter(lambda topic: topic not in (".", ".."))


@given(TOPICS, st.integers(0, 10**7), st.booleans())
def test_a_name_is_recognized(topic, revision, gzip):
    made = names("<TOPIC>/<PID>.<HOST><REV>.<DATETIME>.log<REV>", "%Y/%m", gzip=gzip)
    name = made.name(topic, NOW_NS)
    assert made.recognize(name.with_revision(revision)) == Recognized(topic, name, revision)


def test_a_name_of_another_process_is_recognized_with_or_without_compression():
    found = names("<TOPIC>.<HOST><REV>.<PID>.<DATETIME>").recognize("t.vm-000012.99.1999.gz")
    assert found == Recognized("t", Name("t.vm<REV>.99.1999.gz"), 12)


@pytest.mark.parametrize("path", ["t.other-000000.x.log", "t.vm.x.log", "t.vm-000000.x.log.tmp", "vm-000000.x.log"])
def test_names_of_other_programs_are_not_recognized(path):
    assert names().recognize(path) is None

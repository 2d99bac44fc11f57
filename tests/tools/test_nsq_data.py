"""The subcommands, on data paths written by hand."""

import base64
import errno
import json
import os
import subprocess
import sys
from itertools import repeat
from pathlib import Path

import pytest

from nsq_compat.godata.export import write_queue
from nsq_compat.godata.format import GoMessage
from nsq_compat.godata.reader import QueueReport, read_queue
from nsq_compat.godata.takeover import take_over
from nsq_compat.log.checkpoint import ChannelState, TopicState
from nsq_compat.log.data_path import DataPathLock, make_our_folder, topic_folder
from nsq_compat.log.files import OsFiles
from nsq_compat.log.metadata import ChannelMetadata, TopicMetadata, load_metadata, save_metadata
from nsq_compat.log.topic_log import TopicLog
from nsq_compat.protocol import message
from nsq_compat.protocol.headers import encode
from nsq_compat.protocol.message import MessageIds
from nsq_compat.tools.nsq_data import Findings, TopicFindings, _ReadOnly, as_text, check
from nsq_compat.tools.nsq_data import run as run_words
from tests.broker import DataPath
from tests.log.test_last_release import extract

NOW_NS = 1_700_000_000_000_000_000
IDS = list(map(MessageIds(1).take_one, repeat(NOW_NS, 10)))
TOPICS = (TopicMetadata("t", False, (ChannelMetadata("c", True),)), TopicMetadata("idle", True))


def stored(body):
    return GoMessage(NOW_NS, 0, IDS[int(body)], body)


def go_has(folder, queue, *bodies):
    write_queue(OsFiles(), str(folder), queue, map(stored, bodies), 1 << 20)


def bodies_of(folder, queue):
    return [each.body for each in read_queue(OsFiles(), str(folder), queue)]


@pytest.fixture
def nsq_data(tmp_path, capsys):
    """Runs a subcommand on `tmp_path`: exit code, lines of stdout, stderr."""

    def run_it(name, *flags, folder=tmp_path):
        code = run_words([name, f"--data-path={folder}", *flags])
        captured = capsys.readouterr()
        return code, captured.out.splitlines(), captured.err

    return run_it


@pytest.fixture
def go_path(tmp_path):
    """A data path of Go's with two queues and an nsqd.dat."""
    go_has(tmp_path, "t:c", b"1", b"2")
    go_has(tmp_path, "t", b"3")
    save_metadata(OsFiles(), str(tmp_path), TOPICS)
    return tmp_path


@pytest.fixture
def our_path(go_path):
    """The same, imported."""
    make_our_folder(OsFiles(), str(go_path))
    take_over(OsFiles(), str(go_path), 1 << 20)
    return go_path


def snapshot(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


# --- Any subcommand ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["unknown"], ["--json"]])
def test_an_unknown_subcommand_is_wrong_usage(words, capsys):
    assert run_words(words) == 2
    assert "check|export|salvage" in capsys.readouterr().err


def test_help_describes_the_subcommands(capsys):
    assert run_words(["--help"]) == 0
    assert "nsq_data export  --data-path=..." in capsys.readouterr().out


@pytest.mark.parametrize("name", ["check", "export", "salvage"])
def test_an_unknown_flag_is_wrong_usage(name, capfd):
    with pytest.raises(SystemExit) as caught:
        run_words([name, "--bogus"])
    assert caught.value.code == 2
    assert f"Usage of nsq_data {name}:" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["check", "export", "salvage"])
def test_words_behind_the_flags_and_a_data_path_in_use_are_refused(name, nsq_data, tmp_path):
    assert nsq_data(name, "what")[0] == 2
    with DataPathLock(str(tmp_path)):
        code, _, complaint = nsq_data(name)
    assert (code, "possibly in use by another instance of nsqd" in complaint) == (2, True)


def test_a_missing_data_path_is_refused(nsq_data, tmp_path):
    code, _, complaint = nsq_data("check", folder=tmp_path / "no")
    assert code == 2
    assert "no such file or directory" in complaint


@pytest.mark.parametrize("name", ["check", "export", "salvage"])
def test_a_folder_that_no_nsqd_has_used_is_called_so(name, nsq_data, tmp_path):
    (tmp_path / "notes").touch()
    code, lines, complaint = nsq_data(name)
    assert (code, lines) == (1, [])
    assert complaint == f"nsq_data: {tmp_path} is no data path: no nsqd, ours or Go's, has left a file in it\n"
    assert os.listdir(tmp_path) == ["notes"]


def test_it_runs_as_a_program(run, go_path):
    done = run("nsq_data", "check", f"--data-path={go_path}")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.endswith(b"clean\n")


def test_a_reader_that_closes_its_end_is_not_an_error(tmp_path):
    write_queue(OsFiles(), str(tmp_path), "t", [stored(b"1")] * 20_000, 1 << 30)
    os.rename(tmp_path / "t.diskqueue.000000.dat", tmp_path / "t.diskqueue.000000.dat.bad")
    command = f"{Path(sys.executable).with_name('nsq_data')} salvage --data-path={tmp_path} | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, check=False)
    assert done.stderr == b""
    assert done.stdout.count(b"\n") == 1


# --- check ------------------------------------------------------------------------------------------------------------


def test_gos_queues_are_counted(go_path, nsq_data):
    code, lines, _ = nsq_data("check")
    assert code == 0
    assert lines == [
        f"data path {go_path}",
        "nsqd.dat: 2 topics, 1 channel",
        "Go's queue t: 1 message of 1 byte",
        "Go's queue t:c: 2 messages of 2 bytes",
        "clean",
    ]


def test_our_topics_are_counted_and_checking_changes_nothing(our_path, nsq_data):
    go_has(our_path, "u", b"4")
    with open(os.path.join(topic_folder(str(our_path), "t"), "log.00000000000000000001"), "ab") as file:
        file.write(bytes(100))  # as if it had not been closed
    before = snapshot(our_path)
    code, lines, _ = nsq_data("check")
    assert (code, "  c: depth 3" in lines, lines[-1]) == (0, True, "clean")
    assert snapshot(our_path) == before


def test_damage_in_gos_files_is_found(go_path, nsq_data):
    with open(go_path / "t.diskqueue.000000.dat", "ab") as file:
        file.write(b"\xff" * 50)
    (go_path / "t.diskqueue.000007.dat.bad").touch()
    code, lines, _ = nsq_data("check")
    assert code == 1
    assert "  damaged: t.diskqueue.000000.dat at 31, 50 bytes: no message begins here" in lines
    assert "  ignored: t.diskqueue.000007.dat.bad" in lines
    assert lines[-1] == "damaged"


def test_damage_in_our_files_is_found(our_path, nsq_data):
    path = os.path.join(topic_folder(str(our_path), "t"), "log.00000000000000000001")
    with open(path, "r+b") as file:
        file.seek(file.read().index(IDS[3]))
        file.write(b"??????????")
    code, lines, _ = nsq_data("check")
    assert code == 1
    assert any(line.startswith("  damaged:") for line in lines)


@pytest.mark.parametrize("name", ["check", "export"])
def test_a_damaged_checkpoint_is_found(our_path, nsq_data, name):
    with open(os.path.join(topic_folder(str(our_path), "t"), "checkpoint"), "r+b") as file:
        file.write(b"garbage")
    code, lines, _ = nsq_data(name)
    assert code == 1
    assert any("checkpoint is damaged" in line for line in lines)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "unexpected end of JSON input"),
        (
            b'{"topics":[{"name":"a b"},{"name":"t","paused":3}]}',
            "topic 1 has the invalid name 'a b'; topic 2: paused is not a boolean",
        ),
    ],
)
def test_a_damaged_nsqd_dat_is_found(go_path, nsq_data, content, problem):
    (go_path / "nsqd.dat").write_bytes(content)
    code, lines, _ = nsq_data("check")
    assert (code, lines[-1]) == (1, "damaged")
    assert lines[1].endswith(problem)


def test_all_findings_are_available_as_json(our_path, nsq_data):
    go_has(our_path, "u", b"4")
    (our_path / "u.diskqueue.000007.dat.bad").touch()
    code, (line,), _ = nsq_data("check", "--json")
    found = json.loads(line)
    topic = {"name": "t", "bytes": found["topics"][0]["bytes"], "depths": {"c": 3}, "damaged_records": 0}
    topic |= {"first_offset": 0, "next_offset": 3, "gaps": [], "old_files": 0}
    queue = {"name": "u", "messages": 1, "bytes": 1, "claimed_depth": 1, "unsynced": 0, "damaged_parts": 0}
    assert (code, found) == (
        0,
        {
            "data_path": str(our_path),
            "damaged": False,
            "metadata_error": None,
            "metadata": [
                {"name": "t", "paused": False, "channels": [{"name": "c", "paused": True}]},
                {"name": "idle", "paused": True, "channels": []},
            ],
            "bad_files": 1,
            "go_queues": [{**queue, "damaged_bytes": 0, "damages": [], "ignored": ["u.diskqueue.000007.dat.bad"]}],
            "topics": [{**topic, "damages": [], "problems": []}],
            "mirrors": [],
        },
    )


def test_damage_is_available_as_json(go_path, nsq_data):
    (go_path / "t.diskqueue.000000.dat").write_bytes(b"")
    code, (line,), _ = nsq_data("check", "--json")
    damages = json.loads(line)["go_queues"][0]["damages"]
    assert (code, damages[0].keys()) == (1, {"file", "offset", "size", "reason"})


def text(findings):
    return list(as_text(findings))[1:]


def test_an_empty_folder_is_clean(tmp_path):
    assert text(check(str(tmp_path))) == ["nsqd.dat: 0 topics, 0 channels", "clean"]


@pytest.mark.parametrize(
    ("findings", "lines"),
    [
        (
            {"go_queues": [QueueReport("t", claimed_depth=5, messages=7, bytes=70, unsynced=2)]},
            ["Go's queue t: 7 messages of 70 bytes, Go counted 5, 2 of them not yet in its positions", "clean"],
        ),
        (
            {"go_queues": [QueueReport("t", messages=1, bytes=1)]},
            ["Go's queue t: 1 message of 1 byte, no positions", "clean"],
        ),
        ({"bad_files": 1}, ["1 file set aside by Go as bad; nsq_data salvage lists what is in them", "clean"]),
        (
            {
                "topics": [
                    TopicFindings("t", bytes=9, depths={"": 1, "c": 2}, damaged_records=1, problems=["something"])
                ]
            },
            [
                "topic t: 9 bytes",
                "  (no channel): depth 1",
                "  c: depth 2",
                "  damaged: 1 message",
                "  something",
                "damaged",
            ],
        ),
    ],
)
def test_findings_are_told_in_lines(findings, lines):
    assert text(Findings("/", **findings))[1:] == lines


def test_more_damage_than_is_listed_is_counted():
    report = QueueReport("t", claimed_depth=0)
    for offset in range(103):
        report.add_damage("file", offset, 0, "gone")
    lines = text(Findings("/", go_queues=[report]))
    assert lines[2] == "  damaged: file at 0: gone"
    assert lines[-2:] == ["  damaged: 3 more", "damaged"]


def stored_topic(data_path, count):
    """A topic of that many messages with a channel that has finished none of them."""
    make_our_folder(OsFiles(), str(data_path))
    log = TopicLog(OsFiles(), topic_folder(str(data_path), "t"))
    for number in range(count):
        log.append(message.make_frames([b"%016x" % number], 0, [b"x" * 20]), number)
    end = log.end
    log.close()
    folder = data_path / "nsq_compat" / "t.topic"
    (folder / "checkpoint").write_bytes(TopicState(end, 0.0, b"f" * 16, {"c": ChannelState(0)}).encode())
    return folder / "log.00000000000000000001", end


def test_a_log_that_is_shorter_than_its_checkpoint_is_damaged(tmp_path):
    path, end = stored_topic(tmp_path, 100)
    assert not check(str(tmp_path)).damaged
    path.write_bytes(path.read_bytes()[: end.offset // 2])
    findings = check(str(tmp_path))
    lost = findings.topics[0].damaged_records
    assert findings.damaged
    assert findings.topics[0].depths == {"c": 100 - lost}
    assert text(findings)[1:] == [
        f"topic t: {end.offset // 2} bytes",
        "  offsets 0 to 99",
        f"  no messages from offset {100 - lost} to 99",
        f"  c: depth {100 - lost}",
        f"  damaged: {lost} messages",
        f"  {path.name}: has {end.offset // 2} bytes; the checkpoint says that it has {end.offset}",
        f"  {path.name}: damaged at its end, {lost} messages lost",
        "damaged",
    ]


def mirrored_topic(data_path, identity, count, state):
    """A copy with a topic of that many messages."""
    copy = data_path / "nsq_compat" / "mirrors" / identity
    copy.mkdir(parents=True)
    (copy / "mirror.json").write_text(state)
    return stored_topic(copy, count)


def test_copies_of_other_nsqds_are_checked_and_named(our_path, nsq_data):
    state = '{"broadcast_address": "n1", "tcp_port": 4150, "is_complete": true}'
    mirrored_topic(our_path, "a" * 32, 3, state)
    mirrored_topic(our_path, "b" * 32, 4, "damaged")
    code, lines, _ = nsq_data("check")
    assert (code, lines[-1]) == (0, "clean")
    copies = our_path / "nsq_compat" / "mirrors"
    first = lines.index(f"  copy of n1:4150 {copies / ('a' * 32)}")
    second = lines.index(f"  copy of an unknown primary {copies / ('b' * 32)}")
    assert (lines[first + 4], lines[second + 4]) == ("    c: depth 3", "    c: depth 4")
    code, (line,), _ = nsq_data("check", "--json")
    found = json.loads(line)["mirrors"]
    assert [(each["mirror_of"], each["damaged"]) for each in found] == [
        ("n1:4150", False),
        ("an unknown primary", False),
    ]
    assert [each["topics"][0]["depths"] for each in found] == [{"c": 3}, {"c": 4}]


def test_an_address_in_a_copy_does_not_control_the_terminal(our_path, nsq_data):
    mirrored_topic(our_path, "a" * 32, 3, '{"broadcast_address": "n1\\u001b[2J\\nclean", "tcp_port": 4150}')
    _, lines, _ = nsq_data("check")
    assert any(line.startswith(r"  copy of n1\x1b[2J\nclean:4150 /") for line in lines)
    assert all(map(str.isprintable, lines))


def test_a_damaged_copy_is_damage_of_the_data_path(our_path, nsq_data):
    path, end = mirrored_topic(our_path, "a" * 32, 100, '{"broadcast_address": "n1", "tcp_port": 4150}')
    path.write_bytes(path.read_bytes()[: end.offset // 2])
    code, lines, _ = nsq_data("check")
    assert (code, lines[-2:]) == (1, ["  damaged", "damaged"])
    code, (line,), _ = nsq_data("check", "--json")
    found = json.loads(line)
    assert (code, found["damaged"], found["mirrors"][0]["damaged"]) == (1, True, True)


def test_damage_among_messages_that_are_retained_is_found(tmp_path):
    path, _ = stored_topic(tmp_path, 100)
    content = bytearray(path.read_bytes())
    content[len(content) // 4 : len(content) // 4 + 20] = b"\xa5" * 20
    path.write_bytes(content)
    findings = check(str(tmp_path))
    assert any(line.startswith("  no messages from offset") for line in text(findings))


def test_files_of_an_earlier_version_are_named_and_not_changed(tmp_path):
    folder = extract(tmp_path) / "os" / "stopped"
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    lines = text(check(str(folder)))
    assert "  1 file of an earlier version, which nsqd migrates at its next start" in lines
    assert not any(line.startswith("  offsets") for line in lines)
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


def test_a_topic_that_cannot_be_read_is_reported_and_others_are_checked(tmp_path, monkeypatch):
    path, _ = stored_topic(tmp_path, 100)

    def fails(fd, size, offset):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(_ReadOnly, "pread", staticmethod(fails))
    monkeypatch.setattr("nsq_compat.log.checkpoint.read_file", lambda files, path: Path(path).read_bytes())
    findings = check(str(tmp_path))
    assert findings.damaged
    assert findings.topics[0].problems == [f"cannot be read: {path}: input/output error"]


# --- export -----------------------------------------------------------------------------------------------------------


def test_an_export_can_be_used_by_go(our_path, nsq_data):
    code, lines, _ = nsq_data("export")
    assert (code, lines) == (0, ["t:c: 3", f"3 messages written to {our_path}"])
    assert bodies_of(our_path, "t:c") == [b"1", b"2", b"3"]
    assert load_metadata(OsFiles(), str(our_path)) == TOPICS
    assert "nsq_compat" not in os.listdir(our_path)


def test_an_export_can_be_imported_again(our_path, nsq_data):
    nsq_data("export")
    make_our_folder(OsFiles(), str(our_path))
    take_over(OsFiles(), str(our_path), 1 << 20)
    nsq_data("export")
    assert bodies_of(our_path, "t:c") == [b"1", b"2", b"3"]


def test_an_export_counts_the_headers_that_it_leaves_out(tmp_path, nsq_data):
    make_our_folder(OsFiles(), str(tmp_path))
    ours = DataPath(OsFiles(), str(tmp_path))
    daemon = ours.start()
    daemon.channel("a", "t")
    daemon.channel("b", "t")
    daemon.topic("t").publish_with_headers([encode([("k", "v")]) + b"1"], daemon.now, daemon.now_ns)
    daemon.publishes(b"2", topic="t")
    ours.stop(daemon)
    code, lines, _ = nsq_data("export")
    left_out = [f"t:{channel}: 1 with headers, which are left out, because Go's nsqd has none" for channel in "ab"]
    assert (code, lines) == (0, ["t:a: 2", "t:b: 2", *left_out, f"4 messages written to {tmp_path}"])
    assert bodies_of(tmp_path, "t:a") == [b"1", b"2"]


def test_exporting_elsewhere_leaves_ours(our_path, nsq_data, tmp_path_factory):
    target = tmp_path_factory.mktemp("target")
    code, lines, _ = nsq_data("export", f"--to={target}")
    assert (code, lines[-1]) == (0, f"3 messages written to {target}")
    assert bodies_of(target, "t:c") == [b"1", b"2", b"3"]
    assert "nsq_compat" in os.listdir(our_path)


def test_attempts_are_those_of_the_deliveries_so_far(tmp_path, nsq_data):
    make_our_folder(OsFiles(), str(tmp_path))
    log = TopicLog(OsFiles(), topic_folder(str(tmp_path), "t"))
    (frame,) = message.make_frames([b"%016x" % 1], NOW_NS, [b"1"])
    log.append([message.with_attempts(frame, 3)], 0)
    log.close()
    assert nsq_data("export")[0] == 0
    (found,) = read_queue(OsFiles(), str(tmp_path), "t")
    assert found == GoMessage(NOW_NS, 2, b"%016x" % 1, b"1")
    assert load_metadata(OsFiles(), str(tmp_path)) == (TopicMetadata("t"),)


def test_a_data_path_of_gos_has_nothing_to_export(go_path, nsq_data):
    code, _, complaint = nsq_data("export")
    assert code == 2
    assert "already has queue files of Go's nsqd" in complaint


# --- salvage ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def bad_path(tmp_path):
    """Two bad files, one of them with garbage in the middle."""
    for queue, bodies in (("t", [b"1", b"2"]), ("u:c", [b"3"])):
        go_has(tmp_path, queue, *bodies)
        os.unlink(tmp_path / f"{queue}.diskqueue.meta.dat")
        os.rename(tmp_path / f"{queue}.diskqueue.000000.dat", tmp_path / f"{queue}.diskqueue.000004.dat.bad")
    path = tmp_path / "t.diskqueue.000004.dat.bad"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + b"\xff" * 9 + data[len(data) // 2 :])
    return tmp_path


def test_messages_in_bad_files_are_listed(bad_path, nsq_data):
    code, lines, said = nsq_data("salvage")
    assert code == 1
    assert lines[0] == f"t.diskqueue.000004.dat.bad {IDS[1].decode()} {NOW_NS} attempts=0 size=1"
    assert len(lines) == 3
    assert "2 files, 3 messages, 1 damaged parts" in said


def test_bodies_are_listed_as_json(bad_path, nsq_data):
    code, lines, _ = nsq_data("salvage", "--json", "--queue=u:c")
    (found,) = map(json.loads, lines)
    assert (code, base64.b64decode(found["body_base64"])) == (0, b"3")


def test_what_a_file_names_does_not_control_the_terminal(tmp_path, nsq_data):
    queue = "u\x1b[2J\x9b"
    write_queue(OsFiles(), str(tmp_path), queue, [GoMessage(NOW_NS, 0, b"\x1b[2J" + bytes(12), b"body")], 1 << 20)
    name = f"{queue}.diskqueue.000000.dat"
    os.rename(tmp_path / name, tmp_path / f"{name}.bad")
    (tmp_path / f"{queue}.diskqueue.000001.dat.bad").write_bytes(b"damaged")
    code, lines, said = nsq_data("salvage")
    assert code == 1
    assert all(line.isprintable() for line in (*lines, *said.splitlines()))
    assert lines[0].startswith(r"u\x1b[2J\x9b.diskqueue.000000.dat.bad \x1b[2J\x00")


def test_salvaging_into_a_queue_leaves_nothing_to_salvage_twice(bad_path, nsq_data):
    nsq_data("salvage", "--into=rescued")
    assert bodies_of(bad_path, "rescued") == [b"1", b"2", b"3"]
    assert nsq_data("salvage")[1] == []
    assert (bad_path / "u:c.diskqueue.000004.dat.bad.salvaged").exists()


def test_salvaging_into_a_queue_that_exists_is_refused(bad_path, nsq_data):
    go_has(bad_path, "t", b"9")
    code, _, complaint = nsq_data("salvage", "--into=t")
    assert code == 2
    assert "exists already" in complaint
    assert bodies_of(bad_path, "t") == [b"9"]


@pytest.mark.parametrize("name", ["a b", "t:", "t:c:d", "../x"])
def test_a_name_that_is_not_legal_is_refused(name, bad_path, nsq_data):
    assert nsq_data("salvage", f"--into={name}")[0] == 2


def test_without_bad_files_salvage_does_nothing(our_path, nsq_data):
    before = snapshot(our_path)
    assert nsq_data("salvage", "--into=t") == (0, [], "there are no bad files of Go's nsqd to salvage\n")
    assert snapshot(our_path) == before


def test_for_a_damaged_log_of_ours_salvage_says_what_nsqd_delivers(tmp_path, nsq_data):
    path, end = stored_topic(tmp_path, 100)
    path.write_bytes(path.read_bytes()[: end.offset // 2])
    lost = check(str(tmp_path)).topics[0].damaged_records
    code, lines, said = nsq_data("salvage")
    assert (code, lines) == (1, [])
    assert f"topic t: {lost} messages damaged" in said
    assert said.endswith(f"; start nsqd, which skips the damage and delivers the rest: c {100 - lost}\n")
    assert nsq_data("salvage", "--queue=u")[0] == 0

import io
import json
import logging
import os
import re
import socket
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.cli import logs
from nsq_compat.cli.logs import (
    DEBUG,
    ERROR,
    FATAL,
    INFO,
    JSON,
    WARN,
    JsonHandler,
    LineHandler,
    configure,
    log_fatal,
    set_level,
)
from nsq_compat.protocol.errors import one_line

STAMP = r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6}"


@pytest.fixture
def root_logger():
    """Whatever a test configures is gone after it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    switches = {name: getattr(logging, name) for name in ("logThreads", "logProcesses", "logMultiprocessing")}
    yield root
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        handler.close()
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)
    for name, value in switches.items():
        setattr(logging, name, value)


@pytest.fixture
def log_file(tmp_path, root_logger):
    """A file that all logging goes to, as a function that reads its lines."""
    path = tmp_path / "log"
    with path.open("wb") as file:
        configure("[nsqd] ", INFO, file.fileno())
    return lambda: path.read_text(encoding="utf-8").splitlines(keepends=True)


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


@pytest.fixture
def handler_on(request):
    """Makes handlers that are closed after the test."""

    def make(fd):
        handler = LineHandler("[t] ", fd)
        request.addfinalizer(handler.close)
        return handler

    return make


def read_all(fd):
    os.set_blocking(fd, False)
    data = b""
    while True:
        try:
            piece = os.read(fd, 1 << 20)
        except BlockingIOError:
            return data
        if not piece:
            return data
        data += piece


def test_a_level_has_a_name_in_any_case():
    names = {"debug": DEBUG, "INFO": INFO, "Warn": WARN, "error": ERROR, "fatal": FATAL}
    assert {name: logs.parse_log_level(name) for name in names} == names


@pytest.mark.parametrize("name", ["warning", "", "1", "loud", "critical"])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        logs.parse_log_level(name)
    assert str(caught.value) == f"invalid log level '{name}' (debug, info, warn, error, fatal)"


def test_a_line_has_prefix_time_level_and_text(log_file):
    logging.getLogger("nsq_compat.queue.topic").info("TOPIC(%s): new channel(%s)", "orders", "archive")
    (line,) = log_file()
    assert re.fullmatch(rf"\[nsqd\] {STAMP} INFO: TOPIC\(orders\): new channel\(archive\)\n", line)


def test_the_time_is_local_and_has_six_digits_behind_the_point(pipe, handler_on):
    handler = handler_on(pipe[1])
    local = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(1_700_000_000))
    assert handler.line(1_700_000_000 + 2**-13, INFO, "x") == f"[t] {local}.000122 INFO: x\n"
    assert handler.line(1_700_000_000.5, INFO, "x") == f"[t] {local}.500000 INFO: x\n"


def test_levels_are_shown_by_nsq_s_names(log_file):
    set_level(DEBUG)
    logger = logging.getLogger("nsq_compat")
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL, 25, 5, 99):
        logger.log(level, "x")
    shown = [line.split()[3] for line in log_file()]
    assert shown == ["DEBUG:", "INFO:", "WARNING:", "ERROR:", "FATAL:", "INFO:", "FATAL:"]  # 5 is below DEBUG


def test_the_level_can_change_at_run_time(log_file):
    logger = logging.getLogger("nsq_compat.net")
    logger.debug("not yet")
    set_level(DEBUG)
    logger.debug("now")
    set_level(FATAL)
    logger.error("no more")
    assert [line.split()[-1] for line in log_file()] == ["now"]


def test_configuring_again_replaces_the_earlier_configuration(log_file, pipe, root_logger):
    configure("[other] ", INFO, pipe[1])
    logging.getLogger().info("x")
    assert log_file() == []
    assert read_all(pipe[0]).startswith(b"[other] ")
    assert len(root_logger.handlers) == 1


def test_a_newline_in_a_message_does_not_make_a_line(log_file):
    logging.getLogger().info("topic %s", "x\r\n[nsqd] 2024/01/01 00:00:00.000000 INFO: forged\x1b[2J")
    (line,) = log_file()
    assert line.endswith(r"topic x\r\n[nsqd] 2024/01/01 00:00:00.000000 INFO: forged\x1b[2J" + "\n")


def test_a_traceback_follows_its_line_indented(log_file):
    try:
        raise ValueError("bad\n[nsqd] 2024/01/01 00:00:00.000000 INFO: forged")
    except ValueError:
        logging.getLogger().exception("it failed")
    first, *others = log_file()
    assert first.endswith("ERROR: it failed\n")
    assert others[0] == "    Traceback (most recent call last):\n"
    assert all(line.startswith("    ") for line in others)


def test_a_record_can_have_a_stack(log_file):
    logging.getLogger().info("here", stack_info=True)
    assert log_file()[1] == "    Stack (most recent call last):\n"


def test_another_handler_can_format_a_record(log_file):
    handler, text = (
        logging.StreamHandler(io.StringIO()),
        "%(levelname)s %(filename)s:%(lineno)d %(threadName)s %(message)s",
    )
    handler.setFormatter(logging.Formatter(text))
    logging.getLogger().addHandler(handler)
    try:
        logging.getLogger().info("%(count)d of %(all)d", {"count": 1, "all": 2})
    finally:
        logging.getLogger().removeHandler(handler)
    assert handler.stream.getvalue() == "INFO :0 None 1 of 2\n"
    assert log_file()[0].endswith(" INFO: 1 of 2\n")


def test_a_wrong_log_call_is_logged_and_does_not_raise(pipe, handler_on):
    wrong = {"levelno": logging.INFO, "msg": "%d messages", "args": ("many",)}
    handler_on(pipe[1]).handle(logging.makeLogRecord(wrong))
    line = read_all(pipe[0]).decode()
    assert line.endswith(" ERROR: a log call failed (TypeError): %d messages\n")


def test_a_message_that_cannot_be_formatted_does_not_raise(pipe, handler_on):
    class Unprintable:
        def __str__(self):
            raise RuntimeError("no")

        __repr__ = __str__

    handler_on(pipe[1]).handle(logging.makeLogRecord({"levelno": logging.INFO, "msg": Unprintable()}))
    assert read_all(pipe[0]).endswith(b" ERROR: a log call failed (RuntimeError): Unprintable\n")


def test_text_that_is_not_unicode_is_escaped(log_file):
    logging.getLogger().info("%s %s", "\u00e9\u6f22", "\udcff")
    assert log_file()[0].endswith("INFO: \u00e9\u6f22 \\udcff\n")


@given(st.text())
def test_one_line_is_printable_and_leaves_printable_text_alone(text):
    line = one_line(text)
    assert line.isprintable()
    assert (line == text) == text.isprintable()


@given(st.text(st.characters(exclude_categories=())))
def test_any_message_is_one_line_in_either_format(text):
    plain, as_json = (make("[t] ", os.open(os.devnull, os.O_WRONLY)) for make in (LineHandler, JsonHandler))
    for handler in (plain, as_json):
        handler.close()
        line = handler.line(1.5, INFO, text)
        assert line.splitlines() == [line[:-1]]
    assert json.loads(as_json.line(1.5, INFO, text))["message"] == text


def test_logging_to_a_closed_descriptor_does_nothing_even_when_the_number_is_used_again(handler_on, tmp_path):
    with (tmp_path / "data").open("wb") as data:
        number = os.dup(data.fileno())
        os.close(number)
        handler = handler_on(number)
        os.dup2(data.fileno(), number)
        handler.write("x\n")
        handler.flush()
        os.close(number)
    assert (tmp_path / "data").read_bytes() == b""


@pytest.mark.parametrize("late", [False, True])
def test_logging_survives_a_reader_that_has_gone_before_or_later(handler_on, late, monkeypatch):
    monkeypatch.setattr(logs, "MAX_FLUSH_SECONDS", 60.0)
    reader, writer = os.pipe()
    if not late:
        os.close(reader)
    handler = handler_on(writer)
    if late:
        os.close(reader)
    started = time.monotonic()
    for _ in range(100):
        handler.write("x\n")
    handler.flush()
    assert time.monotonic() - started < logs.MAX_FLUSH_SECONDS
    os.close(writer)


def test_logging_does_not_wait_for_a_reader_that_does_not_read(pipe, handler_on):
    reader, writer = pipe
    handler = handler_on(writer)
    for _ in range(3000):  # more than a pipe and the backlog hold
        handler.write("x" * 999 + "\n")
    assert os.get_blocking(writer), "the pipe is shared with others, who write to it in their own way"
    assert read_all(reader).startswith(b"x" * 999 + b"\n")


def test_logging_does_not_wait_for_a_socket(handler_on):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        handler = handler_on(ours.fileno())
        for _ in range(3000):
            handler.write("x" * 999 + "\n")
        assert ours.getblocking()
        assert theirs.recv(10) == b"x" * 10


def test_lines_that_a_slow_reader_missed_are_counted_and_reported(pipe, handler_on):
    reader, writer = pipe
    handler = handler_on(writer)
    for number in range(3000):
        handler.write(f"{number:0999d}\n")
    seen = b""
    while (piece := read_all(reader)) or b"lost" not in seen:
        seen += piece
        handler.write("")
    *lines, notice = seen.decode().splitlines()
    assert [int(line) for line in lines] == list(range(len(lines))), "what was kept is in order"
    assert re.fullmatch(
        rf"\[t\] {STAMP} WARNING: {3000 - len(lines)} log lines were lost: their reader was too slow", notice
    )


def test_a_program_that_ends_gives_a_slow_reader_time_for_the_last_lines():
    program = (
        "import logging; from nsq_compat.cli.logs import configure, INFO; configure('[t] ', INFO)\n"
        "for n in range(2000): logging.getLogger().info('%0100d', n)\n"
        "print('done', flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()  # by now the pipe is full: it holds less than these lines
        lines = process.stderr.read().splitlines()
    assert [int(line.split()[-1]) for line in lines] == list(range(2000))


def test_a_full_disk_loses_lines_and_nothing_else(handler_on):
    with open("/dev/full", "wb", buffering=0) as full:
        handler = handler_on(full.fileno())
        handler.write("x\n")
        handler.flush()


def test_a_fatal_line_needs_no_configuration(pipe):
    log_fatal("[nsqd] ", "no room", pipe[1])
    assert re.fullmatch(rf"\[nsqd\] {STAMP} FATAL: no room\n", read_all(pipe[0]).decode())


def test_descriptors_are_closed(pipe):
    before = os.listdir("/proc/self/fd")
    left, right = socket.socketpair()
    with left, right, open(os.devnull, "wb") as null:
        for fd in (pipe[1], left.fileno(), null.fileno()):
            handler = LineHandler("", fd)
            handler.write("x\n")
            handler.close()
            handler.write("ignored\n")
    assert os.listdir("/proc/self/fd") == before


# --- JSON -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def json_file(tmp_path, root_logger):
    """A file that all logging goes to in JSON, as a function that reads it."""
    path = tmp_path / "log"
    with path.open("wb") as file:
        configure("[nsqd] ", INFO, file.fileno(), JSON)
    return lambda: [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


def test_a_record_in_json_is_an_object_on_a_line_of_its_own(json_file):
    logging.getLogger("queue").warning("topic(%s)\nFATAL: no", "t\u00e9")
    [line] = json_file()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line.pop("time"))
    assert line == {
        "level": "WARNING",
        "prefix": "[nsqd]",
        "message": "topic(t\u00e9)\nFATAL: no",
        "logger": "queue",
    }


def test_a_traceback_in_json_stays_with_its_record(json_file):
    try:
        raise ValueError("bad")
    except ValueError:
        logging.getLogger().exception("it failed", stack_info=True)
    [line] = json_file()
    assert line["traceback"].startswith("Traceback ")
    assert line["traceback"].endswith("ValueError: bad\n")
    assert "test_logs" in line["stack"]


def test_a_wrong_log_call_is_logged_in_json_too(pipe, request):
    handler = JsonHandler("[t] ", pipe[1])
    request.addfinalizer(handler.close)
    handler.handle(logging.makeLogRecord({"levelno": logging.INFO, "msg": "%d", "args": ("x",)}))
    line = json.loads(read_all(pipe[0]))
    assert (line["level"], line["message"]) == ("ERROR", "a log call failed (TypeError): %d")


def test_the_fatal_line_has_the_form_that_was_configured(json_file, capfd):
    log_fatal("[nsqd] ", "no room")
    [line] = capfd.readouterr().err.splitlines()
    assert json.loads(line)["message"] == "no room"

"""The report of ``conformance/run`` on a correct nsqd, a failing one, and both together."""

import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nsq_conformance.behaviours.limits import LIMITS
from nsq_conformance.certificates import Certificates
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess
from nsq_conformance.outcomes import DIFFERS, FAILS, LEFT_OUT, PASSES, Outcome, named
from nsq_conformance.report import Row, as_html, as_markdown, as_text, rows

# These tests run pytest in a process.
pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parent.parent
VERSION = "behaviours/test_shutdown.py::test_the_version_is_that_of_nsq"
PING = "behaviours/test_http.py::test_ping_says_ok_as_plain_text"
BACKWARDS = "behaviours/test_publish.py::test_an_mpub_is_answered_once_and_arrives_in_order"
REFUSED = "behaviours/test_http.py::test_refused"


def outcome(behaviour: str, what: str, difference: str = "") -> Outcome:
    return Outcome("publish", behaviour, what, difference, 0.1)


@pytest.mark.parametrize(
    ("node", "group", "behaviour"),
    [
        ("conformance/test_pynsq.py::TestPynsq::test_a_b", "client pynsq", "a b"),
        ("conformance/behaviours/test_errors.py::test_refused[a line: x/y]", "errors", "refused: a line: x/y"),
        ("conformance/behaviours/test_answers.py::test_a", "finish, requeue, touch", "a"),
    ],
)
def test_a_test_is_named_as_a_behaviour_of_a_group(node: str, group: str, behaviour: str) -> None:
    assert named(node) == (group, behaviour)


def test_a_behaviour_that_only_one_has_run_is_marked_as_not_run() -> None:
    columns = [[outcome("a", PASSES)], [outcome("a", DIFFERS, "row"), outcome("b", FAILS)]]
    assert rows(columns) == [
        Row("publish", "a", "", (PASSES, DIFFERS), ("", "")),
        Row("publish", "b", "", ("not run", FAILS), ("", "")),
    ]


def test_text_and_html_show_every_outcome_escaped() -> None:
    table = [Row("publish", "of <x>\n", "order", (PASSES, FAILS))]
    assert "of <x>\\n" in as_text(table, ["ours", "theirs"])
    page = as_html(table, ["ours", "theirs"])
    assert "of &lt;x&gt;\n  (order)" in page
    assert '<td class="passes">passes</td><td class="fails">fails</td>' in page


def test_markdown_names_the_row_of_a_difference_and_escapes_cells() -> None:
    table = [Row("publish", "a|b", "order", (PASSES, DIFFERS)), Row("tls", "c", "", (PASSES, LEFT_OUT), ("", "no Go"))]
    lines = as_markdown(table, ["ours", "theirs"]).splitlines()
    assert lines[4:6] == ["- ours: 2 behaviours, 2 passes", "- theirs: 2 behaviours, 1 differs, 1 left out"]
    assert lines[6] == "- theirs: 1 left out: no Go"
    assert lines[8:13] == [
        "## Publish",
        "",
        "| Behaviour | ours | theirs |",
        "|---|---|---|",
        r"| a\|b | passes | differs *(order)* |",
    ]
    assert "## Tls" in lines


def report(
    tmp_path: Path, nsqd: str, *options: str, selection: Sequence[str] = (VERSION,)
) -> tuple[int, str, list[dict[str, Any]]]:
    file = tmp_path / "report.json"
    ended = kit(f"--nsqd={nsqd}", f"--json={file}", "--processes=0", *options, *selection)
    return ended.returncode, ended.stdout, json.loads(file.read_text())["behaviours"]


def kit(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nsq_conformance", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def refusal(*arguments: str) -> str:
    """The sentence with which the kit ends before it runs a test."""
    ended = kit(*arguments)
    assert (ended.returncode, ended.stdout) == (2, ""), ended
    return ended.stderr.removeprefix("nsq-conformance: ")


def test_the_status_is_0_for_a_correct_nsqd(nsqd_command: str, tmp_path: Path) -> None:
    status, text, (row,) = report(tmp_path, nsqd_command)
    assert (status, row["group"], row["outcomes"]) == (0, "shutdown", [PASSES])
    assert "ours: 1 behaviours, 1 passes" in text


def test_the_status_is_1_for_a_failing_nsqd_whatever_its_peer_does(nsqd_command: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    version = "*--version*) echo 'otherd v0';;"
    other.write_text(f"""#!/bin/sh\ncase "$*" in {version} *) exec {nsqd_command} "$@";; esac\n""")
    other.chmod(0o755)
    status, text, (row,) = report(tmp_path, str(other), f"--peer={nsqd_command}")
    assert (status, row["outcomes"]) == (1, [FAILS, PASSES])
    assert "ours: 1 behaviours, 1 fails" in text


def test_a_running_nsqd_is_checked_except_for_tests_that_start_their_own(nsqd: NsqdProcess, tmp_path: Path) -> None:
    where = f"{nsqd.tcp_address},{nsqd.http_address}"
    status, text, table = report(tmp_path, where, selection=[VERSION, PING, BACKWARDS, REFUSED])
    found = {(row["group"], row["behaviour"]): row["outcomes"] for row in table}
    assert found["http", "ping says ok as plain text"] == [PASSES]
    assert found["http", "refused: a pub of an empty body"] == [PASSES]
    assert found["limits", "refused: a pub of too many bytes"] == [LEFT_OUT]
    assert found["shutdown", "the version is that of nsq"] == [LEFT_OUT]
    assert status == 0, text
    assert {each["topic_name"] for each in nsqd.stats_document()["topics"]} <= {"t"}, "the tests delete their topics"


def test_a_group_can_be_selected_by_name(nsqd_command: str, tmp_path: Path) -> None:
    status, _, table = report(tmp_path, nsqd_command, selection=["limits"])
    assert {row["group"] for row in table} == {"limits"}
    assert len(table) == len(LIMITS)
    assert status == 0


def test_an_unknown_group_is_answered_with_the_names_of_all_groups() -> None:
    sentence = refusal("publishing")
    assert sentence.startswith("'publishing' is neither a group nor a file of the tests. The groups are: ")
    assert "; finish, requeue, touch; heartbeat; http; " in sentence


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--nsqd=/no/nsqd"], "There is no program '/no/nsqd' for --nsqd.\n"),
        (["--nsqd=nsqd 'a"], "The command line of nsqd cannot be read (No closing quotation): nsqd 'a\n"),
        (["--nsqd=false"], "nsqd ended with status 1 and did not open all its listeners: false --tcp"),
        (
            ["--nsqd=127.0.0.1:4150"],
            "There is no program '127.0.0.1:4150' for --nsqd. To test a running nsqd: --nsqd=HOST",
        ),
        (["--json=/no/folder/x.json"], "Cannot write /no/folder/x.json: there is no folder /no/folder.\n"),
        (["--html=/"], "Cannot write /: it is a folder.\n"),
        (["behaviours/test_none.py"], "'behaviours/test_none.py' is neither a group nor a file of the tests."),
    ],
    ids=[
        "no program",
        "a quote",
        "a program that ends",
        "one address",
        "no folder",
        "a folder",
        "no file",
    ],
)
def test_a_mistake_is_answered_with_a_sentence(arguments: list[str], sentence: str) -> None:
    assert refusal(*arguments).startswith(sentence)


@pytest.mark.parametrize("nsqd", ["false", "127.0.0.1:1,127.0.0.1:1"])
def test_pytest_names_an_nsqd_that_cannot_be_tested(nsqd: str) -> None:
    command = [sys.executable, "-m", "pytest", "conformance/behaviours/test_subscribe.py", f"--nsqd={nsqd}"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: Cannot test --nsqd={nsqd}: " in ended.stderr


def test_a_port_of_another_kind_is_named(nsqd: NsqdProcess, nsqlookupd: NsqlookupdProcess, tmp_path: Path) -> None:
    tcp, http = nsqd.tcp_address, nsqd.http_address
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{dead.getsockname()[1]}"
        assert refusal(f"--nsqd={tcp},{nowhere}").startswith(f"Cannot connect to the HTTP port of nsqd at {nowhere}: ")
        assert refusal(f"--nsqd={nowhere},{http}").startswith(f"Cannot connect to the TCP port of nsqd at {nowhere}: ")
    assert refusal(f"--nsqd={http},{tcp}").startswith(f"{tcp} does not answer HTTP requests. Is this its TCP port?")
    assert refusal(f"--nsqd={http},{http}").startswith(f"{http} speaks HTTP. Is this nsqd's TCP port?")
    assert refusal(f"--nsqd={nsqlookupd.tcp_address},{nsqlookupd.http_address}").endswith("it is not an nsqd.\n")
    assert refusal(f"--nsqd={nsqlookupd.tcp_address},{http}").endswith(
        "does not answer as the TCP port of nsqd does.\n"
    )


@pytest.mark.parametrize(
    ("option", "needed"),
    [
        ("--tls-required=true", "TLS"),
        ("--tls-required=tcp-https", "TLS"),
        ("--auth-http-address=127.0.0.1:1", "AUTH"),
    ],
)
def test_an_nsqd_that_refuses_unknown_clients_is_named(
    nsqd_command: str, tmp_path: Path, option: str, needed: str
) -> None:
    options = [*Certificates(tmp_path).options, option]
    with NsqdProcess(nsqd_command, tmp_path, options=options) as nsqd:
        sentence = refusal(f"--nsqd={nsqd.tcp_address},{nsqd.http_address}")
    assert f" requires {needed}, which most tests do not use: start it without --" in sentence


def test_clients_that_cannot_be_downloaded_are_left_out_with_the_reason(
    nsqd_command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = [
        f"test_{name}::test_an_invalid_topic_name_is_refused"
        for name in ("go_nsq.py::TestGoNsq", "nsqjs.py::TestNsqjs")
    ]
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))
        registry = f"http://127.0.0.1:{dead.getsockname()[1]}"
        for name, value in (
            ("GOPROXY", registry),
            ("GOMODCACHE", f"{tmp_path}/go"),
            ("GOFLAGS", "-modcacherw"),
            ("npm_config_registry", registry),
            ("npm_config_cache", f"{tmp_path}/npm"),
            ("no_proxy", "127.0.0.1"),
        ):
            monkeypatch.setenv(name, value)
        status, text, table = report(tmp_path, nsqd_command, selection=tests)
    assert [row["outcomes"] for row in table] == [[LEFT_OUT], [LEFT_OUT]]
    assert status == 0
    assert "\nours: 1 left out: go-nsq cannot be prepared: go mod download failed: " in text
    assert "\nours: 1 left out: nsqjs cannot be prepared: npm ci " in text

"""Fixtures of the conformance tests: daemons to test, official clients, files to send.

``pytest conformance --nsqd /path/to/nsqd`` (or the environment variable NSQD_COMMAND) selects the nsqd; the default is
the one installed beside the running Python. ``--nsqlookupd`` and ``--nsqadmin`` work likewise. Addresses instead of a
command line select a running daemon (``attached``).
"""

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nsq_conformance.attached import DAEMONS, RUN, AttachedNsqlookupd, is_address
from nsq_conformance.behaviours.limits import LIMITS
from nsq_conformance.clients import (
    GNSQ,
    PATCHED_PYNSQ,
    PYNSQ,
    Client,
    ClientUnavailable,
    build_gonsq,
    install_nsqjs,
)
from nsq_conformance.daemons import a_nsqd, command_of, given, is_go
from nsq_conformance.nsqadmin_process import installed_nsqadmin
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd

pytest.register_assert_rewrite("nsq_conformance.delivery")

_DIFFERENCES = Path(__file__).with_name("differences.md")
_ROW_NAME = re.compile(r"\*\(([a-z0-9-]+)\)\*")


def pytest_addoption(parser: pytest.Parser) -> None:
    ours = {"nsqd": installed_nsqd(), "nsqlookupd": installed_nsqlookupd(), "nsqadmin": installed_nsqadmin()}
    for name, installed in ours.items():
        default = os.environ.get(f"{name.upper()}_COMMAND") or installed
        parser.addoption(f"--{name}", default=default, help=f"command line of the {name} to test (default: {default})")
        parser.addoption(f"--other-{name}", default="", help=f"in a cluster, every second {name} (default: the same)")
    beside_python = str(Path(sys.executable).parent)
    parser.addoption("--utilities", default=beside_python, help="folder of the utilities (default: ours)")
    parser.addoption("--leave-out-clients", action="store_true", help="leave out clients that cannot run here")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "difference(name, of=daemon): deliberately differs from Go's; a row of docs/differences.md"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Expect failures of tests marked as differences against Go's daemons; a pass means that there is no difference."""
    marks = [(item, mark) for item in items for mark in item.iter_markers("difference")]
    listed = set(_ROW_NAME.findall(_DIFFERENCES.read_text()))
    if unknown := {mark.args[0] for _, mark in marks} - listed:
        raise pytest.UsageError(f"docs/differences.md has no row named {', '.join(sorted(unknown))}")
    go = {daemon: is_go(daemon, config) for daemon in {each for _, mark in marks for each in _compared(mark)}}
    for item, mark in marks:
        item.user_properties.append(("difference", mark.args[0]))
        if all(go[daemon] for daemon in _compared(mark)):
            item.add_marker(pytest.mark.xfail(reason=f"docs/differences.md: {mark.args[0]}", strict=True))
    _leave_out(items, {name for name in DAEMONS if is_address(name, given(name, config))})


def _compared(mark: pytest.Mark) -> tuple[str, ...]:
    """The daemons that behave differently from Go's."""
    of = mark.kwargs.get("of", "nsqd")
    return of if isinstance(of, tuple) else (of,)


def _leave_out(items: list[pytest.Item], attached: set[str]) -> None:
    """Skip tests that need their own daemon or other limits."""
    for item in items:
        for name in sorted(attached):
            if f"{name}_command" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip(reason=f"needs its own {name}"))
        if "nsqd" in attached and item.name in LIMITS:
            item.add_marker(pytest.mark.skip(reason="needs an nsqd with the limits of behaviours/limits.py"))


@pytest.fixture(scope="session")
def nsqd_command(pytestconfig: pytest.Config) -> str:
    return command_of("nsqd", pytestconfig)


@pytest.fixture(scope="session")
def nsqlookupd_command(pytestconfig: pytest.Config) -> str:
    return command_of("nsqlookupd", pytestconfig)


@pytest.fixture(scope="session")
def nsqadmin_command(pytestconfig: pytest.Config) -> str:
    return command_of("nsqadmin", pytestconfig)


@pytest.fixture(scope="session")
def utility(pytestconfig: pytest.Config) -> Callable[[str], str]:
    """The path of a utility by its name."""
    folder = Path(pytestconfig.getoption("--utilities"))

    def find(name: str) -> str:
        program = folder / name
        assert program.exists(), f"there is no {name} in {folder}"
        return str(program)

    return find


@pytest.fixture
def start(utility: Callable[[str], str]) -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """Start utilities; they are stopped at the end of the test."""
    with ExitStack() as processes:

        def start_it(name: str, *flags: str) -> "subprocess.Popen[bytes]":
            command = [utility(name), *flags]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            processes.enter_context(process)
            processes.callback(process.kill)
            return process

        yield start_it


@pytest.fixture(scope="module")
def nsqd(request: pytest.FixtureRequest) -> Iterator[NsqdProcess]:
    """One nsqd for the tests of a module; each test has its own topic."""
    with a_nsqd(request) as process:
        yield process


@pytest.fixture(scope="module")
def nsqlookupd(request: pytest.FixtureRequest) -> Iterator[NsqlookupdProcess]:
    """One nsqlookupd for the tests of a module."""
    if is_address("nsqlookupd", text := given("nsqlookupd", request.config)):
        yield AttachedNsqlookupd(text)
        return
    with NsqlookupdProcess(request.getfixturevalue("nsqlookupd_command")) as process:
        yield process


_topic_numbers = itertools.count(1)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A unique topic, named after the test."""
    name = re.sub(r"[^a-zA-Z0-9]+", "_", request.node.name)[:40]
    return f"{name}.{RUN}.{next(_topic_numbers)}"


@pytest.fixture(scope="session")
def pynsq() -> Client:
    return PYNSQ


@pytest.fixture(scope="session")
def patched_pynsq() -> Client:
    """pynsq with the workaround for its compression."""
    return PATCHED_PYNSQ


@pytest.fixture(scope="session")
def gnsq() -> Client:
    return GNSQ


@pytest.fixture(scope="session")
def gonsq(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Client:
    return _available(pytestconfig, build_gonsq, tmp_path_factory.mktemp("gonsq"))


@pytest.fixture(scope="session")
def nsqjs(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Client:
    return _available(pytestconfig, install_nsqjs, tmp_path_factory.mktemp("nsqjs"))


def _available(config: pytest.Config, prepare: Callable[[Path], Client], folder: Path) -> Client:
    try:
        return prepare(folder)
    except ClientUnavailable as error:
        if config.getoption("--leave-out-clients"):
            pytest.skip(str(error))
        pytest.fail(str(error))


@pytest.fixture(params=["pynsq", "gonsq", "gnsq", "nsqjs"])
def client(request: pytest.FixtureRequest) -> Client:
    """Each of the four clients."""
    chosen: Client = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture
def lines_file(tmp_path: Path) -> Callable[[int], Path]:
    """Create files of `count` lines, including empty ones, long ones, and bytes that are not text."""

    def make(count: int) -> Path:
        shapes = (b"", b"plain text", bytes(range(11, 256)), "naïve \N{SNOWMAN}".encode(), b"x" * 5000, b"\0", b"end\r")
        file = tmp_path / f"{count}-lines"
        file.write_bytes(b"".join(shape + b"\n" for shape in itertools.islice(itertools.cycle(shapes), count)))
        return file

    return make

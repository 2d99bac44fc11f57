"""The daemons to test: command lines that start them, or addresses of running ones."""

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from http.client import HTTPException

import pytest

from nsq_conformance.attached import Attached, AttachedNsqd, is_address
from nsq_conformance.nsqd_process import NsqdProcess


def is_go(name: str, config: pytest.Config) -> bool:
    """Whether the daemon is Go's NSQ. A running one is recognized by a page that NSQ's programs do not have."""
    try:
        if is_address(name.removeprefix("other-"), text := given(name, config)):
            return Attached(text).asks("GET", "/livez").status == 404
        return is_built_with_go(command_of(name, config))
    except (OSError, HTTPException, subprocess.CalledProcessError) as error:
        raise pytest.UsageError(f"Cannot test --{name}={text}: {error}") from error


def is_built_with_go(command: str) -> bool:
    """Whether the output of ``--version`` is that of a Go program."""
    asking = [*shlex.split(command), "--version"]
    return "built w/go" in subprocess.run(asking, capture_output=True, text=True, check=True).stdout


def given(name: str, config: pytest.Config) -> str:
    """The value of the option: a command line or addresses. `name` may begin with "other-"."""
    text: str = config.getoption(f"--{name}") or config.getoption(f"--{name.removeprefix('other-')}")
    return text


def command_of(name: str, config: pytest.Config) -> str:
    """The command line of the daemon to test; `name` may begin with "other-"."""
    command = given(name, config)
    program = shlex.split(command)[0]
    if shutil.which(program) is None:
        pytest.exit(f"conformance needs an {name} to test, and there is no program {program}", returncode=1)
    return command


def a_nsqd(request: pytest.FixtureRequest, options: Sequence[str] = ()) -> NsqdProcess:
    """The running nsqd at the given addresses, or a new one with these options."""
    if is_address("nsqd", text := given("nsqd", request.config)):
        return AttachedNsqd(text)
    factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
    return NsqdProcess(request.getfixturevalue("nsqd_command"), factory.mktemp("nsqd"), options=options)

"""nsqadmin as a process beside a real nsqd."""

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from conformance.nsqd_process import NsqdProcess, installed_nsqd

NSQADMIN = [sys.executable, "-m", "nsq_compat.nsqadmin.main"]
PATIENCE = 30.0


class Nsqadmin:
    """Started with the flags given; where it listens is read from its log."""

    def __init__(self, *arguments: str) -> None:
        command = [*NSQADMIN, "--http-address=127.0.0.1:0", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self.address = ""
        self._listening = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._listening.wait(PATIENCE), "".join(self.lines)
        assert self.address, "".join(self.lines)

    def get(self, path: str) -> str:
        with urlopen(f"http://{self.address}{path}", timeout=PATIENCE) as answer:
            text: str = answer.read().decode()
            return text

    def post(self, path: str, body: str, method: str = "POST") -> str:
        request = Request(f"http://{self.address}{path}", body.encode(), method=method)
        with urlopen(request, timeout=PATIENCE) as answer:
            text: str = answer.read().decode()
            return text

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        status = self.process.wait(PATIENCE)
        self._reader.join()
        return status

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.lines.append(line)
                if match := re.search(r"HTTP: listening on (\S+)$", line.rstrip()):
                    self.address = match[1]
                    self._listening.set()
        self._listening.set()


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[NsqdProcess]:
    (tmp_path / "data").mkdir()
    with NsqdProcess(installed_nsqd(), tmp_path / "data", options=["--broadcast-address=127.0.0.1"]) as process:
        yield process


@pytest.fixture
def start() -> Iterator[Callable[..., Nsqadmin]]:
    started: list[Nsqadmin] = []

    def start_nsqadmin(*arguments: str) -> Nsqadmin:
        started.append(Nsqadmin(*arguments))
        return started[-1]

    yield start_nsqadmin
    for nsqadmin in started:
        nsqadmin.stop()


def publish(nsqd: NsqdProcess, topic: str, *bodies: str) -> None:
    for body in bodies:
        urlopen(f"http://{nsqd.http_address}/pub?topic={topic}", body.encode(), timeout=PATIENCE).close()

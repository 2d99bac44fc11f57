"""nsq_to_file is killed and stopped repeatedly: every finished message is in a readable file."""

import gzip
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from nsq_compat.client import Producer
from tests.faults.conftest import StartDaemon
from tests.faults.daemon import Daemon, wait_for_more, wait_until

PROGRAM = str(Path(sys.executable).with_name("nsq_to_file"))
ROUNDS = 5
# Without the date, so that every run of the program finds the files of earlier runs.
NAMES = ("--filename-format=<TOPIC><REV>", "--datetime-format=")


@contextmanager
def publishing(daemon: Daemon) -> Iterator[set[bytes]]:
    """Publish numbers until the end of the context; the set has the acknowledged ones."""
    acknowledged, over = set[bytes](), threading.Event()

    def publish() -> None:
        with Producer(daemon.tcp_address) as producer:
            while not over.wait(0.002):
                bodies = [b"%06d" % each for each in range(len(acknowledged), len(acknowledged) + 10)]
                producer.publish_many("t", bodies)
                acknowledged.update(bodies)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield acknowledged
    finally:
        over.set()
        thread.join()


def lines(path: Path) -> list[bytes]:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--rotate-size=5000",),
        ("--gzip",),
        ("--gzip", "--rotate-size=5000", "--work-dir={folder}/work", "--skip-empty-files"),
    ],
    ids=["plain", "rotated", "compressed", "moved"],
)
def test_every_finished_message_is_in_a_readable_file(
    start: StartDaemon, tmp_path: Path, seed: int, flags: tuple[str, ...]
):
    random = Random(seed)
    daemon = start("--msg-timeout=1s")
    daemon.create_channel("t", "nsq_to_file")
    output, work = tmp_path / "output", tmp_path / "work"
    command = [
        PROGRAM,
        "--topic=t",
        f"--nsqd-tcp-address={daemon.tcp_address}",
        f"--output-dir={output}",
        f"--max-in-flight={random.randrange(1, 300)}",
        *NAMES,
        *(flag.format(folder=tmp_path) for flag in flags),
    ]

    def finished() -> int:
        return len(acknowledged) - daemon.unfinished("t")["nsq_to_file"]

    with publishing(daemon) as acknowledged:
        for _ in range(ROUNDS):
            process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            wait_for_more(finished, random.randrange(1, 500))
            ending = random.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
            process.send_signal(ending)
            assert process.wait(40) == (0 if ending == signal.SIGTERM else -signal.SIGKILL)
    # The last run finds the files of the earlier ones and ends cleanly.
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait_until(lambda: daemon.unfinished("t") == {"nsq_to_file": 0}, 40)
    process.terminate()
    assert process.wait(40) == 0
    written = [line for path in output.rglob("*") for line in lines(path)]
    assert acknowledged <= set(written)
    assert not [path for path in work.rglob("*") if path.is_file()]

"""The same jobs on local, local-cluster and standalone masters."""

import contextlib
import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow.dataset
import pyspark
import pytest

from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from pyspark_nsq.log_progress import batch_ranges
from pyspark_nsq.log_reader import read_range
from pyspark_nsq.option_table import BATCH
from pyspark_nsq.options import read_options
from tests.spark.crash.conftest import NSQD
from tests.spark.crash.running import Program, Work, environment, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

MESSAGES = 20_000
LINES = 5_000
LOCAL = ["local[2,4]", "local-cluster[2,1,1024]"]
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
SPARK_CLASS = SUBMIT.with_name("spark-class")
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = "Successfully registered with master"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}
STREAMS = {"copy": "a stream into a table", "handle": "`run_reader`", "republish": "a stream to NSQ, staged"}


class Standalone:
    """A cluster of one master and workers, each a process. A worker has one core; `folder` has logs and work files."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.url = ""
        self._folder = folder
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self.url = self._start("master.Master", [], _MASTER)
            for number in range(self._workers):
                work = ["--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / f"work-{number}"), self.url]
                self._start("worker.Worker", work, re.compile(f"({_REGISTERED})"))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(60)

    def _start(self, kind: str, arguments: Sequence[str], sign: re.Pattern[str]) -> str:
        """Start a process, and return the match of `sign` in its log."""
        log = self._folder / f"{kind}-{len(self._processes)}.log"
        address = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [SPARK_CLASS, f"org.apache.spark.deploy.{kind}", *address, *arguments],
                stdout=output,
                stderr=output,
                env=environment(self._folder),
            )
        self._processes.append(process)

        def found() -> re.Match[str] | None:
            assert process.poll() is None, f"{kind} ended early:\n{log.read_text()[-3000:]}"
            return sign.search(log.read_text())

        wait_until(found)
        match = found()
        assert match is not None, "found by the wait above"
        return match[1]


@dataclass(frozen=True, slots=True)
class Master:
    name: str
    url: str


@pytest.fixture(params=[*LOCAL, "standalone"], scope="module")
def master(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Master]:
    name = request.param
    with contextlib.ExitStack() as stack:
        cluster = None if name in LOCAL else stack.enter_context(Standalone(tmp_path_factory.mktemp("cluster")))
        yield Master(name, cluster.url if cluster else name)


def test_streams_arrive_once(master, options, nsqd, topic, tmp_path, tell):
    bodies = b"\n".join(b"body %d" % number for number in range(MESSAGES))
    with Program(master.url, tmp_path) as program:
        for work in STREAMS:
            own, folder = f"{topic}.{work}", tmp_path / work
            folder.mkdir()
            for each in (own, f"{own}.copy"):
                nsqd.create_channel(each, "c")
            assert nsqd.asks("POST", f"/mpub?topic={own}", bodies).status == 200
            program.begin(work, options | {"subscribe": own}, folder)
            outcome = program.outcome(MESSAGES)
            told = f"{MESSAGES:,}: lost {outcome.lost}, twice {outcome.twice}"
            tell(Work(STREAMS[work], master.name, told))
            assert (outcome.lost, outcome.twice) == (0, 0), work


def test_pipelines_lose_and_repeat_nothing(master, nsqd, topic, tmp_path, tell):
    # The last event makes the windows of all others final.
    events = [{"page": f"/{number % 7}", "at": number} for number in range(LINES)] + [{"page": "/", "at": 10 * LINES}]
    (tmp_path / "lines").write_text("\n".join(map(json.dumps, events)))
    for folder in ("spool", "data"):
        (tmp_path / folder).mkdir()
    for channel in ("table", "windows", "sessions", "json", "copy"):
        nsqd.create_channel(topic, channel)
    with NsqdProcess(NSQD, tmp_path / "data") as twin:
        asked = {
            "nsqd": [[each.tcp_address, each.http_address] for each in (nsqd, twin)],
            "spool": str(tmp_path / "spool"),
            "topic": topic,
            "folder": str(tmp_path),
        }
        told = submit(master.url, tmp_path, Path(__file__).with_name("pipelines.py"), json.dumps(asked))
    found: dict[str, list[int]] = json.loads(told.splitlines()[-1])
    # `replay` reads only by offset, which Go's nsqd does not offer, and has a test of its own.
    jobs = {each.stem for each in Path("spark/jobs").glob("*.py")} - {"replay"}
    expected = dict.fromkeys(jobs, len(events)) | {"sessions": LINES, "windowed_counts": LINES}
    for name, (rows, distinct) in found.items():
        lost = expected[name] - distinct
        tell(Work(f"`{name}.py`", master.name, f"{expected[name]:,}: lost {lost}, twice {rows - distinct}"))
    assert found == {name: [count, count] for name, count in expected.items()}


def test_a_past_time_is_replayed_once(master, topic, tmp_path, tell):
    config = tmp_path / "nsqd.cfg"
    config.write_text('[[policies]]\nretain_for = "1h"\n')
    with contextlib.ExitStack() as stack:
        nodes = []
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            # Go's nsqd retains nothing.
            process = NsqdProcess(installed_nsqd(), tmp_path / name, options=[f"--config={config}"])
            nodes.append(stack.enter_context(process))
        begin = datetime.now(UTC)
        bodies = [b"body %d" % number for number in range(MESSAGES)]
        for number, node in enumerate(nodes):
            assert node.asks("POST", f"/mpub?topic={topic}", b"\n".join(bodies[number::2])).status == 200
        end = datetime.now(UTC) + timedelta(milliseconds=2)
        wait_until(lambda: datetime.now(UTC) > end)
        addresses = [f"--nsqd-http-address={node.http_address}" for node in nodes]
        # Ten tasks for two executors.
        time = [f"--from={begin.isoformat()}", f"--to={end.isoformat()}", "--option=maxMessagesPerPartition=2000"]
        replay = ["spark/jobs/replay.py", f"--topic={topic}", *addresses, *time]
        table = tmp_path / "table"
        told = submit(master.url, tmp_path, *replay, f"--path={table}")
        assert f"{MESSAGES:,} of {MESSAGES:,} replayed" in told
        rows = (
            pyarrow.dataset.dataset(table, format="parquet", partitioning="hive").to_table().column("body").to_pylist()
        )
        target = [f"--to-topic={topic}.again", f"--to-nsqd-tcp-address={nodes[0].tcp_address}"]
        submit(master.url, tmp_path, *replay, *target)
        again = read_options({"subscribe": f"{topic}.again", "nsqdHttpAddresses": nodes[0].http_address}, BATCH)
        found = {
            "a table": rows,
            "a topic": [
                body
                for each in batch_ranges(again)
                for batch, _ in read_range(each, again)
                for body in batch["body"].to_pylist()
            ],
        }
        for place, replayed in found.items():
            lost, twice = MESSAGES - len(set(replayed)), len(replayed) - len(set(replayed))
            tell(Work(f"`replay.py` to {place}", master.name, f"{MESSAGES:,}: lost {lost}, twice {twice}"))
        assert [sorted(each) for each in found.values()] == [sorted(bodies)] * 2


def submit(master: str, folder: Path, program: Path | str, *arguments: str) -> str:
    """Run a program with spark-submit and return its output."""
    command: list[str | Path] = [SUBMIT, "--master", master]
    for name, value in SETTINGS.items():
        command += ["--conf", f"{name}={value}"]
    log = folder / "submit.log"
    with open(log, "w") as errors:
        run = subprocess.run(
            [*command, program, *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment(folder),
            check=False,
        )
    assert run.returncode == 0, run.stdout + log.read_text()[-3000:]
    return run.stdout

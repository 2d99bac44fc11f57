"""The same jobs on one machine, on executors of their own, and on a cluster with a master and workers."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from nsq_conformance.nsqd_process import NsqdProcess
from tests.spark.conftest import Publish
from tests.spark.crash.running import Program, environment, report
from tests.spark.crash.standalone import Standalone

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

MESSAGES = 20_000
LINES = 5_000
LOCAL = ["local[2,4]", "local-cluster[2,1,1024]"]
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}


@pytest.fixture(params=[*LOCAL, "standalone"], scope="module")
def master(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        if request.param in LOCAL:
            yield request.param
        else:
            yield stack.enter_context(Standalone(tmp_path_factory.mktemp("cluster"))).url


def test_a_stream_arrives_once(master: str, options: dict[str, str], publish: Publish, tmp_path: Path):
    publish(MESSAGES)
    with Program(master, tmp_path) as program:
        program.copy(options, tmp_path)
        outcome = program.outcome(MESSAGES)
    report(master, 0, outcome, tmp_path)
    assert (outcome.lost, outcome.twice) == (0, 0)


def test_the_pipelines_do_what_they_say(master: str, nsqd: NsqdProcess, topic: str, tmp_path: Path):
    for channel in ("table", "windows", "copy"):
        nsqd.create_channel(topic, channel)
    nsqd.create_channel(f"{topic}.copy", "drain")
    # The last one makes the windows of all others final.
    events = [{"page": f"/{number % 7}", "at": number} for number in range(LINES)] + [{"page": "/", "at": 10 * LINES}]
    (tmp_path / "lines").write_text("\n".join(map(json.dumps, events)))
    (tmp_path / "spool").mkdir()
    asked = {
        "source": [
            f"--nsqd-tcp-address={nsqd.tcp_address}",
            f"--nsqd-http-address={nsqd.http_address}",
            f"--spool={tmp_path / 'spool'}",
            "--option=partitionsPerNsqd=2",
        ],
        "target": [f"--to-nsqd-tcp-address={nsqd.tcp_address}"],
        "topic": topic,
        "folder": str(tmp_path),
    }
    found = submit(master, tmp_path, Path(__file__).with_name("pipelines.py"), json.dumps(asked))
    everything = [LINES + 1, LINES + 1]
    assert found == {"rows": everything, "drained": everything, "counted": LINES}


def submit(master: str, folder: Path, program: Path, *arguments: str) -> object:
    """The JSON in the last line of what a program says."""
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
    return json.loads(run.stdout.splitlines()[-1])

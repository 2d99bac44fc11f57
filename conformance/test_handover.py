"""A data path passes from one nsqd to another; no message is lost or duplicated.

``--other-nsqd /path/to/nsqd`` is the other nsqd. The program ``nsq_data`` beside the first nsqd, if there is one,
exports files that all nsqd can read; an nsqd without it writes such files itself.
"""

import json
import shlex
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from nsq_conformance.bare_consumer import BareConsumer
from nsq_conformance.daemons import command_of
from nsq_conformance.nsqd_process import NsqdProcess

COUNT = 6000
AT_ONCE = 250
CHANNELS = ("a", "b", "c")
TAKEN = {"a": 700, "b": 0, "c": 2600}
SMALL_FILES = ("--mem-queue-size=10", "--max-bytes-per-file=20000")
ALL_ON_DISK = ("--mem-queue-size=0", "--max-bytes-per-file=20000")
_PATIENCE_SECONDS = 60.0

State = dict[str, tuple[bool, int, dict[str, tuple[bool, int]]]]
Bodies = dict[tuple[str, str], Counter[bytes]]


def ask(nsqd: NsqdProcess, path: str, data: bytes | None = None, **query: str) -> Any:
    """Send a POST, or a GET of JSON without `data`."""
    url = f"http://{nsqd.http_address}/{path}?{urlencode(query)}"
    method = "GET" if path == "stats" else "POST"
    with urlopen(Request(url, data=data or b"", method=method), timeout=30) as answer:
        content = answer.read()
    return json.loads(content) if method == "GET" else content


def bodies_of(topic: str) -> list[bytes]:
    """Bodies of several sizes, some with bytes that could confuse a file reader."""
    return [b"%s-%d-" % (topic.encode(), number) + bytes([number % 256]) * (number % 300) for number in range(COUNT)]


def publish(nsqd: NsqdProcess, topic: str, bodies: Sequence[bytes]) -> None:
    for at in range(0, len(bodies), AT_ONCE):
        some = bodies[at : at + AT_ONCE]
        sized = b"".join(len(body).to_bytes(4, "big") + body for body in some)
        ask(nsqd, "mpub", len(some).to_bytes(4, "big") + sized, topic=topic, binary="true")


def state(nsqd: NsqdProcess) -> State:
    """For each topic and channel: whether it is paused, and its depth."""
    return {
        topic["topic_name"]: (
            topic["paused"],
            topic["depth"],
            {each["channel_name"]: (each["paused"], each["depth"]) for each in topic["channels"]},
        )
        for topic in ask(nsqd, "stats", format="json")["topics"]
    }


def wait_until(nsqd: NsqdProcess, holds: Callable[[State], bool]) -> None:
    """Wait, because an nsqd may move messages to channels shortly after it has answered OK."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not holds(state(nsqd)):
        assert time.monotonic() < deadline, state(nsqd)
        time.sleep(0.05)


def have(topic: str, depth: int) -> Callable[[State], bool]:
    """All channels of the topic have this depth."""
    return lambda now: {found for _, found in now[topic][2].values()} == {depth}


def fill(nsqd: NsqdProcess) -> dict[str, list[bytes]]:
    """Create full, empty, paused and partly read channels, a paused topic, and a topic without channels.

    Returns the finished bodies of each channel of "orders".
    """
    for topic, channels in (("orders", CHANNELS), ("held", ("a", "b"))):
        for channel in channels:
            nsqd.create_channel(topic, channel)
    ask(nsqd, "channel/pause", topic="orders", channel="b")
    publish(nsqd, "held", bodies_of("held")[:100])
    wait_until(nsqd, have("held", 100))
    ask(nsqd, "topic/pause", topic="held")
    for topic in ("orders", "held", "bare"):
        publish(nsqd, topic, bodies_of(topic)[100 if topic == "held" else 0 :])
    wait_until(nsqd, have("orders", COUNT))
    finished: dict[str, list[bytes]] = {}
    for channel, count in TAKEN.items():
        with BareConsumer(nsqd, "orders", channel) as consumer:
            finished[channel] = consumer.take(count)
    wait_until(nsqd, lambda now: now == waiting(finished))
    return finished


def waiting(finished: dict[str, list[bytes]]) -> State:
    """The result of `state` after `fill`, and after a takeover."""
    return {
        "orders": (False, 0, {name: (name == "b", COUNT - len(finished[name])) for name in CHANNELS}),
        "held": (True, COUNT - 100, {"a": (False, 100), "b": (False, 100)}),
        "bare": (False, COUNT, {}),
    }


def drain(nsqd: NsqdProcess) -> Bodies:
    """Consume all messages and return them by topic and channel."""
    ask(nsqd, "channel/unpause", topic="orders", channel="b")
    ask(nsqd, "topic/unpause", topic="held")
    nsqd.create_channel("bare", "first")
    wait_until(nsqd, lambda now: not any(depth for _, depth, _ in now.values()))
    found: Bodies = {}
    for topic, (_, _, channels) in state(nsqd).items():
        for channel, (_, depth) in channels.items():
            with BareConsumer(nsqd, topic, channel) as consumer:
                found[topic, channel] = Counter(consumer.take(depth))
    assert {depth for _, _, channels in state(nsqd).values() for _, depth in channels.values()} == {0}
    return found


def left_after(finished: dict[str, list[bytes]]) -> Bodies:
    """The expected result of `drain`."""
    orders = Counter(bodies_of("orders"))
    held = Counter(bodies_of("held"))
    left = {("orders", channel): orders - Counter(bodies) for channel, bodies in finished.items()}
    return left | {("held", "a"): held, ("held", "b"): held, ("bare", "first"): Counter(bodies_of("bare"))}


@pytest.fixture
def other_nsqd_command(pytestconfig: pytest.Config) -> str:
    return command_of("other-nsqd", pytestconfig)


class DataPath:
    """A folder that is used by one nsqd after the other."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self.running: list[NsqdProcess] = []

    def start(self, command: str, options: Sequence[str] = ()) -> NsqdProcess:
        nsqd = NsqdProcess(command, self._folder, options=("--msg-timeout=10m", *options)).start()
        self.running.append(nsqd)
        return nsqd

    def leave(self, nsqd: NsqdProcess, command: str, number: int = signal.SIGTERM, options: Sequence[str] = ()) -> None:
        """Stop this nsqd, and export its files for any other nsqd."""
        nsqd.send_signal(number)
        nsqd.stop()
        self.running.remove(nsqd)
        export = Path(shlex.split(command)[0]).with_name("nsq_data")
        if shutil.which(export):
            subprocess.run([export, "export", f"--data-path={self._folder}", *options], check=True, timeout=60)


@pytest.fixture
def data_path(tmp_path: Path) -> Iterator[DataPath]:
    data_path = DataPath(tmp_path / "data")
    yield data_path
    for nsqd in data_path.running:
        nsqd.stop()


kinds_of_files = pytest.mark.parametrize("options", [(), SMALL_FILES, ALL_ON_DISK], ids=["default", "small", "disk"])


@kinds_of_files
@pytest.mark.parametrize("way", ["there", "back"])
def test_the_other_nsqd_delivers_remaining_messages_once(
    data_path: DataPath, nsqd_command: str, other_nsqd_command: str, options: Sequence[str], way: str
) -> None:
    first, second = (other_nsqd_command, nsqd_command) if way == "there" else (nsqd_command, other_nsqd_command)
    nsqd = data_path.start(first, options)
    finished = fill(nsqd)
    data_path.leave(nsqd, first)
    nsqd = data_path.start(second, options)
    wait_until(nsqd, lambda now: now == waiting(finished))
    assert drain(nsqd) == left_after(finished)


BOTH = ("nsqd", "other-nsqd")
"""The difference exists only between two of Go's: ours also reads files without positions, of any nsqd."""


@pytest.mark.parametrize(
    "sync",
    [
        pytest.param((), id="at once", marks=pytest.mark.difference("go-positions", of=BOTH)),
        pytest.param(("--sync-timeout=50ms",), id="after a sync"),
    ],
)
def test_the_other_nsqd_delivers_messages_of_a_killed_nsqd_on_disk_once(
    data_path: DataPath, nsqd_command: str, other_nsqd_command: str, sync: tuple[str, ...]
) -> None:
    nsqd = data_path.start(other_nsqd_command, (*ALL_ON_DISK, *sync))
    finished = fill(nsqd)
    if sync:
        time.sleep(2.5)  # positions on disk are as old as the last sync, and there are fifty of them meanwhile
    data_path.leave(nsqd, other_nsqd_command, signal.SIGKILL)
    found = drain(data_path.start(nsqd_command))
    published = left_after({channel: [] for channel in CHANNELS})
    for place, left in left_after(finished).items():
        assert left <= found[place] <= published[place]


def test_a_data_path_passes_to_the_other_nsqd_and_back(
    data_path: DataPath, nsqd_command: str, other_nsqd_command: str
) -> None:
    nsqd = data_path.start(other_nsqd_command, SMALL_FILES)
    finished = fill(nsqd)
    for command, after in ((other_nsqd_command, nsqd_command), (nsqd_command, other_nsqd_command)):
        data_path.leave(nsqd, command)
        nsqd = data_path.start(after)
        for channel in ("a", "c"):
            with BareConsumer(nsqd, "orders", channel) as consumer:
                finished[channel] += consumer.take(300)
    assert drain(nsqd) == left_after(finished)

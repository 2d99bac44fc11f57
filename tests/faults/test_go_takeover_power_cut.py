"""A power cut during the takeover of Go's queues: afterwards every message exists once."""

from contextlib import suppress
from itertools import repeat
from random import Random

import pytest

from nsq_compat.godata.export import write_queue
from nsq_compat.godata.format import GoMessage, queue_name
from nsq_compat.godata.takeover import take_over
from nsq_compat.log.data_path import our_folder, topic_folder
from nsq_compat.log.recovery import StoredTopic
from nsq_compat.protocol import message
from nsq_compat.protocol.message import MessageIds
from tests.faults.disk import Crash, DyingDisk

NOW_NS = 1_700_000_000_000_000_000
IDS = list(map(MessageIds(7).take_one, repeat(NOW_NS, 100)))
ENDLESS = 1 << 60
EXPECTED = {"a": [1, 2, 7, 8], "b": [1, 7, 8]}


def write_go_messages(disk, channel, *numbers):
    messages = [GoMessage(NOW_NS, 0, IDS[number], b"%d" % number) for number in numbers]
    write_queue(disk, "/data", queue_name("t", channel), messages, 80)


def go_data_path():
    disk = DyingDisk()
    disk.mkdir("/data")
    disk.fsync_folder("/")
    write_go_messages(disk, None, 7, 8)
    write_go_messages(disk, "a", 1, 2)
    write_go_messages(disk, "b", 1)
    return disk


def run_takeover(disk):
    with suppress(FileExistsError):
        disk.mkdir(our_folder("/data"))
        disk.fsync_folder("/data")
    take_over(disk, "/data", 1 << 20)


def recovered_messages(disk):
    with StoredTopic(disk, topic_folder("/data", "t")) as topic:
        return {name: [int(message.body(each)) for each in frames] for name, frames in topic.backlogs()}


def steps():
    disk = go_data_path()
    before = disk.left
    run_takeover(disk)
    assert recovered_messages(disk) == EXPECTED
    return before - disk.left


def cut_after(number, disk, random):
    disk.left = number
    with suppress(Crash):
        run_takeover(disk)
    disk.left = ENDLESS
    return disk.power_cut(random)


@pytest.mark.parametrize("seed", range(8))
def test_a_power_cut_during_a_takeover_keeps_every_message_once(seed):
    random = Random(seed)
    for number in range(2, steps() + 1):
        disk = cut_after(number, go_data_path(), random)
        if random.random() < 0.5:  # and a second cut during recovery
            disk = cut_after(random.randrange(2, 40), disk, random)
        run_takeover(disk)
        assert recovered_messages(disk) == EXPECTED, (seed, number)

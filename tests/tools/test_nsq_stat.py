"""The statistics of a channel over nodes that start, stop and do not answer."""

from collections.abc import Iterator

import pytest

from nsq_compat.cluster.stats import ChannelStats
from nsq_compat.tools.nsq_stat import ChannelSampler, Options, row
from nsq_compat.tools.program import Refused
from nsq_conformance.nsqd_process import installed_nsqd
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd
from tests.client.waiting import wait_until
from tests.tools.nsqd import Nsqd


def seen(message_count: int, depth: int = 0) -> ChannelStats:
    return ChannelStats(channel_name="c", message_count=message_count, depth=depth, in_flight_count=1, client_count=2)


def numbers(line: str) -> list[int]:
    return [int(word) for word in line.replace("|", " ").split()]


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (
            {"a": seen(100, 50), "b": seen(10)},
            {"a": seen(120, 30), "b": seen(20, 4)},
            [15, 23, 34, 34, 0, 2, 0, 0, 0, 140, 4],
        ),
        # A new node is not a burst of messages, and a node that leaves does not change the rates.
        ({"a": seen(5)}, {"a": seen(5), "new": seen(1_000_000)}, [0, 0]),
        ({"a": seen(5), "gone": seen(1_000_000)}, {"a": seen(7)}, [1, 1]),
    ],
)
def test_rates_are_differences_over_the_interval(before, now, expected):
    assert numbers(row(before, now, 2.0))[: len(expected)] == expected


def test_columns_are_as_wide_as_gos():
    line = row({"a": seen(5)}, {"a": seen(5)}, 1.0)
    assert line == "      0       0 |       0       0       0     1     0 |       0       0            5       2"


@pytest.fixture
def nsqds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Nsqd]]:
    processes = [Nsqd(installed_nsqd(), tmp_path_factory.mktemp("nsqd")).start() for _ in range(2)]
    for each in processes:
        each.create_channel("t", "c")
        each.publish("t", b"1", b"2", b"3")
    yield processes
    for each in processes:
        each.stop()


@pytest.fixture
def sampler(nsqds: list[Nsqd]) -> ChannelSampler:
    options = Options(nsqd_http_addresses=tuple(each.http_address for each in nsqds))
    return ChannelSampler(options.cluster(request_timeout=10), "t", "c")


def test_a_node_that_does_not_answer_is_reported_and_keeps_its_values(nsqds, sampler, capfd):
    assert sum(each.depth for each in sampler.sample().values()) == 6
    nsqds[1].stop()
    assert sum(each.depth for each in sampler.sample().values()) == 6
    assert nsqds[1].http_address in capfd.readouterr().err
    nsqds[0].publish("t", b"4")
    assert sum(each.depth for each in sampler.sample().values()) == 7
    nsqds[0].stop()
    assert sum(each.depth for each in sampler.sample().values()) == 7


def test_a_node_that_has_lost_its_standby_is_reported_once(tmp_path, capfd):
    accepts = ("--node-id=2", "--mirror-accept", "--mirror-takeover-after=manual")
    for name in ("standby", "primary"):
        (tmp_path / name).mkdir()
    standby = Nsqd(installed_nsqd(), tmp_path / "standby", options=accepts).start()
    options = ("--node-id=1", f"--mirror-to={standby.tcp_address}")
    with Nsqd(installed_nsqd(), tmp_path / "primary", options=options) as primary:
        primary.create_channel("t", "c")
        cluster = Options(nsqd_http_addresses=(primary.http_address,)).cluster(request_timeout=10)
        sampler = ChannelSampler(cluster, "t", "c")

        def said(text: str) -> bool:
            sampler.sample()
            heard.append(capfd.readouterr().err)
            return text in heard[-1]

        heard: list[str] = []
        wait_until(lambda: primary.asks("GET", "/mirror").json()["standby"]["state"] == "in sync")
        sampler.sample()
        assert capfd.readouterr().err == ""
        standby.stop()
        wait_until(lambda: said(f"nsqd {primary.http_address} is not mirrored, not connected for "))
        sampler.sample()
        assert capfd.readouterr().err == ""
        again = (*accepts, f"--tcp-address={standby.tcp_address}")
        with Nsqd(installed_nsqd(), tmp_path / "standby", options=again):
            wait_until(lambda: said(f"nsqd {primary.http_address} is mirrored again"))


def test_an_unknown_topic_is_called_unknown(run, nsqds, lookupd):
    for kind, address in (("nsqd", nsqds[0].http_address), ("lookupd", lookupd.http_address)):
        done = run("nsq_stat", "--topic=nix", "--channel=c", f"--{kind}-http-address={address}")
        assert done.returncode == 1
        assert done.stderr.endswith(b"ERROR: topic nix is unknown: no nsqd has it\n")


def test_an_nsqlookupd_that_does_not_know_the_topic_is_not_reported_beside_one_that_does(run, lookupd, announced_nsqd):
    announced_nsqd.create_channel("t", "c")
    with NsqlookupdProcess(installed_nsqlookupd()) as other:
        flags = [f"--lookupd-http-address={each.http_address}" for each in (lookupd, other)]
        wait_until(lambda: b"t" in lookupd.asks("GET", "/lookup?topic=t").body)
        done = run("nsq_stat", "--topic=t", "--channel=c", "--count=1", "--interval=10ms", *flags)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_missing_channel_is_an_error(nsqds, sampler):
    sampler.sample()
    for each in nsqds:
        each.asks("POST", "/channel/delete?topic=t&channel=c")
    with pytest.raises(Refused, match=r"failed to find channel\(c\) in stats metadata for topic\(t\)"):
        sampler.sample()

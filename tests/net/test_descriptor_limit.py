"""How many descriptors there are, and how many of them clients leave to files."""

import os
import resource
from collections.abc import Iterator

import pytest

from nsq_compat.net.descriptor_limit import ClientDescriptors, descriptors_left_by_clients, raise_descriptor_limit


@pytest.fixture(autouse=True)
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_limit_is_raised_as_far_as_it_goes(limits):
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))
    raise_descriptor_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (limits[1], limits[1])


@pytest.mark.parametrize(("limit", "left"), [(128, 32), (1024, 256), (3000, 512), (20_000, 2500)])
def test_clients_leave_a_quarter_or_enough(limits, limit, left):
    if limit > limits[1]:
        pytest.fail(f"this test needs a hard limit of {limit} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
    assert descriptors_left_by_clients() == left


def test_a_client_is_not_let_in_while_only_those_are_left(limits):
    limit = 2 * max(map(int, os.listdir("/proc/self/fd"))) + 100
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    try:
        descriptors = ClientDescriptors(opened[0])
        while opened[-1] < limit - descriptors_left_by_clients() - 1:
            descriptors.check()
            opened.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(OSError, match="Too many open files"):
            descriptors.check()
        os.close(opened.pop())
        descriptors.check()
    finally:
        for descriptor in opened:
            os.close(descriptor)

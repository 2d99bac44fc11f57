"""A cluster is found by addresses as flags take them."""

import pytest

from nsq_compat.tools.lookupds import cluster_of
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd


@pytest.fixture(scope="module")
def lookupd():
    with NsqlookupdProcess(installed_nsqlookupd()) as process:
        yield process


@pytest.mark.parametrize("address", ["{}", "http://{}", "http://{}/"])
def test_an_address_may_be_a_url(lookupd, address):
    cluster = cluster_of([address.format(lookupd.http_address)], connect_timeout=20, request_timeout=20)
    assert cluster.topics().value == []

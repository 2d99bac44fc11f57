"""The official Python client against nsqd."""

import pytest

from nsq_conformance.clients import Client
from nsq_conformance.delivery import Delivery


class TestPynsq(Delivery):
    @pytest.fixture
    def client(self, pynsq: Client) -> Client:
        return pynsq

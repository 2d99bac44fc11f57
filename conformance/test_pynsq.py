"""The official Python client against nsqd."""

import pytest

from conformance.clients import Client
from conformance.delivery import Delivery


class TestPynsq(Delivery):
    @pytest.fixture
    def client(self, pynsq: Client) -> Client:
        return pynsq

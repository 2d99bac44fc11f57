"""The official JavaScript client against nsqd."""

from pathlib import Path

import pytest

from nsq_conformance.clients import Client
from nsq_conformance.delivery import Delivery


class TestNsqjs(Delivery):
    @pytest.fixture
    def client(self, nsqjs: Client) -> Client:
        return nsqjs


def test_the_lock_file_leaves_the_registry_to_npm() -> None:
    lock = Path(__file__).with_name("nsqjs") / "package-lock.json"
    assert '"integrity"' in lock.read_text()
    assert '"resolved"' not in lock.read_text()

"""Notifications: a POST to `--notification-http-endpoint` for each action, in order, in the background."""

import logging
from collections.abc import Mapping
from typing import Any, Final

import gevent
from gevent.queue import Full, Queue

from nsq_compat.cluster.http_client import HttpClient, UpstreamError
from nsq_compat.protocol.go_json import dumps

log = logging.getLogger(__name__)

_MAX_WAITING: Final = 1000
_HEADERS: Final = {"Content-Type": "application/json", "User-Agent": "Go-http-client/1.1"}


class Notifications:
    """An endpoint that cannot be reached is logged. Go's nsqadmin exits."""

    def __init__(self, client: HttpClient, endpoint: str) -> None:
        self._client = client
        self._endpoint = endpoint
        self._waiting: Queue[Mapping[str, Any]] = Queue(_MAX_WAITING)
        self._greenlet: gevent.Greenlet[[], None] | None = None

    def start(self) -> None:
        if self._endpoint:
            self._greenlet = gevent.spawn(self._run)

    def stop(self) -> None:
        if self._greenlet is not None:
            self._greenlet.kill()

    def notify(self, action: Mapping[str, Any]) -> None:
        if self._endpoint:
            try:
                self._waiting.put_nowait(action)
            except Full:
                log.error("notification dropped: %d are already waiting for %s", _MAX_WAITING, self._endpoint)

    def _run(self) -> None:
        for action in self._waiting:
            log.info("POSTing notification to %s", self._endpoint)
            try:
                self._client.send(self._endpoint, dumps(dict(action)).encode(), _HEADERS)
            except UpstreamError as error:
                log.error("failed to POST notification - %s", error)

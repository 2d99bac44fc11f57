"""Producer: publishes to one of several nsqd, or to several at once.

A call ends within its timeout. Each attempt at a node gets a share of the remaining time, so that another node can be
tried if the first cannot be reached, does not answer in time or cannot accept messages now. If nsqd refuses the message
itself, no other node is tried. The result, or the exception, contains the outcome of every attempt.
"""

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, Self, Unpack

from nsq_compat.client.batching import Batcher
from nsq_compat.client.connection import Connection, do_together, start_thread
from nsq_compat.client.link import ConnectionLost
from nsq_compat.client.nodes import (
    Attempt,
    Candidates,
    HeadersNotTaken,
    Nodes,
    Outcome,
    Published,
    PublishError,
    failed_attempt,
    retried,
)
from nsq_compat.client.publishing import Publish, checked, note_answer, publish_of
from nsq_compat.client.settings import ConnectionOptions, ConnectionSettings, address_list, check_number, split_address
from nsq_compat.protocol.errors import NsqError
from nsq_compat.protocol.headers import NO_HEADERS, Headers

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from nsq_compat.client.tracing import Tracing

log: Final = logging.getLogger(__name__)


class Producer:
    """Publishes messages, from any thread.

    `publish_timeout` (seconds) is the default timeout of a call. `copies` is the number of nodes that must answer OK;
    they are asked at the same time. An `idempotent` producer gives each message an id, with which it publishes again at
    a node that did not answer, and waits for nodes that cannot be reached. `batch_*` apply to `publish_async`. With
    `tracing`, publishes have spans of OpenTelemetry: of this provider or, if True, of the global one. Other options are
    those of ``ConnectionSettings``.
    """

    def __init__(
        self,
        nsqd_tcp_addresses: str | Iterable[str],
        *,
        publish_timeout: float = 10.0,
        copies: int = 1,
        idempotent: bool = False,
        batch_messages: int = 500,
        batch_bytes: int = 1 << 20,
        batch_linger: float = 0.0,
        batch_workers: int = 1,
        tracing: "bool | TracerProvider" = False,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        self.settings: ConnectionSettings = ConnectionSettings.of(options, self)
        self._nodes = Nodes(address_list(nsqd_tcp_addresses))
        for address in self._nodes.addresses:
            split_address(address)
        self._nodes.check_copies(copies)
        self.settings.check_idempotent(idempotent)
        check_number("publish_timeout", publish_timeout)
        self._publish_timeout = publish_timeout
        self._copies = copies
        self._idempotent = idempotent
        self._tracing: Tracing | None = None
        if tracing:
            from nsq_compat.client import tracing as spans  # needs an extra

            self._tracing = spans.Tracing(tracing, with_ids=idempotent)
        self._lock = threading.Lock()
        self._connections: dict[str, Connection] = {}
        self._connecting = {address: threading.Lock() for address in self._nodes.addresses}
        self._batcher = Batcher(
            lambda topic, bodies, defer: self._publish(topic, bodies, defer, None),
            max_messages=batch_messages,
            max_bytes=batch_bytes,
            linger=batch_linger,
            workers=batch_workers,
        )

    # --- Publishing ---------------------------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        body: bytes,
        *,
        headers: Headers = NO_HEADERS,
        defer: float = 0.0,
        timeout: float | None = None,
    ) -> Published:
        """Publish with PUB, or with DPUB to defer the message by `defer` seconds; with HPUB if it has headers.

        Raises ``Refused``, ``Unknown`` or ``TooFewCopies``; ``TypeError`` for a body that is not bytes or headers that
        are not a dict of str; ``ValueError`` for an invalid topic, an empty body or invalid headers. An nsqd that does
        not take headers refuses a message that has some before anything is sent.
        """
        if self._tracing is None:
            return self._publish(topic, self._checked(topic, [body], [headers]), defer, timeout)
        with self._tracing.publish(topic, [body], [headers]) as sending:
            return sending.note(self._publish(topic, sending.bodies, defer, timeout))

    def publish_many(
        self,
        topic: str,
        bodies: Sequence[bytes],
        *,
        headers: Sequence[Headers] = (),
        timeout: float | None = None,
    ) -> Published:
        """Publish all messages or none, with MPUB; with HMPUB if they have `headers`, one element for each body.

        Raises like `publish`.
        """
        if self._tracing is None:
            return self._publish(topic, self._checked(topic, bodies, headers), 0.0, timeout)
        with self._tracing.publish(topic, bodies, headers, is_batch=True) as sending:
            return sending.note(self._publish(topic, sending.bodies, 0.0, timeout))

    def publish_async(
        self, topic: str, body: bytes, *, headers: Headers = NO_HEADERS, defer: float = 0.0
    ) -> Future[Published]:
        """`publish` in the background, in batches. Blocks only while 64 MiB wait. The future raises like `publish`."""
        if self._tracing is None:
            return self._batcher.add(topic, self._checked(topic, [body], [headers]), defer)
        sending = self._tracing.publish(topic, [body], [headers])
        return sending.later(lambda payload: self._batcher.add(topic, payload, defer))

    def publish_many_async(
        self, topic: str, bodies: Sequence[bytes], *, headers: Sequence[Headers] = ()
    ) -> Future[Published]:
        """`publish_many` in the background."""
        if self._tracing is None:
            return self._batcher.add(topic, self._checked(topic, bodies, headers))
        sending = self._tracing.publish(topic, bodies, headers, is_batch=True)
        return sending.later(lambda payloads: self._batcher.add(topic, payloads))

    def retry(self, error: PublishError, *, timeout: float | None = None) -> Published:
        """Publish again what has failed with this error, with the same ids.

        Nodes that may have it are asked until they answer, and others only for a node that refuses it or was not asked.
        Raises like `publish`; ``ValueError`` if the error is not one of an idempotent producer.
        """
        return self._publish_command(retried(error), timeout, error.attempts)

    @property
    def connections(self) -> list[Connection]:
        """The open connections. A connection is made when first needed."""
        return [connection for connection in list(self._connections.values()) if not connection.is_closed]

    def connect(self) -> None:
        """Connect to every node in the background. Publishing connects by itself."""
        for node in self._nodes.addresses:
            start_thread(f"nsqd {node}", self._connect_early, node)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything published in the background has an outcome. False after the timeout."""
        return self._batcher.flush(timeout)

    def close(self, timeout: float | None = 30.0) -> bool:
        """Publish all waiting messages, then disconnect. False if some were not sent in time; they are ``Refused``."""
        done = self._batcher.close(timeout)
        do_together(connection.close for connection in self.connections)
        return done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _connect_early(self, node: str) -> None:
        try:
            self._connect(node, time.monotonic() + self._publish_timeout)
        except ConnectionLost as error:
            log.warning("%s; the next publish tries again", error)
            self._nodes.note(Attempt(node, Outcome.REFUSED, error), time.monotonic())

    def _connect(self, node: str, deadline: float) -> Connection:
        """The open connection to a node, made if necessary. Raises ``ConnectionLost``, by the deadline."""
        if not self._connecting[node].acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise ConnectionLost("not connected in time", node)
        try:
            connection = self._connections.get(node)
            if connection is None or connection.is_closed:
                is_known = connection is not None
                connection = Connection(node, self.settings, publish_ids=self._idempotent)
                connection.is_known = is_known
                connection.open(deadline)
                self._connections[node] = connection
                start_thread(f"nsqd {node}", connection.run)
            return connection
        finally:
            self._connecting[node].release()

    def _checked(self, topic: str, bodies: Sequence[bytes], headers: Sequence[Headers]) -> Sequence[bytes]:
        return checked(topic, bodies, headers, with_ids=self._idempotent)

    def _publish(self, topic: str, bodies: Sequence[bytes], defer: float, timeout: float | None) -> Published:
        return self._publish_command(publish_of(topic, bodies, defer), timeout)

    def _publish_command(self, publish: Publish, timeout: float | None, earlier: Sequence[Attempt] = ()) -> Published:
        if timeout is not None:
            check_number("timeout", timeout)
        now = time.monotonic()
        deadline = now + (self._publish_timeout if timeout is None else timeout)
        ids = self._idempotent or bool(earlier)
        candidates = Candidates(self._nodes, self._copies, now, deadline, ids=ids, earlier=earlier)
        do_together([lambda: self._publish_copy(publish, candidates)] * candidates.missing)
        return candidates.result(publish)

    def _publish_copy(self, publish: Publish, candidates: Candidates) -> None:
        """Publish one copy: try nodes until one has it, or no node or time is left."""
        while True:
            with self._lock:
                taken = candidates.take(time.monotonic())
            if taken is None:
                return
            attempt = self._attempt(*taken, publish)
            with self._lock:
                if candidates.note(attempt, time.monotonic()):
                    return
                pause = candidates.pause_after(attempt, time.monotonic())
            if pause:
                time.sleep(pause)

    def _attempt(self, node: str, deadline: float, publish: Publish) -> Attempt:
        try:
            connection = self._connect(node, deadline)
        except ConnectionLost as error:
            return failed_attempt(node, error, was_sent=False)
        command = publish.command_for(connection)
        if command is None:
            return failed_attempt(node, HeadersNotTaken(), was_sent=False)
        try:
            answer = connection.ask(command).result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            # Aborted, so that other threads do not wait for this node.
            connection.abort(ConnectionLost("no answer in time"))
            return failed_attempt(node, TimeoutError("no answer in time"), was_sent=True)
        except (NsqError, ConnectionLost) as error:
            return failed_attempt(node, error, was_sent=True)
        note_answer(publish, node, answer)
        return Attempt(node, Outcome.SENT)

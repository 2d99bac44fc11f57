"""What nsqlookupd's HTTP API asks of the daemon."""

from typing import Protocol

from nsq_compat.registry.registration_db import RegistrationDb
from nsq_compat.web.metrics import Metrics
from nsq_compat.web.profiling import RunningProcess


class NsqlookupdService(RunningProcess, Protocol):
    """The daemon, as its HTTP API sees it."""

    @property
    def db(self) -> RegistrationDb: ...

    @property
    def metrics(self) -> Metrics: ...

    @property
    def version(self) -> str:
        """What is announced, ``1.3.0``."""

    def now(self) -> float:
        """Monotonic seconds."""

    def now_ns(self) -> int:
        """Wall clock, nanoseconds."""

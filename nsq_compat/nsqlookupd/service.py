"""The daemon as its HTTP API sees it (`web.nsqlookupd_api.NsqlookupdService`)."""

import time

from nsq_compat import NSQ_VERSION
from nsq_compat.net.process import Process
from nsq_compat.registry.registration_db import RegistrationDb
from nsq_compat.web.metrics import Metrics


class Service(Process):
    def __init__(self, db: RegistrationDb, metrics: Metrics) -> None:
        self.db = db
        self.metrics = metrics
        self.version = NSQ_VERSION
        self.now = time.monotonic
        self.now_ns = time.time_ns

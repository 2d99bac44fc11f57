"""The fixtures of ``tests.broker``."""

from tests.broker import channel, daemon, data_path, disk, logging_daemon, make_frames, start

__all__ = ["channel", "daemon", "data_path", "disk", "logging_daemon", "make_frames", "start"]

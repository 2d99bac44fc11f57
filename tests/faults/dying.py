"""A process that dies at a chosen step: the n-th call that may change something on the disk is its last."""

from nsq_compat.log.files import OsFiles

CHANGING = ("open", "pwrite", "fsync", "fsync_folder", "rename", "unlink", "mkdir", "rmdir")


class Crash(BaseException):
    """The process is gone; no handler of errors sees it."""


class Dying(OsFiles):
    """The process dies before its n-th step that may change something."""

    def __init__(self, number):
        self.left = number

    def __getattribute__(self, name):
        if name in CHANGING:
            self.left -= 1
            if self.left <= 0:
                raise Crash
        return super().__getattribute__(name)

"""File operations that crash at a chosen step: before the n-th call that may change the disk."""

from nsq_compat.log.files import OsFiles

CHANGING = ("open", "pwrite", "fsync", "fsync_folder", "rename", "unlink", "mkdir", "rmdir")


class Crash(BaseException):
    """The simulated crash; a BaseException, so that error handlers do not catch it."""


class Dying(OsFiles):
    """Files that raise ``Crash`` before the n-th changing call."""

    def __init__(self, number):
        self.left = number

    def __getattribute__(self, name):
        if name in CHANGING:
            self.left -= 1
            if self.left <= 0:
                raise Crash
        return super().__getattribute__(name)

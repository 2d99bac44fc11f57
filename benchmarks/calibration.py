"""The calibration loop of `guard.py`: operations that are typical of the message path, in Python and in C.

As a program, it reads numbers and runs that many loops for each. Changing it invalidates all recorded costs.
"""

import re
import struct
import sys

_LINE = re.compile(rb"([A-Z]+) ([^\n]{16})\n")


class _Store:
    def __init__(self) -> None:
        self.things: dict[bytes, bytes] = {}
        self.count = 0

    def put(self, name: bytes, thing: bytes) -> None:
        self.things[name] = thing
        self.count += 1

    def take(self, names: list[bytes]) -> list[bytes]:
        return [self.things.pop(name) for name in names]


def run_loop(store: _Store, number: int) -> int:
    names = [b"%016x" % (number + each) for each in range(10)]
    for name in names:
        store.put(name, struct.pack(">iqH", number & 0xFFFF, number, 1) + name)
    found = _LINE.findall(b"".join(b"FIN " + name + b"\n" for name in names))
    return sum(map(len, store.take([name for _, name in found])))


def main() -> None:
    store = _Store()
    for line in sys.stdin:
        for number in range(int(line)):
            run_loop(store, number)
        print("done", flush=True)


if __name__ == "__main__":
    main()

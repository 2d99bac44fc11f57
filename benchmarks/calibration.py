"""What `guard.py` compares with: a loop of what the message path is made of, in Python and in C.

Run as a program it reads numbers and does so many turns for each. Changing it makes all recorded costs worthless.
"""

import re
import struct
import sys

_LINE = re.compile(rb"([A-Z]+) ([^\n]{16})\n")


class _Shelf:
    def __init__(self) -> None:
        self.things: dict[bytes, bytes] = {}
        self.count = 0

    def put(self, name: bytes, thing: bytes) -> None:
        self.things[name] = thing
        self.count += 1

    def take(self, names: list[bytes]) -> list[bytes]:
        return [self.things.pop(name) for name in names]


def turn(shelf: _Shelf, number: int) -> int:
    names = [b"%016x" % (number + each) for each in range(10)]
    for name in names:
        shelf.put(name, struct.pack(">iqH", number & 0xFFFF, number, 1) + name)
    found = _LINE.findall(b"".join(b"FIN " + name + b"\n" for name in names))
    return sum(map(len, shelf.take([name for _, name in found])))


def main() -> None:
    shelf = _Shelf()
    for line in sys.stdin:
        for number in range(int(line)):
            turn(shelf, number)
        print("done", flush=True)


if __name__ == "__main__":
    main()

"""Bodies known to have one size. Its own module, because mypyc cannot compile a class derived from tuple."""


class UniformBodies(tuple[bytes, ...]):
    """Bodies of one size; the reader has checked it."""

    __slots__ = ()

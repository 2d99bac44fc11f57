"""Bodies of one size. A module of its own, because a class that is a tuple cannot be compiled."""


class UniformBodies(tuple[bytes, ...]):
    """Bodies of one size, which whoever cut them out has seen."""

    __slots__ = ()

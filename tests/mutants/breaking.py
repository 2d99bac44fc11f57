"""How a daemon is broken on purpose: one function of it is replaced by another, when its name is chosen."""

import sys
from collections.abc import Callable
from typing import Any

BREAKS: dict[str, Callable[[], None]] = {}
"""By name, what puts it in place."""

Function = Callable[..., Any]


def instead_of(owner: object, name: str) -> Callable[[Function], Function]:
    """The function below takes the place of that one, when it is chosen."""

    def register(broken: Function) -> Function:
        def put_in_place() -> None:
            original = getattr(owner, name)
            setattr(owner, name, lambda *arguments, **named: broken(original, *arguments, **named))

        BREAKS[broken.__name__] = put_in_place
        return broken

    return register


def run_broken(main: Callable[[], object]) -> None:
    """``program WAY --options``; without any argument it says which ways there are."""
    if len(sys.argv) == 1:
        sys.exit(print("\n".join(BREAKS)))
    BREAKS[sys.argv.pop(1)]()
    main()

"""Mutants of daemons: each replaces one function, and is selected by its name."""

import sys
from collections.abc import Callable
from typing import Any

MUTANTS: dict[str, Callable[[], None]] = {}
"""Functions that install the mutants, by name."""

Function = Callable[..., Any]


def mutant_of(owner: object, name: str) -> Callable[[Function], Function]:
    """Register the decorated function as a replacement; it gets the original as its first argument."""

    def register(broken: Function) -> Function:
        def install() -> None:
            original = getattr(owner, name)
            setattr(owner, name, lambda *arguments, **named: broken(original, *arguments, **named))

        MUTANTS[broken.__name__] = install
        return broken

    return register


def run_mutant(main: Callable[[], object]) -> None:
    """Run ``program MUTANT --options``; without arguments, list the mutants."""
    if len(sys.argv) == 1:
        sys.exit(print("\n".join(MUTANTS)))
    MUTANTS[sys.argv.pop(1)]()
    main()

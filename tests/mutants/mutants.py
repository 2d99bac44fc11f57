"""Mutants of a daemon: each replaces one function, and a test of ``conformance/`` detects it."""

import sys
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


class Mutants:
    """The mutants of a program, by name."""

    def __init__(self, main: Callable[[], object]) -> None:
        self.caught_by: dict[str, str] = {}
        """The test of ``conformance/behaviours`` that detects each, as FILE::TEST."""
        self._main = main
        self._replace: dict[str, Callable[[], None]] = {}

    def replacing(self, owner: object, attribute: str, caught_by: str) -> Callable[[Function], Function]:
        """Register the decorated function as a replacement; it gets the original as its first argument."""

        def register(broken: Function) -> Function:
            self._add(broken.__name__, owner, attribute, caught_by, broken)
            return broken

        return register

    def returning(self, value: object, *mutants: tuple[str, object, str, str]) -> None:
        """Register mutants that only return a value: name, owner, attribute, and the test that detects each."""
        for mutant in mutants:
            self._add(*mutant, lambda *_, **__: value)

    def run(self) -> None:
        """Run ``program MUTANT --options``."""
        self._replace[sys.argv.pop(1)]()
        self._main()

    def _add(self, name: str, owner: object, attribute: str, caught_by: str, broken: Function) -> None:
        def replace() -> None:
            original = getattr(owner, attribute)
            setattr(owner, attribute, lambda *arguments, **named: broken(original, *arguments, **named))

        assert name not in self.caught_by
        self.caught_by[name] = caught_by
        self._replace[name] = replace

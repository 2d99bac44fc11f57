"""Tests that are coroutines: each runs on an event loop of its own, and leaves no task behind."""

import asyncio
import inspect
from typing import Any

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    asyncio.run(_run(test(**arguments)))
    return True


async def _run(test: Any) -> None:
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    await test
    for _ in range(3):  # callbacks of transports that were aborted
        await asyncio.sleep(0)
    assert errors == []
    assert len(asyncio.all_tasks()) == 1, asyncio.all_tasks()

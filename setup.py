"""Builds nsq_compat as described in setup.cfg, and compiles the modules of its section [compiled] where possible.

NSQ_COMPAT_COMPILED=0 disables compiling. With NSQ_COMPAT_COMPILED=1, a build that cannot compile fails instead of
leaving the modules interpreted. The wheel contains their Python source in any case, for tracebacks.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
from configparser import ConfigParser
from fnmatch import fnmatchcase
from pathlib import Path

from setuptools import Extension, setup

MYPYC = "mypy==2.4.1"
CHOICE = os.environ.get("NSQ_COMPAT_COMPILED", "")
# Missing imports are ignored, because `make check` checks the types. A Python may be built without SQLite.
MYPY_OPTIONS = ("--config-file=", "--ignore-missing-imports", "--no-sqlite-cache")
_TEST_PROGRAM = b"#include <Python.h>\n"


def obstacle() -> str:
    """The reason why modules cannot be compiled here; empty if they can."""
    if sys.implementation.name != "cpython":
        return "modules can be compiled for CPython only"
    folders = {sysconfig.get_path("include"), sysconfig.get_path("platinclude")}
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    command = [*compiler, *(f"-I{folder}" for folder in folders), "-fsyntax-only", "-xc", "-"]
    try:
        tried = subprocess.run(command, input=_TEST_PROGRAM, capture_output=True, check=False)
    except OSError as error:
        return f"no C compiler: {error}"
    return f"{compiler[0]} does not find Python.h, or does not work" if tried.returncode else ""


def extensions() -> list[Extension]:
    """The compiled modules. This takes a minute, so it is done only for a build, not for queries of requirements."""
    if not {"bdist_wheel", "build", "build_ext"} & set(sys.argv):
        return []
    try:
        from mypyc.build import mypycify
    except ImportError:
        return left_interpreted(f"without build isolation, {MYPYC} must be installed already")
    files = [f"nsq_compat/{module.replace('.', '/')}.py" for module in compiled_modules(Path())]
    compiled: list[Extension] = mypycify(
        [*MYPY_OPTIONS, *files], opt_level="3", debug_level="0", group_name="nsq_compat"
    )
    return compiled


def compiled_modules(root: Path) -> list[str]:
    """The modules of the folders in setup.cfg without the exceptions, such as ``queue.topic``."""
    setup_cfg = ConfigParser(interpolation=None)
    setup_cfg.read(root / "setup.cfg", encoding="utf-8")
    folders, exceptions = (setup_cfg["compiled"][key].split() for key in ("folders", "exceptions"))
    files = [file for folder in folders for file in sorted((root / "nsq_compat" / folder).glob("*.py"))]
    modules = [f"{file.parent.name}.{file.stem}" for file in files if file.stem != "__init__"]
    return [module for module in modules if not any(fnmatchcase(module, each) for each in exceptions)]


def left_interpreted(reason: str) -> list[Extension]:
    """Leave the modules interpreted; ends the build if compiled ones are required."""
    if CHOICE == "1":
        sys.exit(f"NSQ_COMPAT_COMPILED=1: {reason}.")
    print(f"nsq_compat is not compiled: {reason}.", file=sys.stderr)
    return []


def main() -> None:
    if CHOICE not in ("", "0", "1"):
        sys.exit(f"NSQ_COMPAT_COMPILED={CHOICE}: must be 0, 1 or empty.")
    if CHOICE == "0":
        setup()
    elif "editable_wheel" in sys.argv:
        setup(ext_modules=left_interpreted("an editable installation is interpreted; install or build a wheel"))
    elif reason := obstacle():
        setup(ext_modules=left_interpreted(reason))
    else:
        setup(setup_requires=[MYPYC], ext_modules=extensions())


if __name__ == "__main__":
    main()

"""setup.cfg says what is built, and under [compiled] which modules become machine code, where that can be done.

NSQ_COMPAT_COMPILED=0: they do not. NSQ_COMPAT_COMPILED=1: a build that cannot do it fails, instead of leaving them
Python. Their Python goes into the wheel in any case: it is what is compiled, and what tracebacks show.
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
_A_PROGRAM = b"#include <Python.h>\n"


def complaint() -> str:
    """Why nothing can be compiled here; "" if it can."""
    if sys.implementation.name != "cpython":
        return "only CPython's modules can be compiled"
    folders = {sysconfig.get_path("include"), sysconfig.get_path("platinclude")}
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    command = [*compiler, *(f"-I{folder}" for folder in folders), "-fsyntax-only", "-xc", "-"]
    try:
        tried = subprocess.run(command, input=_A_PROGRAM, capture_output=True, check=False)
    except OSError as error:
        return f"no C compiler: {error}"
    return f"{compiler[0]} does not find Python.h, or does not work" if tried.returncode else ""


def extensions() -> list[Extension]:
    """What takes a minute: only for a build, not for whoever asks what a build needs."""
    if not {"bdist_wheel", "build", "build_ext"} & set(sys.argv):
        return []
    try:
        from mypyc.build import mypycify
    except ImportError:
        return left_python(f"without build isolation {MYPYC} has to be installed already")
    files = [f"nsq_compat/{module.replace('.', '/')}.py" for module in compiled_modules(Path())]
    # Types of what is not there do not matter, and whether ours are right `make check` says.
    checks = ["--config-file=", "--ignore-missing-imports"]
    compiled: list[Extension] = mypycify([*checks, *files], opt_level="3", debug_level="0", group_name="nsq_compat")
    return compiled


def compiled_modules(root: Path) -> list[str]:
    """All modules of the folders that setup.cfg names, without the exceptions: ``queue.topic`` and others."""
    setup_cfg = ConfigParser(interpolation=None)
    setup_cfg.read(root / "setup.cfg", encoding="utf-8")
    folders, exceptions = (setup_cfg["compiled"][key].split() for key in ("folders", "exceptions"))
    files = [file for folder in folders for file in sorted((root / "nsq_compat" / folder).glob("*.py"))]
    modules = [f"{file.parent.name}.{file.stem}" for file in files if file.stem != "__init__"]
    return [module for module in modules if not any(fnmatchcase(module, each) for each in exceptions)]


def left_python(reason: str) -> list[Extension]:
    """Ends the build where machine code was asked for."""
    if CHOICE == "1":
        sys.exit(f"NSQ_COMPAT_COMPILED=1: {reason}.")
    print(f"nsq_compat stays Python: {reason}.", file=sys.stderr)
    return []


def main() -> None:
    if CHOICE not in ("", "0", "1"):
        sys.exit(f"NSQ_COMPAT_COMPILED={CHOICE}: 0, 1 or nothing.")
    if CHOICE == "0":
        setup()
    elif "editable_wheel" in sys.argv:
        setup(ext_modules=left_python("an editable installation is interpreted; install or build a wheel"))
    elif reason := complaint():
        setup(ext_modules=left_python(reason))
    else:
        setup(setup_requires=[MYPYC], ext_modules=extensions())


if __name__ == "__main__":
    main()

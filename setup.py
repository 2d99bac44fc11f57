"""setup.cfg says what is built. With NSQ_COMPAT_COMPILED=1 the modules it lists under [compiled] become machine code.

The Python of these modules goes into the wheel too: it is what is compiled, and what tracebacks show.
"""

import os
import sys
from configparser import ConfigParser

from setuptools import Extension, setup

MYPYC = "mypy==2.4.1"
COMPILED = os.environ.get("NSQ_COMPAT_COMPILED", "") == "1"


def extensions() -> list[Extension]:
    """What takes a minute: only for a build, not for whoever asks what a build needs."""
    if "editable_wheel" in sys.argv:
        sys.exit("NSQ_COMPAT_COMPILED=1: an editable installation is interpreted; install or build a wheel.")
    if not {"bdist_wheel", "build", "build_ext"} & set(sys.argv):
        return []
    try:
        from mypyc.build import mypycify
    except ImportError:
        sys.exit(f"NSQ_COMPAT_COMPILED=1: without build isolation {MYPYC} has to be installed already.")
    setup_cfg = ConfigParser(interpolation=None)
    setup_cfg.read("setup.cfg", encoding="utf-8")
    modules = setup_cfg["compiled"]["modules"].split()
    files = [f"nsq_compat/{module.replace('.', '/')}.py" for module in modules]
    # Types of what is not there do not matter, and whether ours are right `make check` says.
    checks = ["--config-file=", "--ignore-missing-imports"]
    compiled: list[Extension] = mypycify([*checks, *files], opt_level="3", debug_level="0", group_name="nsq_compat")
    return compiled


if COMPILED:
    setup(setup_requires=[MYPYC], ext_modules=extensions())
else:
    setup()

"""A sandbox for one page, in which its commands run as they are written, with NSQ's own ports and the named paths.

It is this machine with an overlay file system that keeps changes in memory, a network namespace, and a process
namespace. A page may write to /etc and /var/lib, every page has port 4150, and pages run in parallel. Only root can
create one.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

_MAKE: Final = r"""
set -euo pipefail
mount -t tmpfs tmpfs "$SCRATCH"
copy_on_write() {
    local place
    place=$(mktemp -d "$SCRATCH/XXXXXX")
    mkdir "$place/changes" "$place/work"
    mount -t overlay overlay -o "lowerdir=$1,upperdir=$place/changes,workdir=$place/work" "$2"
}
new=$SCRATCH/root
mkdir "$new"
copy_on_write "$ROOT" "$new"
for each in $MOUNTS; do copy_on_write "$each" "$new/${each#/}"; done
mkdir -p "$new/$SHARED"
mount --bind "$SHARED" "$new/$SHARED"
mount -t proc proc "$new/proc"
mount --rbind /dev "$new/dev"
ip link set lo up
for each in $ADDRESSES; do ip address add "$each/32" dev lo; done
printf '%s\n' "$HOSTS" >>"$new/etc/hosts"
exec chroot "$new" bash -c "cd $CHECKOUT && exec $COMMAND"
"""


def run(
    command: Sequence[str],
    shared: Path,
    *,
    hosts: Mapping[str, str],
    addresses: Sequence[str],
    timeout: float,
    root: Path = Path("/"),
) -> str:
    """Run a command in a new sandbox and return its output. It is killed after `timeout` seconds.

    Files that it writes below `shared` stay. It is started in the checkout, and can import its modules. With another
    `root` than this machine's, it is started there, without the checkout.
    """
    here = root == Path("/")
    mounts = _mounts(ROOT, Path(sys.prefix), Path(sys.base_prefix)) if here else []
    (shared / "scratch").mkdir()
    ours = {
        "COMMAND": shlex.join(command),
        "ROOT": str(root),
        "CHECKOUT": str(ROOT if here else "/"),
        "SCRATCH": str(shared / "scratch"),
        "SHARED": str(shared),
        "MOUNTS": " ".join(map(shlex.quote, mounts)),
        "ADDRESSES": " ".join(addresses),
        "HOSTS": "\n".join(f"{address} {name}" for name, address in hosts.items()),
    }
    spaces = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child=KILL")
    log = shared / "log"
    with log.open("w") as writing:
        process = subprocess.Popen(
            [*spaces, "bash", "-c", _MAKE],
            env={**os.environ, **ours},
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
        )
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            writing.write(f"\nkilled after {timeout:.0f} s\n")
        finally:
            process.kill()
            process.wait()
    return log.read_text(errors="replace")


def _mounts(*needed: Path) -> list[str]:
    """Mount points, other than the root, of the file systems that contain the needed paths."""
    found = {
        str(parent) for path in needed for parent in (path.resolve(), *path.resolve().parents) if parent.is_mount()
    }
    return sorted(found - {"/"}, key=len)


def search_path(*first: Path) -> str:
    """PATH with these folders first, and without those of the environment in which the tests run."""
    kept = [each for each in os.environ["PATH"].split(":") if not Path(each).is_relative_to(sys.prefix)]
    return ":".join([*map(str, first), *kept])

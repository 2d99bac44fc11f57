"""The Debian packages: what is in them, and their installation, upgrade and removal without a network.

With RELEASE_FOLDER, a folder of dist, these are the packages of a release, in the bare Debian RELEASE_ROOT, as `make
release-check` does. Otherwise they contain, instead of a Python, a link to that of the checkout, and are installed on
this machine, in a sandbox (`tests.docs.sandbox`).
"""

import os
import shutil
import subprocess
import sys
import tarfile
from configparser import ConfigParser
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pytest

from nsq_compat import __version__
from scripts.release.debian import DAEMONS, RUNTIME, build_packages
from scripts.release.source import pack
from scripts.release.tarball import LAUNCHER
from tests.docs import sandbox
from tests.packaging.release import ROOT, console_scripts, run

pytestmark = pytest.mark.timeout(600)

TIME = "1800000000"
NEXT = "999.0.0"
NAMES = [*(f"nsq-compat-{name}" for name in DAEMONS), RUNTIME, "nsq-compat-utils"]
PYTHON = f"""\
#!/bin/sh
shift 3
program=${{1##*/}}
shift
exec {sys.prefix}/bin/$program "$@"
"""


@pytest.fixture(scope="module")
def folder() -> Path | None:
    named = os.environ.get("RELEASE_FOLDER")
    return Path(named) if named else None


@pytest.fixture(scope="module")
def tarball(folder: Path | None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of the release, or one with the same layout and without a Python."""
    if folder:
        [found] = folder.glob("*.linux-*.tar.gz")
        return found
    work = tmp_path_factory.mktemp("tarball")
    home = work / f"nsq_compat-{__version__}.linux-amd64"
    for path in ("bin", "lib/licenses", "lib/packages/six-1.0.dist-info", "share/man/man1"):
        (home / path).mkdir(parents=True)
    for script in console_scripts():
        (home / "bin" / script).write_text(LAUNCHER)
        (home / "bin" / script).chmod(0o755)
        (home / f"share/man/man1/{script}.1").write_text(f".TH {script}\n")
    (home / "lib/python3").write_text(PYTHON)
    (home / "lib/python3").chmod(0o755)
    shutil.copy("/bin/true", home / "lib/true.so")
    (home / "lib/licenses/libexpat1").write_text("The license of expat\n")
    (home / "lib/packages/six-1.0.dist-info/LICENSE").write_text("The license of six\n")
    for name in ("LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, home)
    pack(home, work / f"{home.name}.tar.gz", TIME)
    return work / f"{home.name}.tar.gz"


@pytest.fixture(scope="module")
def packages(folder: Path | None, tarball: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if folder:
        return folder
    output = tmp_path_factory.mktemp("packages")
    build_packages(tarball, ROOT, output, __version__, TIME, "none")
    return output


@pytest.fixture(scope="module")
def later(tarball: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packages of a next version, which has other settings."""
    output = tmp_path_factory.mktemp("later")
    build_packages(tarball, next_tree(output / "tree"), output, NEXT, TIME, "none")
    return output


def next_tree(tree: Path) -> Path:
    shutil.copytree(ROOT / "contrib", tree / "contrib")
    for settings in (tree / "contrib/debian").glob("*.cfg"):
        settings.write_text(settings.read_text() + "\n# a setting of the next version\n")
    return tree


def control(package: Path) -> dict[str, str]:
    parser = ConfigParser(interpolation=None)
    parser.read_string("[control]\n" + run("dpkg-deb", "--field", package, cwd=ROOT))
    return dict(parser["control"])


def content(package: Path) -> dict[str, tarfile.TarInfo]:
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as unpacking:
        assert unpacking.stdout
        with tarfile.open(fileobj=unpacking.stdout, mode="r|") as archive:
            return {member.name.removeprefix("./"): member for member in archive}


def test_there_is_a_package_for_each_daemon_for_the_utilities_and_for_what_all_of_them_need(packages):
    found = {path.name.partition("_")[0]: control(path) for path in packages.glob("*.deb")}
    assert sorted(found) == sorted(NAMES)
    assert {each["version"] for each in found.values()} == {f"{__version__}-1"}
    assert {each["architecture"] for each in found.values()} == {"amd64"}
    assert found[RUNTIME]["depends"].startswith("libc6 (>= 2.")
    for name in set(NAMES) - {RUNTIME}:
        assert found[name]["depends"].startswith(f"{RUNTIME} (= {__version__}-1)")


def test_packages_have_every_program_its_manual_page_and_nothing_writable(packages):
    found = {path.name.partition("_")[0]: content(path) for path in packages.glob("*.deb")}
    for daemon in DAEMONS:
        names = found[f"nsq-compat-{daemon}"]
        assert {f"usr/bin/{daemon}", f"usr/lib/systemd/system/{daemon}.service", f"etc/nsq/{daemon}.cfg"} <= set(names)
    everything = {name: member for names in found.values() for name, member in names.items()}
    for script in console_scripts():
        assert everything[f"usr/bin/{script}"].linkname == f"../lib/nsq-compat/bin/{script}"
        assert f"usr/share/man/man1/{script}.1.gz" in everything
    assert {(member.uid, member.gid) for member in everything.values()} == {(0, 0)}
    assert not [name for name, member in everything.items() if not member.issym() and member.mode & 0o022]


def test_the_license_of_everything_that_is_included_is_told(packages, tarball, tmp_path):
    run("dpkg-deb", "--extract", *packages.glob(f"{RUNTIME}_*.deb"), tmp_path, cwd=tmp_path)
    text = (tmp_path / f"usr/share/doc/{RUNTIME}/copyright").read_text()
    assert (ROOT / "LICENSE").read_text() in text
    for distribution in (tmp_path / "usr/lib/nsq-compat/lib/packages").glob("*.dist-info"):
        assert f"\n{distribution.name.removesuffix('.dist-info')}: " in text
    with tarfile.open(tarball) as archive:
        names = {Path(name).name for name in archive.getnames() if "/lib/licenses/" in name}
    assert names
    assert not [name for name in names if f"\n{name}\n" not in text]


def test_two_builds_have_the_same_bytes(tarball, later, tmp_path):
    build_packages(tarball, next_tree(tmp_path / "tree"), tmp_path, NEXT, TIME, "none")
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.deb")} == {
        path.name: path.read_bytes() for path in later.glob("*.deb")
    }


@pytest.mark.parametrize("daemon", DAEMONS)
def test_the_settings_that_a_package_brings_are_valid(daemon, tmp_path):
    path = ("--data-path", tmp_path) if daemon == "nsqd" else ()
    settings = ROOT / f"contrib/debian/{daemon}.cfg"
    said = run(Path(sys.prefix) / "bin" / daemon, "--config", settings, "--check-config", *path, cwd=tmp_path)
    assert said == f"{daemon}: configuration OK\n"


# --- Installed --------------------------------------------------------------------------------------------------------

# Of the sandbox: PATH is that of a login as root, and there may be no curl. `start` does what systemd does with a unit.
BEGIN = r"""
set -euo pipefail
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive
for each in $TRAVERSED; do
    while [ $each != / ]; do chmod a+rx $each; each=$(dirname $each); done
done
rm -rf /run/systemd /usr/sbin/policy-rc.d
# The lists of packages are empty, as those of a new machine.
apt() {
    local log=$SHARED/apt.log
    apt-get --yes --option Dir::State::Lists=$SHARED/lists "$@" >$log 2>&1 || { cat $log; return 1; }
}
install() { apt install --option Dpkg::Options::=--force-confold "$@"; }
mkdir $SHARED/lists
ask() {
    { exec 3<>/dev/tcp/127.0.0.1/$1; } 2>/dev/null || return 1
    printf 'GET %s HTTP/1.0\r\n\r\n' "$2" >&3
    local answer=$(cat <&3)
    exec 3>&-
    [[ $answer == *"$3"* ]]
}
declare -A started
start() {
    local unit=/usr/lib/systemd/system/$1.service user
    user=$(sed -n s/^User=//p $unit)
    (
        set -a
        . /etc/default/$1
        eval "exec setpriv --reuid=${user:-61184} --regid=${user:-61184} --clear-groups --no-new-privs \
            $(sed -n s/^ExecStart=//p $unit)"
    ) 2>$SHARED/$1.log &
    started[$1]=$!
}
serves() { until ask "$@"; do kill -0 ${started[$4]} || { cat $SHARED/$4.log; return 1; }; done; }
stop() { kill ${started[$1]} && wait ${started[$1]}; }
files() { find /etc /usr/bin /usr/lib/nsq* /usr/lib/systemd /usr/share/{doc,man,lintian} /var/lib 2>/dev/null | sort |
    grep -vE '^/var/lib/(apt|dpkg|systemd)|^/etc/(passwd|group|shadow|gshadow)-$|/.pwd.lock$' || true; }
ours() { dpkg-query --show --showformat='${Package} ' 'nsq-compat-*'; }
"""

LIFE = r"""
before=$(files)
install $SHARED/this/*.deb
nsqd --version | sed -n '1s/ .*//p'
id --user --name nsq
stat --format='%U %G %a' /var/lib/nsqd
echo 'NSQD_OPTIONS="--broadcast-address=127.0.0.1 --max-msg-size=2048"' >/etc/default/nsqd
echo '# a remark' >>/etc/nsq/nsqd.cfg
rm /etc/systemd/system/multi-user.target.wants/nsqadmin.service

start nsqlookupd
serves 4161 /ping OK nsqlookupd
start nsqd
serves 4151 /ping OK nsqd
start nsqadmin
serves 4171 /ping OK nsqadmin
printf 'one\ntwo\n' | to_nsq --topic=orders --nsqd-tcp-address=127.0.0.1:4150 2>$SHARED/utility.log
serves 4161 '/lookup?topic=orders' '"broadcast_address":"127.0.0.1"' nsqlookupd
serves 4171 /api/topics orders nsqadmin
for each in nsqadmin nsqd nsqlookupd; do stop $each; done

install $SHARED/later/*.deb
dpkg-query --show nsq-compat-runtime
cat /etc/default/nsqd
tail -1 /etc/nsq/nsqd.cfg
tail -1 /etc/nsq/nsqlookupd.cfg
ls /etc/systemd/system/multi-user.target.wants | grep nsq
start nsqd
serves 4151 /ping OK nsqd
nsq_tail --topic=orders --channel=archive --n=2 --nsqd-tcp-address=127.0.0.1:4150 2>$SHARED/utility.log
stop nsqd
stat --format='%U' /var/lib/nsqd/nsqd.dat

apt remove $(ours)
find /usr/bin -name '*nsq*'
cat /etc/default/nsqd
apt purge $(ours)
comm -13 <(echo "$before") <(files | grep -v ^/var/lib/nsqd/)

rm -r /var/lib/nsqd/*
install $SHARED/this/*.deb
apt purge $(ours)
[ "$before" = "$(files)" ] && ! getent passwd nsq && echo nothing is left
"""

LIVED = f"""\
nsqd
nsq
nsq nsq 700
{RUNTIME}	{NEXT}-1
NSQD_OPTIONS="--broadcast-address=127.0.0.1 --max-msg-size=2048"
# a remark
# a setting of the next version
nsqd.service
nsqlookupd.service
one
two
nsq
NSQD_OPTIONS="--broadcast-address=127.0.0.1 --max-msg-size=2048"
/var/lib/nsqd
nothing is left
"""

# `systemctl` notes which runtime is installed when it is called. apt has a PATH of its own, without /usr/local/bin.
SYSTEMD = r"""
mkdir -p /run/systemd/system /etc/systemd/system/multi-user.target.wants
rm -f /usr/bin/systemctl
cat >/usr/bin/systemctl <<'END'
#!/bin/sh
case "$*" in
*is-enabled*) echo enabled ;;
*preset*)
    for unit; do :; done
    ln -s /usr/lib/systemd/system/$unit /etc/systemd/system/multi-user.target.wants/ ;;
*start* | *stop*) echo "$* $(dpkg-query --show --showformat='${Version}' nsq-compat-runtime)" >>$SHARED/calls ;;
esac
END
chmod +x /usr/bin/systemctl
install $SHARED/this/*.deb
ln -s /usr/lib/systemd/system/nsqd.target /etc/systemd/system/multi-user.target.wants/
install $SHARED/later/*.deb
apt purge $(ours)
sed 's/--[^ ]* //g' $SHARED/calls
"""


@pytest.fixture
def installs(packages: Path, later: Path, folder: Path | None, tmp_path: Path):
    def script(*lines: str) -> str:
        shutil.copytree(packages, tmp_path / "this", ignore=lambda _, names: [n for n in names if n[-4:] != ".deb"])
        shutil.copytree(later, tmp_path / "later")
        traversed = "" if folder else f"{sys.prefix} {sys.base_prefix} {ROOT}"
        variables = {"SHARED": str(tmp_path), "TRAVERSED": traversed}
        exports = [f"export {name}='{value}'" for name, value in variables.items()]
        (tmp_path / "script").write_text("\n".join([*exports, BEGIN, *lines]))
        root = Path(os.environ.get("RELEASE_ROOT", "/"))
        command = ["bash", str(tmp_path / "script")]
        return sandbox.run(command, tmp_path, hosts={}, addresses=(), timeout=280, root=root)

    return script


@pytest.mark.privileged
def test_packages_serve_and_an_upgrade_keeps_messages_and_settings_and_a_removal_leaves_only_data(installs):
    assert installs(LIFE) == LIVED


@pytest.mark.privileged
def test_daemons_are_stopped_before_the_runtime_is_replaced_and_started_afterwards(installs):
    calls = [line.rpartition(" ")[::2] for line in installs(SYSTEMD).splitlines()]
    phases = [(version, {call for call, _ in group}) for version, group in groupby(calls, itemgetter(1))]
    started, stopped = ({f"{call} {name}.service" for name in DAEMONS} for call in ("start", "stop"))
    stopped = stopped - {"stop nsqd.service"} | {"stop nsqd.service nsqd.target"}
    # The administrator has enabled the target of several nodes meanwhile.
    again = started | {"start nsqd.target"}
    assert phases == [(f"{__version__}-1", started | stopped), (f"{NEXT}-1", again | stopped)]


def test_the_units_of_the_packages_start_the_packages_programs(packages, tmp_path):
    for package in packages.glob("*.deb"):
        run("dpkg-deb", "--extract", package, tmp_path, cwd=tmp_path)
    for path in (tmp_path / "usr/lib/systemd/system").glob("*.service"):
        unit, [daemon] = path.read_text(), [name for name in DAEMONS if path.stem.rstrip("@") == name]
        assert f"\nExecStart=/usr/bin/{daemon} --config=/etc/nsq/{daemon}.cfg " in unit
        assert f"\nEnvironmentFile=-/etc/default/{daemon}\n" in unit
        assert "/usr/local" not in unit

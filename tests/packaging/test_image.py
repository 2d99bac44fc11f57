"""The container image: what is in it, and daemons that run from it, unpacked by umoci and started by crun.

With RELEASE_FOLDER, a folder of dist, it is that of a release, as `make release-check` does. Otherwise it contains,
instead of a Python, a link to that of the checkout, which containers then see.
"""

import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from nsq_compat import __version__
from nsq_compat.cli.flags import parse
from nsq_compat.cli.options import table_of
from nsq_compat.nsqadmin.options import NsqadminOptions
from nsq_compat.nsqd.options import NsqdOptions
from nsq_compat.nsqlookupd.main import NsqlookupdOptions
from scripts.release.image import build_image
from scripts.release.source import pack
from scripts.release.tarball import LAUNCHER
from tests.packaging.release import ROOT, console_scripts, run

pytestmark = pytest.mark.timeout(300)

TIME = "1800000000"
REVISION = "1234567890abcdef1234567890abcdef12345678"
PYTHON = f"""\
#!/bin/sh
shift 3
program=${{1##*/}}
shift
exec {sys.prefix}/bin/$program "$@"
"""
OCI = "application/vnd.oci.image"
OF_NSQ = (
    "nsqd",
    "nsqlookupd",
    "nsqadmin",
    "nsq_stat",
    "nsq_tail",
    "nsq_to_file",
    "nsq_to_http",
    "nsq_to_nsq",
    "to_nsq",
)


@pytest.fixture(scope="module")
def release_folder() -> Path | None:
    named = os.environ.get("RELEASE_FOLDER")
    return Path(named) if named else None


@pytest.fixture(scope="module")
def tarball(release_folder: Path | None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of the release, or one with the same layout and without a Python."""
    if release_folder:
        [found] = release_folder.glob("*.linux-*.tar.gz")
        return found
    work = tmp_path_factory.mktemp("tarball")
    home = work / f"nsq_compat-{__version__}.linux-amd64"
    for path in ("bin", "lib/licenses", "lib/packages/certifi"):
        (home / path).mkdir(parents=True)
    for script in console_scripts():
        (home / "bin" / script).write_text(LAUNCHER)
        (home / "bin" / script).chmod(0o755)
    (home / "lib/python3").write_text(PYTHON)
    (home / "lib/python3").chmod(0o755)
    (home / "lib/licenses/zlib1g").write_text("The license of zlib\n")
    (home / "lib/packages/certifi/cacert.pem").write_text("authorities\n")
    (home / f"lib/{'long' * 30}").mkdir()
    pack(home, work / f"{home.name}.tar.gz", TIME)
    return work / f"{home.name}.tar.gz"


@pytest.fixture(scope="module")
def image(release_folder: Path | None, tarball: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if release_folder:
        [found] = release_folder.glob("*.oci.tar")
        return found
    return build_image(tarball, tmp_path_factory.mktemp("image"), REVISION, 1)


class Layout:
    """An OCI layout in a tar."""

    def __init__(self, path: Path) -> None:
        self.files: dict[str, bytes] = {}
        with tarfile.open(path) as archive:
            for member in archive:
                if (content := archive.extractfile(member)) is not None:
                    self.files[member.name] = content.read()
        [self.described] = self.json("index.json")["manifests"]
        self.manifest = self.blob(self.described)
        self.config = self.blob(self.manifest["config"])

    def json(self, name: str) -> Any:
        return json.loads(self.files[name])

    def content(self, descriptor: dict[str, Any]) -> bytes:
        """What a descriptor is of, which must have the digest and the size in it."""
        content = self.files[f"blobs/{descriptor['digest'].replace(':', '/')}"]
        assert descriptor["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
        assert descriptor["size"] == len(content)
        return content

    def blob(self, descriptor: dict[str, Any]) -> Any:
        return json.loads(self.content(descriptor))

    def layers(self) -> list[bytes]:
        return [gzip.decompress(self.content(each)) for each in self.manifest["layers"]]


@pytest.fixture(scope="module")
def layout(image: Path) -> Layout:
    return Layout(image)


@pytest.fixture(scope="module")
def members(layout: Layout) -> dict[str, tarfile.TarInfo]:
    """All files of the image, with those of later layers."""
    found = {}
    for layer in layout.layers():
        with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
            names = [member.name for member in archive]
            found.update({member.name: member for member in archive})
        assert len(set(names)) == len(names)
        for number, name in enumerate(names):
            # Some programs unpack a layer in its order, and none accepts what is outside.
            assert not name.startswith("/")
            assert ".." not in name.split("/")
            assert os.path.dirname(name) in {"", *names[:number]}
    return found


# --- The file ---------------------------------------------------------------------------------------------------------


def test_the_file_is_an_oci_layout_in_which_every_digest_is_right(layout):
    assert layout.json("oci-layout") == {"imageLayoutVersion": "1.0.0"}
    index = layout.json("index.json")
    assert (index["schemaVersion"], index["mediaType"]) == (2, f"{OCI}.index.v1+json")
    assert layout.described["mediaType"] == layout.manifest["mediaType"] == f"{OCI}.manifest.v1+json"
    assert layout.manifest["schemaVersion"] == 2
    assert layout.manifest["config"]["mediaType"] == f"{OCI}.config.v1+json"
    assert {each["mediaType"] for each in layout.manifest["layers"]} == {f"{OCI}.layer.v1.tar+gzip"}
    used = [layout.described, layout.manifest["config"], *layout.manifest["layers"]]
    blobs = {f"blobs/{each['digest'].replace(':', '/')}" for each in used}
    assert set(layout.files) == blobs | {"oci-layout", "index.json", "manifest.json"}
    assert layout.described["annotations"] == {
        "org.opencontainers.image.ref.name": __version__,
        "io.containerd.image.name": f"docker.io/library/nsq_compat:{__version__}",
    }


def test_the_config_describes_the_layers_and_the_machine(layout):
    config = layout.config
    assert config["rootfs"]["type"] == "layers"
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layout.layers()]
    assert len(config["history"]) == len(layout.manifest["layers"])
    platform = {"os": config["os"], "architecture": config["architecture"]}
    assert layout.described["platform"] == platform
    assert platform["os"] == "linux"
    for time in (config["created"], *(step["created"] for step in config["history"])):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", time)


def test_older_dockers_find_the_same_files(layout):
    def path(each: dict[str, Any]) -> str:
        return f"blobs/{each['digest'].replace(':', '/')}"

    [described] = layout.json("manifest.json")
    assert described == {
        "Config": path(layout.manifest["config"]),
        "Layers": [path(each) for each in layout.manifest["layers"]],
        "RepoTags": [f"nsq_compat:{__version__}"],
    }


def test_two_builds_have_the_same_bytes(image, tarball, release_folder, layout, tmp_path):
    revision = layout.config["config"]["Labels"]["org.opencontainers.image.revision"]
    again = build_image(tarball, tmp_path, revision, 9 if release_folder else 1)
    assert again.name == image.name
    assert again.read_bytes() == image.read_bytes()


# --- Contents ---------------------------------------------------------------------------------------------------------


def test_containers_are_not_root_keep_data_in_a_volume_and_run_nsqd(layout):
    settings = layout.config["config"]
    user, _, group = settings["User"].partition(":")
    assert min(int(user), int(group)) >= 10000
    assert list(settings["Volumes"]) == [settings["WorkingDir"]] == ["/data"]
    program, *words = settings["Cmd"]
    assert program == "nsqd"
    assert dict(parse(table_of(NsqdOptions), words).given) == {"data_path": "/data"}
    assert settings["StopSignal"] == "SIGTERM"
    assert settings["Healthcheck"]["Test"] == ["CMD", "healthy"]
    assert settings["Labels"] == layout.manifest["annotations"]
    assert settings["Labels"]["org.opencontainers.image.version"] == __version__


def test_ports_are_those_of_the_daemons_and_of_nsqs_image(layout):
    options = (NsqdOptions(), NsqlookupdOptions(), NsqadminOptions())
    addresses = [getattr(each, name, "") for each in options for name in ("tcp_address", "http_address")]
    ports = {f"{address.rpartition(':')[2]}/tcp" for address in addresses if address}
    assert set(layout.config["config"]["ExposedPorts"]) == ports | {"4170/tcp"}


def test_only_the_volume_belongs_to_the_user_and_only_tmp_is_open_to_all(members, layout):
    user = int(layout.config["config"]["User"].partition(":")[0])
    assert {(each.uid, each.gid) for name, each in members.items() if name != "data"} == {(0, 0)}
    assert (members["data"].uid, members["data"].gid, members["data"].mode) == (user, user, 0o700)
    assert members["tmp"].mode == 0o1777
    assert not [name for name, each in members.items() if not each.issym() and each.mode & 0o6022 and name != "tmp"]


def test_links_lead_to_files_of_the_image(members):
    for name, member in members.items():
        if member.issym():
            path = PurePosixPath("/", name).parent / member.linkname
            parts = list(path.relative_to("/").parts)
            if parts[0] in members and members[parts[0]].issym() and len(parts) > 1:
                parts[:1] = members[parts[0]].linkname.split("/")
            assert os.path.normpath("/".join(parts)) in members, name


def test_programs_are_where_nsqs_image_has_them(members):
    for program in console_scripts():
        assert f"opt/nsq_compat/bin/{program}" in members
    for program in OF_NSQ:
        for name in (program, f"usr/local/bin/{program}", f"usr/bin/{program}"):
            assert members[name].linkname == f"/opt/nsq_compat/bin/{program}"
    assert members["bin"].linkname == "usr/bin"


def test_scanners_find_the_debian_packages_and_licenses_are_told(layout, members):
    status = {name.rpartition("/")[2] for name in members if re.fullmatch(r"var/lib/dpkg/status.d/.+", name)}
    assert {"busybox", "libc6"} <= status
    told = {name.split("/")[3] for name in members if name.endswith("/copyright")}
    told |= {name.rpartition("/")[2] for name in members if name.startswith("opt/nsq_compat/lib/licenses/")}
    assert status <= told
    for layer in layout.layers():
        with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
            for name in archive.getnames():
                if name.startswith("var/lib/dpkg/status.d/"):
                    member = archive.extractfile(name)
                    assert member
                    text = member.read().decode()
                    assert re.fullmatch(r"(\w+: .+\n)+", text)
                    assert re.search(r"^Version: \d", text, re.MULTILINE)
        # With the signatures of the packages, there is no other trace of this machine.
        assert str(ROOT).encode() not in layer.replace(PYTHON.encode(), b"")


def test_packages_of_another_system_are_not_recorded(tmp_path):
    home = tmp_path / "nsq_compat-1.0.0.linux-amd64"
    (home / "lib/licenses").mkdir(parents=True)
    (home / "lib/licenses/zlib1g").write_text("The license of zlib\n")
    (home / "lib/licenses/openssl").write_text("The license of OpenSSL\n")
    (home / "lib/libz.so.1").write_text("another one\n")
    pack(home, tmp_path / f"{home.name}.tar.gz", TIME)
    [_, layer] = Layout(build_image(tmp_path / f"{home.name}.tar.gz", tmp_path, REVISION, 1)).layers()
    with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
        assert not [name for name in archive.getnames() if name.startswith("var/lib/dpkg")]


# --- Containers -------------------------------------------------------------------------------------------------------

COMMANDS = {
    "nsqlookupd": ["/nsqlookupd", "--broadcast-address=127.0.0.1"],
    # Without --data-path: as in NSQ's image, it is the working directory.
    "nsqd": ["/nsqd", "--broadcast-address=127.0.0.1", "--lookupd-tcp-address=127.0.0.1:4160"],
    "nsqadmin": ["/usr/local/bin/nsqadmin", "--lookupd-http-address=127.0.0.1:4161"],
    "default": None,
}
USE = r"""
set -euo pipefail
ip link set lo up
# crun refuses the two versions of cgroups side by side, and needs none here.
mount -t tmpfs tmpfs /sys/fs/cgroup
crun() { command crun --root="$PWD/state" --cgroup-manager=disabled "$@"; }
start() { crun run --bundle="$1" --pid-file="$PWD/$1.pid" "$1" >"$1.log" 2>&1 </dev/null & }
# As crun exec, which does not find the root of a container if this runs in a chroot itself.
within() {
    nsenter --target="$(cat "$1.pid")" --mount --root --pid --setgid=10001 --setuid=10001 \
        /usr/bin/env -i PATH=/usr/local/bin:/usr/bin:/usr/sbin HOME=/data "${@:2}" </dev/null
}
inside() { within nsqd "$@"; }
start nsqlookupd; nsqlookupd=$!
start nsqd; nsqd=$!
start nsqadmin; nsqadmin=$!
for port in 4161 4151 4171; do
    until inside env HEALTH=http://127.0.0.1:$port/livez healthy 2>/dev/null; do
        kill -0 $nsqlookupd && kill -0 $nsqd && kill -0 $nsqadmin
        sleep 0.05
    done
done
inside healthy
! inside env HEALTH=http://127.0.0.1:1/livez healthy
inside sh -c 'printf "one\ntwo\n" | to_nsq --topic=orders --nsqd-tcp-address=127.0.0.1:4150' 2>/dev/null
until inside wget -q -O /dev/null 'http://127.0.0.1:4161/lookup?topic=orders' 2>/dev/null; do sleep 0.05; done
inside nsq_tail --topic=orders --channel=archive --n=2 --lookupd-http-address=127.0.0.1:4161 2>/dev/null
until inside wget -q -O - http://127.0.0.1:4171/api/topics | grep -q orders; do sleep 0.05; done
inside sh -c 'grep -E "^(Uid|CapEff|CapBnd|NoNewPrivs)" /proc/1/status; ls /data'
! inside touch /tmp/something /etc/something /opt/something 2>/dev/null
for each in nsqadmin nsqd nsqlookupd; do
    crun kill $each TERM
    wait ${!each} && echo "$each stopped"
done
start default; default=$!
until within default healthy 2>/dev/null; do kill -0 $default; sleep 0.05; done
crun kill default TERM
wait $default && echo 'default stopped'
"""


def mounts(release_folder: Path | None) -> list[dict[str, Any]]:
    """What containers see of this machine: the Python of the checkout, if the image has none."""
    if release_folder:
        return []
    needed = {str(ROOT), sys.prefix, sysconfig.get_path("stdlib"), f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}"}
    if sys.base_prefix != "/usr":
        needed.add(sys.base_prefix)
    python = Path(sys.executable)
    while python.is_symlink():
        python = python.parent / python.readlink()
        needed.add(str(python))
    return [
        {"destination": path, "source": path, "type": "bind", "options": ["rbind", "ro"]}
        for path in sorted(needed, key=len)
    ]


@pytest.mark.privileged
def test_daemons_serve_without_privileges_on_a_read_only_root_and_stop_cleanly(image, release_folder, tmp_path):
    (tmp_path / "layout").mkdir()
    run("tar", "-xf", image, "-C", tmp_path / "layout", cwd=tmp_path)
    run("umoci", "unpack", "--image", f"layout:{__version__}", "bundle", cwd=tmp_path)
    spec = json.loads((tmp_path / "bundle/config.json").read_text())
    spec["root"] = {"path": str(tmp_path / "bundle/rootfs"), "readonly": True}
    # The containers share a network, as in a pod.
    spec["linux"]["namespaces"] = [each for each in spec["linux"]["namespaces"] if each["type"] != "network"]
    spec["process"] |= {"terminal": False, "noNewPrivileges": True, "capabilities": {}}
    for name, command in COMMANDS.items():
        (tmp_path / name / "data").mkdir(parents=True)
        os.chown(tmp_path / name / "data", spec["process"]["user"]["uid"], spec["process"]["user"]["gid"])
        volume = {"destination": "/data", "source": str(tmp_path / name / "data"), "type": "bind", "options": ["bind"]}
        kept = [each for each in spec["mounts"] if each["destination"] in ("/proc", "/dev", "/dev/pts", "/dev/shm")]
        process = spec["process"] | ({"args": command} if command else {})
        own = spec | {"process": process, "mounts": [*kept, *mounts(release_folder), volume]}
        (tmp_path / name / "config.json").write_text(json.dumps(own))
    spaces = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child=KILL", "--mount-proc")
    done = subprocess.run(
        [*spaces, "bash", "-c", USE],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    logs = "".join(path.read_text()[-2000:] for path in tmp_path.glob("*.log"))
    assert done.returncode == 0, f"{done.stdout}{done.stderr}{logs}"
    none = 16 * "0"
    assert done.stdout.splitlines() == [
        "one", "two", "Uid:" + 4 * "\t10001", f"CapEff:\t{none}", f"CapBnd:\t{none}", "NoNewPrivs:\t1",
        "nsq_compat", "nsqd.dat", "nsqadmin stopped", "nsqd stopped", "nsqlookupd stopped", "default stopped",
    ]  # fmt: skip

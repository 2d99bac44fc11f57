"""The image: the tarball on a base of glibc and busybox, as an OCI layout in one file, made without a container engine.

`docker load` and `podman load` read the file, and skopeo as `oci-archive:`. Containers have no privileges and a
read-only root, so all that is in the image belongs to root, except the volume /data.
"""

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from scripts.release.source import run

USER: Final = 10001
"""A number, because Kubernetes can verify only then that it is not root."""
PROGRAMS: Final = "opt/nsq_compat"
"""Where the tarball is unpacked."""
VOLUME: Final = "data"
NAME: Final = "nsq_compat"

# A container runs one daemon, so only one of the ports answers.
HEALTHY: Final = """\
#!/bin/sh
# Succeed if the daemon in this container is alive. HEALTH names another URL than those of the default ports.
for url in ${HEALTH:-http://127.0.0.1:4151/livez http://127.0.0.1:4161/livez http://127.0.0.1:4171/livez}; do
    timeout 4 wget -q -O /dev/null "$url" 2>/dev/null && exit
done
exit 1
"""

FILES: Final = {
    "etc/passwd": f"root:x:0:0:root:/:/bin/sh\nnsq:x:{USER}:{USER}:nsq:/data:/bin/sh\n",
    "etc/group": f"root:x:0:\nnsq:x:{USER}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
}
FOLDERS: Final = ("dev", "etc", "proc", "run", "sys", "tmp", "usr/sbin", VOLUME)
"""Besides those that contain something. A runtime mounts on some of them, and cannot make them in a read-only root."""
LINKS: Final = {
    "bin": "usr/bin",
    "lib": "usr/lib",
    "lib64": "usr/lib64",
    "sbin": "usr/sbin",
    "etc/os-release": "../usr/lib/os-release",
    # Certificate authorities: those of certifi, or those of a host that are mounted over /etc/ssl/certs.
    "etc/ssl/certs/ca-certificates.crt": f"/{PROGRAMS}/lib/packages/certifi/cacert.pem",
    "usr/lib/ssl/cert.pem": "/etc/ssl/certs/ca-certificates.crt",
}
BASE: Final = ("busybox", "libc6", "libgcc-s1", "libstdc++6")
"""Debian packages."""
WANTED: Final = re.compile(
    r"usr/bin/busybox"
    r"|usr/lib.*/(ld-linux.*|lib(c|m|dl|pthread|rt|util|resolv|anl|nss_(dns|files)|gcc_s|stdc\+\+)\.so\.\d)"
)
"""Their parts, without those for development, or for name services that the image does not have."""

MEDIA: Final = "application/vnd.oci.image"
CONTAINERD_NAME: Final = "io.containerd.image.name"
"""The annotation with the name under which Docker and Podman load an image."""


def build_image(tarball: Path, output: Path, revision: str, compression: int = 9) -> Path:
    """Write `nsq_compat-VERSION.linux-MACHINE.oci.tar`. The tarball must have been built on this machine."""
    version, machine = re.findall(r"^nsq_compat-(.+)\.linux-(\w+)\.tar\.gz$", tarball.name)[0]
    base, added = Layer(), Layer()
    add_base(base)
    with tarfile.open(tarball) as programs:
        time = int(next(iter(programs)).mtime)
        add_programs(added, programs)
    path = output / f"{tarball.name.removesuffix('.tar.gz')}.oci.tar"
    steps = ("glibc and busybox, of Debian", tarball.name)
    plain = [layer.tar(time) for layer in (base, added)]
    config = json_bytes({
        "created": iso(time),
        "architecture": machine,
        "os": "linux",
        "config": settings(version, revision, time),
        "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in plain]},
        "history": [{"created": iso(time), "created_by": f"scripts.release: {step}"} for step in steps],
    })  # fmt: skip
    packed = [gzip.compress(layer, compression, mtime=0) for layer in plain]
    write_layout(path, config, packed, machine, labels(version, revision, time), time)
    return path


def settings(version: str, revision: str, time: int) -> dict[str, Any]:
    """How containers run by default. Healthcheck is Docker's: OCI's specification has nothing like it."""
    # TCP and HTTP of nsqd, nsqlookupd and nsqadmin. Nothing uses 4170, which NSQ's image exposes, too.
    ports = (4150, 4151, 4160, 4161, 4170, 4171)
    second = 1_000_000_000
    return {
        "User": f"{USER}:{USER}",
        "ExposedPorts": {f"{port}/tcp": {} for port in ports},
        "Env": ["PATH=/usr/local/bin:/usr/bin:/usr/sbin", f"HOME=/{VOLUME}"],
        "Cmd": ["nsqd", f"--data-path=/{VOLUME}"],
        "Volumes": {f"/{VOLUME}": {}},
        "WorkingDir": f"/{VOLUME}",
        "Labels": labels(version, revision, time),
        "StopSignal": "SIGTERM",
        "Healthcheck": {
            "Test": ["CMD", "healthy"],
            "Interval": 30 * second,
            "Timeout": 15 * second,
            "StartPeriod": 60 * second,
            "Retries": 3,
        },
    }


def labels(version: str, revision: str, time: int) -> dict[str, str]:
    described = {
        "title": NAME,
        "description": "NSQ's nsqd, nsqlookupd, nsqadmin and utilities, wire-compatible, in Python on gevent",
        "version": version,
        "revision": revision,
        "created": iso(time),
        "licenses": "MIT",
    }
    return {f"org.opencontainers.image.{name}": value for name, value in described.items()}


# --- Layers -----------------------------------------------------------------------------------------------------------


class Layer:
    """Files by their paths, with the folders that contain them."""

    def __init__(self) -> None:
        self._members: dict[str, tuple[tarfile.TarInfo, bytes]] = {}

    def add(self, name: str, content: bytes, mode: int = 0o644) -> None:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        self._put(member, mode, content)

    def link(self, name: str, target: str) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = tarfile.SYMTYPE, target
        self._put(member, 0o777)

    def folder(self, name: str, mode: int = 0o755, user: int = 0) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.uid, member.gid = tarfile.DIRTYPE, user, user
        self._put(member, mode)

    def _put(self, member: tarfile.TarInfo, mode: int, content: bytes = b"") -> None:
        parent = os.path.dirname(member.name)
        if parent and parent not in self._members:
            self.folder(parent)
        member.mode = mode
        self._members[member.name] = member, content

    def tar(self, time: int) -> bytes:
        """A folder comes before its contents, and everything has one time."""
        written = io.BytesIO()
        with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as file:
            for name in sorted(self._members, key=lambda name: name.split("/")):
                member, content = self._members[name]
                member.mtime = time
                file.addfile(member, io.BytesIO(content))
        return written.getvalue()


def add_programs(layer: Layer, programs: tarfile.TarFile) -> None:
    """Add the tarball, with links where NSQ's image has its programs."""
    packages, is_of_system = [], True
    for member in programs:
        name = "/".join([PROGRAMS, *member.name.split("/")[1:]])
        if member.isdir():
            layer.folder(name)
        elif (content := programs.extractfile(member)) is not None:
            data = content.read()
            layer.add(name, data, member.mode)
            if re.fullmatch(rf"{PROGRAMS}/lib/lib[^/]+\.so[^/]*", name):
                is_of_system &= data in [
                    path.read_bytes() for path in Path("/usr/lib").glob(f"*/{os.path.basename(name)}")
                ]
        folder, _, base = name.removeprefix(f"{PROGRAMS}/").rpartition("/")
        if folder == "bin":
            layer.link(f"usr/local/bin/{base}", f"/{name}")
            layer.link(f"usr/bin/{base}", f"/{name}")
            layer.link(base, f"/{name}")
        elif folder == "lib/licenses":
            packages.append(base)
    layer.add("usr/local/bin/healthy", HEALTHY.encode(), 0o755)
    # A Python of scripts/interpreter brings libraries of another system, with versions that are not known here.
    if is_of_system:
        add_packages(layer, packages)


def add_base(layer: Layer) -> None:
    """Add a shell and the libraries that the tarball takes from the system, as they are installed on this machine."""
    if not shutil.which("busybox"):
        sys.exit("The image contains busybox. On Debian, install it with:  apt-get install busybox")
    for package in BASE:
        for path in map(Path, run("dpkg", "-L", package).split()):
            name = f"usr{str(path).removeprefix('/usr')}"
            if path.name.startswith("ld-linux") and path.is_symlink():
                layer.link(name, str(path.readlink()))
            elif path.is_file() and WANTED.fullmatch(name):
                layer.add(name, path.read_bytes(), 0o755)
        layer.add(f"usr/share/doc/{package}/copyright", Path(f"/usr/share/doc/{package}/copyright").read_bytes())
    for applet in run("busybox", "--list").split():
        if applet != "busybox":
            layer.link(f"usr/bin/{applet}", "busybox")
    for name in FOLDERS:
        layer.folder(name)
    layer.folder("tmp", 0o1777)
    layer.folder(VOLUME, 0o700, USER)
    for name, text in FILES.items():
        layer.add(name, text.encode())
    for name, target in LINKS.items():
        layer.link(name, target)
    layer.add("usr/lib/os-release", Path("/etc/os-release").read_bytes())
    add_packages(layer, BASE)


def add_packages(layer: Layer, packages: Iterable[str]) -> None:
    """Record the versions of Debian packages, where scanners for vulnerabilities look in images without dpkg."""
    fields = ("Package", "Status", "Version", "Architecture", "Maintainer")
    shown = "".join(f"{field}: ${{{field}}}\n" for field in fields)
    shown += "Source: ${source:Package} (${source:Version})\nDescription: ${binary:Summary}\n"
    for package in packages:
        text = run("dpkg-query", "--show", f"--showformat={shown}", package)
        layer.add(f"var/lib/dpkg/status.d/{package}", text.encode())


# --- Layout -----------------------------------------------------------------------------------------------------------


def write_layout(
    path: Path, config: bytes, layers: Sequence[bytes], machine: str, annotations: Mapping[str, str], time: int
) -> None:
    """Write an OCI layout as a tar, with the manifest of older Dockers, which refers to the same files."""
    version = annotations["org.opencontainers.image.version"]
    manifest = json_bytes({
        "schemaVersion": 2,
        "mediaType": f"{MEDIA}.manifest.v1+json",
        "config": descriptor(f"{MEDIA}.config.v1+json", config),
        "layers": [descriptor(f"{MEDIA}.layer.v1.tar+gzip", layer) for layer in layers],
        "annotations": annotations,
    })  # fmt: skip
    names = {
        CONTAINERD_NAME: f"docker.io/library/{NAME}:{version}",
        "org.opencontainers.image.ref.name": version,
    }
    described = descriptor(f"{MEDIA}.manifest.v1+json", manifest)
    described |= {"annotations": names, "platform": {"architecture": machine, "os": "linux"}}
    index = {"schemaVersion": 2, "mediaType": f"{MEDIA}.index.v1+json", "manifests": [described]}
    docker = [
        {"Config": blob(config), "RepoTags": [f"{NAME}:{version}"], "Layers": [blob(layer) for layer in layers]},
    ]
    files = Layer()
    for content in (config, manifest, *layers):
        files.add(blob(content), content)
    files.add("index.json", json_bytes(index))
    files.add("manifest.json", json_bytes(docker))
    files.add("oci-layout", json_bytes({"imageLayoutVersion": "1.0.0"}))
    path.write_bytes(files.tar(time))


def descriptor(kind: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": digest(content), "size": len(content)}


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def blob(content: bytes) -> str:
    return f"blobs/{digest(content).replace(':', '/')}"


def json_bytes(value: object) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode()


def iso(time: int) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

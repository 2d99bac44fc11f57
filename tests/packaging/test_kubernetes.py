"""The Helm chart and the manifests in contrib: valid for Kubernetes, consistent with our programs, and with working
commands.

There is no cluster. Helm renders the chart, the API's schemas validate the result, and the pods' commands run in a
sandbox that resolves the pods' names (`tests.docs.sandbox`).
"""

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from nsq_compat import __version__
from nsq_compat.cli.flags import parse
from nsq_compat.cli.options import table_of
from nsq_compat.nsqadmin.options import NsqadminOptions
from nsq_compat.nsqd.options import NsqdOptions
from nsq_compat.nsqlookupd.main import NsqlookupdOptions
from nsq_compat.protocol.durations import SECOND
from nsq_conformance.certificates import Certificates
from scripts.release.image import USER
from tests.docs.sandbox import ROOT, run, search_path

CONTRIB = ROOT / "contrib"
BIN = Path(sys.prefix, "bin")
OPTIONS: dict[str, type] = {"nsqd": NsqdOptions, "nsqlookupd": NsqlookupdOptions, "nsqadmin": NsqadminOptions}
VERSIONS = ("1.32", "1.37")
NAMESPACE = "queue"
STOP_SECONDS = 10

Document = dict[str, Any]

PLAIN: Document = {"namePrefix": ""}
MONITORED: Document = {**PLAIN, "serviceMonitor": {"enabled": True}}
CASES: dict[str, Document] = {
    "default": {},
    "plain": PLAIN,
    "monitored": MONITORED,
    "pairs": {"nsqd": {"replicas": 4, "mirror": {"enabled": True, "lost": "refuse", "takeoverAfter": "manual"}}},
    "secure": {
        "nsqd": {"replicas": 2, "mirror": {"enabled": True}, "tls": {"secretName": "nsqd-tls"}},
        "access": {"secretName": "nsq-access"},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}, "tokenKey": "metrics.token"},
    },
    "ephemeral": {"nsqd": {"replicas": 1, "persistence": {"enabled": False}}, "nsqadmin": {"enabled": False}},
    "everything": {
        "image": {"repository": "example.org/nsq", "tag": "next"},
        "imagePullSecrets": [{"name": "registry"}],
        "nsqd": {
            "config": "[[policies]]\nmax_attempts = 5\n",
            "extraArgs": ["--max-msg-size=100000"],
            "persistence": {"storageClassName": "fast"},
            "nodeSelector": {"disk": "fast"},
            "tolerations": [{"key": "queue", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "podAnnotations": {"example.org/team": "queue"},
        },
        "nsqlookupd": {"replicas": 3, "extraArgs": ["--log-level=debug"], "podAnnotations": {"a": "b"}},
        "nsqadmin": {"extraArgs": ["--page-timeout=5s"], "podAnnotations": {"a": "b"}},
    },
}


def helm(*arguments: str, values: Document) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "helm"), *arguments, str(CONTRIB / "helm/nsq"), "--namespace", NAMESPACE, "--values", "-"]
    return subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, timeout=50)


@cache
def documents(case: str) -> list[Document]:
    """What the chart results in, as a release that is called nsq."""
    done = helm("template", "nsq", values=CASES[case])
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def containers(document: Document) -> list[Document]:
    if document["kind"] not in ("StatefulSet", "Deployment"):
        return []
    found: list[Document] = document["spec"]["template"]["spec"]["containers"]
    return found


def prefix(case: str) -> str:
    return str(CASES[case].get("namePrefix", "nsq-"))


def workloads(case: str) -> dict[str, Document]:
    """By the name of the daemon."""
    found = [each for each in documents(case) if containers(each)]
    return {each["metadata"]["name"].removeprefix(prefix(case)): each for each in found}


def of_kind(kind: str, case: str) -> list[Document]:
    return [each for each in documents(case) if each["kind"] == kind]


def container_of(name: str, case: str) -> Document:
    [container] = containers(workloads(case)[name])
    return container


def pod_of(name: str, case: str) -> Document:
    pod: Document = workloads(case)[name]["spec"]["template"]["spec"]
    return pod


def labels_of(name: str, case: str) -> Document:
    labels: Document = workloads(case)[name]["spec"]["template"]["metadata"]["labels"]
    return labels


PRINT = '#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@"\n'


def command_of(name: str, case: str, number: int = 0) -> list[str]:
    """The words with which a pod starts its daemon, after shells. `$(NAME)` is replaced by values of its `env`."""
    container = container_of(name, case)
    values = {"metadata.name": f"{prefix(case)}{name}-{number}", "metadata.namespace": NAMESPACE}
    variables = {each["name"]: values[each["valueFrom"]["fieldRef"]["fieldPath"]] for each in container["env"]}
    words = container["command"] + container["args"]
    for variable, value in variables.items():
        words = [word.replace(f"$({variable})", value) for word in words]
    with tempfile.TemporaryDirectory() as folder:
        for program in OPTIONS:
            Path(folder, program).write_text(PRINT)
            Path(folder, program).chmod(0o755)
        path = {"PATH": f"{folder}:/usr/bin:/bin"}
        done = subprocess.run(words, env=variables | path, capture_output=True, text=True, check=True, timeout=50)
    return done.stdout.splitlines()


def options_of(name: str, case: str, number: int = 0) -> Any:
    program, *words = command_of(name, case, number)
    assert program == name
    given = dict(parse(table_of(OPTIONS[name]), words).given)
    fields = {each.name for each in dataclasses.fields(OPTIONS[name])}
    # The others name the files of secrets, which are not here.
    assert all(each.endswith("_file") for each in set(given) - fields)
    return OPTIONS[name](**{field: value for field, value in given.items() if field in fields})


WORKLOADS = [(case, name) for case in CASES for name in OPTIONS if case != "ephemeral" or name != "nsqadmin"]

# --- Every combination of values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_the_chart_has_no_mistakes(case):
    done = helm("lint", "--strict", "--quiet", values=CASES[case])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", CASES)
def test_manifests_are_valid(case, version):
    for document in documents(case):
        if document["kind"] != "ServiceMonitor":  # a resource of the Prometheus operator
            kubernetes_validate.validate(document, version, strict=True)
    names = [(each["kind"], each["metadata"]["name"]) for each in documents(case)]
    assert len(set(names)) == len(names)


def test_a_misspelled_field_is_detected():
    document = yaml.safe_load(yaml.safe_dump(workloads("plain")["nsqd"]))
    document["spec"]["template"]["spec"]["terminationGracePeriod"] = 330
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, VERSIONS[-1], strict=True)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"nsqd": {"mirror": {"enabled": True}}}, "nsqd.replicas must be even"),
        ({"nsqd": {"mirror": {"lost": "ignore"}}}, "/nsqd/mirror/lost"),
        ({"nsqd": {"replica": 3}}, "replica"),
    ],
)
def test_wrong_values_are_refused(values: Document, error: str):
    done = helm("template", "nsq", values=values)
    assert done.returncode != 0
    assert error in done.stderr


@pytest.mark.parametrize(("case", "name"), WORKLOADS)
def test_a_pods_flags_and_ports_are_those_of_its_daemon(case, name):
    options = options_of(name, case)
    ports = {each["name"]: each["containerPort"] for each in container_of(name, case)["ports"]}
    addresses = {"tcp": getattr(options, "tcp_address", ""), "http": options.http_address}
    if getattr(options, "tls_cert", ""):
        addresses["https"] = options.https_address
    assert ports == {kind: int(address.rpartition(":")[2]) for kind, address in addresses.items() if address}
    for service in of_kind("Service", case):
        if service["spec"]["selector"].items() <= labels_of(name, case).items():
            assert {each["name"]: each["port"] for each in service["spec"]["ports"]} == ports
            assert all(each["targetPort"] == each["name"] for each in service["spec"]["ports"])


@pytest.mark.parametrize(("case", "name"), WORKLOADS)
def test_a_pod_has_no_privileges(case, name):
    pod, container = pod_of(name, case), container_of(name, case)
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]) == (USER, USER)
    assert pod["securityContext"]["runAsNonRoot"] is container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is pod["automountServiceAccountToken"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    image = CASES[case].get("image", {"repository": "registry.example.com/nsq_compat", "tag": __version__})
    assert container["image"] == f"{image['repository']}:{image['tag']}"


@pytest.mark.parametrize(("case", "name"), WORKLOADS)
def test_files_that_flags_name_are_in_volumes_that_exist(case, name):
    mounts = {each["mountPath"]: each["name"] for each in container_of(name, case).get("volumeMounts", [])}
    claims = [each["metadata"]["name"] for each in workloads(case)[name]["spec"].get("volumeClaimTemplates", [])]
    volumes = [each["name"] for each in pod_of(name, case).get("volumes", [])]
    assert sorted(mounts.values()) == sorted(claims + volumes)
    paths = [word.partition("=")[2] for word in command_of(name, case) if "=/" in word]
    for path in paths:
        assert path == "/data" or os.path.dirname(path) in mounts, path
    assert {os.path.dirname(path) for path in paths if path != "/data"} | {"/data"} >= set(mounts)


@pytest.mark.parametrize("case", CASES)
def test_nsqd_keeps_its_data_in_a_volume_and_has_time_to_drain(case):
    container, pod = container_of("nsqd", case), pod_of("nsqd", case)
    options = options_of("nsqd", case)
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    claims = workloads(case)["nsqd"]["spec"].get("volumeClaimTemplates", [])
    if case == "ephemeral":
        assert {"name": "data", "emptyDir": {}} in pod["volumes"]
    else:
        assert [each["metadata"]["name"] for each in claims] == [mounts[options.data_path]]
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
    assert options.sigterm == "drain"
    before = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] >= before + options.drain_timeout / SECOND + STOP_SECONDS


@pytest.mark.parametrize("case", CASES)
def test_references_between_manifests_exist(case):
    for each in of_kind("StatefulSet", case):
        [service] = [one for one in of_kind("Service", case) if one["metadata"]["name"] == each["spec"]["serviceName"]]
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["publishNotReadyAddresses"] is True
    for each in workloads(case).values():
        assert each["spec"]["selector"]["matchLabels"].items() <= each["spec"]["template"]["metadata"]["labels"].items()
    budgets = {
        each["metadata"]["name"].removeprefix(prefix(case)): each["spec"]["selector"]["matchLabels"]
        for each in of_kind("PodDisruptionBudget", case)
    }
    assert set(budgets) == {"nsqd", "nsqlookupd"}
    assert all(labels.items() <= labels_of(name, case).items() for name, labels in budgets.items())
    lookupd = f"{prefix(case)}nsqlookupd"
    wanted = [f"{lookupd}-{number}.{lookupd}" for number in range(workloads(case)["nsqlookupd"]["spec"]["replicas"])]
    for name in set(workloads(case)) - {"nsqlookupd"}:
        flags = [word for word in command_of(name, case) if word.startswith("--lookupd-")]
        assert [word.partition("=")[2].partition(":")[0] for word in flags] == wanted


@pytest.mark.parametrize("case", ["monitored", "secure"])
def test_the_operator_scrapes_every_daemon_once(case):
    [monitor] = of_kind("ServiceMonitor", case)
    [wanted], [endpoint] = monitor["spec"]["selector"]["matchExpressions"], monitor["spec"]["endpoints"]
    scraped = [
        each for each in of_kind("Service", case) if each["metadata"]["labels"][wanted["key"]] in wanted["values"]
    ]
    assert sorted(each["metadata"]["name"] for each in scraped) == sorted(f"{prefix(case)}{name}" for name in OPTIONS)
    for each in scraped:
        assert monitor["spec"]["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items()
        assert endpoint["port"] in {port["name"] for port in each["spec"]["ports"]}
    assert (endpoint["path"], monitor["spec"]["jobLabel"]) == ("/metrics", wanted["key"])


# --- Single values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["pairs", "secure"])
def test_mirrors_are_pairs_with_ids_that_differ(case):
    nsqd = f"{prefix(case)}nsqd"
    replicas = workloads(case)["nsqd"]["spec"]["replicas"]
    found = [options_of("nsqd", case, number) for number in range(replicas)]
    assert [options.id for options in found] == list(range(replicas))
    assert all(options.mirror_accept for options in found)
    others = [number + 1 - number % 2 * 2 for number in range(replicas)]
    assert [options.mirror_to for options in found] == [f"{nsqd}-{each}.{nsqd}.{NAMESPACE}.svc:4150" for each in others]
    [spread] = pod_of("nsqd", case)["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "DoNotSchedule")


def test_the_settings_of_mirrors_tls_and_access_reach_the_daemons():
    pairs, secure = options_of("nsqd", "pairs"), options_of("nsqd", "secure")
    assert (pairs.mirror_lost, pairs.mirror_takeover_after) == ("refuse", "manual")
    assert (pairs.mirror_tls, pairs.access_file, pairs.tls_cert) == (False, "", "")
    assert secure.mirror_tls
    words = command_of("nsqd", "secure")
    assert {"--tls-required=tcp-https", "--mirror-auth-secret-file=/etc/nsq/access/mirror.token"} <= set(words)
    for name in OPTIONS:
        assert options_of(name, "secure").access_file == "/etc/nsq/access/access.toml"
    secrets = {each["secret"]["secretName"] for each in pod_of("nsqd", "secure")["volumes"]}
    assert secrets == {"nsqd-tls", "nsq-access"}
    for name, files in (("nsqd", ["access.toml", "nodes.token", "mirror.token"]), ("nsqlookupd", ["access.toml"])):
        [volume] = [each["secret"] for each in pod_of(name, "secure")["volumes"] if each["name"] == "access"]
        assert volume["items"] == [{"key": file, "path": file} for file in files]
        named = {word.rpartition("/")[2] for word in command_of(name, "secure") if "=/etc/nsq/access/" in word}
        assert named == set(files), "it has only what its flags name"
    [endpoint] = of_kind("ServiceMonitor", "secure")[0]["spec"]["endpoints"]
    assert endpoint["authorization"] == {"credentials": {"name": "nsq-access", "key": "metrics.token"}}


def test_the_config_file_is_mounted_and_a_change_restarts_the_pods():
    [file] = of_kind("ConfigMap", "everything")
    assert file["data"] == {"nsqd.cfg": CASES["everything"]["nsqd"]["config"]}
    [volume] = [each for each in pod_of("nsqd", "everything")["volumes"] if each["name"] == "config"]
    assert volume["configMap"]["name"] == file["metadata"]["name"]
    annotations = workloads("everything")["nsqd"]["spec"]["template"]["metadata"]["annotations"]
    assert set(annotations) == {"checksum/config", "example.org/team"}


@pytest.mark.parametrize(("case", "name"), [each for each in WORKLOADS if each[0] in ("pairs", "secure", "everything")])
def test_daemons_start_with_the_files_of_the_volumes(case, name, tmp_path):
    for folder in ("data", "access", "tls", "config"):
        (tmp_path / folder).mkdir()
    made = Certificates(tmp_path)
    for file, name_there in ((made.certificate, "tls.crt"), (made.key, "tls.key"), (made.root_ca, "ca.crt")):
        shutil.copy(file, tmp_path / "tls" / name_there)
    (tmp_path / "config/nsqd.cfg").write_text(CASES["everything"]["nsqd"]["config"])
    for token in ("nodes", "nsqadmin", "mirror"):
        new = ("new", f"--access-file={tmp_path}/access/access.toml", f"--name={token}", "--permission=admin")
        text = subprocess.run([BIN / "nsq_access", *new], capture_output=True, check=True, timeout=50).stdout
        (tmp_path / f"access/{token}.token").write_bytes(text)
    program, *words = command_of(name, case)
    words = [word.replace("=/etc/nsq/", f"={tmp_path}/").replace("=/data", f"={tmp_path}/data") for word in words]
    # nsqadmin resolves names at its start.
    words = [re.sub(r"^(--lookupd-http-address)=.*:", r"\1=127.0.0.1:", word) for word in words]
    done = subprocess.run([BIN / program, "--check-config", *words], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr


# --- The manifests ----------------------------------------------------------------------------------------------------


def test_the_manifests_are_what_the_chart_results_in(tmp_path):
    subprocess.run(["make", "--silent", "manifests", f"MANIFESTS={tmp_path}"], cwd=ROOT, check=True, timeout=50)
    written = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.yaml")}
    assert len(written) == 2
    for path, text in written.items():
        assert (CONTRIB / "kubernetes" / path).read_text() == text, "run `make manifests`"


@pytest.mark.parametrize(("folder", "case"), [("base", "plain"), ("prometheus-operator", "monitored")])
def test_kubectl_renders_the_manifests_with_the_image_of_the_kustomization(folder, case):
    command = [str(BIN / "kubectl"), "kustomize", str(CONTRIB / "kubernetes" / folder)]
    said = subprocess.run(command, capture_output=True, check=True, timeout=50).stdout
    by_name = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(said)}
    assert by_name == {(each["kind"], each["metadata"]["name"]): each for each in documents(case)}


# --- Commands ---------------------------------------------------------------------------------------------------------


def probes(name: str) -> Iterator[str]:
    container = container_of(name, "plain")
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if asks := container.get(probe, {}).get("httpGet"):
            yield f"http://127.0.0.1:{ports[asks['port']]}{asks['path']}"


USE = r"""
set -euo pipefail
mkdir /data
{start}
for url in {probes}; do
    until curl --silent --fail --output /dev/null $url; do kill -0 $nsqlookupd $nsqd $nsqadmin; sleep 0.1; done
done
nsqd_http=http://nsqd-0.nsqd.queue.svc:4151
for call in topic/create?topic=orders 'channel/create?topic=orders&channel=archive'; do
    curl --silent --fail -X POST "$nsqd_http/$call"
done
printf 'one\ntwo' | curl --silent --fail --data-binary @- "$nsqd_http/mpub?topic=orders" >/dev/null
lookupd_http=nsqlookupd-0.nsqlookupd:4161
until curl --silent --fail --output /dev/null "http://$lookupd_http/lookup?topic=orders"; do sleep 0.1; done
nsq_tail --topic=orders --channel=archive --n=1 --lookupd-http-address=$lookupd_http 2>/dev/null
kill -TERM $nsqd
# One message is left, so nsqd still runs under its name.
nsq_tail --topic=orders --channel=archive --n=1 --nsqd-tcp-address=nsqd-0.nsqd.queue.svc:4150 2>/dev/null
wait $nsqd
grep -o 'NSQ: drained$' nsqd.log
kill $nsqlookupd $nsqadmin
wait $nsqlookupd $nsqadmin
echo gone
"""


@pytest.mark.privileged
@pytest.mark.timeout(900)
def test_the_pods_commands_serve_answer_probes_and_drain_before_they_stop(tmp_path):
    starts = [
        f"{shlex.join(command_of(name, 'plain'))} 2>{name}.log &\n{name}=$!"
        for name in ("nsqlookupd", "nsqd", "nsqadmin")
    ]
    asked = [url for name in OPTIONS for url in probes(name)]
    script = USE.format(start="\n".join(starts), probes=" ".join(asked))
    (tmp_path / "script").write_text(f"cd {tmp_path}; export PATH={search_path(Path(sys.executable).parent)}\n{script}")
    hosts = {
        "nsqlookupd-0.nsqlookupd": "127.0.0.1",
        "nsqlookupd-1.nsqlookupd": "127.0.0.2",
        **{f"{name}-0.{name}.{NAMESPACE}.svc": "127.0.0.1" for name in OPTIONS},
    }
    said = run(["bash", str(tmp_path / "script")], tmp_path, hosts=hosts, addresses=(), timeout=280)
    assert said.split() == ["one", "two", "NSQ:", "drained", "gone"], said

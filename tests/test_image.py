"""What ships for machines: systemd units, the image and the compose file.

Their text is always checked. With ``SILVAN_IMAGE=FOLDER``, a root file system made by ``tools/build_root.py``, the
units and the image run a study end to end under bubblewrap: as an unprivileged user, with everything but their own
folders read-only.
"""

import configparser
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
DEPLOYMENT = ROOT / "examples" / "deployment"
ENTRY = DEPLOYMENT / "container.sh"
IMAGE = os.environ.get("SILVAN_IMAGE", "")
COMPILED = Path(f"{IMAGE}-compiled")
UNITS = sorted(DEPLOYMENT.glob("*.service"))
MOST_EXPOSED = 3.0
PATIENCE = 900.0
STUDY = 'name = "example"\nlabel = "benign"\ntest = 0.3\n\n[learner]\nkind = "HistogramForest"\nn_estimators = 5\n'


def unit(path):
    """Reads a unit; a repeated setting has its last value."""
    found = configparser.ConfigParser(interpolation=None, strict=False)
    found.optionxform = str
    found.read(path)
    return found["Service"]


# -- units


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_units_are_hardened(path, tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd to test the units")
    copy = shutil.copy(path, tmp_path / path.name.replace("@", "@north"))
    command = ["systemd-analyze", "security", "--offline=true", copy]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert float(re.search(r"exposure level.*: ([\d.]+)", said)[1]) <= MOST_EXPOSED


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_units_keep_compiled_code_and_have_limits_and_a_watchdog(path):
    service = unit(path)
    assert service["Environment"] == f"NUMBA_CACHE_DIR=/var/cache/{service['CacheDirectory']}"
    assert service["ExecStart"].startswith("/opt/silvan/bin/silvan ")
    assert f"/var/lib/{service['StateDirectory']} " in service["ExecStart"]
    assert (service["Type"], service["ProtectSystem"], service["ProtectHome"]) == ("notify", "strict", "yes")
    assert {"MemoryMax", "TasksMax", "WatchdogSec"} <= set(service)


# -- the image


def test_the_image_has_a_pinned_base_a_health_check_and_a_user():
    text = (DEPLOYMENT / "Dockerfile").read_text()
    steps = re.findall(r"^([A-Z]+) (.*)$", text, re.MULTILINE)
    assert re.fullmatch(r"BASE=\S+@sha256:[0-9a-f]{64}", dict(steps)["ARG"])
    assert {rest.split()[0] for step, rest in steps if step == "FROM"} == {"${BASE}"}
    last = dict(steps[max(i for i, (step, _) in enumerate(steps) if step == "FROM") :])
    assert last["USER"] == "1000:1000"
    assert "silvan-container" in last["ENTRYPOINT"]
    assert "HEALTHCHECK" in last


def test_every_service_has_a_read_only_root_no_rights_and_a_volume():
    compose = yaml.safe_load((DEPLOYMENT / "compose.yaml").read_text())
    services = compose["services"]
    assert set(services) == {"tables", "coordinator", "site-1", "site-2", "site-3"}
    for name, service in services.items():
        assert service["read_only"]
        assert (service["user"], service["cap_drop"]) == ("1000:1000", ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]
        volumes = dict(volume.split(":", 1) for volume in service["volumes"])
        assert set(volumes) <= set(compose["volumes"])
        assert name == "tables" or volumes[name] == "/silvan"
        assert f"\n{service['command'][0]})" in ENTRY.read_text()
    assert services["coordinator"]["command"][2:] == ["site-1", "site-2", "site-3"]


def entry(*words, home):
    return subprocess.run(
        ["sh", ENTRY, *words], env={**os.environ, "SILVAN_HOME": str(home)}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("words", [["study", "status"], ["site", "start", "x"], ["coordinator", "h:1", "a"]])
def test_an_image_without_a_volume_says_so_in_one_sentence(words, tmp_path):
    done = entry(*words, home=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"no writable volume is mounted at {tmp_path}" in done.stderr


def test_a_container_is_healthy_while_its_process_runs(tmp_path):
    folder = tmp_path / "north"
    folder.mkdir()
    assert entry("health", home=tmp_path).returncode == 1
    started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    (folder / "site.pid").write_text(f"{os.getpid()} {started}\n")
    assert entry("health", home=tmp_path).returncode == 0
    (folder / "enrol.pid").write_text(f"{os.getpid()} 1\n")
    assert entry("health", home=tmp_path).returncode == 1


# -- both, end to end


class Sandbox:
    """Runs commands in the image's read-only root file system, as user 1000."""

    def __init__(self, folder, port):
        self.folder, self.port, self.running = folder, port, []
        hosts = folder / "hosts"
        hosts.write_text("127.0.0.1 localhost coordinator\n")
        Path(IMAGE, "etc/hosts").touch()  # Docker mounts one, too
        self.always = ["--ro-bind", IMAGE, "/", "--dev", "/dev", "--proc", "/proc"]
        self.always += [word for at in ("/tmp", "/home", "/root") for word in ("--tmpfs", at)]  # noqa: S108
        self.always += ["--ro-bind", str(hosts), "/etc/hosts", "--unshare-user", "--uid", "1000", "--gid", "1000"]
        self.always += ["--unshare-ipc", "--unshare-uts", "--cap-drop", "ALL", "--die-with-parent"]

    def words(self, binds, environment, *words):
        """Returns the command line; processes share compiled kernels, and none waits for a next study."""
        environment = {**environment, "SILVAN_READY_PROCESS": "off"}
        kept = environment["NUMBA_CACHE_DIR"]
        if any(kept.startswith(at) for at in binds):
            binds = {**binds, kept: ("compiled", "--bind")}
        mounts = [word for at, (name, how) in binds.items() for word in (how, str(self.of(name)), at)]
        variables = [word for pair in environment.items() for word in ("--setenv", *pair)]
        return ["bwrap", *self.always, *mounts, "--clearenv", *variables, *words]

    def of(self, name):
        """The folder that keeps a volume."""
        path = COMPILED if name == "compiled" else self.folder / name
        path.mkdir(exist_ok=True, parents=True, mode=0o700)
        return path

    def run(self, *given):
        done = subprocess.run(self.words(*given), capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert done.returncode == 0, f"{given}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, name, *given):
        with (self.folder / f"{name}.out").open("w") as log:
            self.running.append(subprocess.Popen(self.words(*given), stdout=log, stderr=log, start_new_session=True))
        return self.running[-1]

    def stop(self):
        for file in self.folder.rglob("*.pid"):  # the coordinator's processes are in their own sessions
            pid, started = file.read_text().split()
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19] == started:
                    os.kill(int(pid), signal.SIGKILL)
        for process in self.running:
            process.terminate()
        for process in self.running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()


@pytest.fixture
def sandbox(tmp_path):
    if not IMAGE:
        pytest.skip("SILVAN_IMAGE is not set: a folder made by tools/build_root.py, to run what ships end to end")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    made = Sandbox(tmp_path, port if port < 65000 else port - 1000)
    yield made
    made.stop()


def until(what, patience=PATIENCE):
    end = time.monotonic() + patience
    while not what():
        assert time.monotonic() < end, "waited too long"
        time.sleep(1.0)


def finish(sandbox, at_coordinator, hub, at_sites):
    """Runs a study whose owners approve it, to its end."""
    (sandbox.of("study") / "example.toml").write_text(STUDY)
    with_study = {**at_coordinator[0], "/srv": ("study", "--ro-bind")}
    words = ["silvan", "study", "run", "/srv/example.toml", "--in", hub]
    run = sandbox.start("run", with_study, at_coordinator[1], *words)
    for folder, given in at_sites.items():

        def approved(folder=folder, given=given):
            words = sandbox.words(*given, "silvan", "site", "approve", folder, "example")
            return subprocess.run(words, capture_output=True, check=False).returncode == 0

        until(approved)
    assert run.wait(PATIENCE) == 0, (sandbox.folder / "run.out").read_text()
    said = (sandbox.folder / "run.out").read_text()
    assert "model.silvan" in said, said


def image_environment():
    return json.loads(Path(IMAGE, "etc/image.json").read_text())["environment"]


@pytest.mark.long
def test_the_compose_file_s_commands_run_a_study_in_the_image(sandbox):
    compose = yaml.safe_load((DEPLOYMENT / "compose.yaml").read_text())
    environment, given = image_environment(), {}
    for name, service in compose["services"].items():
        binds = {}
        for volume in service["volumes"]:
            source, at, *rights = volume.split(":")
            binds[at] = (source, "--ro-bind" if rights == ["ro"] else "--bind")
        words = [word.replace("8102", str(sandbox.port)) for word in service["command"]]
        given[name] = (binds, environment, "silvan-container", *words)
    sandbox.run(*given.pop("tables"))
    for name, words in sorted(given.items()):  # the coordinator first: sites depend on it
        sandbox.start(name, *words)
        until(lambda b=words[0]: healthy(sandbox, b, environment))
    for binds, *_ in given.values():
        with pytest.raises(AssertionError, match="Read-only"):
            sandbox.run(binds, environment, "touch", "/opt/silvan/x")
    at_sites = {f"/silvan/{name}": given[name][:2] for name in given if name != "coordinator"}
    finish(sandbox, given["coordinator"][:2], "/silvan/coordinator", at_sites)
    assert any(COMPILED.glob("*/*.nbi"))


def healthy(sandbox, binds, environment):
    words = sandbox.words(binds, environment, "silvan-container", "health")
    return subprocess.run(words, check=False).returncode == 0


@pytest.fixture
def systemd(sandbox):
    """A socket in place of systemd's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(sandbox.of("notify") / "socket"))
        heard.settimeout(PATIENCE)
        yield heard


@pytest.mark.long
def test_the_units_run_a_study_with_a_read_only_system_and_a_closed_home(sandbox, systemd):
    coordinator, site = (unit(path) for path in UNITS)
    names = ["north", "south", "west"]

    def given(service, name):
        binds = {f"/var/{kind}/silvan/{name}": (f"{kind}/{name}", "--bind") for kind in ("lib", "cache")}
        variables = dict([service["Environment"].replace("%i", name).split("=")])
        return binds, {"PATH": "/opt/silvan/bin:/usr/bin:/bin", **variables}

    def prepare(*words):
        """Runs a command as the user silvan, before there is a service."""
        binds = {"/var/lib/silvan": ("lib", "--bind"), "/data": ("data", "--ro-bind")}
        variables = {"PATH": "/opt/silvan/bin:/usr/bin:/bin", "NUMBA_CACHE_DIR": "/var/lib/silvan/.compiled"}
        return sandbox.run(binds, variables, *words)

    for name in ("heart", *names):  # where bubblewrap mounts the folders
        for kind in ("lib", "cache"):
            Path(IMAGE, "var", kind, "silvan", name).mkdir(parents=True, exist_ok=True)
    at_hub = given(coordinator, "heart")
    sites = " ".join(f"--site {name}" for name in names)
    prepare("sh", "-c", f"cd /var/lib/silvan; silvan study init heart {sites} --address localhost:{sandbox.port}")

    def serve(service, name):
        binds, variables = given(service, name)
        binds["/run/notify"] = ("notify", "--bind")
        binds["/data"] = ("data", "--ro-bind")
        told = {"NOTIFY_SOCKET": "/run/notify/socket", "WATCHDOG_USEC": "20000000"}
        command = service["ExecStart"].replace("%i", name).split()
        return sandbox.start(name, binds, {**variables, **told}, *command)

    Path(IMAGE, "run/notify").mkdir(exist_ok=True)
    serve(coordinator, "heart")
    assert systemd.recv(100) == b"READY=1"
    example = {"/data": ("data", "--bind"), "/silvan": ("unused", "--bind")}
    sandbox.run(example, image_environment(), "silvan-container", "example", "3")
    at_sites = {}
    for i, name in enumerate(names, 1):
        hub, folder = "/var/lib/silvan/heart", f"/var/lib/silvan/{name}"
        prepare("silvan", "study", "invite", name, "--in", hub)
        words = ["silvan", "site", "join", f"{hub}/{name}.invite", "--table", f"/data/site-{i}.csv"]
        prepare(*words, "--folder", folder)
        at_sites[folder] = given(site, name)
    for name in names:
        serve(site, name)
    finish(sandbox, at_hub, "/var/lib/silvan/heart", at_sites)
    assert [process.poll() for process in sandbox.running[:4]] == [None] * 4
    systemd.setblocking(False)
    heard = []
    with contextlib.suppress(BlockingIOError):
        while True:
            heard.append(systemd.recv(100))
    assert heard.count(b"READY=1") == 3
    assert heard.count(b"WATCHDOG=1") > 4

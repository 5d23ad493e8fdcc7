"""Kills processes of a real federation at random moments of studies, over rows and over columns.

    PYTHONPATH=tests python tests/helpers/kills.py --n 100 --seed 0 --results kills.jsonl

Every study is submitted once and watched by nobody. It loses up to six processes to SIGKILL, one after the other, most
of them during training; each is restarted, as an init system would do. The study must end with the forest that one
process grows. Each study has a line of results; studies that have a line are not run again.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from helpers import parties
from helpers.column_studies import ID
from helpers.hasty_sites import hasty_sites
from helpers.parties import PARTIES, set_up
from helpers.studies import table

import silvan as sv
from silvan.deploy.jobs.job_progress import PROGRESS, StudyProgress
from silvan.deploy.membership.joined_site import SETTINGS, JoinedSite
from silvan.deploy.service import start_stop
from silvan.deploy.service.process import Background
from silvan.deploy.service.start_stop import process_of, processes_of, start_coordinator, start_site, stop_all
from silvan.deploy.service.submissions import SUPERVISED, Supervised, pending
from silvan.errors import SilvanError
from silvan.study.parse import parse_remote_study
from silvan.study.run_folder import Run
from silvan.study.study import Study
from silvan.util.files import try_json
from silvan.util.folder_lock import is_locked

KILLS = 6
"""Processes that a study loses."""

PATIENCE = 600.0
"""Seconds after which a study will never end."""

STUDIES: dict[str, tuple[str, dict[str, Any]]] = {
    "rows": ("HistogramForest", {"n_estimators": 200, "max_depth": 9}),
    "masked": ("HistogramForest", {"n_estimators": 30, "max_depth": 6}),
    "sites' trees": ("BOFRF", {"n_estimators": 30, "max_depth": 5, "refit_leaves": True}),
    "columns": ("VerticalForest", {"n_estimators": 150, "max_depth": 7}),
    "encrypted": ("VerticalForest", {"labels": "encrypted", "n_estimators": 2, "max_depth": 2}),
}

VICTIMS = ("studies", "server", "server alone", "server's job", "site", "site alone", "site's job", "coordinator")
"""What is killed; a server or a site with all that it started, or alone; the coordinator: server and studies."""

TRAINING = "training"
STAGES = ("", "agreeing on columns", TRAINING, "evaluating", "sending the results")
"""Stages of a study, in their order."""

LONGEST = {TRAINING: 1.0}
"""Seconds that pass after the beginning of a stage, at most; 4 if it is not named."""


class Killed(msgspec.Struct):
    """What was killed, and when: seconds after the study began, and the stage of the study."""

    victim: str
    at: float
    stage: str


class Line(msgspec.Struct):
    """The outcome of a study."""

    number: int
    study: str
    killed: list[Killed]
    seconds: float
    jobs: int
    same: bool
    said: str = ""


class Federation:
    """Three sites on this machine, which bring rows to some studies and columns to others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        rows = table("binary", n=600)
        self.columns = parties.write_tables(folder / "columns", parties.tables())
        self.rows = parties.write_tables(folder / "rows", {site: rows[i::3] for i, site in enumerate(PARTIES)})
        with hasty_sites():
            self.hub, members = start_stop.make_local(folder, self.rows)
        self.members = dict(zip(PARTIES, members, strict=True))
        self.expected: dict[str, str] = {}

    def close(self) -> None:
        """Stops all processes."""
        stop_all([*map(process_of, self.members.values()), *processes_of(self.hub)])

    def plan(self, name: str, number: int) -> Study:
        """Returns a new study, and gives the sites their tables for it."""
        kind, parameters = STUDIES[name]
        by_columns = kind == "VerticalForest"
        for site, member in self.members.items():
            if by_columns:
                set_up(member, self.columns[site])
            else:
                (member.path / SETTINGS).write_text(f'table = "{self.rows[site]}"\n[policy]\n')
        top = {"name": f"{name} {number}", "sites": PARTIES, "test": 0.25}
        top |= {"task": "classification"} if by_columns else {"sampling": "published"}
        top |= {"sums": "masked"} if name in ("masked", "sites' trees") else {}
        text = "\n".join(f"{key} = {_toml(value)}" for key, value in top.items())
        learner = "\n".join(f"{key} = {_toml(value)}" for key, value in {"kind": kind, **parameters}.items())
        return parse_remote_study(f"{text}\n[learner]\n{learner}\n")

    def hash_in_one_process(self, name: str) -> str:
        """Returns the hash of the forest that one process grows."""
        if name not in self.expected:
            kind, parameters = STUDIES[name]
            if kind == "VerticalForest":
                fed = sv.federate_columns(
                    {party: t.rename({parties.IDS[party]: ID}) for party, t in parties.tables().items()},
                    id=ID,
                    label="label",
                    test=0.25,
                )
            else:
                fed = sv.federate_rows(self.rows, test=0.25)
            self.expected[name] = getattr(sv, kind)(**parameters).fit(fed).forest_.hash
        return self.expected[name]

    def hash_of(self, run: Run, plan: Study) -> str:
        """Returns the hash of a study's forest."""
        if plan.by_columns:
            return str(parties.load_with_shares(run, plan, self.members).forest_.hash)
        return next(model.hash for model in run.read().models if not model.site)


class Killer:
    """Runs studies and kills their processes."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation

    def run(self, number: int, seed: int, most: int = KILLS) -> Line:
        """Runs the study of a given number; its seed determines what is killed and when."""
        pick = random.Random(f"{seed} {number}")  # noqa: S311
        name = list(STUDIES)[number % len(STUDIES)]
        plan = self.federation.plan(name, number)
        begun, killed = time.monotonic(), []
        run = Run(self.federation.hub.path / "runs" / plan.folder)
        path = self.federation.folder / f"{plan.folder}.toml"
        path.write_text(plan.text)
        submit_and_leave(path, run, self.federation.hub.path)
        for i in range(most):
            stage = pick.choice(STAGES) if i == KILLS - 1 else TRAINING
            victim, delay = pick.choice(VICTIMS), pick.uniform(0.0, LONGEST.get(stage, 4.0))
            if not self._wait_for(stage, run) or _ends_within(delay, run):
                break
            at = _stage(run)
            if self._kill(victim, pick):
                killed.append(Killed(victim, round(time.monotonic() - begun, 2), at))
        ended = _ends_within(PATIENCE, run)
        seconds, found = round(time.monotonic() - begun, 1), try_json(run.file(SUPERVISED), Supervised) or Supervised()
        jobs = sum("handed in" in line for _, line in found.lines)
        made = Line(number, name, killed, seconds, jobs, same=False, said="".join(found.error))
        if ended and not found.error:
            made.same = self.federation.hash_of(run, plan) == self.federation.hash_in_one_process(name)
        elif not ended:
            made.said = "; ".join(line for _, line in found.lines[-6:])
        return made

    def _wait_for(self, stage: str, run: Run) -> bool:
        """Waits until a study has reached a stage and its job is alive; returns False if the study has ended."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and not _ends_within(0.02, run):
            if not stage or (_stage(run) in STAGES[STAGES.index(stage) :] and is_locked(run.folder)):
                return True
        return False

    def _kill(self, victim: str, pick: random.Random) -> bool:
        """Kills a process and restarts it; returns whether there was one to kill."""
        hub, member = self.federation.hub, pick.choice(list(self.federation.members.values()))
        server, studies = processes_of(hub)
        if victim.endswith("job"):
            return _kill_one(server if victim.startswith("server") else process_of(member), pick)
        own = {"server": [server], "site": [process_of(member)], "studies": [studies], "coordinator": [studies, server]}
        for process in own[victim.split()[0]]:
            if victim.endswith("alone"):
                _kill_alone(process)
            else:
                process.kill()
        time.sleep(pick.uniform(0.0, 2.0))
        if victim.startswith("site"):
            start_site(JoinedSite(member.path))
        else:
            _start_hub(hub)
        return True


def submit_and_leave(path: Path, run: Run, hub: Path) -> None:
    """Submits a study by the command, which is killed as soon as the coordinator knows of it."""
    words = ["-m", "silvan.cli.main", "study", "run", str(path), "--in", str(hub)]
    command = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
    while pending(run) is None and command.poll() is None:
        time.sleep(0.05)
    command.kill()
    command.wait()


def _ends_within(seconds: float, run: Run) -> bool:
    """Waits for a study to end; returns whether it has."""
    end = time.monotonic() + seconds
    while pending(run) is not None:
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def _stage(run: Run) -> str:
    """Returns the stage of a study; empty before its job has begun."""
    found = try_json(run.file(PROGRESS), StudyProgress)
    return "" if found is None else found.stage


def _start_hub(hub: Any) -> None:
    """Starts a coordinator as an init system does, which tries again."""
    for _ in range(5):
        with contextlib.suppress(SilvanError):
            start_coordinator(hub)
            return
    start_coordinator(hub)


def _kill_alone(process: Background) -> None:
    pid = process.pid
    if pid is not None:
        _end(pid)


def _kill_one(process: Background, pick: random.Random) -> bool:
    """Kills one process that another has started."""
    children = sorted(set(process.with_children()) - {process.pid})
    if children:
        _end(pick.choice(children))
    return bool(children)


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _toml(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def run(n: int, seed: int, results: Path | None, report: Any = print) -> list[Line]:
    """Runs studies until enough processes were killed; returns the lines."""
    lines = [] if results is None or not results.exists() else _read(results)
    with tempfile.TemporaryDirectory(prefix="silvan-kills-") as folder:
        federation = Federation(Path(folder))
        try:
            killer = Killer(federation)
            number = max((line.number for line in lines), default=-1) + 1
            while (left := n - sum(len(line.killed) for line in lines)) > 0:
                lines.append(killer.run(number, seed, min(left, KILLS)))
                report(msgspec.json.encode(lines[-1]).decode())
                if results is not None:
                    with results.open("ab") as file:
                        file.write(msgspec.json.encode(lines[-1]) + b"\n")
                number += 1
        finally:
            federation.close()
    return lines


def _read(results: Path) -> list[Line]:
    return [msgspec.json.decode(line, type=Line) for line in results.read_bytes().splitlines()]


def summary(lines: list[Line]) -> str:
    """Summarises all studies in a line."""
    victims = Counter(killed.victim for line in lines for killed in line.killed)
    kills = ", ".join(f"{n} {victim}" for victim, n in sorted(victims.items()))
    same = sum(line.same for line in lines)
    training = sum(killed.stage == TRAINING for line in lines for killed in line.killed)
    return (
        f"{same} of {len(lines)} studies with the same forest; {victims.total()} kills, {training} of them during "
        f"training: {kills}"
    )


def main() -> None:
    """Run as a program."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--n", type=int, default=100, help="how many processes to kill")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--results", type=Path, help="a file with a line a study")
    given = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # a normal exit stops all that it started
    lines = run(given.n, given.seed, given.results, lambda line: print(line, flush=True))
    print(summary(lines))
    if not all(line.same for line in lines):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

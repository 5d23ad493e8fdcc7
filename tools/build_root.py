"""Builds the root file system that a Dockerfile describes, without Docker: its steps, one by one, with chroot.

    sudo debootstrap --variant=minbase --include=ca-certificates bookworm BASE
    sudo python tools/build_root.py examples/deployment/Dockerfile BASE TARGET [FILE ...]

BASE stands in for the image after FROM; FILEs of this machine, such as certificates, are available to the steps. The
tool runs the Dockerfile's own lines, so the result is the image, down to the packages that Debian serves on that day.
It supports what this Dockerfile uses: ARG, FROM, RUN, COPY, ENV, USER, WORKDIR, HEALTHCHECK, ENTRYPOINT and CMD.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

METADATA = ("ARG", "USER", "WORKDIR", "HEALTHCHECK", "ENTRYPOINT", "CMD")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass
class Image:
    """A stage: its root, its environment, and its settings for the process that runs in it."""

    root: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": PATH})
    said: dict[str, str] = field(default_factory=dict)


def read_steps(text: str) -> list[tuple[str, str]]:
    """Return a Dockerfile's instructions, each with its arguments."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", lines)
    return [(words[0], words[1]) for line in joined.splitlines() if len(words := line.split(None, 1)) == 2]


def build(dockerfile: Path, base: Path, target: Path, binds: list[str]) -> Image:
    """Run all steps; the last stage is in the target folder."""
    context, stages = dockerfile.resolve().parents[2], {}
    steps = read_steps(dockerfile.read_text())
    stage = None
    for i, (step, rest) in enumerate(steps):
        print(f"{step} {rest[:100]}", flush=True)
        if step == "FROM":
            last = not any(name == "FROM" for name, _ in steps[i + 1 :])
            name = rest.split()[-1]
            root = target if last else target.with_name(f"{target.name}-{name}")
            subprocess.run(["cp", "-a", "--", base, root], check=True)  # noqa: S603, S607
            stage = stages[name] = Image(root)
        elif step in METADATA:
            if stage is not None:
                stage.said[step] = rest
        elif stage is None:
            raise SystemExit(f"{step} stands before FROM")
        elif step == "RUN":
            run_in(stage, rest, binds)
        elif step == "COPY":
            copy(stage, rest.split(), context, stages)
        elif step == "ENV":
            for key, value in re.findall(r"(\w+)=(\S+)", rest):
                stage.environment[key] = value.replace("$PATH", stage.environment["PATH"])
        else:
            raise SystemExit(f"{step} is not known here")
    if stage is None:
        raise SystemExit("there is no FROM")
    (target / "etc" / "image.json").write_text(json.dumps({"environment": stage.environment, **stage.said}))
    return stage


def run_in(stage: Image, command: str, binds: list[str]) -> None:
    """Run a command in a stage as root, with the network, as ``docker build`` does."""
    files = [word for path in ("/etc/resolv.conf", *binds) for word in ("--ro-bind", path, path)]
    mounts = ["--dev", "/dev", "--proc", "/proc", *files]
    inherited = {k: v for k, v in os.environ.items() if k.startswith("PIP_")}
    words = ["bwrap", "--bind", str(stage.root), "/", *mounts, "--", "/bin/sh", "-c", command]
    subprocess.run(words, check=True, env={**inherited, **stage.environment})  # noqa: S603  the Dockerfile's own


def copy(stage: Image, words: list[str], context: Path, stages: dict[str, Image]) -> None:
    """Copy files of the context, or of an earlier stage."""
    options = dict(word[2:].split("=") for word in words if word.startswith("--"))
    *sources, target = [word for word in words if not word.startswith("--")]
    origin = stages[options["from"]].root if "from" in options else context
    to = stage.root / target.lstrip("/")
    for name in sources:
        source = origin / name.lstrip("/")
        if source.is_dir():
            shutil.copytree(source, to, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            continue
        place = to / source.name if target.endswith("/") else to
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, place)
        if "chmod" in options:
            place.chmod(int(options["chmod"], 8))


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])

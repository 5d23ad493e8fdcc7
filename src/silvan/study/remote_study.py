"""Reads study files for sites on other machines; tables and policies are set by each site itself.

The same file as for ``silvan fit``, without tables and policy, and with five more keys: ``sites`` (a list; all that
have joined otherwise), ``quorum``, ``timeout``, ``approval_days`` and ``sampling``.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from silvan.errors import InputError
from silvan.federation.store import digest
from silvan.study.study_file import Study
from silvan.study.study_sections import check_evaluation, check_learner, check_schema, check_top
from silvan.study.study_values import KEYS
from silvan.study.toml_lines import Problems, key_lines

_MORE_KEYS = ("sites", "quorum", "timeout", "approval_days", "sampling")
_NOT_ALLOWED = {
    "table": "each site names its own table when it joins; leave table out",
    "site": "each site names its own table when it joins; leave site out",
    "query": "each site names its own table when it joins; leave query out",
    "memory": "how much memory a site takes is in its own site.toml; leave memory out",
    "policy": "what a site lets out is the site's own policy (site.toml); leave [policy] out",
    "parties": "studies over columns run in one process so far (`silvan fit`); leave [parties] out",
    "id": "id is for [parties], which studies over machines do not have; leave it out",
    "match": "match is for [parties], which studies over machines do not have; leave it out",
    "names": "names is for [parties], which studies over machines do not have; leave it out",
}
TIMEOUT = 3600.0
"""Seconds after which a site that does not answer is given up, unless the study sets another number."""


@dataclass(frozen=True)
class RemoteStudy:
    """A study for sites on other machines."""

    study: Study
    text: str
    sites: list[str] | None
    quorum: int | None
    timeout: float
    approval_days: float | None = None  # how long sites' owners may take to approve it; None: any time
    secret: bool = True  # whether only sites know which rows are in which tree

    @property
    def digest(self) -> str:
        """The SHA-256 of the study's text, in hexadecimal."""
        return digest(self.text.encode())

    @property
    def id(self) -> str:
        """The study's name with the digest of its text, all of it: a site's owner approves exactly this text."""
        return f"{self.study.name} {self.digest}"

    @property
    def folder(self) -> str:
        """The name of the study's run folder; the journal in it belongs to one ``id``, whatever the folder's name."""
        plain = "".join(c if c.isalnum() or c in "-_" else "-" for c in self.study.name.lower())[:40]
        return f"{plain}-{self.digest[:12]}"

    def losses(self, sites: Sequence[str]) -> int:
        """Return how many of its sites the study may lose: none without a quorum."""
        return 0 if self.quorum is None else max(0, len(sites) - self.quorum)


def read_remote_study(path: Path) -> RemoteStudy:
    """Read a study file."""
    try:
        return parse_remote_study(path.read_bytes().decode(), path)
    except FileNotFoundError:
        raise InputError(f"there is no study file {str(path)!r}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; save it as such") from None


def parse_remote_study(text: str, path: Path = Path("study.toml")) -> RemoteStudy:
    """Parse a study's text; raise one error that lists all that is wrong with it."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None
    problems = Problems(path, key_lines(text))
    for key, why in _NOT_ALLOWED.items():
        if key in data:
            problems.add((key,), why)
    rest = {key: value for key, value in data.items() if key not in _MORE_KEYS and key not in _NOT_ALLOWED}
    for key in rest.keys() - KEYS.keys() - {"learner", "schema", "evaluation"}:
        problems.unknown((key,), [*KEYS, *_MORE_KEYS, "learner", "schema", "evaluation"])
    top = check_top({key: value for key, value in rest.items() if key in KEYS}, problems)
    kind, parameters = check_learner(rest.get("learner", {}), False, problems)
    if kind == "BOFRF" and parameters.get("protocol") != "paper":
        parameters.setdefault("recount", True)  # machines of others may send what they like
    schema = check_schema(rest.get("schema"), top.get("label", "label"), problems)
    evaluation_epsilon = check_evaluation(rest, parameters, problems)
    sites, quorum, timeout = data.get("sites"), data.get("quorum"), data.get("timeout", TIMEOUT)
    if sites is not None and not (_names(sites) and len(set(sites)) == len(sites)):
        problems.add(("sites",), 'sites must be a list of names, as sites = ["north", "south"]')
    if quorum is not None and (not isinstance(quorum, int) or isinstance(quorum, bool) or quorum < 1):
        problems.add(("quorum",), f"quorum must be a whole number of at least 1, got {quorum!r}")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        problems.add(("timeout",), f"timeout must be seconds above 0, got {timeout!r}")
    days = data.get("approval_days")
    if days is not None and (isinstance(days, bool) or not isinstance(days, int | float) or not days > 0):
        problems.add(("approval_days",), f"approval_days must be a number of days above 0, got {days!r}")
    sampling = data.get("sampling", "secret")
    if sampling not in ("secret", "published"):
        problems.add(("sampling",), f"sampling must be 'secret' or 'published', got {sampling!r}")
    problems.stop()
    name, output = top.pop("name", path.stem), top.pop("output", Path())
    given: dict[str, Any] = {"schema": schema, "evaluation_epsilon": evaluation_epsilon, "lines": problems.lines}
    study = Study(path, name, {}, kind, parameters, {}, Path(output), **given, **top)
    return RemoteStudy(study, text, sites, quorum, float(timeout), days, sampling == "secret")


def _names(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(name, str) for name in value)

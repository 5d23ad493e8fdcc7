"""Reads study files for sites on other machines; tables and policies are set by each site itself.

The same file as for ``silvan fit``, without tables and policy, and with six more keys: ``sites`` (a list; all that
have joined otherwise), ``quorum``, ``timeout``, ``approval_days``, ``sampling`` and ``figures``. With a learner for
columns the sites are parties, each of which names its column of ids itself. ``[predict]``, which
`silvan study predict` adds to the text of such a study, makes it one of new rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from silvan.federation.store import digest
from silvan.study.plan import Study
from silvan.study.study_sections import (
    COLUMN_LEARNERS,
    check_column_kinds,
    check_evaluation,
    check_repeats,
    check_schema,
    check_top,
    read_learner,
)
from silvan.study.study_values import KEYS, whole_number
from silvan.study.toml_lines import Problems, key_lines, parse_toml

_MORE_KEYS = ("sites", "quorum", "timeout", "approval_days", "sampling", "figures")
_NOT_ALLOWED = {
    "table": "each site names its own table when it joins; leave table out",
    "site": "each site names its own table when it joins; leave site out",
    "query": "each site names its own table when it joins; leave query out",
    "memory": "how much memory a site takes is in its own site.toml; leave memory out",
    "reading": "how a table is written is in each site's own site.toml; leave [reading] out",
    "policy": "what a site lets out is the site's own policy (site.toml); leave [policy] out",
    "parties": "between machines parties are named by sites = [...], and each names its own table and column of ids "
    "(site.toml); leave [parties] out",
    "id": "each party names its own column of ids in its site.toml; leave id out",
}
_NOT_OF_ROWS = {
    key: f"{key} is for parties that hold columns of the same rows, and this learner is for rows; leave it out"
    for key in ("match", "names", "predict")
}
_NOT_OF_COLUMNS = {
    "repeats": "repeats is for studies over rows; leave it out",
    "quorum": "quorum is for studies over rows: of columns, every party is needed; leave it out",
    "sampling": "of columns, the label holder draws rows by a key that travels sealed; leave sampling out",
}
_SECTIONS = ("learner", "kinds", "schema", "evaluation", "predict")
MATCH = "psi"
"""How rows are matched between machines, unless the study says another way."""

TIMEOUT = 3600.0
"""Seconds after which a site that does not answer is given up, unless the study sets another number."""

Check = Callable[[str, dict[str, Any], Problems], None]
"""What checks a learner's parameters: given its kind, the parameters, and where to note what is wrong."""


@dataclass(frozen=True)
class Predict:
    """What a study that only predicts is about: the model of another study, for the n-th time."""

    study: str  # digest of the text of the study that the model is of
    model: str
    number: int


@dataclass(frozen=True)
class RemoteStudy:
    """A study for sites on other machines."""

    study: Study
    text: str
    sites: list[str] | None
    quorum: int | None
    timeout: float
    approval_days: float | None = None  # how long sites' owners may take to approve it; None: any time
    secret: bool = True  # whether sites of rows share a key, so that only they know which rows are in which tree
    figures: str = "own"  # whose figures a site is sent at the end, beside those over all sites: "own" or "all"
    predict: Predict | None = None  # what is predicted, if nothing is learnt

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
        return self._folder_of(self.digest)

    @property
    def model_folder(self) -> str:
        """The name of the run folder that has the model to predict with, or that the model will be in."""
        return self._folder_of(self.digest if self.predict is None else self.predict.study)

    def _folder_of(self, digest: str) -> str:
        plain = "".join(c if c.isalnum() or c in "-_" else "-" for c in self.study.name.lower())[:40]
        return f"{plain}-{digest[:12]}"

    def predicting(self, model: str, number: int) -> "RemoteStudy":
        """Return the study that predicts new rows with the model of this one, for the n-th time."""
        lines = f'[predict]\nstudy = "{self.digest}"\nmodel = "{model}"\nnumber = {number}\n'
        return parse_remote_study(f"{self.text.rstrip()}\n\n{lines}", self.study.path)

    def losses(self, sites: Sequence[str]) -> int:
        """Return how many of its sites the study may lose: none without a quorum."""
        return 0 if self.quorum is None else max(0, len(sites) - self.quorum)


def parse_remote_study(text: str, path: Path = Path("study.toml"), check: Check | None = None) -> RemoteStudy:
    """Parse a study's text; raise one error that lists all that is wrong with it.

    The learner's parameters are for the coordinator, who uses them: ``check`` checks them, given the learner's kind.
    """
    data = parse_toml(text, path)
    problems = Problems(path, key_lines(text))
    learner = data.get("learner", {})
    columns = isinstance(learner, dict) and learner.get("kind") in COLUMN_LEARNERS
    not_allowed = {**_NOT_ALLOWED, **(_NOT_OF_COLUMNS if columns else _NOT_OF_ROWS)}
    for key, why in not_allowed.items():
        if key in data:
            problems.add((key,), why)
    rest = {key: value for key, value in data.items() if key not in _MORE_KEYS and key not in not_allowed}
    for key in rest.keys() - KEYS.keys() - set(_SECTIONS):
        problems.unknown((key,), [*KEYS, *_MORE_KEYS, *_SECTIONS])
    top = check_top({key: value for key, value in rest.items() if key in KEYS}, problems)
    kind, parameters = read_learner(learner, columns, problems)
    if check is not None:
        check(kind, parameters, problems)
    if columns:
        top.setdefault("match", MATCH)
        if isinstance(parameters.get("class_weight"), dict) and top.get("names") != "shown":
            why = 'the coordinator knows classes by number: set names = "shown" for a weight a class'
            problems.add(("learner", "class_weight"), why)
    predict = _check_predict(rest.get("predict"), problems)
    if kind in ("AutoForest", "BOFRF") and parameters.get("protocol") != "paper":
        parameters.setdefault("recount", True)  # machines of others may send what they like
    schema = check_schema(rest.get("schema"), top.get("label", "label"), problems)
    evaluation = check_evaluation(rest, parameters, problems)
    kinds = check_column_kinds(rest.get("kinds", {}), columns, problems)
    check_repeats(rest, parameters, problems)
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
    elif sampling == "published" and "repeats" in rest:
        problems.add(
            ("sampling",),
            "sampling must be 'secret' with repeats: sums over many parts of the rows that "
            "others know would tell single rows",
        )
    figures = data.get("figures", "own")
    if figures not in ("own", "all"):
        problems.add(("figures",), f"figures must be 'own' or 'all', got {figures!r}")
    problems.stop()
    name, output = top.pop("name", "study"), top.pop("output", Path())  # not the file's name, which sites do not have
    given: dict[str, Any] = {"schema": schema, "lines": problems.lines, **evaluation}
    given["kinds"] = kinds
    study = Study(path, name, {}, kind, parameters, {}, Path(output), **given, **top)
    made = RemoteStudy(study, text, sites, quorum, float(timeout), days, sampling == "secret" and not columns)
    return replace(made, predict=predict, figures=figures)


def _check_predict(values: Any, problems: Problems) -> Predict | None:
    """Check what a study that only predicts is about."""
    if values is None:
        return None
    given = values if isinstance(values, dict) else {}
    texts = [given.get(name) for name in ("study", "model")]
    if set(given) != {"study", "model", "number"} or whole_number(given["number"]) or not all(map(_is_digest, texts)):
        problems.add(("predict",), "[predict] is written by `silvan study predict`; leave it out")
        return None
    return Predict(**given)


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


def _names(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(name, str) for name in value)

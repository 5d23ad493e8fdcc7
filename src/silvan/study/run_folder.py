"""Reads and writes run folders: the model, the metrics, and ``run.json`` with everything else.

The keys of ``run.json`` are the fields below, described in docs/cli.md. The whole file is written after every step, so
that results survive a later failure.
"""

from pathlib import Path
from typing import Any

import msgspec

from silvan.algorithms.kept_results import MADE_MODEL
from silvan.algorithms.table_one import TableOne
from silvan.errors import FormatError, InputError, VersionError, reject
from silvan.federation.agreement import ColumnAtSites
from silvan.forest.forest import Forest
from silvan.learners.result import Result, SiteTrees
from silvan.util.csv_text import csv_text
from silvan.util.files import UNREADABLE, write_whole

FORMAT = "silvan run"
VERSION = 1

RUN, MODEL, EVALUATION, REPORT, JOURNAL = (
    "run.json",
    "model.silvan",
    "evaluation.csv",
    "report.html",
    "journal.sqlite",
)

ROSTER = "roster.json"  # the public keys that verify the sites' statements
AUDIT = ("audit.json", "audit.html")  # results of an audit of the run's model
LEARNT = "learnt_rows.private"  # hashes of the training rows, which stay with their owner
SHARES = "model"  # the folder of a model in shares


def split_journal(number: int) -> str:
    """Return the file name of a split's journal."""
    return f"{JOURNAL}.split-{number}"


_GAINS = ("gain", "gain_low", "gain_high")


class SiteRows(msgspec.Struct, frozen=True):
    """A site and its rows; ``positives`` is the share of the positive class of two."""

    name: str
    rows: int
    test_rows: int = 0
    positives: float | None = None


class Difference(msgspec.Struct, frozen=True):
    """A difference between the sites' tables in a column, and how it was handled."""

    column: str
    what: str
    done: str


class Traffic(msgspec.Struct, frozen=True):
    """Bytes of one kind of message, from the site's view."""

    site: str
    kind: str
    sent: int
    received: int


class Kind(msgspec.Struct, frozen=True):
    """A kind of message: descriptions of request and reply, and the verb, which decides who sees the reply."""

    name: str
    asks: str
    answers: str
    verb: str


class Model(msgspec.Struct, frozen=True):
    """A model file; ``site`` is the site it is for, empty for all."""

    file: str
    hash: str
    trees: int
    nodes: int
    site: str = ""


class MetricsRow(msgspec.Struct, frozen=True):
    """The metrics of one model at one site, or over all; undefined values are null.

    ``gain`` is the improvement over the local model, with its 95% CI. ``use`` marks the model that the site should use,
    and ``same_as`` names the variant that it equals. Noisy metrics, with ``epsilon``, have a 95% CI in ``between``,
    noise included. ``more`` are further metrics, and ``note`` says why metrics are missing (docs/figures.md). ``group``
    is the subgroup of rows, empty for all. ``positive`` is the positive class of two.
    """

    site: str
    model: str
    rows: int
    metrics: dict[str, float | None]
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    use: bool = False
    same_as: str = ""
    between: dict[str, tuple[float, float]] = {}
    epsilon: float | None = None
    more: dict[str, float | None] = {}
    note: str = ""
    group: str = ""
    positive: str | None = None


class Counts(msgspec.Struct, frozen=True):
    """Numbers of a model's test rows at a site, or over all, by decision and by groups of scores (docs/figures.md).

    ``confusion`` is by true and predicted class, ``at_threshold`` at the threshold chosen on training rows. ``groups``
    has, by class, mean score, rows of other classes and rows of the class; for regression mean prediction, mean target
    and rows. ``net_benefit`` has the threshold, the net benefit of the model, and of treating everybody.
    """

    site: str
    model: str
    confusion: list[list[int]] = []
    at_threshold: list[list[int]] = []
    groups: dict[str, list[tuple[float, float, float]]] = {}
    net_benefit: list[tuple[float, float, float]] = []


class Curve(msgspec.Struct, frozen=True):
    """The ROC curve of a model over all sites' test rows, for one class against the rest."""

    model: str
    of: str
    points: list[tuple[float, float]]


class Dependence(msgspec.Struct, frozen=True):
    """Mean predictions over all test rows with a column set to each value, by class (of two, the positive one)."""

    column: str
    values: list[float | str]
    means: dict[str, list[float]]


class Record(msgspec.Struct, kw_only=True):
    """The content of ``run.json``."""

    format: str = FORMAT
    version: int = VERSION
    name: str
    status: str = "started"  # then "trained", then "done"
    by: str = "rows"  # what sites hold, or "columns" of the same rows
    made: str = ""
    seconds: float = 0.0  # of training
    versions: dict[str, str] = {}
    study_file: str = ""  # path from the run folder
    study: dict[str, Any] = {}
    readings: dict[str, dict[str, Any]] = {}  # format options of the parties' files
    fingerprint: str = ""
    schema_hash: str = ""
    features: int = 0
    label: str = "label"
    classes: list[str] | None = None
    positive: str | None = None  # the positive class of two
    sums: str = "trusted"
    sites: list[SiteRows] = []
    differences: list[Difference] = []
    columns: list[ColumnAtSites] = []  # what sites disclosed about their columns
    table_one: TableOne | None = None  # if the study asks for it
    warnings: list[str] = []
    models: list[Model] = []
    at_sites: list[str] = []  # sites whose model includes their own rows and stays with them
    rounds: int = 0
    agreement_rounds: int = 0
    bytes: dict[str, dict[str, int]] = {}  # in training, by site: sent and received
    traffic: list[Traffic] = []  # in all steps
    kinds: list[Kind] = []
    importances: dict[str, float] | None = None
    permutation: dict[str, float] | None = None  # increase of the squared error with a column shuffled
    dependence: list[Dependence] = []
    weights: list[SiteTrees] = []  # of weighted trees
    choices: dict[str, str] = {}  # what each site uses and why, in a sentence, if sites choose
    shared_forest: str = ""  # what the shared forest consists of, in a sentence
    clusters: dict[str, list[str]] = {}  # of sites, by centroid
    distances: dict[str, list[float]] = {}  # of each site from all sites, in the same order
    threshold: float | None = None  # for the positive class of two
    repeats: int = 0  # how often every row was evaluated; 0: test rows, once
    folds: int = 0  # or the number of sites left out in turn
    evaluation: list[MetricsRow] = []
    subgroups: list[MetricsRow] = []  # if the study requests it
    curves: list[Curve] = []
    counts: list[Counts] = []
    pooled_hash: str | None = None  # of the pooled forest, if it was grown
    received: list[str] = []  # sites that received the results
    verification: str = ""  # whether sums and decisions are verified, in a sentence; empty in one process
    copy_for: str = ""  # the site of this copy, without the metrics of other sites
    among: list[str] = []  # all sites of the study, in a copy

    @property
    def left_out(self) -> bool:
        """Whether each site was left out in turn, and evaluated with a model of the others."""
        return self.study.get("split") == "sites"

    @property
    def date_split(self) -> tuple[str, str] | None:
        """The column of a split by date, and which rows are test rows; None for other splits."""
        split = self.study.get("split")
        return (split.get("by", ""), split.get("test", "")) if isinstance(split, dict) else None

    @property
    def on_splits(self) -> bool:
        """Whether metrics belong to models of splits instead of the study's own model."""
        return self.repeats > 0 or self.left_out


class Run:
    """A run folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def file(self, name: str) -> Path:
        """Return the path of a file in the folder."""
        return self.folder / name

    def write(self, record: Record) -> None:
        """Write ``run.json``."""
        self._write(RUN, msgspec.json.format(msgspec.json.encode(record), indent=1))

    def read(self) -> Record:
        """Read ``run.json`` and check all of it: it may come from anywhere."""
        path = self.file(RUN)
        if not path.is_file():
            raise InputError(f"{str(self.folder)!r} is no run: there is no {RUN} in it; `silvan fit` makes one")
        try:
            return read_record(path.read_bytes())
        except FormatError as error:
            raise type(error)(f"{path}: {error}") from None

    def save_models(self, result: Result) -> list[Model]:
        """Write the model in shares, or the global forest and sites' forests, in numbered files."""
        if result.shared is not None:
            result.shared.save(self.file(SHARES))
            return [Model(SHARES, result.shared.hash, result.shared.trees, result.shared.nodes)]
        models: list[Model] = []
        for site, forest in result.to_keep.items():
            number = sum(1 for model in models if model.site) + 1
            name = f"model-{number}.silvan" if site else MODEL
            forest.save(self.file(name))
            models.append(Model(name, forest.hash, len(forest), len(forest.feature), site))
        return models

    def forest(self, site: str | None = None) -> Forest:
        """Read the global forest, or the one that a site should use."""
        record = self.read()
        if record.by == "columns":
            raise InputError(f"{str(self.folder)!r} is a run of parties: its model is in shares, not in one file")
        models = {model.site: model for model in record.models}
        if not models:
            raise InputError(f"{str(self.folder)!r} has no model yet; run `silvan fit` again to finish it")
        names = [note.name for note in record.sites]
        if site is not None and site not in names:
            raise InputError(f"there is no site {site!r}; the sites are {', '.join(names)}")
        if record.copy_for in record.at_sites and site in (None, record.copy_for):
            return self.made_here()
        if site in record.at_sites:
            raise InputError(
                f"the forest of site {site!r} includes its own rows and exists at the site only: predict there"
            )
        model = models.get(site or "", models.get(""))
        if model is None:
            raise InputError(f"every site has its own forest here; name one with --site: {', '.join(names)}")
        path = self.file(Path(model.file).name)  # a name, never a path out of the folder
        if not path.is_file():
            raise InputError(f"{str(path)!r} is gone; run `silvan fit` again")
        forest = Forest.load(path)
        reject(forest.hash != model.hash, f"{path}: not the forest that {RUN} names; one of the two was changed")
        return forest

    def made_here(self) -> Forest:
        """Read the forest that this folder's site made with its own rows."""
        path = self.file(MADE_MODEL)
        if not path.is_file():
            raise InputError(
                f"{str(path)!r}, the only copy of the forest that this site made with its own rows, is gone: use the "
                f"shared forest, {MODEL}, or ask for the study to be run again under another name"
            )
        made, shared = Forest.load(path), Forest.load(self.file(MODEL))
        reject(made.schema != shared.schema, f"{path}: not a forest of this study")
        return made

    def write_evaluation(self, rows: list[MetricsRow], name: str = EVALUATION) -> None:
        """Write the table of metrics."""
        names = list(rows[0].metrics if rows else ())
        noisy = any(row.epsilon is not None for row in rows)
        ends = [f"{name}_{end}" for name in names for end in ("low", "high")] if noisy else []
        more = list(rows[0].more if rows else ())
        two = ["positive"] * any(row.positive is not None for row in rows)
        head = ["site", "model", "rows", *names, *ends, *more, *_GAINS, "use", *two, "epsilon" if noisy else "note"]
        table: list[list[Any]] = [head]
        for row in rows:
            between = [x for name in names for x in row.between.get(name, (None, None))] if noisy else []
            further = [row.more.get(name) for name in more]
            numbers = [*row.metrics.values(), *between, *further, *(getattr(row, name) for name in _GAINS)]
            metrics = ["" if x is None else repr(x) for x in numbers]
            last = row.note if not noisy else "" if row.epsilon is None else repr(row.epsilon)
            use = "true" if row.use else "false"
            table.append([row.site, row.model, row.rows, *metrics, use, *[row.positive or ""] * len(two), last])
        self._write(name, csv_text(table).encode())

    def _write(self, name: str, data: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.file(name), data)


class NotKept(Run):
    """A run that keeps nothing, for trials."""

    def __init__(self) -> None:
        super().__init__("")

    def save_models(self, result: Result) -> list[Model]:
        """Write no model."""
        return []

    def _write(self, name: str, data: bytes) -> None:
        """Write nothing."""


def read_record(data: bytes) -> Record:
    """Read and check the content of ``run.json``."""
    try:
        head = msgspec.json.decode(data, type=_Head)
        reject(head.format != FORMAT, f"it does not say format {FORMAT!r}")
        if head.version > VERSION:
            raise VersionError(f"of version {head.version}, this silvan reads {VERSION}; upgrade silvan")
        return msgspec.json.decode(data, type=Record)
    except UNREADABLE as error:
        raise FormatError(f"damaged, or not of a run ({error})") from None


class _Head(msgspec.Struct):
    """The part of ``run.json`` that is read first: its format and version."""

    format: str = ""
    version: int = 0

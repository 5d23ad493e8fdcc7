"""A study as one frozen object that mirrors the study file, at the coordinator and at sites.

Every key is declared here once, with its type, range, default, documentation, and where it cannot be set. The parser,
the reference in docs/study.md, the fingerprint and every consumer derive from it. Sites read studies too, so no learner
is imported.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from silvan.algorithms.evaluation.repeats import MOST_REPEATS, folds_of
from silvan.data.batches import read_size
from silvan.data.column_types import Kinds
from silvan.data.date_split import EXPECTED, DateSplit
from silvan.data.groups import NO_GROUPS
from silvan.data.holdout import LeftOut, Split
from silvan.data.hospital.cohort import INDEX_DATE, Cohort, CohortPlan, Concepts, Covariate
from silvan.data.hospital.cohort_rows import CohortRows
from silvan.data.partition_files import Partitions
from silvan.data.readers.query import Query
from silvan.data.readers.table_file import Table
from silvan.data.schema import Class, Schema, Task
from silvan.federation.agreement import Absent
from silvan.federation.store import digest
from silvan.learners.parameters import Parameters, changed
from silvan.learners.registry import LEARNERS, HistogramForestParameters
from silvan.learners.spec import LearnerSpec
from silvan.privacy.policy import Policy
from silvan.study.sections import EvaluationSettings, Predict, Text
from silvan.study.toml_lines import Key
from silvan.tree.fit import Settings
from silvan.util.declared import NOT_A_KEY, about, extras, typed_keys

Sources = dict[str, Path | Query | Table | Partitions | CohortRows]  # tables by site or party

# why a key cannot be set in some studies: in one process, between machines, over rows, over columns
_REMOTE = "{key} is for studies between machines; leave it out here"
_OWN_TABLE = "each site names its own table when it joins; leave {key} out"
_FOR_PARTIES = "{key} is for parties that hold columns of the same rows, and this study is over rows; leave it out"
_FOR_ROWS = "{key} is for studies over rows; leave it out"


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """A study file, read and checked; the last fields say what it was read from.

    ``about`` says why a key cannot be set ``here`` (in one process), between ``machines``, over ``rows`` or over
    ``columns``, and has ``decides=False`` for a key that does not affect the result.

    Parameters
    ----------
    name
        the title of the report
    label
        the column to predict
    time
        for survival, instead of `label`: the column of times, as `time = "days"`, see [survival](survival.md)
    event
        for survival: the column that says whether the event happened at that time, with 1 or 0, true or false, yes or
        no; otherwise the row was censored then
    test
        share of each site's rows kept as test rows, sampled by class (with `epsilon`, [each row by
        itself](privacy.md#one-row-changes-one-row)); below 1. Without it nothing is evaluated
    repeats
        how often every row is evaluated, by models that have not seen it: rows are shuffled into folds (`test = 0.2`:
        five; without `test`: ten), again for each repeat, and metrics are means with corrected confidence intervals,
        see [joining](joining.md#repeats). Not with `epsilon`, `memory` or over columns
    split
        `{ by = "date", test = "last 20%" }` takes the latest rows of every site as test rows, instead of `test`; `test
        = "since 2024-01-31"` takes the rows from that date (the only form allowed with `epsilon`). The column is not
        used as a feature, see
        [tables](tables.md#test-rows-by-date).
        `"sites"` evaluates, at each site in turn, a model trained at the others, which shows what a new site can
        expect, see [joining](joining.md#a-site-that-takes-no-part). The study's own model is trained at all sites.
        Needs `sums = "trusted"`; not with `epsilon` or `memory`.
        Neither goes with `test`, `repeats`, or over columns
    random_state
        decides the test rows, which rows are in which tree, and which features are sampled
    task
        `"classification"`, `"regression"` or `"survival"`; by default survival with `time` and `event`, and regression
        if the label has fractions
    positive
        the positive class of two, as `positive = "diseased"`, which sensitivity, precision, F1 and thresholds are
        about. Probabilities keep their order
    group
        the column of persons' ids, where tables have several rows of a person, as `group = "patient"`. It is not used
        as a feature; a person's rows are all test rows or none, and persons are counted instead of rows, see
        [tables](tables.md#several-rows-per-person)
    absent
        what to do with columns that some sites lack: `"missing"` treats all values at those sites as missing; `"drop"`
        leaves such columns out, see [tables](tables.md#columns-that-some-sites-lack)
    sums
        secure aggregation: `"ring"` or `"masked"` hide the parts of sums from everybody (three sites or more);
        `"trusted"` shows them to whoever adds, see [sums](sums.md)
    describe
        `true`: before training, quartiles, missing values and categories of all columns, over all sites and at each
        site whose policy allows it, see [Table 1](describe.md). `"only"`: nothing is trained. Not with `epsilon`
    exclude
        columns that are not features, such as identifiers
    output
        the run folder, relative to the study file; `--output` on the command line takes precedence
    id
        with `[parties]`: the column that identifies rows
    match
        with `[parties]`: how rows are matched, see [vertical](vertical.md)
    names
        with `[parties]`: whether the coordinator sees numbers instead of column names, or names `"shown"`
    table
        one table with the rows of all sites, instead of `[sites]`
    site
        the column of `table` that names the site
    query
        the query for `table`, if that is a database
    memory
        how much memory a site's rows may take, such as `"2GB"`, see [tables](tables.md)
    quorum
        the number of sites that must stay; without it, all: the study stops and names the missing sites. At least three
        for ring sums, two thirds of the sites for masked sums
    timeout
        seconds after which an unresponsive site is given up, not counting the time until its owner approves
    approval_days
        days within which sites' owners can approve the study
    sampling
        `"secret"`: only the sites know which rows are in which tree, through a key that one site makes and seals for
        the others; `"published"`: samples follow from `random_state`, so that anybody with the tables can reproduce the
        forest
    auditor
        a person or machine that verifies the finished study, see [verification](verification.md). The auditor sees all
        sums over sites and all replies, like the coordinator, and is named in the text that owners approve. The
        coordinator keeps the journal for the auditor
    label_holder
        the party that holds the label: the others compute only on labels that it signed. Without this key they trust
        the coordinator and the party that claims to hold it
    metrics
        `"own"`: at the end a site receives its own metrics and those over all sites; `"all"`: the metrics of every site
    sites
        the table of each site; between machines a list of the sites' names
    parties
        the table of each party, instead of `[sites]`
    reading
        the format of all sites' files
    kinds
        kinds of columns, if their cells do not show them
    schema
        what the columns mean, declared without looking at the tables
    cohort
        the persons that the rows are, where sites have OMOP databases or FHIR files, see [OMOP and
        FHIR](hospital_data.md)
    concepts
        what names of concepts stand for: concept ids and FHIR codes
    covariates
        the columns of such tables
    learner
        the learner and its parameters
    evaluation
        how the model is evaluated
    policy
        what every site allows to leave
    predict
        written by `silvan study predict`
    """

    name: Annotated[Text, about(default="the file's name", decides=False)] = "study"
    label: Text = "label"
    time: Annotated[Text | None, about(default="there is no time", columns=_FOR_ROWS)] = None
    event: Annotated[Text | None, about(default="there is no event", columns=_FOR_ROWS)] = None
    test: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    repeats: Annotated[
        Annotated[int, Meta(ge=1, le=MOST_REPEATS)] | None, about(default="test rows once", columns=_FOR_ROWS)
    ] = None
    split: Annotated[
        Literal["sites"] | DateSplit | None,
        about(default="rows, sampled", expected=f"'sites', {EXPECTED}", columns=_FOR_ROWS),
    ] = None
    random_state: Annotated[int, Meta(ge=0)] = 0
    task: Annotated[Task | None, about(default="inferred")] = None
    positive: Annotated[
        Class | None,
        about(default="the second class in sorted order", expected="a class of the label", columns=_FOR_ROWS),
    ] = None
    group: Annotated[Text | None, about(default="each row is a person", columns=f"{{key}} {NO_GROUPS}")] = None
    absent: Annotated[Absent, about(columns=_FOR_ROWS)] = "missing"
    sums: Literal["trusted", "ring", "masked"] = "trusted"
    describe: Annotated[bool | Literal["only"], about(expected="true, false or 'only'", columns=_FOR_ROWS)] = False
    exclude: tuple[str, ...] = ()
    output: Annotated[Text | None, about(default='`"runs/<file name>"`', decides=False)] = None
    id: Annotated[
        Text | None,
        about(machines="each party names its own column of ids in its site.toml; leave id out", rows=_FOR_PARTIES),
    ] = None
    match: Annotated[Literal["keyed", "psi"], about(rows=_FOR_PARTIES)] = "psi"
    names: Annotated[Literal["coded", "shown"], about(rows=_FOR_PARTIES)] = "coded"
    table: Annotated[Text | None, about(machines=_OWN_TABLE, decides=False)] = None
    site: Annotated[Text | None, about(machines=_OWN_TABLE)] = None
    query: Annotated[Text | None, about(machines=_OWN_TABLE, decides=False)] = None
    memory: Annotated[
        str | int | None,
        about(
            default="all rows",
            expected="a number of bytes, or text such as '2GB'",
            check=read_size,
            machines="how much memory a site takes is in its own site.toml; leave memory out",
            columns="memory is for studies over rows: parties have their columns in memory; leave it out",
            decides=False,
        ),
    ] = None

    # -- keys of studies between machines
    quorum: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        about(
            default="all",
            here=_REMOTE,
            columns="quorum is for studies over rows: of columns, every party is needed; leave it out",
            decides=False,
        ),
    ] = None
    timeout: Annotated[
        float, Meta(gt=0), about(expected="a number of seconds above 0", here=_REMOTE, decides=False)
    ] = 3600.0
    approval_days: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        about(default="any time", expected="a number of days above 0", here=_REMOTE, decides=False),
    ] = None
    sampling: Annotated[
        Literal["secret", "published"],
        about(
            here=_REMOTE,
            columns="of columns, the label holder draws rows by a key that travels sealed; leave sampling out",
            decides=False,
        ),
    ] = "secret"
    auditor: Annotated[Text | None, about(default="nobody", here=_REMOTE, decides=False)] = None
    label_holder: Annotated[
        Text | None,
        about(default="the party that has the label", here=_REMOTE, rows=_FOR_PARTIES, decides=False),
    ] = None
    metrics: Annotated[Literal["own", "all"], about(here=_REMOTE, decides=False)] = "own"

    # -- sections
    sites: Annotated[dict[str, Any] | tuple[Text, ...] | None, about(decides=False)] = None
    parties: Annotated[
        dict[str, Any] | None,
        about(
            machines="between machines parties are named by sites = [...], and each names its own table and column of "
            "ids (site.toml); leave [parties] out",
            decides=False,
        ),
    ] = None
    reading: Annotated[
        dict[str, Any], about(machines="how a table is written is in each site's own site.toml; leave [reading] out")
    ] = msgspec.field(default_factory=dict)
    kinds: Kinds = msgspec.field(default_factory=dict)
    schema: Schema | None = None
    cohort: Annotated[Cohort | None, about(columns=_FOR_ROWS)] = None
    concepts: Annotated[dict[str, Concepts], about(columns=_FOR_ROWS)] = msgspec.field(default_factory=dict)
    covariates: Annotated[dict[str, Covariate], about(columns=_FOR_ROWS)] = msgspec.field(default_factory=dict)
    learner: Parameters = HistogramForestParameters()
    evaluation: EvaluationSettings = EvaluationSettings()
    policy: Annotated[
        Policy, about(machines="what a site lets out is the site's own policy (site.toml); leave [policy] out")
    ] = Policy()
    predict: Annotated[Predict | None, about(here=_REMOTE, rows=_FOR_PARTIES, decides=False)] = None

    # -- source
    path: Annotated[Path, NOT_A_KEY] = Path("study.toml")
    text: Annotated[str, NOT_A_KEY] = ""
    lines: Annotated[dict[Key, int], NOT_A_KEY] = {}
    # by site or party, or the one table under ""; empty for remote sites
    tables: Annotated[Sources, NOT_A_KEY] = {}

    @property
    def kind(self) -> str:
        """The learner's name."""
        return type(self.learner).__name__.removesuffix("Parameters")

    @property
    def parameters(self) -> dict[str, Any]:
        """The learner's parameters that differ from their defaults, and those with others between machines."""
        given = changed(self.learner)
        remote = {} if self.tables else self.spec.between_machines(given)
        return {**{name: getattr(self.learner, name) for name in remote}, **given}

    @property
    def spec(self) -> LearnerSpec:
        """The learner's registry entry."""
        return LEARNERS[self.kind]

    @property
    def by_columns(self) -> bool:
        """Whether parties hold columns of the same rows."""
        return self.spec.axis == "columns"

    @property
    def on_splits(self) -> bool:
        """Whether models of splits are evaluated, so that every row is a test row."""
        return self.repeats is not None or self.split == "sites"

    def splits(self, sites: Iterable[str]) -> list[Split]:
        """Return the splits for evaluation; none if there is one set of test rows."""
        if self.split == "sites":
            return [LeftOut(site) for site in sites]
        return list(folds_of(self.test, self.repeats)) if self.repeats else []

    def parts_of_splits(self, sites: Iterable[str]) -> list[Split]:
        """Return the studies that the splits consist of, in running order."""
        return [part for split in self.splits(sites) for part in split.parts]

    @property
    def date_split(self) -> DateSplit | None:
        """The split by date, if the study has one."""
        return self.split if isinstance(self.split, DateSplit) else None

    @property
    def cohort_plan(self) -> CohortPlan | None:
        """How sites make their tables of OMOP databases or FHIR files, if the study says so."""
        if self.cohort is None:
            return None
        by = None if self.date_split is None else self.date_split.by
        return CohortPlan(self.cohort.query, self.concepts, self.covariates, with_date=by == INDEX_DATE)

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns to predict: the label, or times and events."""
        return (self.label,) if self.event is None else (self.label, self.event)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The columns that are not features: excluded ones, and those that group or split rows."""
        more = (self.group, None if self.date_split is None else self.date_split.by)
        return (*self.exclude, *(name for name in more if name is not None and name not in self.exclude))

    @property
    def holds_out(self) -> bool:
        """Whether there are test rows for the study's own model."""
        return bool(self.test) or self.date_split is not None

    @property
    def evaluated(self) -> bool:
        """Whether any model is evaluated: the study's own, or those of splits."""
        return self.holds_out or self.on_splits

    @property
    def max_bins(self) -> int:
        """The number of bins in which columns are counted."""
        return int(getattr(self.learner, "max_bins", Settings.max_bins))

    @property
    def private(self) -> bool:
        """Whether the forest is built from noisy counts."""
        return isinstance(self.learner, HistogramForestParameters) and self.learner.epsilon is not None

    @property
    def secret(self) -> bool:
        """Whether sites share a key, so that only they know which rows are in which tree."""
        return self.sampling == "secret" and not self.by_columns

    @property
    def site_names(self) -> list[str] | None:
        """The names of the sites, if the study names them."""
        return None if self.sites is None else list(self.sites)

    @property
    def run_folder(self) -> Path:
        """The folder of a run in one process."""
        return Path(os.path.normpath(self.path.parent / (self.output or Path("runs") / self.path.stem)))

    @property
    def max_models(self) -> int:
        """The maximum number of external models, or scores, that one site evaluates."""
        evaluated = self.evaluated and self.evaluation.epsilon is None
        with_noise = self.evaluation.epsilon is not None  # then only the model is evaluated
        return with_noise + self.spec.models_evaluated(self.parameters, evaluated=evaluated, by=self.evaluation.by)

    @property
    def max_tasks(self) -> int:
        """The maximum number of tasks: a model, its evaluation and its explanation; parties have more."""
        explained = self.evaluation.importance + bool(self.evaluation.dependence)
        return 2 + explained + 2 * self.by_columns + bool(self.describe)

    # -- identity
    @property
    def digest(self) -> str:
        """The SHA-256 of the study's text, in hexadecimal."""
        return digest(self.text.encode())

    @property
    def unique_name(self) -> str:
        """The study's name with the full digest of its text: a site's owner approves exactly this text."""
        return f"{self.name} {self.digest}"

    @property
    def folder(self) -> str:
        """The name of the run folder of a study between machines; its journal belongs to one ``unique_name``."""
        return self._folder_of(self.digest)

    @property
    def model_folder(self) -> str:
        """The name of the run folder with the study's model, or with the model to predict with."""
        return self._folder_of(self.digest if self.predict is None else self.predict.study)

    def _folder_of(self, digest: str) -> str:
        plain = "".join(c if c.isalnum() or c in "-_" else "-" for c in self.name.lower())[:40]
        return f"{plain}-{digest[:12]}"

    def losses(self, sites: Sequence[str]) -> int:
        """Return how many sites the study may lose: none without a quorum."""
        return 0 if self.quorum is None else max(0, len(sites) - self.quorum)

    def max_epsilon(self, sites: Sequence[str]) -> float:
        """Return the maximum cost to a site's privacy budget.

        If sites share the noise on a sum, the others draw theirs again whenever a site is lost.
        """
        once = (self.parameters.get("epsilon") or 0.0) + (self.evaluation.epsilon or 0.0)
        return float(once) * (1 if self.parameters.get("noise") == "site" else 1 + self.losses(sites))

    def settings(self) -> dict[str, Any]:
        """Return all settings that decide the result, as plain data without empty sections."""
        not_of, found = "columns" if self.by_columns else "rows", {}
        for name, hint in typed_keys(type(self)).items():
            more, value = extras(hint), _plain(getattr(self, name))
            if more.get("decides", True) and not_of not in more and value != {}:
                found[name] = value
        return {**found, "learner": {"kind": self.kind, **self.parameters}}


def _plain(value: Any) -> Any:
    """Return a setting as plain data; for a section, what differs from the defaults."""
    if isinstance(value, Schema):
        return value.to_json()
    if isinstance(value, EvaluationSettings | Policy):
        default = type(value)()
        kind: type = type(value)
        given = {name: getattr(value, name) for name in typed_keys(kind)}
        value = {name: one for name, one in given.items() if one != getattr(default, name)}
    return msgspec.json.decode(msgspec.json.encode(value))

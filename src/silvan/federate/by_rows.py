"""Make a federation of rows in this process: several tables, or one with a column that names the site."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack, get_args

import narwhals as nw

from silvan.algorithms.bofrf.site_forest import is_unfitted, name_of, read_forest
from silvan.data.batches import read_size
from silvan.data.column_types import Kinds, check_apart, check_kinds, said_categorical
from silvan.data.date_split import NEEDS_DATE, DateSplit, check_split
from silvan.data.groups import shared_ids
from silvan.data.holdout import Fold, LeftOut, Split
from silvan.data.schema import Class, Schema, Task
from silvan.data.table import open_table
from silvan.errors import InputError, SchemaError, SiteError
from silvan.federate.options import (
    NEEDS_TRUSTED_SUMS,
    OptionKeywords,
    Options,
    Protection,
    check_common,
    check_excluded,
    check_folded,
    check_named,
    shows_options,
    task_of,
)
from silvan.federation.agree import agree_on
from silvan.federation.agreement import Absent, Agreement
from silvan.federation.federation import Federation
from silvan.federation.partitioned_site import site_of
from silvan.federation.site import Site
from silvan.federation.site_table import SiteSettings
from silvan.privacy.held_columns import ListColumns, share_columns
from silvan.privacy.noise.budget import Budget
from silvan.privacy.policy import Policy
from silvan.tree.sampling import make_key
from silvan.util.files import file_name
from silvan.util.readable import count_of
from silvan.util.user_warnings import warn_user

_SMALL = 20_000  # below this number of rows, a site of a split works on one thread


@shows_options
def federate_rows(
    tables: Any,
    *,
    site: str | None = None,
    label: str = "label",
    time: str | None = None,
    event: str | None = None,
    test: float = 0.0,
    test_by: Literal["class", "row"] | None = None,
    split: DateSplit | Mapping[str, str] | None = None,
    random_state: int = 0,
    task: Task | None = None,
    schema: Schema | None = None,
    exclude: Sequence[str] = (),
    kinds: Kinds | None = None,
    positive: Class | None = None,
    group: str | None = None,
    absent: Absent = "missing",
    forests: Mapping[str, Any] | None = None,
    budgets: str | Path | None = None,
    memory: int | str | None = None,
    folder: str | Path | None = None,
    **options: Unpack[OptionKeywords],
) -> Federation:
    """Make a federation of sites that hold different rows.

    Parameters
    ----------
    tables
        A dict of tables by site: data frames, paths, a ``Query`` or the URL of a table in a database, (X, y), or a
        table on a Dask cluster, ``Partitions`` or a Dask data frame; or one table and a column that names the site.
    site
        The column that names the site, if there is one table.
    label
        The column to predict.
    time, event
        For survival, instead of ``label``: the columns of times, and of whether the event happened then.
    test
        Share of each site's rows held out for evaluation.
    test_by
        How test rows are sampled: "class", the same share of every class; or "row", each row by a hash of its cells,
        which a forest with ``epsilon`` needs, with a given ``schema``. None: "row" if the sites have privacy
        budgets (``policy``, ``budgets``) and a schema, else "class".
    split
        Test rows by date instead of ``test``: ``{"by": "date", "test": "last 20%"}`` keeps the latest rows of every
        site, and ``"since 2024-01-31"`` as test those from a date on. The column is no feature, and every row needs a
        date, or a number such as a year.
    random_state
        Decides the test part and which rows are in which tree.
    task
        "classification", "regression" or "survival"; None: survival if ``time`` and ``event`` are named, regression if
        the label is floating point with fractions.
    schema
        The meaning of the columns, if agreed already; otherwise the sites agree on it. Sites with a given schema send
        noisy replies about no other.
    exclude
        Columns that are not features.
    kinds
        The kinds of columns by name, if their cells are ambiguous or sites would read them differently: "numeric",
        "categorical", "date", or a list of parts of a date: "days" (since 1970), "year", "month", "weekday".
    positive
        The positive class of two, which sensitivity, precision, F1 and thresholds are about. None: the second in sorted
        order. Probabilities keep their order.
    group
        The column of persons' ids, where tables have several rows of a person, such as visits of patients. It is no
        feature. A person's rows are all test rows or none, and so in folds; each tree samples persons, and takes one
        row of each; persons are counted instead of rows. None: every row is a person's only one.
    absent
        How to treat columns that some sites lack: "missing", they count as missing in all rows there, and histogram
        forests train exactly as on pooled rows; "drop", they are left out.
    forests
        Forests that sites bring, by site: a ``Forest``, the path of one, or a forest of scikit-learn, fitted or not.
        A fitted forest must not have seen the site's test rows; an unfitted one is trained on the training rows.
    sums
        Who sees the parts of a sum: "trusted" (whoever adds), "ring" or "masked" (nobody; at least three sites).
    policy
        The limits on what every site discloses.
    ledgers
        A folder in which each site has a folder with its key, its ledger of everything that left, and the approved
        studies; without one the ledger lives as long as the federation: ``fed.site(name).outbox.ledger``.
    signed
        Sign and check every message, with keys made for it or those in ``ledgers``, as between machines.
    cold
        Rebuild the site for every message, as if it had been restarted: slow, for tests.
    quorum, timeout
        How many sites must answer, and within how many seconds; None: all, any time.
    journal
        A file that keeps every reply, so that an interrupted study goes on where it stopped.
    budgets
        A folder in which each site has a file of its spent privacy budget, for all studies; without one the account
        lives as long as the federation.
    memory
        How much of each site's rows may be in memory, such as "2GB"; the table is read in batches and the rest is in
        files. None: all rows. The forest is the same.
    folder
        The place of these files, which have no names and disappear when the program ends. None: with temporary files.
    device
        Where sites grow trees: "cpu", "cuda" for a graphics card, or "auto" for a graphics card where there is one and
        a site has a million rows or more. The forest is the same.
    n_jobs
        Threads; None for all cores.
    transport
        The class that carries messages to sites: ``InProcess``, or one derived from it, such as one that loses some.

    Examples
    --------
    >>> import silvan as sv
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> fed = sv.federate_rows({"north": (X[::2], y[::2]), "south": (X[1::2], y[1::2])})
    >>> fed.sites
    ['north', 'south']
    """
    task, label = task_of(task, time, event, label, exclude), label if time is None else time
    check_common(test, task, random_state, exclude, label)
    given, kinds, room = Options(**options), check_kinds(kinds or {}), None if memory is None else read_size(memory)
    schema, by_date = _given_schema(schema, label, event, positive), check_split(split)
    check_folded(kinds, label)
    if absent not in get_args(Absent):
        raise InputError.wrong("absent", "'missing' or 'drop'", absent)
    for parameter, column in (("group", group), ("event", event)):
        check_apart(parameter, column, label, site, () if schema is None else schema.columns)
    sources = sources_by_site(tables, site, schema, kinds, exclude)
    pretrained = _check_forests(forests, sources)
    protection = Protection(list(sources), given)
    budgeted = protection.policy.epsilon is not None or budgets is not None
    test_key = make_key(random_state, "rows for judging").tobytes() if _by_row(test_by, schema, budgeted) else None
    own: dict[str, Any] = {"memory": room, "folder": folder, "schema": schema, "kinds": kinds, **given.processing}
    own |= {"test_key": test_key, "date_split": by_date, "group": group, "event": event}
    settings = SiteSettings.of_study(label, exclude, test, random_state, **own)
    _check_date_split(settings, site, schema, budgeted=budgeted)
    sites: dict[str, Site] = {}
    for name, source in sources.items():
        kept = protection.of(name, _budget(protection.policy, budgets, name))
        sites[name] = site_of(name, source, replace(settings, forest=pretrained.get(name)), **kept)
    study = f"rows of {', '.join(sites)}; label {label}; test {test}; random_state {random_state}"
    federation = protection.federation(sites, study, given)
    if given.journal is not None:
        said = _said_besides(settings, pretrained)
        federation.journal.belongs_to(
            f"{study}; exclude {list(exclude)}; policy {protection.policy}; sums {given.sums}; "
            f"tables {_fingerprints(sites)}{said}"
        )
    federation.agree_later = lambda: _agree(federation, protection.policy, settings, task, positive, absent)
    federation.split_later = lambda split: _split(federation, split, given)
    if not protection.policy.approve:
        _ = federation.agreement  # sites receive requests now, so that errors appear where the federation is made
    return federation


def _said_besides(settings: SiteSettings, pretrained: Mapping[str, Any]) -> str:
    """Return the rarely used settings that a study's journal records."""
    said = f"; kinds {settings.kinds}" if settings.kinds else ""
    said += f"; event {settings.event}" if settings.event else ""
    said += "; test by row" if settings.test_key and settings.test else ""
    said += f"; split {settings.date_split}" if settings.date_split else ""
    return said + "".join(f"; {name} brings {name_of(forest)}" for name, forest in pretrained.items())


def _check_date_split(settings: SiteSettings, site: str | None, schema: Schema | None, *, budgeted: bool) -> None:
    """Raise ``InputError`` for a split by date that conflicts with other parameters."""
    split = settings.date_split
    if split is None:
        return
    check_apart("split", split.by, settings.label, site, () if schema is None else schema.columns)
    if settings.test:
        raise InputError.about("split", "says which rows are test rows; leave one of split and test out")
    if budgeted and split.since is None:
        raise InputError.about("split", NEEDS_DATE)


def _given_schema(schema: Schema | None, label: str, event: str | None, positive: Class | None) -> Schema | None:
    """Return a given schema with the positive class; raise ``InputError`` if its label differs."""
    if schema is not None and schema.label.event != event:
        raise InputError(f"the schema's event is {schema.label.event!r} and event is {event!r}; they must be the same")
    if schema is not None and schema.label.name != label:
        raise InputError(f"the schema's label is {schema.label.name!r} and label is {label!r}; they must be the same")
    return None if schema is None else schema.with_positive(positive)


def _split(federation: Federation, split: Split, given: Options) -> Federation:
    """Return a federation of the sites of a split, with the same policy and the split's test rows.

    For the sites' gates it is a separate study, with new ledgers.
    """
    if isinstance(split, LeftOut) and given.sums != "trusted":
        raise InputError.about("sums", NEEDS_TRUSTED_SUMS)
    members, fold = split.members(federation.sites), split if isinstance(split, Fold) else None
    given = replace(given, journal=None, ledgers=None, quorum=given.quorum and min(given.quorum, len(members)))
    protection = Protection(members, given)
    agreement, sites = federation.agreement, dict[str, Site]()
    for name in members:
        site = federation.local_sites[name]
        if site.forest is not None and not is_unfitted(site.forest):
            raise InputError.about(
                "repeats", f"need forests that are not fitted: that of {name!r} may know rows it is evaluated by"
            )
        # starting threads takes longer than small tables need
        n_jobs = 1 if len(site.table) < _SMALL and site.n_jobs is None else site.n_jobs
        settings = replace(site.settings, test=split.test, fold=fold, date_split=None, n_jobs=n_jobs)
        sites[name] = site.rebuilt(settings, **protection.of(name, _budget(protection.policy, None, name)))
        sites[name].take_table(site)
    made = protection.federation(sites, split.study(federation.study), given)
    made.agreement = replace(agreement, rows={name: sites[name].n_train for name in agreement.rows if name in sites})
    if _asks_for_columns(protection.policy):
        share_columns(made, agreement.schema.columns)
    return made


def _agree(
    federation: Federation,
    policy: Policy,
    settings: SiteSettings,
    task: Task | None,
    positive: Class | None,
    absent: Absent,
) -> Agreement:
    """Agree on a schema as far as the policy allows, check parameters that name columns, and warn about odd data."""
    share = partial(share_columns, federation) if _asks_for_columns(policy) else None
    label, kinds, rows = settings.label, settings.kinds, policy.allows_exact("CountRows")
    found: dict[str, Any] = {"count_rows": rows, "kinds": kinds, "positive": positive}
    found |= {"grouped": settings.group is not None, "absent": absent, "event": settings.event}
    agreement = agree_on(federation, label, task, settings.schema, **found, share_columns=share)
    agreement.differences.warnings += shared_ids(_ids(federation.local_sites))
    for text in agreement.differences.warnings:
        warn_user(text)
    check_excluded(settings.exclude, federation.local_sites, "at any site")
    if agreement.by_asking:
        columns = [
            label,
            *filter(None, [settings.event]),
            *settings.left_out,
            *(column.name for column in agreement.described),
        ]
        check_named(kinds, columns, "at any site")
    return agreement


def _ids(sites: Mapping[str, Site]) -> dict[str, list[str]]:
    """Return the persons of each site; raise ``SiteError`` if the ID column cannot be used."""
    found = {}
    for name, site in sites.items():
        try:
            found[name] = [] if site.groups is None else site.groups.ids
        except InputError as error:
            raise SiteError(name, str(error)) from error
    return found


def _asks_for_columns(policy: Policy) -> bool:
    """Return whether sites must know which columns the others have; sums with noise do not need it."""
    return policy.min_sites > 1 and policy.allows_exact(ListColumns.kind())


def _by_row(test_by: str | None, schema: Schema | None, budgeted: bool) -> bool:
    """Return whether test rows are sampled independently; raise ``InputError`` for impossible combinations."""
    if test_by not in (None, "class", "row"):
        raise InputError.wrong("test_by", "None, 'class' or 'row'", test_by)
    if test_by == "row" and schema is None:
        raise InputError(
            "test_by='row' needs a schema that is given: rows are sampled by their cells, as it reads them"
        )
    return test_by == "row" or (test_by is None and budgeted and schema is not None)


def _budget(policy: Policy, folder: str | Path | None, site: str) -> Budget:
    if folder is None:
        return Budget(policy.epsilon)
    Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    return Budget(policy.epsilon, Path(folder) / f"{file_name(site)}.sqlite", site)


def _fingerprints(sites: Mapping[str, Site]) -> list[str]:
    """Return a name for each site's table by its content."""
    found = []
    for site in sites.values():
        try:
            found.append(site.fingerprint())
        except Exception:  # whatever is wrong, the site's own error is better
            found.append("")
    return found


def _check_forests(forests: Mapping[str, Any] | None, sites: Mapping[str, Any]) -> dict[str, Any]:
    """Check the pretrained forests of sites, and return them by site."""
    if forests is not None and not isinstance(forests, Mapping):
        raise InputError.about("forests", f"must be a dict of forests by site, got {type(forests).__name__}")
    if not forests:
        return {}
    from sklearn.base import clone  # here, because a site's process does not need scikit-learn

    pretrained = {str(name): forest for name, forest in forests.items()}
    for name, forest in pretrained.items():
        if name not in sites:
            raise InputError.about("forests", f"names {name!r}, which is not a site; the sites are {', '.join(sites)}")
        # a copy, because an estimator may be fitted elsewhere later
        pretrained[name] = clone(forest) if is_unfitted(forest) else read_forest(forest)
    return pretrained


def sources_by_site(
    tables: Any, site: str | None, schema: Schema | None, kinds: Kinds, exclude: Sequence[str] = ()
) -> dict[str, Any]:
    """Return each site's table: as they are given, or the rows of one table."""
    if isinstance(tables, Mapping):
        if site is not None:
            raise InputError.about("site", "names a column of one table; with a dict of tables leave it out")
        if len({str(name) for name in tables}) < len(tables):
            raise InputError("two sites have names that read alike; give every site a name of its own")
        return {str(name): table for name, table in tables.items()}
    if site is None:
        raise InputError("pass a dict of tables by site, or one table and site='the column that names it'")
    # unchanged cells: each site finds the type of a column, as if it had a separate table
    table = open_table(tables, kinds=kinds)
    for complaint in (text for name, text in table.unclear.items() if schema is None and name not in exclude):
        raise SchemaError(complaint)
    frame = table.by(schema) if schema is not None else table.with_texts(said_categorical(kinds))
    if site not in frame.columns:
        raise InputError(f"the table has no column {site!r} to name the sites")
    if frame[site].null_count():
        raise InputError(
            f"column {site!r} is missing in {count_of(frame[site].null_count(), 'row')}; every row needs a site"
        )
    names = frame[site].unique(maintain_order=True).to_list()
    return {str(name): frame.filter(nw.col(site) == name).drop(site).to_native() for name in names}

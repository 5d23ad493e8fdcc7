"""Agreement before training: one schema for all sites, or a clear error that says why there is none."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from silvan.data.cells import fold, look_alike
from silvan.data.column_types import Kinds, date_parts
from silvan.data.encode import date_features
from silvan.data.schema import CROWDED, FEWER, MAX_CATEGORIES, Class, Feature, Label, Schema, Task
from silvan.errors import AgreementError, FormatError, reject
from silvan.federation import wire
from silvan.federation.agreement import Absent, Agreement, ColumnAtSites, Differences
from silvan.federation.describe import (
    BUCKETS,
    FLOOR,
    CategoryCounts,
    CategoryNames,
    CountCategories,
    CountRows,
    Describe,
    Description,
    NameCategories,
    Size,
    buckets,
    check_counts,
    common_hashes,
)
from silvan.federation.federation import Federation
from silvan.util.readable import count_of, format_names

MAX_ROWS = 1 << 40
"""Upper bound on a site's rows: sums of this size fit all counters."""

_KINDS = {"numeric": "numbers", "categorical": "text", "date": "dates", "empty": "nothing"}
"""Kinds of columns in words."""

_BIAS, _CELLS = 127, 256
"""Median cells are powers of two, by the exponent of a float: its bias, and the number of cells."""

_FAR = 2
"""Medians more than this many powers of two apart suggest different units."""

_NAMED = 5
"""Maximum number of a site's classes in a warning."""


def agree_on(
    federation: Federation,
    label: str,
    task: Task | None = None,
    schema: Schema | None = None,
    *,
    count_rows: bool = True,
    kinds: Kinds | None = None,
    positive: Class | None = None,
    grouped: bool = False,
    absent: Absent = "missing",
    event: str | None = None,
    share_columns: Callable[[Sequence[str]], None] | None = None,
) -> Agreement:
    """Find a schema that fits all sites' tables, the differences between the tables, and each site's number of rows.

    ``grouped`` says whether the study names a column of persons' ids: sites must agree with it. If a schema is given,
    sites are asked for their rows at most. ``share_columns`` sends sites the names of the others' columns, before
    anything is counted. ``positive`` is the positive class of two. ``absent`` says how to treat columns that some sites
    lack. ``event`` is the column of events if the label is a time.
    """
    if schema is not None:
        if share_columns is not None:
            share_columns(schema.columns)
        rows = ask_rows(federation, grouped=grouped) if count_rows else {}
        return Agreement(schema, rows=rows, by_asking=False, grouped=grouped)
    kinds = kinds or {}
    with federation.counted_apart():
        replies: dict[str, Description] = federation.ask(Describe(task=task, grouped=grouped), check=_check_description)
        differences = Differences()
        found = _kinds(replies, differences, absent)
        classes = _classes(replies, label, differences, kinds.get(label))
        _suspect_names(list(found), differences)
        sizes = {name: _median_cells(name, replies) for name, kind in found.items() if kind == "numeric"}
        _suspect_units(sizes, differences)
        features = [feature for name, kind in found.items() for feature in _features(name, kind, kinds)]
        if share_columns is not None:
            share_columns(list(found))
        named: dict[str, dict[str, int]] = {}
        if "categorical" in found.values():
            features, named = _name_categories(federation, features, differences)
    rows = {site: description.rows for site, description in replies.items()}
    described = []
    for name, kind in found.items():
        sites = [site for site, description in replies.items() if name in description.names]
        bounds = {
            site: (2.0 ** (cell - 1 - _BIAS), 2.0 ** (cell - _BIAS)) for site, cell in sizes.get(name, {}).items()
        }
        categories = {site: n for site, n in named.get(name, {}).items() if site in sites}
        described.append(ColumnAtSites(name, kind, sites, bounds, categories))
    of_study = Label(label, classes, folded=kinds.get(label) == "folded", event=event).with_positive(positive)
    return Agreement(Schema(tuple(features), of_study), differences, rows, described=described, grouped=grouped)


def ask_rows(federation: Federation, *, grouped: bool = False) -> dict[str, int]:
    """Request the number of rows of each site, once a schema is agreed."""

    def check(site: str, reply: Size) -> None:
        reject(not 1 <= reply.rows < MAX_ROWS, "it has no training rows")

    with federation.counted_apart():
        replies: dict[str, Size] = federation.ask(CountRows(grouped=grouped), check=check)
    return {site: reply.rows for site, reply in replies.items()}


def _check_description(site: str, replies: Description) -> None:
    n = len(replies.names)
    reject(replies.medians.shape != (n,) or replies.medians.dtype != np.int64, "its columns do not match")
    if len(replies.kinds) != n or not all(kind in _KINDS for kind in replies.kinds):
        raise FormatError("its kinds are not kinds of columns")
    if len(set(replies.names)) < n or not all(replies.names) or not 1 <= replies.rows < MAX_ROWS:
        raise FormatError("a column without a unique name, or no training rows")
    classes = replies.classes
    few = not 0 <= replies.unnamed < MAX_ROWS or (classes is not None and len(classes) + replies.unnamed == 0)
    reject(few or any(c != c or c in (np.inf, -np.inf) for c in classes or ()), "its classes are not classes")


def _features(name: str, kind: str, kinds: Kinds) -> list[Feature]:
    """Return the features that a column becomes."""
    if kind == "date":
        return date_features(name, date_parts(kinds, name))
    return [Feature(name, "categorical" if kind == "categorical" else "numeric")]


def _kinds(replies: dict[str, Description], differences: Differences, absent: Absent) -> dict[str, str]:
    """Return all columns of any site, or those of all sites, with their kinds, in the order of the sites.

    A column without values takes the kind from other sites. It is an error if sites read a column differently.
    """
    kinds: dict[str, dict[str, str]] = {}
    for site, description in replies.items():
        for name, kind in zip(description.names, description.kinds, strict=True):
            kinds.setdefault(name, {})[site] = kind
    orders = {tuple(n for n in d.names if len(kinds[n]) == len(replies)) for d in replies.values()}
    if len(orders) > 1:
        differences.add("(all)", "columns stand in another order at some sites", "matched by name")
    agreed, partial = {}, dict[tuple[str, ...], list[str]]()
    for name, by_site in kinds.items():
        lacking = [site for site in replies if site not in by_site]
        if lacking and absent == "drop":
            differences.add(name, f"absent at {', '.join(lacking)}", "left out")
            continue
        if lacking:
            differences.add(name, f"absent at {', '.join(lacking)}", "counts as missing there")
            partial.setdefault(tuple(lacking), []).append(name)
        empty = [site for site, kind in by_site.items() if kind == "empty"]
        if empty and len(empty) < len(by_site):
            differences.add(name, f"without any value at {', '.join(empty)}", "counts as missing there")
        sites: dict[str, list[str]] = {}
        for site, kind in by_site.items():
            if kind != "empty":
                sites.setdefault(kind, []).append(site)
        if len(sites) > 1:
            how = " and ".join(f"{_KINDS[kind]} at {', '.join(some)}" for kind, some in sites.items())
            raise AgreementError(
                f"column {name!r} is read as {how}; make the tables alike, leave the column out (exclude), or set its "
                f'kind (kinds: {name} = "categorical", or another)'
            )
        agreed[name] = next(iter(sites), "numeric")
    if absent == "drop" and kinds and not agreed:
        raise AgreementError(
            "no column is at all sites, and absent = 'drop' leaves out all others: write them alike, or set absent = "
            "'missing'"
        )
    for without, names in partial.items():
        are = "is" if len(names) == 1 else "are"
        differences.warnings.append(
            f"{format_names(names)} {are} absent at {', '.join(without)} and missing in all rows there: trees can tell "
            "these rows by that, and what the values mean is learned from the other sites alone; absent = 'drop' "
            "leaves such columns out"
        )
    return agreed


def _classes(
    replies: dict[str, Description], label: str, differences: Differences, kind: Any
) -> tuple[Class, ...] | None:
    """Return the classes of all sites; the study decides whether case and blanks tell classes apart."""
    by_site = {site: d.classes for site, d in replies.items()}
    numbers = [site for site, classes in by_site.items() if classes is None]
    if numbers and len(numbers) < len(by_site):
        classed = [site for site in by_site if site not in numbers]
        raise AgreementError(
            f"the label {label!r} is a number at {', '.join(numbers)} and has classes at "
            f"{', '.join(classed)}; pass task='classification' or task='regression'"
        )
    if numbers:
        return None
    everything = {c for classes in by_site.values() for c in classes or ()}
    if len({isinstance(c, str) for c in everything}) > 1:
        text = [s for s, classes in by_site.items() if any(isinstance(c, str) for c in classes or ())]
        rest = [s for s, classes in by_site.items() if not all(isinstance(c, str) for c in classes or ())]
        raise AgreementError(
            f"the classes of {label!r} are text at {', '.join(text)} and numbers at {', '.join(rest)}; make them alike"
        )
    if kind == "folded":  # classes that differ only in case are one, named like the first of them
        called = {fold(str(c)): c for c in sorted(everything, reverse=True)}
        by_site = {site: [called[fold(str(c))] for c in classes or ()] for site, classes in by_site.items()}
        everything = set(called.values())
    for site, classes in by_site.items():
        lacking, unnamed = sorted(everything - set(classes or ()), key=str), replies[site].unnamed
        if unnamed > len(lacking):
            raise AgreementError(
                f"site {site!r} has {count_of(unnamed, 'class')} of {label!r} with fewer than {FLOOR} rows "
                f"there, and other sites name {len(lacking)} that it does not: name all classes of the label in the "
                "study's schema, or say task='regression' if it is a number to predict"
            )
        if lacking:
            few = f"fewer than {FLOOR} rows, or none," if unnamed else "no rows"
            differences.add(label, f"{site} has {few} of class {', '.join(map(str, lacking))}", "kept")
    if len(everything) == 1:
        only = next(iter(everything))
        differences.warnings.append(
            f"all rows of all sites are of one class of {label!r}, {only!r}: there is nothing to predict"
        )
    _suspect_classes({site: set(classes or ()) for site, classes in by_site.items()}, label, differences)
    by_fold: dict[str, list[Class]] = {}
    for name in sorted(everything):
        by_fold.setdefault(fold(str(name)), []).append(name)
    alike = [names for names in by_fold.values() if len(names) > 1]
    if alike and kind != "categorical":
        raise AgreementError(
            f"the classes {', '.join(map(repr, alike[0]))} of {label!r} differ only in case or blanks; correct the "
            f'tables, or set its kind: kinds: {label} = "folded" if they are the same, "categorical" if they are not'
        )
    return tuple(sorted(everything))


def _suspect_classes(by_site: dict[str, set[Class]], label: str, differences: Differences) -> None:
    """Warn if groups of sites have no class in common: they may use different names for the same classes."""
    parts: list[tuple[str, set[Class]]] = []  # a site of each group, and all classes of the group
    for site, classes in by_site.items():
        met = [part for part in parts if part[1] & classes]
        first = met[0][0] if met else site
        parts = [part for part in parts if part not in met] + [(first, classes.union(*(part[1] for part in met)))]
    several = [part for part in parts if len(part[1]) > 1]
    if len(several) > 1:
        named = [f"{', '.join(map(repr, sorted(classes)[:_NAMED]))} at {site}" for site, classes in several[:2]]
        differences.warnings.append(
            f"the classes of {label!r} are {' and '.join(named)}; if they mean the same, name them alike: "
            f"this makes {sum(len(classes) for _, classes in parts)} classes"
        )


def _median_cells(name: str, replies: dict[str, Description]) -> dict[str, int]:
    """Return the median cell of a column at each site with enough values."""
    described = {site: d for site, d in replies.items() if name in d.names}
    cells = {site: int(d.medians[d.names.index(name)]) for site, d in described.items()}
    return {site: cell for site, cell in cells.items() if 0 < cell <= _CELLS}


def _suspect_names(names: Sequence[str], differences: Differences, column: str | None = None) -> None:
    """Warn about names of columns, or of a column's categories, that differ only in case, blanks or punctuation."""
    what = "columns" if column is None else f"categories of {column}"
    for alike in look_alike(names):
        differences.warnings.append(f"the {what} {', '.join(map(repr, alike))} look alike; are they the same?")


def _suspect_units(cells_by_column: dict[str, dict[str, int]], differences: Differences) -> None:
    """Warn if medians differ by several powers of two: sites may use different units."""
    for name, cells in cells_by_column.items():
        if len(cells) < 2:
            continue
        # with two medians, or two equal groups, either could be wrong: name all of them
        ordered = sorted(cells.values())
        middle = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
        odd = [site for site, cell in cells.items() if max(abs(cell - m) for m in middle) > _FAR]
        if odd:
            text = f"{name}: the median at {', '.join(odd)} is far from the others'; are the units the same?"
            differences.warnings.append(text)
            differences.add(name, f"median far off at {', '.join(odd)}", "warning only")


def _name_categories(
    federation: Federation, features: list[Feature], differences: Differences
) -> tuple[list[Feature], dict[str, dict[str, int]]]:
    """Return the features with their categories, and how many categories of each column every site named."""
    names = [f.name for f in features if f.categorical]

    def check_names(site: str, reply: CategoryNames) -> None:
        reject(len(reply.names) != len(names), "its names do not match the columns")

    total: CategoryCounts = federation.total(
        CountCategories(names=names), check=lambda site, reply: check_counts(reply, len(names))
    )
    request = NameCategories(names=names, counts=federation.blob(wire.encode(total)), sites=federation.active)
    replies = federation.ask(request, check=check_names)
    named, numbers = {}, {}
    for i, name in enumerate(names):
        rows = total.counts[i]
        allowed = set(common_hashes(rows).tolist())
        at: dict[str, list[str]] = {}
        for site, reply in replies.items():
            for text in reply.names[i]:
                if allowed.issuperset(buckets(text)):
                    at.setdefault(text, []).append(site)
        often = sorted(at, key=lambda text: (-rows[buckets(text)].min(), text))
        categories = sorted(often[:MAX_CATEGORIES])
        kept = {buckets(text)[0] for text in categories}
        rest = int(rows[:BUCKETS].sum()) - int(rows[list(kept)].sum())
        for text in categories:
            absent = [site for site in replies if replies[site].names[i] and site not in at[text]]
            if absent:
                differences.add(name, f"no rows of {text!r} at {', '.join(absent)}", "kept")
        if int((rows[:BUCKETS] >= FLOOR).sum()) > MAX_CATEGORIES:
            differences.warnings.append(f"column {name!r} {CROWDED}; {FEWER}")
            differences.add(name, f"more than {MAX_CATEGORIES} categories", "the rarer together as 'other'")
        elif rest:
            differences.add(name, f"categories with fewer than {FLOOR} rows in all", "together as 'other'")
        _suspect_names(categories, differences, name)
        numbers[name] = {site: n for site in replies if (n := sum(site in at[text] for text in categories))}
        named[name] = Feature(name, "categorical", categories=tuple(categories), other=rest > 0)
    return [named.get(f.name, f) for f in features], numbers

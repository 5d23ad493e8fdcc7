"""Checks the tables of a study's sites before training, if all of them are in this process.

Sites may have a column in different units: then its values hardly overlap, and one factor explains why. If only the
patients differ, values overlap, whatever the ratio of medians. Zeros are left out because they are zero in all units.
"""

import difflib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import log
from statistics import median
from typing import TypeVar

import numpy as np

from silvan.data.cells import fold, look_alike
from silvan.data.column_profile import IDENTIFIER, ColumnProfile, padded_columns, profile_columns
from silvan.data.groups import shared_ids
from silvan.data.repeated_rows import repeated_rows
from silvan.data.repeating_ids import repeating_ids
from silvan.data.schema import Task
from silvan.errors import InputError, SiteError
from silvan.federate.by_rows import sources_by_site
from silvan.federation.site_table import SiteSettings, SiteTable
from silvan.study.study import Study
from silvan.util.readable import count_of, format_count, format_names, format_number, list_some

T = TypeVar("T")

_MEASURED = 10  # minimum number of distinct values of a measurement; fewer are codes
_LEAK = 0.99  # a column with this AUC by itself probably leaks the label
_GOOD = 0.8  # AUC of a good measurement at other sites
_FEW_OF_A_CLASS = 10  # below this number of rows over all sites, a class is rare
_MANY = 20  # a label with more distinct whole numbers may be a number


def open_tables(study: Study) -> dict[str, SiteTable]:
    """Return the tables of a study in one process, by site, without any agreement."""
    settings = SiteSettings(
        label=study.label,
        exclude=study.exclude,
        kinds=study.kinds,
        date_split=study.date_split,
        group=study.group,
        event=study.event,
    )
    tables = study.tables if study.site is None else study.tables[""]
    sources = sources_by_site(tables, study.site, study.schema, study.kinds, study.exclude)
    return {name: SiteTable(name, source, settings) for name, source in sources.items()}


def table_of_all(study: Study) -> SiteTable | None:
    """Return the table with the rows of all sites, if there is one."""
    if study.site is None:
        return None
    return SiteTable("all sites", study.tables[""], SiteSettings(label=study.label, kinds=study.kinds))


def reading_notes(tables: Mapping[str, SiteTable]) -> dict[str, list[str]]:
    """Return notes on the format of the sites' files, by site."""
    return {name: list(table.table.notes) for name, table in tables.items() if table.table.notes}


def profiles_of(sites: Mapping[str, SiteTable], most: int | None = None) -> dict[str, list[ColumnProfile]]:
    """Return the profiles of all columns, by site."""
    profiles = {}
    for name, site in sites.items():
        try:
            profiles[name] = profile_columns(site.table, site.label, most)
            _ = site.groups  # raises an error for an unusable column of ids
            if site.date_split is not None:
                site.date_split.hold_out(site.table)
        except InputError as error:
            raise SiteError(name, str(error)) from error
    return profiles


ONE_SITE = "there is only one site: nothing is federated, and the model is trained on its rows alone"
"""A warning about studies over rows with one site."""


def questions_of_label(profiles: Mapping[str, Sequence[ColumnProfile]], label: str) -> list[str]:
    """Return a line if tables lack the column to predict, which stops a study."""
    lacking = [site for site, columns in profiles.items() if all(column.name != label for column in columns)]
    if not lacking:
        return []
    close = difflib.get_close_matches(label, [column.name for columns in profiles.values() for column in columns], 1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return [f"{label} at {_some(lacking)}: there is no such column to predict, and a study stops there{hint}"]


def questions_of_rows(sites: Mapping[str, SiteTable]) -> list[str]:
    """Return lines about suspicious rows: copies, and several rows of a person."""
    tables = {name: site.table for name, site in sites.items()}
    grouped = {name: site.groups.ids for name, site in sites.items() if site.groups is not None}
    ungrouped = {name: table for name, table in tables.items() if sites[name].group is None}
    label = next((site.label for site in sites.values()), "")
    return shared_ids(grouped) + repeating_ids(ungrouped, label) + repeated_rows(tables)


def questions(
    profiles: Mapping[str, Sequence[ColumnProfile]], label: str, task: Task | None, whole: SiteTable | None = None
) -> list[str]:
    """Return lines about suspicious columns; ``whole`` is the file with the rows of all sites, if there is one."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, note in ({} if whole is None else padded_columns(whole.table)).items():
        found.setdefault((name, note), []).append("all sites")
    for site, columns in profiles.items():
        for column in columns:
            for note in column.notes:
                found.setdefault((column.name, note), []).append(site)
            if column.name == label and column.missing:
                note = f"missing in {count_of(column.missing, 'row')}, where a study stops: fill in or drop them"
                found.setdefault((label, note), []).append(site)
            integral = column.kind == "numeric" and not any(value % 1 for value in column.spread)
            if column.name == label and task is None and integral and column.distinct > _MANY:
                note = "many numbers to predict: classes, or a number? set task"
                found.setdefault((label, note), []).append(site)
    having = Counter(column.name for columns in profiles.values() for column in columns if column.distinct)
    lines = [
        f"{name} at {_some(sites)}: {note}"
        for (name, note), sites in found.items()
        if note != IDENTIFIER or 2 * len(sites) >= having[name]  # a few rows may differ by chance
    ]
    return [
        *_same_rows(profiles),
        *_other_classes(profiles, label, task),
        *_rare_classes(profiles, label, task),
        *_other_kinds(profiles, label),
        *lines,
        *_codes(profiles),
        *_leaks(profiles),
        *_near_names(profiles),
        *_other_names(profiles),
        *_near_categories(profiles, label),
        *_units(profiles),
    ]


def _some(sites: Sequence[str]) -> str:
    return list_some(sites, "site", most=4)


def _same_rows(profiles: Mapping[str, Sequence[ColumnProfile]]) -> list[str]:
    """Return sites with equal tables: models would be evaluated on rows that they have seen."""
    names = list(profiles)
    return [
        f"the tables of {site} and {other} are alike in every column: is it the same file twice?"
        for i, site in enumerate(names)
        for other in names[i + 1 :]
        if profiles[site] == profiles[other] and any(column.distinct >= _MEASURED for column in profiles[site])
    ]


def _other_classes(profiles: Mapping[str, Sequence[ColumnProfile]], label: str, task: Task | None) -> list[str]:
    """Return the names of the two classes, if they differ between sites."""
    if task == "regression":
        return []
    called: dict[tuple[str, ...], tuple[str, list[str]]] = {}
    for site, columns in profiles.items():
        for column in columns:
            if column.name == label and column.distinct == 2:
                names = column.categories or [f"{end:g}" for end in (column.low, column.high) if end is not None]
                shown = " and ".join(map(repr, names) if column.categories else names)
                called.setdefault(tuple(sorted(map(fold, names))), (shown, []))[1].append(site)
    how = ", ".join(f"{names} at {_some(sites)}" for names, sites in called.values())
    return [f"{label}: the two classes are {how}: are they the same? then write them alike"] if len(called) > 1 else []


def questions_of_columns(profiles: Mapping[str, Sequence[ColumnProfile]], label: str, absent: str) -> list[str]:
    """Return lines for sites with few rows, columns that some sites lack, and classes of a single site."""
    sizes = {site: max((c.rows for c in columns), default=0) for site, columns in profiles.items()}
    lines = [
        f"{site} has {count_of(rows, 'row')}: too few to learn from or to evaluate on, and what leaves the site "
        "tells of single rows"
        for site, rows in sizes.items()
        if rows < _FEW_OF_A_CLASS
    ]
    everything = dict.fromkeys(c.name for columns in profiles.values() for c in columns if c.name != label)
    near = {name for alike in look_alike(everything) for name in alike}  # asked about already
    lacking: dict[tuple[str, ...], list[str]] = {}
    for name in everything:
        without = tuple(site for site, columns in profiles.items() if all(c.name != name for c in columns))
        if without and name not in near:
            lacking.setdefault(without, []).append(name)
    what = "left out" if absent == "drop" else "missing in all rows there (absent)"
    lines += [
        f"{format_names(names)} at {_some(without)}: no such column, {what}" for without, names in lacking.items()
    ]
    at: dict[str, list[str]] = {}
    for site, columns in profiles.items():
        for name in next((c.classes for c in columns if c.name == label), {}):
            at.setdefault(fold(name), []).append(site)
    alone = {name: sites[0] for name, sites in at.items() if len(sites) == 1}
    if len(profiles) > 1 and 1 < len(at) <= _MANY and len(alone) < len(at):
        lines += [
            f"{label}: class {name!r} is at {site} alone: only its rows say what it is" for name, site in alone.items()
        ]
    return lines


def _rare_classes(profiles: Mapping[str, Sequence[ColumnProfile]], label: str, task: Task | None) -> list[str]:
    """Return a line if the label has one class, and one for each class with few rows over all sites."""
    found = [column for columns in profiles.values() for column in columns if column.name == label]
    if task == "regression" or any(column.distinct and not column.classes for column in found):
        return []
    rows = sum((Counter({fold(name): n for name, n in column.classes.items()}) for column in found), Counter[str]())
    named = {fold(name): name for column in found for name in column.classes}
    if len(rows) == 1:
        return [f"{label}: all rows of all sites are of class {named[next(iter(rows))]!r}: there is nothing to predict"]
    numbers = all(column.kind == "numeric" and column.distinct > 2 for column in found)
    if len(rows) > _MANY or (task is None and numbers):
        return []  # it may be a number
    total, remedy = rows.total(), "join it with another class, or leave these rows out"
    return [
        f"{label}: class {named[name]!r} has {n} of {count_of(total, 'row')}, too few to learn or to evaluate: {remedy}"
        for name, n in rows.items()
        if n < _FEW_OF_A_CLASS
    ]


def _other_kinds(profiles: Mapping[str, Sequence[ColumnProfile]], label: str) -> list[str]:
    """Return columns that are numbers at some sites and text or dates at others, which stops a study."""
    found: dict[str, dict[str, list[str]]] = {}
    for site, columns in profiles.items():
        for column in columns:
            if column.kind not in ("empty", "mixed") and column.name != label:
                found.setdefault(column.name, {}).setdefault(column.kind, []).append(site)
    return [
        f"{name} is {' and '.join(f'{kind} at {_some(sites)}' for kind, sites in by_kind.items())}, where a study "
        "stops: write it alike, or set its kind (kinds)"
        for name, by_kind in found.items()
        if len(by_kind) > 1
    ]


def _near_names(profiles: Mapping[str, Sequence[ColumnProfile]]) -> list[str]:
    """Return columns whose names differ only in case, blanks or punctuation."""
    names = {column.name: None for columns in profiles.values() for column in columns}
    return [
        f"{format_names(alike)} differ in case, blanks or signs alone: are they the same column? then write them "
        "alike, or set rename"
        for alike in look_alike(names)
    ]


def _other_names(profiles: Mapping[str, Sequence[ColumnProfile]]) -> list[str]:
    """Return columns that only one site lacks while only it has others: they may be the same."""
    everything = {column.name: None for columns in profiles.values() for column in columns}
    asked = {name for alike in look_alike(everything) for name in alike}
    names = {site: [c.name for c in columns if c.name not in asked] for site, columns in profiles.items()}
    lines: list[str] = []
    for site, own in names.items():
        others = [set(some) for where, some in names.items() if where != site]
        absent = set.intersection(*others) - set(own) if others else set()
        alone = [name for name in own if not any(name in some for some in others)]
        if len(names) == 2 and lines:
            break  # for two sites, both lines would be equivalent
        if absent and alone:
            lines.append(
                f"{site} lacks {format_names(sorted(absent))}, and it alone has {format_names(alone)}: are they the "
                "same? then set rename for its file"
            )
    return lines


def _near_categories(profiles: Mapping[str, Sequence[ColumnProfile]], label: str) -> list[str]:
    """Return categories of a column that differ only in case, blanks or punctuation."""
    found: dict[str, dict[str, list[str]]] = {}
    for site, columns in profiles.items():
        for column in columns:
            for category in column.categories:
                found.setdefault(column.name, {}).setdefault(category, []).append(site)
    lines = []
    for name, categories in found.items():
        mend = 'write them alike, or set kinds: "folded"' if name == label else "write them alike"
        for alike in look_alike(categories):
            where = ", ".join(f"{category!r} at {_some(categories[category])}" for category in alike)
            lines.append(f"{name}: {where} count as {format_count(len(alike))}; are they the same? then {mend}")
    return lines


def _by_column(
    profiles: Mapping[str, Sequence[ColumnProfile]], value: Callable[[ColumnProfile], T | None]
) -> dict[str, dict[str, T]]:
    """Return a value of every column that has it, by column and site."""
    found: dict[str, dict[str, T]] = {}
    for site, columns in profiles.items():
        for column in columns:
            if (one := value(column)) is not None:
                found.setdefault(column.name, {})[site] = one
    return found


def _units(profiles: Mapping[str, Sequence[ColumnProfile]]) -> list[str]:
    """Return columns that sites may have in different units."""
    spreads = _by_column(profiles, lambda column: (column.distinct >= _MEASURED and column.spread) or None)
    return [line for name, by_site in spreads.items() for line in ask_about_units(name, by_site)]


def _leaks(profiles: Mapping[str, Sequence[ColumnProfile]]) -> list[str]:
    """Return columns that rank the label's classes almost perfectly by themselves.

    If a column does so at some sites with few rows, and fairly well at the others, it is a good measurement.
    """
    lines = []
    for name, by_site in _by_column(profiles, lambda column: column.auc).items():
        high = {site: auc for site, auc in by_site.items() if auc > _LEAK}
        rest = [auc for site, auc in by_site.items() if site not in high]
        if high and not (rest and median(rest) > _GOOD):
            ends = list(dict.fromkeys(f"{auc:.3f}" for auc in (min(high.values()), max(high.values()))))
            lines.append(
                f"{name} at {_some(list(high))}: tells the classes apart by itself (AUC {' to '.join(ends)}): is it "
                "known before the label is?"
            )
    return lines


def _codes(profiles: Mapping[str, Sequence[ColumnProfile]]) -> list[str]:
    """Return outlying numbers that may be codes for missing values, and the setting for them."""
    lines = []
    for name, by_site in _by_column(profiles, lambda column: column.codes or None).items():
        rows = sum((Counter(codes) for codes in by_site.values()), Counter[int]())
        often = sorted({code for codes in by_site.values() for code in codes if codes[code] > 1})  # one is a value
        if often:
            found = " and ".join(f"{code} in {count_of(rows[code], 'row')}" for code in often)
            limit = ", or for a limit" if often[-1] > 0 else ""
            what = "do they stand" if len(often) > 1 else "does it stand"
            key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)
            lines.append(
                f"{name} at {_some(list(by_site))}: {found}, apart from all others: {what} for missing{limit}? A code "
                f"for missing goes below [reading]: missing = {{ {key} = [{', '.join(map(str, often))}] }}"
            )
    return lines


# -- units
_FACTORS = {
    2.2046: "pounds and kilograms",
    2.54: "centimetres and inches",
    7.5: "mmHg and kPa",
    10.0: "such as millimetres and centimetres",
    12.0: "months and years",
    17.1: "bilirubin in µmol/l and mg/dl",
    18.0: "glucose in mg/dl and mmol/l",
    38.67: "cholesterol in mg/dl and mmol/l",
    60.0: "such as minutes and hours",
    88.4: "creatinine in µmol/l and mg/dl",
    100.0: "such as centimetres and metres",
    365.25: "days and years",
    1000.0: "such as grams and kilograms",
}
"""Ratios between common units."""

_GAP = 0.4  # a gap of this size between logarithms of medians separates two groups of sites
_APART, _WHOLLY_APART = 0.9, 0.95
"""Minimum Kolmogorov-Smirnov distance between two groups."""

_ALIKE = 0.35  # maximum distance once the factor is removed
_NEAR = 0.2  # maximum difference between the logarithms of a ratio and a factor
_LARGE = 5.0  # larger ratios are reported even without a known factor, if the groups hardly overlap
_MOST = 1e300  # larger numbers are clipped, so that two of them have a mean
_Group = dict[str, np.ndarray]

_BODY = (34.0, 41.0)
"""Range of median body temperatures in degrees Celsius; other temperatures are recognised by the column name."""

_WARMTH = re.compile("temperature|(?<![a-z])temp(?![a-z])", re.IGNORECASE)


def ask_about_units(name: str, spreads: Mapping[str, Sequence[float]]) -> list[str]:
    """Return a line for each group of sites that may have a column in another unit than most.

    ``spreads`` are quantiles of the column's non-zero values, equally many at every site.
    """
    with np.errstate(over="ignore"):  # overflow means far apart
        groups = _groups({site: np.clip(spread, -_MOST, _MOST) for site, spread in spreads.items()})
        most = max(range(len(groups)), key=lambda place: len(groups[place]))
        pairs = [(min(place, most), max(place, most)) for place in range(len(groups)) if place != most]
        return [line for low, high in pairs for line in _question(name, groups[low], groups[high])]


def _groups(spreads: _Group) -> list[_Group]:
    """Return sites in groups by the sizes of their values, from small to large."""
    medians = {site: log(float(np.median(np.abs(spread)))) for site, spread in spreads.items()}
    order = sorted(medians, key=lambda site: medians[site])
    steps = np.diff([medians[site] for site in order])
    least = max(_GAP, steps.max(initial=0.0) / 3)  # beside a large gap, small ones are differences between patients
    starts = [0, *(np.flatnonzero(steps >= least) + 1), len(order)]
    return [{s: spread for s, spread in spreads.items() if s in order[a:b]} for a, b in pairwise(starts)]


def _question(name: str, low: _Group, high: _Group) -> list[str]:
    """Return a line if the values of two groups of sites differ like units do."""
    below, above = np.concatenate(list(low.values())), np.concatenate(list(high.values()))
    small, large = np.abs(below), np.abs(above)
    ratio, apart = float(np.median(large) / np.median(small)), _distance(small, large)
    by_nearness = sorted(_FACTORS, key=lambda factor: abs(log(ratio / factor)))
    near = [factor for factor in by_nearness if abs(log(ratio / factor)) < _NEAR][:2]
    middle, warm = float(np.median(below)), float(np.median(above))
    degrees = all(_BODY[0] < celsius < _BODY[1] for celsius in (middle, (warm - 32) / 1.8)) or _WARMTH.search(name)
    if degrees and apart >= _APART and _distance(below * 1.8 + 32, above) <= _ALIKE:
        what = "as degrees Celsius and Fahrenheit are"
    elif (apart >= _APART and near and _distance(small * near[0], large) <= _ALIKE) or (
        apart >= _WHOLLY_APART and ratio > _LARGE
    ):
        known = " or ".join(f"{factor:g} ({_FACTORS[factor]})" for factor in near)
        what = f"{ratio:.3g} times as much" + (f", near {known}" if near else "")
    else:
        return []
    here, there = (list_some(list(group), "site", most=4) for group in (low, high))
    around = f"values are around {format_number(middle)} at {here} and around {format_number(warm)} at {there}"
    return [f"{name}: {around}, {what}; are the units the same?"]


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    """Return the Kolmogorov-Smirnov distance of two samples."""
    ends = np.concatenate([one, other])
    shares = [np.searchsorted(np.sort(values), ends, "right") / len(values) for values in (one, other)]
    return float(np.abs(shares[0] - shares[1]).max())

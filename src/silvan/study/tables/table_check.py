"""Checks the tables of a study's sites before anything is learnt, where all of them are at hand."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import log

from silvan.data.column_profile import ColumnProfile, padded_columns, profile_columns
from silvan.data.encode import Task
from silvan.errors import InputError, SiteError
from silvan.federate.by_rows import sources_by_site
from silvan.federation.site_table import SiteSettings, SiteTable
from silvan.study.plan import Study
from silvan.util.readable import count_of, format_count, format_names

_FACTORS = {
    10.0: "such as millimetres and centimetres",
    100.0: "such as centimetres and metres",
    1000.0: "such as grams and kilograms",
    2.54: "centimetres and inches",
    2.2046: "pounds and kilograms",
    18.0: "glucose in mg/dl and mmol/l",
    38.67: "cholesterol in mg/dl and mmol/l",
    88.4: "creatinine in µmol/l and mg/dl",
}
"""What one unit is of another, of those in common use."""

_MEASURED = 10
"""Fewest values of a column that may be a measurement; fewer are codes."""

_MANY = 20
"""A label with more whole numbers than that may be a number."""


def open_tables(study: Study) -> dict[str, SiteTable]:
    """Return the tables of a study in one process, by site; nobody agrees on anything."""
    settings = SiteSettings(label=study.label, exclude=study.exclude, kinds=study.kinds)
    tables = study.tables if study.site is None else study.tables[""]
    sources = sources_by_site(tables, study.site, study.schema, study.kinds)
    return {name: SiteTable(name, source, settings) for name, source in sources.items()}


def table_of_all(study: Study) -> SiteTable | None:
    """Return the one table that holds the rows of all sites, if there is one."""
    if study.site is None:
        return None
    return SiteTable("all sites", study.tables[""], SiteSettings(label=study.label, kinds=study.kinds))


def reading_notes(tables: Mapping[str, SiteTable]) -> dict[str, list[str]]:
    """Return what was found out of how the sites' files are written, by site."""
    return {name: list(table.table.notes) for name, table in tables.items() if table.table.notes}


def profiles_of(sites: Mapping[str, SiteTable], most: int | None = None) -> dict[str, list[ColumnProfile]]:
    """Return what is known of every column, by site."""
    profiles = {}
    for name, site in sites.items():
        try:
            profiles[name] = profile_columns(site.table, site.label, most)
        except InputError as error:
            raise SiteError(name, str(error)) from error
    return profiles


def questions(
    profiles: Mapping[str, Sequence[ColumnProfile]], label: str, task: Task | None, whole: SiteTable | None = None
) -> list[str]:
    """Return what somebody should look at, a line each; ``whole`` is the file that the rows of all sites are in."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, note in ({} if whole is None else padded_columns(whole.table)).items():
        found.setdefault((name, note), []).append("all sites")
    for site, columns in profiles.items():
        for column in columns:
            for note in column.notes:
                found.setdefault((column.name, note), []).append(site)
            if column.name == label and column.kind == "numeric" and column.distinct > _MANY and task is None:
                note = "many numbers to predict: classes, or a number? set task"
                found.setdefault((label, note), []).append(site)
    lines = [f"{name} at {_some(sites)}: {note}" for (name, note), sites in found.items()]
    return [
        *lines,
        *_near_names(profiles),
        *_other_names(profiles),
        *_near_categories(profiles, label),
        *_units(profiles),
    ]


def _some(sites: Sequence[str]) -> str:
    return ", ".join(sites[:4]) + (f" and {count_of(len(sites) - 4, 'more site')}" if len(sites) > 4 else "")


def _near_names(profiles: Mapping[str, Sequence[ColumnProfile]]) -> list[str]:
    """Return columns whose names differ in case, blanks or signs alone, at one site or at several."""
    names = {column.name: None for columns in profiles.values() for column in columns}
    return [
        f"{format_names(alike)} differ in case, blanks or signs alone: are they the same column? then write them "
        "alike, or set rename"
        for alike in _alike(names)
    ]


def _other_names(profiles: Mapping[str, Sequence[ColumnProfile]]) -> list[str]:
    """Return columns that one site alone lacks while it alone has others: one of these may be the same."""
    everything = {column.name: None for columns in profiles.values() for column in columns}
    asked = {name for alike in _alike(everything) for name in alike}
    names = {site: [c.name for c in columns if c.name not in asked] for site, columns in profiles.items()}
    lines: list[str] = []
    for site, own in names.items():
        others = [set(some) for where, some in names.items() if where != site]
        absent = set.intersection(*others) - set(own) if others else set()
        alone = [name for name in own if not any(name in some for some in others)]
        if len(names) == 2 and lines:
            break  # of two sites, both would say the same
        if absent and alone:
            lines.append(
                f"{site} lacks {format_names(sorted(absent))}, and it alone has {format_names(alone)}: are they the "
                "same? then set rename for its file"
            )
    return lines


def _near_categories(profiles: Mapping[str, Sequence[ColumnProfile]], label: str) -> list[str]:
    """Return categories of a column that differ in case, blanks or signs alone, at one site or at several."""
    found: dict[str, dict[str, list[str]]] = {}
    for site, columns in profiles.items():
        for column in columns:
            for category in column.categories:
                found.setdefault(column.name, {}).setdefault(category, []).append(site)
    lines = []
    for name, categories in found.items():
        mend = 'write them alike, or set kinds: "folded"' if name == label else "write them alike"
        for alike in _alike(categories):
            where = ", ".join(f"{category!r} at {_some(categories[category])}" for category in alike)
            lines.append(f"{name}: {where} count as {format_count(len(alike))}; are they the same? then {mend}")
    return lines


def _alike(texts: Iterable[str]) -> list[list[str]]:
    """Return groups of texts that are the same but for case, blanks and signs between words."""
    groups: dict[str, list[str]] = {}
    for text in texts:
        groups.setdefault(re.sub(r"[\s_.-]+", "", text).casefold(), []).append(text)
    return [group for bare, group in groups.items() if len(group) > 1 and bare]


def _units(profiles: Mapping[str, Sequence[ColumnProfile]]) -> list[str]:
    """Return columns whose medians at two sites are apart by the factor between two units."""
    medians: dict[str, dict[str, float]] = {}
    for site, columns in profiles.items():
        for column in columns:
            if (
                column.kind == "numeric"
                and column.median is not None
                and column.median > 0
                and column.distinct >= _MEASURED
            ):
                medians.setdefault(column.name, {})[site] = column.median
    lines = []
    for name, by_site in medians.items():
        for (one, low), (two, high) in combinations(sorted(by_site.items(), key=lambda pair: pair[1]), 2):
            near = [f for f in _FACTORS if abs(log(high / low) - log(f)) < 0.1]
            if near:
                lines.append(
                    f"{name}: the median is {low:.4g} at {one} and {high:.4g} at {two}, {high / low:.3g} times as "
                    "much, "
                    f"near {near[0]:g} ({_FACTORS[near[0]]}); are the units the same?"
                )
                break
    return lines

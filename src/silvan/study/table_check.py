"""Checks the tables of a study's sites before anything is learnt, where all of them are at hand."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import log

from silvan.data.column_profile import ColumnProfile, profile_columns
from silvan.data.encode import Task
from silvan.errors import InputError, SiteError
from silvan.federate.by_rows import sources_by_site
from silvan.federation.site_table import SiteSettings, SiteTable
from silvan.study.plan import Study

_FACTORS = (10, 100, 1000, 2.54, 18.0, 88.4, 38.67, 0.4536)
"""Between units in common use: powers of ten, inches, glucose, creatinine, cholesterol, pounds."""

_MANY = 20
"""A label with more whole numbers than that may be a number."""


def open_tables(study: Study) -> dict[str, SiteTable]:
    """Return the tables of a study in one process, by site; nobody agrees on anything."""
    settings = SiteSettings(label=study.label, exclude=study.exclude, kinds=study.kinds)
    tables = study.tables if study.site is None else study.tables[""]
    sources = sources_by_site(tables, study.site, study.schema, study.kinds)
    return {name: SiteTable(name, source, settings) for name, source in sources.items()}


def profiles_of(sites: Mapping[str, SiteTable], most: int | None = None) -> dict[str, list[ColumnProfile]]:
    """Return what is known of every column, by site."""
    profiles = {}
    for name, site in sites.items():
        try:
            profiles[name] = profile_columns(site.table, site.label, most)
        except InputError as error:
            raise SiteError(name, str(error)) from error
    return profiles


def questions(profiles: Mapping[str, Sequence[ColumnProfile]], label: str, task: Task | None) -> list[str]:
    """Return what somebody should look at, a line each."""
    found: dict[tuple[str, str], list[str]] = {}
    for site, columns in profiles.items():
        for column in columns:
            for note in column.notes:
                found.setdefault((column.name, note), []).append(site)
            if column.name == label and column.kind == "numeric" and column.distinct > _MANY and task is None:
                note = "many numbers to predict: classes, or a number? set task"
                found.setdefault((label, note), []).append(site)
    lines = [f"{name} at {_some(sites)}: {note}" for (name, note), sites in found.items()]
    return lines + _units(profiles)


def _some(sites: Sequence[str]) -> str:
    return ", ".join(sites[:4]) + (f" and {len(sites) - 4} more sites" if len(sites) > 4 else "")


def _units(profiles: Mapping[str, Sequence[ColumnProfile]]) -> list[str]:
    """Return columns whose medians at two sites are apart by the factor between two units."""
    medians: dict[str, dict[str, float]] = {}
    for site, columns in profiles.items():
        for column in columns:
            if column.kind == "numeric" and column.median is not None and column.median > 0 and column.distinct > 2:
                medians.setdefault(column.name, {})[site] = column.median
    lines = []
    for name, by_site in medians.items():
        for (one, low), (two, high) in combinations(sorted(by_site.items(), key=lambda pair: pair[1]), 2):
            near = [f for f in _FACTORS if abs(log(high / low) - abs(log(f))) < 0.1]
            if near:
                lines.append(
                    f"{name}: the median is {low:.4g} at {one} and {high:.4g} at {two}, some {near[0]:g} times as "
                    "much; are the units the same?"
                )
                break
    return lines

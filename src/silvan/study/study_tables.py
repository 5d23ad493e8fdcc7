"""Checks the tables that a study file names: files, databases and partitions, by site or party."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from silvan.data.partition_files import Partitions
from silvan.data.readers.query import Query
from silvan.data.readers.table_file import KNOWN_SUFFIXES, WANTED, Table
from silvan.errors import InputError
from silvan.federation.federation import OVERALL
from silvan.study.study import Sources
from silvan.study.toml_lines import BEFORE, Key, Problems

READING = tuple(field.name for field in fields(Table) if field.name != "path")
"""What may be said of how a table's file is written."""


def check_tables(data: dict[str, Any], folder: Path, problems: Problems) -> Sources:
    """Check the names of sites or parties, and that their tables exist; return the tables."""
    section, who = ("parties", "party") if "parties" in data else ("sites", "site")
    sites = data.get(section)
    if "parties" in data and "sites" in data:
        problems.add(("sites",), "[sites] hold rows and [parties] columns of the same rows; leave one of them out")
    if "parties" in data and "id" not in data:
        problems.add(("parties",), f'name the column that tells rows apart: id = "..." {BEFORE}')
    reading = data.get("reading", {})
    reading = reading if isinstance(reading, dict) else {}
    if sites is None:
        if "table" not in data or "site" not in data:
            key = next((k for k in ("table", "site") if k in data), "sites")
            problems.add((key,), 'name the sites: [sites] with name = "path", or both table and site')
            return {}
        whole = {key: value for key, value in data.items() if key in ("table", "query")}
        return _table("", whole, ("table",), folder, reading, problems)
    for key in ("table", "site", "query"):
        if key in data:
            problems.add((key,), f"{key} is for one table of all sites; leave it out beside [{section}]")
    if not isinstance(sites, dict) or not sites:
        problems.add((section,), f'[{section}] must name at least one {who}, as name = "path"')
        return {}
    tables: Sources = {}
    for name, value in sites.items():
        if not name.strip() or not name.isprintable() or name == OVERALL:
            problems.add((section, name), f"a {who} cannot be called {name!r}; give it another name")
        given = value if isinstance(value, dict) else {"table": value}
        tables |= _table(name, given, (section, name), folder, reading, problems)
    return tables


def _table(
    name: str, given: dict[str, Any], key: Key, folder: Path, reading: dict[str, Any], problems: Problems
) -> Sources:
    who = f"{'party' if key[0] == 'parties' else 'site'} {name!r}: " if name else ""
    place: Any = given.get("table")
    is_database = "query" in given or (isinstance(place, str) and "://" in place)
    in_partitions = "cluster" in given and key[0] == "sites"
    known = ["table", "query"] if is_database else ["table", "cluster"] if in_partitions else ["table", *READING]
    for word in given:
        if word not in known:
            problems.unknown((*key, word), known)
    if is_database:
        for word, text in given.items():
            if not isinstance(text, str):
                problems.add(key, f"{who}{word} must be text")
    elif not isinstance(place, str) or not place:
        problems.add(key, f"{who}must be the path of a table, got {place!r}")
        return {}
    try:
        if is_database:
            return {name: Query(str(place or ""), str(given.get("query", ""))).beside(folder)}
        if in_partitions:
            return {name: _partitions(str(Path(place)), given["cluster"], folder)}
    except InputError as error:
        problems.add(key, f"{who}{error}")
        return {}
    path, misplaced = folder / place, ""
    if problems.places.get(name) == BEFORE:
        misplaced = f"; if {name} was meant for the study, put it {BEFORE}"
    if not path.is_file():
        kind = "is a folder, not a file" if path.is_dir() else "does not exist"
        problems.add(key, f"{who}{place!r} {kind} (looked for {path.absolute()}){misplaced}")
    elif not path.name.lower().endswith(KNOWN_SUFFIXES):
        problems.add(key, f"{who}{place!r} {WANTED}{misplaced}")
    own = {word: text for word, text in {**reading, **given}.items() if word in READING}
    if not own:
        return {name: path}
    # what [reading] says was checked there
    noted = problems if given.keys() & set(READING) else Problems(problems.path, {})
    return {name: check_reading(path, own, key, noted, who)}


def _partitions(files: str, cluster: Any, folder: Path) -> Partitions:
    """Return a table in partitions; raise ``InputError`` if its files are not there, or the cluster has no address."""
    found = Partitions(files, cluster).beside(folder)
    found.paths()
    return found


def check_reading(path: Path, options: Any, key: Key, problems: Problems, who: str = "") -> Table:
    """Return a table whose file is written in some way; options that are not possible are problems."""
    if not isinstance(options, dict):
        problems.add(key, f"reading must be a section: [reading], with {', '.join(READING[:-1])} or {READING[-1]}")
        return Table(path)
    for word in options:
        if word not in READING:
            problems.unknown((*key, word), READING)
    known = {word: value for word, value in options.items() if word in READING}
    for given in [*({word: value} for word, value in known.items()), known]:  # one by one, and then together
        try:
            table = Table(path, **given)
        except InputError as error:
            problems.add((*key, error.parameter or next(iter(given))), f"{who}{error}")
            table = Table(path)
    return table

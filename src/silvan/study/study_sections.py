"""Checks the sections of a study file; all errors are collected, each with its line."""

from pathlib import Path
from typing import Any

import msgspec

from silvan.data.column_types import Kinds, check_kinds
from silvan.data.partitions.partition_files import Partitions
from silvan.data.schema import Feature, Label, Schema
from silvan.data.sources.query import Query
from silvan.data.sources.table_file import KNOWN_SUFFIXES, WANTED, Table
from silvan.errors import InputError
from silvan.federate.options import make_sums
from silvan.federation.federation import OVERALL
from silvan.privacy.gate.gate import Policy
from silvan.privacy.noise.laplace import check_epsilon
from silvan.study.message_kinds import all_requests
from silvan.study.study_values import KEYS, NONE, describe_type, fits, parameters_of
from silvan.study.toml_lines import Key, Problems

LEARNERS = (
    "HistogramForest",
    "MergedForest",
    "AutoForest",
    "BOFRF",
    "BOPPID",
    "AdaBoostPL",
    "MultBoost",
    "LocalForest",
    "LocalAdaBoost",
    "PooledForest",
)
COLUMN_LEARNERS = ("VerticalForest", "VerticalLinear")
"""Learners for parties that hold columns."""

SECTIONS = ("sites", "parties", "reading", "kinds", "schema", "learner", "evaluation", "policy")

EVALUATION = ("epsilon", "importance", "dependence", "by")
"""Keys of how a model is judged."""

Sources = dict[str, Path | Query | Table | Partitions]
"""Tables by site."""

READING = ("separator", "decimal", "encoding", "missing", "sheet", "rename")
"""How a table's file is written."""


def check_top(values: dict[str, Any], problems: Problems) -> dict[str, Any]:
    """Check the keys before the first section; return their values."""
    for key, value in values.items():
        if key not in KEYS:
            problems.unknown((key,), [*KEYS, *SECTIONS])
        elif wrong := KEYS[key](value):
            problems.add((key,), f"{key} {wrong}, got {value!r}")
    if "sums" in values and not KEYS["sums"](values["sums"]):
        try:
            make_sums(values["sums"])
        except InputError as error:
            problems.add(("sums",), str(error))
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k in KEYS}


def check_sites(data: dict[str, Any], folder: Path, problems: Problems) -> Sources:
    """Check the names of sites or parties, and that their tables exist; return the tables."""
    section, who = ("parties", "party") if "parties" in data else ("sites", "site")
    sites = data.get(section)
    _check_id(data, problems)
    reading = data.get("reading", {})
    check_reading(folder, reading, ("reading",), problems)
    reading = reading if isinstance(reading, dict) else {}
    if sites is None:
        if "table" not in data or "site" not in data:
            key = next((k for k in ("table", "site") if k in data), "sites")
            problems.add((key,), 'name the sites: [sites] with name = "path", or both table and site')
            return {}
        query = {"query": data["query"]} if "query" in data else {}
        value = {"table": data["table"], **query} if query else data["table"]
        return _table({"": value}, ("table",), folder, reading, problems)
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
        tables |= _table({name: value}, (section, name), folder, reading, problems)
    return tables


def _check_id(data: dict[str, Any], problems: Problems) -> None:
    """Check that a study of parties names the column that rows are matched by, and that no other study does."""
    if "parties" not in data:
        for key in ("id", "match", "names"):
            if key in data:
                problems.add((key,), f"{key} is for [parties], which hold columns of the same rows; leave it out here")
        return
    if "memory" in data:
        problems.add(("memory",), "memory is for [sites]; [parties] have their columns in memory")
    if "sites" in data:
        problems.add(("sites",), "[sites] hold rows and [parties] columns of the same rows; leave one of them out")
    if "id" not in data:
        problems.add(("parties",), 'name the column that tells rows apart: id = "..." before the first [section]')


def _table(named: dict[str, Any], key: Key, folder: Path, reading: dict[str, Any], problems: Problems) -> Sources:
    [(name, value)] = named.items()
    who = f"{'party' if key[0] == 'parties' else 'site'} {name!r}: " if name else ""
    given = value if isinstance(value, dict) else {"table": value}
    place = given.get("table")
    is_database = "query" in given or (isinstance(place, str) and "://" in place)
    in_partitions = "cluster" in given and key[0] == "sites"
    for word in given:
        known = ["table", "query"] if is_database else ["table", "cluster"] if in_partitions else ["table", *READING]
        if word not in known:
            problems.unknown((*key, word), known)
    if is_database:
        return _database(name, who, given, key, folder, problems)
    if not isinstance(place, str) or not place:
        problems.add(key, f"{who}must be the path of a table, got {place!r}")
        return {}
    if in_partitions:
        return _partitions(name, who, Path(place), given["cluster"], key, folder, problems)
    path = folder / place
    if not path.is_file():
        kind = "is a folder, not a file" if path.is_dir() else "does not exist"
        problems.add(key, f"{who}{place!r} {kind} (looked for {path.absolute()}){_misplaced(name)}")
    elif not path.name.lower().endswith(KNOWN_SUFFIXES):
        problems.add(key, f"{who}{place!r} {WANTED}{_misplaced(name)}")
    own = {word: text for word, text in {**reading, **given}.items() if word in READING}
    return {name: check_reading(path, own, key, problems, who)} if own else {name: path}


def _partitions(name: str, who: str, files: Path, cluster: Any, key: Key, folder: Path, problems: Problems) -> Sources:
    """Check a table in partitions: that its files are there, and that the cluster has an address."""
    try:
        found = Partitions(str(files), cluster).beside(folder)
        found.paths()
    except InputError as error:
        problems.add(key, f"{who}{error}")
        return {}
    return {name: found}


def check_reading(path: Path, options: Any, key: Key, problems: Problems, who: str = "") -> Table:
    """Return a table whose file is written in some way; options that are not possible are problems."""
    if not isinstance(options, dict):
        problems.add(key, f"reading must be a section: [reading], with {', '.join(READING[:-1])} or {READING[-1]}")
        return Table(path)
    for word in options:
        if word not in READING:
            problems.unknown((*key, word), list(READING))
    try:
        return Table(path, **{word: value for word, value in options.items() if word in READING})
    except InputError as error:
        option = str(error).split()[0]  # every message begins with it
        problems.add((*key, option), f"{who}{error}")
        return Table(path)


def _database(name: str, who: str, given: dict[str, Any], key: Key, folder: Path, problems: Problems) -> Sources:
    """Check a table in a database: its URL and its query."""
    for word, text in given.items():
        if not isinstance(text, str):
            problems.add(key, f"{who}{word} must be text")
    try:
        return {name: Query(str(given.get("table", "")), str(given.get("query", ""))).beside(folder)}
    except InputError as error:
        problems.add(key, f"{who}{error}")
    return {}


def _misplaced(name: str) -> str:
    return f"; if {name} was meant for the study, put it before the first [section]" if name in KEYS else ""


def read_learner(values: Any, columns: bool, problems: Problems) -> tuple[str, dict[str, Any]]:
    """Check that a learner for rows or columns is named; return its kind, and the parameters as they are given."""
    if not isinstance(values, dict):
        problems.add(("learner",), "learner must be a section: [learner]")
        return "", {}
    known = COLUMN_LEARNERS if columns else LEARNERS
    kind = values.get("kind", known[0])
    if kind not in known:
        text = f"there is no learner {kind!r}"
        if kind in (*LEARNERS, *COLUMN_LEARNERS):
            text = f"{kind} is not for {'[parties]' if columns else '[sites]'}"
        problems.unknown(("learner", "kind"), known, text, kind)
        return "", {}
    return kind, {key: None if value == NONE else value for key, value in values.items() if key != "kind"}


def check_schema(values: Any, label: str, problems: Problems) -> Schema | None:
    """Check the schema that the study sets for its columns; None if it sets none."""
    if values is None:
        return None
    if not isinstance(values, dict) or not all(isinstance(entry, dict) for entry in values.values()):
        problems.add(("schema",), "[schema] has a line a column, as age = { bounds = [0, 120] }")
        return None
    features, found = [], None
    for name, entry in values.items():
        try:
            if name == label:
                found = msgspec.convert({"name": name, **entry}, Label)
            else:
                kind = "categorical" if "categories" in entry else "numeric"
                features.append(msgspec.convert({"name": name, "kind": kind, **entry}, Feature))
        except (msgspec.ValidationError, InputError) as error:
            problems.add(("schema", name), f"{name}: {error}")
    if found is None:
        problems.add(("schema",), f"[schema] lacks the label: {label} = {{ classes = [...] }} or {{ bounds = [...] }}")
        return None
    return None if problems.found else Schema.of(features, found)


def check_repeats(data: dict[str, Any], parameters: dict[str, Any], problems: Problems) -> None:
    """Check that a study with repeats is one of rows at sites, in memory and without noise."""
    if "repeats" not in data:
        return
    why = {
        "parties": "repeats is for [sites]; leave it out beside [parties]",
        "memory": "repeats needs all rows in memory; leave one of repeats and memory out",
    }
    for key, text in why.items():
        if key in data:
            problems.add(("repeats",), text)
    if parameters.get("epsilon") is not None:
        problems.add(("repeats",), "repeats is for learners without epsilon: every split would cost the budgets anew")


def check_column_kinds(values: Any, columns: bool, problems: Problems) -> Kinds:
    """Check what the study says that columns are; parts of dates are not for parties that hold columns."""
    found: dict[str, Any] = {}
    if not isinstance(values, dict):
        problems.add(("kinds",), 'kinds must be a section: [kinds], with a line a column, as code = "categorical"')
        return found
    for name, kind in values.items():
        try:
            found |= check_kinds({name: kind})
        except InputError as error:
            problems.add(("kinds", name), str(error).removeprefix("kinds: "))
        if columns and isinstance(kind, list):
            problems.add(("kinds", name), f"{name}: parts of dates are not for parties that hold columns")
    return found


def check_evaluation(data: dict[str, Any], parameters: dict[str, Any], problems: Problems) -> dict[str, Any]:
    """Check how the model is judged; return the fields of the plan that say so."""
    values, private = data.get("evaluation", {}), parameters.get("epsilon") is not None
    if private and "schema" not in data:
        problems.add(("learner", "epsilon"), "epsilon needs a schema that is known without looking at tables: [schema]")
    if not isinstance(values, dict):
        problems.add(("evaluation",), "evaluation must be a section: [evaluation]")
        return {}
    found: dict[str, Any] = {}
    for key, value in values.items():
        if key not in EVALUATION:
            problems.unknown(("evaluation", key), list(EVALUATION), f"unknown key {key!r} in [evaluation]")
        elif key != "epsilon":
            right = isinstance(value, bool) if key == "importance" else _are_columns(value)
            if not right:
                what = "true or false" if key == "importance" else "a list of columns, each once"
                problems.add(("evaluation", key), f"{key} must be {what}, got {value!r}")
            elif value:
                found[key] = value if key == "importance" else tuple(value)
                _check_explaining(key, data, private, problems)
    if "epsilon" in values and values["epsilon"] != NONE:
        found["evaluation_epsilon"] = _check_noise(values["epsilon"], private, bool(data.get("test")), problems)
    return found


def _are_columns(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) and v for v in value) and len(set(value)) == len(value)


def _check_explaining(key: str, data: dict[str, Any], private: bool, problems: Problems) -> None:
    """Check that there are exact figures of test rows of sites."""
    kind = data.get("learner", {}).get("kind") if isinstance(data.get("learner"), dict) else None
    if private:
        problems.add(("evaluation", key), f"{key} is for learners without epsilon: it is not told with noise")
    elif "parties" in data or kind in COLUMN_LEARNERS:
        problems.add(("evaluation", key), f"{key} is for [sites]; leave it out of studies over columns")
    elif key == "by" and "repeats" in data:
        problems.add(("evaluation", key), "by is for one split of rows; leave one of by and repeats out")
    elif not data.get("test"):
        problems.add(("evaluation", key), f"{key} needs test rows: set test")


def _check_noise(epsilon: Any, private: bool, test: bool, problems: Problems) -> float | None:
    """Check the epsilon of figures."""
    key = ("evaluation", "epsilon")
    try:
        check_epsilon(epsilon)
    except InputError as error:
        problems.add(key, str(error))
        return None
    if not private:
        problems.add(key, "epsilon of figures is for a forest with epsilon in [learner]; leave it out")
    if not test:
        problems.add(key, "there are no rows to judge by: set test, or leave [evaluation] out")
    return float(epsilon)


def check_policy(values: Any, problems: Problems) -> dict[str, Any]:
    """Check the policy of all sites; return its values."""
    if not isinstance(values, dict):
        problems.add(("policy",), "policy must be a section: [policy]")
        return {}
    hints = parameters_of(Policy)
    found = {}
    for key, value in values.items():
        if key not in hints:
            problems.unknown(("policy", key), hints)
        elif not fits(value, hints[key]):
            problems.add(("policy", key), f"{key} must be {describe_type(hints[key])}, got {value!r}")
        else:
            found[key] = value
            kinds = ["*", *sorted(request.kind() for request in all_requests())]
            for name in value if key == "messages" else ():
                if name not in kinds:
                    problems.unknown(("policy", key), kinds, f"there is no message {name!r}", name)
            try:
                Policy(**{key: value})
            except InputError as error:
                problems.add(("policy", key), str(error))
    return found

"""Parses study files: for ``silvan fit``, and for studies between machines, whose sites name their own tables.

Everything is checked before any work starts, and one error lists all problems with their lines. ``study.py`` declares
the keys; this file has the sections with another syntax, and rules that involve several keys.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from silvan.data.column_types import check_apart, check_kinds
from silvan.data.date_split import NEEDS_DATE
from silvan.data.hospital.cohort_rows import hospital_rows, is_hospital
from silvan.data.partition_files import Partitions
from silvan.data.readers.query import Query
from silvan.data.readers.table_file import KNOWN_SUFFIXES, WANTED, Table
from silvan.data.schema import Feature, Label, Schema
from silvan.errors import InputError
from silvan.federate.options import EXCLUDES_LABEL, NEEDS_TRUSTED_SUMS, task_of
from silvan.federation.handlers import HANDLERS
from silvan.federation.members import OVERALL
from silvan.learners.parameters import Parameters
from silvan.learners.registry import LEARNERS, learners_for
from silvan.privacy.policy import Policy
from silvan.study.cohort_sections import (
    check_cohort,
    contradictions_of_cohort,
    read_cohort,
    read_concepts,
    read_covariates,
    with_cohort,
)
from silvan.study.sections import EvaluationSettings, Predict
from silvan.study.study import Sources, Study
from silvan.study.toml_lines import BEFORE, Key, Problems, convert_entries, key_lines, parse_toml
from silvan.util.declared import extras, typed_keys

_NO_NOISE = "describe is for learners without epsilon: no noise protects the numbers of Table 1"

SECTIONS = (
    "sites",
    "parties",
    "reading",
    "kinds",
    "schema",
    "cohort",
    "concepts",
    "covariates",
    "learner",
    "evaluation",
    "policy",
    "predict",
)
"""Keys that are tables."""


def parse_study(text: str, data: dict[str, Any], path: Path) -> Study:
    """Parse a file for ``silvan fit``; raise one error that lists all problems."""
    return _study({"name": path.stem, **data}, text, path, machines=False, check=True)


def parse_remote_study(text: str, path: Path = Path("study.toml"), *, check: bool = False) -> Study:
    """Parse the text of a study between machines; raise one error that lists all problems.

    With ``check`` the learner is imported and checks its parameters, which only the coordinator needs.
    """
    return _study(parse_toml(text, path), text, path, machines=True, check=check)


def predicting(study: Study, model: str, number: int) -> Study:
    """Return the study that predicts new rows with the model of another study, for the n-th time."""
    lines = f'[predict]\nstudy = "{study.digest}"\nmodel = "{model}"\nnumber = {number}\n'
    return parse_remote_study(f"{study.text.rstrip()}\n\n{lines}", study.path)


def describing(study: Study) -> Study:
    """Return the study that only describes the rows of another study; raise ``InputError`` if it cannot."""
    if study.by_columns:
        raise InputError("describe is for studies over rows, and here parties hold columns of the same rows")
    if study.private:
        raise InputError(f"{_NO_NOISE}; leave epsilon out if the rows may be described")
    return msgspec.structs.replace(study, describe="only", test=0.0, split=None, repeats=None)


@cache
def _places() -> dict[str, str]:
    """Return where each key belongs, for hints about misplaced keys."""
    learner = {key: "in [learner]" for spec in LEARNERS.values() for key in ("kind", *typed_keys(spec.parameters))}
    evaluation = dict.fromkeys(typed_keys(EvaluationSettings), "in [evaluation]")
    return {**learner, **evaluation, **{key: BEFORE for key in typed_keys(Study) if key not in SECTIONS}}


def _study(data: dict[str, Any], text: str, path: Path, *, machines: bool, check: bool) -> Study:
    problems = Problems(path, key_lines(text), _places())
    learner = data.get("learner", {})
    kind = learner.get("kind") if isinstance(learner, dict) else None
    columns = isinstance(kind, str) and kind in learners_for("columns") if machines else "parties" in data
    data = _allowed(data, machines, columns, problems)
    plain = {key: value for key, value in data.items() if key not in SECTIONS}
    found = convert_entries(plain, typed_keys(Study), (), problems)
    if machines:
        found["sites"] = _site_names(data.get("sites"), problems)
    else:
        found["tables"] = check_tables(data, path.parent, problems)
        found |= {key: data[key] for key in ("sites", "parties") if key in data}
    _read_label(found, problems)
    sections: dict[str, Callable[[Any], Any]] = {
        "learner": lambda values: _check_learner(values, columns, problems, found, machines=machines),
        "evaluation": lambda values: EvaluationSettings(
            **convert_entries(values, typed_keys(EvaluationSettings), ("evaluation",), problems, none=True)
        ),
        "policy": lambda values: Policy(**check_policy(values, problems)),
        "reading": lambda values: check_reading(path, values, ("reading",), problems).options,
        "kinds": lambda values: _check_kinds(values, columns, problems),
        "cohort": lambda values: read_cohort(values, problems),
        "concepts": lambda values: read_concepts(values, problems),
        "covariates": lambda values: read_covariates(values, problems),
        "schema": lambda values: _check_schema(values, found, problems),
        "predict": lambda values: _check_predict(values, problems),
    }
    found |= {
        name: section(data.get(name, {})) for name, section in sections.items() if name in data or name == "learner"
    }
    study = with_cohort(Study(**found, path=path, text=text, lines=problems.lines))
    for key, others, why in [*contradictions_of_cohort(study), *_contradictions(study, machines)]:
        if not problems.wrong & {key, *others}:
            problems.add(key, why)
    if check and study.cohort is not None and not problems.found:
        try:
            check_cohort(study)
        except InputError as error:
            problems.add(("cohort", "query"), str(error))
    if check and not any(key[0] == "learner" for key in problems.wrong):
        try:
            check_parameters(study)
        except InputError as error:
            problems.add(("learner", error.parameter or "kind"), str(error))
    problems.stop()
    return study


def _allowed(data: dict[str, Any], machines: bool, columns: bool, problems: Problems) -> dict[str, Any]:
    """Return the keys allowed in this kind of study; report all others as problems."""
    known, found = typed_keys(Study), {}
    for key, value in data.items():
        more = extras(known.get(key))
        why = more.get("machines" if machines else "here") or more.get("columns" if columns else "rows")
        if key not in known:
            text = f"unknown section [{key}]" if isinstance(value, dict) else ""
            problems.unknown((key,), known, text)
        elif why:
            problems.add((key,), why.format(key=key))
        else:
            found[key] = value
    return found


def check_parameters(study: Study) -> None:
    """Raise ``InputError`` for conflicting parameters; this imports the learner."""
    study.spec.load()(**study.parameters).check()


def _of_splits(study: Study) -> Iterator[tuple[Key, tuple[Key, ...], str]]:
    """Yield conflicts with evaluation on splits."""
    key: Key = ("split",) if study.split == "sites" else ("repeats",)
    word = f"{key[0]} = 'sites'" if study.split == "sites" else "repeats"
    if study.memory is not None:
        yield key, (), f"{word} needs all rows in memory; leave one of {key[0]} and memory out"
    if study.private:
        yield key, (), f"{word} is for learners without epsilon: every split would cost the budgets anew"
    if study.evaluation.by:
        why = f"by is for one split of rows; leave one of by and {key[0]} out"
        yield ("evaluation", "by"), (), why
    if study.split != "sites":
        return
    if study.sums != "trusted":
        yield ("sums",), (key,), f"sums {NEEDS_TRUSTED_SUMS}"
    if not study.spec.for_new_sites:
        why = f"{word} is for learners with one model for all sites, and {study.kind} has none"
        yield key, (("learner", "kind"),), why
    names = study.site_names
    if names is not None and len(names) < 2:
        yield key, (("sites",),), f"{word} needs at least two sites: one is left out, and the others train"


def _contradictions(study: Study, machines: bool) -> Iterator[tuple[Key, tuple[Key, ...], str]]:
    """Yield conflicting keys: the key to change, the others involved, and the reason."""
    if study.label_holder is not None and study.label_holder not in (study.site_names or [study.label_holder]):
        yield ("label_holder",), (("sites",),), f"label_holder must be one of sites, got {study.label_holder!r}"
    learner, test = ("learner", "epsilon"), ("test",)
    if study.label in study.exclude:
        yield ("exclude",), (("label",),), f"exclude {EXCLUDES_LABEL.format(study.label)}"
    if study.private and study.schema is None:
        why = "epsilon needs a schema that is known without looking at tables: [schema]"
        yield learner, (("schema",),), why
    for other, given in (("test", study.test), ("repeats", study.repeats)):
        if study.split is not None and given:
            yield ("split",), ((other,),), f"split says which rows are test rows; leave one of split and {other} out"
    by = None if study.date_split is None else study.date_split.by
    for parameter, column in (("group", study.group), ("split", by)):
        try:
            features = () if study.schema is None else study.schema.columns
            check_apart(parameter, column, study.label, study.site, features)
        except InputError as error:
            yield (parameter,), (), str(error)
    if study.absent == "drop" and study.schema is not None:
        yield (
            ("absent",),
            (("schema",),),
            "absent is for columns that sites are asked for; leave it out beside [schema]",
        )
    if study.date_split is not None and study.private and study.date_split.since is None:
        yield ("split",), (), f"split {NEEDS_DATE}"
    if study.on_splits:
        yield from _of_splits(study)
    if study.repeats and study.sampling == "published":
        why = "sampling must be 'secret' with repeats: sums over many parts of the rows that others know would tell "
        yield ("sampling",), (), f"{why}single rows"
    if (
        machines
        and study.by_columns
        and study.names != "shown"
        and isinstance(study.parameters.get("class_weight"), dict)
    ):
        why = 'the coordinator knows classes by number: set names = "shown" for a weight per class'
        yield ("learner", "class_weight"), (("names",),), why
    if study.evaluation.epsilon is not None:
        key = ("evaluation", "epsilon")
        if not study.private:
            yield key, (learner,), "epsilon of metrics is for a forest with epsilon in [learner]; leave it out"
        if not study.holds_out:
            yield key, (test,), "there are no test rows to evaluate on: set test, or leave [evaluation] out"
    if study.describe and study.private:
        yield ("describe",), (), _NO_NOISE
    for name in ("importance", "by", "dependence"):
        key = ("evaluation", name)
        if not getattr(study.evaluation, name):
            continue
        if study.private:
            yield key, (), f"{name} is for learners without epsilon: it cannot be released with noise"
        elif study.by_columns:
            yield key, (), f"{name} is for studies over rows; leave it out"
        elif name == "by" and study.on_splits:
            continue  # said above
        elif not study.holds_out:
            yield key, (test,), f"{name} needs test rows: set test"


# -- sections
def _check_learner(
    values: Any, columns: bool, problems: Problems, study: dict[str, Any], *, machines: bool
) -> Parameters:
    """Check the name of the learner, for rows or columns, and each of its parameters."""
    known = learners_for("columns" if columns else "rows")
    default = next(iter(known))
    if not isinstance(values, dict):
        problems.add(("learner",), "learner must be a section: [learner]")
        values = {}
    kind = values.get("kind", default)
    if kind not in list(known):
        text = f"there is no learner {kind!r}"
        if isinstance(kind, str) and kind in LEARNERS:
            text = f"{kind} is not for {'[parties]' if columns else '[sites]'}"
        problems.unknown(("learner", "kind"), known, text, kind)
        return LEARNERS[default].parameters()
    spec = known[kind]
    given = {**(spec.between_machines(values) if machines else {}), **values}
    given.pop("kind", None)
    types, where = typed_keys(spec.parameters), f"[learner] of kind {kind}"
    found = convert_entries(given, types, ("learner",), problems, none=True, where=where)
    if "random_state" in types:
        found.setdefault("random_state", study.get("random_state", 0))
    return spec.parameters(**found)


def check_policy(values: Any, problems: Problems) -> dict[str, Any]:
    """Check the policy of all sites; return its settings."""

    def check(key: str, value: Any) -> None:
        Policy(**{key: value})
        kinds = ["*", *sorted(HANDLERS)] if key == "messages" else []
        for name in (value or ()) if key == "messages" else ():
            if name not in kinds:
                problems.unknown(("policy", key), kinds, f"there is no message {name!r}", name)

    return convert_entries(values, typed_keys(Policy), ("policy",), problems, none=True, check=check)


def _site_names(values: Any, problems: Problems) -> tuple[str, ...] | None:
    """Check the names of the sites of a study between machines."""
    if values is None:
        return None
    names = values if isinstance(values, list) and all(isinstance(name, str) for name in values) else []
    if not names or len(set(names)) < len(names):
        problems.add(("sites",), 'sites must be a list of names, as sites = ["north", "south"]')
    return tuple(names)


def _check_kinds(values: Any, columns: bool, problems: Problems) -> dict[str, Any]:
    """Check the declared kinds of columns; parts of dates are not available over columns."""
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


def _read_label(found: dict[str, Any], problems: Problems) -> None:
    """Make the column of times the label, where a study is about survival."""
    time, event, label = found.get("time"), found.get("event"), found.get("label", "label")
    try:
        task = task_of(found.get("task"), time, event, label, found.get("exclude", ()))
    except InputError as error:
        problems.add((error.parameter or "task",), str(error))
        return
    if task == "survival":
        found |= {"task": task, "label": time}


def _check_schema(values: Any, study: dict[str, Any], problems: Problems) -> Schema | None:
    """Check the schema that the study sets for its columns."""
    label, event, positive = study.get("label", "label"), study.get("event"), study.get("positive")
    if not isinstance(values, dict) or not all(isinstance(entry, dict) for entry in values.values()):
        problems.add(("schema",), "[schema] has one line per column, such as age = { bounds = [0, 120] }")
        return None
    features, found, before = [], None, len(problems.found)
    for name, entry in values.items():
        try:
            if name == label:
                found = msgspec.convert({"name": name, "event": event, **entry}, Label)
            else:
                kind = "categorical" if "categories" in entry else "numeric"
                features.append(msgspec.convert({"name": name, "kind": kind, **entry}, Feature))
        except (msgspec.ValidationError, InputError) as error:
            problems.add(("schema", name), f"{name}: {error}")
    if found is None and event is not None:
        found = Label(label, event=event)
    if found is None and ("schema", label) not in problems.wrong:
        problems.add(("schema",), f"[schema] lacks the label: {label} = {{ classes = [...] }} or {{ bounds = [...] }}")
    if found is not None and positive is not None:
        try:
            found = found.with_positive(positive)
        except InputError as error:
            problems.add(("positive",), str(error))
    return None if found is None or len(problems.found) > before else Schema.of(features, found)


def _check_predict(values: Any, problems: Problems) -> Predict | None:
    """Check the section of a study that only predicts."""
    try:
        return msgspec.convert(values, Predict)
    except msgspec.ValidationError:
        problems.add(("predict",), "[predict] is written by `silvan study predict`; leave it out")
        return None


# -- tables of sites and parties: files, databases and partitions
READING = tuple(field.name for field in fields(Table) if field.name != "path")
"""The options for the format of a table's file."""


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
    if is_hospital(place) and given.keys() == {"table"}:
        try:
            return {name: hospital_rows(place).beside(folder)}
        except InputError as error:
            problems.add(key, f"{who}{error}")
            return {}
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
    # [reading] was checked already
    noted = problems if given.keys() & set(READING) else Problems(problems.path, {})
    return {name: check_reading(path, own, key, noted, who)}


def _partitions(files: str, cluster: Any, folder: Path) -> Partitions:
    """Return a table in partitions; raise ``InputError`` if its files are missing or the cluster has no address."""
    found = Partitions(files, cluster).beside(folder)
    found.paths()
    return found


def check_reading(path: Path, options: Any, key: Key, problems: Problems, who: str = "") -> Table:
    """Return a table with its format options; report invalid options as problems."""
    if not isinstance(options, dict):
        problems.add(key, f"reading must be a section: [reading], with {', '.join(READING[:-1])} or {READING[-1]}")
        return Table(path)
    for word in options:
        if word not in READING:
            problems.unknown((*key, word), READING)
    known = {word: value for word, value in options.items() if word in READING}
    for given in [*({word: value} for word, value in known.items()), known]:  # one by one, then together
        try:
            table = Table(path, **given)
        except InputError as error:
            problems.add((*key, error.parameter or next(iter(given))), f"{who}{error}")
            table = Table(path)
    return table

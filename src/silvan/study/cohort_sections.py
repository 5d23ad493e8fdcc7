"""The sections of a study file that say where rows come from at hospitals: [cohort], [concepts] and [covariates]."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec

from silvan.data.hospital.cohort import Cohort, Concepts, Covariate, taken
from silvan.data.hospital.cohort_query import CohortQuery
from silvan.data.hospital.cohort_rows import NEEDS_COHORT, NEEDS_HOSPITAL, CohortRows
from silvan.errors import InputError
from silvan.study.study import Study
from silvan.study.toml_lines import Key, Problems, convert_entries, suggest
from silvan.util.declared import typed_keys
from silvan.util.readable import format_names


def read_cohort(values: Any, problems: Problems) -> Cohort | None:
    """Check the query of a cohort, whose text nobody needs to understand before it runs."""
    found = convert_entries(values, typed_keys(Cohort), ("cohort",), problems)
    if "query" not in found and not problems.wrong & {("cohort",), ("cohort", "query")}:
        problems.add(("cohort",), "[cohort] needs a query that returns person_id and index_date")
    return Cohort(**found) if "query" in found else None


def read_concepts(values: Any, problems: Problems) -> dict[str, Concepts]:
    """Check what names of concepts stand for."""
    return _read_each(values, Concepts, "concepts", problems)


def read_covariates(values: Any, problems: Problems) -> dict[str, Covariate]:
    """Check the columns of a cohort's table."""
    return _read_each(values, Covariate, "covariates", problems)


def _read_each(values: Any, struct: type[Any], section: str, problems: Problems) -> dict[str, Any]:
    """Check a section whose entries are sections themselves, by name."""
    if not isinstance(values, dict):
        problems.add((section,), f"{section} must be a section: [{section}], with an entry per name")
        return {}
    made = {}
    for name, entry in values.items():
        before = len(problems.found)
        where = f"[{section}.{name}]"
        found = convert_entries(entry, typed_keys(struct), (section, name), problems, where=where)
        if struct is Covariate and "domain" not in found and len(problems.found) == before:
            problems.add((section, name), f'{name} needs a domain, such as domain = "condition"')
        if len(problems.found) == before:
            made[name] = struct(**found)
    return made


def contradictions_of_cohort(study: Study) -> Iterator[tuple[Key, tuple[Key, ...], str]]:
    """Yield what does not go together in the sections about a cohort."""
    for name, table in study.tables.items():
        if isinstance(table, CohortRows) == (study.cohort is None):
            why = NEEDS_COHORT if study.cohort is None else NEEDS_HOSPITAL
            yield ("sites", name), (), f"site {name!r}: {why}"
    if study.cohort is None:
        for key in ("concepts", "covariates"):
            if getattr(study, key):
                yield (key,), (), f"[{key}] is for a study with a cohort: add [cohort] with a query"
        return
    for name, one in study.covariates.items():
        if one.concepts is not None and one.concepts not in study.concepts:
            known = suggest(one.concepts, study.concepts) if study.concepts else "there is no [concepts]"
            yield ("covariates", name, "concepts"), (), f"{name}: [concepts] has no {one.concepts!r}; {known}"
        for key, why in one.contradictions():
            yield ("covariates", name, key), (), f"{name}: {why}"
        if name in study.label_columns:
            yield ("covariates", name), (), f"{name} is to be predicted, and the cohort query returns it; leave it out"
    for name, known_as in study.concepts.items():
        if taken(name):
            yield ("concepts", name), (), f"{name} is the name of a table; call it otherwise"
        if not known_as.omop and not known_as.fhir:
            yield ("concepts", name), (), f"{name} needs omop = [...] or fhir = [...], or both"
        if known_as.descendants and not known_as.omop:
            yield ("concepts", name), (), f"{name}: descendants are of OMOP concepts; list them as omop = [...]"


def with_cohort(study: Study) -> Study:
    """Return the study with the kinds of columns that its covariates have, and tables that are made by its cohort."""
    plan = study.cohort_plan
    if plan is None:
        return study
    sexes = {name: "categorical" for name, one in study.covariates.items() if one.domain == "sex"}
    made = {k: replace(t, plan=plan) if isinstance(t, CohortRows) else t for k, t in study.tables.items()}
    return msgspec.structs.replace(study, kinds={**sexes, **study.kinds}, tables=made)


def check_cohort(study: Study) -> None:
    """Raise ``InputError`` unless the cohort query can be read, and returns the label; the SQL library is imported."""
    plan = study.cohort_plan
    if plan is None:
        return
    columns = CohortQuery(plan.query, list(plan.concepts)).columns
    twice = [name for name in columns if name in plan.covariates]
    if twice:
        raise InputError(f"the cohort query returns {format_names(twice)}, which [covariates] name too; leave one out")
    lacking = [name for name in study.label_columns if name not in columns]
    if lacking:
        found = format_names(columns) or "nothing else"
        raise InputError(
            f"the cohort query does not return {format_names(lacking)}, to be predicted; it returns {found}"
        )

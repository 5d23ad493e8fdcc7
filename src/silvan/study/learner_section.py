"""Checks a learner's parameters by its signature and its own rules, before any work starts."""

from datetime import date, time
from typing import Any

from silvan import learners
from silvan.errors import InputError
from silvan.study.study_sections import read_learner
from silvan.study.study_values import NONE, describe_type, fits, parameters_of, whole_number
from silvan.study.toml_lines import Problems
from silvan.tree.fit import Settings


def check_learner(values: Any, columns: bool, problems: Problems) -> tuple[str, dict[str, Any]]:
    """Check the section of a learner and its parameters; return its kind and the parameters."""
    kind, parameters = read_learner(values, columns, problems)
    check_parameters(kind, parameters, problems)
    return kind, parameters


def holds_dates(value: Any) -> bool:
    """Whether a value of a TOML file is a date or a time, or has one in it; no parameter is one."""
    if isinstance(value, list | dict):
        return any(map(holds_dates, value.values() if isinstance(value, dict) else value))
    return isinstance(value, date | time)


def check_parameters(kind: str, parameters: dict[str, Any], problems: Problems) -> None:
    """Check the parameters of a learner that is known by its kind; there are none without."""
    hints, before = parameters_of(getattr(learners, kind)) if kind else {}, len(problems.found)
    for key, value in parameters.items():
        if key not in hints:
            problems.unknown(("learner", key), ["kind", *hints], f"unknown key {key!r} in [learner] of kind {kind}")
            continue
        given = NONE if value is None else value
        if holds_dates(value):
            problems.add(("learner", key), f"{key} must not be a date or a time")
            continue
        if key == "class_weight" and isinstance(value, list) and not all(fits(one, float) for one in value):
            problems.add(("learner", key), f"{key} must be 'balanced', or a number for each class, got {given!r}")
            continue
        if not fits(value, hints[key]):
            problems.add(("learner", key), f"{key} must be {describe_type(hints[key])}, got {given!r}")
            continue
        if key == "random_state" and (wrong := whole_number(value)):
            problems.add(("learner", key), f"{key} {wrong}, got {given!r}")
        if key in Settings.__dataclass_fields__ and value is not None and not isinstance(value, dict):
            try:
                Settings(**{key: value}).n_drawn(1)
            except InputError as error:
                problems.add(("learner", key), str(error))
    if kind and len(problems.found) == before:
        try:
            getattr(learners, kind)(**parameters).check()
        except InputError as error:
            problems.add(("learner", str(error).split()[0]), str(error))

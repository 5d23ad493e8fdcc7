"""Training of a differentially private forest, in one of three forms: tables, levels or input."""

import numpy as np

from silvan.algorithms.private import noisy_levels, noisy_rows, tables
from silvan.algorithms.private.noisy_counts import Rounds, check_rows, place
from silvan.algorithms.private.public_cuts import check_public
from silvan.data.schema import Schema
from silvan.errors import InputError
from silvan.federation.federation import Federation
from silvan.federation.message import Request
from silvan.forest.forest import Forest
from silvan.privacy.noise.accounting import Privacy
from silvan.tree.fit import Settings

FORMS = ("tables", "levels", "input")


def check_private(federation: Federation, form: str, n_rows: int | None) -> None:
    """Raise ``InputError`` for a form that there is not, or a schema that is not public."""
    if form not in FORMS:
        raise InputError.wrong("private", f"one of {', '.join(map(repr, FORMS))}", form)
    check_rows(n_rows)
    if federation.agreement.by_asking:
        raise InputError.about(
            "epsilon",
            "needs a public schema, and this one was found by asking the sites: pass federate_rows(schema=...) "
            "with bounds of numbers, categories and classes, as they are known without looking at the tables",
        )
    check_public(federation.schema)


def private_kinds(schema: Schema, form: str, n_rows: int | None) -> tuple[type[Request], ...]:
    """Return the kinds of messages that a form may ask; some of them only where there are rows enough."""
    if form == "levels":
        return (noisy_levels.NoisyLevel,)
    if form == "input":
        return (noisy_rows.DisguisedLevel,)
    people = () if n_rows is not None else (tables.CountPeople,)
    last = (tables.CountScores,) if schema.n_classes else (tables.SumTargets, tables.SumSlopes)
    return (*people, tables.CountColumns, tables.CountTables, *last)


def fit_private(
    federation: Federation,
    settings: Settings,
    key: np.ndarray,
    *,
    epsilon: float,
    form: str,
    noise: str | None,
    n_rows: int | None,
    tolerate: int | None,
) -> tuple[Forest, Privacy]:
    """Fit a private forest; return it and the account of what its answers may tell of a row."""
    schema = federation.schema
    check_private(federation, form, n_rows)
    rounds = Rounds(federation, schema, epsilon, place(federation, noise, tolerate))
    if form == "tables":
        forest = tables.fit(rounds, key, n_rows)
    elif form == "levels":
        forest = noisy_levels.fit(rounds, settings, key, n_rows)
    else:
        if noise is not None:
            raise InputError.about("noise", "is for sums; private='input' always adds it to rows, at their site")
        return noisy_rows.fit(rounds, settings, key)
    return forest, rounds.account()

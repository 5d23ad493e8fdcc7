"""Write the tables of keys in docs/study.md and docs/deployment.md, and the learners in docs/api.md, from the code.

The pages are written by hand except for the parts between two markers. ``make docs`` runs this, and a test fails when
a page differs from the result.
"""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any, Literal

import msgspec

from silvan.data.hospital.cohort import Cohort, Concepts, Covariate
from silvan.learners.parameters import Parameters, defaults, descriptions, own_entries
from silvan.learners.registry import (
    LEARNERS,
    BoostingParameters,
    ForestParameters,
    ReliabilityParameters,
    VotingForestParameters,
    learners_for,
)
from silvan.privacy.gate import Policy
from silvan.study.parse import SECTIONS
from silvan.study.sections import EvaluationSettings
from silvan.study.study import Study
from silvan.util.declared import extras, typed_keys

ROOT = Path(__file__).parent.parent
PAGES = tuple(ROOT / "docs" / name for name in ("study.md", "deployment.md", "api.md"))
MARKED = re.compile(r"(<!-- keys: (\w+) -->\n).*?(<!-- end of keys -->\n)", re.S)

_PYTHON = re.compile(r'``(.+?)``|"([^"]+)"|\b(None|True|False)\b|docs/(\w+)\.md(#[\w-]+)?')


def in_toml(text: str) -> str:
    """Return a docstring's text in the words of a study file, as Markdown."""

    def word(found: re.Match[str]) -> str:
        code, quoted, value, page, part = found.groups()
        if page:
            return f"[{page}]({page}.md{part or ''})"
        if value:
            return {"None": '`"none"`', "True": "`true`", "False": "`false`"}[value]
        named = re.sub(r'"(\w+)": ', r"\1 = ", (code or "").replace("=None", ' = "none"'))
        text = f'"{quoted}"' if quoted else named.replace("{", "{ ").replace("}", " }")
        return f"`{text}`"

    return _PYTHON.sub(word, text)


def shown(default: Any) -> str:
    """Return a default as a study file would write it."""
    plain = "none" if default is None else list(default) if isinstance(default, tuple) else default
    return f"`{json.dumps(plain)}`"


def table(rows: list[tuple[str, str, str]]) -> str:
    """Return a table of keys, defaults and meanings."""
    lines = [f"| `{key}` | {default} | {meaning} |" for key, default, meaning in rows]
    return "\n".join(["| key | default | meaning |", "| --- | --- | --- |", *lines, ""])


def of_study(*, machines: bool) -> str:
    """Return the keys before the first section: of all studies, or those only for studies between machines."""
    rows, texts = [], descriptions(Study)
    defaults = {field.name: field.default for field in msgspec.structs.fields(Study)}
    for key, hint in typed_keys(Study).items():
        more = extras(hint)
        if key not in SECTIONS and ("here" in more) == machines:
            plain = "" if defaults[key] is None else shown(defaults[key])
            rows.append((key, more.get("default", plain), texts[key]))
    if machines:
        rows.insert(0, ("sites", "all that have joined", 'a list of names: `sites = ["north", "south"]`'))
    return table(rows)


def of_learners() -> str:
    """Return the parameters of all learners, each where it is first declared."""
    structs: dict[str, type[Parameters]] = {
        "All forests": ForestParameters,
        '`"HistogramForest"`, `"MergedForest"`, `"LocalForest"`, `"VerticalForest"`': VotingForestParameters,
        '`"HistogramForest"`, `"MergedForest"`, `"AutoForest"`, `"BOFRF"`': ReliabilityParameters,
        "All boosting": BoostingParameters,
        **{f'`"{name}"`': spec.parameters for name, spec in LEARNERS.items()},
    }
    parts = [part for title, struct in structs.items() if (part := _own_parameters(title, struct))]
    return "\n".join(parts)


def _own_parameters(title: str, struct: type[Parameters]) -> str:
    texts, values = descriptions(struct), defaults(struct)
    rows = [
        (key, "the study's" if key == "random_state" else shown(values[key]), in_toml(texts[key]))
        for key in defaults(struct)
        if key in own_entries(struct) or key in vars(struct).get("__annotations__", ())
    ]
    return f"**{title}**\n\n{table(rows)}" if rows else ""


def of_evaluation() -> str:
    """Return the keys of ``[evaluation]``."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(EvaluationSettings)}
    return table([(key, shown(defaults[key]), text) for key, text in descriptions(EvaluationSettings).items()])


def of_struct(struct: type[msgspec.Struct]) -> str:
    """Return the keys of an entry of ``[cohort]``, ``[concepts]`` or ``[covariates]``."""
    rows, texts = [], descriptions(struct)
    for field in msgspec.structs.fields(struct):
        default = field.default_factory() if callable(field.default_factory) else field.default
        rows.append((field.name, "" if default in (None, msgspec.NODEFAULT, {}) else shown(default), texts[field.name]))
    return table(rows)


def of_policy() -> str:
    """Return the keys of ``[policy]``, from the docstring of the class."""
    defaults = {field.name: field.default for field in dataclasses.fields(Policy)}
    texts = descriptions(Policy)
    return table(
        [(key, "" if defaults[key] is None else shown(defaults[key]), in_toml(texts[key])) for key in defaults]
    )


def names_of(axis: Literal["rows", "columns"]) -> str:
    """Return the public names of learners, which ``api_pages.py`` documents."""
    return "".join(f"::: silvan.{name}\n" for name in learners_for(axis))


def render(page: str) -> str:
    """Return a page with its tables as the structs define them now."""
    tables = {
        "study": lambda: of_study(machines=False),
        "machines": lambda: of_study(machines=True),
        "learner": of_learners,
        "evaluation": of_evaluation,
        "cohort": lambda: of_struct(Cohort),
        "concepts": lambda: of_struct(Concepts),
        "covariates": lambda: of_struct(Covariate),
        "policy": of_policy,
        "rows": lambda: names_of("rows"),
        "columns": lambda: names_of("columns"),
    }
    return MARKED.sub(lambda found: f"{found[1]}\n{tables[found[2]]()}\n{found[3]}", page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(render(path.read_text(encoding="utf-8")), encoding="utf-8")

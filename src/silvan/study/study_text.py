"""What a study's text fixes in all requests, for sites to enforce."""

from collections.abc import Mapping
from typing import Any

from silvan.data.schema import Schema
from silvan.learners.fixed_fields import fixed_fields, fixed_for_parties
from silvan.learners.parameters import defaults
from silvan.privacy.terms import StudyText
from silvan.study.study import Study


def text_of(study: Study, name: str | None = None) -> StudyText:
    """Return what the text fixes; ``name`` is the name of the study, or of one of its splits."""
    parameters = {**defaults(type(study.learner)), **study.parameters}
    outside, evaluation = {*study.label_columns, *study.left_out}, study.evaluation
    known = set() if study.schema is None else {*study.schema.columns}
    of_study = {
        # a study with a schema does not describe tables, but parties say which of its columns they hold
        "task": lambda task: task == study.task and (study.by_columns or study.schema is None),
        "names": lambda names: study.schema is None and outside.isdisjoint(names),
        "columns": lambda names: outside.isdisjoint(names) if study.schema is None else known.issuperset(names),
        "grouped": study.group is not None,
        "study": name or study.unique_name,
        "test": lambda share: share in (None, study.test),
        **({"described": True, "max_bins": study.max_bins} if study.describe else {}),
    }

    def fixed(schema: Schema | None) -> Mapping[str, Any]:
        if study.predict is not None:  # nothing is trained
            return of_study
        if study.by_columns:
            return {**of_study, **fixed_for_parties(parameters)}
        of_learner = fixed_fields(
            parameters,
            schema,
            random_state=parameters["random_state"],
            by=evaluation.by,
            dependence=evaluation.dependence,
            epsilon=evaluation.epsilon or 0.0,
        )
        return {**of_study, **of_learner}

    clusters = study.by_columns or parameters.get("clusters") is not None
    left_out = frozenset(study.left_out)
    return StudyText(study.label, fixed, study.task, study.schema, left_out, clusters, study.positive, study.event)

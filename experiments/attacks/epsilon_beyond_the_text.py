"""A private study with a coordinator that repeats requests: each reply has noise, and the site has budget left.

The owner read "this study costs up to 1". A slightly different request gets new noise, so a coordinator could spend the
whole budget of a site and average the noise away. A site that knows the study's text replies only up to the study's own
epsilon.
"""

from dataclasses import replace

import numpy as np
import polars as pl
from experiments.attacks.outcome import Outcome

import silvan as sv
from silvan.algorithms.private.tables import CountPeople
from silvan.errors import SilvanError
from silvan.privacy.gate import Gate
from silvan.study.parse import parse_remote_study
from silvan.study.study_text import text_of

_STUDY = """
[schema]
age = { bounds = [0, 100] }
label = { classes = ["no", "yes"] }
[learner]
epsilon = 1.0
noise = "site"
"""
_BUDGET = 10.0


def run(small: bool) -> list[Outcome]:
    """Send requests to a site that knows the study's limit."""
    spent, note = epsilon_spent(held=True)
    return [
        Outcome(f"epsilon of {_BUDGET:g} spent beyond the 1 of the study's text", "9", max(spent - 1.0, 0.0), note=note)
    ]


def epsilon_spent(*, held: bool) -> tuple[float, str]:
    """Return how much of a site's budget one study spends, and the site's last reply."""
    study, table = (
        parse_remote_study(_STUDY),
        pl.DataFrame({"age": np.arange(90) % 60 + 20, "label": ["no", "yes"] * 45}),
    )
    federation = sv.federate_rows({"here": table}, schema=study.schema, policy=sv.Policy(epsilon=_BUDGET), n_jobs=1)
    gate, note = federation.site("here").outbox, ""
    assert isinstance(gate, Gate)  # noqa: S101
    most = study.max_epsilon(["here"]) if held else None
    gate.terms = replace(gate.terms, text=text_of(study, federation.study), epsilon=most)
    with federation.working_on("another model"):
        try:
            for i in range(40):
                federation.total(CountPeople(epsilon=0.25 + i * 1e-6))
        except SilvanError as error:
            note = str(error).split(": ", 1)[-1]
    return float(gate.budget.spent), note

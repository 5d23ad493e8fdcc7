"""An approved study, and a coordinator that sends other requests of the approved message kinds.

Every request is well formed, and of a kind that studies use. Its content differs: columns outside the study, other
trees, other subgroups, a key of another study. Sites that know the study's text compare the content; without the text
they allow whatever their policy does. Requests that they refuse even then are in ``agreement.py``.
"""

from collections.abc import Callable

import numpy as np
import polars as pl
from experiments.attacks.outcome import Outcome

import silvan as sv
from silvan.algorithms.evaluation.candidates import LocalModel
from silvan.algorithms.evaluation.evaluate import EvaluateModels
from silvan.algorithms.horizontal.merged_forest import GrowTrees
from silvan.data.schema import Feature, Label, Schema
from silvan.errors import SilvanError
from silvan.federation.describe import Describe
from silvan.federation.federation import Federation
from silvan.forest.forest import Forest
from silvan.privacy.gate import holding_to
from silvan.study.parse import parse_remote_study
from silvan.study.study import Study
from silvan.study.study_text import text_of
from silvan.tree.fit import Settings
from silvan.tree.sampling import make_key

_SALARY = 'name = "pay"\nlabel = "salary"\ntask = "regression"\n[learner]\nkind = "HistogramForest"\n'
_GIVEN = """name = "risk"
label = "event"
test = 0.3
[evaluation]
by = ["sex"]
[schema]
event = { classes = ["no", "yes"] }
age = { bounds = [0, 120] }
sex = { categories = ["f", "m"] }
[learner]
kind = "MergedForest"
n_estimators = 10
"""


Attack = Callable[[Federation, pl.DataFrame], float]


def run(small: bool) -> list[Outcome]:
    """Send requests beyond the text to sites that know it."""
    n = 400 if small else 800
    return [_outcome(what, before, text, attack, n) for what, before, text, attack in _ATTACKS]


def unheld(n: int = 400) -> dict[str, float]:
    """Return what each attack learns if sites do not know the study's text."""
    found = {}
    for what, _, text, attack in _ATTACKS:
        federation, table = _federation(parse_remote_study(text), n)
        with federation.working_on("another model"):
            found[what] = attack(federation, table)
    return found


def _outcome(target: str, before: str, text: str, attack: Attack, n: int) -> Outcome:
    study = parse_remote_study(text)
    federation, table = _federation(study, n)
    said = text_of(study, federation.study)
    with holding_to(said, federation.local_sites.values()), federation.working_on("another model"):
        try:
            return Outcome(target, before, attack(federation, table))
        except SilvanError as error:
            return Outcome(target, before, 0.0, note=str(error).split(": ", 1)[-1])


def _federation(study: Study, n: int) -> tuple[Federation, pl.DataFrame]:
    """Return two sites that know different things about the same n people, and the table of the first."""
    rng = np.random.default_rng(3)
    table = pl.DataFrame(
        {
            "age": rng.integers(18, 90, 2 * n) + rng.random(2 * n).round(3),
            "sex": rng.choice(["f", "m"], 2 * n),
            "surname": [f"name {k // 3}" for k in range(2 * n)],
            "religion": rng.choice(["a", "b", "c", "d", "e"], 2 * n),
            "hiv": rng.choice(["negative", "positive"], 2 * n, p=[0.9, 0.1]),
            "event": rng.choice(["no", "yes"], 2 * n),
            "salary": rng.lognormal(10, 0.5, 2 * n).round(2),
        }
    )
    tables = {"here": table[:n], "there": table[n:]}
    return sv.federate_rows(tables, label=study.label, test=study.test, signed=True, n_jobs=1), table[:n]


def _columns(federation: Federation, table: pl.DataFrame) -> float:
    """Make a site list all columns of its table, in a study that gives the schema."""
    names = set(federation.ask(Describe())["here"].names)
    return float(len(names & {"surname", "religion", "hiv", "salary"}))


def _labels(federation: Federation, table: pl.DataFrame) -> float:
    """Grow large trees on all rows, whose leaves reveal the labels of people with known columns."""
    ages, sexes = Feature("age", bounds=(0, 120)), Feature("sex", "categorical", categories=("f", "m"))
    schema = Schema.of([ages, sexes], Label("event", ("no", "yes")))
    settings = Settings(n_estimators=60, bootstrap=False, max_features=1)
    request = GrowTrees(
        schema=federation.blob(schema.to_json().encode()),
        settings=settings,
        n_trees=settings.n_estimators,
        feature_key=make_key(0, "features"),
    )
    forest = Forest.from_bytes(federation.ask(request)["here"].forest)
    return float(np.sum(forest.predict(table.select("age", "sex")) == table["event"].to_numpy()))


def _subgroups(federation: Federation, table: pl.DataFrame) -> float:
    """Evaluate a model by a column that the study does not name."""
    religions = Feature("religion", "categorical", categories=("a", "b", "c", "d", "e"))
    schema = Schema.of([Feature("age", bounds=(0, 120)), religions], Label("event", ("no", "yes")))
    request = EvaluateModels(
        schema=federation.blob(schema.to_json().encode()),
        candidates=[LocalModel(Settings(n_estimators=5))],
        feature_key=make_key(0, "features"),
        by=(1,),
    )
    return float(len(federation.ask(request)["here"].subgroups))


_ATTACKS: list[tuple[str, str, str, Attack]] = [
    ("names of columns outside the study", "4 of 4", _GIVEN, _columns),
    ("labels, by trees outside the study", "300 of 300", _GIVEN, _labels),
    ("subgroups by a column outside the study", "5 of 5", _GIVEN, _subgroups),
]

"""A study that spends privacy budget before a site refuses to continue: the budget is lost without a result.

A refusal follows from a site's policy and its records, so it can be known before the first request.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
from experiments.attacks.outcome import Outcome
from typer.testing import CliRunner

import silvan as sv
from silvan.cli import local_run
from silvan.cli.main import app
from silvan.errors import SilvanError
from silvan.federation.federation import Federation
from silvan.privacy.identity.shared_key import share_key
from silvan.privacy.noise.budget import Budget

SCHEMA = sv.Schema.of([sv.Feature("age", bounds=(0, 100))], sv.Label("label", ("no", "yes")))
TEXT = """
test = 0.25

[sites]
{sites}

[schema]
age = {{ bounds = [0, 100] }}
label = {{ classes = ["no", "yes"] }}

[learner]
epsilon = 1.0
n_rows = 240

[policy]
{policy}
"""


def run(small: bool) -> list[Outcome]:
    """Run studies that are refused at the end, and read what they spent."""
    return [
        _judged("epsilon of 1 spent by `silvan fit` before the evaluation is refused", "1", "epsilon = 1.0"),
        _another_site(),
        _sampling(),
    ]


def _tables() -> dict[str, pl.DataFrame]:
    rng, tables = np.random.default_rng(0), {}
    for site in ("north", "south", "west"):
        age = rng.uniform(0, 100, 80)
        tables[site] = pl.DataFrame({"age": age, "label": np.where(age + rng.normal(0, 20, 80) > 50, "yes", "no")})
    return tables


def _judged(target: str, before: str, policy: str) -> Outcome:
    with tempfile.TemporaryDirectory() as folder, _federations() as made:
        path = Path(folder)
        for site, table in _tables().items():
            table.write_csv(path / f"{site}.csv")
        sites = "\n".join(f'{site} = "{site}.csv"' for site in _tables())
        (path / "study.toml").write_text(TEXT.format(sites=sites, policy=policy))
        CliRunner().invoke(app, ["fit", str(path / "study.toml")])
        return Outcome(target, before, _spent(made[0]))


def _another_site() -> Outcome:
    """Site west has spent nearly everything; north and south must not be charged for a request that it refuses."""
    with tempfile.TemporaryDirectory() as folder:
        fed = sv.federate_rows(_tables(), schema=SCHEMA, policy=sv.Policy(epsilon=1.0), budgets=folder)
        Budget(1.0, Path(folder) / "west.sqlite", "west").charge("another study", 0.5, "another study")
        try:
            sv.HistogramForest(epsilon=1.0, n_rows=240).fit(fed)
        except SilvanError:
            return Outcome("epsilon of 1 spent by sites before another one's budget is used up", "1", _spent(fed, 0.5))
    return Outcome("epsilon of 1 spent by sites before another one's budget is used up", "", np.nan, note="answered")


def _sampling() -> Outcome:
    """Between machines sites agree on a sampling key first, and a site with a budget must not refuse that."""
    fed = sv.federate_rows(_tables(), schema=SCHEMA, policy=sv.Policy(epsilon=1.0), signed=True)
    refused = 0.0
    try:
        share_key(fed)
    except SilvanError:
        refused = 1.0
    return Outcome("private studies of 1 refused for their sampling key", "1", refused)


def _spent(fed: Federation, before: float = 0.0) -> float:
    spent = [site.outbox.budget.spent for site in fed.local_sites.values()]  # type: ignore[union-attr]
    return float(max(spent[:-1] if before else spent))


@contextmanager
def _federations() -> Iterator[list[Federation]]:
    """Keep the federations that studies make, with the records of their sites."""
    made: list[Federation] = []
    make = local_run.make_federation

    def kept(*given: Any, **named: Any) -> Federation:
        made.append(make(*given, **named))
        return made[-1]

    with mock.patch.object(local_run, "make_federation", kept):
        yield made

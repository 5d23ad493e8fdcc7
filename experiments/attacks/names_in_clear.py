"""What the coordinator of a vertical study learns about names of columns, categories and classes.

The tables contain unique names. All traffic of the coordinator is recorded, over forests with encoded and encrypted
labels, linear models, predictions, evaluations and errors, and searched for these names and ids.
"""

from collections.abc import Iterator
from contextlib import suppress
from unittest import mock

import numpy as np
import polars as pl
from experiments.attacks.outcome import Outcome

import silvan as sv
from silvan.algorithms.vertical import encrypted_labels
from silvan.federation.federation import Federation
from silvan.federation.message import Verb
from silvan.federation.transport import InProcess

ID = "person"
COLUMNS = ("zzq_income", "zzq_colour", "zzq_height", "zzq_ward")
CATEGORIES = ("zzq_red", "zzq_green", "zzq_north", "zzq_south")
CLASSES = ("zzq_ill", "zzq_well")


class Recording(InProcess):
    """Keeps all bytes that the coordinator sends and receives."""

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self.seen: list[bytes] = []

    def deliver(
        self, messages: dict[str, bytes], verb: Verb, timeout: float | None
    ) -> Iterator[tuple[str, bytes | Exception]]:
        """Deliver messages, and keep them and the replies."""
        self.seen += messages.values()
        for site, data in super().deliver(messages, verb, timeout):
            self.seen.append(data if isinstance(data, bytes) else str(data).encode())
            yield site, data


def federate(tables: dict[str, pl.DataFrame], transport: type[InProcess] = Recording, **settings: object) -> Federation:
    """Make a federation whose coordinator keeps all traffic."""
    return sv.federate_columns(tables, id=ID, n_jobs=1, transport=transport, **settings)  # type: ignore[arg-type]


def tables(n: int = 120) -> dict[str, pl.DataFrame]:
    """Two parties' tables, full of names that occur nowhere else."""
    rng = np.random.default_rng(0)
    ids = [f"zzq-{i:04d}" for i in rng.permutation(n)]
    income = rng.normal(0, 1, n)
    bank = {
        ID: ids,
        "zzq_income": income,
        "zzq_colour": rng.choice(CATEGORIES[:2], n),
        "label": np.where(income > 0, *CLASSES),
    }
    shop = {ID: ids, "zzq_height": rng.normal(0, 1, n), "zzq_ward": rng.choice(CATEGORIES[2:], n)}
    return {"bank": pl.DataFrame(bank), "shop": pl.DataFrame(shop).sample(fraction=1.0, shuffle=True, seed=1)}


def _studies(given: dict[str, pl.DataFrame], **settings: object) -> dict[str, list[bytes]]:
    """Return what the coordinator saw of each study."""
    seen = {}
    with mock.patch.object(encrypted_labels, "TESTING", True):
        for name, learner in {
            "encoded": sv.VerticalForest(n_estimators=3, max_depth=3),
            "encrypted": sv.VerticalForest(n_estimators=2, max_depth=2, labels="encrypted", key_bits=256),
            "linear": sv.VerticalLinear(max_iter=5, tol=1e-2),
        }.items():
            fed = federate(given, label="label", test=0.25, **settings)
            model = learner.fit(fed)
            model.predict(fed)
            model.evaluate(fed)
            seen[name] = fed.transport.seen  # type: ignore[attr-defined]
            again = federate(
                {
                    "bank": given["bank"].drop("label").with_columns(zzq_colour=pl.lit("zzq_green")),
                    "shop": given["shop"],
                }
            )
            model.predict(again)
            seen[name] += again.transport.seen  # type: ignore[attr-defined]
    seen["errors"] = _errors(given, model)
    return seen


def _errors(given: dict[str, pl.DataFrame], model: sv.VerticalLinear) -> list[bytes]:
    """Return what the coordinator saw of failures: a column is missing, is text, or belongs to two parties."""
    seen: list[bytes] = []
    shop = given["shop"]
    for table in (
        shop.drop("zzq_ward"),
        shop.with_columns(zzq_height=pl.lit("zzq_red")),
        shop.with_columns(zzq_income=pl.lit(1.0)),
        shop.drop(ID),
    ):
        made: list[Recording] = []

        class Kept(Recording):
            def __init__(self, *args: object, _made: list[Recording] = made, **settings: object) -> None:
                super().__init__(*args, **settings)
                _made.append(self)

        with suppress(sv.SilvanError):
            fed = federate({"bank": given["bank"], "shop": table}, label="label", transport=Kept)
            model.predict(fed)
        seen += [data for transport in made for data in transport.seen]
    return seen


def run(small: bool) -> list[Outcome]:
    """Search what the coordinator saw for names of columns, categories and classes, and for ids."""
    given = tables(120 if small else 400)
    kinds = {
        "names of columns": COLUMNS,
        "names of categories": CATEGORIES,
        "names of classes": CLASSES,
        "ids": tuple(given["bank"][ID]),
    }
    before = {"names of columns": "4 of 4", "names of categories": "4 of 4", "names of classes": "2 of 2", "ids": "0"}
    seen = _studies(given)
    outcomes = []
    for kind, names in kinds.items():
        found = {name for data in seen.values() for name in names if any(name.encode() in part for part in data)}
        outcomes.append(Outcome(f"{kind}, of {len(names)}", before[kind], len(found)))
    return outcomes

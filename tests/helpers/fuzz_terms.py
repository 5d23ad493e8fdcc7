"""Whole studies with a coordinator that changes a field of every request to another valid value.

Each study has a learner with random parameters on a small random table. After every honest request, the site checks it
again with each field changed: another number, name, column, cut point, split or model, of the right type and shape. A
site must refuse a changed field that the study's text fixes or that sites agreed on, and accept the honest request.
Changed derived fields are only counted: the site accepts them, and a replay of the study detects them.

    PYTHONPATH=tests python tests/helpers/fuzz_terms.py --n 500 --seed 0
"""

import argparse
import random
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import polars as pl

import silvan as sv
from silvan.algorithms.evaluation.candidates import LocalBoosting, LocalModel
from silvan.data.schema import Schema
from silvan.errors import InputError, SilvanError
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.handlers import HANDLERS
from silvan.federation.message import Blob, Bound, Envelope, Request, bounds_of
from silvan.federation.site import Site
from silvan.federation.store import digest
from silvan.federation.transport import InProcess

FOLLOWS = {
    "n_trees",
    "epsilon",
    "measure.mass",
    "measure.class_weight",
    "measure.offset",
    "measure.scale",
    "settings.n_estimators",
    "settings.class_weight",
    "settings.vote",
    "grids.values",
    "grids.fewer",
}
"""What follows from sums although the text fixes the rest of its field, or of which the text fixes the most."""


class Change:
    """Samples other values of the same type."""

    def __init__(self, rng: random.Random, site: Site) -> None:
        self.rng, self.site = rng, site
        self.path: list[str] = []

    def of(self, value: Any) -> Any:
        """Returns another value, or the same if no other of its type is valid."""
        rng = self.rng
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return max(value + rng.choice([-1, 1, 7, 1000]), 0)
        if isinstance(value, float):
            return value * rng.choice([0.5, 2.0]) + rng.choice([0.0, 0.25])
        if isinstance(value, str):
            return rng.choice([name for name in ("x0", "y", "entropy", "gini", "paper", "other") if name != value])
        if isinstance(value, bytes):
            return bytes([value[0] ^ 1, *value[1:]]) if value else b"\0"
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, Blob):
            return self._blob(value)
        if isinstance(value, list | tuple):
            return self._sequence(value)
        if isinstance(value, dict):
            return {key: self.of(one) for key, one in value.items()}
        if isinstance(value, msgspec.Struct):
            return self._struct(value)
        return self._struct(value) if is_dataclass(value) else value

    def _array(self, value: np.ndarray) -> np.ndarray:
        if not value.size:
            return value
        other = value.copy()
        place = self.rng.randrange(value.size)
        flat = other.reshape(-1)
        flat[place] = not flat[place] if value.dtype == np.bool_ else flat[place] + np.ones((), value.dtype)
        return other

    def _sequence(self, value: Any) -> Any:
        if not value:
            return [*value, "x0"] if isinstance(value, list) else (*value, 1)
        items, place = list(value), self.rng.randrange(len(value))
        local = [i for i, one in enumerate(items) if isinstance(one, LocalModel | LocalBoosting)]
        if local:
            items[local[0]] = self.of(items[local[0]])
            return type(value)(items)
        way = self.rng.choice(["change", "drop", "twice"])
        if way == "change":
            items[place] = self.of(items[place])
        elif way == "drop":
            del items[place]
            self.path.append("fewer")
        else:
            items.append(items[place])
        return type(value)(items)

    def _struct(self, value: Any) -> Any:
        names = [f.name for f in fields(value)] if is_dataclass(value) else list(value.__struct_fields__)
        given = [name for name in names if getattr(value, name) is not None]
        if not given:
            return value
        name = self.rng.choice(given)
        self.path.append(name)
        changed = {name: self.of(getattr(value, name))}
        try:
            return replace(value, **changed) if is_dataclass(value) else msgspec.structs.replace(value, **changed)
        except SilvanError:
            return value

    def _blob(self, value: Blob) -> Blob:
        """Names another blob that the site has; in place of a schema, one with other columns or another label."""
        try:
            schema = Schema.from_json(self.site.blob(value.hash))
        except (SilvanError, UnicodeDecodeError, KeyError):
            return Blob(digest(value.hash.encode()))
        if self.rng.random() < 0.5 and len(schema.features) > 1:
            other = Schema.of(list(schema.features[1:]), schema.label)
        else:
            other = Schema.of(list(schema.features), msgspec.structs.replace(schema.label, name="another"))
        data = other.to_json().encode()
        self.site.store.put(f"blob {digest(data)}", data)
        return Blob(digest(data))


class Liar(InProcess):
    """Makes a site check every request again with each of its fields changed."""

    rng: random.Random
    outcomes: Counter[str]
    let_in: list[tuple[str, str, str]]

    def __init__(self, sites: dict[str, Site], **more: Any) -> None:
        super().__init__(sites, **more)
        self.outcomes, self.let_in = Counter(), []

    def _answer(self, name: str, data: bytes, verb: Any) -> bytes:
        reply, site = super()._answer(name, data, verb), self.local_sites[name]
        envelope = wire.decode(data, Envelope)
        request = wire.decode(envelope.body, HANDLERS[envelope.kind][0])
        if site.outbox.terms.text is not None:
            self.check(site, request)
        return reply

    def check(self, site: Site, request: Request) -> None:
        """Tries all fields of a request."""
        self._check(site, request, request, lambda part: part)

    def _check(self, site: Site, request: Request, part: Any, whole: Callable[[Any], Request]) -> None:
        """Tries all fields of a request, or of a struct in it; ``whole`` returns the request with that struct."""
        for field, bound in bounds_of(type(part)).items():
            value = getattr(part, field)
            if isinstance(value, Request):
                self.check(site, value)
                continue
            replaced = partial(self._replaced, whole, part, field)
            if bound is Bound.EACH:
                self._check(site, request, value, replaced)
                continue
            if field in ("candidates", "model") and not isinstance(value, Blob):
                # a model that is sent follows from sums; what a site grows alone follows from the text
                models = value if isinstance(value, list | tuple) else [value]
                bound = bound if any(isinstance(one, LocalModel | LocalBoosting) for one in models) else Bound.DERIVED
            change = Change(self.rng, site)
            change.path.append(field)
            other = change.of(value)
            if wire.encode(other) == wire.encode(value):
                continue
            try:
                site.outbox.terms.check(site, replaced(other))
            except (SilvanError, KeyError):
                self.outcomes[f"{bound.value} refused"] += 1
                continue
            path = ".".join(change.path)
            known = Bound.DERIVED if path in FOLLOWS else bound
            self.outcomes[f"{known.value} let in"] += 1
            if known is not Bound.DERIVED:
                self.let_in.append((request.kind(), path, f"{value!r:.200} -> {other!r:.200}"))

    @staticmethod
    def _replaced(whole: Callable[[Any], Request], part: Any, field: str, other: Any) -> Request:
        return whole(msgspec.structs.replace(part, **{field: other}))


def lying(rng: random.Random) -> type[Liar]:
    """Returns the transport of a coordinator that takes its changes from a generator."""
    return type("Lying", (Liar,), {"rng": rng})


def federation_of(rng: random.Random, task: str = "classes") -> Federation:
    """Returns a small random federation, with a label that is a class, a number or a time."""
    n, columns = rng.choice([60, 90, 150]), rng.choice([2, 4, 6])
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    X = numbers.normal(size=(n, columns)).round(2)
    frame = {f"x{i}": X[:, i] for i in range(columns)}
    frame["word"] = numbers.choice(["red", "green", "blue"], n)
    signal = X[:, 0] + numbers.normal(size=n)
    frame |= {"y": (signal > 0).astype(int)} if task == "classes" else {"y": signal.round(3)}
    label: dict[str, Any] = {"label": "y"}
    if task == "times":
        frame |= {"y": np.exp(signal).round(2), "died": numbers.random(n) < 0.7}
        label = {"time": "y", "event": "died"}
    table, sites = pl.DataFrame(frame), rng.choice([2, 3, 4])
    tables = {f"site {i}": table[i::sites] for i in range(sites)}
    sums = rng.choice(["trusted", "trusted", "ring", "masked"]) if sites > 2 else "trusted"
    return sv.federate_rows(tables, **label, test=0.3, sums=sums, transport=lying(rng), random_state=rng.randrange(99))


def parties_of(rng: random.Random) -> Federation:
    """Returns a small random federation by columns."""
    n, numbers = rng.choice([60, 90]), np.random.default_rng(rng.randrange(1 << 30))
    X = numbers.normal(size=(n, 4)).round(2)
    named = {"id": np.arange(n), **{f"x{i}": X[:, i] for i in range(4)}}
    frame = pl.DataFrame(named | {"y": (X[:, 0] + numbers.normal(size=n) > 0).astype(int)})
    tables = {"one": frame.select("id", "x0", "x1"), "two": frame.select("id", "x2", "x3", "y")}
    return sv.federate_columns(tables, id="id", label="y", test=0.3, transport=lying(rng), random_state=None)


def learner_of(rng: random.Random) -> Any:
    """Returns a random learner for rows at several sites."""
    size = {"n_estimators": rng.choice([2, 3, 5])}
    trees = size | {
        "max_depth": rng.choice([2, 3, None]),
        "criterion": rng.choice(["gini", "entropy"]),
        "class_weight": rng.choice([None, None, "balanced"]),
        "random_state": rng.randrange(99),
    }
    threshold = {"threshold": rng.choice([None, "youden"])}
    choices = [
        lambda: sv.HistogramForest(**trees, **threshold, max_bins=rng.choice([8, 64])),
        lambda: sv.HistogramForest(**trees, bootstrap=False, max_features=rng.choice([None, 1, "sqrt"])),
        lambda: sv.MergedForest(**trees, **threshold, weights=rng.choice([None, "trees", "votes"])),
        lambda: sv.MergedForest(**trees, refit_leaves=True),
        lambda: sv.BOFRF(**trees, personal=rng.random() < 0.5, tau=rng.choice([0.0, 0.2])),
        lambda: sv.AutoForest(**trees),
        lambda: sv.LocalForest(**trees),
        lambda: sv.BOPPID(**size),
        lambda: sv.AdaBoostPL(**size),
        lambda: sv.MultBoost(**size),
        lambda: sv.HistogramForest(**trees, **threshold, calibrate=True, intervals=rng.random() < 0.5),
        lambda: sv.MergedForest(**trees, calibrate=True),
    ]
    return rng.choice(choices)()


def learner_of_numbers(rng: random.Random) -> Any:
    """Returns a random learner of a number, with intervals."""
    trees = {"n_estimators": rng.choice([2, 5]), "max_depth": rng.choice([2, 3]), "random_state": rng.randrange(99)}
    kind = rng.choice([sv.HistogramForest, sv.MergedForest, sv.BOFRF])
    return kind(**trees, intervals=rng.random() < 0.7)


def study_of(rng: random.Random) -> tuple[Federation, Any]:
    """Returns a federation, and a learner for it."""
    kind = rng.choice(["classes"] * 5 + ["numbers", "times", "columns"])
    if kind == "columns":
        columns = rng.choice([lambda: sv.VerticalForest(2, max_depth=2), lambda: sv.VerticalLinear(max_iter=2)])
        return parties_of(rng), columns()
    if kind == "times":
        return federation_of(rng, kind), sv.HistogramForest(rng.choice([2, 4]), max_depth=rng.choice([2, 3]))
    return federation_of(rng, kind), learner_of(rng) if kind == "classes" else learner_of_numbers(rng)


def study(seed: int) -> tuple[Counter[str], list[tuple[str, str, str]]]:
    """Runs one study; returns outcomes of changed fields, and those that should have been refused."""
    rng = random.Random(seed)  # noqa: S311
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        federation, learner = study_of(rng)
        with suppress(InputError):  # too few rows for a threshold, or too few test rows
            if federation.columns is None and rng.random() < 0.3:
                sv.describe(federation)
            learner.fit(federation)
            by_rows = federation.columns is None and federation.schema.label.event is None
            learner.evaluate(federation, **({"by": ["word"]} if by_rows and rng.random() < 0.3 else {}))
            if by_rows and rng.random() < 0.3:
                learner.permutation_importance(federation)
                learner.partial_dependence(federation, "x0")
    return federation.transport.outcomes, federation.transport.let_in


def main() -> None:
    """Runs studies, and reports the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    total: Counter[str] = Counter()
    for seed in range(given.seed, given.seed + given.n):
        outcomes, let_in = study(seed)
        total += outcomes
        for line in let_in:
            print(seed, *line, flush=True)
    print(f"{given.n} studies:", ", ".join(f"{n:,} {what}" for what, n in sorted(total.items())))


if __name__ == "__main__":
    main()

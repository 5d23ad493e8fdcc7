"""AUC against epsilon: the three private forests, where the noise is added, and a forest without noise.

    SILVAN_DATA=folder python -m experiments.privacy.accuracy --splits 10
    SILVAN_DATA=folder python -m experiments.privacy.accuracy --export FOLDER   # tables for peer.py

Every result belongs to one split into training and test rows, and is a line of ``forests.csv``; existing lines are
not run again. The parameters of noise on levels matter, so they are tuned as the peer's are: on separate splits, for
every table and epsilon. The form of tables has no such parameters.
"""

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from experiments.privacy.data import SETS, load, split
from experiments.privacy.lines import EPSILONS, TUNED_ON, Lines
from sklearn.metrics import roc_auc_score

import silvan as sv
from silvan.data.encode import encode_features, encode_label
from silvan.data.table import read_table

RESULTS = Path(__file__).parent / "forests.csv"

PLACES = (("total", 4, "masked"), ("site", 4, "trusted"), ("site", 10, "trusted"))
"""Where noise is added, over how many sites, summed how."""

GRIDS: dict[str, tuple[dict[str, Any], ...]] = {
    "levels": (
        {"n_estimators": 1, "max_depth": 2, "max_features": None, "max_bins": 8},
        {"n_estimators": 1, "max_depth": 4, "max_features": "sqrt", "max_bins": 8},
        {"n_estimators": 5, "max_depth": 2, "max_features": "sqrt", "max_bins": 8},
        {"n_estimators": 10, "max_depth": 3, "max_features": "sqrt", "max_bins": 16},
        {"n_estimators": 20, "max_depth": 1, "max_features": 1, "max_bins": 8},
        {"n_estimators": 50, "max_depth": 2, "max_features": 1, "max_bins": 8},
    ),
    "input": ({"n_estimators": 30, "max_depth": 6, "max_bins": 16},),
}
FORMS = ("tables", *GRIDS)
EXACT = {"n_estimators": 100, "max_depth": 10}


class Study:
    """A table, split into training rows, at some sites, and test rows."""

    def __init__(self, name: str, lines: Lines) -> None:
        self.name, self.lines = name, lines
        self.frame, self.schema = load(name)

    def federate(self, seed: int, sites: int, sums: str) -> Any:
        """Distribute the rows of a split to sites."""
        learnt, _ = split(len(self.frame), seed)
        tables = {f"site {i}": self.frame[learnt[i::sites]] for i in range(sites)}
        return sv.federate_rows(tables, schema=self.schema, sums=sums, random_state=seed, n_jobs=1)

    def auc(self, seed: int, fed: Any, **settings: Any) -> float:
        """Fit a forest and evaluate it."""
        learnt, judged = split(len(self.frame), seed)
        if "epsilon" in settings:
            settings["n_rows"] = len(learnt)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "rows times epsilon")
            model = sv.HistogramForest(random_state=seed, **settings).fit(fed)
        rows = self.frame[judged]
        scores = model.predict_proba(rows.drop("label"))[:, 1]
        return float(roc_auc_score(rows["label"].to_numpy() == self.schema.label.classes[1], scores))

    def tables(self, seed: int) -> None:
        """Run the default form, with noise in all places."""
        for epsilon in EPSILONS:
            for noise, sites, sums in PLACES:
                with self.lines.new(self.name, f"tables, {noise}, {sites} sites", epsilon, seed) as line:
                    if line is not None:
                        fed = self.federate(seed, sites, sums)
                        line.auc = self.auc(seed, fed, epsilon=epsilon, noise=noise, tolerate=0)

    def published(self, form: str, seed: int) -> None:
        """Run one of the published forms with the parameters that did best on other splits."""
        for epsilon in EPSILONS:
            best = GRIDS[form][0]
            if len(GRIDS[form]) > 1:
                means = [self.lines.mean(self.name, f"{form} {i}", epsilon, TUNED_ON) for i in range(len(GRIDS[form]))]
                best = GRIDS[form][int(np.argmax(means))]
            with self.lines.new(self.name, form, epsilon, seed) as line:
                if line is not None:
                    line.chosen = " ".join(f"{name}={value}" for name, value in best.items())
                    line.auc = self._published(form, epsilon, seed, self.federate(seed, 4, "masked"), best)

    def tune(self, form: str) -> None:
        """Try all parameters of a published form on splits that serve no other evaluation."""
        if len(GRIDS[form]) == 1:
            return
        for epsilon in EPSILONS:
            for seed in TUNED_ON:
                fed = self.federate(seed, 4, "trusted")  # rows are randomised once per federation
                for i, parameters in enumerate(GRIDS[form]):
                    with self.lines.new(self.name, f"{form} {i}", epsilon, seed) as line:
                        if line is not None:
                            line.auc = self._published(form, epsilon, seed, fed, parameters)

    def _published(self, form: str, epsilon: float, seed: int, fed: Any, parameters: dict[str, Any]) -> float:
        settings = {"noise": "total", "tolerate": 0, "bootstrap": False} if form == "levels" else {}
        return self.auc(seed, fed, epsilon=epsilon, private=form, **settings, **parameters)

    def exact(self, seed: int) -> None:
        """Run a forest without noise."""
        with self.lines.new(self.name, "without noise", 0.0, seed) as line:
            if line is not None:
                line.auc = self.auc(seed, self.federate(seed, 4, "trusted"), **EXACT)

    def export(self, folder: Path) -> None:
        """Write the peer's training data: numbers, categories as codes and as columns of zeros and ones."""
        table = read_table(self.frame)
        X, y = encode_features(table, self.schema), encode_label(table, self.schema)
        codes, bounds, ones = [], [], []
        for f, feature in enumerate(self.schema.features):
            # missing values: a number is at its lower bound, a category among the others
            if feature.categorical:
                column = np.where(np.isnan(X[:, f]), feature.n_codes - 1, X[:, f])
                codes.append(column)
                bounds.append((0.0, feature.n_codes - 1.0))
                some = range(feature.n_codes) if feature.n_codes > 2 else (1,)
                ones.append(np.stack([column == code for code in some], axis=1).astype(np.float32))
            else:
                low, high = feature.bounds or (0.0, 1.0)
                codes.append(np.where(np.isnan(X[:, f]), low, X[:, f]))
                bounds.append((low, high))
                ones.append(codes[-1][:, None])
        widths = [part.shape[1] for part in ones]
        wide = [bounds[f] if width == 1 else (0.0, 1.0) for f, width in enumerate(widths) for _ in range(width)]
        seeds = [*TUNED_ON, *range(20)]
        orders = {}
        for s in seeds:
            orders[f"learnt {s}"], orders[f"judged {s}"] = split(len(y), s)
        np.savez(
            folder / f"{self.name}.npz",
            codes=np.stack(codes, axis=1).astype(np.float32),
            code_bounds=np.array(bounds),
            ones=np.concatenate(ones, axis=1).astype(np.float32),
            one_bounds=np.array(wide),
            y=y,
            **orders,
        )


def main() -> None:
    """Run what is missing, split after split."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first split to run")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--export", type=Path)
    given = parser.parse_args()
    lines = Lines(RESULTS)
    studies = [Study(name, lines) for name in given.sets]
    if given.export:
        given.export.mkdir(parents=True, exist_ok=True)
        for study in studies:
            study.export(given.export)
        return
    seeds = range(given.first, given.splits)
    for seed in seeds if "tables" in given.forms else ():
        for study in studies:
            study.tables(seed)
            study.exact(seed)
    for form in set(GRIDS) & set(given.forms):
        for study in studies:
            study.tune(form)
        for seed in seeds:
            for study in studies:
                study.published(form, seed)


if __name__ == "__main__":
    main()

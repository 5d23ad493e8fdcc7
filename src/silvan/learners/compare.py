"""Compare learners on many splits of a federation, so that every row is a test row."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
from sklearn.base import clone

from silvan import metrics
from silvan.algorithms.evaluation.candidates import MOST, Named
from silvan.algorithms.evaluation.evaluate import evaluate
from silvan.algorithms.evaluation.evaluation import CERTAINTY, FEDERATED, LOCAL, Row, certainty
from silvan.algorithms.evaluation.repeats import best_candidate, folds_of, over_sites, over_splits
from silvan.algorithms.keyed_rows import RowSamples
from silvan.data.holdout import Fold, LeftOut, Split
from silvan.errors import FederationError, InputError
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.members import OVERALL
from silvan.federation.store import digest
from silvan.learners.base import Learner
from silvan.learners.evaluation_frame import metrics_frame
from silvan.learners.registry import spec_of
from silvan.privacy.close_study import check_sums, close_study
from silvan.util.readable import digits_of, format_interval, html_table, signed

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Comparison:
    """Metrics of several learners at each site, over many splits; prints as a table of 80 columns.

    ``frame`` has a line for each site and model, and for the mean of all sites (``all``): mean metrics over splits,
    the ``gain`` over the local model with its 95% CI (corrected for splits that share rows), its ``certainty`` in a
    word, and ``best``, the model with the best mean metric. ``splits`` has the metrics of every split. With
    ``split="sites"`` each site is evaluated once, by models of the other sites; there is no local model, so no gain.

    Parameters
    ----------
    frame
        A polars data frame with a line for each site and model.
    splits
        A data frame with a line for each split, site and model.
    repeats
        How often every row was evaluated.
    folds
        The number of folds, or of sites left out in turn.
    split
        Whether "rows" or "sites" were split.

    Examples
    --------
    >>> import silvan as sv
    >>> fed = sv.federate_rows(sv.datasets.heart_disease(), site="hospital", label="disease", test=0.5)
    >>> found = sv.compare(fed, {"merged": sv.MergedForest(n_estimators=12, max_depth=3)}, repeats=1)
    >>> found.metric, found.folds, len(found.splits)
    ('auc', 2, 16)
    """

    frame: "pl.DataFrame"
    splits: "pl.DataFrame"
    repeats: int
    folds: int
    split: Literal["rows", "sites"] = "rows"

    @property
    def metric(self) -> str:
        """The metric that models are compared by."""
        return str(self.frame.columns[3])

    def __str__(self) -> str:
        return "\n".join([*self._lines(), "", self._caption()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the table for notebooks."""
        head, *rows = self._cells()
        return html_table(head, rows, note=" ".join(self._caption().split()))

    def _cells(self) -> list[tuple[str, ...]]:
        title = metrics.BY_KEY[self.metric].title
        gains = self.split == "rows"
        rows: list[tuple[str, ...]] = [("site", "rows", "model", title, "gain", "95% CI", "")[: 7 if gains else 4]]
        values = [abs(value) for value in self.frame[self.metric].to_list() if not math.isnan(value)]
        digits = digits_of(max(values, default=0.0))
        before = ""
        for row in self.frame.iter_rows(named=True):
            value = row[self.metric]
            site = "mean of all" if row["site"] == OVERALL else _short(row["site"], 12)
            cells = (
                "" if row["site"] == before else site,
                "" if row["site"] == before else f"{row['rows']:,}",
                _short(row["model"], 15) + (" *" if row["best"] else ""),
                "none" if math.isnan(value) else f"{value:.{digits}f}",
            )
            rows.append((*cells, *self._gain_cells(row, digits)) if gains else cells)
            before = row["site"]
        return rows

    def _gain_cells(self, row: dict[str, Any], digits: int) -> tuple[str, str, str]:
        gain = row["gain"]
        return (
            "" if gain is None else signed(gain, digits),
            format_interval(row["gain_low"], row["gain_high"], digits),
            "" if row["model"] == LOCAL else _WORDS[row["certainty"]],
        )

    def _lines(self) -> list[str]:
        rows = self._cells()
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        padded = [[f"{cell:{'>' if i in _RIGHT else '<'}{widths[i]}}" for i, cell in enumerate(row)] for row in rows]
        lines = ["  ".join(cells).rstrip() for cells in padded]
        return [lines[0], "─" * max(map(len, lines)), *lines[1:]]

    def _caption(self) -> str:
        times = "once" if self.repeats == 1 else f"{self.repeats} times"
        better = "" if metrics.BY_KEY[self.metric].higher else " Less is better."
        named = f"\nPositive class: {self.frame['positive'][0]}." if "positive" in self.frame.columns else ""
        if self.split == "sites":
            return (
                "Each site is left out in turn: the model is trained at the other sites and\n"
                f"evaluated on all rows of the one left out. The mean gives sites equal weight.{better}{named}"
            )
        return (
            f"Every row is evaluated {times}, by models of the other folds ({self.folds} folds).\n"
            "Gains are against the site alone; intervals are corrected for splits that\n"
            f"share rows. * is best at its site, by the mean metric.{better}{named}"
        )


_WORDS = {**CERTAINTY, "gained": "better", "lost": "worse", "few": "unclear", "level": "none seen"}
"""Certainty in short words."""


_RIGHT = (1, 3, 4, 5)  # columns of numbers


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}…{text[-2:]}"  # names may differ at their ends


def compare(
    federation: Federation,
    learners: Sequence[Learner] | Mapping[str, Learner],
    repeats: int = 10,
    *,
    split: Literal["rows", "sites"] = "rows",
) -> Comparison:
    """Compare learners over repeated splits of the rows, or at sites that took no part in training.

    With ``split="rows"`` the rows of every site are shuffled into folds, whose number follows from the federation's
    ``test`` (0.1 or none: ten), and models of the other folds are evaluated on each. With ``split="sites"`` each site
    evaluates models trained at all others, which shows what a new site can expect. The same call returns the same
    metrics.

    Parameters
    ----------
    federation
        A federation in this process, made by ``federate_rows``. Its test rows are part of the splits.
    learners
        Learners that are not fitted, as a list or by name; at most seven. The first determines the local model.
    repeats
        How often every row is evaluated, with rows shuffled anew each time. Sites are left out once.
    split
        "rows", or "sites" to leave out one site at a time, which needs ``sums="trusted"`` and two sites or more.

    Returns
    -------
    Comparison
        Prints as a table; ``frame`` and ``splits`` are polars data frames.

    Examples
    --------
    >>> import silvan as sv
    >>> fed = sv.federate_rows(sv.datasets.heart_disease(), site="hospital", label="disease", test=0.5)
    >>> found = sv.compare(fed, [sv.MergedForest(n_estimators=12, max_depth=3)], repeats=1)
    >>> found.frame.filter(site="VA")["model"].to_list()
    ['local', 'MergedForest']
    """
    if split not in ("rows", "sites"):
        raise InputError.wrong("split", "'rows' or 'sites'", split)
    named = _named(learners)
    if split == "sites":
        left_out = without_each(federation.sites)
        for name, learner in named.items():
            if not spec_of(type(learner)).for_new_sites:
                raise InputError.about("split", f"is for learners with one model for all sites, and {name} has none")
        by_site = [found.rows for found in evaluate_splits(federation, named, left_out)]
        return Comparison(_with_words(over_sites(by_site)), _by_split(by_site, left_out), 1, len(left_out), "sites")
    folds = folds_of(max((site.test for site in federation.local_sites.values()), default=0.0), repeats)
    splits = [split.rows for split in evaluate_splits(federation, named, folds)]
    rows = mark_best(over_splits(splits, folds), [LOCAL, *named])
    return Comparison(_with_words(rows), _by_split(splits, folds), repeats, folds[0].of)


class EvaluatedSplit(msgspec.Struct, frozen=True):
    """The result of one split: metrics, counts of rows by score for curves, and traffic in bytes.

    The journal keeps it, so that an interrupted comparison continues with the next split.
    """

    rows: list[Row]
    scores: np.ndarray | None
    traffic: list[tuple[str, str, str, int]]


def evaluate_splits(
    federation: Federation, learners: Mapping[str, Learner], splits: Sequence[Split]
) -> Iterator[EvaluatedSplit]:
    """Fit learners on every split and evaluate them on its test rows; yield the result of each.

    At sites that take part, the local model of the first learner is evaluated as well.
    """
    compared = repr([(name, type(one).__name__, sorted(one.get_params().items())) for name, one in learners.items()])
    known = federation.journal.remembered(_COORDINATOR)
    for split in splits:
        key = f"split {digest(split.study(compared).encode())}"
        if key in known:
            found = wire.decode(known[key], EvaluatedSplit)
        else:
            parts = [federation.split(part) for part in split.parts]
            found = _evaluate_split(parts[0], parts[-1], learners)
            federation.journal.remember(_COORDINATOR, {key: wire.encode(found)})
            for part in parts:
                part.journal.remove()
        federation.traffic.update({(site, way, kind): n for site, way, kind, n in found.traffic})
        yield found


_COORDINATOR = ""  # splits are in the coordinator's memory in a journal


def _evaluate_split(trained: Federation, tested: Federation, learners: Mapping[str, Learner]) -> EvaluatedSplit:
    """Fit learners at the sites of one federation and evaluate them at those of another, usually the same one."""
    listed: list[Named] = []
    draws: dict[str, RowSamples] = {}
    for name, learner in learners.items():
        fitted: Learner = clone(learner).fit(trained)
        candidates = dict(fitted.site_candidates())
        if not listed and tested is trained:
            listed.append((LOCAL, candidates[LOCAL]))
        if tested is trained:
            listed.append((name, candidates[FEDERATED]))
        elif fitted.forest_ is not None:  # learners without a global forest were refused
            listed.append((name, fitted.forest_))
        draws |= fitted.draws(trained, [])
        feature_key = fitted.feature_key()
    with tested.working_on("evaluating"):
        found = evaluate(tested, trained.schema, listed, feature_key, draws)
    parts = list(dict.fromkeys((trained, tested)))
    for part in parts:
        wrong = check_sums(part, close_study(part)).wrong
        if wrong:
            raise FederationError(f"a split cannot be verified: {wrong[0]}")
    return EvaluatedSplit(found.rows, found.curves, [(*way, n) for part in parts for way, n in part.traffic.items()])


def without_each(sites: Sequence[str]) -> list[LeftOut]:
    """Return the splits that leave out each site in turn."""
    if len(sites) < 2:
        raise InputError.about("split", "by sites needs at least two sites: one is left out, and the others train")
    return [LeftOut(site) for site in sites]


def mark_best(rows: list[Row], candidates: Sequence[str]) -> list[Row]:
    """Mark the candidate with the best mean metric over splits at every site, which is not yet advice to use it."""
    best = {
        site: best_candidate([row for row in rows if row.site == site], candidates)
        for site in dict.fromkeys(row.site for row in rows)
    }
    return [replace(row, use=row.site != OVERALL and row.model == best[row.site]) for row in rows]


def _named(learners: Any) -> dict[str, Learner]:
    """Return learners by name: their class, numbered if it occurs more than once."""
    if isinstance(learners, Mapping):
        named = {str(name): learner for name, learner in learners.items()}
    elif isinstance(learners, Sequence) and not isinstance(learners, str):
        named = {}
        for learner in learners:
            name = kind = type(learner).__name__
            number = 1
            while name in named:
                number += 1
                name = f"{kind} {number}"
            named[name] = learner
    else:
        raise InputError.about("learners", "must be a list of learners, or a dict of them by name")
    for name, learner in named.items():
        if not isinstance(learner, Learner) or isinstance(learner, type):
            raise InputError.wrong("learners", "learners for rows at sites, such as HistogramForest()", learner)
        if learner.is_private:
            raise InputError("compare is for learners without epsilon: every split would cost the sites' budgets anew")
        if name in (LOCAL, FEDERATED, OVERALL):
            raise InputError(f"a learner cannot be called {name!r} here; give it another name")
    if not 1 <= len(named) < MOST:
        raise InputError.wrong("learners", f"between 1 and {MOST - 1}", len(named))
    return named


def _with_words(rows: list[Row]) -> "pl.DataFrame":
    import polars as pl  # slow to import

    words = [None if row.model == LOCAL else certainty(row.gain, row.low, row.high) for row in rows]
    return metrics_frame(rows).rename({"use": "best"}).with_columns(pl.Series("certainty", words, pl.String))


def _by_split(found: list[list[Row]], splits: Sequence[Split]) -> "pl.DataFrame":
    import polars as pl  # slow to import

    places = [(split.shuffle, split.number) if isinstance(split, Fold) else (0, i) for i, split in enumerate(splits)]
    frames = [
        metrics_frame([row for row in rows if row.site != OVERALL])
        .drop("gain", "gain_low", "gain_high", "use")
        .with_columns(repeat=pl.lit(repeat), fold=pl.lit(fold))
        for rows, (repeat, fold) in zip(found, places, strict=True)
    ]
    return pl.concat(frames).select("repeat", "fold", pl.exclude("repeat", "fold"))

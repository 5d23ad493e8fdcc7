"""Sections of a study file that are not keys of other packages: evaluation, and predictions of new rows."""

from typing import Annotated

import msgspec
from msgspec import Meta

from silvan.errors import InputError
from silvan.privacy.noise.laplace import MAX_EPSILON
from silvan.util.declared import NOT_EMPTY

Text = Annotated[str, Meta(pattern=NOT_EMPTY)]


def _each_once(names: tuple[str, ...]) -> None:
    if len(set(names)) < len(names):
        raise InputError("a name occurs twice")


Columns = Annotated[tuple[Text, ...], Meta(extra={"expected": "a list of columns, each once", "check": _each_once})]


class EvaluationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is evaluated.

    Parameters
    ----------
    epsilon
        with `epsilon` in `[learner]`: the model is evaluated with noise, which costs this much of every site's privacy
        budget, on top of training. There are then metrics over all sites only, with confidence intervals, see
        [privacy](privacy.md#evaluating-a-private-model). Without it metrics are exact, and sites with a budget refuse
        them
    importance
        permutation importance of all columns: errors on test rows with each column shuffled, summed over sites (message
        `ShuffleColumns`), see [metrics](figures.md#columns-that-matter). Needs `test`, and a forest for all sites
    by
        categorical columns for metrics by subgroup, as `by = ["sex"]`, see
        [metrics](figures.md#subgroups). Not with `repeats`
    dependence
        columns for partial dependence: mean predictions at some values (message `SetColumns`), see
        [metrics](figures.md#how-predictions-depend-on-a-column)
    """

    epsilon: Annotated[float, Meta(gt=0, le=MAX_EPSILON)] | None = None
    importance: bool = False
    by: Columns = ()
    dependence: Columns = ()


class Predict(msgspec.Struct, frozen=True, kw_only=True):
    """A study that only predicts with the model of another study, for the n-th time."""

    study: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]  # digest of the text of the model's study
    model: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    number: Annotated[int, Meta(ge=0)]

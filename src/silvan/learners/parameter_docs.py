"""Docstrings of learners: entries that several classes share, written out in each.

A line ``%(forest_parameters)s`` in a class's docstring is replaced by the text of that name below, so that ``help``
shows every parameter at every learner. A name in braces in a text becomes the default that the class has for it.
"""

import inspect
import re
from textwrap import indent
from typing import TypeVar

T = TypeVar("T")

_MARKER = re.compile(r"^( *)%\((\w+)\)s$", re.MULTILINE)

_FOREST_PARAMETERS = """\
criterion
    "gini", "entropy" or "log_loss" (the same as "entropy") for classes, "squared_error" for a number. None: gini or
    squared error, as the label is.
max_depth
    Levels of splits; None grows until leaves are pure or too small to split. By default {max_depth}.
min_samples_split, min_samples_leaf
    Fewest rows in a node that is split, and in a leaf. Rows are counted, not weights.
max_features
    Features tried at a node: "sqrt", "log2", a whole number, a share, or None for all.
max_bins
    Most bins of a numeric column in a tree, up to 255. Trees differ in their cut points: with 64 bins each they have
    about 250 in all.
bootstrap
    Grow each tree on its own draw of rows, without replacement: each row with probability 1 - 1/e. The federation's
    ``random_state`` decides which.
class_weight
    None, "balanced", or a dict of weights by class; a class that it does not name has weight 1. "balanced" gives every
    class the same weight in sum, by the rows of all sites: where sites grow trees of their own, these are counted in a
    sum first, one round more.
random_state
    A whole number that decides which features are drawn: the same number gives the same forest on the same federation.
feature_draw
    "node" draws features at every node, "tree" once for a tree.
threshold
    Of two classes: from which score on the second is predicted. A number; or "youden" or "f1", where sensitivity plus
    specificity, or F1, is best on training rows that are each scored by trees which did not learn from it: one round
    more (docs/figures.md); ``threshold_`` is then what was chosen. None: the most probable class.
max_samples
    A share f of the rows, for smaller trees: each row is then in a tree with probability 1 - exp(-f), as many as a
    bootstrap sample of that share would have. None: 1. A number of rows, which scikit-learn takes too, is not known to
    sites, who draw each for itself.
monotonic_cst
    Which way predictions may go with a column: 1 up, -1 down, 0 either; a number for each column, or a dict by name.
    For a number or two classes, and then of the probability of the second; not for columns of categories.
"""

_VOTE_PARAMETER = """\
vote
    "soft" predicts the class of the highest mean probability, "hard" the one that most trees vote for, the first of
    equal ones; ``predict_proba`` is the mean in both cases. "hard" is for classes."""

_BOOSTING_PARAMETERS = """\
n_estimators
    Most rounds of boosting; a round adds one stump of every site.
criterion
    What makes a stump good: that its sides are pure, "gini" or "entropy" of weighted rows, each voting for its larger
    class (as scikit-learn does); or "error", the least weighted error of sides that vote differently. By default
    {criterion}.
min_samples_leaf
    Fewest rows on a side of a stump.
max_bins
    Most bins of a numeric column, up to 255.
random_state
    Not used, since nothing is drawn: there so that all learners can be made with the same parameters."""

_FIT_ATTRIBUTES = """\
schema_
    What the columns mean, as the sites agreed on it: a ``Schema``.
rounds_
    How many rounds of messages ``fit`` took.
bytes_
    The bytes of these messages, by site: how many it "sent" and "received"."""

_TEXTS = {
    "forest_parameters": _FOREST_PARAMETERS,
    "vote_parameter": _VOTE_PARAMETER,
    "boosting_parameters": _BOOSTING_PARAMETERS,
    "fit_attributes": _FIT_ATTRIBUTES,
}


def write_shared_entries(cls: type[T]) -> type[T]:
    """Replace the markers in a class's docstring by the texts that they name; a class decorator."""
    defaults = {name: _shown(entry.default) for name, entry in inspect.signature(cls).parameters.items()}

    def text_of(marker: re.Match[str]) -> str:
        spaces, name = marker.groups()
        return indent(_TEXTS[name].format(**defaults), spaces)

    cls.__doc__ = _MARKER.sub(text_of, cls.__doc__ or "")
    return cls


def _shown(default: object) -> str:
    """Return a default as docstrings write it."""
    return f'"{default}"' if isinstance(default, str) else repr(default)

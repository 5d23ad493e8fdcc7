"""Parameters that forests of several kinds have in common."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from silvan.data.schema import MAX_BINS
from silvan.forest.arrays import DEPTH_CAP
from silvan.learners.parameters import Parameters, Positive, declared


@declared
class ForestParameters(Parameters):
    """What all forests have.

    Parameters
    ----------
    n_estimators
        Number of trees.
    criterion
        "gini", "entropy" or "log_loss" (the same as "entropy") for classes, "squared_error" for a number. None: gini or
        squared error, as the label is.
    max_depth
        Levels of splits; None grows until leaves are pure or too small to split.
    min_samples_split
        Fewest rows in a node that is split. Rows are counted, not weights.
    min_samples_leaf
        Fewest rows in a leaf.
    max_features
        Features tried at a node: "sqrt", "log2", a whole number, a share, or None for all. If a noise-free rule
        determines the label, half or all features work better, see docs/faq.md.
    max_bins
        Maximum number of bins per numeric column in one tree, up to
        255. Trees differ in their cut points: with 64 bins each they
        have about 250 in all.
    bootstrap
        Grow each tree on its own sample of rows, without replacement: each row with probability 1 - 1/e. The
        ``random_state`` of the federation, or of the study, decides which.
    class_weight
        None, "balanced", or weights by class, as ``{"no": 1.0, "yes": 2.0}``; a class that is not named has weight 1.
        "balanced" gives every class the same weight in sum, by the rows of all sites: where sites grow trees of their
        own, these are counted in a sum first, one round more.
    random_state
        A whole number that decides which features are sampled: the same number gives the same forest on the same
        federation. In a study file, the study's unless given.
    feature_sampling
        "node" samples features at every node, "tree" once for a tree.
    threshold
        Decision threshold, for two classes: the score at which the positive one is predicted. A number; or "youden" or
        "f1", where sensitivity plus specificity, or F1, is best on training rows that are each scored by trees which
        did not learn from it: one round more, see docs/figures.md#rare-classes; ``threshold_`` is then what was chosen.
        None: the most probable class.
    max_samples
        A share f of the rows, for smaller trees: each row is then in a tree with probability 1 - exp(-f), as many as a
        bootstrap sample of that share would have. None: 1. A number of rows, which scikit-learn takes too, is not known
        to sites, each of which samples by itself.
    monotonic_cst
        Which way predictions may go with a column: 1 up, -1 down, 0 either; a number for each column, or numbers by
        name, as ``{"age": 1, "dose": -1}``. For a number or two classes, and then of the probability of the second; not
        for columns of categories.
    """

    n_estimators: Positive = 100
    criterion: Literal["gini", "entropy", "log_loss", "squared_error"] | None = None
    max_depth: Annotated[int, Meta(ge=1, le=DEPTH_CAP)] | None = None
    min_samples_split: Annotated[int, Meta(ge=2)] = 2
    min_samples_leaf: Positive = 2
    max_features: Literal["sqrt", "log2"] | Positive | Annotated[float, Meta(gt=0, le=1)] | None = "sqrt"
    max_bins: Annotated[int, Meta(ge=2, le=MAX_BINS)] = 64
    bootstrap: bool = True
    class_weight: Literal["balanced"] | dict[Any, float] | list[float] | None = None
    random_state: Annotated[int, Meta(ge=0)] = 0
    feature_sampling: Literal["node", "tree"] = "node"
    threshold: Literal["youden", "f1"] | Annotated[float, Meta(gt=0, lt=1)] | None = None
    max_samples: Annotated[float, Meta(gt=0, le=1)] | None = None
    monotonic_cst: dict[str, Literal[-1, 0, 1]] | list[Literal[-1, 0, 1]] | None = None


@declared
class VotingForestParameters(ForestParameters):
    """What forests have whose trees may vote.

    Parameters
    ----------
    vote
        "soft" predicts the class of the highest mean probability, "hard" the one that most trees vote for, the first of
        equal ones; ``predict_proba`` is the mean in both cases. "hard" is for classes.
    """

    vote: Literal["soft", "hard"] = "soft"


@declared
class ReliabilityParameters(Parameters):
    """Mixin of forests over rows that quantify the reliability of their scores.

    Parameters
    ----------
    calibrate
        Calibrate probabilities by training rows that are each scored by trees which did not learn from them: one curve
        for all sites, from a sum, which each site adjusts to its own rows and keeps. Rows keep their order by score,
        see docs/calibration.md. None: only AutoForest does, unless it has ``class_weight`` or no ``bootstrap``.
    intervals
        Sum the errors of such rows for ``predict_interval``, ``predict_quantiles`` and ``predict_set``. See
        docs/calibration.md.
    """

    calibrate: bool | None = None
    intervals: bool = False

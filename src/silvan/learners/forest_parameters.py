"""Parameters that forests of several kinds have in common."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from silvan.data.schema import MAX_BINS
from silvan.forest.arrays import DEPTH_CAP
from silvan.forest.curves import MOST_TIMES
from silvan.learners.parameters import Parameters, Positive, declared


@declared
class ForestParameters(Parameters):
    """Parameters of all forests.

    Parameters
    ----------
    n_estimators
        Number of trees.
    criterion
        "gini", "entropy" or "log_loss" (the same as "entropy") for classes, "squared_error" for a number, "log_rank"
        for times. None: gini, squared error or log-rank, depending on the label.
    max_depth
        Levels of splits; None grows until leaves are pure or too small to split.
    min_samples_split
        Minimum number of rows in a node that is split. Rows are counted, not weights.
    min_samples_leaf
        Minimum number of rows in a leaf.
    max_features
        Features tried at a node: "sqrt", "log2", a whole number, a share, or None for all. If the label follows a rule
        without noise, half or all features work better, see docs/faq.md.
    max_bins
        Maximum number of bins per numeric column in one tree, up to 255. Cut points differ between trees: with 64 bins
        each, they have about 250 in total.
    bootstrap
        Grow each tree on its own sample of rows, without replacement: each row with probability 1 - 1/e. The
        ``random_state`` of the federation, or of the study, decides which.
    class_weight
        None, "balanced", or weights by class, as ``{"no": 1.0, "yes": 2.0}``; other classes have weight 1. "balanced"
        gives every class the same total weight over all sites. If sites grow local trees, this takes one more round,
        which sums the class counts.
    random_state
        A whole number that decides which features are sampled: the same number gives the same forest on the same
        federation. In a study file, the default is the study's ``random_state``.
    feature_sampling
        "node" samples features at every node, "tree" once for a tree.
    threshold
        Decision threshold for two classes: the score from which the positive class is predicted. A number; or "youden"
        or "f1" to maximise sensitivity plus specificity, or F1, on out-of-bag training rows, which takes one more round
        (see docs/figures.md#rare-classes) and sets ``threshold_``. None: predict the most probable class.
    max_samples
        A share f of the rows, for smaller trees: each row is in a tree with probability 1 - exp(-f), as in a bootstrap
        sample of that share. None: 1. Unlike in scikit-learn, it cannot be a number of rows, because each site samples
        by itself.
    monotonic_cst
        Direction in which predictions may change with a column: 1 up, -1 down, 0 either; a number for each column, or
        numbers by name, as ``{"age": 1, "dose": -1}``. For regression or two classes (the probability of the second);
        not for categorical columns.
    time_bins
        For survival: the maximum number of times in a curve, which are ends of bins with about equally many events. See
        docs/survival.md.
    """

    n_estimators: Positive = 100
    criterion: Literal["gini", "entropy", "log_loss", "squared_error", "log_rank"] | None = None
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
    time_bins: Annotated[int, Meta(ge=2, le=MOST_TIMES)] = 64


@declared
class VotingForestParameters(ForestParameters):
    """Parameters of forests whose trees may vote.

    Parameters
    ----------
    vote
        "soft" predicts the class with the highest mean probability, "hard" the class with most votes (the first of
        equal ones). ``predict_proba`` returns the mean in both cases. "hard" is for classification.
    """

    vote: Literal["soft", "hard"] = "soft"


@declared
class ReliabilityParameters(Parameters):
    """Parameters of forests over rows that quantify the reliability of their scores.

    Parameters
    ----------
    calibrate
        Calibrate probabilities on out-of-bag training rows: one curve for all sites, from a sum, which each site
        adjusts to its own rows and keeps. The ranking of rows stays the same, see docs/calibration.md. None: AutoForest
        calibrates unless it has ``class_weight`` or no ``bootstrap``; other forests do not.
    intervals
        Sum out-of-bag errors for ``predict_interval``, ``predict_quantiles`` and ``predict_set``. See
        docs/calibration.md.
    """

    calibrate: bool | None = None
    intervals: bool = False

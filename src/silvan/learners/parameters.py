"""The parameters of every learner: types, defaults, ranges and documentation, in one place.

Learners inherit their constructors from these classes, and study files are checked by them, at the coordinator and at
sites; so nothing here imports an algorithm. The docstrings of the learners and the tables of docs/study.md are written
from the descriptions.
"""

import inspect
import re
from dataclasses import dataclass, fields
from textwrap import fill, indent
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform, get_type_hints

from msgspec import Meta

from silvan.data.schema import MAX_BINS
from silvan.forest.arrays import DEPTH_CAP
from silvan.privacy.noise.laplace import MAX_EPSILON

T = TypeVar("T")

Positive = Annotated[int, Meta(ge=1)]


@dataclass_transform()
def declared(cls: type[T]) -> type[T]:
    """Make a class of parameters a dataclass, whose signature has plain types."""
    made = dataclass(repr=False, eq=False)(cls)
    made.__init__.__annotations__.update(get_type_hints(made.__init__))
    return made


class Parameters:
    """The parameters of a learner. A value that is not given is the default."""


def defaults(cls: type[Parameters]) -> dict[str, Any]:
    """Return the default of every parameter."""
    return {field.name: field.default for field in fields(cls)}  # type: ignore[arg-type]  # dataclasses, all of them


def changed(parameters: Parameters) -> dict[str, Any]:
    """Return the parameters that differ from their defaults."""
    given = vars(parameters)
    return {name: given[name] for name, default in defaults(type(parameters)).items() if given[name] != default}


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
        Features tried at a node: "sqrt", "log2", a whole number, a share, or None for all. Where a rule without noise
        decides the label, half or all of them do better, see docs/faq.md.
    max_bins
        Most bins of a numeric column in a tree, up to 255. Trees differ in their cut points: with 64 bins each they
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
    feature_draw
        "node" samples features at every node, "tree" once for a tree.
    threshold
        Decision threshold, for two classes: the score at which the second is predicted. A number; or "youden" or "f1",
        where sensitivity plus specificity, or F1, is best on training rows that are each scored by trees which did not
        learn from it: one round more, see docs/figures.md#rare-classes; ``threshold_`` is then what was chosen. None:
        the most probable class.
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
    feature_draw: Literal["node", "tree"] = "node"
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
class HistogramForestParameters(VotingForestParameters):
    """Of a forest grown from summed histograms.

    Parameters
    ----------
    bins
        "shared": all sites count rows in the same bins, and only sums of counts are used. "adaptive": each site sends
        bins of its own with their means, as published; a site's policy must allow its message "AdaptiveLevel".
    epsilon
        Privacy budget: how much all replies together may tell of a row; None: no differential privacy.
    private
        With epsilon. "tables": small tables of a few noisy counts, the most accurate; most parameters of forests mean
        nothing to it. "levels": noise on the histograms of every level, as published. "input": noise on the rows, as
        published.
    noise
        With epsilon. "total": once, on the sum over sites; "site": at every site. None: "total" with secure
        aggregation.
    n_rows
        The number of training rows, if it is public; None: counted with noise, for a part of epsilon.
    tolerate
        With noise on the total: how many sites may be lost or collude, together, without breaking the guarantee. None:
        one, since every site knows its own share of the noise, and as many as the quorum lets be lost. Sites insist on
        as many as their policies expect to collude (one), whoever is lost.
    """

    max_depth: Annotated[int, Meta(ge=1, le=DEPTH_CAP)] | None = 10
    bins: Literal["shared", "adaptive"] = "shared"
    epsilon: Annotated[float, Meta(gt=0, le=MAX_EPSILON)] | None = None
    private: Literal["tables", "levels", "input"] = "tables"
    noise: Literal["total", "site"] | None = None
    n_rows: Positive | None = None
    tolerate: Annotated[int, Meta(ge=0)] | None = None


@declared
class PooledForestParameters(HistogramForestParameters):
    """Of the baseline on all rows in one place: those of a ``HistogramForest``, most of them not used.

    Parameters
    ----------
    epsilon
        Must be None: the baseline has no noise.
    """

    epsilon: None = None


@declared
class LocalForestParameters(VotingForestParameters):
    """Of each site's own forest.

    Parameters
    ----------
    n_estimators
        Number of trees of each site.
    """

    n_estimators: Positive = 100


@declared
class MergedForestParameters(VotingForestParameters):
    """Of sites' own trees put together.

    Parameters
    ----------
    n_estimators
        Number of trees of all sites together.
    weights
        None: equally many trees from every site. "trees": numbers of trees in proportion to the sites' rows. "votes":
        equally many trees, each with a weight in proportion to its site's rows.
    equal
        Give the trees of every site the same weight in sum; for ``weights=None`` only.
    max_trees
        Most trees that are taken from a site; None for no limit.
    recount
        Re-estimate leaves: trees are cut back to what rows of other sites reach, and leaf values come from these rows;
        two rounds more. In studies between machines it is on unless the study says otherwise. See
        docs/security.md#poisoning.
    """

    n_estimators: Positive = 100
    weights: Literal["trees", "votes"] | None = None
    equal: bool = False
    max_trees: Positive | None = None
    recount: bool = False


@declared
class AutoForestParameters(ForestParameters):
    """Of a histogram and a merged forest, each weighted by its worth.

    Parameters
    ----------
    n_estimators
        Number of trees grown from sums, and of trees that every site grows.
    choose
        Weigh both halves by how they do, and let every site choose how much its own trees and rows count; False: fixed
        weights, and all use the shared forest, two rounds less.
    recount
        Re-estimate leaves of sites' trees: they are cut back to what rows of other sites reach, and leaf values come
        from these rows; two rounds. None: unless ``monotonic_cst`` is set, whose order such leaf values need not keep.
        In studies between machines it is on unless the study says otherwise.
    fit_leaves
        Let sites take leaf values of the shared trees from their own rows; between machines such a forest stays at its
        site. None: unless ``monotonic_cst`` is set. Not with ``class_weight``.
    """

    n_estimators: Positive = 100
    max_depth: Annotated[int, Meta(ge=1, le=DEPTH_CAP)] | None = 10
    choose: bool = True
    recount: bool | None = None
    fit_leaves: bool | None = None


@declared
class BOFRFParameters(ForestParameters):
    """Of sites' own trees, weighted by how they do at all sites.

    Parameters
    ----------
    n_estimators
        Number of trees that every site grows.
    tau
        Trees whose weight is not above it are not used.
    personal
        Let every site choose its own tau as well.
    clusters
        Number of clusters that the sites are divided into, each of which learns by itself, see docs/clustered.md; None
        for no clusters.
    metric
        The distance between sites by which clusters are found.
    first
        The site that is the first centroid of the clusters; None: one is drawn.
    protocol
        "honest": a site chooses on rows that the trees did not see. "paper": on its test part, as published.
    validation
        Share of the training rows to choose on, split off before training; None for out-of-bag rows.
    tune
        "grid" or "halving" (also True): tune the trees' parameters at each site by cross-validation; or values to try
        by parameter, or a ``Search``. None: no tuning. See docs/tuning.md.
    equal
        Give the trees of every site the same weight in sum, however many it has or claims to have.
    max_trees
        Most trees that are taken from a site, grown or pretrained; None for as many as it has.
    recount
        Re-estimate leaves: the trees that all use are cut back to what rows of other sites reach, and leaf values come
        from these rows; two rounds more. In studies between machines it is on unless the study says otherwise.
    """

    n_estimators: Positive = 100
    tau: Annotated[float, Meta(ge=0, lt=1)] = 0.2
    personal: bool = False
    clusters: Positive | None = None
    metric: Literal["manhattan", "euclidean", "minkowski"] = "manhattan"
    first: str | None = None
    protocol: Literal["honest", "paper"] = "honest"
    validation: Annotated[float, Meta(gt=0, le=0.5)] | None = None
    tune: Literal["grid", "halving"] | bool | dict[str, list[str | float | int | bool]] | None = None
    equal: bool = False
    max_trees: Positive | None = None
    recount: bool = False


@declared
class BoostingParameters(Parameters):
    """What all learners that boost stumps have.

    Parameters
    ----------
    n_estimators
        Most rounds of boosting; a round adds one stump of every site.
    criterion
        What makes a stump good: that its sides are pure, "gini" or "entropy" of weighted rows, each voting for its
        larger class (as scikit-learn does); or "error", the least weighted error of sides that vote differently.
    min_samples_leaf
        Fewest rows on a side of a stump.
    max_bins
        Most bins of a numeric column, up to 255.
    random_state
        Not used, since nothing is sampled: there so that all learners can be made with the same parameters.
    """

    n_estimators: Positive = 50
    criterion: Literal["gini", "entropy", "log_loss", "error"] = "gini"
    min_samples_leaf: Positive = 2
    max_bins: Annotated[int, Meta(ge=2, le=MAX_BINS)] = 64
    random_state: Annotated[int, Meta(ge=0)] = 0


@declared
class LocalAdaBoostParameters(BoostingParameters):
    """Of each site's own AdaBoost."""


@declared
class AdaBoostPLParameters(BoostingParameters):
    """Of stumps merged in the order of their weights."""


@declared
class BOPPIDParameters(BoostingParameters):
    """Of AdaBoost where each site picks among the others' classifiers.

    Parameters
    ----------
    tau
        How far another classifier's error on the site's rows may be from that of the site's own.
    printed
        Take line 10 of the algorithm as it is printed, which admits every worse classifier.
    """

    tau: Annotated[float, Meta(ge=0)] = 0.1
    printed: bool = False


@declared
class MultBoostParameters(BoostingParameters):
    """Of a stump for all sites in every round.

    Parameters
    ----------
    criterion
        What makes a stump good, as for other boosting, but "error" by default.
    """

    criterion: Literal["gini", "entropy", "log_loss", "error"] = "error"


@declared
class VerticalForestParameters(VotingForestParameters):
    """Of a forest on columns that stay with their parties.

    Parameters
    ----------
    labels
        "encoded": the label holder sends the label once, classes under secret numbers, for all parties to read.
        "encrypted": it sends ciphertexts that only it can read the sums of (needs ``silvan[vertical]``); a level takes
        three rounds. What partitions tell about labels stays: set ``min_samples_leaf`` to 20 or more.
    auditor
        Have every party show its splits to the coordinator, who then has the whole forest.
    key_bits
        Length of the key of encrypted labels: 2048 or 3072.
    """

    max_depth: Annotated[int, Meta(ge=1, le=DEPTH_CAP)] | None = 10
    labels: Literal["encoded", "encrypted"] = "encoded"
    auditor: bool = False
    key_bits: Positive = 2048


@declared
class VerticalLinearParameters(Parameters):
    """Of logistic or linear regression on columns that stay with their parties.

    Parameters
    ----------
    alpha
        Weight of the penalty on squared coefficients; scikit-learn's ``C`` is one over it.
    tol
        When to stop: a further step would change predictions by less than so much (root mean square, in standard
        deviations of a number, or in log-odds).
    max_iter
        Most steps; a step takes two rounds.
    """

    alpha: Annotated[float, Meta(gt=0)] = 1.0
    tol: Annotated[float, Meta(ge=1e-8, lt=1)] = 1e-4  # sums in fixed point are no more exact than 1e-8
    max_iter: Positive = 100


def descriptions(cls: type) -> dict[str, str]:
    """Return what the docstrings of a class and its bases say of parameters, by name."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        _, _, entries = inspect.cleandoc(vars(base).get("__doc__") or "").partition("Parameters\n----------\n")
        for names, text in re.findall(r"^(\w[\w, ]*)\n((?: {4}.*(?:\n|$))+)", entries.split("\n\n")[0], re.M):
            found |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return found


_FIT_ATTRIBUTES = """\
schema_
    What the columns mean, as the sites agreed on it: a ``Schema``.
rounds_
    How many rounds of messages ``fit`` took.
bytes_
    The bytes of these messages, by site: how many it "sent" and "received"."""


def write_shared_entries(cls: type, like: type = Parameters) -> None:
    """Fill in a class's docstring what it shares with others, so that ``help`` shows everything.

    ``%(parameters)s``, with entries of the class's own above it, stands for all its parameters, described by its bases
    or as those of the class that it is ``like``; ``%(fit_attributes)s`` for what ``fit`` sets.
    """

    def wrapped(text: str) -> str:
        return fill(text, 116, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)

    texts = descriptions(like) | descriptions(cls)
    parameters = [f"{name}\n{wrapped(texts[name])}" for name in inspect.signature(cls).parameters if name in texts]
    entries = {"parameters": "\n".join(parameters), "fit_attributes": _FIT_ATTRIBUTES}
    own = re.compile(
        r"(?<=----------\n)(?:(?!\n\n).)*?^( *)%\((parameters)\)s$|^( *)%\((fit_attributes)\)s$", re.M | re.S
    )
    cls.__doc__ = own.sub(lambda at: indent(entries[at[2] or at[4]], at[1] or at[3]), cls.__doc__ or "")

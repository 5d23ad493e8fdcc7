"""The registry of learners: their parameters and what study files, approvals and reports need to know of them.

Each learner is one class here: types, defaults, ranges and documentation of its parameters, and the facts its decorator
lists. The learner inherits its constructor from it; study files, docs/study.md and docs/api.md derive from it. Sites
read this too, so no algorithm is imported until ``LearnerSpec.load`` is called.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, dataclass_transform

from msgspec import Meta

from silvan.data.schema import MAX_BINS
from silvan.forest.arrays import DEPTH_CAP
from silvan.forest.curves import MOST_TIMES
from silvan.learners.parameters import Parameters, declared
from silvan.metrics import MCC, OfConfusion
from silvan.privacy.noise.laplace import MAX_EPSILON

if TYPE_CHECKING:
    from silvan.learners.federated_estimator import FederatedEstimator

T = TypeVar("T", bound=Parameters)

Positive = Annotated[int, Meta(ge=1)]
Given = Mapping[str, Any]  # parameters of a learner by name; those left out have their defaults
_BOFRF = (
    "M. Gencturk, A. A. Sinaci, N. K. Cicekli: BOFRF: A Novel Boosting-Based Federated Random Forest Algorithm on "
    "Horizontally Partitioned Data. IEEE Access 10, 2022."
)
_THESIS = (
    "M. Gencturk: Privacy-Preserving Horizontal Federated Learning Methodology through a Novel Boosting-Based "
    "Federated Random Forest Algorithm. PhD thesis, Middle East Technical University, 2023."
)
_VERTICAL = "Y. Liu and others: Federated Forest. IEEE Transactions on Big Data 8, 2022."
_HISTOGRAM = "S. Kalloori, S. Klingler: Cross-Silo Federated Learning Based Decision Trees. ACM SAC, 2022."
_MERGED = (
    "A.-C. Hauschild and others: Federated Random Forests Can Improve Local Performance of Predictive Models for "
    "Various Healthcare Applications. Bioinformatics 38, 2022."
)
_FOREST = "L. Breiman: Random Forests. Machine Learning 45, 2001."


@dataclass(frozen=True)
class LearnerSpec:
    """A learner by name.

    ``models_in_training`` is the number of external models a site evaluates while the learner is trained, and
    ``variants`` the number of further candidates it is sent in the evaluation, both given the learner's parameters.
    """

    module: str
    parameters: type[Parameters]
    papers: tuple[str, ...]
    axis: Literal["rows", "columns"] = "rows"
    trees: Literal["forest", "stumps", "none"] = "forest"
    lossless: bool = False  # whether its model equals that of pooled rows
    uses_sums: bool = True  # whether it needs sums over sites
    for_new_sites: bool = True  # whether it has one model for all sites, also for one that took no part in training
    calibrated: bool = False  # whether it calibrates probabilities where nothing else is asked
    refits_leaves: bool = False  # whether sites re-estimate leaves of trees that other machines sent
    models_in_training: Callable[[Given], int] = lambda parameters: 0
    variants: Callable[[Given], int] = lambda parameters: 0

    @property
    def name(self) -> str:
        """The name of its class."""
        return self.parameters.__name__.removesuffix("Parameters")

    def load(self) -> "type[FederatedEstimator]":
        """Import the learner and return its class."""
        found: type[FederatedEstimator] = getattr(import_module(f"silvan.learners.{self.module}"), self.name)
        return found

    def models_evaluated(self, parameters: Given, *, evaluated: bool = True, by: Sequence[str] = ()) -> int:
        """Return the maximum number of external models that a study has one site evaluate.

        Without ``evaluated`` only training counts, which uses training rows. ``by`` names the columns of subgroups.
        """
        if self.axis == "columns":
            return int(evaluated)
        made, by_rule = self.models_in_training(parameters), isinstance(parameters.get("threshold"), str)
        made += self.models_to_trust(parameters)
        if not evaluated:
            return made + by_rule
        # a site's mix is evaluated before a threshold is chosen, and without subgroups: another model than afterwards
        again = bool(made) and (by_rule or bool(by))
        return 1 + made + by_rule + self.variants(parameters) + again

    def calibrates(self, parameters: Given) -> bool:
        """Whether probabilities are calibrated, if classes are predicted."""
        asked, weighted = parameters.get("calibrate"), parameters.get("class_weight") is not None
        if asked is None:
            return self.calibrated and bool(parameters.get("bootstrap", True)) and not weighted
        return bool(asked)

    def models_to_trust(self, parameters: Given) -> int:
        """Return the maximum number of external models that calibration and intervals have a site score."""
        asked = self.calibrates(parameters) + bool(parameters.get("intervals"))
        return asked + bool(asked)  # also with the site's own curve and errors

    def between_machines(self, parameters: Given) -> dict[str, Any]:
        """Return the defaults that differ between machines, where peers may send any tree they like."""
        return {"refit_leaves": True} if self.refits_leaves and parameters.get("protocol") != "paper" else {}


LEARNERS: dict[str, LearnerSpec] = {}  # all learners by name. The first of each axis is the default of study files.


@dataclass_transform()
def learner(module: str, *papers: str, **facts: Any) -> Callable[[type[T]], type[T]]:
    """Register the learner of a module whose parameters a class declares; ``facts`` are fields of ``LearnerSpec``."""

    def register(cls: type[T]) -> type[T]:
        made = declared(cls)
        spec = LearnerSpec(module, made, papers, **facts)
        LEARNERS[spec.name] = spec
        return made

    return register


def learners_for(axis: Literal["rows", "columns"]) -> dict[str, LearnerSpec]:
    """Return the learners for sites that hold rows, or for parties that hold columns."""
    return {name: spec for name, spec in LEARNERS.items() if spec.axis == axis}


def spec_of(learner: type) -> LearnerSpec:
    """Return the entry of a learner's class, or of its closest registered base class."""
    found = next((LEARNERS[base.__name__] for base in learner.__mro__ if base.__name__ in LEARNERS), None)
    return found or LearnerSpec(learner.__module__, Parameters, ())


# -- parameters, and the learners they are of
@declared
class ForestParameters(Parameters):
    """What all forests have.

    Parameters
    ----------
    n_estimators
        Number of trees.
    criterion
        "gini", "entropy" or "log_loss" (the same as "entropy") for classes, "squared_error" for a number, "log_rank"
        for times. None: gini, squared error or log-rank, as the label is.
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
    time_bins
        For survival: the most times that curves have, ends of bins with about equally many events. See
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


@learner(
    "horizontal",
    _HISTOGRAM,
    _FOREST,
    lossless=True,
    models_in_training=lambda given: int(given.get("epsilon") is not None),
)
class HistogramForestParameters(ReliabilityParameters, VotingForestParameters):
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


@learner("horizontal", _MERGED, _FOREST, refits_leaves=True)
class MergedForestParameters(ReliabilityParameters, VotingForestParameters):
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
    refit_leaves
        Re-estimate leaves: trees are cut back to what rows of other sites reach, and leaf values come from these rows;
        two rounds more. In studies between machines it is on unless the study says otherwise. See
        docs/security.md#poisoning.
    """

    weights: Literal["trees", "votes"] | None = None
    equal: bool = False
    max_trees: Positive | None = None
    refit_leaves: bool = False


@learner(
    "auto_forest",
    *(_HISTOGRAM, _MERGED, _FOREST),
    refits_leaves=True,
    calibrated=True,
    # both halves, and what the site makes of the shared forest
    models_in_training=lambda given: 3 if given.get("choose", True) else 0,
)
class AutoForestParameters(ReliabilityParameters, ForestParameters):
    """Of a histogram and a merged forest, each weighted by its worth.

    Parameters
    ----------
    n_estimators
        Number of trees grown from sums, and of trees that every site grows.
    choose
        Weigh both halves by how they do, and let every site choose how much its own trees and rows count; False: fixed
        weights, and all use the shared forest, two rounds less.
    refit_leaves
        Re-estimate leaves of sites' trees: they are cut back to what rows of other sites reach, and leaf values come
        from these rows; two rounds. None: unless ``monotonic_cst`` is set, whose order such leaf values need not keep.
        In studies between machines it is on unless the study says otherwise.
    fit_leaves
        Let sites take leaf values of the shared trees from their own rows; between machines such a forest stays at its
        site. None: unless ``monotonic_cst`` is set. Not with ``class_weight``.
    """

    max_depth: Annotated[int, Meta(ge=1, le=DEPTH_CAP)] | None = 10
    choose: bool = True
    refit_leaves: bool | None = None
    fit_leaves: bool | None = None


# variants: the ensemble of the site's own trees, and the one at its own tau
@learner(
    "bofrf",
    *(_BOFRF, _THESIS),
    for_new_sites=False,
    refits_leaves=True,
    variants=lambda given: 1 + bool(given.get("personal")),
)
class BOFRFParameters(ReliabilityParameters, ForestParameters):
    """Of sites' own trees, weighted by how they do at all sites.

    Parameters
    ----------
    n_estimators
        Number of trees that every site grows.
    tau
        Trees whose weight is not above it are not used.
    weigh_by
        The metric of a tree's votes on all sites' training rows that is its weight: ``mcc``, ``accuracy`` or ``f1`` (of
        the positive class). Only a Matthews correlation is 0 for votes by chance, so with others set ``tau`` higher.
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
    refit_leaves
        Re-estimate leaves: the trees that all use are cut back to what rows of other sites reach, and leaf values come
        from these rows; two rounds more. In studies between machines it is on unless the study says otherwise.
    """

    tau: Annotated[float, Meta(ge=0, lt=1)] = 0.2
    weigh_by: OfConfusion = MCC
    personal: bool = False
    clusters: Positive | None = None
    metric: Literal["manhattan", "euclidean", "minkowski"] = "manhattan"
    first: str | None = None
    protocol: Literal["honest", "paper"] = "honest"
    validation: Annotated[float, Meta(gt=0, le=0.5)] | None = None
    tune: Literal["grid", "halving"] | bool | dict[str, list[str | float | int | bool]] | None = None
    equal: bool = False
    max_trees: Positive | None = None
    refit_leaves: bool = False


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
        Maximum number of bins per numeric column, up to 255.
    random_state
        Not used, because nothing is sampled. It exists so that all learners accept the same parameters.
    """

    n_estimators: Positive = 50
    criterion: Literal["gini", "entropy", "log_loss", "error"] = "gini"
    min_samples_leaf: Positive = 2
    max_bins: Annotated[int, Meta(ge=2, le=MAX_BINS)] = 64
    random_state: Annotated[int, Meta(ge=0)] = 0


@learner("boosting", _THESIS, trees="stumps", for_new_sites=False)
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


@learner("boosting", _THESIS, trees="stumps")
class AdaBoostPLParameters(BoostingParameters):
    """Of stumps merged in the order of their weights."""


@learner("boosting", _THESIS, trees="stumps")
class MultBoostParameters(BoostingParameters):
    """Of a stump for all sites in every round.

    Parameters
    ----------
    criterion
        What makes a stump good, as for other boosting, but "error" by default.
    """

    criterion: Literal["gini", "entropy", "log_loss", "error"] = "error"


@learner("horizontal", _FOREST, for_new_sites=False)
class LocalForestParameters(VotingForestParameters):
    """Of each site's own forest.

    Parameters
    ----------
    n_estimators
        Number of trees of each site.
    """


@learner("boosting", trees="stumps", for_new_sites=False)
class LocalAdaBoostParameters(BoostingParameters):
    """Of each site's own AdaBoost."""


@learner("horizontal", _FOREST)
class PooledForestParameters(HistogramForestParameters):
    """Parameters of the baseline on all rows in one place: those of a ``HistogramForest``, most of them unused.

    Parameters
    ----------
    epsilon
        Must be None: the baseline has no noise.
    """

    epsilon: None = None


@learner("vertical", _VERTICAL, _FOREST, axis="columns", lossless=True, uses_sums=False)
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


@learner("linear", axis="columns", trees="none")
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

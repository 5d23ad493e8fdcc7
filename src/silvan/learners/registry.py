"""The registry of learners: their parameters and what study files, approvals and reports need to know of them.

Each learner is one class here: types, defaults, ranges and documentation of its parameters, and the facts its decorator
lists. The learner inherits its constructor from it; study files, docs/study.md and docs/api.md derive from it. Sites
read this too, so no algorithm is imported until ``LearnerSpec.load`` is called.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, dataclass_transform

from msgspec import Meta

from silvan.data.schema import MAX_BINS
from silvan.forest.arrays import DEPTH_CAP
from silvan.learners.forest_parameters import ForestParameters, ReliabilityParameters, VotingForestParameters
from silvan.learners.parameters import Parameters, Positive, declared
from silvan.learners.spec import LearnerSpec
from silvan.metrics import MCC, OfConfusion
from silvan.privacy.noise.laplace import MAX_EPSILON

if TYPE_CHECKING:
    pass

T = TypeVar("T", bound=Parameters)

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

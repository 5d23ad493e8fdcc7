"""The registry of learners: their parameters and what study files, approvals and reports need to know of them.

Each learner is one class here: types, defaults, ranges and documentation of its parameters, and facts in its decorator.
The learner inherits its constructor from this class; study files, docs/study.md and docs/api.md derive from it. Sites
read it as well, so no algorithm is imported until ``LearnerSpec.load`` is called.
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


LEARNERS: dict[str, LearnerSpec] = {}  # all learners by name; the first of each axis is the default in study files


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
    """Return the learners for rows at sites, or for columns at parties."""
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
    """Parameters of a forest grown from summed histograms.

    Parameters
    ----------
    bins
        "shared": all sites count rows in the same bins, and only sums are disclosed. "adaptive": each site sends its
        own bins with their means, as published; a site's policy must allow the message "AdaptiveLevel".
    epsilon
        Privacy budget: the epsilon of all replies together. None: no differential privacy.
    private
        With epsilon. "tables": small tables of a few noisy counts, the most accurate; it ignores most forest
        parameters. "levels": noise on the histograms of every level, as published. "input": noise on the rows, as
        published.
    noise
        With epsilon. "total": add noise once, to the sum over sites; "site": at every site. None: "total" with secure
        aggregation, otherwise "site".
    n_rows
        The number of training rows, if it is public. None: it is counted with noise, for a part of epsilon.
    tolerate
        With noise on the total: how many sites in all may be lost or collude without breaking the guarantee. None: one,
        since every site knows its own share of the noise, plus the number that the quorum allows to be lost. Sites
        require at least as many as their policies expect to collude (one).
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
    """Parameters of a forest merged from local trees.

    Parameters
    ----------
    n_estimators
        Total number of trees of all sites.
    weights
        None: the same number of trees from every site. "trees": numbers of trees in proportion to the sites' rows.
        "votes": the same number of trees, each weighted in proportion to its site's rows.
    equal
        Give all sites the same total weight; for ``weights=None`` only.
    max_trees
        Maximum number of trees from one site; None for no limit.
    refit_leaves
        Re-estimate leaves: cut trees back to what rows of other sites reach, and take leaf values from these rows, in
        two more rounds. In studies between machines this is the default. See docs/security.md#poisoning.
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
    # both halves, and the site's variant of the shared forest
    models_in_training=lambda given: 3 if given.get("choose", True) else 0,
)
class AutoForestParameters(ReliabilityParameters, ForestParameters):
    """Parameters of a histogram forest and a merged forest, each weighted by its performance.

    Parameters
    ----------
    n_estimators
        Number of trees grown from sums, and of trees grown by each site.
    choose
        Weight both halves by their performance, and let every site choose how much its local trees and rows count.
        False: fixed weights and the shared forest for all, which takes two rounds less.
    refit_leaves
        Re-estimate leaves of sites' trees: cut them back to what rows of other sites reach, and take leaf values from
        these rows, in two rounds. None: yes, unless ``monotonic_cst`` is set, which such leaf values may violate. In
        studies between machines this is the default.
    fit_leaves
        Let sites take leaf values of the shared trees from their own rows; between machines such a forest stays at its
        site. None: yes, unless ``monotonic_cst`` is set. Not with ``class_weight``.
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
    """Parameters of local trees weighted by their performance at all sites.

    Parameters
    ----------
    n_estimators
        Number of trees grown by each site.
    tau
        Only trees with a weight above tau are used.
    weigh_by
        The metric of a tree's votes on all sites' training rows that becomes its weight: ``mcc``, ``accuracy`` or
        ``f1`` (of the positive class). Only ``mcc`` is 0 for random votes, so set a higher ``tau`` with the others.
    personal
        Let every site choose its own tau, too.
    clusters
        Number of clusters of sites, which train separately, see docs/clustered.md. None: no clusters.
    metric
        The distance between sites for clustering.
    first
        The site that is the first centroid; None: one is sampled.
    protocol
        "honest": a site chooses on rows that the trees have not seen. "paper": on its test rows, as published.
    validation
        Share of the training rows to hold out for the choice; None: use out-of-bag rows.
    tune
        "grid" or "halving" (also True): tune the trees' parameters at each site by cross-validation; or a dict of
        values to try, or a ``Search``. None: no tuning. See docs/tuning.md.
    equal
        Give all sites the same total weight, however many trees they have.
    max_trees
        Maximum number of trees from one site, grown or pretrained; None for no limit.
    refit_leaves
        Re-estimate leaves: cut shared trees back to what rows of other sites reach, and take leaf values from these
        rows, in two more rounds. In studies between machines this is the default.
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
    """Parameters of all learners that boost stumps.

    Parameters
    ----------
    n_estimators
        Maximum number of boosting rounds; each adds one stump per site.
    criterion
        How stumps are chosen: by the impurity of weighted rows, "gini" or "entropy", where each side votes for its
        larger class (as in scikit-learn); or by "error", the weighted error of sides that vote differently.
    min_samples_leaf
        Minimum number of rows on each side of a stump.
    max_bins
        Maximum number of bins per numeric column, up to 255.
    random_state
        Unused, because nothing is sampled; it exists so that all learners accept the same parameters.
    """

    n_estimators: Positive = 50
    criterion: Literal["gini", "entropy", "log_loss", "error"] = "gini"
    min_samples_leaf: Positive = 2
    max_bins: Annotated[int, Meta(ge=2, le=MAX_BINS)] = 64
    random_state: Annotated[int, Meta(ge=0)] = 0


@learner("boosting", _THESIS, trees="stumps", for_new_sites=False)
class BOPPIDParameters(BoostingParameters):
    """Parameters of AdaBoost where each site picks among the others' classifiers.

    Parameters
    ----------
    tau
        Maximum difference between the error of another classifier and the site's own, on the site's rows.
    printed
        Use line 10 of the algorithm as printed, which admits every worse classifier.
    """

    tau: Annotated[float, Meta(ge=0)] = 0.1
    printed: bool = False


@learner("boosting", _THESIS, trees="stumps")
class AdaBoostPLParameters(BoostingParameters):
    """Parameters of stumps merged in the order of their weights."""


@learner("boosting", _THESIS, trees="stumps")
class MultBoostParameters(BoostingParameters):
    """Parameters of boosting with one stump of every site in each stage.

    Parameters
    ----------
    criterion
        How stumps are chosen, as for other boosting, but "error" by default.
    """

    criterion: Literal["gini", "entropy", "log_loss", "error"] = "error"


@learner("horizontal", _FOREST, for_new_sites=False)
class LocalForestParameters(VotingForestParameters):
    """Parameters of local forests.

    Parameters
    ----------
    n_estimators
        Number of trees per site.
    """


@learner("boosting", trees="stumps", for_new_sites=False)
class LocalAdaBoostParameters(BoostingParameters):
    """Parameters of local AdaBoost models."""


@learner("horizontal", _FOREST)
class PooledForestParameters(HistogramForestParameters):
    """Parameters of the pooled baseline: those of a ``HistogramForest``, most of them unused.

    Parameters
    ----------
    epsilon
        Must be None: the baseline has no noise.
    """

    epsilon: None = None


@learner("vertical", _VERTICAL, _FOREST, axis="columns", lossless=True, uses_sums=False)
class VerticalForestParameters(VotingForestParameters):
    """Parameters of a forest on columns that stay with their parties.

    Parameters
    ----------
    labels
        "encoded": the label holder sends the label once, with secret numbers for classes, and all parties can read it.
        "encrypted": it sends ciphertexts whose sums only it can decrypt (needs ``silvan[vertical]``); a level takes
        three rounds. Row partitions still reveal something about labels: set ``min_samples_leaf`` to 20 or more.
    auditor
        Reveal every party's splits to the coordinator, who then has the whole forest.
    key_bits
        Key length for encrypted labels: 2048 or 3072.
    """

    max_depth: Annotated[int, Meta(ge=1, le=DEPTH_CAP)] | None = 10
    labels: Literal["encoded", "encrypted"] = "encoded"
    auditor: bool = False
    key_bits: Positive = 2048


@learner("linear", axis="columns", trees="none")
class VerticalLinearParameters(Parameters):
    """Parameters of logistic or linear regression on columns that stay with their parties.

    Parameters
    ----------
    alpha
        Weight of the penalty on squared coefficients; scikit-learn's ``C`` is one over it.
    tol
        Stop when a further step would change predictions by less than this (root mean square, in standard deviations of
        the target, or in log-odds).
    max_iter
        Maximum number of steps, of two rounds each.
    """

    alpha: Annotated[float, Meta(gt=0)] = 1.0
    tol: Annotated[float, Meta(ge=1e-8, lt=1)] = 1e-4  # sums in fixed point are no more exact than 1e-8
    max_iter: Positive = 100

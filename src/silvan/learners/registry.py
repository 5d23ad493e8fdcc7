"""The registry of learners: what study files, approvals and reports need to know, without importing any of them.

Study files, approvals, reports and sites ask here which data a learner is for, what it is based on, and how many
external models it has a site evaluate. A learner's module is imported when `LearnerSpec.load` is called.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from silvan.learners import parameters as declared

if TYPE_CHECKING:
    from silvan.learners.federated_estimator import FederatedEstimator

Parameters = Mapping[str, Any]

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


def _none(parameters: Parameters) -> int:
    return 0


@dataclass(frozen=True)
class LearnerSpec:
    """A learner by name.

    ``models_in_training`` is the number of external models a site evaluates while the learner is trained, and
    ``variants`` the number of further candidates it is sent in the evaluation, both given the learner's parameters.
    """

    module: str
    parameters: type[declared.Parameters]  # the class that declares them
    papers: tuple[str, ...]
    axis: Literal["rows", "columns"] = "rows"
    trees: Literal["forest", "stumps", "none"] = "forest"
    lossless: bool = False  # whether its model equals that of pooled rows
    uses_sums: bool = True  # whether it needs sums over sites
    refits_leaves: bool = False  # whether sites re-estimate leaves of trees that other machines sent
    models_in_training: Callable[[Parameters], int] = _none
    variants: Callable[[Parameters], int] = _none

    @property
    def name(self) -> str:
        """The name of its class."""
        return self.parameters.__name__.removesuffix("Parameters")

    def load(self) -> "type[FederatedEstimator]":
        """Import the learner and return its class."""
        found: type[FederatedEstimator] = getattr(import_module(f"silvan.learners.{self.module}"), self.name)
        return found

    def models_evaluated(self, parameters: Parameters, *, evaluated: bool = True, by: Sequence[str] = ()) -> int:
        """Return the maximum number of external models that a study has one site evaluate.

        Without ``evaluated`` only training counts, which uses training rows. ``by`` names the columns of subgroups.
        """
        if self.axis == "columns":
            return int(evaluated)
        made, by_rule = self.models_in_training(parameters), isinstance(parameters.get("threshold"), str)
        if not evaluated:
            return made + by_rule
        # a site's mix is evaluated before a threshold is chosen, and without subgroups: another model than afterwards
        again = bool(made) and (by_rule or bool(by))
        return 1 + made + by_rule + self.variants(parameters) + again

    def between_machines(self, parameters: Parameters) -> dict[str, Any]:
        """Return the defaults that differ between machines, where peers may send any tree they like."""
        return {"recount": True} if self.refits_leaves and parameters.get("protocol") != "paper" else {}


def _with_noise(parameters: Parameters) -> int:
    """Count the model by which a private forest asks for scores."""
    return int(parameters.get("epsilon") is not None)


def _mixes(parameters: Parameters) -> int:
    """Count both halves of an AutoForest, and what the site makes of the shared forest."""
    return 3 if parameters.get("choose", True) else 0


def _bofrf_variants(parameters: Parameters) -> int:
    """Count the ensemble of the site's own trees, and the one at its own tau."""
    return 1 + bool(parameters.get("personal"))


LEARNERS: dict[str, LearnerSpec] = {
    spec.name: spec
    for spec in (
        LearnerSpec(
            "horizontal",
            declared.HistogramForestParameters,
            (_HISTOGRAM, _FOREST),
            lossless=True,
            models_in_training=_with_noise,
        ),
        LearnerSpec("site_trees", declared.MergedForestParameters, (_MERGED, _FOREST)),
        LearnerSpec(
            "auto_forest",
            declared.AutoForestParameters,
            (_HISTOGRAM, _MERGED, _FOREST),
            refits_leaves=True,
            models_in_training=_mixes,
        ),
        LearnerSpec("bofrf", declared.BOFRFParameters, (_BOFRF, _THESIS), refits_leaves=True, variants=_bofrf_variants),
        LearnerSpec("boosting", declared.BOPPIDParameters, (_THESIS,), trees="stumps"),
        LearnerSpec("boosting", declared.AdaBoostPLParameters, (_THESIS,), trees="stumps"),
        LearnerSpec("boosting", declared.MultBoostParameters, (_THESIS,), trees="stumps"),
        LearnerSpec("site_trees", declared.LocalForestParameters, (_FOREST,)),
        LearnerSpec("boosting", declared.LocalAdaBoostParameters, (), trees="stumps"),
        LearnerSpec("horizontal", declared.PooledForestParameters, (_FOREST,)),
        LearnerSpec(
            "vertical",
            declared.VerticalForestParameters,
            (_VERTICAL, _FOREST),
            axis="columns",
            lossless=True,
            uses_sums=False,
        ),
        LearnerSpec("linear", declared.VerticalLinearParameters, (), axis="columns", trees="none"),
    )
}
"""All learners by name. The first of each axis is the default of study files."""


def learners_for(axis: Literal["rows", "columns"]) -> dict[str, LearnerSpec]:
    """Return the learners for sites that hold rows, or for parties that hold columns."""
    return {name: spec for name, spec in LEARNERS.items() if spec.axis == axis}


def spec_of(learner: type) -> LearnerSpec:
    """Return what is known about a learner's class, or about the closest registered class it is derived from."""
    found = next((LEARNERS[base.__name__] for base in learner.__mro__ if base.__name__ in LEARNERS), None)
    return found or LearnerSpec(learner.__module__, declared.Parameters, ())

"""Facts about a learner that the registry knows without importing it (``registry.py``)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from silvan.learners.parameters import Parameters

if TYPE_CHECKING:
    from silvan.learners.federated_estimator import FederatedEstimator

Given = Mapping[str, Any]  # parameters of a learner by name; those left out have their defaults


@dataclass(frozen=True)
class LearnerSpec:
    """A learner by name.

    Given the learner's parameters, ``models_in_training`` is the number of external models that a site evaluates during
    training, and ``variants`` the number of additional candidates that it receives for the evaluation.
    """

    module: str
    parameters: type[Parameters]
    papers: tuple[str, ...]
    axis: Literal["rows", "columns"] = "rows"
    trees: Literal["forest", "stumps", "none"] = "forest"
    lossless: bool = False  # whether its model equals the one trained on pooled rows
    uses_sums: bool = True  # whether it needs sums over sites
    for_new_sites: bool = True  # whether it has one model for all sites, also for sites that took no part in training
    calibrated: bool = False  # whether it calibrates probabilities by default
    refits_leaves: bool = False  # whether sites re-estimate leaves of trees that other machines sent
    models_in_training: Callable[[Given], int] = lambda parameters: 0
    variants: Callable[[Given], int] = lambda parameters: 0

    @property
    def name(self) -> str:
        """The name of the learner's class."""
        return self.parameters.__name__.removesuffix("Parameters")

    def load(self) -> "type[FederatedEstimator]":
        """Import the learner and return its class."""
        found: type[FederatedEstimator] = getattr(import_module(f"silvan.learners.{self.module}"), self.name)
        return found

    def models_evaluated(self, parameters: Given, *, evaluated: bool = True, by: Sequence[str] = ()) -> int:
        """Return the maximum number of external models that one site evaluates in a study.

        Without ``evaluated`` only models during training count. ``by`` names the columns of subgroups.
        """
        if self.axis == "columns":
            return int(evaluated)
        made, by_rule = self.models_in_training(parameters), isinstance(parameters.get("threshold"), str)
        made += self.models_to_trust(parameters)
        if not evaluated:
            return made + by_rule
        # a site's mix is evaluated first without threshold and subgroups, which counts as another model
        again = bool(made) and (by_rule or bool(by))
        return 1 + made + by_rule + self.variants(parameters) + again

    def calibrates(self, parameters: Given) -> bool:
        """Return whether probabilities of classes are calibrated."""
        asked, weighted = parameters.get("calibrate"), parameters.get("class_weight") is not None
        if asked is None:
            return self.calibrated and bool(parameters.get("bootstrap", True)) and not weighted
        return bool(asked)

    def models_to_trust(self, parameters: Given) -> int:
        """Return the maximum number of external models that a site scores for calibration and intervals."""
        asked = self.calibrates(parameters) + bool(parameters.get("intervals"))
        return asked + bool(asked)  # one more with the site's own curve and errors

    def between_machines(self, parameters: Given) -> dict[str, Any]:
        """Return the defaults that differ between machines, where other sites may send arbitrary trees."""
        return {"refit_leaves": True} if self.refits_leaves and parameters.get("protocol") != "paper" else {}

"""Models at a site's test rows: the model that is sent or grown, its answers in groups of rows, and its threshold."""

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec import UnsetType

from silvan import metrics
from silvan.algorithms.boosting.adaboost import local_boost
from silvan.algorithms.evaluation.contenders import Contender, Mixing, model_of
from silvan.algorithms.evaluation.figures import Answer
from silvan.algorithms.evaluation.site_thresholds import Draws, site_threshold
from silvan.algorithms.evaluation.subgroups import Cells, cells_of, check_by, in_groups_by_cell
from silvan.algorithms.horizontal.merged_forest import local_forest
from silvan.algorithms.horizontal.site_mix import Ingredients, SiteForest, make_forest
from silvan.data.schema import Schema
from silvan.errors import FormatError, RefusedError
from silvan.federation.site import Site
from silvan.forest.forest import Forest
from silvan.privacy.gate.gate import policy_of


def answer_on_test_rows(
    site: Site, schema: Schema, contender: Contender, feature_key: np.ndarray, by: Sequence[int] = ()
) -> tuple[Answer, np.ndarray]:
    """Score the test part in groups of rows; return the scores and the labels to count by, kept for both rounds."""
    key = ("scores", msgspec.json.encode(contender), feature_key.tobytes(), schema.hash, *by)
    if key not in site.cache:
        part = site.part(schema, test=True)
        if _grows(site, contender):
            forest = forest_of(site, schema, contender, feature_key)
            whole = Answer(*part.answers(forest, site.absent(schema), site.n_jobs))
        else:
            whole = Answer(np.full((len(part), max(schema.n_classes, 1)), np.nan), np.zeros(len(part), np.int64))
        at = _decide_at(site, schema, contender, feature_key)
        if not np.isnan(at):
            whole = Answer(whole.scores, (whole.scores[:, 1] >= at).astype(np.int64))
        least, cells = policy_of(site).score_groups, test_cells(site, schema, by)
        site.cache[key] = in_groups_by_cell(whole, part.y, schema.n_classes, least, cells)
    found: tuple[Answer, np.ndarray] = site.cache[key]
    return found


def test_cells(site: Site, schema: Schema, by: Sequence[int]) -> Cells | None:
    """Return the test rows by subgroup; None without columns that make some."""
    if not by:
        return None
    check_by(schema, by)
    key = ("cells", schema.hash, *by)
    if key not in site.cache:
        part = site.part(schema, test=True)
        site.cache[key] = cells_of(part.columns(by), part.y, range(len(by)), schema.n_classes, policy_of(site))
    found: Cells = site.cache[key]
    return found


def _grows(site: Site, contender: Contender) -> bool:
    """Whether the site has the model: one that it is to grow itself takes all rows in one place."""
    return site.in_one_place or (contender.own is None and contender.boosted is None)


def forest_of(site: Site, schema: Schema, contender: Contender, feature_key: np.ndarray) -> Forest:
    """Read, make or grow a model; one that is grown is kept."""
    if isinstance(contender.mixed, Mixing):
        return _site_forest(site, schema, contender).forest
    if contender.sent is not None and contender.own is None and contender.boosted is None:
        return model_of(site, schema, contender.sent)
    key = ("own model", msgspec.json.encode(contender), feature_key.tobytes(), schema.hash)
    if key not in site.cache:
        if contender.own is not None:
            site.cache[key] = local_forest(site, schema, contender.own, feature_key, contender.own.n_estimators)
        elif contender.boosted is not None:
            site.cache[key] = local_boost(site, schema, contender.boosted)
        else:
            raise RefusedError("the question names no model for this site")
    forest: Forest = site.cache[key]
    return forest


def _site_forest(site: Site, schema: Schema, contender: Contender) -> SiteForest:
    """Make the forest that stays at the site; kept."""
    key = ("site's forest", msgspec.json.encode(contender), schema.hash)
    if key not in site.cache:
        site.cache[key] = make_forest(site, schema, Ingredients.read(site, schema, contender))
    found: SiteForest = site.cache[key]
    return found


def _decide_at(site: Site, schema: Schema, contender: Contender, feature_key: np.ndarray) -> float:
    """Return from which score on the second of two classes is decided on; NaN where the most probable class is."""
    given = contender.threshold
    if isinstance(given, UnsetType) or schema.n_classes != 2:
        return np.nan
    if isinstance(given, float):
        return given
    if contender.own is None or given not in metrics.THRESHOLD_RULES:
        raise FormatError("a rule for thresholds that there is not")
    return threshold_of(site, schema, contender, feature_key, given)


def shown_threshold(site: Site, schema: Schema, contender: Contender, feature_key: np.ndarray) -> float:
    """Return the threshold that a model decides by, or, where it decides by none, one chosen on training rows."""
    at = _decide_at(site, schema, contender, feature_key)
    return threshold_of(site, schema, contender, feature_key) if np.isnan(at) else at


def threshold_of(
    site: Site, schema: Schema, contender: Contender, feature_key: np.ndarray, rule: str = "youden"
) -> float:
    """Choose the threshold of a model for two classes on training rows; NaN where it is not known what trees saw."""
    if schema.n_classes != 2 or not _grows(site, contender):
        return np.nan
    draws = None if isinstance(contender.draws, UnsetType) else contender.draws
    if contender.own is not None:
        draws = Draws((contender.own.n_estimators,), (site.name,), contender.own.row_draw)
    elif isinstance(contender.mixed, Mixing):
        draws = _site_forest(site, schema, contender).draws
    return site_threshold(site, schema, forest_of(site, schema, contender, feature_key), draws, rule)

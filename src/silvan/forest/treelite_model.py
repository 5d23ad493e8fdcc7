"""Export of a forest as a treelite model.

Treelite supports everything in a forest, including categorical splits and missing directions, so the copy is node by
node and in 64 bits. Each split lists the categories that do not go with the missing values: then an unknown code goes
with them, as it does here.
"""

from itertools import pairwise
from typing import Any

import numpy as np

from silvan.forest.arrays import ForestArrays
from silvan.forest.category_set import is_category_split, known_bins, set_bits
from silvan.forest.parity import check_answers, check_means, import_extra, leaf_terms, probing_rows

TOLERANCE = 1e-12  # share of the largest leaf value: treelite adds trees in another order


def to_treelite(forest: ForestArrays) -> Any:
    """Return a treelite model, after checking that it predicts as the forest does."""
    check_means(forest, "treelite")
    builder, gtil = import_extra("treelite.model_builder"), import_extra("treelite.gtil")
    forest = forest.take(forest.weights > 0)
    model = build(builder, forest)
    rows = probing_rows(forest)
    answers = gtil.predict(model, rows).reshape(len(rows), -1)
    check_answers(forest, rows, answers, TOLERANCE * float(np.abs(forest.value).max()), "treelite")
    return model


def build(builder: Any, forest: ForestArrays) -> Any:
    """Copy the forest node by node into a treelite model."""
    model = _empty(builder, forest)
    category_split = is_category_split(forest.schema, forest.feature).tolist()
    values, listed = iter(leaf_terms(forest).tolist()), iter(_listed(forest))
    # plain Python numbers, since each is passed to a C function
    arrays = (forest.feature, forest.threshold, forest.missing_left, forest.left)
    feature, threshold, missing_left, left = (array.tolist() for array in arrays)
    for begin, end in pairwise(forest.offsets.tolist()):
        model.start_tree()
        for node in range(begin, end):
            model.start_node(node - begin)
            if feature[node] < 0:
                value = next(values)
                model.leaf(value[0] if forest.classes is None else value)
            else:
                split: dict[str, Any] = {
                    "default_left": missing_left[node],
                    "left_child_key": left[node] - begin,
                    "right_child_key": left[node] + 1 - begin,
                }
                if category_split[node]:
                    split.update(category_list=next(listed), category_list_right_child=missing_left[node])
                    model.categorical_test(feature[node], **split)
                else:
                    model.numerical_test(feature[node], threshold[node], opname="<=", **split)
            model.end_node()
        model.end_tree()
    return model.commit()


def _empty(builder: Any, forest: ForestArrays) -> Any:
    n_trees, n_outputs = len(forest), forest.n_outputs
    is_classifier = forest.classes is not None
    return builder.ModelBuilder(
        threshold_type="float64",
        leaf_output_type="float64",
        metadata=builder.Metadata(
            num_feature=forest.n_features,
            task_type="kMultiClf" if is_classifier else "kRegressor",
            average_tree_output=True,
            num_target=1,
            num_class=[n_outputs],
            leaf_vector_shape=(1, n_outputs),
        ),
        tree_annotation=builder.TreeAnnotation(
            num_tree=n_trees, target_id=[0] * n_trees, class_id=[-1 if is_classifier else 0] * n_trees
        ),
        postprocessor=builder.PostProcessorFunc(name="identity_multiclass" if is_classifier else "identity"),
        base_scores=[0.0] * n_outputs,
    )


def _listed(forest: ForestArrays) -> list[list[int]]:
    """List, for every categorical split, the codes that do not go where the missing values go."""
    nodes = np.flatnonzero(is_category_split(forest.schema, forest.feature))
    known = known_bins(forest.schema)[forest.feature[nodes]]
    against = np.where(forest.missing_left[nodes, None], known & ~forest.sets, forest.sets)
    return [(np.flatnonzero(bits) - 1).tolist() for bits in set_bits(against)]

"""A forest as a treelite model.

Treelite has all that a forest has, splits by category and missing directions included, so the copy is node by
node and in 64 bits. The categories listed are those that go against the missing values: then a code that is
none of the known ones goes with them, as it does here.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from silvan.tree.check import is_category_split, known_bins, set_bits
from silvan.tree.parity import check_answers, import_extra, leaf_terms, probing_rows

if TYPE_CHECKING:
    from silvan.tree.forest import Forest

TOLERANCE = 1e-12
"""Answers may differ by this share of the largest leaf value: treelite adds trees up in another order."""


def to_treelite(forest: "Forest") -> Any:
    """Make a treelite model and return it once it has answered as the forest does."""
    builder, gtil = import_extra("treelite.model_builder"), import_extra("treelite.gtil")
    forest = forest.take(forest.weights > 0)
    model = build(builder, forest)
    rows = probing_rows(forest)
    answers = gtil.predict(model, rows).reshape(len(rows), -1)
    check_answers(forest, rows, answers, TOLERANCE * float(np.abs(forest.value).max()), "treelite")
    return model


def build(builder: Any, forest: "Forest") -> Any:
    """Copy node by node."""
    n_trees, n_outputs = len(forest), forest.n_outputs
    is_classifier = forest.classes is not None
    model = builder.ModelBuilder(
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
    value = leaf_terms(forest).tolist()
    category_split = is_category_split(forest.schema, forest.feature)
    set_of = np.cumsum(category_split) - 1
    listed = _listed(forest)
    start = np.repeat(forest.offsets[:-1], np.diff(forest.offsets))
    # plain numbers: each is passed to a C function
    feature, threshold, missing_left = (
        array.tolist() for array in (forest.feature, forest.threshold, forest.missing_left)
    )
    place, left = (np.arange(len(start)) - start).tolist(), (forest.left - start).tolist()
    begin = set(forest.offsets[:-1].tolist())
    end = set((forest.offsets[1:] - 1).tolist())
    for node, f in enumerate(feature):
        if node in begin:
            model.start_tree()
        model.start_node(place[node])
        children = {"left_child_key": left[node], "right_child_key": left[node] + 1}
        if f < 0:
            leaf = value[forest.leaf[node]]
            model.leaf(leaf if is_classifier else leaf[0])
        elif category_split[node]:
            model.categorical_test(
                f,
                default_left=missing_left[node],
                category_list=listed[set_of[node]],
                category_list_right_child=missing_left[node],
                **children,
            )
        else:
            model.numerical_test(f, threshold[node], default_left=missing_left[node], opname="<=", **children)
        model.end_node()
        if node in end:
            model.end_tree()
    return model.commit()


def _listed(forest: "Forest") -> list[list[int]]:
    """List, for every split by category, the codes that do not go where the missing values go."""
    nodes = np.flatnonzero(is_category_split(forest.schema, forest.feature))
    known = known_bins(forest.schema)[forest.feature[nodes]]
    against = np.where(forest.missing_left[nodes, None], known & ~forest.sets, forest.sets)
    return [(np.flatnonzero(bits) - 1).tolist() for bits in set_bits(against)]

"""Forests from adaptive bins in plain Python, literally as published: the reference for the federated ones."""

from dataclasses import dataclass, field

import numpy as np
from helpers.naive_split import best_split

from silvan.tree.sampling import (
    Ties,
    child_seeds,
    make_feature_order,
    root_seeds,
    rows_of_trees,
    sample_features,
    tie_rank,
)


def summarise_naive(values: list[float], y: list[int], most: int) -> list[tuple[float, int, int]]:
    """A naive ``summarise``: bins of (mean, positives, negatives)."""
    histogram: list[tuple[float, int, int]] = []
    for value, positive in zip(values, y, strict=True):
        for j, (r, p, n) in enumerate(histogram):
            if r == value:
                histogram[j] = (r, p + positive, n + 1 - positive)
                break
        else:
            histogram = sorted([*histogram, (value, positive, 1 - positive)])
        if len(histogram) > most:
            histogram = merge_nearest_naive(histogram)
    return histogram


def merge_nearest_naive(histogram: list[tuple[float, int, int]]) -> list[tuple[float, int, int]]:
    """Replaces the two nearest bins by their union (Eqs 4-5)."""
    histogram = sorted(histogram)
    pairs = [(i, j) for i in range(len(histogram)) for j in range(i + 1, len(histogram))]
    i, j = min(pairs, key=lambda pair: abs(histogram[pair[0]][0] - histogram[pair[1]][0]))
    (r1, p1, n1), (r2, p2, n2) = histogram[i], histogram[j]
    mean = ((p1 + n1) * r1 + (p2 + n2) * r2) / (p1 + p2 + n1 + n2)
    rest = [bin_ for k, bin_ in enumerate(histogram) if k not in (i, j)]
    return sorted([*rest, (mean, p1 + p2, n1 + n2)])


@dataclass
class Node:
    rows: list[list[int]]  # of each site
    seed: np.uint64
    depth: int = 0
    attempt: int = 0
    split: tuple | None = None
    children: list["Node"] = field(default_factory=list)


def pooled_bins(sites, rows, f, most):
    """The bins of all sites, merged down (Alg. 3)."""
    joined: dict[float, tuple[float, int, int]] = {}
    for (X, y, _), own in zip(sites, rows, strict=True):
        here = [i for i in own if not np.isnan(X[i, f])]
        for r, p, n in summarise_naive(X[here, f].astype(float).tolist(), y[here].tolist(), most):
            _, a, b = joined.get(r, (r, 0, 0))
            joined[r] = (r, a + p, b + n)
    histogram = sorted(joined.values())
    while len(histogram) > most:
        histogram = merge_nearest_naive(histogram)
    return histogram


def find(sites, node, features, schema, rule, most, ties):
    """The best split of a node: (feature, threshold, categories that go left, whether missing go left), child stats.

    Also whether any feature varies there.
    """
    best, varies = None, False
    for f in features:
        feature = schema.features[f]
        if feature.categorical:
            hist = np.zeros((1 + feature.n_codes, 2), int)
            for (X, y, _), own in zip(sites, node.rows, strict=True):
                for i in own:
                    hist[0 if np.isnan(X[i, f]) else int(X[i, f]) + 1, y[i]] += 1
            hist = hist.tolist()
        else:
            bins = pooled_bins(sites, node.rows, f, most)
            lacking = [
                int(y[i]) for (X, y, _), own in zip(sites, node.rows, strict=True) for i in own if np.isnan(X[i, f])
            ]
            hist = [[lacking.count(0), lacking.count(1)], *([n, p] for _, p, n in bins)]
        found = best_split(hist, rule, feature.categorical)
        varies |= sum(sum(stats) > 0 for stats in hist) > 1
        if found is None:
            continue
        worth = found.value, -int(tie_rank(ties, 0, f))
        if best is not None and worth <= best[0]:
            continue
        threshold = 0.0
        if not feature.categorical and found.bin == len(bins):  # missing values on one side, all others on the other
            threshold = np.finfo(np.float32).max
        elif not feature.categorical:
            threshold = np.float32(0.5 * (bins[found.bin - 1][0] + bins[found.bin][0]))
        total = np.sum(hist, axis=0).tolist()
        sides = [found.left, [t - s for t, s in zip(total, found.left, strict=True)]]
        best = worth, (int(f), threshold, found.left_set, found.missing_left), sides
    return best, varies


def goes_left(X, i, split, schema):
    f, threshold, left_set, missing_left = split
    if schema.features[f].categorical:
        return bool(left_set >> (0 if np.isnan(X[i, f]) else int(X[i, f]) + 1) & 1)
    return bool(missing_left if np.isnan(X[i, f]) else X[i, f] <= threshold)


def counts(sites, node):
    """Rows of a node by class."""
    classes = [int(y[i]) for (_, y, _), own in zip(sites, node.rows, strict=True) for i in own]
    return [classes.count(0), classes.count(1)]


def grow_naive(sites, schema, settings, key, feature_key):
    """Grows trees from the rows of sites, (X, y, row keys) each; then undoes splits with too few rows on a side."""
    plan = settings.federated_plan(len(schema.features))
    rule = settings.rule(settings.measure(schema, np.full(2, sum(len(y) for _, y, _ in sites))))
    order, drawn = make_feature_order(plan.n_features), np.zeros(plan.n_sampled, np.int64)
    in_trees = [rows_of_trees(key, keys, 0, settings.n_estimators, settings.row_sampling) for _, _, keys in sites]
    seeds = root_seeds(feature_key, np.arange(settings.n_estimators))
    roots = [Node([np.flatnonzero(d[t]).tolist() for d in in_trees], seeds[t]) for t in range(settings.n_estimators)]
    frontier, rounds = roots, 0
    while frontier:
        rounds += 1
        more, again, born = plan.max_rounds is None or rounds < plan.max_rounds, [], []
        for node in frontier:
            stats = counts(sites, node)
            if sum(stats) < rule.min_split or min(stats) == 0:
                continue
            features = drawn[: sample_features(node.seed, node.attempt, order, drawn)].tolist()
            ties = Ties(feature_key, np.array([node.seed]))
            best, varies = find(sites, node, features, schema, rule, settings.max_bins, ties)
            if best is None:
                node.attempt += 1
                if not varies and more and node.attempt < plan.n_draws and sum(stats) >= 2 * rule.min_leaf:
                    again.append(node)
                continue
            _, node.split, sides = best
            below = [node.seed] * 2 if plan.by_tree else child_seeds(np.array([node.seed]))[0]
            for side, seed, estimate in zip((True, False), below, sides, strict=True):
                here = [
                    [i for i in own if goes_left(X, i, node.split, schema) == side]
                    for (X, _, _), own in zip(sites, node.rows, strict=True)
                ]
                child = Node(here, seed, node.depth + 1)
                node.children.append(child)
                wide = sum(estimate) >= rule.min_split and sum(estimate) >= 2 * rule.min_leaf and min(estimate) > 0
                if more and wide and child.depth < plan.max_depth:
                    born.append(child)
        frontier = again + born
    for root in roots:
        take_back(sites, root, rule.min_leaf)
    return roots


def take_back(sites, node, least):
    """Undoes, from the bottom up, every split with fewer rows on a side."""
    for child in node.children:
        take_back(sites, child, least)
    if any(sum(map(len, child.rows)) < least for child in node.children):
        node.split, node.children = None, []


def assert_same(forest, roots, sites, class_weight=None):
    """Checks that a forest has these trees, and its leaves the values of the rows that reach them."""
    weight = np.ones(2) if class_weight is None else np.array(class_weight)
    inner = 0
    for t, root in enumerate(roots):
        level, at = [root], int(forest.offsets[t])
        for node in level:  # grows while it is walked: level order
            if node.split is None:
                assert forest.feature[at] == -1
                mass = np.array(counts(sites, node)) * weight
                share = mass / mass.sum() if mass.sum() else [0.5, 0.5]
                np.testing.assert_allclose(forest.value[forest.leaf[at]], share, rtol=1e-12, atol=0)
            else:
                f, threshold, left_set, missing_left = node.split
                assert (forest.feature[at], forest.missing_left[at]) == (f, missing_left)
                if forest.schema.features[f].categorical:
                    words = [left_set >> 64 * w & (1 << 64) - 1 for w in range(4)]
                    assert forest.sets[inner].tolist() == words
                    inner += 1
                else:
                    assert forest.threshold[at] == threshold
                level += node.children
            at += 1
        assert at == forest.offsets[t + 1]

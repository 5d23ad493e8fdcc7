"""Grow all trees round by round, wherever the rows are.

Centralised, horizontal and vertical forests differ only in who finds the splits of the open nodes and who
applies them; ``grow`` receives both as functions and keeps track of the nodes. A node has a number: roots are
0, 1, ... in the order of their trees; the k-th split of a round makes the next two numbers, left then right.

A node in which all sampled features are constant stays open and samples the next ones, as long as there are rounds: a
constant column does not end a branch. One whose features vary and offer no split is a leaf.

Sums alone do not show whether all numbers in a node are equal. So in regression a node may be split without gain,
once: the next split below must have a gain, otherwise the first is undone. This suffices to find two columns that
decide together but not alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from silvan.tree.gain import Rule, child_bounds
from silvan.tree.sampling import FREE, Monotonic, Ties, child_seeds, root_seeds
from silvan.tree.split import Splits

RULES = 1
"""Version of the rules by which trees grow: increase it when the same study would give other trees.

Journals record it, so that no forest mixes trees of two versions.
"""


@dataclass(frozen=True)
class Plan:
    """How trees grow, apart from the split criterion.

    ``n_sampled`` features are sampled at a node (or, if ``by_tree``, once for a tree); ``tries`` is how often a node
    may sample in one round; ``max_rounds`` ends growing where a round is a message to other sites.
    """

    n_features: int
    n_sampled: int
    max_depth: int | None = None
    by_tree: bool = False
    tries: int = 1
    max_rounds: int | None = None
    monotonic: tuple[int, ...] = ()  # per feature, if there are constraints: 1, -1 or 0

    @property
    def n_draws(self) -> int:
        """The number of samples that covers every feature."""
        return 1 if self.by_tree else -(-self.n_features // self.n_sampled)


@dataclass(frozen=True)
class Frontier:
    """The open nodes of a round."""

    node: np.ndarray
    tree: np.ndarray
    depth: np.ndarray
    seed: np.ndarray
    attempt: np.ndarray
    barren: np.ndarray  # bool: the split above had no gain, so the next one must
    bounds: np.ndarray | None = None  # on predictions, if they must be monotonic

    def __len__(self) -> int:
        return len(self.node)

    def take(self, which: np.ndarray) -> "Frontier":
        """Return some of the nodes."""
        values: list[Any] = [getattr(self, f) for f in self.__dataclass_fields__]
        return Frontier(*[None if value is None else value[which] for value in values])  # type: ignore[arg-type]

    def join(self, other: "Frontier") -> "Frontier":
        """Return the nodes of two frontiers, concatenated."""
        pairs = ((getattr(self, f), getattr(other, f)) for f in self.__dataclass_fields__)
        return Frontier(*[None if pair[0] is None else np.concatenate(pair) for pair in pairs])  # type: ignore[arg-type]

    def ties(self, key: np.ndarray, plan: Plan) -> Ties:
        """Return the tie-breakers for the splits of each node."""
        signs = np.array(plan.monotonic, np.int8)
        return Ties(key, self.seed, 0, FREE if self.bounds is None else Monotonic(signs, self.bounds))


@dataclass(frozen=True)
class Grown:
    """Grown trees: the tree, depth and statistics of each node by number, and the splits in order.

    The k-th split's children have the numbers ``n_trees + 2k`` and the next.
    """

    n_trees: int
    rounds: int
    tree: np.ndarray
    depth: np.ndarray
    stats: np.ndarray
    node: np.ndarray  # per split, like all below
    feature: np.ndarray
    bin: np.ndarray
    missing_left: np.ndarray
    words: np.ndarray
    gain: np.ndarray
    kept: np.ndarray | None = None  # bool, per split: the others are undone. None: all are kept


Find = Callable[[Frontier], Splits]
Apply = Callable[[np.ndarray, Splits, np.ndarray], None]


def grow(trees: np.ndarray, key: np.ndarray, plan: Plan, rule: Rule, find: Find, apply: Apply) -> Grown:
    """Grow trees.

    ``find(frontier)`` decides every open node; splits without gain of ``barren`` nodes are dropped.
    ``apply(nodes, splits, needed)`` moves the rows of split nodes to their children; ``needed`` tells for each node
    whether a child is open, so that its rows matter.
    """
    n = len(trees)
    roots = np.arange(n)
    zeros = np.zeros(n, np.int32)
    bounds = np.tile([-np.inf, np.inf], (n, 1)) if plan.monotonic else None
    frontier = Frontier(roots, roots, zeros, root_seeds(key, np.asarray(trees)), zeros, np.zeros(n, np.bool_), bounds)
    born: list[tuple[np.ndarray, ...]] = []
    split: list[tuple[np.ndarray, ...]] = []
    rounds = 0
    while len(frontier):
        splits = find(frontier)
        if rounds == 0:
            born.append((roots, zeros, splits.total))
        rounds += 1
        splits.feature[frontier.barren & (splits.gain <= 0.0)] = -1
        chosen = np.flatnonzero(splits.feature >= 0)
        parents = frontier.take(chosen)
        made = Splits(*(column[chosen] for column in splits))
        split.append((parents.node, made.feature, made.bin, made.missing_left, made.words, made.gain))

        left, total = made.left, made.total
        signs = np.array(plan.monotonic, np.int8)
        stats = np.stack([left, total - left], axis=1).reshape(-1, total.shape[1])
        children = Frontier(
            n + np.arange(2 * len(chosen)),
            np.repeat(parents.tree, 2),
            np.repeat(parents.depth + 1, 2),
            np.repeat(parents.seed, 2) if plan.by_tree else child_seeds(parents.seed).reshape(-1),
            np.zeros(2 * len(chosen), np.int32),
            np.repeat(rule.needs_gain & (made.gain <= 0.0), 2),
            None if parents.bounds is None else child_bounds(parents.bounds, signs[made.feature], left, total, rule),
        )
        born.append((children.tree, children.depth, stats))
        n += 2 * len(chosen)

        more = plan.max_rounds is None or rounds < plan.max_rounds
        is_open = rule.open_nodes(stats) & more
        if plan.max_depth is not None:
            is_open &= children.depth < plan.max_depth
        left_open, right_open = is_open.reshape(-1, 2).T
        apply(parents.node, made, left_open | right_open)
        again = _sample_again(frontier, splits, plan, rule) if more else frontier.take(chosen[:0])
        frontier = Frontier.join(again, children.take(np.flatnonzero(is_open)))
    grown = Grown(len(roots), rounds, *_join(born), *_join(split))
    return replace(grown, kept=_led_to_gain(grown)) if rule.needs_gain else grown


def _led_to_gain(grown: Grown) -> np.ndarray:
    """Return which splits have a gain, or a split with a gain below them."""
    is_split = np.zeros(len(grown.tree), np.bool_)
    is_split[grown.node] = True
    left = grown.n_trees + 2 * np.arange(len(grown.node))
    led: np.ndarray = (grown.gain > 0.0) | is_split[left] | is_split[left + 1]
    return led


def _join(parts: list[tuple[np.ndarray, ...]]) -> list[np.ndarray]:
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def _sample_again(frontier: Frontier, splits: Splits, plan: Plan, rule: Rule) -> Frontier:
    """Return the nodes whose sampled features were all constant and that have others left to try."""
    stuck = frontier.take(np.flatnonzero(~splits.varies & rule.open_nodes(splits.total)))
    stuck = replace(stuck, attempt=stuck.attempt + plan.tries)
    return stuck.take(np.flatnonzero(stuck.attempt < plan.n_draws))

"""Find the best split of a node for objectives whose gain is a NumPy function.

It follows the same rules as ``split.py``, with one call of ``Objective.gain`` for all cuts of a feature.
"""

from typing import NamedTuple

import numpy as np

from silvan.data.bins.bins import HistogramBins
from silvan.forest.category_set import SET_WORDS
from silvan.tree.gain import Rule
from silvan.tree.sampling import Ties, tie_rank
from silvan.tree.split import Splits, last_code


class _Best(NamedTuple):
    """The best split of one feature."""

    gain: float
    bin: int
    missing_left: bool
    left_set: int  # bit b for bin b; 0 for a numeric split
    left: np.ndarray


def choose_plain(
    hist: np.ndarray,
    features: np.ndarray,
    bases: np.ndarray,
    bins: HistogramBins,
    categorical: np.ndarray,
    rule: Rule,
    ties: Ties,
    offsets: np.ndarray,
) -> Splits:
    """Find the best split of every node from the histograms of a level; gains are decreases of impurity."""
    splits = Splits.empty(len(features), hist.shape[1])
    for node, drawn in enumerate(features):
        for f, base in zip(drawn[drawn >= 0], bases[node], strict=False):
            block = hist[base : base + bins.n_bins[f]].astype(np.int64)
            splits.total[node] = total = block.sum(axis=0)
            held = rule.n_rows(block) > 0
            if held.sum() < 2 or not rule.open_nodes(total[None])[0]:
                continue
            splits.varies[node] = True
            find = _best_set if categorical[f] else _best_cut
            best = find(block, np.flatnonzero(held[1:]) + 1, bool(held[0]), total, rule)
            if best is None or not _is_better(best.gain, int(f), node, ties, splits):
                continue
            splits.feature[node], splits.gain[node] = f, max(best.gain, 0.0)
            splits.bin[node] = best.bin if categorical[f] else last_code(best.bin, bins, f, offsets[node])
            splits.missing_left[node], splits.left[node] = best.missing_left, best.left
            splits.words[node] = [best.left_set >> 64 * w & (1 << 64) - 1 for w in range(SET_WORDS)]
    return splits


def _is_better(gain: float, feature: int, node: int, ties: Ties, splits: Splits) -> bool:
    before = int(splits.feature[node])
    if before < 0 or gain != splits.gain[node]:
        return before < 0 or gain > splits.gain[node]
    return bool(tie_rank(ties, node, feature) < tie_rank(ties, node, before))


def _gains(left: np.ndarray, total: np.ndarray, rule: Rule) -> np.ndarray:
    """Return the gains of splits; minus infinity if a side is too small."""
    right = total - left
    fits = np.minimum(rule.n_rows(left), rule.n_rows(right)) >= max(rule.min_leaf, 1)
    if rule.lead > 0:  # the mass is the last number before the target: the row count, if rows have no weights
        fits &= np.minimum(left[:, rule.lead - 1], right[:, rule.lead - 1]) >= rule.min_mass
    gains = np.full(len(left), -np.inf)
    if fits.any():
        gains[fits] = rule.objective.gain(left[fits], np.broadcast_to(total, left.shape)[fits])
    return gains


def _best_cut(block: np.ndarray, held: np.ndarray, missing: bool, total: np.ndarray, rule: Rule) -> _Best | None:
    """Find the best cut of a number: in a tie the lowest, then the one with missing values on the left."""
    left = np.cumsum(block[held], axis=0)
    sides = np.stack([left + block[0], left], axis=1) if missing else left[:, None]
    gains = _gains(sides.reshape(-1, len(total)), total, rule)
    best = int(gains.argmax())
    if gains[best] == -np.inf:
        return None
    at, way = divmod(best, sides.shape[1])
    # all cuts in a gap between occupied bins split these rows alike: the middle one is best for new rows
    last = (held[at] + held[at + 1]) >> 1 if at + 1 < len(held) else len(block) - 1
    side = sides[at, way]
    missing_left = way == 0 if missing else bool(2 * rule.n_rows(side[None])[0] >= rule.n_rows(total[None])[0])
    return _Best(float(gains[best]), int(last), missing_left, 0, side)


def _best_set(block: np.ndarray, held: np.ndarray, missing: bool, total: np.ndarray, rule: Rule) -> _Best | None:
    """Find the best set of categories; the left side has the lowest category, and in a tie the lowest set wins."""
    order, bits = rule.objective.category_order(block[held]), [1 << int(b) for b in held]
    if order is None:
        found = [(block[b], bit) for b, bit in zip(held, bits, strict=True)]
        if missing:
            found.append((np.zeros_like(total), 0))  # missing values alone
    else:
        rank = np.argsort(order, kind="stable")
        sums, sets = np.cumsum(block[held[rank]], axis=0), np.cumsum(np.array(bits, object)[rank])
        # equal ones stay together, so that their order cannot matter; if all are equal, the codes decide
        apart = np.append(np.diff(order[rank]) > 0, True)
        found = [(sums[i], sets[i]) for i in range(len(held)) if apart[i] or not apart[:-1].any()]
    sides = [(s + m * block[0], bit, m) for m in ((True, False) if missing else (False,)) for s, bit in found]
    gains = _gains(np.stack([s for s, _, _ in sides]), total, rule)
    every, best = sum(bits), None
    for gain, (side, inside, with_missing) in zip(gains, sides, strict=True):
        if gain == -np.inf or (best is not None and gain < best.gain):
            continue
        turned = not inside & bits[0]
        left, left_set = (total - side, every ^ inside) if turned else (side, inside)
        half = bool(2 * rule.n_rows(left[None])[0] >= rule.n_rows(total[None])[0])
        missing_left = with_missing != turned if missing else half
        left_set |= int(missing_left)
        if best is None or gain > best.gain or left_set < best.left_set:
            best = _Best(float(gain), 0, missing_left, left_set, left)
    if best is not None and best.missing_left:  # unseen categories follow the missing values
        best = best._replace(left_set=best.left_set | ((1 << len(block)) - 2) & ~every)
    return best

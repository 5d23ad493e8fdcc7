"""How often corrected intervals of gains over many splits contain the true gain, in a simulated world.

A site has 100 rows of two classes and six columns, two others have 200 more. The local model is a linear discriminant
on its own rows, the joint model one on all rows; both are evaluated by AUC on the site's rows. The true gain is that
of models trained on as many rows as a split has, evaluated on 20,000 fresh rows, over many samples. Run it as
``python experiments/repeats/interval_coverage.py``; it takes some minutes.
"""

import numpy as np

from silvan.algorithms.evaluation.repeats import corrected_interval

DRAWS, ROWS = 400, 100
rng = np.random.default_rng(1)


def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of the simulated world, half of each class."""
    y = np.arange(n) % 2
    return rng.normal(size=(n, 6)) + 0.45 * y[:, None] * np.array([1, 1, 0.5, 0, 0, 0]), y


def auc(scores: np.ndarray, y: np.ndarray) -> float:
    """Return the area under the ROC curve of scores without ties."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores)] = np.arange(1, len(scores) + 1)
    p = int(y.sum())
    return float((ranks[y == 1].sum() - p * (p + 1) / 2) / (p * (len(y) - p)))


def discriminant(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the weights of a linear discriminant."""
    return np.linalg.solve(np.cov(x.T) + 0.5 * np.eye(x.shape[1]), x[y == 1].mean(0) - x[y == 0].mean(0))


def gain(own: tuple, others: tuple, test: tuple) -> float:
    """Return the gain in AUC with the others' rows."""
    together = np.vstack([own[0], others[0]]), np.concatenate([own[1], others[1]])
    return auc(test[0] @ discriminant(*together), test[1]) - auc(test[0] @ discriminant(*own), test[1])


def over_splits(own: tuple, others: tuple, folds: int, repeats: int) -> np.ndarray:
    """Return the gain in every split."""
    (x, y), (ox, oy), found = own, others, []
    for _ in range(repeats):
        of_class = [rng.permutation(np.flatnonzero(y == c)) for c in (0, 1)]
        elsewhere = rng.permutation(len(oy))
        for k in range(folds):
            test, left = np.zeros(len(y), bool), np.zeros(len(oy), bool)
            for rows in of_class:
                test[rows[k::folds]] = True
            left[elsewhere[k::folds]] = True
            found.append(gain((x[~test], y[~test]), (ox[~left], oy[~left]), (x[test], y[test])))
    return np.array(found)


def main() -> None:
    """Print how often intervals contain the true gain, with and without the correction."""
    world = draw(20_000)
    for folds, repeats in ((5, 2), (10, 10)):
        kept = ROWS * (folds - 1) // folds
        true = np.mean([gain(draw(kept), draw(2 * kept), world) for _ in range(DRAWS)])
        held = []
        for _ in range(DRAWS):
            gains = over_splits(draw(ROWS), draw(2 * ROWS), folds, repeats)
            ends = [corrected_interval(gains, ratio) for ratio in (1.0 / (folds - 1), 0.0)]
            held.append([pair is not None and pair[0] <= true <= pair[1] for pair in ends])
        corrected, plain = np.mean(held, axis=0)
        print(f"{repeats} x {folds} folds: true gain {true:.4f}, held by {corrected:.1%}, uncorrected by {plain:.1%}")


if __name__ == "__main__":
    main()

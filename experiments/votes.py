"""Compare votes of trees with means of their probabilities, on tables that come with scikit-learn.

    python -m experiments.votes

The table is in docs/vertical.md.
"""

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

import silvan as sv
from silvan.forest.predict import tally

TABLES = {"breast cancer": load_breast_cancer, "digits": load_digits, "wine": load_wine}


def measure(X: np.ndarray, y: np.ndarray, n_trees: int, seed: int) -> list[float]:
    """Return accuracies and log losses of means and of votes, and the share of rows with tied votes."""
    a, b, ya, yb = train_test_split(X, y, test_size=0.3, stratify=y, random_state=seed)
    forest = sv.ForestClassifier(n_trees, random_state=seed).fit(a, ya).forest_
    total = tally(forest, np.ascontiguousarray(b, np.float32), forest.weights)
    means, shares = total.means(), total.votes / total.weight[:, None]
    top = np.sort(shares, axis=1)
    return [
        (means.argmax(axis=1) == yb).mean(),
        (shares.argmax(axis=1) == yb).mean(),
        log_loss(yb, means),
        log_loss(yb, shares),
        (top[:, -1] == top[:, -2]).mean(),
    ]


def main() -> None:
    """Print a line for each table and number of trees: means of 20 splits of the rows."""
    print("| rows | trees | accuracy, mean | accuracy, votes | log loss, mean | log loss, votes | votes tied |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, load in TABLES.items():
        X, y = load(return_X_y=True)
        for n_trees in (10, 100):
            found = np.mean([measure(X, y, n_trees, seed) for seed in range(20)], axis=0)
            print(f"| {name} | {n_trees} |" + "".join(f" {x:.4f} |" for x in found), flush=True)


if __name__ == "__main__":
    main()

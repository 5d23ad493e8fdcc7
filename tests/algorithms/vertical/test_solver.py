"""Regression with columns offered step by step: equal to scikit-learn's on all columns."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from silvan.algorithms.vertical import solver as regression_module
from silvan.algorithms.vertical.linear_steps import make_target
from silvan.algorithms.vertical.solver import (
    Block,
    Coefficients,
    MisfitError,
    ReducedColumns,
    Regression,
    class_probabilities,
    conjugate_gradients,
    curvature,
    pseudo_inverse,
    with_constant,
)
from silvan.data.schema import Label
from silvan.util.threads import algebra_threads


@pytest.fixture(autouse=True)
def one_thread():
    with algebra_threads(1):
        yield


LABELS = {"number": Label("y"), "two": Label("y", (0, 1)), "several": Label("y", (0, 1, 2, 3))}


def problem(kind, n=300, d=12, seed=0):
    """Strongly correlated columns, and a label that depends on them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) + rng.normal(size=(n, 1))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    signal = X @ rng.normal(size=d) + rng.normal(size=n)
    y = {"number": 50 + 3 * signal, "two": (signal > 0.5).astype(int), "several": np.digitize(signal, [-2, 0, 2])}[kind]
    return X, y


def reference(X, y, kind, alpha):
    if kind == "number":
        return Ridge(alpha=alpha).fit(X, y).coef_[:, None] / y.std()
    return LogisticRegression(C=1 / alpha, tol=1e-12, max_iter=10_000).fit(X, y).coef_.T


def fit(X, y, kind, sizes, alpha=1.0, tol=1e-9, most=60):
    """The first party has the label; the others offer columns until there is no further gain."""
    parts = np.split(X, np.cumsum(sizes)[:-1], axis=1)
    labels = make_target(y, LABELS[kind])
    first, *others = [ReducedColumns.of(part) for part in parts]
    regression = Regression(first.X, labels.target, alpha, labels.start)
    blocks = [Block(part.X, alpha, kind == "number") for part in others]
    regression.fit(0.1 * tol)
    factor, left = 1.0, np.inf
    while left > tol and len(regression.theta.taken) < most:
        offers = [block.offer(regression.residuals(), regression.theta.taken, factor) for block in blocks]
        column, products = (sum(parts) for parts in zip(*offers, strict=True))
        left = float(np.sqrt(products[0] / len(X))) / factor
        regression.add_column(column, products[1:])
        regression.fit(0.1 * max(tol, left))
        factor = 2.0 ** max(-np.floor(np.log2(max(left, 1e-11))), 0)
    found = [first.expand(regression.theta.own[:-1])]
    found += [
        part.expand(b.coefficients(regression.theta.taken, labels.target.width))
        for part, b in zip(others, blocks, strict=True)
    ]
    return np.concatenate(found), regression


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("alpha", [0.01, 10.0])
@pytest.mark.parametrize("sizes", [(6, 6), (11, 1), (3, 3, 3, 3), (0, 12), (12,)], ids=str)
def test_coefficients_equal_those_of_all_columns(kind, alpha, sizes):
    X, y = problem(kind)
    if len(sizes) == 1:
        labels = make_target(y, LABELS[kind])
        alone = Regression(X, labels.target, alpha, labels.start)
        alone.fit(1e-9)
        found = alone.theta.own[:-1]
    else:
        found, _ = fit(X, y, kind, sizes, alpha)
    found = found - found.mean(axis=1, keepdims=True) if kind == "several" else found
    assert np.allclose(found, reference(X, y, kind, alpha), atol=2e-6 * max(1, np.abs(found).max()))


def test_as_many_directions_as_columns_are_enough_for_numbers():
    X, y = problem("number", d=14)
    _, regression = fit(X, y, "number", (7, 7))
    assert len(regression.theta.taken) <= 8


@pytest.mark.parametrize("kind", LABELS)
def test_more_columns_than_rows(kind):
    X, y = problem(kind, n=40, d=90)
    found, _ = fit(X, y, kind, (45, 45), tol=1e-7, most=200)
    expected = reference(X, y, kind, 1.0)
    assert np.allclose(X @ (found - found.mean(axis=1, keepdims=True) * (kind == "several")), X @ expected, atol=1e-4)


def test_narrow_columns_have_the_same_products():
    X, _ = problem("two", n=20, d=50)
    narrow = ReducedColumns.of(X)
    assert narrow.X.shape[1] <= 20
    assert np.allclose(narrow.X @ narrow.X.T, X @ X.T)
    c = np.random.default_rng(0).normal(size=(narrow.X.shape[1], 2))
    assert np.allclose(X @ narrow.expand(c), narrow.X @ c)
    assert np.allclose((narrow.expand(c) ** 2).sum(), (c**2).sum())
    assert ReducedColumns.of(X.T).X is not None
    assert ReducedColumns.of(X.T).back is None


@pytest.mark.parametrize("kind", LABELS)
def test_perfectly_separable_rows(kind):
    X, y = problem(kind, n=80)
    X = np.concatenate([X, 40 * (y[:, None] - y.mean())], axis=1)
    found, regression = fit(X, y, kind, (6, 7), alpha=1e-3, tol=1e-5)
    assert np.isfinite(found).all()
    assert np.abs(regression.residuals()).max() < 0.2


def test_shares():
    p = np.array([[0.0], [800.0], [-800.0]])
    assert class_probabilities(p)[:, 0].tolist() == [0.5, 1.0, 0.0]
    several = class_probabilities(np.array([[1000.0, 1000.0, 0.0], [-1.0, -1.0, -1.0]]))
    assert np.allclose(several, [[0.5, 0.5, 0.0], [1 / 3] * 3])


def test_inconsistent_columns():
    X, y = problem("two")
    labels = make_target(y, LABELS["two"])
    regression = Regression(X, labels.target, 1.0, labels.start)
    regression.fit(1e-6)
    regression.add_column(np.ones((len(X), 1)), np.full(1, -1e9))
    with pytest.raises(MisfitError, match="do not fit together"):
        regression.fit(1e-6)


def test_the_inverse_is_complete():
    A = np.random.default_rng(0).normal(size=(30, 6))
    H = A.T @ A
    assert np.allclose(pseudo_inverse(H) @ H, np.eye(6))
    H[:, 5] = H[5] = 0
    assert np.allclose((pseudo_inverse(H) @ H)[:5, :5], np.eye(5))
    assert not pseudo_inverse(H)[5].any()
    assert pseudo_inverse(np.zeros((0, 0))).shape == (0, 0)
    with pytest.raises(MisfitError):
        pseudo_inverse(np.full((2, 2), np.nan))


def test_conjugate_gradients():
    A = np.random.default_rng(0).normal(size=(30, 8))
    H, nothing = A.T @ A, np.zeros(0)
    b = Coefficients(np.arange(8.0)[:, None], nothing)
    found = b.plus(b, -1)

    def apply(v):
        return Coefficients(H @ v.own, nothing)

    def easy(v):
        return Coefficients(v.own / np.diag(H)[:, None], nothing)

    for _ in range(4):  # each reduces the residual by a factor of a hundred
        left = b.plus(apply(found), -1)
        found = found.plus(
            conjugate_gradients(
                lambda v: Coefficients(H @ v.own, nothing),
                left,
                lambda v: Coefficients(v.own / np.diag(H)[:, None], nothing),
            )
        )
    assert np.allclose(H @ found.own, b.own, atol=1e-5)


@pytest.mark.parametrize("kind", LABELS)
def test_second_derivatives(kind):
    """By finite differences of the first."""
    X, y = problem(kind, n=40, d=3)
    target = make_target(y, LABELS[kind]).target
    F, f = with_constant(X), 4
    b = np.random.default_rng(1).normal(size=(f, target.width))

    def slope(b):
        return (F.T @ (target.mean(F @ b) - target.y) + np.diag([2.0, 2, 2, 0]) @ b).T.ravel()

    H = curvature(F, target.mean(F @ b), target.numbers, alpha=2.0)
    for i in range(b.size):
        change = np.zeros((target.width, f))
        change.ravel()[i] = 1e-6
        assert np.allclose((slope(b + change.T) - slope(b - change.T)) / 2e-6, H[i], atol=1e-6)


def test_all_classes_at_once_or_one_after_the_other(monkeypatch):
    X, y = problem("several")
    at_once, _ = fit(X, y, "several", (6, 6))
    monkeypatch.setattr(regression_module, "_AT_ONCE", 10)
    one_by_one, _ = fit(X, y, "several", (6, 6))
    assert np.allclose(at_once, one_by_one, atol=1e-6)

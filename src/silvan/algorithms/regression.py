"""Regression with a ridge penalty, linear or logistic, some of whose columns are made by others.

Whoever has the label fits its own columns, and beside them columns that others offer: each is a sum of the others'
columns in some direction, and its coefficient says how far they should go in that direction. A direction is a step of
Newton's method in the offering party's own columns. All coefficients are found anew each time, so that no earlier step
has to be taken back, and with as many directions as the others have columns the fit is that of all columns together.
For squares this is the method of conjugate gradients on what the label holder's own columns leave unexplained.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from silvan.errors import FormatError

_STEPS, _INNER = 100, 200
"""Most steps of Newton's method, and of conjugate gradients within one."""

_NOTHING = 1e-13
"""Directions in which a matrix is smaller than that, against its largest, are taken for none."""


class MisfitError(FormatError):
    """Columns and products that no columns could have led to."""

    def __init__(self) -> None:
        super().__init__("the columns that were offered do not fit together")


class Target(NamedTuple):
    """What is to be explained: numbers of mean 0 and deviation 1; or classes, (rows, 1) if two, else one a column."""

    y: np.ndarray
    numbers: bool

    @property
    def width(self) -> int:
        """How many predictors a row has."""
        return int(self.y.shape[1])

    def mean(self, predictor: np.ndarray) -> np.ndarray:
        """Give what is expected."""
        if self.numbers:
            return predictor
        return shares(predictor)

    def loss(self, predictor: np.ndarray) -> float:
        """Give half the squared error, or the negative log-likelihood."""
        if self.numbers:
            return 0.5 * float(((self.y - predictor) ** 2).sum())
        if self.width == 1:
            return float((np.logaddexp(0.0, predictor) - self.y * predictor).sum())
        top = predictor.max(axis=1, keepdims=True)
        spread = np.log(np.exp(predictor - top).sum(axis=1)) + top[:, 0]
        return float((spread - (self.y * predictor).sum(axis=1)).sum())

    def curve(self, mean: np.ndarray) -> np.ndarray:
        """Give the second derivative of a row's loss by each of its predictors."""
        return np.ones_like(mean) if self.numbers else mean * (1.0 - mean)


def shares(predictor: np.ndarray) -> np.ndarray:
    """Give the probability of the second of two classes, or of each of several."""
    if predictor.shape[1] == 1:
        weight = np.exp(-np.abs(predictor))
        return np.where(predictor >= 0, 1.0, weight) / (1.0 + weight)
    weight = np.exp(predictor - predictor.max(axis=1, keepdims=True))
    return weight / weight.sum(axis=1, keepdims=True)


class Narrow(NamedTuple):
    """Columns, as no more combinations of them than there are rows; what is left out does nothing for any row."""

    X: np.ndarray
    back: np.ndarray | None  # from coefficients of the combinations to those of the columns

    @classmethod
    def of(cls, X: np.ndarray) -> "Narrow":
        """Combine columns if there are more of them than rows. Lengths stay, so penalties do."""
        if X.shape[1] <= len(X):
            return cls(X, None)
        values, vectors = np.linalg.eigh(X @ X.T)
        kept = values > _NOTHING * values[-1:]
        size = np.sqrt(values[kept])
        return cls(vectors[:, kept] * size, X.T @ (vectors[:, kept] / size))

    def widen(self, coefficients: np.ndarray) -> np.ndarray:
        """Give the coefficients of the columns."""
        return coefficients if self.back is None else self.back @ coefficients


# -- where the label is


class Regression:
    """A regression that grows by columns which others offer."""

    def __init__(self, X: np.ndarray, target: Target, alpha: float, start: np.ndarray) -> None:
        n, width = len(X), target.width
        self.X, self.target, self.alpha = X, target, alpha
        self.offered = np.zeros((width, n, 0))
        self.gram = np.zeros((width, 0, 0))  # alpha times the products of the directions
        self.theta = np.zeros((X.shape[1] + 1, width))  # own coefficients, the constant, those of offered columns
        self.theta[-1] = start

    @property
    def own(self) -> np.ndarray:
        """Coefficients of the own columns."""
        return self.theta[: self.X.shape[1]]

    @property
    def constant(self) -> np.ndarray:
        """The constant term of each predictor."""
        constant: np.ndarray = self.theta[self.X.shape[1]]
        return constant

    @property
    def taken(self) -> np.ndarray:
        """How far to go in each direction so far: (directions, predictors)."""
        return self.theta[self.X.shape[1] + 1 :]

    def residuals(self) -> np.ndarray:
        """Give what is still unexplained."""
        return self.target.y - self.target.mean(self._predict(self.theta))

    def offer(self, column: np.ndarray, products: np.ndarray) -> None:
        """Take a column: (rows, predictors), and alpha times its direction's products with itself and those before."""
        t = self.gram.shape[1]
        gram = np.zeros((self.target.width, t + 1, t + 1))
        gram[:, :t, :t] = self.gram
        gram[:, t, t] = products[0]
        gram[:, t, :t] = gram[:, :t, t] = products[1:].T
        self.gram = gram
        self.offered = np.concatenate([self.offered, column.T[:, :, None]], axis=2)
        self.theta = np.concatenate([self.theta, np.zeros((1, self.target.width))])

    def fit(self, tol: float) -> None:
        """Find all coefficients, by Newton's method; what is left would change predictors by less than ``tol``."""
        n = len(self.X)
        value = self._objective(self.theta)
        for _ in range(_STEPS):
            mean = self.target.mean(self._predict(self.theta))
            gradient = self._gather(self.target.y - mean) - self._pull(self.theta)
            step = self._newton(mean, gradient)
            gain = float((gradient * step).sum())
            if not np.isfinite(gain) or gain < 0:
                raise MisfitError
            if gain <= tol * tol * n:
                break
            length = 1.0
            while (new := self._objective(self.theta + length * step)) > value - 1e-4 * length * gain:
                length /= 2
                if length < 1e-9:
                    return  # as good as numbers allow
            self.theta, value = self.theta + length * step, new
        if not self.target.numbers and self.target.width > 1:
            self.theta[self.X.shape[1]] -= self.constant.mean()  # the same to all classes changes nothing

    def _newton(self, mean: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Solve for the step of Newton's method; exactly if a row has one predictor."""
        curve = self.target.curve(mean)
        solve = self._blocks(curve)
        if self.target.width == 1:
            return solve(gradient)

        def curved(v: np.ndarray) -> np.ndarray:
            z = self._predict(v)
            return self._gather(mean * (z - (mean * z).sum(axis=1, keepdims=True))) + self._pull(v)

        return conjugate_gradients(curved, gradient, solve)

    def _blocks(self, curve: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """Invert the second derivatives by the coefficients of one predictor at a time."""
        d = self.X.shape[1]
        inverses = []
        for k, w in enumerate(curve.T):
            F = np.concatenate([self.X, np.ones((len(self.X), 1)), self.offered[k]], axis=1)
            H = (F * w[:, None]).T @ F
            H[np.arange(d), np.arange(d)] += self.alpha
            H[d + 1 :, d + 1 :] += self.gram[k]
            inverses.append(inverse(H))
        return lambda v: np.stack([inverse @ column for inverse, column in zip(inverses, v.T, strict=True)], axis=1)

    def _predict(self, theta: np.ndarray) -> np.ndarray:
        d = self.X.shape[1]
        others = np.matmul(self.offered, theta[d + 1 :].T[:, :, None])[:, :, 0].T
        predictor: np.ndarray = self.X @ theta[:d] + theta[d] + others
        return predictor

    def _gather(self, rows: np.ndarray) -> np.ndarray:
        others = np.matmul(rows.T[:, None], self.offered)[:, 0].T
        return np.concatenate([self.X.T @ rows, rows.sum(axis=0)[None], others])

    def _pull(self, theta: np.ndarray) -> np.ndarray:
        """Give the derivative of the penalty."""
        d = self.X.shape[1]
        others = np.matmul(self.gram, theta[d + 1 :].T[:, :, None])[:, :, 0].T
        return np.concatenate([self.alpha * theta[:d], np.zeros((1, theta.shape[1])), others])

    def _objective(self, theta: np.ndarray) -> float:
        return self.target.loss(self._predict(theta)) + 0.5 * float((theta * self._pull(theta)).sum())


def inverse(H: np.ndarray) -> np.ndarray:
    """Invert a symmetric matrix without negative directions; those in which it is nothing stay out."""
    size = np.sqrt(np.maximum(np.diag(H), 0.0))
    scale = np.where(size > 0, 1.0 / np.where(size > 0, size, 1.0), 0.0)
    values, vectors = np.linalg.eigh(H * scale * scale[:, None])
    if len(values) and values[0] < -1e-6 * values[-1]:
        raise MisfitError
    kept = values > _NOTHING * values[-1:]
    vectors = vectors[:, kept] * scale[:, None]
    return (vectors / values[kept]) @ vectors.T


def conjugate_gradients(
    apply: Callable[[np.ndarray], np.ndarray], b: np.ndarray, solve: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Solve a system that ``apply`` is, with the help of one that is easy and much like it."""
    x, left = np.zeros_like(b), b
    z = solve(left)
    p, size = z, float((left * z).sum())
    goal = 1e-4 * size
    for _ in range(_INNER):
        if size <= goal:
            break
        q = apply(p)
        bend = float((p * q).sum())
        if bend <= 0:
            break
        x, left = x + size / bend * p, left - size / bend * q
        z = solve(left)
        size, before = float((left * z).sum()), size
        p = z + size / before * p
    return x


# -- where other columns are


class Block:
    """A party's own columns, and the directions that it has offered."""

    def __init__(self, X: np.ndarray, alpha: float, numbers: bool) -> None:
        self.X, self.alpha, self.numbers = X, alpha, numbers
        self.directions: list[np.ndarray] = []

    def coefficients(self, taken: np.ndarray) -> np.ndarray:
        """Give the coefficients of the columns, having gone so far in each direction: (columns, predictors)."""
        start = np.zeros((self.X.shape[1], taken.shape[1]))
        return sum((c * d for c, d in zip(taken, self.directions, strict=True)), start)

    def go(self, residuals: np.ndarray, taken: np.ndarray, factor: float) -> tuple[np.ndarray, np.ndarray]:
        """Offer a direction: its column, and its products with the gradient, with itself and with those before.

        ``factor`` makes a direction larger, so that whole numbers tell small ones well.
        """
        X, alpha = self.X, self.alpha
        gradient = X.T @ residuals - alpha * self.coefficients(taken)
        step = np.empty_like(gradient)
        for k, r in enumerate(residuals.T):
            if k == 0 or not self.numbers:
                w = np.ones_like(r) if self.numbers else np.abs(r) * (1.0 - np.abs(r))
                # the constant is found anew too, so directions are measured without it
                mean = w @ X / max(float(w.sum()), 1e-300)
                H = (X * w[:, None]).T @ X - w.sum() * np.outer(mean, mean)
                H[np.diag_indices_from(H)] += alpha
            step[:, k] = np.linalg.solve(H, gradient[:, k])
        step *= factor
        products = [factor * (gradient * step).sum(axis=0)]
        products += [alpha * (step * other).sum(axis=0) for other in (step, *self.directions)]
        self.directions.append(step)
        return X @ step, np.array(products)

"""Ridge regression, linear or logistic, with some columns offered by other parties.

The label holder fits its own columns, and beside them columns that others offer: each is a combination of the others'
columns in some direction, and its coefficient is the step size in that direction. A direction is a step of Newton's
method in the offering party's columns. All coefficients are computed anew each time, so no earlier step has to be
undone, and with as many directions as the others have columns the fit equals that of all columns together. For
squared loss this is the method of conjugate gradients on what the label holder's own columns leave unexplained.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from silvan.errors import FormatError

_STEPS, _INNER = 100, 200
"""Maximum number of steps of Newton's method, and of conjugate gradients within one of them."""

_AT_ONCE, _WORK, _ROWS = 1000, 10**10, 4096
"""Maximum number of coefficients and multiplications for computing the whole Hessian; rows at a time in its sum."""

_ROUGHLY = 1e-4
"""By how much conjugate gradients reduce the squared residual of a Newton step."""

_NOTHING = 1e-13
"""Smaller eigenvalues, relative to the largest, count as zero."""


class MisfitError(FormatError):
    """Offered columns and products that no real columns could have given."""

    def __init__(self) -> None:
        super().__init__("the columns that were offered do not fit together")


class RegressionTarget(NamedTuple):
    """The target: numbers of mean 0 and deviation 1; or classes, (rows, 1) for two, otherwise one per column."""

    y: np.ndarray
    numbers: bool

    @property
    def width(self) -> int:
        """Number of predictors per row."""
        return int(self.y.shape[1])

    def mean(self, predictor: np.ndarray) -> np.ndarray:
        """Return the expected value of each row."""
        if self.numbers:
            return predictor
        return class_probabilities(predictor)

    def loss(self, predictor: np.ndarray) -> float:
        """Return half the squared error, or the negative log-likelihood."""
        if self.numbers:
            return 0.5 * float(((self.y - predictor) ** 2).sum())
        if self.width == 1:
            return float((np.logaddexp(0.0, predictor) - self.y * predictor).sum())
        top = predictor.max(axis=1, keepdims=True)
        spread = np.log(np.exp(predictor - top).sum(axis=1)) + top[:, 0]
        return float((spread - (self.y * predictor).sum(axis=1)).sum())


def class_probabilities(predictor: np.ndarray) -> np.ndarray:
    """Return the probability of the second of two classes, or of each of several."""
    if predictor.shape[1] == 1:
        weight = np.exp(-np.abs(predictor))
        return np.where(predictor >= 0, 1.0, weight) / (1.0 + weight)
    weight = np.exp(predictor - predictor.max(axis=1, keepdims=True))
    return weight / weight.sum(axis=1, keepdims=True)


class ReducedColumns(NamedTuple):
    """Columns, reduced to at most as many combinations as rows; the rest is 0 for every row."""

    X: np.ndarray
    back: np.ndarray | None  # from coefficients of the combinations to those of the columns

    @classmethod
    def of(cls, X: np.ndarray) -> "ReducedColumns":
        """Combine columns if there are more of them than rows; the penalty stays the same."""
        if X.shape[1] <= len(X):
            return cls(X, None)
        values, vectors = np.linalg.eigh(X @ X.T)
        kept = values > _NOTHING * values[-1:]
        size = np.sqrt(values[kept])
        return cls(vectors[:, kept] * size, X.T @ (vectors[:, kept] / size))

    def expand(self, coefficients: np.ndarray) -> np.ndarray:
        """Return the coefficients of the columns, given those of the combinations."""
        return coefficients if self.back is None else self.back @ coefficients


# -- where the label is


class Coefficients(NamedTuple):
    """Coefficients of local columns and the constant (columns + 1, predictors), and of offered directions."""

    own: np.ndarray
    taken: np.ndarray

    def plus(self, other: "Coefficients", times: float = 1.0) -> "Coefficients":
        """Return the sum of these and ``times`` others."""
        return Coefficients(self.own + times * other.own, self.taken + times * other.taken)

    def dot(self, other: "Coefficients") -> float:
        """Return the scalar product with others."""
        return float((self.own * other.own).sum() + self.taken @ other.taken)


class Regression:
    """A regression that can be extended by columns that others offer."""

    def __init__(self, X: np.ndarray, target: RegressionTarget, alpha: float, start: np.ndarray) -> None:
        self.X, self.target, self.alpha = X, target, alpha
        self.offered = np.zeros((0, target.y.size))  # one column per line, all predictors of a row together
        self.gram = np.zeros((0, 0))  # alpha times the products of the directions
        self.theta = Coefficients(np.concatenate([np.zeros((X.shape[1], target.width)), start[None]]), np.zeros(0))

    def residuals(self) -> np.ndarray:
        """Return the residuals: (rows, predictors)."""
        return self.target.y - self.target.mean(self._predict(self.theta))

    def add_column(self, column: np.ndarray, products: np.ndarray) -> None:
        """Add a column (rows, predictors); ``products`` are alpha times its direction's with itself and all before."""
        t = len(self.gram)
        gram = np.zeros((t + 1, t + 1))
        gram[:t, :t] = self.gram
        gram[t, t] = products[0]
        gram[t, :t] = gram[:t, t] = products[1:]
        self.gram = gram
        self.offered = np.concatenate([self.offered, column.reshape(1, -1)])
        self.theta = Coefficients(self.theta.own, np.append(self.theta.taken, 0.0))

    def fit(self, tol: float) -> None:
        """Find all coefficients by Newton's method, until a step would change predictors by less than ``tol``."""
        value, gain = self._objective(self.theta), np.inf
        for _ in range(_STEPS):
            if gain <= tol * tol * len(self.X):
                break
            mean = self.target.mean(self._predict(self.theta))
            gradient = self._column_products(self.target.y - mean).plus(self._penalty_gradient(self.theta), -1.0)
            step = self._newton(mean, gradient)
            gain = gradient.dot(step)
            if not np.isfinite(gain) or gain < -_NOTHING * abs(value):
                raise MisfitError
            length = 1.0
            while (new := self._objective(self.theta.plus(step, length))) > value - 1e-4 * length * gain:
                length /= 2
                if length < 1e-6:
                    return  # as accurate as floats allow
            self.theta, value = self.theta.plus(step, length), new

    def _newton(self, mean: np.ndarray, gradient: Coefficients) -> Coefficients:
        """Return a Newton step: by the whole Hessian if that is fast, otherwise by conjugate gradients."""
        F, width = with_constant(self.X), self.target.width
        size, t = F.shape[1] * width, len(self.gram)
        spread = self._hessian_times_offered(mean)
        among = spread @ self.offered.T + self.gram
        if is_quick(len(F), size):
            H = np.empty((size + t, size + t))
            H[:size, :size] = curvature(F, mean, self.target.numbers, self.alpha)
            beside = F.T @ spread.reshape(t, len(F), width)  # (directions, columns, predictors)
            H[size:, :size] = beside.transpose(0, 2, 1).reshape(t, size)
            H[:size, size:] = H[size:, :size].T
            H[size:, size:] = among
            step = pseudo_inverse(H) @ np.append(gradient.own.T, gradient.taken)
            return Coefficients(centred(step[:size].reshape(width, -1).T), step[size:])
        blocks = [curvature(F, m[:, None], self.target.numbers, self.alpha) for m in mean.T]
        inverses, apart = [pseudo_inverse(block) for block in blocks], pseudo_inverse(among)

        def solve(v: Coefficients) -> Coefficients:
            found = np.stack([block @ column for block, column in zip(inverses, v.own.T, strict=True)], axis=1)
            return Coefficients(centred(found), apart @ v.taken)

        def apply_hessian(v: Coefficients) -> Coefficients:
            z = self._predict(v)
            return self._column_products(hessian_times(mean, z, self.target.numbers)).plus(self._penalty_gradient(v))

        return conjugate_gradients(apply_hessian, gradient, solve)

    def _hessian_times_offered(self, mean: np.ndarray) -> np.ndarray:
        """Return the second derivative of the loss times every offered column."""
        columns = self.offered.reshape(len(self.gram), *mean.shape)
        return hessian_times(mean, columns, self.target.numbers).reshape(self.offered.shape)

    def _predict(self, theta: Coefficients) -> np.ndarray:
        others = (theta.taken @ self.offered).reshape(self.target.y.shape)
        predictor: np.ndarray = self.X @ theta.own[:-1] + theta.own[-1] + others
        return predictor

    def _column_products(self, rows: np.ndarray) -> Coefficients:
        own = np.concatenate([self.X.T @ rows, rows.sum(axis=0)[None]])
        return Coefficients(own, self.offered @ rows.reshape(-1))

    def _penalty_gradient(self, theta: Coefficients) -> Coefficients:
        """Return the derivative of the penalty, which does not apply to the constant."""
        own = self.alpha * theta.own
        own[-1] = 0.0
        return Coefficients(own, self.gram @ theta.taken)

    def _objective(self, theta: Coefficients) -> float:
        return self.target.loss(self._predict(theta)) + 0.5 * theta.dot(self._penalty_gradient(theta))


# -- second derivatives


def hessian_times(mean: np.ndarray, predictor: np.ndarray, numbers: bool) -> np.ndarray:
    """Return the second derivative of the loss times a predictor, or several: (..., rows, predictors)."""
    if numbers:
        return predictor
    if mean.shape[1] == 1:
        return mean * (1.0 - mean) * predictor
    return mean * (predictor - (mean * predictor).sum(axis=-1, keepdims=True))


def curvature(F: np.ndarray, mean: np.ndarray, numbers: bool, alpha: float) -> np.ndarray:
    """Return the Hessian by the coefficients of columns, of which the last is the constant; class by class."""
    f, width = F.shape[1], mean.shape[1]
    H = np.zeros((width, f, width, f))
    for start in range(0, len(F), _ROWS):
        some, m = F[start : start + _ROWS], mean[start : start + _ROWS]
        bend = np.ones_like(m) if numbers else (m * (1.0 - m) if width == 1 else m)
        for k, w in enumerate(bend.T):
            H[k, :, k] += (some * w[:, None]).T @ some
        if width > 1 and not numbers:
            joint = (m[:, :, None] * some[:, None, :]).reshape(len(some), -1)
            H -= (joint.T @ joint).reshape(H.shape)
    square = H.reshape(width * f, width * f)
    places = np.arange(width * f)
    square[places, places] += np.where(places % f == f - 1, 0.0, alpha)
    return square


def is_quick(rows: int, size: int) -> bool:
    """Return whether solving for all coefficients at once beats class by class."""
    return size <= _AT_ONCE and rows * size * size <= _WORK


def with_constant(X: np.ndarray) -> np.ndarray:
    """Append a column of ones."""
    return np.concatenate([X, np.ones((len(X), 1))], axis=1)


def centred(values: np.ndarray) -> np.ndarray:
    """Subtract the mean over classes, which changes no probability; a single predictor stays as it is."""
    return values - values.mean(axis=1, keepdims=True) if values.shape[1] > 1 else values


def pseudo_inverse(H: np.ndarray) -> np.ndarray:
    """Invert a positive semi-definite matrix on the directions in which it is not zero."""
    size = np.sqrt(np.maximum(np.diag(H), 0.0))
    if not np.isfinite(H).all() or (np.diag(H) < 0).any():
        raise MisfitError
    scale = np.where(size > 0, 1.0 / np.where(size > 0, size, 1.0), 0.0)
    values, vectors = np.linalg.eigh(H * scale * scale[:, None])
    if len(values) and values[0] < -1e-6 * values[-1]:
        raise MisfitError
    kept = values > _NOTHING * values[-1:]
    vectors = vectors[:, kept] * scale[:, None]
    return (vectors / values[kept]) @ vectors.T


def conjugate_gradients(
    apply: Callable[[Coefficients], Coefficients], b: Coefficients, solve: Callable[[Coefficients], Coefficients]
) -> Coefficients:
    """Solve ``apply(x) = b``; ``solve`` is the preconditioner."""
    x, left = b.plus(b, -1.0), b
    z = solve(left)
    p, size = z, left.dot(z)
    goal = _ROUGHLY * size
    for _ in range(_INNER):
        if size <= goal:
            break
        q = apply(p)
        bend = p.dot(q)
        if bend <= 0:
            break
        x, left = x.plus(p, size / bend), left.plus(q, -size / bend)
        z = solve(left)
        size, before = left.dot(z), size
        p = z.plus(p, size / before)
    return x


# -- at the parties that offer columns


class Block:
    """A party's columns, and the directions that it has offered."""

    def __init__(self, X: np.ndarray, alpha: float, numbers: bool) -> None:
        self.X, self.alpha, self.numbers = X, alpha, numbers
        self.directions: list[np.ndarray] = []
        self._known: list[np.ndarray] | None = None  # inverted second derivatives

    def coefficients(self, taken: np.ndarray, width: int) -> np.ndarray:
        """Return the coefficients of the columns, given the step sizes ``taken``: (columns, predictors)."""
        start = np.zeros((self.X.shape[1], width))
        return sum((c * d for c, d in zip(taken, self.directions, strict=True)), start)

    def offer(self, residuals: np.ndarray, taken: np.ndarray, factor: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the column of the next direction, and its products with the gradient, itself and those before.

        ``factor`` makes a direction larger, so that fixed point holds a small one exactly enough.
        """
        gradient = centred(self.X.T @ residuals - self.alpha * self.coefficients(taken, residuals.shape[1]))
        step = factor * self._newton(residuals, gradient)
        products = [factor * (gradient * step).sum()]
        products += [self.alpha * (step * other).sum() for other in (step, *self.directions)]
        self.directions.append(step)
        return self.X @ step, np.array(products)

    def _newton(self, residuals: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return a Newton step in the local columns; the constant is solved for and left out."""
        F, width = with_constant(self.X), residuals.shape[1]
        if self._known is None or not self.numbers:
            # a residual reveals the expected value: the label is 1 where it is above 0
            mean = np.where(residuals > 0, 1.0 - residuals, -residuals)
            together = [mean] if is_quick(len(F), F.shape[1] * width) else np.split(mean, width, axis=1)
            self._known = [pseudo_inverse(curvature(F, m, self.numbers, self.alpha)) for m in together]
        slopes = np.concatenate([gradient, np.zeros((1, width))])
        parts = np.split(slopes.T.ravel(), len(self._known))
        found = np.concatenate([H @ part for H, part in zip(self._known, parts, strict=True)])
        return centred(found.reshape(width, -1).T[:-1])

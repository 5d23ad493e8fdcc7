"""Kernels: chains of products modulo a large odd number, in Montgomery form, without the interpreter lock.

A number is a row of limbs, lowest first; x stands as x R, where R is 2^radix to the number of limbs, and a product of
two is a b / R. A chain is a list of operations on one number: begin with ``numbers[first]``, then multiply by
``numbers[i]``, or by itself where the list says ``SQUARE``.

Two kernels do the same. ``word_chains`` (radix 64) runs everywhere and is as fast as gmpy2, which would hold the lock.
``vector_chains`` (radix 52) needs processors with AVX-512 IFMA (Intel since 2019, AMD since 2022): it works on eight
chains at a time, one in each lane of a vector, four times as fast. Its numbers stay below twice the modulus
instead of below it, which spares the comparison after every product.
"""

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped_cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from silvan.util.kernels import njit

SQUARE = -1
WORD, LIMB = 64, 52  # radix of the two kernels
LANES = 8

U = np.uint64
cgutils: Any = untyped_cgutils


@cache
def has_vectors() -> bool:
    """Whether numba compiles for a processor that multiplies eight pairs of 52 bits at once."""
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    return "+avx512ifma" in features


def _generate_add_product(context: Any, a: Any, b: Any, low: Any, middle: Any, high: Any) -> Any:
    """Add a b to a sum of three words; numba has no product of two words that keeps its upper half."""
    word, wide = ir.IntType(64), ir.IntType(192)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a, b, low, middle, high = (builder.zext(x, wide) for x in arguments)
        middle = builder.shl(middle, ir.Constant(wide, 64))
        high = builder.shl(high, ir.Constant(wide, 128))
        total = builder.add(builder.or_(low, builder.or_(middle, high)), builder.mul(a, b))
        cut = [builder.trunc(builder.lshr(total, ir.Constant(wide, 64 * i)), word) for i in range(3)]
        return context.make_tuple(builder, signature.return_type, cut)

    three: Any = types.UniTuple
    return three(types.uint64, 3)(*(types.uint64,) * 5), generate


_add_product: Any = intrinsic(_generate_add_product)


@njit(nogil=True, cache=True, inline="always")
def _column(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    d: np.ndarray,
    first: np.uint64,
    stop: np.uint64,
    at: np.uint64,
    low: np.uint64,
    middle: np.uint64,
    high: np.uint64,
) -> tuple[np.uint64, np.uint64, np.uint64]:
    """Add a[j] b[at - j] + c[j] d[at - j] for all j of a range to a sum of three words: where all the time goes."""
    j, k = first, at - first
    while j + U(4) <= stop:
        low, middle, high = _add_product(a[j], b[k], low, middle, high)
        low, middle, high = _add_product(c[j], d[k], low, middle, high)
        low, middle, high = _add_product(a[j + U(1)], b[k - U(1)], low, middle, high)
        low, middle, high = _add_product(c[j + U(1)], d[k - U(1)], low, middle, high)
        low, middle, high = _add_product(a[j + U(2)], b[k - U(2)], low, middle, high)
        low, middle, high = _add_product(c[j + U(2)], d[k - U(2)], low, middle, high)
        low, middle, high = _add_product(a[j + U(3)], b[k - U(3)], low, middle, high)
        low, middle, high = _add_product(c[j + U(3)], d[k - U(3)], low, middle, high)
        j, k = j + U(4), k - U(4)
    while j < stop:
        low, middle, high = _add_product(a[j], b[k], low, middle, high)
        low, middle, high = _add_product(c[j], d[k], low, middle, high)
        j, k = j + U(1), k - U(1)
    return low, middle, high


@njit(nogil=True, cache=True)
def is_below(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether a is below b."""
    for i in range(a.shape[0] - 1, -1, -1):
        if a[i] != b[i]:
            return a[i] < b[i]
    return False


@njit(nogil=True, cache=True)
def _multiply_words(
    a: np.ndarray, b: np.ndarray, n: np.ndarray, inverse: np.uint64, scratch: np.ndarray, out: np.ndarray
) -> None:
    """Compute a b / R below the modulus; ``out`` may be a or b.

    Column by column of the product: each of the lower half yields the word that makes it divisible by 2^64 once
    so many times the modulus is added.
    """
    size, zero, one = U(n.shape[0]), U(0), U(1)
    low, middle, high = zero, zero, zero
    at = zero
    while at < size:
        low, middle, high = _column(a, b, scratch, n, zero, at, at, low, middle, high)
        low, middle, high = _add_product(a[at], b[zero], low, middle, high)
        scratch[at] = low * inverse
        low, middle, high = _add_product(scratch[at], n[zero], low, middle, high)
        low, middle, high = middle, high, zero
        at += one
    while at < size + size - one:
        low, middle, high = _column(a, b, scratch, n, at - size + one, size, at, low, middle, high)
        scratch[at - size] = low
        low, middle, high = middle, high, zero
        at += one
    scratch[size - one] = low
    if middle == zero and is_below(scratch, n):
        for i in range(n.shape[0]):
            out[i] = scratch[i]
        return
    borrow = zero
    for i in range(n.shape[0]):
        rest = scratch[i] - n[i]
        short = scratch[i] < n[i] or rest < borrow
        out[i] = rest - borrow
        borrow = one if short else zero


@njit(nogil=True, cache=True)
def word_chains(
    numbers: np.ndarray,
    operations: np.ndarray,
    starts: np.ndarray,
    which: np.ndarray,
    n: np.ndarray,
    inverse: np.uint64,
    out: np.ndarray,
) -> None:
    """Run some chains, one after the other; chain c is ``operations[starts[c] : starts[c + 1]]``."""
    scratch = np.empty_like(n)
    for c in which:
        first = operations[starts[c]]
        for i in range(n.shape[0]):
            out[c, i] = numbers[first, i]
        for at in range(starts[c] + 1, starts[c + 1]):
            if operations[at] == SQUARE:
                _multiply_words(out[c], out[c], n, inverse, scratch, out[c])
            else:
                _multiply_words(out[c], numbers[operations[at]], n, inverse, scratch, out[c])


def _generate_multiply_vectors(context: Any, a: Any, b: Any, n: Any, t: Any, inverse: Any, size: Any) -> Any:
    """Put a b / R into a, for eight pairs; arrays are limb by limb, eight lanes each, aligned to 64 bytes.

    Limb by limb of b: add a times it and so many times the modulus that the lowest limb of the sum t is divisible by
    2^52, and drop that limb. A limb of t takes at most 4 x 119 summands of 52 bits (n^2 of 6,144 bits), so nothing
    needs to be carried before the end.
    """
    word = ir.IntType(64)
    vector = ir.VectorType(word, LANES)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def constant(value: int) -> Any:
            return ir.Constant(vector, [value] * LANES)

        def array(i: int) -> Any:
            made = context.make_array(signature.args[i])(context, builder, arguments[i])
            return builder.bitcast(made.data, vector.as_pointer())

        def load(pointer: Any, i: Any) -> Any:
            return builder.load(builder.gep(pointer, [i], source_etype=vector), align=64, typ=vector)

        def store(value: Any, pointer: Any, i: Any) -> None:
            builder.store(value, builder.gep(pointer, [i], source_etype=vector), align=64)

        shape = ir.FunctionType(vector, [vector] * 3)
        name = "llvm.x86.avx512.vpmadd52{}.uq.512"
        low = cgutils.get_or_insert_function(builder.module, shape, name.format("l"))
        high = cgutils.get_or_insert_function(builder.module, shape, name.format("h"))

        def add_low(total: Any, x: Any, y: Any) -> Any:
            return builder.call(low, [total, x, y])

        def add_high(total: Any, x: Any, y: Any) -> Any:
            return builder.call(high, [total, x, y])

        a, b, n, t = (array(i) for i in range(4))
        inverse, size = arguments[4], arguments[5]
        zero, one = ir.Constant(word, 0), ir.Constant(word, 1)
        last = builder.sub(size, one)
        radix, mask = constant(LIMB), constant((1 << LIMB) - 1)
        spread = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        inverses = builder.insert_element(constant(0), inverse, ir.Constant(ir.IntType(32), 0))
        inverses = builder.shuffle_vector(inverses, inverses, spread)

        with cgutils.for_range(builder, size) as loop:
            store(constant(0), t, loop.index)
        with cgutils.for_range(builder, size) as loop:
            digit = load(b, loop.index)
            lowest = add_low(load(t, zero), load(a, zero), digit)
            times = add_low(constant(0), lowest, inverses)
            carry = builder.lshr(add_low(lowest, times, load(n, zero)), radix)
            with cgutils.for_range_slice(builder, one, size, one, intp=word) as (i, _):
                before = builder.sub(i, one)
                total = add_low(load(t, i), load(a, i), digit)
                total = add_high(total, load(a, before), digit)
                total = add_low(total, load(n, i), times)
                store(add_high(total, load(n, before), times), t, before)
            top = add_high(constant(0), load(a, last), digit)
            store(add_high(top, load(n, last), times), t, last)
            store(builder.add(load(t, zero), carry), t, zero)
        carried = cgutils.alloca_once_value(builder, constant(0))
        with cgutils.for_range(builder, size) as loop:
            total = builder.add(load(t, loop.index), builder.load(carried, typ=vector))
            builder.store(builder.lshr(total, radix), carried)
            store(builder.and_(total, mask), a, loop.index)
        return context.get_dummy_value()

    return types.void(a, b, n, t, types.uint64, types.int64), generate


_multiply_vectors: Any = intrinsic(_generate_multiply_vectors)


@njit(nogil=True, cache=True)
def _aligned(size: int) -> np.ndarray:
    """Return zeros that begin at a multiple of 64 bytes."""
    room = np.zeros(size + 8, np.uint64)
    skip = (-room.ctypes.data % 64) // 8
    return room[skip : skip + size]


@njit(nogil=True, cache=True)
def vector_chains(
    numbers: np.ndarray,
    operations: np.ndarray,
    starts: np.ndarray,
    which: np.ndarray,
    n: np.ndarray,
    inverse: np.uint64,
    out: np.ndarray,
) -> None:
    """Run some chains, eight at a time: a lane that is done takes the next one."""
    size = n.shape[0]
    a, b = _aligned(LANES * size), _aligned(LANES * size)
    modulus, scratch = _aligned(LANES * size), _aligned(LANES * size)
    for i in range(size):
        for lane in range(LANES):
            modulus[LANES * i + lane] = n[i]
    chain, at = np.full(LANES, -1, np.int64), np.zeros(LANES, np.int64)
    taken = 0
    while True:
        busy = 0
        for lane in range(LANES):
            c = chain[lane]
            while c < 0 or at[lane] == starts[c + 1]:
                if c >= 0:
                    for i in range(size):
                        out[c, i] = a[LANES * i + lane]
                if taken == which.shape[0]:
                    c = -1
                    break
                c = which[taken]
                taken += 1
                first = operations[starts[c]]
                at[lane] = starts[c] + 1
                for i in range(size):
                    a[LANES * i + lane] = numbers[first, i]
            chain[lane] = c
            if c < 0:
                continue
            busy += 1
            operand = operations[at[lane]]
            at[lane] += 1
            if operand == SQUARE:
                for i in range(size):
                    b[LANES * i + lane] = a[LANES * i + lane]
            else:
                for i in range(size):
                    b[LANES * i + lane] = numbers[operand, i]
        if busy == 0:
            return
        _multiply_vectors(a, b, modulus, scratch, inverse, size)

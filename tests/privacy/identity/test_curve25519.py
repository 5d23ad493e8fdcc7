"""Points that hide ids: equal to a naive reading of RFC 7748, on the curve, of prime order."""

import hashlib
import hmac

import pytest

from silvan.errors import FormatError
from silvan.privacy.identity.curve25519 import POINT, PRIME, cut_points, hash_to_points, multiply_points

A = 486662
SMALL_ORDER = [
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    PRIME - 1,
    PRIME,  # zero once more
    PRIME + 1,
]


def little(number):
    return number.to_bytes(POINT, "little")


def naive_ladder(secret, point):
    """X25519, word for word from section 5 of RFC 7748."""
    k = int.from_bytes(secret, "little") & ~7 & (1 << 255) - 1 | 1 << 254
    u = int.from_bytes(point, "little") % 2**255
    x_1, x_2, z_2, x_3, z_3, swap = u, 1, 0, u, 1, 0
    for t in reversed(range(255)):
        k_t = k >> t & 1
        if swap ^ k_t:
            x_2, x_3, z_2, z_3 = x_3, x_2, z_3, z_2
        swap = k_t
        a, b, c, d = x_2 + z_2, x_2 - z_2, x_3 + z_3, x_3 - z_3
        aa, bb, da, cb = a * a, b * b, d * a, c * b
        e = aa - bb
        x_3, z_3 = (da + cb) ** 2 % PRIME, x_1 * (da - cb) ** 2 % PRIME
        x_2, z_2 = aa * bb % PRIME, e * (aa + (A - 2) // 4 * e) % PRIME
    if swap:
        x_2, z_2 = x_3, z_3
    return little(x_2 * pow(z_2, PRIME - 2, PRIME) % PRIME)


def on_curve(point):
    u = int.from_bytes(point, "little")
    return pow(u**3 + A * u**2 + u, (PRIME - 1) // 2, PRIME) == 1


def some(n, what="point"):
    return [hashlib.sha256(f"{what} {i}".encode()).digest() for i in range(n)]


def test_vectors_of_the_standard():
    """Section 5.2 of RFC 7748; the naive ladder is right, too."""
    for secret, point, product in (
        (
            "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
            "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
            "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
        ),
        (
            "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
            "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
            "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
        ),
    ):
        secret, point, product = map(bytes.fromhex, (secret, point, product))
        assert multiply_points(secret, [point]) == [naive_ladder(secret, point)] == [product]


def test_products_equal_the_naive_ladder():
    points = some(40)
    for secret in some(2, "secret"):
        assert multiply_points(secret, points) == [naive_ladder(secret, point) for point in points]


def test_secrets_commute():
    points = hash_to_points(b"key", some(20))
    one, two = some(2, "secret")
    assert multiply_points(one, multiply_points(two, points)) == multiply_points(two, multiply_points(one, points))
    assert not set(multiply_points(one, points)) & set(multiply_points(two, points))


def test_texts_are_hashed_to_the_curve_and_not_to_its_twist():
    """A point of the twist stays on it, so anyone who sees points could distinguish ids."""
    texts = [str(i).encode() for i in range(300)]
    points = hash_to_points(b"key", texts)
    assert all(map(on_curve, points))
    assert all(map(on_curve, multiply_points(some(1)[0], points)))
    twisted = [point for point in (little(i) for i in range(2, 40)) if not on_curve(point)]
    assert len(twisted) > 10
    assert not any(map(on_curve, multiply_points(some(1)[0], twisted)))


def test_hashing_by_hand():
    """The first digest with a counter that is a number on the curve, for any batch and number of threads."""
    texts = [b"", b"a", *some(60)]
    wanted = []
    for text in texts:
        for tries in range(100):
            drawn = hmac.new(b"key", tries.to_bytes(2, "little") + text, "sha256").digest()
            drawn = drawn[:-1] + bytes([drawn[-1] & 127])
            if on_curve(drawn):
                break
        wanted.append(drawn)
    assert hash_to_points(b"key", texts) == wanted == hash_to_points(b"key", texts, threads=2)
    assert hash_to_points(b"key", texts[::-1]) == wanted[::-1]
    assert not set(hash_to_points(b"another key", texts)) & set(wanted)
    assert hash_to_points(b"key", []) == []


@pytest.mark.parametrize("point", SMALL_ORDER)
def test_points_of_small_order_are_refused(point):
    assert naive_ladder(some(1)[0], little(point)) == bytes(POINT)  # they would reveal only themselves
    with pytest.raises(FormatError, match="none that hides an id"):
        multiply_points(some(1)[0], [*some(3), little(point)])


@pytest.mark.parametrize("data", [b"", bytes(31), bytes(33), bytes(95)], ids=len)
def test_points_of_another_length_are_refused(data):
    with pytest.raises(FormatError, match="another length"):
        cut_points(data)


def test_points_are_truncated():
    assert cut_points(b"ab" * 16) == [b"ab" * 16]
    assert cut_points(b"abcd", 2) == [b"ab", b"cd"]
    with pytest.raises(FormatError, match="none that hides an id"):
        multiply_points(some(1)[0], [bytes(31)])

"""Paillier encryption compared with the textbook, and invalid ciphertexts."""

import hashlib
import itertools
import math
import sys
from functools import cache

import msgspec
import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import given
from hypothesis import strategies as st

from silvan.errors import CipherError, FormatError, InputError
from silvan.federation import wire
from silvan.privacy.paillier import modular
from silvan.privacy.paillier.cipher import Ciphertexts, Masks, check_ciphertexts, decrypt, encrypt
from silvan.privacy.paillier.modular_kernels import LIMB, SQUARE, WORD, has_vectors
from silvan.privacy.paillier.paillier_keys import PrivateKey, PublicKey, generate

gmpy2 = pytest.importorskip("gmpy2", reason="no gmpy2, so encryption is not tested; pip install 'silvan[vertical]'")

KEY = PrivateKey(0xD59158EC5ADE142E07E960523DB20DDB, 0xE970CF55A3BF456ACA87568570BB01E3)
N = KEY.public.n
FULL = (
    "E5E7388474BC4F7D1B70D84753FA2F5C42E91B8AD6134B27369AB801699B2D19"
    "E6F7B6174E32AE2316E8DA50DA8C89797D4AC9B34D46FC312A684806630316DC"
    "85D66C1B21C45C25BB658CFCCF1890A9209AC770924F9898D550B5D2500080ED"
    "AE9E475FC133E076D46961BBB6AC4B728DF2802F84B0D0CECFB978EE398474E3",
    "DD1A0D5AFFEF088B904330E1703EB52A4122C2AE4B4F286A3C86765B6EC76263"
    "4C552A87045FD009C0FBAE7E6F884F1BAEFB773BEB20DE2C048A055C1E325868"
    "6C9C1433B8DD317EA17BD555BB980EC5996356F19B5AAB6212A04988818A1C39"
    "9152F8570040ECC656B21A806C2CDE0744260732467C90C6E479F6973A0C7D1F",
)

RADICES = [LIMB, WORD] if has_vectors() else [WORD]

plaintexts = st.integers(0, 2**255 - 1) | st.sampled_from([0, 1, 2**255 - 1])


@cache
def key_of(bits=512):
    return generate(bits, testing=True)


def textbook_encrypt(m, r, n=N):
    return pow(n + 1, m, n * n) * pow(r, n, n * n) % (n * n)


def textbook_decrypt(c, key=KEY):
    n = key.public.n
    order = math.lcm(key.p - 1, key.q - 1)
    return (pow(c, order, n * n) - 1) // n * pow((pow(n + 1, order, n * n) - 1) // n, -1, n) % n


def numbers(ciphertexts):
    return [int.from_bytes(row.tobytes(), "little") for row in ciphertexts.data]


def of(key, *numbers):
    data = b"".join(c.to_bytes(key.width, "little") for c in numbers)
    return Ciphertexts(key.fingerprint, np.frombuffer(data, np.uint8).reshape(-1, key.width))


def stream(seed):
    """Bytes that look random and are the same every time."""
    state = [0]

    def entropy(count):
        state[0] += 1
        return hashlib.shake_256(seed + state[0].to_bytes(4)).digest(count)

    return entropy


def sealing(c, m, n=N):
    """The n-th power in a ciphertext."""
    return c * pow(1 + n * m, -1, n * n) % (n * n)


@pytest.fixture(params=RADICES)
def radix(request, monkeypatch):
    """Both kernels, if the processor supports both."""
    monkeypatch.setattr(modular, "has_vectors", lambda: request.param == LIMB)
    return request.param


# products


def read(words):
    return [int.from_bytes(row.tobytes(), "little") for row in modular.to_bytes(words)]


@pytest.mark.parametrize("radix", RADICES)
@examples(40)
@given(data=st.data(), bits=st.integers(2, 300) | st.sampled_from([62, 64, 102, 104, 128, 256, 2048]))
def test_chains_equal_python_integers(radix, data, bits):
    n = data.draw(st.integers(1 << (bits - 1), (1 << bits) - 1) | st.just((1 << bits) - 1)) | 1
    numbers = data.draw(
        st.lists(st.integers(0, n - 1) | st.sampled_from([0, 1, n - 1, n // 2]), min_size=1, max_size=9)
    )
    step = st.integers(SQUARE, len(numbers) - 1)
    chains = data.draw(st.lists(st.lists(step, min_size=1, max_size=9), max_size=20))
    chains = [[max(chain[0], 0), *chain[1:]] for chain in chains]

    def result(chain):
        x = numbers[chain[0]]
        for i in chain[1:]:
            x = x * (x if i == SQUARE else numbers[i]) % n
        return x

    modulus = modular.make_modulus(n, radix)
    inside = modular.to_montgomery(modular.to_words(numbers, len(modulus.words)), modulus)
    starts = np.cumsum([0, *map(len, chains)])
    operations = np.array([i for chain in chains for i in chain], np.int32)
    for threads in (1, 3):
        out = modular.run_chains(inside, operations, starts, modulus, threads)
        assert read(modular.from_montgomery(out, modulus, threads)) == [result(chain) for chain in chains]
    assert read(modular.from_montgomery(inside, modulus)) == numbers


@pytest.mark.parametrize("radix", RADICES)
def test_long_products_are_made_in_parts(radix):
    rng = np.random.default_rng(0)
    modulus = modular.make_modulus(N, radix)
    numbers = [int.from_bytes(rng.bytes(32), "little") % N for _ in range(500)]
    inside = modular.to_montgomery(modular.to_words(numbers, 4), modulus)
    listed = rng.permutation(500)
    starts = np.array([0, 1, 70, 199, 200, 500])
    wanted = [math.prod(numbers[i] for i in listed[a:b]) % N for a, b in itertools.pairwise(starts)]
    out = modular.products(inside, listed, starts, modulus, 2)
    assert read(modular.from_montgomery(out, modulus)) == wanted
    (everything,) = modular.products(inside, np.tile(listed, 12), np.array([0, 6000]), modulus)[:1]
    assert read(modular.from_montgomery(everything[None], modulus)) == [pow(math.prod(numbers), 12, N)]


@pytest.mark.parametrize("radix", RADICES)
def test_powers_come_from_a_table(radix):
    modulus = modular.make_modulus(N, radix)
    squares = modular.to_words([pow(7, 2**i, N) for i in range(12)], 4)
    powers = modular.Powers.of(squares, 3, modulus)
    digits = np.array([[5, 0, 7, 1], [0, 0, 0, 0], [7, 7, 7, 7]], np.uint8)
    exponents = [5 + 7 * 8**2 + 8**3, 0, 8**4 - 1]
    assert read(modular.from_montgomery(powers.raise_to(digits), modulus)) == [pow(7, e, N) for e in exponents]


@pytest.mark.parametrize("radix", RADICES)
@given(st.lists(st.integers(0, N - 1), max_size=4), st.integers(1, 2**80))
def test_one_exponent_for_all(radix, numbers, exponent):
    modulus = modular.make_modulus(N, radix)
    inside = modular.to_montgomery(modular.to_words(numbers, 4), modulus)
    raised = modular.from_montgomery(modular.power(inside, exponent, modulus), modulus)
    assert read(raised) == [pow(x, exponent, N) for x in numbers]


@pytest.mark.parametrize("change", [-1, 0, 1])
def test_below_means_below(change):
    modulus = modular.make_modulus(N)
    assert modular.all_below(modular.to_words([1, N + change, 5], 4), modulus) == (change < 0)


# encryption


@given(st.lists(plaintexts, max_size=5))
def test_ciphertexts_decrypt_here_and_by_the_textbook(values):
    ciphertexts = encrypt(KEY, values, n_jobs=1)
    assert decrypt(KEY, ciphertexts, n_jobs=1) == values
    assert [textbook_decrypt(c) for c in numbers(ciphertexts)] == values


@given(plaintexts, st.integers(2, 2**200))
def test_textbook_ciphertexts_can_be_decrypted(m, r):
    assert decrypt(KEY, of(KEY.public, textbook_encrypt(m, r)), n_jobs=1) == [m]


@given(st.lists(st.integers(0, 2**250), min_size=1, max_size=9), st.integers(0, 30))
def test_products_are_sums_and_powers_are_multiples(values, times):
    product = math.prod(numbers(encrypt(KEY, values, n_jobs=1)))
    together = of(KEY.public, product % N**2, pow(product, times, N**2))
    assert decrypt(KEY, together, n_jobs=1) == [sum(values) % N, sum(values) * times % N]


def test_known_answers():
    """Computed by the textbook, elsewhere: 12345 with r = 3, and 0 with r = 2."""
    known = (
        "75e3b98413fccf819451fd7e8664419e5e4a9ef45ce689cf28255fd9b3c40cce"
        "e2f0d13e45dad2a45cd6b6b76451f31ddc342d42700e16d46b183771da14aff0"
    )
    assert textbook_encrypt(12345, 3) == int(known, 16)
    assert decrypt(KEY, of(KEY.public, int(known, 16), pow(2, N, N * N))) == [12345, 0]
    assert KEY.public.fingerprint.hex() == "9c2a58054d6e571d10c18a3a53c7dffc"


def test_the_bytes_follow_from_the_randomness(radix):
    """Fixes the format: stored ciphertexts stay readable, and the same entropy gives the same bytes."""
    first = encrypt(KEY, [0, 1, 2**200], n_jobs=1, entropy=stream(b"a"))
    again = encrypt(KEY, [0, 1, 2**200], n_jobs=2, entropy=stream(b"a"))
    assert (
        hashlib.sha256(first.data.tobytes()).hexdigest()
        == "8fba9dd1a7b1e4e74f92d3975879e0469ae5210f4d1b3a045f2934edd8ad9508"
    )
    assert (first.data == again.data).all()


def test_randomness_is_fresh():
    both = [encrypt(KEY, [7, 7]), encrypt(KEY, [7, 7])]
    assert len({c for ciphertexts in both for c in numbers(ciphertexts)}) == 4
    masks = Masks(KEY.public)
    inside = check_ciphertexts(KEY.public, both[0])
    hidden = [masks.hide(inside), masks.hide(inside)]
    assert len({c for ciphertexts in [*hidden, both[0]] for c in numbers(ciphertexts)}) == 6
    assert decrypt(KEY, hidden[0]) == decrypt(KEY, hidden[1]) == [7, 7]


def test_randomness_covers_all_numbers_of_jacobi_symbol_1():
    """Modulo both primes, all are squares or all are not, together: Jacobi symbol 1 and nothing more."""
    rest = [sealing(c, 5) for c in numbers(encrypt(KEY, [5] * 64))]
    p_squares = [gmpy2.legendre(y, KEY.p) for y in rest]
    assert p_squares == [gmpy2.legendre(y, KEY.q) for y in rest]
    assert set(p_squares) == {1, -1}
    assert all(pow(y, (KEY.p - 1) * (KEY.q - 1) // 2, N**2) == 1 for y in rest)  # n-th powers and nothing else
    # exponents are otherwise independent: no y has a small order modulo either prime
    assert all(pow(y, 2, prime) != 1 for y in rest for prime in (KEY.p, KEY.q))


def test_exponents_modulo_p_and_q_are_independent():
    """With one short exponent, y modulo p would reveal y modulo q."""
    same_p = bytes(range(1, 64))

    def entropy(count):
        """All rows have the same exponent modulo p, and different ones modulo q."""
        if count == (256 + 128) // 8:
            return stream(b"x")(count)
        half = count // 2
        row = half // 8
        return (same_p * 9)[:row] * 8 + stream(b"q")(half)

    rest = [sealing(c, 1) for c in numbers(encrypt(KEY, [1] * 8, entropy=entropy))]
    assert len({y % KEY.p for y in rest}) == 1
    assert len({y % KEY.q for y in rest}) == 8


def test_an_unmasked_sum_reveals_its_rows_and_a_masked_one_does_not():
    rows = numbers(encrypt(KEY, [1, 0, 1]))
    rest = [sealing(c, m) for c, m in zip(rows, [1, 0, 1], strict=True)]
    plain = rows[0] * rows[2] % N**2
    assert sealing(plain, 2) == rest[0] * rest[2] % N**2
    (hidden,) = numbers(Masks(KEY.public).hide(check_ciphertexts(KEY.public, of(KEY.public, plain))))
    assert textbook_decrypt(hidden) == 2
    products = [math.prod(rest[i] for i in range(3) if code >> i & 1) % N**2 for code in range(8)]
    assert sealing(hidden, 2) not in products
    assert gmpy2.jacobi(sealing(hidden, 2), N) == 1


def test_masks_are_longer_than_the_key():
    """The owner of the key could recognise a short exponent."""
    asked = []

    def entropy(count):
        asked.append(count)
        return stream(b"m")(count)

    Masks(KEY.public).hide(check_ciphertexts(KEY.public, encrypt(KEY, [1, 1])), entropy=entropy)
    assert asked[0] // 2 * 6 >= 256 + 128  # six bits per byte


def test_full_size(radix):
    """Generating such a key takes seconds, more or less: this one was generated before."""
    key = PrivateKey(*(int(prime, 16) for prime in FULL))
    values = [0, 1, 2**2047 - 1]
    ciphertexts = encrypt(key, values)
    assert ciphertexts.data.shape == (3, 512)
    assert decrypt(key, ciphertexts) == values
    assert all(gmpy2.is_prime(x) and gmpy2.is_prime(x // 2) for x in (key.p, key.q))
    assert PrivateKey.from_bytes(key.to_bytes()) == key
    assert PublicKey.from_bytes(key.public.to_bytes()) == key.public


# what is refused


@pytest.mark.parametrize("values", [[-1], [2**255], [0, 2**300]])
def test_plaintexts_that_do_not_fit(values):
    with pytest.raises(InputError, match="at least 0 and below 2\\^255"):
        encrypt(KEY, values)


@pytest.mark.parametrize("c", [0, N * N, N * N + 1, 2**512 - 1, KEY.p, KEY.q * 17, N, N * (N - 1)])
def test_numbers_out_of_range_are_not_decrypted(c):
    good = numbers(encrypt(KEY, [1] * 300, n_jobs=1))
    for place in (0, 299):
        with pytest.raises(CipherError, match="out of range"):
            check_ciphertexts(KEY.public, of(KEY.public, *good[:place], c, *good[place + 1 :]))
    with pytest.raises(CipherError, match="out of range"):
        decrypt(KEY, of(KEY.public, c))


def test_another_key():
    other = key_of()
    ciphertexts = encrypt(other, [1])
    with pytest.raises(CipherError, match=f"{other.public.fingerprint.hex()}, not for {KEY.public.fingerprint.hex()}"):
        decrypt(KEY, ciphertexts)


@pytest.mark.parametrize(
    "data",
    [
        np.zeros((2, 63), np.uint8),
        np.zeros(64, np.uint8),
        np.zeros((1, 64), np.int8),
        np.zeros((1, 8), np.uint64),
        np.zeros((1, 1, 64), np.uint8),
    ],
)
def test_other_shapes(data):
    with pytest.raises(CipherError, match="rows of 64 bytes"):
        check_ciphertexts(KEY.public, Ciphertexts(KEY.public.fingerprint, data))


@pytest.mark.parametrize(
    ("bits", "testing"), [*((n, False) for n in (0, 512, 1024, 2047, 2176, 4096)), (128, 1), (300, 1)]
)
def test_other_sizes_of_keys(bits, testing):
    with pytest.raises(InputError, match=f"must have.*got {bits}"):
        generate(bits, testing=bool(testing))


# keys and messages


def test_keys_are_safe_primes_of_the_size_asked_for():
    for bits in (256, 384, 512):
        key = generate(bits, testing=True)
        assert key.public.bits == bits
        assert all(gmpy2.is_prime(x) and gmpy2.is_prime(x // 2) and x % 4 == 3 for x in (key.p, key.q))
        assert key.p.bit_length() == key.q.bit_length() == bits // 2
    assert generate(256, testing=True) != generate(256, testing=True)


def test_keys_are_written_and_read():
    key = key_of()
    assert PrivateKey.from_bytes(key.to_bytes(), testing=True) == key
    public = PublicKey.from_bytes(key.public.to_bytes(), testing=True)
    assert public == key.public
    assert public.fingerprint == key.public.fingerprint != KEY.public.fingerprint
    for kind, made in ((PrivateKey, key), (PublicKey, key.public)):
        with pytest.raises(FormatError, match="2048 or 3072"):
            kind.from_bytes(made.to_bytes())


def test_malformed_keys_are_refused():
    key = key_of()
    half = len(key.to_bytes()) // 2
    for data in (key.to_bytes()[:half] * 2, bytes(2 * half), key.to_bytes()[:-1] + b"\xfe", b"\xff" * 2 * half):
        with pytest.raises(FormatError, match="safe primes"):
            PrivateKey.from_bytes(data, testing=True)
    prime = int(gmpy2.next_prime(2**511 + 1))
    for n in (2**511, prime, key.public.n - 1, key.p**2, key.public.n >> 1):
        with pytest.raises(FormatError, match="product of two odd primes"):
            PublicKey.from_bytes(n.to_bytes(64, "little"), testing=True)


def test_a_log_does_not_show_the_private_key():
    for text in (repr(KEY), str(KEY), f"{[KEY]}"):
        assert KEY.public.fingerprint.hex() in text
        assert str(KEY.p) not in text
        assert f"{KEY.p:x}" not in text.lower()


def test_ciphertexts_survive_the_wire():
    class Sent(msgspec.Struct):
        sums: Ciphertexts

    ciphertexts = encrypt(KEY, [3, 4])
    arrived = wire.decode(wire.encode(Sent(ciphertexts)), Sent).sums
    assert decrypt(KEY, arrived) == [3, 4]
    assert len(arrived) == 2


def test_without_gmpy2(monkeypatch):
    monkeypatch.setitem(sys.modules, "gmpy2", None)
    for job in (generate, lambda: encrypt(KEY, [1]), lambda: Masks(KEY.public), lambda: PublicKey.from_bytes(b"")):
        with pytest.raises(InputError, match=r"'silvan\[vertical\]'"):
            job()

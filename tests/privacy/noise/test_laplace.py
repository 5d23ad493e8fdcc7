"""Noise on counts: the samplers compared with a naive version and with the distributions they claim."""

import math
import sys
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from helpers.naive_sampler import Coins
from scipy import stats

from silvan.errors import InputError, RefusedError
from silvan.privacy.noise import sampler
from silvan.privacy.noise.laplace import MAX_EPSILON, Noise, load_opendp
from silvan.privacy.noise.sampler import noise_shares, random_responses, ranges_below, round_scale_up

SCALES = [Fraction(1, 5), Fraction(1), Fraction(7, 2), Fraction(64), Fraction(1000, 3), Fraction(10**6)]


def stream(seed):
    """A repeatable source of words; kernels do not know where their words come from."""
    rng = np.random.default_rng(seed)
    return lambda n: rng.integers(0, 1 << 64, n, np.uint64)


def laplace(z, scale):
    alpha = math.exp(-1 / float(scale))
    return (1 - alpha) / (1 + alpha) * alpha ** np.abs(z)


def assert_drawn_from(drawn, probability, reach, least=1e-4):
    """Compares counts of -reach .. reach, and of the tails on each side, with their expectation."""
    z = np.arange(-reach, reach + 1)
    expected = probability(z) * len(drawn)
    beyond = (1 - probability(z).sum()) / 2 * len(drawn)
    found = np.bincount(np.clip(drawn, -reach - 1, reach + 1) + reach + 1, minlength=2 * reach + 3)
    expected = np.concatenate([[beyond], expected, [beyond]])
    rare = expected < 20  # counted together with the most likely one, so that no cell is empty
    rare[expected.argmax()] = True
    found, expected = (np.append(cells[~rare], cells[rare].sum()) for cells in (found, expected))
    assert stats.chisquare(found, expected * found.sum() / expected.sum()).pvalue > least


# -- compared with the naive version


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("sharers", [1, 2, 5, 100])
def test_shares_equal_the_naive_version(scale, sharers):
    words = stream(7)(40_000)
    num, den = round_scale_up(scale)
    twin = Coins(words)
    expected = [twin.share(num, den, sharers) for _ in range(60)]
    source = iter([words])
    np.testing.assert_array_equal(noise_shares(60, scale, sharers, lambda n: next(source)), expected)


@pytest.mark.parametrize("n_codes", [2, 7, 254])
@pytest.mark.parametrize("epsilon", [Fraction(1, 10), Fraction(3), Fraction(20)])
def test_responses_equal_the_naive_version(n_codes, epsilon):
    words, codes = stream(3)(200_000), np.arange(60) * 5 % n_codes
    twin = Coins(words)
    num = int(epsilon * sampler.DENOMINATOR)
    expected = [twin.response(code, n_codes, num, sampler.DENOMINATOR) for code in codes.tolist()]
    source = iter([words])
    np.testing.assert_array_equal(random_responses(codes, n_codes, epsilon, lambda n: next(source)), expected)


@pytest.mark.parametrize("at_once", [1, 2, 17, 1000])
def test_the_batch_size_of_random_words_does_not_matter(at_once):
    """A number that ran out of words is sampled again from the same ones, so long ones are not left out."""
    words = stream(1)(300_000)
    place = [0]

    def few(n):
        place[0] += at_once
        return words[place[0] - at_once : place[0]]

    whole = iter([words])
    expected = noise_shares(300, Fraction(20), 3, lambda n: next(whole))
    np.testing.assert_array_equal(noise_shares(300, Fraction(20), 3, few), expected)


def test_integers_below_a_bound_are_uniform():
    """Without rejection, bounds just above a power of two would favour some numbers."""
    for bound in (3, (1 << 31) + 1, (1 << 63) + 1):
        at, words = np.zeros(1, np.int64), stream(2)(200_000)
        drawn = np.array([sampler.draw_below(np.uint64(bound), words, at) for _ in range(30_000)], np.float64)
        thirds = np.bincount((drawn * 3 / bound).astype(int), minlength=3)[:3]
        assert stats.chisquare(thirds).pvalue > 1e-4
        assert drawn.max() < bound


# -- compared with the distribution


@pytest.mark.parametrize(
    ("sharers", "scale"), [(1, Fraction(2)), (2, Fraction(1, 2)), (3, Fraction(9, 2)), (10, Fraction(30))]
)
def test_shares_add_up_to_discrete_laplace(sharers, scale):
    source = stream(11)
    total = sum(noise_shares(60_000, scale, sharers, source) for _ in range(sharers))
    assert_drawn_from(total, lambda z: laplace(z, scale), int(6 * scale) + 2)


@pytest.mark.parametrize(("sharers", "scale"), [(2, Fraction(3)), (5, Fraction(8))])
def test_one_share_is_a_difference_of_polya_numbers(sharers, scale):
    alpha = math.exp(-1 / float(scale))
    up = stats.nbinom.pmf(np.arange(4000), 1 / sharers, 1 - alpha)
    both = np.convolve(up, up[::-1])

    drawn = noise_shares(100_000, scale, sharers, stream(12))
    assert_drawn_from(drawn, lambda z: both[z + 3999], int(6 * scale))


def test_more_shares_than_needed():
    """Of five sites, any three's shares make up the noise: two may be lost, or disclose theirs."""
    shares = [noise_shares(60_000, Fraction(4), 3, stream(seed)) for seed in range(5)]
    assert_drawn_from(shares[0] + shares[2] + shares[4], lambda z: laplace(z, 4), 30)
    assert np.var(sum(shares)) > 1.5 * np.var(shares[0] + shares[1] + shares[2])


def test_far_jumps_are_sampled():
    """A separate exact method samples what lies beyond the last range of jumps: far tails have their share."""
    scale = Fraction(1)
    drawn = noise_shares(400_000, scale, 1, stream(5))
    for far in (4, 6, 8):
        expected = 2 * laplace(np.arange(far, 200), scale).sum() * len(drawn)
        assert abs((np.abs(drawn) >= far).sum() - expected) < 5 * math.sqrt(expected)


@pytest.mark.parametrize(("epsilon", "n_codes"), [(0.5, 3), (3.0, 8)])
def test_responses_favour_the_truth_by_exp_epsilon(epsilon, n_codes):
    counts = np.bincount(random_responses(np.full(60_000, 1), n_codes, Fraction(epsilon), stream(9)), minlength=n_codes)
    weights = np.where(np.arange(n_codes) == 1, math.exp(epsilon), 1.0)
    assert stats.chisquare(counts, weights / weights.sum() * counts.sum()).pvalue > 1e-4


def test_the_wrong_distribution_is_noticed():
    with pytest.raises(AssertionError):
        assert_drawn_from(noise_shares(60_000, Fraction(11, 10), 1, stream(0)), lambda z: laplace(z, 1), 8)


def test_words_come_from_the_operating_system(monkeypatch):
    asked = []
    monkeypatch.setattr("os.urandom", lambda n: asked.append(n) or b"\x55" * n)
    noise_shares(5, Fraction(3), 2)
    assert asked
    assert all(n % 8 == 0 for n in asked)


# -- mechanisms


@pytest.mark.system_randomness  # a p-value of 1e-9, twelve standard errors of the variance: it never fails by chance
@pytest.mark.parametrize(("sensitivity", "epsilon"), [(1, 1.0), (11, 0.07), (254, 3.0)])
def test_a_site_adds_all_of_it_by_opendp(sensitivity, epsilon):
    noise = Noise(sensitivity, epsilon)
    exact = np.arange(20_000).reshape(100, 200)
    drawn = noise.add(exact) - exact
    assert drawn.dtype == np.int64
    assert_drawn_from(drawn.reshape(-1), lambda z: laplace(z, noise.scale), int(5 * noise.scale) + 2, 1e-9)
    assert drawn.var() == pytest.approx(noise.variance, rel=0.2)


def test_sites_add_shares():
    noise = Noise(3, 0.5, sharers=4)
    exact = np.zeros(40_000, np.int64)
    parts = [noise.add(exact) for _ in range(4)]
    assert_drawn_from(sum(parts), lambda z: laplace(z, 6), 30, 1e-9)
    assert parts[0].var() == pytest.approx(noise.variance / 4, rel=0.2)


def test_no_integer_leaves_without_noise():
    for noise in (Noise(1, 0.1), Noise(1, 0.1, 3)):
        assert len(set(noise.add(np.zeros(50, np.int64)).tolist())) > 3


def test_alpha_is_what_the_paper_calls_epsilon():
    """Eq. 6: P(z) = (1 - alpha) / (1 + alpha) alpha^|z|."""
    noise = Noise(1, 0.7)
    assert noise.alpha == pytest.approx(math.exp(-0.7))
    assert laplace(1, noise.scale) / laplace(0, noise.scale) == pytest.approx(noise.alpha)


@pytest.mark.system_randomness
def test_scales_are_never_rounded_down(monkeypatch):
    for scale in SCALES:
        num, den = round_scale_up(scale)
        assert scale <= Fraction(num, den) < scale + Fraction(1, den)
        assert 2 ** ranges_below(num, den) >= Fraction(num, den)
    dp, made, tried = load_opendp(), [], 0
    make = dp.m.make_laplace
    monkeypatch.setattr(dp.m, "make_laplace", lambda *given: made.append(make(*given)) or made[-1])
    for sensitivity, epsilon in product((1, 3, 127, 10**5), (0.1, 0.7, Fraction(1, 3), Fraction(2, 7), Fraction(9, 5))):
        tried += 1
        Noise(sensitivity, epsilon).add(np.zeros(1, np.int64))
        assert Fraction(made[-1].map(sensitivity)) <= epsilon  # opendp's own account of the noise that was added
    assert len(made) > tried  # the nearest float was too small for some of them


def test_invalid_settings():
    for wrong in (0, -1.0, math.nan, math.inf, True, "1", MAX_EPSILON + 1):
        with pytest.raises(InputError, match="epsilon"):
            Noise(1, wrong)
    with pytest.raises(InputError, match="too small"):
        Noise(10**6, 1e-6)
    with pytest.raises(InputError):
        Noise(0, 1.0)
    with pytest.raises(InputError):
        noise_shares(1, Fraction(1), 0)
    with pytest.raises(InputError):
        noise_shares(1, Fraction(1 << 31), 1)
    with pytest.raises(InputError):
        random_responses(np.array([3]), 3, Fraction(1))


@pytest.mark.system_randomness
def test_without_opendp_a_site_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    with pytest.raises(RefusedError, match=r"'silvan\[dp\]'"):
        Noise(1, 1.0).add(np.zeros(3, np.int64))
    Noise(1, 1.0, sharers=2).add(np.zeros(3, np.int64))

"""The statistics keep their promises on data whose truth is known."""

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from heddle_lab import stats
from heddle_lab.stats import Verdict

values = st.lists(st.floats(0.01, 1e12), min_size=2, max_size=8)
p_values = st.lists(st.floats(0, 1), min_size=1, max_size=20)


@given(values, st.randoms())
@settings(max_examples=50)
def test_order_of_seeds_does_not_matter(base: list[float], random: Random) -> None:
    candidate = [value * 1.07 + 1 for value in base]
    order = list(range(len(base)))
    random.shuffle(order)
    shuffled = stats.paired([base[i] for i in order], [candidate[i] for i in order])
    assert shuffled == stats.paired(base, candidate)


@given(values, st.floats(0.001, 1000))
@settings(max_examples=50)
def test_unit_does_not_matter(base: list[float], factor: float) -> None:
    candidate = [value * 1.1 + 3 for value in base]
    one = stats.paired(base, candidate)
    other = stats.paired([v * factor for v in base], [v * factor for v in candidate])
    assert other.effect == pytest.approx(one.effect, rel=1e-6, abs=1e-9)
    assert (other.low, other.high) == pytest.approx((one.low, one.high), rel=1e-6, abs=1e-9)


@given(values)
@settings(max_examples=50)
def test_interval_holds_the_median_and_lies_within_the_sample(sample: list[float]) -> None:
    low, high = stats.interval(np.asarray(sample))
    assert min(sample) <= low <= np.median(sample) <= high <= max(sample)


def test_an_end_that_rounding_puts_beyond_the_median_is_the_median() -> None:
    assert stats.interval(np.asarray([1.0, 871313621718.8549, 871313621718.8549])) == (1.0, 871313621718.8549)


def test_five_pairs_give_the_range() -> None:
    assert stats.interval(np.asarray([5.0, 1.0, 4.0, 2.0, 3.0])) == (1.0, 5.0)


Law = Callable[[np.random.Generator, int], NDArray[np.float64]]

# Symmetric or skewed, light or heavy tails; the median of each is 0.
LAWS: dict[str, Law] = {
    "normal": lambda random, n: random.normal(0, 1, n),
    "lognormal": lambda random, n: random.lognormal(0, 1, n) - 1,
    "student": lambda random, n: random.standard_t(2, n),
    "uniform": lambda random, n: random.uniform(-1, 1, n),
}


@pytest.mark.parametrize("pairs", [5, 6, 15])
@pytest.mark.parametrize("law", ["normal", "lognormal", "student"])
def test_interval_covers_the_true_median(pairs: int, law: str) -> None:
    random = np.random.default_rng(pairs)
    covered = sum(low <= 0 <= high for low, high in (stats.interval(LAWS[law](random, pairs)) for _ in range(200)))
    # 93.75 % for five pairs, less three standard errors of 200 trials.
    assert covered / 200 > 0.885


@pytest.mark.parametrize("law", ["normal", "student", "uniform"])
def test_a_table_without_differences_seldom_raises_an_alarm(law: str) -> None:
    random = np.random.default_rng(7)
    alarms = 0
    for _ in range(60):
        rows = [stats.paired([1.0] * 5, np.exp(0.05 * LAWS[law](random, 5)).tolist()) for _ in range(10)]
        corrected = stats.holm([row.p for row in rows])
        alarms += any(
            stats.verdict(row, p, "lower") is not Verdict.NO_DIFFERENCE for row, p in zip(rows, corrected, strict=True)
        )
    # 5 % of the tables, and three standard errors of 60 trials.
    assert alarms <= 8


def test_a_clear_effect_is_found_with_five_pairs() -> None:
    base = [100.0, 103.0, 98.0, 101.0, 99.0]
    candidate = [80.0, 83.0, 77.0, 81.5, 79.0]
    result = stats.paired(base, candidate)
    assert stats.verdict(result, stats.holm([result.p] * 10)[0], "lower") is Verdict.BETTER
    assert stats.verdict(result, stats.holm([result.p] * 10)[0], "higher") is Verdict.WORSE


def test_a_tiny_effect_is_no_finding() -> None:
    base = [100.0, 103.0, 98.0, 101.0, 99.0]
    result = stats.paired(base, [value * 0.995 for value in base])
    assert result.high < 0
    assert stats.verdict(result, 0.0, "lower") is Verdict.NO_DIFFERENCE


def test_equal_values_differ_in_nothing() -> None:
    result = stats.paired([3.0] * 5, [3.0] * 5)
    assert (result.effect, result.low, result.high, result.p) == (0, 0, 0, 1)
    assert stats.verdict(result, result.p, "lower") is Verdict.NO_DIFFERENCE


@pytest.mark.parametrize("pairs", [1, 2, 3, 4])
def test_few_pairs_that_show_nothing_are_too_few(pairs: int) -> None:
    """As a table of many rows had it: +4272 % with two seeds, +1285 % with one."""
    result = stats.paired([70.0, 84.0, 91.0, 77.0][:pairs], [3060.0, 1150.0, 99.0, 2000.0][:pairs])
    assert stats.verdict(result, stats.holm([result.p] * 100)[0], "lower") is Verdict.TOO_FEW_SEEDS


@pytest.mark.parametrize("pairs", [2, 3, 5, 9])
def test_equal_effects_are_no_certainty(pairs: int) -> None:
    """Whole microseconds: 5 -> 6 stands for anything from 1 to 22 % or so."""
    result = stats.paired([5000.0] * pairs, [6000.0] * pairs)
    assert result.effect == pytest.approx(0.2)
    assert result.p > 0
    assert result.p > {2: 0.1, 3: 0.04, 5: 0.005, 9: 1e-5}[pairs]


def test_three_equal_effects_of_one_step_are_no_verdict() -> None:
    result = stats.paired([5000.0] * 3, [6000.0] * 3)
    assert stats.verdict(result, result.p, "lower") is Verdict.TOO_FEW_SEEDS


def test_differences_and_many_pairs_have_no_certainty_either() -> None:
    assert stats.paired([0.0] * 5, [3.0] * 5).p > 0
    assert stats.paired([1.0] * 1000, [1e9] * 1000, resolution=1e-9).p > 0


def test_a_declared_resolution_counts() -> None:
    """Times that are known to the millisecond, whatever digits they are printed with."""
    base, candidate = [4_000_001.0] * 5, [4_400_001.0] * 5
    assert stats.paired(base, candidate).p < 1e-9
    assert stats.paired(base, candidate, resolution=1e6).p > 0.01


@pytest.mark.parametrize(
    ("values", "step"),
    [((5000, 6000), 1000), ((5000, 6500), 100), ((1.25, 3), 0.01), ((0, 40), 10), ((0, 0), 0), ((1e-3, 2), 1e-3)],
)
def test_values_look_as_coarse_as_their_last_digit(values: tuple[float, ...], step: float) -> None:
    assert stats.granularity(values) == pytest.approx(step)


def test_zeros_are_compared_by_difference() -> None:
    result = stats.paired([0.0, 0.2, 0.1, 0.0, 0.1], [0.5, 0.6, 0.6, 0.4, 0.6])
    assert not result.relative
    assert result.effect == pytest.approx(0.5)


def test_same_samples_same_bits() -> None:
    random = np.random.default_rng(1)
    base, candidate = random.lognormal(size=12).tolist(), random.lognormal(size=12).tolist()
    assert stats.paired(base, candidate) == stats.paired(base, candidate)


def test_what_is_not_paired_is_refused() -> None:
    with pytest.raises(ValueError, match="not pairs"):
        stats.paired([1.0, 2.0], [1.0])


@given(p_values)
def test_holm_never_lowers_and_keeps_the_order(p: list[float]) -> None:
    corrected = stats.holm(p)
    assert all(before <= after <= 1 for before, after in zip(p, corrected, strict=True))
    assert sorted(corrected) == [c for _, c in sorted(zip(p, corrected, strict=True))]


def test_holm_by_hand() -> None:
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_extremes_count_for_nothing_but_where_there_is_nothing_else() -> None:
    assert stats.without_extremes([3.0, 100.0, 1.0, 2.0, -50.0]) == 2.0
    assert stats.without_extremes([1.0, 3.0]) == 2.0
    assert stats.without_extremes([7.0]) == 7.0


def test_parts_of_the_time_are_compared_by_points_and_need_one() -> None:
    base = [0.010, 0.011, 0.012, 0.010, 0.011]
    little = stats.paired(base, [value / 4 for value in base], share=True)
    assert not little.relative
    assert little.high < 0
    assert stats.verdict(little, 0.0, "lower") is Verdict.NO_DIFFERENCE
    much = stats.paired(base, [value * 1.1 + 0.02 for value in base], share=True)
    assert much.effect == pytest.approx(0.0211)
    assert stats.verdict(much, 0.0, "lower") is Verdict.WORSE


def test_behind_is_who_is_worse_by_the_whole_interval() -> None:
    base = [100.0, 200.0, 300.0]
    for factors, better, behind in [
        ((1.03, 1.05, 1.03), "lower", True),
        ((1.03, 1.05, 1.03), "higher", False),
        ((1.03, 1.05, 1.01), "lower", False),
        ((0.97, 0.90, 0.95), "higher", True),
        ((0.97, 0.90, 0.95), "lower", False),
    ]:
        result = stats.paired(base, [value * factor for value, factor in zip(base, factors, strict=True)])
        assert stats.is_behind(result, better) is behind
    assert stats.is_behind(stats.paired([0.0, 0.0], [3.0, 4.0]), "lower")

"""The rules of the verdict, case by case; `test_simulation` checks what they promise."""

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_lab import power, sequential, stats
from heddle_lab.stats import Paired, Verdict

values = st.lists(st.floats(0.01, 1e12), min_size=2, max_size=8)
p_values = st.lists(st.floats(0, 1), min_size=1, max_size=20)

BASE = [100.0, 103.0, 98.0, 101.0, 99.0, 102.0]


def word(result: Paired, better: str = "lower", rows: int = 1) -> Verdict:
    return stats.verdict(result, stats.holm([result.p] * rows)[0], better)


def times(*factors: float) -> Paired:
    return stats.paired(BASE, [base * factor for base, factor in zip(BASE, factors, strict=True)], resolution=1e-9)


@given(values, st.randoms())
@settings(max_examples=50)
def test_order_of_seeds_does_not_matter(base: list[float], random: Random) -> None:
    candidate = [value * 1.07 + 1 for value in base]
    order = list(range(len(base)))
    random.shuffle(order)
    shuffled = stats.paired([base[i] for i in order], [candidate[i] for i in order], resolution=1e-3)
    straight = stats.paired(base, candidate, resolution=1e-3)
    assert (shuffled.effect, shuffled.low, shuffled.high) == pytest.approx(
        (straight.effect, straight.low, straight.high), rel=1e-9
    )


@given(values, st.floats(0.001, 1000))
@settings(max_examples=50)
def test_unit_does_not_matter(base: list[float], factor: float) -> None:
    candidate = [value * 1.1 + 3 for value in base]
    one = stats.paired(base, candidate, resolution=0.01)
    other = stats.paired([v * factor for v in base], [v * factor for v in candidate], resolution=0.01 * factor)
    assert other.effect == pytest.approx(one.effect, rel=1e-6, abs=1e-9)
    assert math.log1p(other.low) == pytest.approx(math.log1p(one.low), rel=1e-6, abs=1e-9)


def test_the_effect_is_the_geometric_mean_of_the_ratios() -> None:
    assert times(0.5, 2, 0.5, 2, 0.5, 2).effect == pytest.approx(0)
    assert times(2, 2, 2, 8, 8, 8).effect == pytest.approx(3)


def test_the_interval_is_students_of_the_logarithms() -> None:
    factors = [1.1, 1.2, 1.15, 1.3, 1.05, 1.25]
    logs, result = np.log(factors), times(*factors)
    margin = 2.570582 * logs.std(ddof=1) / math.sqrt(6)
    assert (result.low, result.high) == pytest.approx(np.expm1([logs.mean() - margin, logs.mean() + margin]))


def test_a_clear_effect_is_found_with_six_pairs() -> None:
    result = stats.paired(BASE, [80.0, 83.0, 77.0, 81.5, 79.0, 81.0])
    assert word(result, "lower", rows=10) is Verdict.BETTER
    assert word(result, "higher", rows=10) is Verdict.WORSE


@pytest.mark.parametrize("pairs", range(1, stats.FEWEST))
def test_there_is_no_verdict_on_fewer_than_six_pairs(pairs: int) -> None:
    for factor in (0.1, 1.0, 10.0):
        result = stats.paired(BASE[:pairs], [value * factor for value in BASE[:pairs]], resolution=1e-9)
        assert word(result) is Verdict.UNKNOWN


def test_the_same_is_what_the_whole_interval_calls_the_same() -> None:
    assert word(times(0.999, 1.001, 1.002, 0.998, 1.0, 1.001)) is Verdict.SAME
    assert word(times(0.95, 1.05, 1.02, 0.98, 1.0, 1.01)) is Verdict.UNKNOWN


def test_a_difference_too_small_to_matter_is_the_same_however_sure() -> None:
    result = times(0.994, 0.996, 0.995, 0.995, 0.994, 0.996)
    assert result.high < 0
    assert word(result) is Verdict.SAME


def test_an_effect_that_may_be_too_small_to_matter_is_one_if_it_is_sure() -> None:
    result = times(0.97, 0.99, 0.975, 0.985, 0.98, 0.978)
    assert result.low < -stats.SMALLEST_EFFECT < result.high < 0
    assert word(result) is Verdict.BETTER


def test_what_matters_can_be_set() -> None:
    base, candidate = [100.0] * 6, [103.0, 103.1, 103.2, 102.9, 103.0, 102.8]
    assert word(stats.paired(base, candidate)) is Verdict.WORSE
    assert word(stats.paired(base, candidate, smallest=0.05)) is Verdict.SAME


def test_equal_values_are_the_same_as_far_as_they_are_known() -> None:
    result = stats.paired([3_000_001.0] * 6, [3_000_001.0] * 6)
    assert (result.effect, result.p, word(result)) == (0, 1, Verdict.SAME)
    coarse = stats.paired([3000.0] * 6, [3000.0] * 6, resolution=1000)
    assert (coarse.effect, coarse.p, word(coarse)) == (0, 1, Verdict.UNKNOWN)


@pytest.mark.parametrize("pairs", [6, 12, 48, 1000])
def test_equal_effects_of_one_step_are_no_certainty(pairs: int) -> None:
    """Whole microseconds: 5 -> 6 stands for anything from 0 to 40 %, however often it is seen."""
    result = stats.paired([5000.0] * pairs, [6000.0] * pairs)
    assert result.effect == pytest.approx(0.2)
    assert result.high - result.low > 0.25
    assert word(result, rows=10) is Verdict.UNKNOWN


def test_no_number_of_pairs_gives_certainty() -> None:
    assert stats.paired([0.0] * 6, [3.0] * 6).p > 0
    assert stats.paired([1.0] * 1000, [1e9] * 1000, resolution=1e-9).p > 0


def test_a_declared_resolution_counts() -> None:
    """Times that are known to the millisecond, whatever digits they are printed with."""
    base, candidate = [4_000_001.0] * 6, [4_400_001.0] * 6
    assert stats.paired(base, candidate).p < 1e-9
    assert stats.paired(base, candidate, resolution=1e6).p > 0.1


@pytest.mark.parametrize(
    ("values", "step"),
    [((5000, 6000), 1000), ((5000, 6500), 100), ((1.25, 3), 0.01), ((0, 40), 10), ((0, 0), 0), ((1e-3, 2), 1e-3)],
)
def test_values_look_as_coarse_as_their_last_digit(values: tuple[float, ...], step: float) -> None:
    assert stats.granularity(values) == pytest.approx(step)


def test_zeros_are_compared_by_difference() -> None:
    result = stats.paired([0.0, 0.2, 0.1, 0.0, 0.1, 0.2], [0.5, 0.6, 0.6, 0.4, 0.6, 0.6])
    assert not result.relative
    assert result.effect == pytest.approx(0.45)
    assert result.smallest == pytest.approx(0.002)
    assert word(result) is Verdict.WORSE
    assert word(stats.paired([0.0] * 6, [0.0] * 6)) is Verdict.SAME


def test_shares_are_compared_by_points_and_need_two() -> None:
    base = [0.010, 0.011, 0.012, 0.010, 0.011, 0.012]
    little = stats.paired(base, [value / 4 for value in base], share=True)
    assert (little.relative, word(little)) == (False, Verdict.SAME)
    much = stats.paired(base, [value * 1.1 + 0.03 for value in base], share=True)
    assert much.effect == pytest.approx(0.0311)
    assert word(much) is Verdict.WORSE


def test_one_pair_excludes_nothing() -> None:
    result = stats.paired([100.0], [50.0])
    assert (result.effect, result.low, result.high, result.p) == (-0.5, -1, math.inf, 1)
    assert stats.paired([0.0], [1.0]).low == -math.inf


def test_what_is_not_paired_is_refused() -> None:
    with pytest.raises(ValueError, match="not pairs"):
        stats.paired([1.0, 2.0], [1.0])


@given(p_values)
def test_corrections_never_lower_and_keep_the_order(p: list[float]) -> None:
    for correct in (stats.holm, stats.benjamini_hochberg):
        corrected = correct(p)
        assert all(before <= after <= 1 for before, after in zip(p, corrected, strict=True))
        assert sorted(corrected) == [c for _, c in sorted(zip(p, corrected, strict=True))]


def test_corrections_by_hand() -> None:
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert stats.benjamini_hochberg([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.04, 0.04])
    assert stats.holm([]) == stats.benjamini_hochberg([]) == []


def test_extremes_count_for_nothing_but_where_there_is_nothing_else() -> None:
    assert stats.without_extremes([3.0, 100.0, 1.0, 2.0, -50.0]) == 2.0
    assert stats.without_extremes([1.0, 3.0]) == 2.0
    assert stats.without_extremes([7.0]) == 7.0


@pytest.mark.parametrize(
    ("factors", "better", "excluded"),
    [
        ((1.01, 1.012, 1.011, 1.009, 1.01, 1.01), "lower", True),
        ((0.9, 0.95, 0.7, 0.8, 0.9, 0.6), "lower", True),
        ((0.9, 0.95, 0.7, 0.8, 0.9, 0.6), "higher", False),
        ((0.99, 1.05, 1.0, 0.97, 1.02, 1.01), "lower", False),
    ],
)
def test_a_loss_is_excluded_by_the_whole_interval(factors: tuple[float, ...], better: str, excluded: bool) -> None:
    assert stats.excludes_loss(times(*factors), better) is excluded


def test_few_pairs_exclude_no_loss() -> None:
    assert not stats.excludes_loss(stats.paired([1e6] * 5, [1e6] * 5), "lower")


def test_looks_double_and_end_with_all() -> None:
    assert sequential.looks(6) == [6]
    assert sequential.looks(10) == [6, 10]
    assert sequential.looks(24) == [6, 12, 24]
    assert sequential.looks(100) == [6, 12, 24, 48, 100]
    assert sequential.looks(3) == [3]


def test_what_looks_may_spend_by_hand() -> None:
    assert sequential.spent([6, 12, 24]) == pytest.approx([0.0125, 0.0125, 0.025])
    assert sequential.spent([6, 12], exponent=3) == pytest.approx([0.00625, 0.04375])
    assert [sequential.share([6, 12, 24], pairs) for pairs in (6, 11, 24)] == pytest.approx([0.0125, 0.0125, 0.025])
    assert sequential.share([], 7) == stats.ALPHA


def test_an_early_look_has_a_wider_interval_and_a_larger_p() -> None:
    base, candidate = (
        BASE,
        [value * factor for value, factor in zip(BASE, (1.1, 1.2, 1.15, 1.3, 1.05, 1.25), strict=True)],
    )
    whole, early = stats.paired(base, candidate), stats.paired(base, candidate, alpha=0.0125)
    assert early.low < whole.low < whole.high < early.high
    assert early.p == pytest.approx(4 * whole.p)


def test_more_variance_and_more_rows_need_more_pairs_and_a_larger_effect_fewer() -> None:
    calm, wild = times(1.01, 0.99, 1.02, 0.98, 1, 1), times(1.1, 0.9, 1.2, 0.8, 1, 1)
    needed = [power.pairs_needed(row, 0.05) for row in (calm, wild)]
    assert needed[0] is not None
    assert needed[1] is not None
    assert stats.FEWEST <= needed[0] < needed[1]
    assert (power.pairs_needed(wild, 0.05, rows=20) or 0) > needed[1]
    assert (power.pairs_needed(wild, 0.10) or 0) < needed[1]


def test_no_number_of_pairs_shows_what_the_resolution_hides() -> None:
    coarse = stats.paired([5000.0] * 6, [5000.0, 6000.0] * 3)
    assert power.pairs_needed(coarse, 0.05) is None
    assert power.pairs_needed(stats.paired([100.0], [110.0]), 0.05) is None
    assert power.pairs_needed(stats.paired([1e9] * 6, [2e9] * 6, resolution=1), 0.05) == stats.FEWEST

"""What the statistics promise, on data whose truth is known: coverage, false alarms, power.

`pytest -c lab/pyproject.toml lab/tests/test_simulation.py -v` prints the numbers.
"""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from heddle_lab import power, sequential, stats
from heddle_lab.stats import Verdict

Sample = NDArray[np.float64]
Law = Callable[[np.random.Generator, tuple[int, ...]], Sample]
Record = Callable[[str, object], None]

SIZES = (6, 7, 8, 10, 12, 16, 24, 48, 96)
"""pairs that experiments use, and at which runs with --detect look"""

TRIALS = 20_000
ERRORS = 3.5
"""standard errors of a simulation by which it may miss what is claimed"""

EULER = 0.5772156649015329

# Log-ratios whose mean is 0.
SYMMETRIC: dict[str, Law] = {
    "normal": lambda random, shape: random.normal(0, 1, shape),
    "student, 3 degrees": lambda random, shape: random.standard_t(3, shape),
    "student, 2 degrees": lambda random, shape: random.standard_t(2, shape),
    "laplace": lambda random, shape: random.laplace(0, 1, shape),
    "one in five is ten times as far": lambda random, shape: (
        random.normal(0, 1, shape) * np.where(random.random(shape) < 0.2, 10, 1)
    ),
    "two phases": lambda random, shape: random.uniform(-1, 1, shape) - random.uniform(-1, 1, shape),
    "ties": lambda random, shape: np.round(random.normal(0, 1, shape)),
}
ROUNDING = {"ties": 1 / 12}
"""variance that is known of a law"""

ALARMS = {"two phases": 0.058}
"""of tables; far out, Student's t is not quite exact for a law whose tails are lighter than the normal's"""

# Of both sides, the candidate's three times as wide; and of one side alone.
SKEWED: dict[str, tuple[Law, float]] = {
    "maxima": (lambda random, shape: 3 * random.gumbel(size=shape) - random.gumbel(size=shape) - 2 * EULER, 0.93),
    "maxima of one side": (lambda random, shape: random.gumbel(size=shape) - EULER, 0.925),
    "exponential, one side": (lambda random, shape: random.exponential(size=shape) - 1, 0.88),
}


def below(part: float, trials: int) -> float:
    """Return what a simulation of a probability may show at the least."""
    return part - ERRORS * float(np.sqrt(part * (1 - part) / trials))


def above(part: float, trials: int) -> float:
    return part + ERRORS * float(np.sqrt(part * (1 - part) / trials))


def coverage(samples: Sample, truth: Sample | float, rounding: float | Sample = 0.0) -> float:
    found = stats.estimate(samples, rounding)
    return float(np.mean(np.abs(found.mean - truth) <= found.margin()))


@pytest.mark.parametrize("pairs", SIZES)
def test_the_interval_covers_the_mean_of_any_symmetric_law(pairs: int, record_property: Record) -> None:
    random = np.random.default_rng(pairs)
    found = {
        name: coverage(law(random, (TRIALS, pairs)), 0.0, ROUNDING.get(name, 0.0)) for name, law in SYMMETRIC.items()
    }
    record_property("coverage", f"{pairs} pairs: " + ", ".join(f"{name} {part:.1%}" for name, part in found.items()))
    assert min(found.values()) >= below(0.945, TRIALS)
    assert found["normal"] <= above(0.95, TRIALS)


@pytest.mark.parametrize("pairs", SIZES)
def test_the_interval_of_a_skewed_law_is_too_narrow_by_what_is_documented(pairs: int, record_property: Record) -> None:
    random = np.random.default_rng(pairs)
    found = {name: coverage(law(random, (TRIALS, pairs)), 0.0) for name, (law, _) in SKEWED.items()}
    record_property("coverage", f"{pairs} pairs: " + ", ".join(f"{name} {part:.1%}" for name, part in found.items()))
    assert all(part >= below(SKEWED[name][1], TRIALS) for name, part in found.items())


@pytest.mark.parametrize("pairs", SIZES)
@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3, 0.5, 1.0, 3.0])
def test_the_interval_covers_what_rounding_hides(pairs: int, noise: float, record_property: Record) -> None:
    """Times of 10 steps and more, known to one step; the noise is in steps.

    With none, all pairs say the same, and what they say is wrong by up to a step.
    """
    random = np.random.default_rng(pairs)
    truth, base = random.uniform(-5, 5, (TRIALS, 1)), random.uniform(10, 40, (TRIALS, 1))
    sides = [np.round(middle + noise * random.normal(size=(TRIALS, pairs))) for middle in (base, base + truth)]
    part = coverage(sides[1] - sides[0], truth[:, 0], 1 / 6)
    record_property("coverage", f"{pairs} pairs, noise of {noise} steps: {part:.1%}")
    assert part >= below(0.95, TRIALS)


@pytest.mark.parametrize("pairs", [6, 24])
def test_rows_of_coarse_times_are_covered_as_paired_sees_them(pairs: int) -> None:
    """By ratios, with the resolution that is declared: whole us, effects of a few."""
    random, trials, covered = np.random.default_rng(1), 400, 0
    for _ in range(trials):
        base, other = random.uniform(5e3, 2e4, 2)
        sides = [np.round(side + 200 * random.normal(size=pairs), -3) for side in (base, other)]
        row = stats.paired(sides[0].tolist(), sides[1].tolist(), resolution=1000)
        covered += row.low <= other / base - 1 <= row.high
    assert covered / trials >= below(0.95, trials)


def called(p: Sample) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return of each table of p-values whether Holm's method, and Benjamini and Hochberg's, leaves one below 5 %."""
    rows = p.shape[1]
    holm = rows * p.min(axis=1) < stats.ALPHA
    stepped = (np.sort(p, axis=1) * rows / np.arange(1, rows + 1) < stats.ALPHA).any(axis=1)
    for table, first, second in zip(p[:40], holm, stepped, strict=False):
        assert first == (min(stats.holm(list(table))) < stats.ALPHA)
        assert second == (min(stats.benjamini_hochberg(list(table))) < stats.ALPHA)
    return holm, stepped


@pytest.mark.parametrize("pairs", [6, 8, 12, 24])
@pytest.mark.parametrize("law", SYMMETRIC)
def test_a_table_without_differences_seldom_raises_an_alarm(pairs: int, law: str, record_property: Record) -> None:
    """Ten primaries and thirty other metrics, of which three each go with a primary."""
    random, tables, rounding = np.random.default_rng(pairs), 2000, ROUNDING.get(law, 0.0)
    primaries = SYMMETRIC[law](random, (tables, 10, pairs))
    others = np.repeat(primaries, 3, axis=1) + SYMMETRIC[law](random, (tables, 30, pairs))
    alarms, _ = called(stats.estimate(primaries, rounding).p())
    _, found = called(stats.estimate(others, 2 * rounding).p())
    record_property(
        "false alarms", f"{pairs} pairs, {law}: primaries {alarms.mean():.1%}, other metrics {found.mean():.1%}"
    )
    assert alarms.mean() <= above(ALARMS.get(law, 0.05), tables)
    assert found.mean() <= above(ALARMS.get(law, 0.05), tables)


def test_of_the_verdicts_on_other_metrics_few_are_false() -> None:
    """Half of thirty metrics differ."""
    random, parts = np.random.default_rng(3), []
    effects = np.where(np.arange(30) % 2, 0.05, 0.0)[:, np.newaxis]
    for _ in range(300):
        p = stats.estimate(effects + 0.02 * random.normal(size=(30, 8))).p()
        found = np.array(stats.benjamini_hochberg(list(p))) < stats.ALPHA
        parts.append((found & (effects[:, 0] == 0)).sum() / max(1, found.sum()))
    assert 0 < np.mean(parts) <= 0.06


@pytest.mark.parametrize("pairs", [6, 12, 24])
def test_what_differs_by_more_than_what_matters_is_seldom_called_the_same(pairs: int) -> None:
    """At the edge, where that is likeliest: a chance of 2.5 %."""
    random, trials = np.random.default_rng(pairs), TRIALS
    found = stats.estimate(np.log1p(stats.SMALLEST_EFFECT) + 0.01 * random.normal(size=(trials, pairs)))
    same = np.abs(found.mean) + found.margin() <= np.log1p(stats.SMALLEST_EFFECT)
    assert same.mean() <= above(0.025, trials)


def row_of(deviation: float, pairs: int = 6) -> stats.Paired:
    """Return a row without effect whose log-ratios have a standard deviation."""
    base = np.full(pairs, 1e6)
    noise = np.resize([-1.0, 1.0], pairs) * deviation * np.sqrt((pairs - 1) / pairs)
    return stats.paired(base.tolist(), (base * np.exp(noise)).tolist(), resolution=1e-6)


@pytest.mark.parametrize("deviation", [0.01, 0.03, 0.06])
@pytest.mark.parametrize("rows", [1, 10, 27])
def test_the_pairs_that_are_predicted_find_the_effect(deviation: float, rows: int, record_property: Record) -> None:
    """The effect is 5 %. A pilot of six pairs gives the variance, which the prediction has to allow for."""
    random, trials, found, sizes = np.random.default_rng(rows), 100, 0, []
    for _ in range(trials):
        pilot = deviation * random.normal(size=6)
        needed = power.pairs_needed(row_of(float(pilot.std(ddof=1))), 0.05, rows=rows)
        assert needed is not None
        p = stats.estimate(np.log(1.05) + deviation * random.normal(size=needed)).p()
        found, sizes = found + bool(p * rows < stats.ALPHA), [*sizes, needed]
    what = f"5 % of {rows} rows with a standard deviation of {deviation:.1%}"
    record_property("power", f"{what}: {found / trials:.0%} with {np.median(sizes):.0f} pairs")
    assert found / trials >= below(0.8, trials)


@pytest.mark.parametrize("pairs", [6, 20])
def test_power_is_that_of_the_test(pairs: int) -> None:
    random = np.random.default_rng(pairs)
    found = stats.estimate(0.05 + 0.06 * random.normal(size=(TRIALS, pairs))).p() < 0.05
    assert power.power(pairs, 0.05, 0.06) == pytest.approx(found.mean(), abs=0.015)


SUITE = (0.0025, 0.01, 0.0315, 0.063)
"""standard deviations of log-ratios: quantiles 10, 25, 50 and 75 % of the suite's throughput and times"""

PRIMARIES = 27
"""of the suite, on one machine"""


@pytest.mark.parametrize("exponent", [1.0, 3.0])
def test_looks_spend_no_more_than_there_is(exponent: float, record_property: Record) -> None:
    """A row without effect is looked at again and again, until it is found to differ."""
    planned = sequential.looks(96)
    assert sum(sequential.spent(planned, exponent)) == pytest.approx(stats.ALPHA)
    samples = np.random.default_rng(1).normal(size=(TRIALS, planned[-1]))
    p = [stats.estimate(samples[:, :pairs]).p() for pairs in planned]
    naive = np.min(p, axis=0) < stats.ALPHA
    corrected = [one * stats.ALPHA / part for one, part in zip(p, sequential.spent(planned, exponent), strict=True)]
    wrong = np.min(corrected, axis=0) < stats.ALPHA
    record_property("false alarms", f"{len(planned)} looks: {wrong.mean():.1%}, uncorrected {naive.mean():.1%}")
    assert naive.mean() > 0.10
    assert wrong.mean() <= above(0.05, TRIALS)


@pytest.mark.parametrize("deviation", SUITE)
@pytest.mark.parametrize("truth", [0.0, 0.05])
def test_a_run_that_is_to_detect_5_percent_does(deviation: float, truth: float, record_property: Record) -> None:
    """Seeds are added until the row is decided, or has what it needs for 5 %, with at most 96 pairs."""
    random, trials = np.random.default_rng(5), 60
    planned, found, sizes = sequential.looks(96), 0, []
    for _ in range(trials):
        ratios = np.exp(np.log1p(truth) + deviation * random.normal(size=planned[-1]))
        for pairs in planned:
            alpha = sequential.share(planned, pairs)
            base = np.full(pairs, 1e6)
            row = stats.paired(base.tolist(), (base * ratios[:pairs]).tolist(), resolution=1e-6, alpha=alpha)
            word = stats.verdict(row, PRIMARIES * row.p, "higher")
            if word is not Verdict.UNKNOWN or sequential.enough(row, 0.05, planned, PRIMARIES):
                break
        found += word.decided
        sizes.append(pairs)
    what = f"an effect of {truth:.0%}, standard deviation {deviation:.1%}"
    record_property("--detect 5%", f"{what}: {found / trials:.0%} better or worse, {np.mean(sizes):.0f} pairs")
    assert found / trials >= below(0.8, trials) if truth else found / trials <= above(0.05 / PRIMARIES, trials)

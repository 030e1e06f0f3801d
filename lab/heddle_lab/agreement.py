"""Do this machine and the clock agree? The effects of contrasts on both, compared.

An effect is the mean of ln(b / a) over the pairs, with Student's interval (`stats`). Which side is called a is a matter
of words, so nothing here may depend on it. Hence the slope is that of a line through the origin, and the correlation
takes each contrast both ways round.
"""

import tomllib
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from heddle_lab import stats, units
from heddle_lab.contrasts import Contrast, Contrasts, Pairs, Run
from heddle_lab.errors import HeddleError
from heddle_lab.tomlfile import Model

LARGE = 0.05
"""an effect of this machine beyond which the signs are to agree"""

SIGNS = 0.90
"""least part of the large effects whose signs are to agree"""

SLOPES = (0.7, 1.4)
"""bounds of the slope; also of a single contrast's ratio of log-ratios"""

HEADINGS = ("contrast", "program", "metric", "a", "b", "machine, ln(b / a)", "clock, ln(b / a)", "verdict")
"""of `Agreement.rows`"""

_FEWEST = 3
"""contrasts of fewer of which a slope has no interval"""


class Word(StrEnum):
    """What the clock says of a contrast."""

    AGREES = "agrees"
    SIGN = "**sign**"
    SIZE = "**size**"
    NOT_MEASURED = "not measured"

    @property
    def is_miss(self) -> bool:
        """Whether it calls for an explanation."""
        return self in (Word.SIGN, Word.SIZE)


class Effect(Model):
    """The log-ratio of the sides on one back end."""

    log: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return it with its interval."""
        return f"{self.log:+.3f} ({self.low:+.3f} … {self.high:+.3f})".replace("-", "−")


class Finding(Model):
    """A contrast with what came of it."""

    contrast: Contrast
    metric: str = ""
    host: Effect | None = None
    clock: Effect | None = None

    @property
    def both(self) -> tuple[Effect, Effect] | None:
        """The two effects; none if one was not measured."""
        return (self.host, self.clock) if self.host and self.clock else None

    @property
    def large(self) -> bool:
        """Whether this machine's effect is one whose sign counts."""
        return self.host is not None and abs(self.host.log) > np.log1p(LARGE)

    @property
    def word(self) -> Word:
        """What the clock says of it."""
        if self.both is None:
            return Word.NOT_MEASURED
        host, clock = self.both
        if self.large and np.sign(host.log) != np.sign(clock.log):
            return Word.SIGN
        nothing = float(np.log1p(stats.SMALLEST_EFFECT))
        ends = [bound * end for bound in SLOPES for end in (host.low, host.high)]
        meets = clock.low <= max(ends) and min(ends) <= clock.high
        return Word.AGREES if meets or max(abs(host.log), abs(clock.log)) <= nothing else Word.SIZE


class Slope(NamedTuple):
    """Of the clock's log-ratios over this machine's."""

    value: float
    low: float
    high: float


class Agreement(Model):
    """All contrasts together."""

    findings: list[Finding]

    @property
    def measured(self) -> list[tuple[Effect, Effect]]:
        """The effects of the contrasts that both back ends measured."""
        return [found.both for found in self.findings if found.both]

    @property
    def misses(self) -> list[Finding]:
        """The contrasts that call for an explanation."""
        return [found for found in self.findings if found.word.is_miss]

    @property
    def signs(self) -> tuple[int, int]:
        """How many large effects have the same sign on the clock, and how many there are."""
        large = [found for found in self.findings if found.large and found.both]
        return sum(found.word is not Word.SIGN for found in large), len(large)

    def slope(self) -> Slope:
        """Return the slope, with its bootstrap interval over the contrasts; see `slope_of`."""
        logs = np.array([(host.log, clock.log) for host, clock in self.measured])
        if len(logs) < _FEWEST:
            return Slope(slope_of(logs), -np.inf, np.inf)
        found = scipy.stats.bootstrap(
            (np.arange(len(logs)),),
            lambda chosen: slope_of(logs[chosen]),
            vectorized=False,
            method="percentile",
            n_resamples=2000,
            rng=np.random.default_rng(1),
        ).confidence_interval
        return Slope(slope_of(logs), float(found.low), float(found.high))

    def correlation(self) -> float:
        """Return Pearson's correlation of the log-ratios, each contrast taken both ways round."""
        logs = np.array([(host.log, clock.log) for host, clock in self.measured])
        return float(scipy.stats.pearsonr(*np.concatenate([logs, -logs]).T).statistic)

    def faults(self) -> list[str]:
        """Return where the bar is missed, a line each; none: it is met."""
        agree, large = self.signs
        slope = self.slope().value
        found = []
        if agree < SIGNS * large:
            found.append(f"the sign agrees in {agree} of {large} contrasts, fewer than {units.part(SIGNS)}")
        if not SLOPES[0] <= slope <= SLOPES[1]:
            found.append(f"the slope is {slope:.2f}, outside of {SLOPES[0]} to {SLOPES[1]}")
        found += [f"contrast '{one.contrast.name}' was not measured" for one in self.findings if one.both is None]
        found += [
            f"contrast '{one.contrast.name}': {one.word.value.strip('*')} differs: find out why, and write it as `miss`"
            for one in self.misses
            if not one.contrast.miss
        ]
        return found

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table below `HEADINGS`."""
        return [
            (
                found.contrast.name,
                found.contrast.program,
                found.metric,
                found.contrast.a.name,
                found.contrast.b.name,
                str(found.host or ""),
                str(found.clock or ""),
                found.word.value,
            )
            for found in self.findings
        ]

    def summary(self) -> str:
        """Return the numbers of the bar in a sentence."""
        agree, large = self.signs
        slope = self.slope()
        return (
            f"{units.counted(len(self.measured), 'contrast')}: the sign agrees in {agree} of the {large} "
            f"whose effect exceeds {units.part(LARGE)}, slope {slope.value:.2f} ({slope.low:.2f} … {slope.high:.2f}), "
            f"correlation {self.correlation():.2f}, {len(self.misses)} missed"
        )


def slope_of(logs: NDArray[np.float64]) -> float:
    """Return the slope of the line through the origin that is nearest to points, by orthogonal distance.

    Both coordinates have errors of about the same size, so neither may be taken as exact: least squares in one of them
    would give a slope that is too flat. The line is the first right singular vector.

    Args:
        logs: a point in each line, this machine's log-ratio and the clock's.
    """
    across, up = scipy.linalg.svd(logs, full_matrices=False)[2][0]
    return float(np.divide(up, across))


def effect(pairs: Pairs) -> Effect | None:
    """Return the effect over pairs; none of fewer than two.

    Raises:
        HeddleError: a value is not above zero, so there is no ratio.
    """
    if len(pairs.a) < 2:
        return None
    found = stats.paired(pairs.a, pairs.b)
    if not found.relative:
        raise HeddleError("a metric of a contrast is not above zero, so it has no ratio: name another `metric`")
    log, low, high = np.log1p([found.effect, found.low, found.high])
    return Effect(log=log, low=low, high=high)


def judge(wanted: Contrasts, run: Run) -> Agreement:
    """Return what came of each contrast.

    Raises:
        HeddleError: nothing was measured on both back ends, or a value has no ratio.
    """
    findings = []
    for contrast in wanted.contrasts:
        found = run.measured.get(contrast.name)
        if found is None:
            findings.append(Finding(contrast=contrast))
            continue
        try:
            sides = {"host": effect(found.host), "clock": effect(found.clock)}
        except HeddleError as error:
            raise HeddleError(f"contrast '{contrast.name}': {error}") from error
        findings.append(Finding(contrast=contrast, metric=found.metric, **sides))
    if not any(found.both for found in findings):
        raise HeddleError("no contrast has two pairs on both back ends: there is nothing to compare")
    return Agreement(findings=findings)


def page(found: Agreement, run: Run) -> str:
    """Return the page in Markdown.

    Args:
        found: what came of the contrasts.
        run: what was measured.
    """
    lines = [
        "# Fidelity",
        "",
        "Written by `bin/heddle fidelity`. It runs programs in two ways each, on a real machine and on the clock's",
        "model of that machine, and compares the effects. The contrasts stand in",
        "[lab/fidelity.toml](../lab/fidelity.toml). None was used to fit the model: `heddle calibrate` measures single",
        "operations.",
        "",
        f"**This run is of one machine: {_machine(run)}.** So it says nothing of more CPUs, of several last-level",
        "caches, of SMT, or of hardware without a hypervisor. Both sides run the kernel's own scheduler: the machine's",
        f"kernel is {run.host}, the guests' is {run.guest}.",
        "",
        f"{found.summary()}.",
        "",
        f"The bar: the sign agrees in {units.part(SIGNS)} of the contrasts whose effect on the machine exceeds",
        f"{units.part(LARGE)}, the slope lies in {SLOPES[0]} … {SLOPES[1]}, and every miss is explained.",
        _verdict(found.faults()),
        "",
        f"| {' | '.join(HEADINGS)} |",
        "| --- | --- | --- | --- | --- | --: | --: | --- |",
        *(f"| {' | '.join(row)} |" for row in found.rows()),
        "",
        *_notes(run),
        "",
        "## Misses",
        "",
        *([f"- *{one.contrast.name}*: {_explained(one)}" for one in found.misses] or ["None."]),
        "",
        "## Why these contrasts",
        "",
        *(f"- *{one.contrast.name}*: {one.contrast.source}." for one in found.findings),
        "",
        "## The machine",
        "",
        "```toml",
        run.machine.strip(),
        "```",
        "",
        f"Commit {run.commit}.",
    ]
    return "\n".join(lines) + "\n"


def _machine(run: Run) -> str:
    """Return what the machine is, by its file."""
    return str(tomllib.loads(run.machine)["summary"])


def _verdict(faults: Sequence[str]) -> str:
    return f"It is missed: {'; '.join(faults)}." if faults else "It is met."


def _notes(run: Run) -> list[str]:
    """Return how to read the table."""
    repetitions, seeds = (max(len(getattr(one, side).a) for one in run.measured.values()) for side in ("host", "clock"))
    return [
        "A log-ratio of 0.05 is 5 %, one of 0.69 a doubling. In brackets is Student's 95 % interval, of",
        f"{repetitions} repetitions of both sides on the machine, one after the other and in the other order every",
        f"other time, and of {seeds} seeds on the clock. The slope is that of the line through the origin with the",
        "least orthogonal distances: both coordinates have errors, and which side is called a must not matter.",
        "Its interval is a bootstrap's over the contrasts. The correlation is Pearson's, with each contrast both ways",
        "round.",
        "",
        f"A miss is **sign** if an effect of more than {units.part(LARGE)} has another sign on the clock. It is",
        f"**size** if no value of the clock's interval is {SLOPES[0]} to {SLOPES[1]} times one of the",
        f"machine's, unless both effects are below {units.part(stats.SMALLEST_EFFECT)}.",
        "",
        "Loads that state instructions and pauses have values of their own on the machine (`host` in the file), so",
        "that they take as long beside its kernel as on the clock.",
        "",
        run.conditions,
    ]


def _explained(finding: Finding) -> str:
    return f"explained: {finding.contrast.miss}" if finding.contrast.miss else "not explained yet."

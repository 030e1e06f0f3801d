"""The report: one HTML file without any reference to the network."""

from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from heddle_lab import (
    cdf,
    comparison,
    machine,
    machinepicture,
    markdown,
    means,
    resultfile,
    sequential,
    stats,
    table,
    timelines,
    tracing,
    units,
)
from heddle_lab.comparison import Row
from heddle_lab.measures import drawing, perfetto
from heddle_lab.resultfile import CellResult

NAME = markdown.REPORT

_WIDTH, _HEIGHT, _MARGIN = 320.0, 34.0, 8.0
"""of the drawing of one interval, in SVG user units"""


class Drawing(NamedTuple):
    """Positions, in SVG user units, of one row's interval, effect and single pairs."""

    zero: float
    low: float
    high: float
    effect: float
    pairs: list[float]


class Pictures(NamedTuple):
    """What is drawn beside the rows."""

    machines: dict[str, str]
    """machine -> SVG"""
    timelines: list[tuple[str, str, str]]
    """what it shows, its SVG, the file for ui.perfetto.dev beside the page"""


class Section(NamedTuple):
    """The rows of one workload point with what they share: a card."""

    anchor: str
    """its `id` in the page"""
    where: str
    """machine and kernel"""
    point: str
    params: dict[str, Any]
    rows: list[tuple[Row, Drawing]]
    seeds: list[int]
    pairs: str
    """how many seeds were compared"""
    scale: str
    """the effect at the right edge of the drawings"""
    command: str
    distribution: str
    """SVG of the wakeup latencies of all schedulers at this point; empty without traces"""


class Contestant(NamedTuple):
    """All that is said of one contestant on one machine: a set of cards, the most telling first."""

    anchor: str
    title: str
    counts: dict[str, int]
    """word -> primary rows"""
    means: list[tuple[str, str]]
    """throughput, p50, p99 -> mean, for reading"""
    wanting: str
    cards: list[Section]


def pictures(folder: Path, about: resultfile.About, cells: list[CellResult]) -> Pictures:
    """Draw the machines, and read the timelines that were drawn into a folder of results."""
    models = {cell.machine: cell.provenance["inputs"]["machine"] for cell in cells if not cell.variation}
    speeds = {name: machine.speeds(model) for name, model in models.items()}
    machines = {
        name: machinepicture.svg(cpus, speeds[name]) for name, cpus in about.topologies.items() if name in speeds
    }
    drawn = []
    for name, label in about.timelines.items():
        base = folder / timelines.FOLDER / name
        picture = Path(f"{base}{drawing.SUFFIX}")
        if picture.is_file():
            text = picture.read_text(encoding="utf-8")
            drawn.append((label, text, f"{timelines.FOLDER}/{name}{perfetto.SUFFIX}"))
    return Pictures(machines, drawn)


def render(about: resultfile.About, cells: list[CellResult], rows: list[Row], drawn: Pictures) -> str:
    """Return the page.

    Args:
        about: the run as a whole: title, command.
        cells: all measured cells, for the provenance.
        rows: the compared rows; may be empty if a single scheduler was measured.
        drawn: machines and timelines.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("heddle_lab"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["quantity"] = units.quantity
    template = environment.get_template("report.html.j2")
    page: str = template.render(
        title=about.title,
        command=about.command,
        contestants=_contestants(rows, cells),
        drawn=drawn,
        perturbation=table.perturbation(cells),
        surroundings=table.surroundings(cells),
        replays=comparison.replays(cells),
        means_footnote=f"{means.FOOTNOTE} {means.EXTREME}",
        looks=sequential.note(about.looks),
        links=[("table", markdown.NAME), *((Path(shown).name, shown) for shown in about.pages)],
        cells=cells,
        facts=_facts(cells),
        width=_WIDTH,
        height=_HEIGHT,
        fewest=stats.FEWEST,
        smallest_effect=units.part(stats.SMALLEST_EFFECT),
    )
    return page


def _contestants(rows: list[Row], cells: list[CellResult]) -> list[Contestant]:
    return [_contestant(group, number, cells) for number, group in enumerate(comparison.by_candidate(rows), start=1)]


def _contestant(rows: list[Row], number: int, cells: list[CellResult]) -> Contestant:
    first, judged = rows[0], comparison.primaries(rows)
    points = comparison.grouped([*judged, *comparison.others(rows)], lambda row: row.point)
    return Contestant(
        f"c{number}",
        f"{first.candidate} against {first.baseline} on {first.where}",
        {word.value: sum(row.verdict is word for row in judged) for word in stats.Verdict},
        [(name, str(mean or "not measured")) for name, mean in means.of(rows).items()],
        comparison.wanting(rows),
        [
            _section(group, f"c{number}-{place}", _distribution(group[0], cells))
            for place, group in enumerate(points, start=1)
        ],
    )


def _distribution(row: Row, cells: list[CellResult]) -> str:
    """Draw the wakeup latencies of a row's two sides; nothing if they were not traced."""
    place = (row.machine, row.kernel, row.workload, row.params, "")
    curves: dict[str, list[list[int]]] = {}
    for cell in cells:
        here = (cell.machine, cell.kernel, cell.workload, cell.params, cell.variation)
        if here == place and cell.variant in (row.baseline, row.candidate) and cell.latencies_ns:
            curves.setdefault(cell.variant, []).append(cell.latencies_ns)
    return cdf.svg(curves, tracing.QUANTILES) if curves else ""


def _section(rows: list[Row], anchor: str, distribution: str) -> Section:
    """Draw the rows of one point on one scale, symmetric around zero, so that lengths compare."""
    first = rows[0]
    reach = max((_reach(row) for row in rows if row.result.relative), default=0.0) or stats.SMALLEST_EFFECT
    drawn = [(row, _drawing(row, reach if row.result.relative else _reach(row) or 1.0)) for row in rows]
    return Section(
        anchor,
        first.where,
        first.point,
        first.params,
        drawn,
        sorted(set().union(*(row.seeds for row in rows))),
        comparison.pairs(rows),
        units.percent(reach).lstrip("+"),
        first.command(),
        distribution,
    )


def _effects(row: Row) -> list[float]:
    pairs = zip(row.baseline_values, row.candidate_values, strict=True)
    return [after / before - 1 if row.result.relative else after - before for before, after in pairs]


def _reach(row: Row) -> float:
    return max(abs(effect) for effect in _effects(row))


def _drawing(row: Row, reach: float) -> Drawing:
    def place(effect: float) -> float:
        # An interval of few pairs may end far outside: it is drawn to the edge.
        part = max(-1.0, min(1.0, effect / reach))
        return round(_WIDTH / 2 + part * (_WIDTH / 2 - _MARGIN), 2)

    result = row.result
    return Drawing(
        place(0),
        place(result.low),
        place(result.high),
        place(result.effect),
        [place(e) for e in _effects(row)],
    )


def _facts(cells: list[CellResult]) -> list[tuple[str, list[str]]]:
    """Return what the cells' provenance says, each fact once, short enough to read."""
    facts: dict[str, list[str]] = {}

    def add(name: str, value: str) -> None:
        if value not in facts.setdefault(name, []):
            facts[name].append(value)

    for cell in cells:
        inputs, versions = cell.provenance["inputs"], cell.provenance["versions"]
        add("Repository", f"commit {versions['commit'] or 'unknown'}")
        add("Machine", f"{cell.machine}: {cell.provenance['machine_source']}")
        if cell.backend == "clock":
            add("Virtual clock", _clock(inputs["machine"]))
            add("Kernel", f"{cell.provenance['kernel_release']}, sha256 {inputs['kernel']}")
            add("Kernel arguments", inputs["command_line"])
            add("Virtual CPU", inputs["cpu"])
            add("QEMU", f"sha256 {inputs['qemu']}")
        else:
            add("Back end", cell.backend)
            add("Kernel", inputs["kernel"])
        add("Guest image", ", ".join(f"sha256 {digest}" for digest in inputs["image"]))
        add("Scheduler", _scheduler(cell))
        if cell.provenance["variant"]:
            add("Variant", cell.provenance["option"][1])
        add("Workload", f"{cell.workload}: {cell.provenance['workload_source']}")
        add("Statistics", f"numpy {versions['numpy']}, scipy {versions['scipy']}")
    return list(facts.items())


def _clock(model: dict[str, Any]) -> str:
    """Return what the clock and the caches of a machine add to its topology."""
    clock, caches = model["clock"], model["caches"]
    rates = "/".join(str(speed) for speed in sorted(set(machine.speeds(model)), reverse=True))
    cold = f"{caches['footprint_kib']} KiB to fetch" if caches else "nothing"
    return (
        f"quantum {clock['quantum_ns']} ns, {rates} instructions per 100 ns, "
        f"{clock['smt']} % of it beside a busy sibling; a task that moves has {cold}"
    )


def _scheduler(cell: CellResult) -> str:
    about = cell.provenance["inputs"]["scheduler"]
    if not about["argv"]:
        return f"{cell.sched}: the kernel's own"
    digest = f", sha256 {about['sha256']}" if about["sha256"] else ", from the guest image"
    return f"{cell.sched}: {' '.join(about['argv'])}{digest}"

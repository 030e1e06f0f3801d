"""The report: one HTML file without any reference to the network."""

from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from heddle_lab import (
    cdf,
    comparison,
    machine,
    machinepicture,
    means,
    resultfile,
    stats,
    table,
    timelines,
    tracing,
    units,
)
from heddle_lab.comparison import Row
from heddle_lab.measures import drawing, perfetto
from heddle_lab.resultfile import CellResult

NAME = "report.html"

_WIDTH, _HEIGHT, _MARGIN = 320.0, 34.0, 8.0
"""of the drawing of one interval, in SVG user units"""


class Drawing(NamedTuple):
    """Positions, in SVG user units, of one row's interval and of its single pairs."""

    zero: float
    low: float
    high: float
    median: float
    pairs: list[float]


class Pictures(NamedTuple):
    """What is drawn beside the rows."""

    machines: dict[str, str]
    """machine -> SVG"""
    timelines: list[tuple[str, str, str]]
    """what it shows, its SVG, the file for ui.perfetto.dev beside the page"""


class Section(NamedTuple):
    """The rows of one workload point with what they share."""

    machine: str
    kernel: str
    point: str
    params: dict[str, Any]
    rows: list[tuple[Row, Drawing]]
    pairs: str
    """how many seeds were compared"""
    scale: str
    """the effect at the right edge of the drawings"""
    command: str
    distribution: str
    """SVG of the wakeup latencies of all schedulers at this point; empty without traces"""


def pictures(folder: Path, about: resultfile.About, cells: list[CellResult]) -> Pictures:
    """Draw the machines, and read the timelines that were drawn into a folder of results."""
    speeds = {cell.machine: machine.speeds(cell.provenance["inputs"]["machine"]) for cell in cells if not cell.variant}
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
        sections=_sections(rows, cells),
        drawn=drawn,
        perturbation=table.perturbation(cells),
        means=means.lines(rows),
        means_footnote=means.FOOTNOTE,
        counts={word.value: sum(row.verdict is word for row in rows) for word in stats.Verdict},
        cells=cells,
        facts=_facts(cells),
        width=_WIDTH,
        height=_HEIGHT,
        fewest=stats.FEWEST,
        smallest_effect=units.percent(stats.SMALLEST_EFFECT).lstrip("+"),
    )
    return page


def _sections(rows: list[Row], cells: list[CellResult]) -> list[Section]:
    groups = comparison.grouped(rows, lambda row: (row.machine, row.kernel, row.point, row.candidate))
    return [_section(group, _distribution(group[0], cells)) for group in groups]


def _distribution(row: Row, cells: list[CellResult]) -> str:
    """Draw the wakeup latencies of a row's two sides; nothing if they were not traced."""
    place = (row.machine, row.kernel, row.workload, row.params, "")
    curves: dict[str, list[list[int]]] = {}
    for cell in cells:
        here = (cell.machine, cell.kernel, cell.workload, cell.params, cell.variant)
        if here == place and cell.sched in (row.baseline, row.candidate) and cell.latencies_ns:
            curves.setdefault(cell.sched, []).append(cell.latencies_ns)
    return cdf.svg(curves, tracing.QUANTILES) if curves else ""


def _section(rows: list[Row], distribution: str) -> Section:
    """Draw the rows of one point on one scale, symmetric around zero, so that lengths compare."""
    first = rows[0]
    reach = max((_reach(row) for row in rows if row.result.relative), default=0.0) or stats.SMALLEST_EFFECT
    drawn = [(row, _drawing(row, reach if row.result.relative else _reach(row) or 1.0)) for row in rows]
    return Section(
        first.machine,
        first.kernel,
        first.point,
        first.params,
        drawn,
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
        return round(_WIDTH / 2 + effect / reach * (_WIDTH / 2 - _MARGIN), 2)

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
        add("Virtual clock", _clock(inputs["machine"]))
        add("Kernel", f"{cell.provenance['kernel_release']}, sha256 {inputs['kernel']}")
        add("Kernel arguments", inputs["command_line"])
        add("Virtual CPU", inputs["cpu"])
        add("QEMU", f"sha256 {inputs['qemu']}")
        add("Guest image", ", ".join(f"sha256 {digest}" for digest in inputs["image"]))
        add("Scheduler", _scheduler(cell))
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

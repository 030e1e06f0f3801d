"""`heddle timeline`: draw a traced cell."""

from pathlib import Path

import click

from heddle_lab import comparison, files, html, paths, resultfile, timelines, workload
from heddle_lab.cli import folders, options
from heddle_lab.measures import drawing, perfetto
from heddle_lab.store import Store


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--sched", "--variant", "name", required=True, metavar="NAME", help="A scheduler or another variant.")
@click.option("--workload", "load", required=True, metavar="W")
@click.option("--param", "params", multiple=True, metavar="KEY=VALUE", help="Tells the cell from others.")
@click.option("--machine", "machine_name", metavar="M")
@click.option("--kernel", "kernel_name", metavar="K")
@click.option("--seed", default=1, show_default=True, metavar="N")
@click.option(
    "--from-ms",
    type=options.Milliseconds(min=0),
    metavar="MS",
    help="Begin of the picture in the step; default: its middle.",
)
@click.option(
    "--for-ms", type=options.Milliseconds(min=1e-6), default=timelines.SPAN_NS / 1e6, show_default=True, metavar="MS"
)
def timeline(
    folder: Path,
    name: str,
    load: str,
    params: tuple[str, ...],
    machine_name: str | None,
    kernel_name: str | None,
    seed: int,
    from_ms: float | None,
    for_ms: float,
) -> None:
    """Draw a traced cell of DIR: a picture for its page, and a file for ui.perfetto.dev."""
    wanted = {"variant": name, "workload": load, "seed": seed, "machine": machine_name, "kernel": kernel_name}
    cells = folders.read(folder)
    cell = resultfile.find(cells, wanted, dict(workload.parse_param(text) for text in params))
    start = None if from_ms is None else round(from_ms * 1e6)
    drawn = timelines.write(folder, cell, Store(paths.cells()), start, round(for_ms * 1e6))
    about = resultfile.about(folder)
    about = about.model_copy(update={"timelines": about.timelines | {drawn: timelines.label(cell, cells)}})
    resultfile.write_about(folder, about)
    files.write_text(
        folder / html.NAME,
        html.render(about, cells, comparison.variants(cells, about.looks), html.pictures(folder, about, cells)),
    )
    base = folder / timelines.FOLDER / drawn
    click.echo(f"{base}{drawing.SUFFIX}\n{base}{perfetto.SUFFIX}\n{folder / html.NAME}")

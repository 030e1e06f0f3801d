"""`heddle shell`: boot a guest and open its console."""

import click

from heddle_lab import experiment, hostfiles, image, kernels, machine, scheduler, vm
from heddle_lab.cli import options
from heddle_lab.job import Job


@click.command()
@click.option("--machine", "machine_name", default=experiment.DEFAULT_MACHINE, show_default=True, metavar="M")
@click.option("--kernel", "kernel_name", default=experiment.DEFAULT_KERNEL, show_default=True, metavar="K")
@click.option("--sched", default=scheduler.EEVDF, show_default=True, metavar="NAME[=COMMAND]")
@click.option("--layer", "named", multiple=True, metavar="L", help="An image layer beside the base.")
@click.option("--file", "host_files", multiple=True, metavar="HOST[:GUEST]", help=options.FILE_HELP)
@click.option("--package", "packages", multiple=True, metavar="P", help="A Debian package for the guest.")
def shell(
    machine_name: str,
    kernel_name: str,
    sched: str,
    named: tuple[str, ...],
    host_files: tuple[str, ...],
    packages: tuple[str, ...],
) -> None:
    """Boot a guest and open its console here; `exit` powers it off."""
    layers = (*named, *image.of_packages(packages))
    given = hostfiles.with_libraries(hostfiles.named(host_files), layers, "--file")
    started = scheduler.parse(sched)
    started.check(layers)
    started.check_options()
    vm.console(
        vm.Guest(
            machine=machine.load(machine_name),
            kernel=kernels.find(kernel_name),
            job=Job(scheduler=started.command(), shell=True),
            layers=layers,
            files=started.files(layers),
            job_files=hostfiles.contents(given),
        )
    )

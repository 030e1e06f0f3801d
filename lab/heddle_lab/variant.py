"""Variants: what is compared. A scheduler, and what else of the system differs: kernel, command line, settings."""

import re
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from heddle_lab import kernels, scheduler, tomlfile, workload
from heddle_lab.errors import HeddleError
from heddle_lab.job import Step, Write
from heddle_lab.kernels import Kernel
from heddle_lab.scheduler import Scheduler
from heddle_lab.tomlfile import Model
from heddle_lab.workload import Value

_SYSCTLS = "/proc/sys"
_DEBUGFS = "/sys/kernel/debug"
_FEATURES = f"{_DEBUGFS}/sched/features"

_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$"
_FILE = r"^[\w-][\w.-]*(/[\w-][\w.-]*)*$"
"""a path below a folder, which it does not leave"""

_ONE_LINE = r"^[ -~]*$"

Text = Annotated[str, Field(pattern=_ONE_LINE)]


class Variant(Model):
    """What differs from the rest of the run: a table [[variants]] of an experiment, or `--variant`."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    name: Annotated[str, Field(pattern=_NAME)]
    sched: Annotated[str, Field(min_length=1)] = scheduler.EEVDF
    """`eevdf`, or a command as behind `--sched NAME=`"""
    kernel: str | None = None
    """as `--kernel` takes it; none: the run's"""
    cmdline: Text = ""
    """arguments of the kernel, behind those that every guest has"""
    sysctl: dict[Annotated[str, Field(pattern=_FILE)], Text] = {}
    """name, such as `kernel.sched_rt_runtime_us`, -> value"""
    feature: list[Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]] = []
    """of the kernel's scheduler, such as `NO_RUN_TO_PARITY`"""
    debugfs: dict[Annotated[str, Field(pattern=_FILE)], Text] = {}
    """file below /sys/kernel/debug, such as `sched/base_slice_ns`, -> value"""
    param: dict[str, Value] = {}
    """parameters of the workloads that have them"""
    env: dict[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")], Text] = {}
    """environment of the workloads' programs"""

    def text(self) -> str:
        """Return the variant as `--variant` takes it."""
        parts = []
        for key, value in self.model_dump(exclude={"name"}, exclude_defaults=True).items():
            if isinstance(value, dict):
                parts += [f"{key}={name}={one}" for name, one in value.items()]
            else:
                parts += [f"{key}={one}" for one in (value if isinstance(value, list) else [value])]
        return f"{self.name}:{','.join(parts)}"

    def steps(self) -> list[Step]:
        """Return the steps that put the settings into effect; the job's first."""
        files = {f"sysctl {name}": (_sysctl(name), value) for name, value in self.sysctl.items()}
        files |= {f"feature {name}": (_FEATURES, name) for name in self.feature}
        files |= {f"debugfs {name}": (f"{_DEBUGFS}/{name}", value) for name, value in self.debugfs.items()}
        return [Step(name=name, action=Write(path=path, value=value)) for name, (path, value) in files.items()]

    def scheduler(self) -> Scheduler:
        """Return its scheduler.

        Raises:
            HeddleError: it is unknown or its program missing.
        """
        try:
            return scheduler.of_command(self.sched)
        except HeddleError as error:
            raise HeddleError(f"variant '{self.name}': {error}") from error


class Contestant(Model):
    """A side of a comparison as it is on this host: a variant with its files, or a scheduler that `--sched` names."""

    scheduler: Scheduler
    variant: Variant | None = None
    """none: the scheduler is all that differs"""
    kernel: Kernel | None = None
    """the variant's own"""

    @property
    def name(self) -> str:
        """What tables call it."""
        return self.variant.name if self.variant else self.scheduler.name

    @property
    def option(self) -> tuple[str, str]:
        """The words of the command line that name it."""
        return ("--variant", self.variant.text()) if self.variant else ("--sched", self.scheduler.option)

    def fingerprint(self) -> list[object]:
        """Return all of it that can change a result, as plain data."""
        kernel = self.kernel and self.kernel.fingerprint()
        settings = self.variant and self.variant.model_dump(exclude={"name", "sched", "kernel"}, exclude_defaults=True)
        return [self.scheduler.fingerprint(()), kernel, settings or {}]


def of_scheduler(text: str) -> Contestant:
    """Return the contestant of `--sched TEXT`.

    Raises:
        HeddleError: the scheduler is unknown or its program missing.
    """
    return Contestant(scheduler=scheduler.parse(text))


def of_variant(variant: Variant) -> Contestant:
    """Return a variant with its scheduler and its kernel.

    Raises:
        HeddleError: one of them is unknown, or the variant has the name of a scheduler that it does not run.
    """
    runs = variant.scheduler()
    if scheduler.is_known(variant.name) and variant.name != runs.name:
        raise HeddleError(
            f"variant '{variant.name}' runs {runs.name}, not the scheduler of this name: "
            f"give it another name, or write sched={variant.name}"
        )
    try:
        own = kernels.find(variant.kernel) if variant.kernel is not None else None
    except HeddleError as error:
        raise HeddleError(f"variant '{variant.name}': {error}") from error
    return Contestant(scheduler=runs, variant=variant, kernel=own)


KEYS = tuple(key for key in Variant.model_fields if key != "name")
_TABLES = ("sysctl", "debugfs", "param", "env")
"""keys whose values are NAME=VALUE"""


def parse(text: str) -> Variant:
    """Return the variant of `NAME:KEY=VALUE,KEY=VALUE...`; NAME alone is the kernel's own scheduler as it is.

    A comma begins the next key only if a word and `=` follow: `cmdline=isolcpus=1,2,feature=NO_WAKEUP_PREEMPTION`.

    Raises:
        HeddleError: a key is unknown or has no value.
    """
    name, _, rest = text.partition(":")
    given: dict[str, Any] = {"name": name}
    if re.fullmatch(_NAME, name) is None:
        raise HeddleError(f"--variant {text}: write NAME:KEY=VALUE,KEY=VALUE with keys {', '.join(KEYS)}")
    for piece in re.split(r",(?=[A-Za-z_]+=)", rest) if rest else []:
        key, equals, value = piece.partition("=")
        if key not in KEYS or not (equals and value):
            known = "" if key in KEYS else f": no key '{key}'; known: {', '.join(KEYS)}"
            raise HeddleError(f"--variant {text}: write KEY=VALUE, not '{piece}'{known}")
        _add(given, key, value, text)
    return tomlfile.validate(given, Variant, f"--variant {text}")


def _add(given: dict[str, Any], key: str, value: str, text: str) -> None:
    """Add a setting to those that were given before."""
    if key in _TABLES:
        name, equals, one = value.partition("=")
        if not (name and equals):
            raise HeddleError(f"--variant {text}: write {key}=NAME=VALUE, not '{key}={value}'")
        given.setdefault(key, {})[name] = workload.number(one) if key == "param" else one
    elif key == "feature":
        given.setdefault(key, []).append(value)
    elif key == "cmdline":
        given[key] = f"{given[key]} {value}" if key in given else value
    elif key in given:
        raise HeddleError(f"--variant {text}: {key} is there twice; a variant has one")
    else:
        given[key] = value


def _sysctl(name: str) -> str:
    """Return the file of a sysctl; a name with `/` is its path, as sysctl(8) has it."""
    return f"{_SYSCTLS}/{name if '/' in name else name.replace('.', '/')}"

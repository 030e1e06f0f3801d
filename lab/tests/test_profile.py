"""Attributing counted instructions to functions, without a guest."""

import pytest

from heddle_lab import profile
from heddle_lab.errors import HeddleError
from heddle_lab.profile import Function, Profile

KALLSYMS = """\
ffffffff81000100 T schedule
ffffffff81000000 T first
ffffffff81000000 T alias_of_first
ffffffff81000200 t pick.isra.0
ffffffff81000300 t pick.cold
ffffffffc0001000 t probe_it\t[virtio]
ffffffffc0002000 t bpf_prog_0123456789abcdef_heddle_enqueue\t[bpf]
ffffffffc0003000 t bpf_trampoline_6442536467\t[bpf]
ffffffffc0003100 t bpf__sched_ext_ops_dispatch\t[bpf]
ffffffffc0004000 t bpf_prog_0123456789abcdef\t[bpf]
"""


def test_functions_are_named_as_in_the_source() -> None:
    names = dict(profile.read_symbols(KALLSYMS))
    assert names[0xFFFFFFFF81000000] == "first"
    assert names[0xFFFFFFFF81000200] == names[0xFFFFFFFF81000300] == "pick"
    assert names[0xFFFFFFFFC0001000] == "probe_it [virtio]"
    assert names[0xFFFFFFFFC0002000] == "heddle_enqueue [bpf]"
    assert names[0xFFFFFFFFC0003000] == names[0xFFFFFFFFC0003100] == "calls of BPF programs [bpf]"
    assert names[0xFFFFFFFFC0004000] == "bpf_prog_0123456789abcdef [bpf]"


@pytest.mark.parametrize("text", ["", "0000000000000000 T hidden\n0000000000000000 T hidden_too\n"])
def test_a_kernel_that_hides_its_addresses_is_an_error(text: str) -> None:
    with pytest.raises(HeddleError, match="kallsyms"):
        profile.read_symbols(text)


def test_each_piece_of_code_belongs_to_the_function_that_begins_before_it() -> None:
    symbols = profile.read_symbols(KALLSYMS)
    counts = [
        (0, 1000, 1),
        (0xFFFFFFFF80000000, 5, 1),
        (0xFFFFFFFF81000100, 4, 10),
        (0xFFFFFFFF81000100, 2, 1),  # the same begin, another length: it was interrupted
        (0xFFFFFFFF81000110, 8, 9),
        (0xFFFFFFFF81000240, 3, 2),
        (0xFFFFFFFF81000300, 1, 1),
        (0xFFFFFFFF81000200, 7, 0),
    ]
    assert profile.attribute(counts, symbols) == {
        "user space": Function(1000, 0),
        "unknown": Function(5, 0),
        "schedule": Function(114, 11),
        "pick": Function(7, 1),
    }


def profiled(contestant: str, switches: int, **functions: tuple[int, int]) -> Profile:
    named = {name.replace("_bpf", " [bpf]"): Function(*numbers) for name, numbers in functions.items()}
    return Profile(contestant=contestant, switches=switches, functions={"user space": Function(80, 0), **named})


def test_functions_come_in_the_order_in_which_schedulers_differ() -> None:
    one = profiled("eevdf", 10, same=(500, 10), pick_eevdf=(200, 20))
    other = profiled("mine", 20, same=(1000, 20), enqueue_bpf=(300, 10), schedule=(120, 20))
    headings, lines = profile.table([one, other], most=2)
    assert headings == ["function", "eevdf", "mine", "difference", "calls, eevdf", "calls, mine"]
    assert lines == [
        ["all", "78", "75", "−3", "", ""],
        ["kernel", "70", "56", "−14", "", ""],
        ["BPF programs", "0", "15", "+15", "", ""],
        ["user space", "8", "4", "−4", "", ""],
        ["pick_eevdf", "20", "0", "−20", "2.00", "0.00"],
        ["enqueue [bpf]", "0", "15", "+15", "0.00", "0.50"],
    ]


def test_of_one_scheduler_the_largest_come_first() -> None:
    _, lines = profile.table([profiled("mine", 10, small=(10, 1), large=(90, 1), middle=(50, 5))], most=2)
    assert [line[0] for line in lines] == ["all", "kernel", "BPF programs", "user space", "large", "middle"]
    assert lines[-1] == ["middle", "5", "0.50"]

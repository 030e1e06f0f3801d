"""Readers of RCU, and how long others wait for the end of them."""

from typing import Any

from heddle_lab.job import Step
from heddle_lab.results import Results
from tests.vm.test_failure import ONLINE, shell


def lookups(tasks: int) -> list[str]:
    """Processes that look up a long path all the time, each time in a reader from end to end."""
    path = "/usr/.." * 500
    return ["bash", "-c", f"for n in {{1..{tasks}}}; do while [ -e {path} ]; do :; done & done; wait"]


def grace_periods(cpu: int, for_s: int, **fields: Any) -> Step:
    """Take a CPU away and give it back all the time: it goes when some grace periods are over."""
    script = f"""
end=$((SECONDS + {for_s}))
while [ $SECONDS -lt $end ]; do
  began=${{EPOCHREALTIME/./}}
  for on in 0 1; do echo $on > {ONLINE.format(cpu)}; done
  echo $((${{EPOCHREALTIME/./}} - began))
  sleep 0.2
done
"""
    return shell("grace periods", script, nice=-20, **fields)


def longest_ms(results: Results) -> float:
    """Return the longest that the CPU took to go and come again."""
    took_us = map(int, results.step("grace periods").stdout.split())
    return max(took_us) / 1000

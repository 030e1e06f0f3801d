"""What a scheduler did, measured from the kernel's sched tracepoints with exact virtual time.

events      the tracepoints as columns; made by ringbuffer (the guest's) or by ftrace (text of any machine)
timeline    when each task ran and when it waited; affinity says where it may run
idle        wasted idle                  latency     wakeup to run
missed      wakeups beside an idle CPU   packing     tasks on worse cores than they could have
steps       functions of time that they count with
fluid       the ideal fair share         fairness    lag and share error against it
switches    counts, migrations by distance
cost        instructions in the scheduler per switch, and what recording costs
groups      which cgroup a task is in
perfetto    a file for ui.perfetto.dev   drawing     an SVG of an interval
"""

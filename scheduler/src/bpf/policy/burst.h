/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Bursts: how long a task runs from one sleep to the next, of late.
 *
 * The average is over the last few bursts, not over the task's life: a server that
 * computed for an hour at its start is judged by what it has done since. A burst counts
 * as BURST_MAX_NS at most, so that one long computation is forgotten within two dozen
 * short bursts.
 */
#pragma once

#include "types.h"

/* The newest burst counts by 1 / 2^BURST_SHIFT. */
#define BURST_SHIFT 2
#define BURST_MAX_NS 8000000U

/* Places for tasks, by thread id; a power of two. */
#define NR_BURSTS 32768
#define BURSTS_PER_LINE 4

/* What is known of one task. All zeroes: nothing, as of one that has never slept. */
struct burst {
	u32 pid; /* of that task: tasks may share a place */
	u32 average_ns;
	u64 slept_exec_ns; /* its CPU time when it slept last */
};

/* The place of thread @pid. Threads with neighbouring numbers have different lines. */
static inline u32 burst_place(u32 pid)
{
	const u32 lines = NR_BURSTS / BURSTS_PER_LINE;

	return (pid & (lines - 1)) * BURSTS_PER_LINE +
	       (pid / lines & (BURSTS_PER_LINE - 1));
}

/*
 * Thread @pid comes to us, after @exec_ns of CPU time. Of one that ran elsewhere before,
 * what it does from now on counts; one that is new has never slept.
 */
static inline void burst_begin(struct burst *burst, u32 pid, u64 exec_ns)
{
	if (exec_ns)
		*burst = (struct burst){ .pid = pid, .slept_exec_ns = exec_ns };
	else if (burst->pid == pid)
		burst->pid = 0;
}

/*
 * Thread @pid goes to sleep, @exec_ns of CPU time after it began. Its first burst is
 * all that it has run so far.
 */
static inline void burst_end(struct burst *burst, u32 pid, u64 exec_ns)
{
	bool known = burst->pid == pid;
	u64 ran = exec_ns - (known ? burst->slept_exec_ns : 0);
	u32 ns = ran < BURST_MAX_NS ? ran : BURST_MAX_NS;

	burst->slept_exec_ns = exec_ns;
	burst->average_ns = known ? burst->average_ns -
					    (burst->average_ns >> BURST_SHIFT) +
					    (ns >> BURST_SHIFT)
				  : ns;
	burst->pid = pid;
}

/*
 * Is thread @pid, which has had @exec_ns of CPU time, a hog: does it run for longer than
 * @gran_ns at a time, or has it this time? One that has never slept is: it has no claim
 * to be done soon.
 */
static inline bool burst_is_hog(const struct burst *burst, u32 pid, u64 exec_ns,
				u64 gran_ns)
{
	return burst->pid != pid || burst->average_ns > gran_ns ||
	       exec_ns - burst->slept_exec_ns > gran_ns;
}

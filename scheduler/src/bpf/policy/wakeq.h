/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which wakees the shared wake queue refers to, and how.
 */
#pragma once

#include "vtime.h"

/*
 * A reference names a waiting task: its thread id, its home CPU, and its place
 * in virtual time on that CPU's queue, which is its generation. A task that
 * has run since stands later, so an old reference never matches a new wait.
 * The place is cut to 32 bits, which is exact for seconds.
 */
#define REF_PID_BITS 22 /* PID_MAX_LIMIT is 2^22 */
#define REF_CPU_BITS VT_SHIFT
#define REF_PLACE_SHIFT (REF_PID_BITS + REF_CPU_BITS)

/* The reference to the task @pid that is queued with @key (vtime.h). */
static inline u64 wake_ref(u32 pid, u64 key)
{
	return (vt_of_key(key) >> KEY_VT_SHIFT) << REF_PLACE_SHIFT |
	       (u64)cpu_of_key(key) << REF_PID_BITS |
	       (pid & ((1U << REF_PID_BITS) - 1));
}

static inline u32 pid_of_ref(u64 ref)
{
	return ref & ((1U << REF_PID_BITS) - 1);
}

static inline u32 cpu_of_ref(u64 ref)
{
	return (ref >> REF_PID_BITS) & KEY_CPU_MASK;
}

/* Does a task queued with @key stand behind where @ref says its task stands? */
static inline bool beyond_ref(u64 key, u64 ref)
{
	u32 place = vt_of_key(key) >> KEY_VT_SHIFT;

	return (s32)(place - (u32)(ref >> REF_PLACE_SHIFT)) > 0;
}

enum offer_verdict {
	OFFER_OK,
	OFFER_PINNED, /* may run nowhere else */
	OFFER_MIGRATED, /* was put where it is on purpose (SW6) */
};

/*
 * May a wakee without an idle CPU be offered to the other CPUs of its LLC? It
 * waits on @cpu, may run on @nr_allowed CPUs and ran last on @last_cpu.
 */
static inline enum offer_verdict may_offer(u32 nr_allowed, u32 cpu,
					   u32 last_cpu)
{
	if (nr_allowed == 1)
		return OFFER_PINNED;
	if (cpu != last_cpu)
		return OFFER_MIGRATED;
	return OFFER_OK;
}

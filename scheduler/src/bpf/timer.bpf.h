/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Timers of the machine, one of each kind, that run once when they are set.
 *
 * A caller that finds one set leaves it alone. To set it and to note that it runs
 * are full barriers: the timer sees the work that was there when it was found set.
 */
#pragma once

#include "heddle.bpf.h"

enum timer_id {
	TIMER_WALK,
	TIMER_BANDWIDTH,
	TIMER_RESCUE,
	TIMER_CROWD,
	TIMER_LEAVE,
	NR_TIMERS
};

/* From when a CPU is found taken, or idle beside its queue, until the rescue. */
#define RESCUE_NS 200000ULL

struct timer_slot {
	struct bpf_timer timer;
	u32 armed; /* it is set and has not noted that it runs */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NR_TIMERS);
	__type(key, u32);
	__type(value, struct timer_slot);
} timers SEC(".maps");

/* The timer runs: from now on it has to be set anew. */
static __always_inline void timer_runs(struct timer_slot *slot)
{
	__sync_lock_test_and_set(&slot->armed, 0);
}

/*
 * Run @id in @delay_ns, or when it is set to already. If the kernel has no memory to
 * set it, the next caller tries again.
 */
static __always_inline void timer_arm(u32 id, u64 delay_ns)
{
	struct timer_slot *slot = bpf_map_lookup_elem(&timers, &id);

	if (slot && !__sync_lock_test_and_set(&slot->armed, 1) &&
	    bpf_timer_start(&slot->timer, delay_ns, 0))
		timer_runs(slot);
}

/* ops.init: @id is to call @callback. */
static __always_inline s32 timer_init(u32 id,
				      int (*callback)(void *map, u32 *id,
						      struct timer_slot *slot))
{
	struct timer_slot *slot = bpf_map_lookup_elem(&timers, &id);
	s32 err;

	if (!slot)
		return -ENOENT;
	err = bpf_timer_init(&slot->timer, &timers, CLOCK_MONOTONIC);
	return err ?: bpf_timer_set_callback(&slot->timer, callback);
}

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the BPF program and the loader agree on.
 */
#pragma once

#ifdef __bpf__
#ifndef __VMLINUX_H__
#include "vmlinux.h"
#endif
#endif

enum heddle_limits {
	/* CPUs: the fraction bits of a virtual time key hold one (vtime.h). */
	MAX_CPUS = 1024,
	/*
	 * Words of 64 CPUs, of which every LLC starts its own (topology); one
	 * more word sums them up.
	 */
	MAX_WORDS = 64,
	CPUS_PER_WORD = 64,
	/* Shared wake queues; every LLC has at least one. */
	MAX_WAKEQS = 128,
	CACHE_LINE = 64,
	/* Kinds of CPU that differ in speed; of more, the last takes the rest. */
	NR_CLASSES = 4,
	CAPACITY_SHIFT = 10,
	/* Slots for cgroups; further ones count to their ancestors (cgroup). */
	MAX_GROUPS = 4096,
	/* Cache lines of a group's load (group_load). */
	GROUP_STRIPES = 8,
};

/* cpu.max and cpu.max.burst of a cgroup, as the loader reads them (cgroupfs.rs). */
struct bandwidth_limit {
	u64 cgroup_id;
	u64 period_us;
	u64 quota_us; /* ~0: no limit */
	u64 burst_us;
};

/* How idle CPUs are known (idle.bpf.h). */
enum idle_policy {
	IDLE_MASK,
	IDLE_TICK_MASK,
	IDLE_SCAN,
	IDLE_BUILTIN,
};

/* What the lock of the global queue is taken for (grq.bpf.h). */
enum locking {
	LOCKING_VRQ,
	LOCKING_GRQ,
};

/*
 * A CPU's place among the words and the shared wake queues. Those of an LLC are
 * contiguous, as are those of a NUMA node.
 */
struct cpu_place {
	u64 own; /* the CPU's bit in its word */
	u64 core; /* the bits of all CPUs of its core */
	u64 llc_words; /* the words of its LLC, as bits of one */
	u64 node_words; /* those of its NUMA node */
	u16 word; /* its own word */
	u16 bit; /* the number of its bit */
	u16 class; /* of its speed, the fastest are 0 */
	u16 capacity; /* its speed, the fastest have 1 << CAPACITY_SHIFT */
	u16 llc_cpus; /* CPUs of its LLC, seated without gaps from llc_first on */
	u16 llc_first; /* the first word of its LLC */
	u16 node_cpus; /* CPUs of its NUMA node */
	u16 node_first; /* the first word of its NUMA node */
	u16 group_stripe; /* the stripe of each group's load that it writes */
	u16 wakeq; /* its own shared wake queue */
	u16 llc_wakeq_first, llc_wakeq_end; /* those of its LLC */
	u16 node_wakeq_first, node_wakeq_end; /* those of its NUMA node */
};

/* The CPUs of one word. */
struct word_layout {
	u64 core_starts; /* the first CPU of each core */
	u64 core_ends; /* the last CPU of each core */
	u16 nr_cpus; /* they sit in the lowest bits */
	u64 slower[NR_CLASSES]; /* those of slower classes than each */
};

/*
 * Event counters of one CPU, counted where the event happens. What each one
 * means is documented in src/stats.rs, in this order.
 */
struct cpu_stats {
	u64 idle_direct;
	u64 handed_over;
	u64 idle_late;
	u64 queued;
	u64 local;
	u64 preempt;
	u64 kept;
	u64 pull_llc;
	u64 pull_node;
	u64 pull_far;
	u64 pull_miss;
	u64 exchange;
	u64 wasted_idle_ns;
	u64 rescued;
	u64 relieved;
	u64 idle_search;
	u64 idle_examined;
	u64 idle_claim;
	u64 idle_claim_false;
	u64 sched_idle_claim;
	u64 wakeq_offered;
	u64 wakeq_pinned;
	u64 wakeq_migrated;
	u64 wakeq_full;
	u64 wakeq_busy;
	u64 wakeq_pulled;
	u64 wakeq_stolen;
	u64 wakeq_gone;
	u64 wakeq_stale;
	u64 wakeq_barred;
	u64 group_overflow;
	u64 parked;
	u64 nr_periods;
	u64 nr_throttled;
	u64 throttled_usec;
	u64 asym_fastest;
	u64 asym_slower;
	u64 asym_sibling;
	u64 asym_help;
	u64 asym_flee;
	u64 asym_moved;
	u64 asym_refused;
	u64 asym_better_idle_ns;
	u64 resched_idle;
	u64 confine_overflow;
	u64 nodes_exhausted;
	u64 sched_count;
	u64 goidle_idle;
	u64 goidle_deactivate;
	u64 goidle_needother;
	u64 ttwu_count;
	u64 ttwu_local;
	u64 rq_cpu_time;
	u64 run_delay;
	u64 pcount;
	u64 waited_16us;
	u64 waited_64us;
	u64 waited_256us;
	u64 waited_1ms;
	u64 waited_4ms;
	u64 waited_16ms;
	u64 waited_64ms;
	u64 waited_longer;
	u64 lock_enqueue;
	u64 lock_enqueue_contended;
	u64 lock_enqueue_ns;
	u64 lock_dequeue;
	u64 lock_dequeue_contended;
	u64 lock_dequeue_ns;
	u64 lock_pick;
	u64 lock_pick_contended;
	u64 lock_pick_ns;
	u64 lock_task;
	u64 lock_task_contended;
	u64 lock_task_ns;
	u64 lock_search;
	u64 lock_search_contended;
	u64 lock_search_ns;
	u64 lock_slot;
	u64 lock_slot_contended;
	u64 lock_slot_ns;
} __attribute__((aligned(CACHE_LINE)));

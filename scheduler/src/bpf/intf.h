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
	CACHE_LINE = 64,
	/* Slots for cgroups; further ones count to their ancestors (cgroup). */
	MAX_GROUPS = 4096,
};

/* A CPU's place among the words. The words of a node are contiguous. */
struct cpu_place {
	u16 word; /* the CPU's own word */
	u8 bit; /* its bit in the word */
	u8 pad;
	u16 llc_cpus; /* CPUs of its LLC, seated without gaps from llc_first on */
	u16 llc_first, llc_end; /* words of its LLC */
	u16 node_first, node_end; /* words of its NUMA node */
};

/*
 * Event counters of one CPU, counted where the event happens. What each one
 * means is documented in src/stats.rs, in this order.
 */
struct cpu_stats {
	u64 idle_direct;
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
	u64 rescue_kick;
	u64 group_overflow;
	u64 parked;
	u64 bandwidth_periods;
	u64 bandwidth_throttled;
	u64 bandwidth_throttled_us;
} __attribute__((aligned(CACHE_LINE)));

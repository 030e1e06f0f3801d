/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Spreading: the NUMA node where a new task starts.
 *
 * A wakee stays in its node, so it is at fork that a program comes to use the
 * whole machine: a new task starts in the node that has room for most. Tasks
 * that started there of late take up room although they may sleep, as the
 * threads of a pool do until all are there. A small program stays together.
 */
#pragma once

#include "heddle.bpf.h"
#include "idle.bpf.h"
#include "policy/spread.h"
#include "topology.bpf.h"

/* There are several NUMA nodes. Set by the loader. */
const volatile bool has_nodes;

/* Tasks that started in a node. Races cost a count, not more. */
struct node_starts {
	u64 recent; /* in units of 1 << ROOM_SHIFT, what they counted at @at */
	u64 at; /* scx_bpf_now() */
} __attribute__((aligned(CACHE_LINE)));

/* By the first word of the node. */
struct node_starts node_starts[MAX_WORDS];

static __always_inline struct node_starts *starts_in(u32 node_first)
{
	return &node_starts[node_first & (MAX_WORDS - 1)];
}

static __always_inline u64 starts_at(const struct node_starts *starts, u64 now)
{
	return starts_left(starts->recent, ns_since(starts->at, now));
}

static __always_inline void note_start(u32 cpu)
{
	struct node_starts *starts = starts_in(place_of(cpu)->node_first);
	u64 now = scx_bpf_now();

	starts->recent = starts_at(starts, now) + (1 << ROOM_SHIFT);
	starts->at = now;
}

/* The room of the node whose words are @words, the first of them @first. */
__noinline s64 room_in(u32 first, u64 words)
{
	u32 cores = 0;

	while (words && can_loop) {
		cores += __builtin_popcountll(
			idle_cores_of(__builtin_ctzll(words)));
		words &= words - 1;
	}
	return node_room(cores, starts_at(starts_in(first), scx_bpf_now()));
}

/* @cpu, or a CPU of the node that has more room than its own. */
__noinline u32 roomiest_near(u32 cpu)
{
	const volatile struct cpu_place *at = place_of(cpu);
	s64 most = room_in(at->node_first, at->node_words) +
		   node_margin(at->node_cpus);
	u64 words;
	u32 near = cpu;

	for (words = all_words; words && can_loop; words &= words - 1) {
		u32 word = __builtin_ctzll(words);
		u32 other = cpu_at_place(word, 0);
		const volatile struct cpu_place *there = place_of(other);
		s64 room;

		if (word != there->node_first || word == at->node_first)
			continue;
		room = room_in(word, there->node_words);
		if (room > most) {
			most = room;
			near = other;
		}
	}
	return near;
}

/* Near which CPU is one sought for a task that comes from @cpu? */
static __always_inline u32 spread_near(u32 cpu, u64 wake_flags)
{
	if (!has_nodes || !idle_has_mask() || !(wake_flags & SCX_WAKE_FORK))
		return cpu;
	cpu = roomiest_near(cpu);
	note_start(cpu);
	return cpu;
}

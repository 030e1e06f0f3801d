/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Pull: what a CPU does before it goes idle, and how CPUs share fairly.
 *
 * A CPU without work looks for a queue that offers some: in its LLC, then in
 * its node, then anywhere, since no CPU may idle while a task that may run
 * there waits. Among the tasks of an LLC it takes those first that the shared
 * wake queue refers to (wakeq.bpf.h). It starts after its own place, so that the
 * CPUs of an LLC do not all go for the same queue.
 *
 * A CPU whose only task has used up a slice looks whether one waits elsewhere
 * that is further behind, and if so the two change places. That is what makes
 * three hogs share two CPUs evenly. With groups, whose tasks differ in weight
 * by orders of magnitude, queues of any length are compared so.
 */
#pragma once

#include "heddle.bpf.h"
#include "runq.bpf.h"
#include "topology.bpf.h"
#include "wakeq.bpf.h"

/* How many slices pass between looks beyond the LLC for a fair exchange. */
#define EXCHANGE_FAR_EVERY 4

/* How many queues a CPU tries for an exchange, as others get there first. */
#define EXCHANGE_TRIES 4

/* Try to take a task from the queue of @victim. */
static __always_inline bool pull_from(u32 victim)
{
	/*
	 * Withdraw the offer before looking, not after: a task that is queued
	 * meanwhile renews it.
	 */
	withdraw(victim);
	if (!scx_bpf_dsq_move_to_local(victim, 0)) {
		struct task_struct *head = __COMPAT_scx_bpf_dsq_peek(victim);

		/*
		 * Another CPU may run it; or this one may in a moment: the kernel
		 * leaves a task behind whose CPU has not yet switched away from it.
		 */
		if (head && head->nr_cpus_allowed > 1)
			offer(victim);
		count(pull_miss);
		return false;
	}
	if (scx_bpf_dsq_nr_queued(victim) > 0)
		offer(victim);
	return true;
}

/* Try the offers of one word, from bit @start on and around. */
static __always_inline bool pull_from_word(u32 word, u32 start)
{
	u64 cpus = word_read(word_in(offers, word));

	while (cpus && can_loop) {
		u32 bit = bit_from(cpus, start);

		cpus &= ~(1ULL << (bit & 63));
		if (pull_from(cpu_at_place(word, bit)))
			return true;
	}
	return false;
}

/* Try those of @words. Global, so that the verifier looks at it once. */
__noinline bool pull_from_words(u64 words, u32 start)
{
	words = offering(words);
	while (words && can_loop) {
		u32 word = __builtin_ctzll(words);

		words &= words - 1;
		if (pull_from_word(word, start))
			return true;
	}
	return false;
}

/* Get a task from the nearest place, of wakees the oldest first. Global as well. */
__noinline bool pull_nearest(u32 cpu)
{
	const volatile struct cpu_place *at = place_of(cpu);
	u64 llc = at->llc_words, node = at->node_words;
	u32 start = at->bit + 1;

	if (wakeq_pull_llc(cpu)) {
		count(wakeq_pulled);
		return true;
	}
	if (pull_from_words(llc, start)) {
		count(pull_llc);
		return true;
	}
	if (wakeq_steal(cpu)) {
		count(wakeq_stolen);
		return true;
	}
	if (pull_from_words(node ^ llc, start)) {
		count(pull_node);
		return true;
	}
	if (pull_from_words(all_words ^ node, start)) {
		count(pull_far);
		return true;
	}
	return false;
}

/* This CPU has nothing to run. */
static __always_inline bool pull_newidle(u32 cpu)
{
	return any_offer() && pull_nearest(cpu);
}

/* Is there a first task in the queue of @other, and may it run on @cpu? */
static __always_inline bool head_may_run(u32 other, u32 cpu)
{
	struct task_struct *head = __COMPAT_scx_bpf_dsq_peek(other);

	return head && bpf_cpumask_test_cpu(cpu, head->cpus_ptr);
}

/*
 * The CPU of @words, other than @cpu, that offers tasks and whose clock is
 * furthest behind in the shared frame. Its first task may run on @cpu: a queue
 * full of tasks that may not would hide all others. Negative if there is none.
 * Global for the verifier's sake, too.
 */
__noinline s32 slowest_queue(u32 cpu, u64 words)
{
	s32 slowest = -1;
	u64 slowest_frame = 0;

	words = offering(words);
	while (words && can_loop) {
		u32 word = __builtin_ctzll(words);
		u64 left = word_read(word_in(offers, word));

		words &= words - 1;
		while (left && can_loop) {
			struct cpu_ctx *c;
			u64 frame;
			u32 other;

			other = cpu_at_place(word, __builtin_ctzll(left));
			left &= left - 1;
			if (other == cpu)
				continue;
			c = cpu_ctx(other);
			frame = frame_of(c, c->clock);
			if ((slowest < 0 || vt_before(frame, slowest_frame)) &&
			    head_may_run(other, cpu)) {
				slowest = other;
				slowest_frame = frame;
			}
		}
	}
	return slowest;
}

/*
 * Is the first task in the queue of @victim one that may run on @cpu and is further
 * behind than @vt by more than a slice of the lighter of the two that would change
 * places? By less, they would change back.
 */
static __always_inline bool is_further_behind(u32 cpu, u32 victim, u64 vt)
{
	struct task_struct *waiter = __COMPAT_scx_bpf_dsq_peek(victim);
	const struct cpu_ctx *from = cpu_ctx(victim);
	struct cpu_ctx *c = cpu_ctx(cpu);
	u64 lighter = c->curr_inv;

	if (!waiter || !bpf_cpumask_test_cpu(cpu, waiter->cpus_ptr))
		return false;
	if (cgroup_flat && task_inv(waiter) > lighter)
		lighter = task_inv(waiter);
	c->offset = frame_offset(c->clock, c->offset,
				 frame_of(from, from->clock),
				 frame_drift(c, from));
	return worth_exchanging(frame_of(c, vt),
				frame_of(from,
					 vt_of_key(waiter->scx.dsq_vtime)),
				vt_delta(slice_ns, lighter));
}

/*
 * A task has used up its slice, and the next on this CPU, it or the head of the
 * queue, is at @vt. If a task that may run here waits in those of @words and is
 * further behind, take it. Ticks come to all CPUs at once, so that many go for the
 * same queue: those that come too late try the next. Global for the verifier's sake,
 * too.
 */
__noinline bool exchange_within(u32 cpu, u64 vt, u64 words)
{
	u32 try;

	bpf_for(try, 0, EXCHANGE_TRIES) {
		s32 victim = slowest_queue(cpu, words);

		if (victim < 0 || !is_further_behind(cpu, victim, vt))
			return false;
		if (pull_from(victim))
			return true;
	}
	return false;
}

/* As exchange_within(), in the LLC, and every few slices in the machine. */
static __always_inline bool exchange(u32 cpu, struct cpu_ctx *c, u64 vt)
{
	const volatile struct cpu_place *at = place_of(cpu);
	u64 words = at->llc_words;

	if (!any_offer())
		return false;
	if (++c->slices_alone % EXCHANGE_FAR_EVERY == 0)
		words = all_words;
	if (!exchange_within(cpu, vt, words))
		return false;
	count(exchange);
	return true;
}

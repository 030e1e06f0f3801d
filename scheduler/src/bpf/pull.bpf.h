/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Pull: what a CPU does before it goes idle, and how CPUs share fairly.
 *
 * A CPU without work looks for a queue that offers some: in its LLC, then in
 * its node, then anywhere, since no CPU may idle while a task that may run
 * there waits. Looks in vain are bounded. Among the tasks of an LLC it takes those
 * first that the shared wake queue refers to (wakeq.bpf.h). It starts after its own
 * place, so that the CPUs of an LLC do not all go for the same queue.
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

/*
 * How many tasks of a queue are looked at for one that may run elsewhere. A tick, and a CPU
 * that a tick has asked (pull_asked), look at the larger number.
 */
#define PULL_LOOKS 32
#define PULL_LOOKS_ASKED 1024

/* How many queues of others' tasks a CPU looks at, in each step outward. */
#define PULL_MISSES 16

/* How long a CPU rests after looks in vain: so long at first, a tick at most. */
#define PULL_REST_NS 20000ULL

/* What a look at a queue has found. */
enum pull_found {
	PULL_EMPTY,
	PULL_TIED, /* only tasks that may run nowhere else */
	PULL_LEFT, /* tasks that other CPUs may run */
	PULL_EARLY, /* the first has waited for too short to leave its LLC */
	PULL_TAKEN,
};

/* May @p, which waits, run on @cpu? */
static __always_inline bool may_run_on(const struct task_struct *p, u32 cpu)
{
	return bpf_cpumask_test_cpu(cpu, p->cpus_ptr) &&
	       !is_migration_disabled(p);
}

/*
 * Take the first task in the queue of @victim that may run on @cpu, this one, past those
 * that may not. Global, so that the verifier looks at it once.
 */
__noinline u32 pull_past_head(u32 victim, u32 cpu)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct task_struct *p;
	u32 found = PULL_EMPTY;

	c->looks = 0;
	bpf_for_each(scx_dsq, p, victim, 0) {
		if (!may_look(c, c->pull_asked ? PULL_LOOKS_ASKED : PULL_LOOKS))
			return PULL_LEFT;
		if (may_run_on(p, cpu) &&
		    scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL, 0)) {
			c->pull_asked = false;
			return PULL_TAKEN;
		}
		if (p->nr_cpus_allowed > 1)
			found = PULL_LEFT;
		else if (found == PULL_EMPTY)
			found = PULL_TIED;
	}
	return found;
}

/* Has @p, which waits, begun to so recently that it stays in its LLC? By the clock of @cpu, this one. */
static __always_inline bool just_began(const struct task_struct *p, u32 cpu)
{
	return bpf_core_field_exists(p->sched_info.last_queued) &&
	       ns_since(p->sched_info.last_queued, rq_clock(cpu)) < FAR_NS;
}

/* Has @p, which waits on @victim, waited for too short to come to @cpu, this one? */
static __always_inline bool stays_near(const struct task_struct *p, u32 victim,
				       u32 cpu)
{
	return place_of(cpu)->llc_first != place_of(victim)->llc_first &&
	       just_began(p, cpu);
}

static __always_inline u32 pull_look(u32 victim, u32 cpu)
{
	struct task_struct *head = __COMPAT_scx_bpf_dsq_peek(victim);
	struct cpu_ctx *c = cpu_ctx(cpu);

	if (!head)
		return PULL_EMPTY;
	if (!c->pull_asked && stays_near(head, victim, cpu)) {
		c->early_looks++;
		return PULL_EARLY;
	}
	/*
	 * The kernel may leave the head behind although it may run here: its CPU has not
	 * switched away from it yet.
	 */
	if (bpf_cpumask_test_cpu(cpu, head->cpus_ptr) &&
	    scx_bpf_dsq_move_to_local(victim, 0))
		return PULL_TAKEN;
	return pull_past_head(victim, cpu);
}

/*
 * Try to take a task from the queue of @victim to @cpu, this one. Global, as the loops
 * that call it, so that the verifier looks at each of them once.
 */
__noinline u32 pull_from(u32 victim, u32 cpu)
{
	u32 found = pull_look(victim, cpu);

	if (found == PULL_EARLY)
		return found;
	if (found == PULL_TIED) {
		/* Others may come meanwhile: look again after the withdrawal. */
		withdraw(victim);
		found = pull_past_head(victim, cpu);
		if (found > PULL_TIED)
			offer(victim);
	} else if (found != PULL_LEFT && scx_bpf_dsq_nr_queued(victim) <= 0) {
		withdraw_empty(victim);
	}
	if (found != PULL_TAKEN)
		count(pull_miss);
	return found;
}

/* What looks at several queues found: a task, or how many had none that may run here. */
#define PULL_GOT_ONE (~0U)

/* Try the offers of one word, from bit @start on and around. */
__noinline u32 pull_from_word(u32 cpu, u32 word, u32 start)
{
	u64 cpus = word_read(word_in(offers, word));
	u32 misses = 0;

	while (cpus && can_loop) {
		u32 bit = bit_from(cpus, start), found;

		cpus &= ~bit_of(bit);
		found = pull_from(cpu_at_place(word, bit), cpu);
		if (found == PULL_TAKEN)
			return PULL_GOT_ONE;
		if (found != PULL_EMPTY && found != PULL_EARLY)
			misses++;
		if (misses + cpu_ctx(cpu)->early_looks >= PULL_MISSES)
			break;
	}
	return misses;
}

/*
 * Try what those of @words offer, starting after the place of @cpu, or further on if the
 * last look ended early.
 */
__noinline u32 pull_from_words(u32 cpu, u64 words)
{
	const volatile struct cpu_place *at = place_of(cpu);
	struct cpu_ctx *c = cpu_ctx(cpu);
	u32 turn = c->pull_turn, misses = 0;

	words = offering(words);
	while (words && can_loop) {
		u32 word = bit_from(words, at->word + turn), more;

		words &= ~bit_of(word);
		more = pull_from_word(cpu, word,
				      at->bit + 1 + turn * PULL_MISSES);
		if (more == PULL_GOT_ONE)
			return PULL_GOT_ONE;
		misses += more;
		if (misses + c->early_looks >= PULL_MISSES) {
			c->pull_turn = turn + 1;
			break;
		}
	}
	return misses;
}

/* Does @c rest from looking at offers, after looks in vain? */
static __always_inline bool pull_rests(const struct cpu_ctx *c)
{
	return c->pull_rest_ns && !c->pull_asked &&
	       vt_before(scx_bpf_now(), c->pull_after);
}

/* Does @c rest from looking beyond its LLC, where tasks had just begun to wait? */
static __always_inline bool pull_far_rests(const struct cpu_ctx *c)
{
	return c->far_rest_ns && !c->pull_asked &&
	       vt_before(scx_bpf_now(), c->far_after);
}

/* Is there an offer that @cpu, of @c, would look at? */
static __always_inline bool may_pull_from(u32 cpu, const struct cpu_ctx *c)
{
	return offering(words_within(cpu, REACH_LLC)) ||
	       (any_offer() && !pull_far_rests(c));
}

/* How long to rest after another look in vain: twice as long as after the last, up to @most_ns. */
static __always_inline u64 longer_rest(u64 rest_ns, u64 most_ns)
{
	rest_ns = rest_ns ? 2 * rest_ns : PULL_REST_NS;
	return rest_ns < most_ns ? rest_ns : most_ns;
}

/* @c has looked at offers, of which @misses were of tasks that may not run there. */
static __always_inline void pull_note(struct cpu_ctx *c, u32 misses)
{
	c->pull_asked = false;
	if (!misses) {
		c->pull_rest_ns = 0;
		return;
	}
	c->pull_rest_ns = longer_rest(c->pull_rest_ns, tick_ns);
	c->pull_after = scx_bpf_now() + c->pull_rest_ns;
}

/* @c has looked beyond its LLC in vain: after FAR_NS, what was early there is so no more. */
static __always_inline void pull_note_far(struct cpu_ctx *c)
{
	if (!c->early_looks) {
		c->far_rest_ns = 0;
		return;
	}
	c->far_rest_ns = longer_rest(c->far_rest_ns, FAR_NS);
	c->far_after = scx_bpf_now() + c->far_rest_ns;
}

/* Take a task that those of @words offer, unless this CPU @rests. */
static __always_inline bool pull_step(u32 cpu, u64 words, bool rests,
				      u32 *misses)
{
	u32 found = rests ? 0 : pull_from_words(cpu, words);

	if (found == PULL_GOT_ONE)
		return true;
	*misses += found;
	return false;
}

/*
 * Get a task from the nearest place, of wakees the oldest first. How far it looks in vain
 * is bounded, and how often: a task that it misses is found by the next tick of its CPU
 * (rescue). Global, so that the verifier looks at it once.
 */
__noinline bool pull_nearest(u32 cpu)
{
	const volatile struct cpu_place *at = place_of(cpu);
	u64 llc = at->llc_words, node = at->node_words;
	struct cpu_ctx *c = cpu_ctx(cpu);
	bool rests = pull_rests(c), far_rests = pull_far_rests(c);
	u32 misses = 0;

	c->early_looks = 0;
	if (wakeq_pull_llc(cpu)) {
		count(wakeq_pulled);
		return true;
	}
	if (pull_step(cpu, llc, rests, &misses)) {
		count(pull_llc);
		return true;
	}
	if (!far_rests && wakeq_steal(cpu)) {
		count(wakeq_stolen);
		return true;
	}
	if (pull_step(cpu, node ^ llc, rests || far_rests, &misses)) {
		count(pull_node);
		return true;
	}
	if (pull_step(cpu, all_words ^ node, rests || far_rests, &misses)) {
		count(pull_far);
		return true;
	}
	if (!rests)
		pull_note(c, misses);
	if (!rests && !far_rests)
		pull_note_far(c);
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
 * same queue: those that come too late try the next. They do not look for another task in
 * the same queue, which would be one that has just had its turn. Global for the verifier's
 * sake, too.
 */
__noinline bool exchange_within(u32 cpu, u64 vt, u64 words)
{
	u32 try;

	bpf_for(try, 0, EXCHANGE_TRIES) {
		s32 victim = slowest_queue(cpu, words);

		if (victim < 0 || !is_further_behind(cpu, victim, vt))
			return false;
		if (scx_bpf_dsq_move_to_local(victim, 0))
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

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Relief: nobody waits for ever, or holds up RCU.
 *
 * Virtual time promises each task its turn, but not when: the lighter it is, and
 * the more and heavier those that wait with it, the later. A SCHED_IDLE task that
 * is pinned beside 20 hogs is entitled to a slice in half a minute. sched_ext
 * throws a scheduler out under which a task waits for ops.timeout_ms. That is
 * 30 s, the most it may be, since other classes may keep a CPU for long; by this
 * scheduler alone no task waits for 10 s. So a task that waits since before the
 * last RELIEF_NS gets a slice out of turn, and owes no more than that one.
 *
 * A task that was put aside within an RCU reader makes every grace period wait.
 * After 21 s the kernel reports a stall, for which it throws the scheduler out as
 * well (not yet in 6.12). A reader may need many slices, as one of khugepaged's
 * did, at nice 19 on slow CPUs. So it is relieved after READER_RELIEF_NS; the
 * kernel's own boost of readers (CONFIG_RCU_BOOST) waits for half a second. One
 * reader at a time, so that tasks that read all the time get 3 % out of turn and no
 * more.
 */
#pragma once

#include "heddle.bpf.h"
#include "runq.bpf.h"

#define RELIEF_NS 2000000000ULL
#define READER_RELIEF_NS 100000000ULL

/* ops.enqueue: @p, which was put aside, is about to wait in the queue of @c. */
static __always_inline void relief_note(struct cpu_ctx *c,
					const struct task_struct *p)
{
	if (is_reader(p))
		c->holds_rcu = true;
}

static __always_inline void look_tick(struct look *look, u64 now, u64 period)
{
	if (look->due || vt_before(now, look->ns + period))
		return;
	look->ns = now;
	look->due = true;
}

/* Was @p, which waits, waiting at the last look already? */
static __always_inline bool look_finds(const struct look *look,
				       const struct task_struct *p)
{
	/* jiffies; the kernel's watchdog goes by the same. */
	return look->due && vt_before(p->scx.runnable_at, look->jiffies);
}

static __always_inline void look_done(struct look *look)
{
	look->jiffies = bpf_jiffies64();
	look->due = false;
}

/* ops.tick: is it time for another look at the tasks in the queue of @c? */
static __always_inline void relief_tick(struct cpu_ctx *c)
{
	u64 now;

	if (!c->nr_queued)
		return;
	now = scx_bpf_now();
	look_tick(&c->waiters, now, RELIEF_NS);
	if (c->holds_rcu)
		look_tick(&c->readers, now, READER_RELIEF_NS);
}

/* @p, which waits in the queue of @cpu, is to be where the first in line is. */
static __always_inline void relieve_one(struct bpf_iter_scx_dsq *it,
					struct task_struct *p, u32 cpu,
					u64 first)
{
	if (!vt_before(first, vt_of_key(p->scx.dsq_vtime)))
		return;
	scx_bpf_dsq_move_set_vtime(it, vt_key(first, cpu));
	if (scx_bpf_dsq_move_vtime(it, p, cpu, 0))
		count(relieved);
}

/*
 * Relieve the tasks that were waiting for @cpu, this CPU, at the last look already:
 * they come before all at @vt and later.
 */
__noinline int relieve_waiting(u32 cpu, u64 vt)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct task_struct *p;
	bool holds_rcu = false;

	bpf_for_each(scx_dsq, p, cpu, 0) {
		bool reader = is_reader(p);

		/* The head comes first, which may be behind the clock. */
		vt = vt_min(vt, vt_of_key(p->scx.dsq_vtime));
		holds_rcu |= reader;
		if (reader && look_finds(&c->readers, p))
			look_done(&c->readers);
		else if (!look_finds(&c->waiters, p))
			continue;
		relieve_one(BPF_FOR_EACH_ITER, p, cpu, vt);
	}
	if (c->waiters.due)
		look_done(&c->waiters);
	if (c->readers.due)
		look_done(&c->readers);
	c->holds_rcu = holds_rcu;
	return 0;
}

/* ops.dispatch */
static __always_inline void relieve(u32 cpu, const struct cpu_ctx *c)
{
	if (c->waiters.due || c->readers.due)
		relieve_waiting(cpu, c->running ? vt_min(c->clock, c->curr_vt)
						: c->clock);
}

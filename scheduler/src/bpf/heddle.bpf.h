/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * State that the mechanisms share: one struct per CPU, the load-time options,
 * and the accessors for both.
 */
#pragma once

#include <scx/common.bpf.h>

#include "intf.h"
#include "policy/asym.h"
#include "policy/idle.h"
#include "policy/lag.h"
#include "policy/preempt.h"
#include "policy/ring.h"
#include "policy/vtime.h"
#include "policy/wakeq.h"
#include "policy/weight.h"

/* uapi/linux/sched.h; vmlinux.h has no macros. */
#define SCHED_BATCH 3
#define SCHED_IDLE 5
#define SCHED_EXT 7

/* Options; the loader sets them before the program is loaded. */
const volatile u64 slice_ns = 3000000;
const volatile u64 wakeup_granularity_ns = 100000;
const volatile bool fair_work; /* share work done, not time */
const volatile bool partial; /* only tasks that ask for it are ours */

/* From one tick to the next: what a tick finds stands for that long. By the loader. */
const volatile u64 tick_ns = 4000000;

/* Looks at the tasks in a queue (relief). */
struct look {
	u64 ns; /* when the last one fell due, scx_bpf_now() */
	u64 jiffies; /* when it was over */
	bool due; /* some may have been waiting then already */
};

/*
 * A CPU and its queue. The queue itself is the DSQ whose id is the CPU's number. Written
 * under the CPU's rq lock only, and read by other CPUs without it, as hints; but @idle,
 * @release and @pull_asked by any CPU, @local_pending and @sync_wakee by a
 * waker for its own CPU too (placement), @parked by the rescue timer, @at_user by its task, and
 * @offline, @parked, @running, @local_pending and @owed by hotplug.
 */
struct cpu_ctx {
	/* The queue's clock: virtual time of the last task picked, monotonic. */
	u64 clock;
	/* Where the clock stands in the frame shared by all CPUs (lag.h). */
	u64 offset;

	/* The task that runs: its state when it started. */
	u64 curr_vt;
	u64 curr_inv;
	u64 curr_sum_exec;
	u64 curr_since; /* by the CPU's clock */

	/* What it adds to the load of which group (group_load). */
	u32 curr_weight;
	u32 curr_group;

	/* Inverse weight of the lightest task run since the queue was empty, idle ones apart. */
	u64 lightest_inv;

	/* What that task has drawn from the pools of its group (bandwidth). */
	u64 drawn_exec; /* as curr_sum_exec, at the last drawing */
	u64 drawn_at; /* pool_now() then */
	u32 curr_pool; /* the nearest pool, or 0; 0 too while none runs */
	s32 at_user; /* its thread id, if it was found in user mode, or 0 */

	/*
	 * Tasks in the queue, or more: those that leave it otherwise than by
	 * being picked here are not subtracted until it is found empty.
	 */
	u32 nr_queued;

	u64 taken_at; /* when another class took the CPU last, scx_bpf_now() */

	/* When this CPU looks again at what others offer (pull), scx_bpf_now(). */
	u64 pull_after;
	u64 pull_rest_ns; /* how long it rests after looks in vain, or 0 */
	u64 far_after,
		far_rest_ns; /* the same beyond its LLC, where tasks had just begun to wait */
	u32 pull_turn; /* looks that ended before all queues were seen */
	u32 early_looks; /* queues that the last look met whose first task had just begun to wait */

	struct look
		waiters; /* tasks that wait for too long in the queue (relief) */
	struct look readers; /* among them those that hold up RCU */

	/* The last wakee from here, if its waker said that it will sleep; or 0. */
	s32 sync_wakee;

	u32 reweighed; /* the reweighing walk in which its queue was looked at (reweigh) */

	/*
	 * The walk under way: tasks of a queue that it has looked at, and the inverse weight of
	 * the lightest (runq). In memory, the verifier need not follow them through the loop.
	 */
	u32 looks;
	u64 lightest_met_inv;

	u8 slices_alone; /* slices granted while nobody waited here */

	bool offline;
	bool pull_asked; /* by any CPU: a task waits that may run here */
	bool picked; /* the next to start comes from the queue */
	bool running; /* a task of ours runs */
	bool curr_idle; /* it is SCHED_IDLE */
	bool curr_pinned; /* it may run here only */
	bool curr_hog; /* by its bursts (burst) */
	bool yielded; /* it called sched_yield() */
	bool offered; /* other CPUs may run some of what is queued */
	bool local_pending; /* a task put past the queue has not run yet */
	bool own_work; /* nor has a kernel thread of this CPU, which is brief */
	bool heavier_waits; /* one waits here that is much heavier than others */
	/* How often the task that runs was to be parked, and was in the kernel. */
	u8 stop_looks;
	bool parked; /* tasks wait here for their group's next period */
	bool release; /* set by a timer: some of them may run again */
	bool holds_rcu; /* a reader of RCU may be in the queue (relief) */
	bool owed; /* tasks that sleep are still counted here (group_load) */
	bool releasing; /* in ops.cpu_release, */
	bool release_tied; /* and its task may not migrate */

	/*
	 * enum idle_state, as ops.update_idle said last. By --idle scan other
	 * CPUs write it, to claim the CPU.
	 */
	u32 idle;
} __attribute__((aligned(CACHE_LINE)));

struct cpu_ctx cpu_ctxs[MAX_CPUS];
struct cpu_stats cpu_stats[MAX_CPUS];

static __always_inline struct cpu_ctx *cpu_ctx(u32 cpu)
{
	return &cpu_ctxs[cpu & (MAX_CPUS - 1)];
}

/* May the walk of this CPU, @c, look at one more task, of @most? */
static __always_inline bool may_look(struct cpu_ctx *c, u32 most)
{
	return c->looks++ < most;
}

static __always_inline struct cpu_stats *stats_of(u32 cpu)
{
	return &cpu_stats[cpu & (MAX_CPUS - 1)];
}

/* Count an event on the CPU where it happens. */
#define count(event) count_by(event, 1)

#define count_by(event, n) (stats_of(bpf_get_smp_processor_id())->event += (n))

/* The same where it is known that this CPU is @cpu. */
#define count_on(cpu, event) (stats_of(cpu)->event += 1)

extern struct rq runqueues __ksym __weak;

/*
 * The clock of the run queue of @cpu, which is locked for the callback that asks: the
 * kernel has brought it up to date for what it does now. It is what scx_bpf_now() tells
 * where this CPU's own queue was not unlocked meanwhile; in all other places that reads
 * the time anew, as for a wakee that is queued elsewhere and, after ops.dispatch, for
 * the task that starts.
 */
static __always_inline u64 rq_clock(u32 cpu)
{
	const struct rq *rq = NULL;

	if (&runqueues)
		rq = bpf_per_cpu_ptr(&runqueues, cpu);
	return rq ? rq->clock : scx_bpf_now();
}

/* The same in a time to compare with scx_bpf_now(), for which 6.12 has another clock. */
static __always_inline u64 rq_now(u32 cpu)
{
	return bpf_ksym_exists(scx_bpf_now) ? rq_clock(cpu) : scx_bpf_now();
}

/*
 * Does @cpu belong to another class: does a task of a higher one, as of real time, run
 * or wait there? Those of ours there have to go elsewhere. The thread that stops a CPU does
 * not count: it is brief. Read without the rq lock it is a hint.
 */
static __always_inline bool is_taken(u32 cpu)
{
	const struct task_struct *stop;
	const struct rq *rq = NULL;
	u32 others, stops = 0;

	if (&runqueues)
		rq = bpf_per_cpu_ptr(&runqueues, cpu);
	if (!rq)
		return false;
	others = rq->nr_running - rq->scx.nr_running;
	if ((s32)others <= 0)
		return false;
	stop = rq->stop;
	if (others > 1 || !stop)
		return true;
	/* An int up to 6.19, a byte since: not to be read as either. */
	bpf_core_read(&stops, bpf_core_field_size(stop->on_rq), &stop->on_rq);
	return !stops;
}

/* Another CPU's clock, that of @then, may be ahead of ours by a few ns. */
static __always_inline u64 ns_since(u64 then, u64 now)
{
	return vt_before(then, now) ? now - then : 0;
}

/*
 * Have @cpu look for work. Not from a CPU that goes offline: a kick starts with
 * an interrupt to the CPU that kicks, and one that is not taken any more blocks
 * all later ones of that CPU, even when it is online again (irq_work_queue()
 * raises the interrupt for the first entry of its list only).
 */
static __always_inline void kick(u32 cpu, u64 flags)
{
	if (!cpu_ctx(bpf_get_smp_processor_id())->offline)
		scx_bpf_kick_cpu(cpu, flags);
}

/* The CPU of @p, as by scx_bpf_task_cpu(): every callback asks, and need not call. */
static __always_inline u32 cpu_of_task(const struct task_struct *p)
{
	return *(const volatile u32 *)&p->thread_info.cpu;
}

/*
 * Is @p, which is put aside or was, in the midst of an RCU reader? Then each grace
 * period that begins waits until it has run on to the end of that.
 */
static __always_inline bool is_reader(const struct task_struct *p)
{
	/* Without CONFIG_PREEMPT_RCU nobody is. */
	return bpf_core_field_exists(p->rcu_read_unlock_special) &&
	       p->rcu_read_unlock_special.b.blocked;
}

static __always_inline bool task_is_idle_policy(const struct task_struct *p)
{
	return p->policy == SCHED_IDLE;
}

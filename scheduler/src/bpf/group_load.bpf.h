/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The load of a group: the weights of its tasks that are runnable.
 *
 * A task is counted from when it is seen awake, as it is queued or runs, until
 * it sleeps; a bit of its key says whether it is (policy/vtime.h). ops.runnable
 * and ops.quiescent would tell of the same, but two calls more at every wakeup
 * cost nearly as much as all else that groups do there.
 *
 * While a task waits, its weight, its group or its class may change. Each of these
 * is told (reweigh.bpf.h), and moves what was counted. A task that runs meanwhile
 * is stopped before and started after, as if it had slept.
 *
 * A task that sleeps in debt is counted until the debt has worn off
 * (policy/debts.h): else the others of its group would be charged as if it had had
 * nothing. The clock of an idle CPU stands, so all debts there are forgiven.
 *
 * Loads are striped: eight neighbours of an LLC share a cache line. A weight may be added
 * to one stripe and subtracted from another, so only their sum means anything.
 */
#pragma once

#include "cgroup.bpf.h"
#include "heddle.bpf.h"
#include "policy/debts.h"
#include "topology.bpf.h"

struct {
	struct debts debts;
} __attribute__((aligned(CACHE_LINE))) group_debts[MAX_CPUS];

static __always_inline struct debts *debts_of(u32 cpu)
{
	barrier_var(cpu);
	return &group_debts[cpu & (MAX_CPUS - 1)].debts;
}

static __always_inline bool is_counted(const struct task_struct *p)
{
	return !(p->scx.dsq_vtime & KEY_UNCOUNTED);
}

/* A task of @cpu adds @weight to the load of @g. */
static __always_inline void group_add_load(struct group *g, u32 cpu, u64 weight)
{
	u32 stripe = place_of(cpu)->group_stripe % GROUP_STRIPES;

	__sync_fetch_and_add(&g->stripes[stripe].load, weight);
}

/* The same by the slot that the group is in. */
static __always_inline void load_add(u32 cpu, u32 id, u64 weight)
{
	group_add_load(group_at(id), cpu, weight);
}

/* ops.enable, ops.cgroup_move: the slot of @p's group may have been another's. */
static __always_inline void load_enter(const struct task_struct *p)
{
	if (cgroup_flat)
		group_activate(p->sched_task_group);
}

/* What @p, which is not counted, has slept off is not all that it owed. */
static __always_inline bool load_in_debt(const struct task_struct *p, u64 load)
{
	u64 key = p->scx.dsq_vtime;
	u32 cpu = cpu_of_key(key);

	return vt_before(cpu_ctx(cpu)->clock, vt_of_key(key)) &&
	       debt_take(debts_of(cpu), p->pid, load);
}

/* ops.enqueue, ops.running: count @p, on @cpu, unless it is counted. */
static __always_inline void load_join(u32 cpu, struct task_struct *p,
				      const struct standing *who)
{
	struct group *g;

	if (!cgroup_flat || is_counted(p))
		return;
	g = group_at(who->group);
	if (who->group <= ROOT_GROUP ||
	    !load_in_debt(p, debt_load(who->group, who->weight)))
		group_add_load(g, cpu, who->weight);
	scx_bpf_task_set_dsq_vtime(p, p->scx.dsq_vtime & ~KEY_UNCOUNTED);
	if (!g->serial)
		group_activate(p->sched_task_group);
}

/* ops.disable: count @p no more. */
static __always_inline void load_leave(struct task_struct *p)
{
	if (!cgroup_flat || !is_counted(p))
		return;
	scx_bpf_task_set_dsq_vtime(p, p->scx.dsq_vtime | KEY_UNCOUNTED);
	load_add(cpu_of_task(p), group_id(p->sched_task_group),
		 -task_weight(p));
}

/* @load, of one that sleeps and ran on @cpu, is counted no more. */
static __always_inline void load_end(u32 cpu, u64 load)
{
	load_add(cpu, debt_group(load), -debt_weight(load));
}

/* ops.stopping: @p, which runq_stop() has marked, goes to sleep, last on @cpu. */
static __always_inline void load_sleep(u32 cpu, struct task_struct *p)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	u64 vt = vt_of_key(p->scx.dsq_vtime), load;

	if (!cgroup_flat)
		return;
	if (c->curr_group <= ROOT_GROUP || !vt_before(c->clock, vt) ||
	    p->flags & PF_EXITING || c->offline) {
		load_add(cpu, c->curr_group, -(u64)c->curr_weight);
		return;
	}
	c->owed = true;
	load = debt_keep(debts_of(cpu), p->pid,
			 debt_load(c->curr_group, c->curr_weight), vt);
	if (load)
		load_end(cpu, load);
}

/*
 * End the debts of @cpu that its clock has come to, or @all. Global, so that the
 * verifier looks at it once.
 */
__noinline int debts_settle(u32 cpu, bool all)
{
	struct debts *debts = debts_of(cpu);
	struct cpu_ctx *c = cpu_ctx(cpu);
	u64 clock = c->clock;
	u32 word;

	debts_begin(debts, clock);
	for (word = 0; word < DEBT_WORDS; word++) {
		u64 filled = *(volatile u64 *)&debts->filled[word];

		while (filled && can_loop) {
			u32 place = word * 64 + first_bit(filled);
			u64 load = debt_end(debts, place, clock, all);

			filled &= filled - 1;
			if (load)
				load_end(cpu, load);
		}
	}
	c->owed = debts_any(debts);
	return 0;
}

/* The clock of @cpu has moved. */
static __always_inline void load_settle(u32 cpu)
{
	const struct cpu_ctx *c = cpu_ctx(cpu);

	if (cgroup_flat && c->owed && debts_due(debts_of(cpu), c->clock))
		debts_settle(cpu, false);
}

/* Nobody is left on @cpu to be in debt to. */
static __always_inline void load_forgive(u32 cpu)
{
	if (cgroup_flat && cpu_ctx(cpu)->owed)
		debts_settle(cpu, true);
}

/* The weight of @p, which does not run, in the group of slot @id, was @before. */
static __always_inline void load_reweigh(const struct task_struct *p, u32 id,
					 u64 before)
{
	if (cgroup_flat && is_counted(p))
		load_add(cpu_of_task(p), id, task_weight(p) - before);
}

/* @p, which does not run, was in the group of slot @from and is in that of @to. */
static __always_inline void load_move(const struct task_struct *p, u32 from,
				      u32 to)
{
	u32 cpu = cpu_of_task(p);

	if (!is_counted(p))
		return;
	load_add(cpu, from, -task_weight(p));
	load_add(cpu, to, task_weight(p));
}

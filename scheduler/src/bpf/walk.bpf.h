/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The walk over the groups: what a group's tasks weigh, computed by a timer.
 *
 * The loads of the groups that are active are summed up from the leaves to the
 * root, then scales are computed from the root to the leaves. Sums are over all
 * CPUs, so a group gets its share of the machine however many threads it has.
 *
 * A walk comes a millisecond after the one before, or as much later as keeps
 * all of them below 1 / WALK_SHARE of a CPU. There is none while no task of a
 * group is runnable.
 */
#pragma once

#include "heddle.bpf.h"
#include "bandwidth_timer.bpf.h"
#include "cgroup.bpf.h"

#define WALK_SHARE 100
/* Walks from one look at cpu.idle to the next, where the kernel does not tell. */
#define POLL_IDLE_WALKS 8
/* Walks that find nothing runnable until a group no longer is walked. */
#define QUIET_WALKS 64
/* ns, 1/8 of WALK_NS: out of step with what wakes up every few milliseconds. */
#define WALK_JITTER_MASK 0x1ffffU

u32 nr_walks;

/*
 * Weights of the runnable tasks of @g. Stripes are read one after the other, while
 * tasks come and go: the sum may be less than nothing for a moment.
 */
static __always_inline u64 group_tasks(const struct group *g)
{
	u64 sum = 0;
	u32 i;

	for (i = 0; i < GROUP_STRIPES; i++)
		sum += *(volatile u64 *)&g->stripes[i].load;
	return (s64)sum > 0 ? sum : 0;
}

/* Where the kernel does not tell of changes: see what cpu.idle of @g is now. */
static __always_inline void group_poll_idle(struct group *g)
{
	const struct task_group *tg = (const struct task_group *)g->tg;
	bool idle;

	if (!cgroup_poll_idle || nr_walks % POLL_IDLE_WALKS)
		return;
	idle = BPF_CORE_READ(tg, idle);
	/* Its memory may be another's; this reads nothing where there is none. */
	if (BPF_CORE_READ(tg, css.serial_nr) == g->serial)
		group_reweigh(g, g->weight, idle);
}

/*
 * Bottom up: measure the load of a group. Global, as walk_scale(), so that the
 * verifier looks at it once by itself and not in every turn of the loops.
 */
__noinline int walk_measure(u32 id)
{
	struct group *g = group_at(id);
	u64 sum = group_tasks(g) + g->children;

	group_poll_idle(g);
	g->children = 0;
	if (sum) {
		g->load = load_average(g->load, sum);
		g->quiet = 0;
		/* A group that may not run leaves its share to the others. */
		if (!pool_is_empty(id))
			group_at(g->parent)->children += group_weight(g);
		/* It may have been found quiet just as a task came below it. */
		if (g->parent > ROOT_GROUP)
			walk_add(g->parent);
		return 0;
	}
	if (++g->quiet < QUIET_WALKS)
		return 0;
	g->load = 0;
	*(volatile u64 *)&g->serial = 0;
	walk_remove(id, g->level);
	/*
	 * A task that came before the serial was cleared has not activated the
	 * group. Its load is seen now.
	 */
	if (group_tasks(g))
		walk_add(id);
	return 0;
}

/* Top down: what follows from it. */
__noinline int walk_scale(u32 id)
{
	struct group *g = group_at(id);
	const struct group *parent = group_at(g->parent);
	u64 weight = group_weight(g);

	group_link_pool(id, g, parent);
	if (!g->load)
		return 0;
	g->walk_scale = group_scale(parent->walk_scale, g->load, weight);
	group_set_scale(g, hot_scale(g->walk_scale));
	g->credit_inv = g->parent <= ROOT_GROUP
				? group_credit_inv(weight, scx_bpf_nr_cpu_ids())
				: parent->credit_inv;
	g->idle = g->own_idle || parent->idle;
	return 0;
}

/* Call walk_measure() or walk_scale() for the groups of a level. Global as these. */
__noinline int walk_level(u32 number, bool measure)
{
	struct group_level *level = level_at(number);
	u64 words = *(volatile u64 *)&level->words;

	while (words && can_loop) {
		u32 word = first_bit(words);
		u64 left = *(volatile u64 *)&level->groups[word];

		words &= words - 1;
		while (left && can_loop) {
			u32 id = word * 64 + first_bit(left);

			left &= left - 1;
			/* A group that is gone was here, and had this slot. */
			if (group_at(id)->level != number)
				walk_remove(id, number);
			else if (measure)
				walk_measure(id);
			else
				walk_scale(id);
		}
	}
	return 0;
}

static __always_inline void walk_root(void)
{
	struct group *root = group_at(ROOT_GROUP);
	u64 total = group_tasks(root) + root->children;

	root->children = 0;
	inv_max = lightest_inv(total, scx_bpf_nr_cpu_ids());
	group_set_scale(root, HOT_SCALE_ONE);
}

static int walk_groups(void *map, u32 *id, struct timer_slot *slot)
{
	u64 start = bpf_ktime_get_ns(), took;
	u64 levels = *(volatile u64 *)&walked_levels;
	u32 deepest = last_bit(levels | 1), level;

	for (level = deepest; level; level--)
		walk_level(level, true);
	walk_root();
	for (level = 1; level <= deepest; level++)
		walk_level(level, false);

	nr_walks++;
	if (reweighing_walks)
		reweighing_walks--;
	timer_runs(slot);
	if (!*(volatile u64 *)&walked_levels) {
		inv_max = ~0ULL;
		group_set_scale(group_at(ROOT_GROUP), HOT_SCALE_ONE);
		return 0;
	}
	took = WALK_SHARE * (bpf_ktime_get_ns() - start);
	timer_arm(TIMER_WALK,
		  (took > WALK_NS ? took : WALK_NS) -
			  (bpf_get_prandom_u32() & WALK_JITTER_MASK));
	return 0;
}

/* ops.init, before any group is told of. */
static __always_inline s32 groups_init(void)
{
	u32 id;
	s32 err;

	bpf_for(id, 0, MAX_GROUPS)
		group_reset(group_at(id));
	/* No task of the root is lighter: its credit is its own. */
	group_at(ROOT_GROUP)->credit_inv = INV_IDLE;
	/* It is walked always, by walk_root(). */
	group_at(ROOT_GROUP)->serial = 1;
	err = timer_init(TIMER_WALK, walk_groups);
	return err ?: bandwidth_init();
}

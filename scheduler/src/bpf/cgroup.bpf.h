/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The CPU controller on the flat queues: weights of groups.
 *
 * Tasks are queued one by one, whatever group they are in; the tree of groups
 * only decides what each task weighs (policy/hweight.h). The work is divided
 * by how often it happens:
 *
 *   - a task wakes or sleeps: its weight is added to its group's load, or
 *     subtracted (group_load.bpf.h). No level above is touched;
 *   - a task starts to run or is queued: its weight is multiplied by its
 *     group's scale, which for nice 0 has been done by the timer;
 *   - about every millisecond, once for the machine, a timer walks the groups
 *     that are active and computes their scales (walk.bpf.h).
 *
 * A group's slot is the number of its css, which the kernel hands out densely
 * from the lowest free one on: a task finds its group by two loads. 1 is the
 * root; autogroups are all 0 and count to the root. A group beyond the last slot
 * is none of its own: its tasks count to the nearest ancestor that has a slot.
 */
#pragma once

#include "heddle.bpf.h"
#include "policy/hweight.h"
#include "timer.bpf.h"
#include "topology.bpf.h"

/* Options; the loader sets them before the program is loaded. */
const volatile bool cgroup_flat;
/* This kernel does not tell of changes of cpu.idle (ops.cgroup_set_idle). */
const volatile bool cgroup_poll_idle;

#define ROOT_GROUP 1
#define GROUP_LEVELS 64 /* the root's is 0; deeper groups share the last */

/* Time from one walk to the next. */
#define WALK_NS 1000000ULL

struct group_stripe {
	u64 load; /* sum of the weights of runnable tasks, modulo 2^64 */
} __attribute__((aligned(CACHE_LINE)));

struct group {
	/* What the hot path reads. */
	u64 nice_0_inv; /* inverse weight on the flat queue of a task of nice 0 */
	u64 scale; /* HOT_SCALE_SHIFT */
	u64 credit_inv; /* group_credit_inv() of the ancestor below the root */
	u64 serial; /* css.serial_nr of the group that is walked here, or 0 */
	bool idle; /* the group or one above it has cpu.idle set */
	u32 pool; /* the nearest group from here up that has a quota, or 0 */

	/* Settings. */
	bool own_idle;
	u64 weight;

	/* The walk's. */
	u64 walk_scale; /* SCALE_SHIFT */
	u64 load; /* averaged */
	u64 children; /* weights of the children that are active */
	u64 tg; /* its task_group, to poll; it may be gone */
	u32 parent;
	u16 level;
	u16 quiet; /* walks since a task was runnable */

	struct group_stripe stripes[GROUP_STRIPES];
} __attribute__((aligned(CACHE_LINE)));

struct group groups[MAX_GROUPS];

/* Which groups are walked: a bitmap a level, and a sum of each and of all. */
struct group_level {
	u64 words; /* which words are not zero */
	u64 groups[MAX_GROUPS / 64];
} group_levels[GROUP_LEVELS];
u64 walked_levels;

/* Inverse of the least weight that a task may have now. */
u64 inv_max = ~0ULL;

/* Walks during which the CPUs go through their queues (reweigh). */
u32 reweighing_walks;

#define REWEIGHING_WALKS (8 + 2 * slice_ns / WALK_NS)

static __always_inline struct group *group_at(u32 id)
{
	/* Where the compiler knows the range, it drops the mask. */
	barrier_var(id);
	return &groups[id & (MAX_GROUPS - 1)];
}

/* The slot of the nearest group from @css up that has one. */
static __noinline u32 nearest_slot(const struct cgroup_subsys_state *css)
{
	u32 level;

	bpf_for(level, 0, GROUP_LEVELS) {
		u32 id;

		if (!css)
			break;
		id = BPF_CORE_READ(css, id);
		if (id && id < MAX_GROUPS)
			return id;
		css = BPF_CORE_READ(css, parent);
	}
	return ROOT_GROUP;
}

/* The slot that the tasks of @tg are counted to. */
static __always_inline u32 group_id(const struct task_group *tg)
{
	u32 id = tg->css.id;

	if (!id)
		return ROOT_GROUP; /* an autogroup */
	return id < MAX_GROUPS ? id : nearest_slot(&tg->css);
}

static __always_inline struct group *group_of(const struct task_struct *p)
{
	return group_at(group_id(p->sched_task_group));
}

static __always_inline u64 task_weight(const struct task_struct *p)
{
	if (task_is_idle_policy(p))
		return WEIGHT_IDLE;
	return nice_weight[nice_index(p->static_prio)];
}

/* Inverse of task_weight(). */
static __always_inline u64 task_own_inv(const struct task_struct *p)
{
	if (task_is_idle_policy(p))
		return INV_IDLE;
	return nice_inv[nice_index(p->static_prio)];
}

/* What a task counts for on the flat queue. */
struct standing {
	u64 inv; /* inverse weight */
	/*
	 * The same for what it may save up over its sleep, which belongs to the
	 * group as much as to the task: hundreds of tasks of one group, woken
	 * together, may not each come a slice before the others by their own
	 * light weight.
	 */
	u64 credit_inv;
	bool idle; /* it yields to all that are not so */

	/* With groups: the slot that it is counted to, and what it adds there. */
	u32 group;
	u32 weight;
};

static __always_inline struct standing standing_of(const struct task_struct *p)
{
	struct standing who = { .idle = task_is_idle_policy(p) };
	const struct group *g;

	if (!cgroup_flat) {
		who.inv = task_own_inv(p);
		who.credit_inv = who.inv;
		return who;
	}
	who.group = group_id(p->sched_task_group);
	g = group_at(who.group);
	if (p->static_prio == PRIO_NICE_0 && !who.idle) {
		/* As nearly all are: it has been computed once for all of them. */
		who.weight = WEIGHT_NICE_0;
		who.inv = g->nice_0_inv;
	} else {
		who.weight = task_weight(p);
		who.inv = hot_inv(task_own_inv(p), g->scale, inv_max);
	}
	who.credit_inv = g->credit_inv < who.inv ? g->credit_inv : who.inv;
	who.idle |= g->idle;
	return who;
}

/* What tasks of @g weigh changes: its scale, or inv_max. */
static __always_inline void group_set_scale(struct group *g, u64 scale)
{
	g->scale = scale;
	g->nice_0_inv = hot_inv(INV_NICE_0, scale, inv_max);
}

/* @bit, a number below 64: the compiler knows that, verifiers do not. */
static __always_inline u32 bit_number(u32 bit)
{
	barrier_var(bit);
	return bit & 63;
}

/* Number of the lowest bit that is set; there is one. */
static __always_inline u32 first_bit(u64 bits)
{
	return bit_number(__builtin_ctzll(bits));
}

/* Number of the highest. */
static __always_inline u32 last_bit(u64 bits)
{
	return bit_number(63 - __builtin_clzll(bits));
}

static __always_inline struct group_level *level_at(u32 number)
{
	barrier_var(number);
	return &group_levels[number & (GROUP_LEVELS - 1)];
}

/* Have the group in slot @id walked. */
static __always_inline void walk_add(u32 id)
{
	u32 number = group_at(id)->level, word = id / 64 % (MAX_GROUPS / 64);
	struct group_level *level = level_at(number);
	u64 bit = 1ULL << (id & 63);

	if (*(volatile u64 *)&level->groups[word] & bit)
		return;
	__sync_fetch_and_or(&level->groups[word], bit);
	__sync_fetch_and_or(&level->words, 1ULL << word);
	__sync_fetch_and_or(&walked_levels, 1ULL << (number & 63));
}

/*
 * Have the group in slot @id walked no more at the level @number. Bits are cleared by
 * the walk only, which looks again after it did so.
 */
static __always_inline void walk_remove(u32 id, u32 number)
{
	u32 word = id / 64 % (MAX_GROUPS / 64);
	struct group_level *level = level_at(number);

	__sync_fetch_and_and(&level->groups[word], ~(1ULL << (id & 63)));
	if (*(volatile u64 *)&level->groups[word])
		return;
	__sync_fetch_and_and(&level->words, ~(1ULL << word));
	if (*(volatile u64 *)&level->groups[word])
		__sync_fetch_and_or(&level->words, 1ULL << word);
	if (*(volatile u64 *)&level->words)
		return;
	__sync_fetch_and_and(&walked_levels, ~(1ULL << (number & 63)));
	if (*(volatile u64 *)&level->words)
		__sync_fetch_and_or(&walked_levels, 1ULL << (number & 63));
}

/*
 * The tasks of @tg, and of those above it that are not walked yet, draw from the next
 * pool above them from the start. Else a user could escape a quota by a new group
 * each millisecond: the walk links it later.
 */
static __noinline void group_inherit_pool(const struct task_group *tg)
{
	const struct task_group *up = tg;
	u32 pool = 0, i;

	bpf_for(i, 0, GROUP_LEVELS) {
		if (!up || pool)
			break;
		if (up->css.id < MAX_GROUPS)
			pool = group_at(up->css.id)->pool;
		up = up->parent;
	}
	if (!pool)
		return;
	bpf_for(i, 0, GROUP_LEVELS) {
		u32 id;

		if (!tg)
			break;
		id = tg->css.id;
		tg = tg->parent;
		if (id >= MAX_GROUPS)
			continue;
		if (group_at(id)->pool)
			break;
		group_at(id)->pool = pool;
	}
}

/*
 * A task came to @tg, or became runnable there, and its group may not be walked: it
 * has just been made, or nothing has run in it for long. So may be those above it.
 */
static __noinline void group_activate(const struct task_group *tg)
{
	const struct task_group *lowest = tg;
	u32 child = 0, i;

	bpf_for(i, 0, GROUP_LEVELS) {
		struct group *g;
		u32 id, level;

		if (!tg)
			break;
		id = tg->css.id;
		if (id >= MAX_GROUPS) {
			count(group_overflow);
			tg = tg->parent;
			continue;
		}
		if (child)
			group_at(child)->parent = id;
		if (id <= ROOT_GROUP)
			break;
		g = group_at(id);
		if (g->serial == tg->css.serial_nr)
			break;
		level = tg->css.cgroup->level;
		g->level = level < GROUP_LEVELS ? level : GROUP_LEVELS - 1;
		g->own_idle = tg->idle;
		g->tg = (u64)tg;
		g->quiet = 0;
		group_set_scale(g, g->scale); /* by today's inv_max */
		g->serial = tg->css.serial_nr;
		walk_add(id);
		child = id;
		tg = tg->parent;
	}
	if (!child)
		return;
	group_inherit_pool(lowest);
	timer_arm(TIMER_WALK, WALK_NS);
}

/* Undo all settings of a slot. Loads are left: each task takes its own away. */
static __always_inline void group_reset(struct group *g)
{
	group_set_scale(g, HOT_SCALE_ONE);
	g->walk_scale = SCALE_ONE;
	g->credit_inv = INV_NICE_0;
	g->weight = WEIGHT_NICE_0;
	g->own_idle = false;
	g->idle = false;
	g->pool = 0;
}

/* The part of @cgrp that is the CPU controller's, or nothing. */
static __always_inline struct cgroup_subsys_state *cpu_css(struct cgroup *cgrp)
{
	u32 index = bpf_core_enum_value(enum cgroup_subsys_id, cpu_cgrp_id);
	struct cgroup_subsys_state *css = NULL;

	bpf_probe_read_kernel(&css, sizeof(css), &cgrp->subsys[index]);
	return css;
}

/*
 * The slot of @cgrp, MAX_GROUPS if it has none: a group is told of before it
 * gets its css, but then it has the default settings, which are the slot's.
 */
static __always_inline u32 slot_of(struct cgroup *cgrp)
{
	struct cgroup_subsys_state *css = cpu_css(cgrp);
	u32 id;

	if (!css)
		return MAX_GROUPS;
	id = BPF_CORE_READ(css, id);
	return id < MAX_GROUPS ? id : MAX_GROUPS;
}

/* The slot that the tasks of @cgrp are counted to, as group_id(). */
static __always_inline u32 slot_above(struct cgroup *cgrp)
{
	return nearest_slot(cpu_css(cgrp));
}

/* Is @cgrp, or the CPU controller in it, on its way out? */
static __always_inline bool is_dying(struct cgroup *cgrp)
{
	struct cgroup_subsys_state *css = cpu_css(cgrp);

	return !css || BPF_CORE_READ(css, flags) & CSS_DYING;
}

static __always_inline u64 group_weight(const struct group *g)
{
	return g->own_idle ? WEIGHT_IDLE : g->weight;
}

/* The settings of @g are @weight and @idle from now on. */
static __always_inline void group_reweigh(struct group *g, u64 weight,
					  bool idle)
{
	u64 before = group_weight(g), after;

	g->weight = weight;
	g->own_idle = idle;
	after = group_weight(g);
	/* Where nothing runs, nobody's lag is affected. */
	if (g->serial && (after / REWEIGH_FACTOR >= before ||
			  before / REWEIGH_FACTOR >= after))
		reweighing_walks = REWEIGHING_WALKS;
}

static __always_inline void group_set_weight(struct cgroup *cgrp, u32 weight)
{
	u32 id = slot_of(cgrp);

	if (id < MAX_GROUPS)
		group_reweigh(group_at(id), weight_from_cgroup(weight),
			      group_at(id)->own_idle);
}

static __always_inline void group_set_idle(struct cgroup *cgrp, bool idle)
{
	u32 id = slot_of(cgrp);

	if (id < MAX_GROUPS)
		group_reweigh(group_at(id), group_at(id)->weight, idle);
}

static __always_inline void group_exit(struct cgroup *cgrp)
{
	u32 id = slot_of(cgrp);

	if (id < MAX_GROUPS)
		group_reset(group_at(id));
}

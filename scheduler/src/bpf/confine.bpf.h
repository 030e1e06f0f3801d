/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Confinement: tasks that may not run on all CPUs.
 *
 * Tasks that may run on the same several CPUs wait in the same lane of the global
 * queue; as a rule they are those of a cpuset, and there are few such sets. A task
 * that may run on one CPU only is of no interest to others, and waits in that CPU's
 * own DSQ, by the same keys. So does a task if no lane is left for its set: while
 * it waits, it is bound to the CPU where it was queued.
 *
 * What kind a task is changes as its affinity does, which is seldom.
 */
#pragma once

#include "grq.bpf.h"

/* Where a task waits. */
enum home {
	HOME_CPU, /* in the DSQ of its CPU */
	HOME_LLC, /* in the lane of the LLC where it ran */
	HOME_CONFINE, /* in the lane of a confinement: this plus its number */
};

#define CPUMASK_WORDS (MAX_CPUS / 64)

struct cpu_set {
	u64 words[CPUMASK_WORDS];
};

/* Sets as they are compared. By the CPU on which it is done. */
struct cpu_set cpu_sets[MAX_CPUS];

/* The set of each confinement that is in use. */
struct cpu_set confine_sets[NR_CONFINES];

static __always_inline u64 *set_word(struct cpu_set *set, u32 word)
{
	/* The compiler knows the range and drops the mask; verifiers do not. */
	barrier_var(word);
	return &set->words[word & (CPUMASK_WORDS - 1)];
}

static __always_inline struct cpu_set *confine_set(u32 confine)
{
	barrier_var(confine);
	return &confine_sets[confine & (NR_CONFINES - 1)];
}

static __always_inline bool set_has(struct cpu_set *set, u32 cpu)
{
	return *set_word(set, cpu / 64) >> (cpu & 63) & 1;
}

/* Was @cpu online when the loader laid out the CPUs? */
static __always_inline bool is_known(u32 cpu)
{
	const volatile struct cpu_place *at = place_of(cpu);

	return cpu_at_place(at->word, at->bit) == cpu;
}

/*
 * Read the CPUs of @mask that are known into @set. Returns whether they are all
 * that are known.
 */
static __always_inline bool set_read(struct cpu_set *set,
				     const struct cpumask *mask)
{
	bool all = true;
	u32 cpu;

	bpf_for(cpu, 0, CPUMASK_WORDS)
		*set_word(set, cpu) = 0;
	bpf_for(cpu, 0, scx_bpf_nr_cpu_ids()) {
		if (!is_known(cpu))
			continue;
		if (bpf_cpumask_test_cpu(cpu, mask))
			*set_word(set, cpu / 64) |= 1ULL << (cpu & 63);
		else
			all = false;
	}
	return all;
}

/* FNV-1a over words; on up to 64 CPUs no two sets have the same. */
static __always_inline u64 set_hash(struct cpu_set *set)
{
	u64 hash = 0xcbf29ce484222325ULL;
	u32 i;

	bpf_for(i, 0, CPUMASK_WORDS)
		hash = (hash ^ *set_word(set, i)) * 0x100000001b3ULL;
	return hash;
}

/* A confinement of hash @hash, else a free one, else none: negative. */
static __always_inline s32 confine_find(const struct grq *grq, u64 hash)
{
	s32 found = -ENOSPC;
	u32 i;

	bpf_for(i, 0, NR_CONFINES) {
		const struct confine *confine = confine_at(grq, i);

		if (!confine->users)
			found = i;
		else if (confine->hash == hash)
			return i;
	}
	return found;
}

/*
 * Become a user of @confine. The first finds it @fresh and has to publish it.
 * False if it is another's by now, or not ready.
 */
static __always_inline bool confine_join(struct grq *grq,
					 const struct grq_hold *hold,
					 struct confine *confine, u64 hash,
					 bool *fresh)
{
	grq_needs(grq, hold);
	*fresh = !confine->users;
	if (*fresh) {
		confine->hash = hash;
		confine->ready = false;
	} else if (confine->hash != hash || !confine->ready) {
		return false;
	}
	confine->users++;
	return true;
}

/* Confinement @number is that of @set from now on. */
static __always_inline void confine_publish(struct confine *confine, u32 number,
					    struct cpu_set *set)
{
	u64 bit = 1ULL << (number & 63);
	u32 i;

	bpf_for(i, 0, CPUMASK_WORDS)
		*set_word(confine_set(number), i) = *set_word(set, i);
	bpf_for(i, 0, scx_bpf_nr_cpu_ids()) {
		u64 *confines = &confines_of[i & (MAX_CPUS - 1)];

		if (set_has(set, i))
			__sync_fetch_and_or(confines, bit);
		else
			__sync_fetch_and_and(confines, ~bit);
	}
	*(volatile bool *)&confine->ready = true;
}

static __always_inline bool set_equal(struct cpu_set *a, struct cpu_set *b)
{
	u64 differ = 0;
	u32 i;

	bpf_for(i, 0, CPUMASK_WORDS)
		differ |= *set_word(a, i) ^ *set_word(b, i);
	return !differ;
}

/* A user of the confinement that @home means, if it means one, is gone. */
static __always_inline void confine_put(struct grq *grq, u32 home)
{
	struct grq_hold hold = {};

	if (home < HOME_CONFINE)
		return;
	GRQ_LOCK(grq, &hold);
	confine_at(grq, home - HOME_CONFINE)->users--;
	GRQ_UNLOCK(grq, &hold, slot);
}

/* Where @p is to wait, by the CPUs that it may run on. Global for the verifier. */
__noinline u32 confine_home(const struct task_struct *p __arg_trusted)
{
	struct cpu_set *set =
		&cpu_sets[bpf_get_smp_processor_id() & (MAX_CPUS - 1)];
	struct grq_hold hold = {};
	struct grq *grq = the_grq();
	bool joined, fresh;
	s32 number;
	u64 hash;

	if (set_read(set, p->cpus_ptr))
		return HOME_LLC;
	if (p->nr_cpus_allowed == 1 || !grq)
		return HOME_CPU;
	hash = set_hash(set);
	number = confine_find(grq, hash);
	if (number < 0) {
		count(confine_overflow);
		return HOME_CPU;
	}
	GRQ_LOCK(grq, &hold);
	joined =
		confine_join(grq, &hold, confine_at(grq, number), hash, &fresh);
	GRQ_UNLOCK(grq, &hold, slot);
	if (joined && fresh)
		confine_publish(confine_at(grq, number), number, set);
	if (joined && set_equal(set, confine_set(number)))
		return HOME_CONFINE + number;
	if (joined)
		confine_put(grq, HOME_CONFINE + number);
	count(confine_overflow);
	return HOME_CPU;
}

/* May the tasks of @home, which is no CPU's, run on @cpu? */
static __always_inline bool home_allows(u32 home, u32 cpu)
{
	return home < HOME_CONFINE ||
	       confines_of[cpu & (MAX_CPUS - 1)] >>
			       ((home - HOME_CONFINE) & 63) &
		       1;
}

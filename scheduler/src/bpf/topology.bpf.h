/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Topology: sets of CPUs as words of 64 bits, ordered by distance.
 *
 * Every LLC starts a word of its own and the words of a NUMA node follow one
 * another, so "my LLC", "my node" and "all" are ranges of words. Each word is
 * alone in its cache line: LLCs do not disturb each other.
 */
#pragma once

#include "heddle.bpf.h"

/* Set by the loader. */
const volatile struct cpu_place places[MAX_CPUS];
const volatile u16 cpu_at[MAX_WORDS * CPUS_PER_WORD];
const volatile u32 nr_words = 1;

/* CPUs whose queue offers tasks to others. A hint: it may be set in vain. */
struct offer_word {
	u64 cpus;
} __attribute__((aligned(CACHE_LINE)));

struct offer_word offers[MAX_WORDS];

/* The words that are not zero. */
struct offer_word offered_words;

static __always_inline const volatile struct cpu_place *place_of(u32 cpu)
{
	return &places[cpu & (MAX_CPUS - 1)];
}

static __always_inline u64 *offer_word(u32 word)
{
	return &offers[word & (MAX_WORDS - 1)].cpus;
}

static __always_inline u32 cpu_at_place(u32 word, u32 bit)
{
	u32 seat = word * CPUS_PER_WORD + bit;

	/* The compiler knows the range and drops the mask; verifiers do not. */
	barrier_var(seat);
	return cpu_at[seat & (MAX_WORDS * CPUS_PER_WORD - 1)];
}

/* A CPU of the LLC of @cpu, each as likely as the others. */
static __always_inline u32 random_cpu_of_llc(u32 cpu)
{
	const volatile struct cpu_place *at = place_of(cpu);
	u32 nth = (bpf_get_prandom_u32() >> 16) * at->llc_cpus >> 16;

	return cpu_at_place(at->llc_first, nth);
}

/*
 * Offer the queue of @cpu to the CPUs that look for work. Reading first keeps
 * the cache lines shared while nothing changes.
 */
static __always_inline void offer(u32 cpu)
{
	const volatile struct cpu_place *at = place_of(cpu);
	u64 *word = offer_word(at->word);
	u64 bit = 1ULL << (at->bit & 63), sum_bit = 1ULL << (at->word & 63);

	if (!(*(volatile u64 *)word & bit))
		__sync_fetch_and_or(word, bit);
	if (!(*(volatile u64 *)&offered_words.cpus & sum_bit))
		__sync_fetch_and_or(&offered_words.cpus, sum_bit);
}

static __always_inline void withdraw(u32 cpu)
{
	const volatile struct cpu_place *at = place_of(cpu);
	u64 *word = offer_word(at->word);
	u64 bit = 1ULL << (at->bit & 63), sum_bit = 1ULL << (at->word & 63);

	if (*(volatile u64 *)word & bit)
		__sync_fetch_and_and(word, ~bit);
	if (*(volatile u64 *)word)
		return;
	/* Clear the sum first and look again: an offer may have come between. */
	__sync_fetch_and_and(&offered_words.cpus, ~sum_bit);
	if (*(volatile u64 *)word)
		__sync_fetch_and_or(&offered_words.cpus, sum_bit);
}

/* Does any queue of the machine offer tasks? */
static __always_inline bool any_offer(void)
{
	return *(volatile u64 *)&offered_words.cpus;
}

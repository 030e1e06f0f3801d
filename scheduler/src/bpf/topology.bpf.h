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
const volatile struct word_layout word_layouts[MAX_WORDS];
const volatile u64 all_words = 1; /* those that are in use, as bits of one */

struct cpu_word {
	u64 cpus;
} __attribute__((aligned(CACHE_LINE)));

/* CPUs whose queue offers tasks to others. A hint: it may be set in vain. */
struct cpu_word offers[MAX_WORDS];

/* The words of offers that are not zero. */
struct cpu_word offered_words;

static __always_inline const volatile struct cpu_place *place_of(u32 cpu)
{
	return &places[cpu & (MAX_CPUS - 1)];
}

/*
 * A number within the range of its array. Where the compiler knows that it is, it
 * drops the mask; verifiers do not know.
 */
static __always_inline u32 masked(u32 index, u32 mask)
{
	barrier_var(index);
	return index & mask;
}

static __always_inline const volatile struct word_layout *
word_layout_of(u32 word)
{
	return &word_layouts[masked(word, MAX_WORDS - 1)];
}

/* The CPUs of @word of classes slower than @class. */
static __always_inline u64 slower_than(u32 word, u32 class)
{
	return word_layout_of(word)->slower[class & (NR_CLASSES - 1)];
}

static __always_inline struct cpu_word *word_in(struct cpu_word *words,
						u32 word)
{
	return &words[masked(word, MAX_WORDS - 1)];
}

static __always_inline u64 word_read(const struct cpu_word *word)
{
	return *(const volatile u64 *)&word->cpus;
}

/* The bit of number @n. */
static __always_inline u64 bit_of(u32 n)
{
	return 1ULL << (n & 63);
}

static __always_inline bool word_test(const struct cpu_word *word, u64 bit)
{
	return word_read(word) & bit;
}

/*
 * Set or clear @bit, one such as cpu_place::own; true if this call did. Reading
 * first keeps the cache line shared while nothing changes.
 */
static __always_inline bool word_set(struct cpu_word *word, u64 bit)
{
	return !word_test(word, bit) &&
	       !(__sync_fetch_and_or(&word->cpus, bit) & bit);
}

static __always_inline bool word_clear(struct cpu_word *word, u64 bit)
{
	return word_test(word, bit) &&
	       __sync_fetch_and_and(&word->cpus, ~bit) & bit;
}

static __always_inline u32 cpu_at_place(u32 word, u32 bit)
{
	u32 seat = word * CPUS_PER_WORD + bit;

	return cpu_at[masked(seat, MAX_WORDS * CPUS_PER_WORD - 1)];
}

/* A CPU of the LLC of @cpu, each as likely as the others. */
static __always_inline u32 random_cpu_of_llc(u32 cpu)
{
	const volatile struct cpu_place *at = place_of(cpu);
	u32 nth = (bpf_get_prandom_u32() >> 16) * at->llc_cpus >> 16;

	return cpu_at_place(at->llc_first, nth);
}

/* Offer the queue of @cpu to the CPUs that look for work. */
static __always_inline void offer(u32 cpu)
{
	const volatile struct cpu_place *at = place_of(cpu);

	word_set(word_in(offers, at->word), at->own);
	word_set(&offered_words, bit_of(at->word));
}

static __always_inline void withdraw(u32 cpu)
{
	const volatile struct cpu_place *at = place_of(cpu);
	struct cpu_word *word = word_in(offers, at->word);

	word_clear(word, at->own);
	if (word_read(word))
		return;
	/* Clear the sum first and look again: an offer may have come between. */
	word_clear(&offered_words, bit_of(at->word));
	if (word_read(word))
		word_set(&offered_words, bit_of(at->word));
}

/*
 * The queue of @cpu is empty: withdraw its offer. A task that is queued meanwhile is
 * offered again, since the last look comes after the withdrawal.
 */
static __always_inline void withdraw_empty(u32 cpu)
{
	withdraw(cpu);
	if (scx_bpf_dsq_nr_queued(cpu) > 0)
		offer(cpu);
}

/* Of @words, those with a queue that offers tasks. */
static __always_inline u64 offering(u64 words)
{
	return words & word_read(&offered_words);
}

/* Does any queue of the machine offer tasks? */
static __always_inline bool any_offer(void)
{
	return word_read(&offered_words);
}

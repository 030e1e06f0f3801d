/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A bounded first-in-first-out queue for many producers and many consumers
 * without a lock: D. Vyukov's bounded MPMC queue (1024cores.net, 2010).
 *
 * A slot is free, then taken, then free again for the next lap of the ring;
 * @turn counts these changes and says which end's turn it is. So a full ring is
 * seen without reading the consumers' end, an empty one without the producers',
 * and neither end waits for the other. A call that loses a race gets RING_BUSY.
 * All zeroes is an empty ring.
 */
#pragma once

#include "types.h"

#define RING_SLOTS 64

enum ring_result { RING_OK, RING_EMPTY, RING_FULL, RING_BUSY };

struct ring_item {
	u64 value;
	u64 since; /* when it was put in, ns */
};

struct ring_slot {
	struct ring_item item;
	u64 turn;
};

/* Producers and consumers each have their end on a cache line of its own. */
struct ring {
	u64 tail __attribute__((aligned(64)));
	u64 head __attribute__((aligned(64)));
	struct ring_slot slots[RING_SLOTS] __attribute__((aligned(64)));
};

static inline struct ring_slot *ring_slot(struct ring *ring, u64 position)
{
	return &ring->slots[position & (RING_SLOTS - 1)];
}

/* The turn at which the slot of @position is to be filled. */
static inline u64 ring_turn(u64 position)
{
	return position / RING_SLOTS * 2;
}

static inline u64 ring_load(const u64 *from)
{
	return *(const volatile u64 *)from;
}

/* How far the slot of @tail is from being free: 0 it is, less it is taken still. */
static inline s64 ring_late(struct ring *ring, u64 tail)
{
	return ring_load(&ring_slot(ring, tail)->turn) - ring_turn(tail);
}

/* Would ring_put() say that there is no room? */
static inline bool ring_is_full(struct ring *ring)
{
	return ring_late(ring, ring_load(&ring->tail)) < 0;
}

/* Append @item. */
static __always_inline enum ring_result ring_put(struct ring *ring,
						 struct ring_item item)
{
	u64 tail = ring_load(&ring->tail);
	struct ring_slot *slot = ring_slot(ring, tail);
	s64 late = ring_late(ring, tail);

	if (late < 0)
		return RING_FULL;
	if (late > 0 ||
	    __sync_val_compare_and_swap(&ring->tail, tail, tail + 1) != tail)
		return RING_BUSY;
	slot->item = item;
	__sync_lock_test_and_set(&slot->turn, ring_turn(tail) + 1);
	return RING_OK;
}

/* Take the oldest item out. */
static inline enum ring_result ring_get(struct ring *ring,
					struct ring_item *item)
{
	u64 head = ring_load(&ring->head);
	struct ring_slot *slot = ring_slot(ring, head);
	s64 late = ring_load(&slot->turn) - (ring_turn(head) + 1);

	if (late < 0)
		return RING_EMPTY;
	if (late > 0 ||
	    __sync_val_compare_and_swap(&ring->head, head, head + 1) != head)
		return RING_BUSY;
	*item = slot->item;
	__sync_lock_test_and_set(&slot->turn, ring_turn(head) + 2);
	return RING_OK;
}

/* Since when the oldest item is in. False if there seems to be none. */
static inline bool ring_oldest(struct ring *ring, u64 *since)
{
	u64 head = ring_load(&ring->head);
	struct ring_slot *slot = ring_slot(ring, head);

	if (ring_load(&slot->turn) != ring_turn(head) + 1)
		return false;
	*since = ring_load(&slot->item.since);
	return true;
}

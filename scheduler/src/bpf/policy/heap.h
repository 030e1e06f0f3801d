/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Heaps of tasks by key, meldable and without allocation.
 *
 * A heap is a binary tree in an array of nodes, no node before its parent. The
 * one operation is to meld two heaps: the root that comes first stays, and the
 * other heap is melded with one of its children, chosen by a coin. A random way
 * down a binary tree of n nodes is log2(n + 1) long at most on average, whatever
 * its shape (Gambin and Malinowski 1998), so nothing has to be kept in balance.
 * To push is to meld with a heap of one, to remove to meld the children.
 *
 * Node 0 is none. A heap hangs on a node that is not part of it, its head.
 */
#pragma once

#include "deadline.h"

#ifndef __bpf__
#define can_loop true
#endif

#define HEAP_NODES (1U << NODE_BITS)

struct heap_node {
	u64 key;
	u32 parent;
	u32 child[2];
	/* The task's, for grq.bpf.h. */
	s32 pid;
	u32 left_ns; /* of its slice */
	u16 lane; /* where it waits, + 1, or 0 */
	u16 home; /* enum home */
};

static inline struct heap_node *heap_at(struct heap_node *nodes, u32 n)
{
	return &nodes[n & NODE_MASK];
}

static inline void heap_hang(struct heap_node *nodes, u32 parent, u32 side,
			     u32 n)
{
	heap_at(nodes, parent)->child[side & 1] = n;
	if (n)
		heap_at(nodes, n)->parent = parent;
}

/* The first of the heap at @head, or 0. */
static inline u32 heap_first(struct heap_node *nodes, u32 head)
{
	return heap_at(nodes, head)->child[0];
}

/* Meld heaps @a and @b into one that is the child @side of @parent. */
static inline void heap_meld(struct heap_node *nodes, u32 parent, u32 side,
			     u32 a, u32 b, u64 coins)
{
	while (a && b && can_loop) {
		u32 first = a, other = b;

		if (vt_before(heap_at(nodes, b)->key, heap_at(nodes, a)->key)) {
			first = b;
			other = a;
		}
		heap_hang(nodes, parent, side, first);
		parent = first;
		side = coins >> 63;
		coins = coins << 1 | side;
		a = heap_at(nodes, first)->child[side & 1];
		b = other;
	}
	heap_hang(nodes, parent, side, a ? a : b);
}

/* Add node @n to the heap at @head. */
static inline void heap_push(struct heap_node *nodes, u32 head, u32 n,
			     u64 coins)
{
	struct heap_node *node = heap_at(nodes, n);

	node->child[0] = 0;
	node->child[1] = 0;
	heap_meld(nodes, head, 0, heap_first(nodes, head), n, coins);
}

/* Take node @n out of the heap that it is in. */
static inline void heap_remove(struct heap_node *nodes, u32 n, u64 coins)
{
	struct heap_node *node = heap_at(nodes, n);
	u32 parent = node->parent;
	u32 side = heap_at(nodes, parent)->child[1] == n;

	heap_meld(nodes, parent, side, node->child[0], node->child[1], coins);
}

/* The next coins: a linear congruential generator (Knuth's MMIX). */
static inline u64 heap_coins(u64 coins)
{
	return coins * 6364136223846793005ULL + 1442695040888963407ULL;
}

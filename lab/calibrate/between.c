/* SPDX-License-Identifier: GPL-2.0-only */
/* What two CPUs take between them: a cache line that moves, an interrupt, a wakeup. */
#define _GNU_SOURCE
#include <err.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "calibrate.h"

#define BOUNCES 200
#define BARRIERS 20
/* A turn that takes so long is over: the other thread does not run. */
#define PATIENCE_NS 2000000

static const int idle_us[] = { 0, 20, 50, 100, 200, 500, 1000, 2000, 5000 };

struct peer {
	_Alignas(128) atomic_int line;
	_Alignas(128) atomic_bool done;
	atomic_bool ready;
	_Alignas(128) atomic_ullong woken_ns;
	int cpu;
	pthread_t thread;
};

static void start(struct peer *peer, void *(*body)(void *))
{
	if (pthread_create(&peer->thread, NULL, body, peer))
		err(1, "thread");
	/* It begins on this CPU, and goes to its own only if this one sleeps. */
	while (!atomic_load(&peer->ready))
		nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
}

/* What each other thread does first. */
static void settle(struct peer *peer, void (*rank)(void))
{
	pin(peer->cpu);
	rank();
	atomic_store(&peer->ready, true);
}

static void stop(struct peer *peer)
{
	atomic_store(&peer->done, true);
	atomic_fetch_add(&peer->line, 1);
	syscall(SYS_futex, &peer->line, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL,
		0);
	pthread_join(peer->thread, NULL);
}

/* Answers each odd value with the next even one. */
static void *bounce(void *context)
{
	struct peer *peer = context;

	settle(peer, outrank);
	while (!atomic_load_explicit(&peer->done, memory_order_relaxed)) {
		int seen =
			atomic_load_explicit(&peer->line, memory_order_acquire);

		if (seen & 1)
			atomic_store_explicit(&peer->line, seen + 1,
					      memory_order_release);
	}
	return NULL;
}

/* There and back a few hundred times: each way is one message through the line. */
static double bounces(void *context)
{
	struct peer *peer = context;
	int value = atomic_load(&peer->line);
	uint64_t begin = now_ns();

	for (int i = 0; i < BOUNCES; i++) {
		atomic_store_explicit(&peer->line, value + 1,
				      memory_order_release);
		for (unsigned int turn = 1;
		     atomic_load_explicit(&peer->line, memory_order_acquire) !=
		     value + 2;
		     turn++)
			if (turn % 4096 == 0 && now_ns() - begin > PATIENCE_NS)
				sched_yield();
		value += 2;
	}
	return (double)(now_ns() - begin) / (2 * BOUNCES);
}

void measure_lines(int one, int other, enum distance distance)
{
	struct peer peer = { .cpu = other };
	char name[32];

	pin(one);
	outrank();
	snprintf(name, sizeof(name), "line_%s", distance_names[distance]);
	start(&peer, bounce);
	measure(name, bounces, &peer);
	stop(&peer);
}

static void *spin(void *context)
{
	struct peer *peer = context;

	settle(peer, outrank);
	while (!atomic_load_explicit(&peer->done, memory_order_relaxed))
		__asm__ volatile("pause");
	return NULL;
}

/* The kernel interrupts each other CPU that runs this process, and waits for all: one interrupt there and back. */
static double barriers(void *context)
{
	uint64_t begin = now_ns();

	(void)context;
	for (int i = 0; i < BARRIERS; i++)
		if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0,
			    0))
			err(1, "membarrier");
	return (double)(now_ns() - begin) / BARRIERS;
}

/* Sleeps on the line, and says when it was awake again. */
static void *sleeper(void *context)
{
	struct peer *peer = context;
	int seen = atomic_load(&peer->line);

	settle(peer, be_ordinary);
	while (!atomic_load(&peer->done)) {
		while (atomic_load(&peer->line) == seen)
			syscall(SYS_futex, &peer->line, FUTEX_WAIT_PRIVATE,
				seen, NULL, NULL, 0);
		seen = atomic_load(&peer->line);
		atomic_store(&peer->woken_ns, now_ns());
	}
	return NULL;
}

struct wakeup {
	struct peer *peer;
	int idle_us;
};

/* From the call that wakes a task on a CPU that has idled for some time until the task runs. */
static double wakeups(void *context)
{
	struct wakeup *wakeup = context;
	struct peer *peer = wakeup->peer;
	uint64_t until = now_ns() + 30000 + (uint64_t)wakeup->idle_us * 1000,
		 begin;

	while (now_ns() < until)
		__asm__ volatile("pause");
	atomic_store(&peer->woken_ns, 0);
	begin = now_ns();
	atomic_fetch_add(&peer->line, 1);
	syscall(SYS_futex, &peer->line, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	while (atomic_load(&peer->woken_ns) == 0)
		if (now_ns() - begin > PATIENCE_NS)
			sched_yield();
	return (double)(atomic_load(&peer->woken_ns) - begin);
}

void measure_wakeups(int one, int other)
{
	struct peer peer = { .cpu = other };
	struct wakeup wakeup = { .peer = &peer };
	char name[32];

	pin(one);
	outrank();
	if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED,
		    0, 0) == 0) {
		start(&peer, spin);
		measure("interrupt", barriers, NULL);
		stop(&peer);
	}
	be_ordinary();
	peer.done = peer.ready = false;
	start(&peer, sleeper);
	for (size_t i = 0; i < sizeof(idle_us) / sizeof(*idle_us); i++) {
		wakeup.idle_us = idle_us[i];
		snprintf(name, sizeof(name), "wake_%d", idle_us[i]);
		measure(name, wakeups, &wakeup);
	}
	stop(&peer);
}

/* SPDX-License-Identifier: GPL-2.0-only */
/* What one CPU takes: instructions, kernel entries, switches between tasks, timers. */
#define _GNU_SOURCE
#include <err.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>
#include "calibrate.h"

/* Operations of a batch: so many that the clock costs nothing, so few that most batches are undisturbed. */
#define MANY 20000
#define SOME 1000
#define PAGES 256
#define ROUNDS 50

#define SLEEP_NS 100000

void pin(int cpu)
{
	size_t size = CPU_ALLOC_SIZE(8192);
	cpu_set_t *set = CPU_ALLOC(8192);

	CPU_ZERO_S(size, set);
	CPU_SET_S((size_t)cpu, size, set);
	if (sched_setaffinity(0, size, set))
		err(1, "pin to CPU %d", cpu);
	CPU_FREE(set);
}

void outrank(void)
{
	struct sched_param first = { .sched_priority = 1 };

	if (sched_setscheduler(0, SCHED_FIFO, &first))
		be_ordinary();
}

void be_ordinary(void)
{
	struct sched_param none = { 0 };

	sched_setscheduler(0, SCHED_OTHER, &none);
	setpriority(PRIO_PROCESS, 0, -20);
}

/* Two instructions a turn, of which the processor executes one turn a cycle. */
static double turns(void *context)
{
	uint64_t start = now_ns(), left = MANY;

	(void)context;
	__asm__ volatile("1: dec %0; jnz 1b" : "+r"(left) : : "cc");
	return (double)(now_ns() - start) / MANY;
}

static double plain_adds(void *context)
{
	uint64_t start = now_ns(), *line = context;

	for (int i = 0; i < MANY; i++)
		__asm__ volatile("addq $1, %0" : "+m"(*line) : : "cc");
	return (double)(now_ns() - start) / MANY;
}

static double locked_adds(void *context)
{
	uint64_t start = now_ns(), *line = context;

	for (int i = 0; i < MANY; i++)
		__asm__ volatile("lock addq $1, %0"
				 : "+m"(*line)
				 :
				 : "cc", "memory");
	return (double)(now_ns() - start) / MANY;
}

void measure_instructions(int cpu)
{
	static uint64_t line __attribute__((aligned(64)));

	pin(cpu);
	outrank();
	measure("turn", turns, NULL);
	measure("add", plain_adds, &line);
	measure("locked_add", locked_adds, &line);
}

/* The C library does not remember this one's answer. */
static double syscalls(void *context)
{
	uint64_t start = now_ns();

	(void)context;
	for (int i = 0; i < SOME; i++)
		syscall(SYS_getppid);
	return (double)(now_ns() - start) / SOME;
}

/* Reads of untouched memory: each maps the page of zeros, and nothing is allocated or cleared. */
static double faults(void *context)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	volatile char *memory = context;
	uint64_t start, end;

	if (madvise(context, PAGES * page, MADV_DONTNEED))
		err(1, "madvise");
	start = now_ns();
	for (size_t i = 0; i < PAGES; i++)
		(void)memory[i * page];
	end = now_ns();
	return (double)(end - start) / PAGES;
}

void measure_kernel_entries(int cpu)
{
	size_t size = PAGES * (size_t)sysconf(_SC_PAGESIZE);
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		err(1, "mmap");
	madvise(memory, size, MADV_NOHUGEPAGE);
	pin(cpu);
	outrank();
	measure("syscall", syscalls, NULL);
	measure("fault", faults, memory);
	munmap(memory, size);
}

struct pipes {
	int there[2];
	int back[2];
};

static void pass(int from, int to)
{
	char byte;

	if (read(from, &byte, 1) != 1 || write(to, &byte, 1) != 1)
		_exit(0);
}

static void *echo(void *context)
{
	struct pipes *pipes = context;

	for (;;)
		pass(pipes->there[0], pipes->back[1]);
	return NULL;
}

/* A byte to another task on the same CPU and back: two switches, of which one is returned. */
static double switches(void *context)
{
	struct pipes *pipes = context;
	uint64_t start = now_ns();
	char byte = 0;

	for (int i = 0; i < ROUNDS; i++)
		if (write(pipes->there[1], &byte, 1) != 1 ||
		    read(pipes->back[0], &byte, 1) != 1)
			err(1, "pipe");
	return (double)(now_ns() - start) / (2 * ROUNDS);
}

void measure_switches(int cpu)
{
	struct pipes pipes;
	pthread_t thread;
	pid_t child;

	pin(cpu);
	be_ordinary();
	if (pipe(pipes.there) || pipe(pipes.back))
		err(1, "pipe");
	child = fork();
	if (child < 0)
		err(1, "fork");
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		echo(&pipes);
	}
	measure("switch_process", switches, &pipes);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	if (pthread_create(&thread, NULL, echo, &pipes))
		err(1, "thread");
	measure("switch_thread", switches, &pipes);
	pthread_cancel(thread);
	pthread_join(thread, NULL);
}

/* How much longer than asked a sleep takes. */
static double slack(void *context)
{
	struct timespec sleep = { .tv_nsec = SLEEP_NS };
	uint64_t start = now_ns();

	(void)context;
	clock_nanosleep(CLOCK_MONOTONIC, 0, &sleep, NULL);
	return (double)(now_ns() - start) - SLEEP_NS;
}

void measure_timer(int cpu)
{
	pin(cpu);
	prctl(PR_SET_TIMERSLACK, 1);
	measure("timer_slack", slack, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * The guest of the clock's tests and of bench.py: the only program in its
 * machine, run as init.  The kernel command line says what to do, as in
 * probe=spin,8,8,1000000 (init finds it in its environment); it prints one line
 * per fact, "@name value...", on the console and powers off.
 *
 *   spin THREADS CPUS INSNS   THREADS threads, pinned round robin to CPUS CPUs,
 *                             each executing INSNS instructions;
 *                             @spin thread start_ns end_ns
 *   wake CPUS COUNT SEED      every CPU wakes every other, which sleeps, COUNT
 *                             times at random intervals; @wake waker wakee
 *                             mean_ns
 *   lock CPUS COUNT           CPUS CPUs take one spinlock COUNT times each;
 *                             @lock elapsed_ns
 *   timer COUNT NS            COUNT sleeps of NS; @timer mean_ns max_ns
 *   bounce A B COUNT          a thread goes to and fro between two CPUs COUNT
 *                             times and executes 20,000 instructions after
 *                             each; @bounce least_ns mean_ns, of one time
 *   idle NS                   sleep
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <linux/reboot.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_CPUS 1024

static int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000LL + ts.tv_nsec;
}

static void sleep_ns(int64_t ns)
{
	struct timespec ts = { ns / 1000000000, ns % 1000000000 };

	nanosleep(&ts, NULL);
}

static void pin(int cpu)
{
	cpu_set_t *set = CPU_ALLOC(MAX_CPUS);

	CPU_ZERO_S(CPU_ALLOC_SIZE(MAX_CPUS), set);
	CPU_SET_S(cpu, CPU_ALLOC_SIZE(MAX_CPUS), set);
	if (sched_setaffinity(0, CPU_ALLOC_SIZE(MAX_CPUS), set))
		perror("sched_setaffinity");
	CPU_FREE(set);
}

/* Two instructions an iteration, nothing but registers. */
static void execute(uint64_t insns)
{
	uint64_t n = insns / 2;

	asm volatile("1: dec %0\n\tjnz 1b" : "+r"(n) : : "cc");
}

static void futex_wait(atomic_int *word, int value)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(atomic_int *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

struct worker {
	pthread_t thread;
	int index, cpus, peers, count;
	uint64_t insns;
	int64_t start, end, sum, stamp;
	atomic_int word;
};

static struct worker workers[4 * MAX_CPUS];
static pthread_barrier_t gate;
static pthread_spinlock_t lock;

static void run_workers(int n, void *(*fn)(void *))
{
	pthread_attr_t attr;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 64 << 10);
	pthread_barrier_init(&gate, NULL, n);
	for (int i = 0; i < n; i++) {
		workers[i].index = i;
		if (pthread_create(&workers[i].thread, &attr, fn, &workers[i]))
			perror("pthread_create");
	}
	for (int i = 0; i < n; i++)
		pthread_join(workers[i].thread, NULL);
}

static void *spin_thread(void *arg)
{
	struct worker *w = arg;

	pin(w->index % w->cpus);
	pthread_barrier_wait(&gate);
	w->start = now_ns();
	execute(w->insns);
	w->end = now_ns();
	return NULL;
}

static void spin(int threads, int cpus, uint64_t insns)
{
	for (int i = 0; i < threads; i++) {
		workers[i].cpus = cpus;
		workers[i].insns = insns;
	}
	run_workers(threads, spin_thread);
	for (int i = 0; i < threads; i++)
		printf("@spin %d %lld %lld\n", i, (long long)workers[i].start,
		       (long long)workers[i].end);
}

/* Sleeps until woken, COUNT times; its waker leaves the time in stamp. */
static void *wakee_thread(void *arg)
{
	struct worker *w = arg;

	pin(w->cpus);
	for (int i = 0; i < w->count; i++) {
		while (atomic_load(&w->word) == i)
			futex_wait(&w->word, i);
		w->sum += now_ns() - w->stamp;
	}
	return NULL;
}

static void wake_pair(int waker, int wakee, int count, uint32_t random)
{
	struct worker *w = &workers[0];

	memset(w, 0, sizeof(*w));
	w->cpus = wakee;
	w->count = count;
	pin(waker);
	pthread_create(&w->thread, NULL, wakee_thread, w);
	for (int i = 0; i < count; i++) {
		/* any phase within the quantum, and time to halt */
		random = random * 1664525 + 1013904223;
		sleep_ns(100000 + random % 50000);
		if (i == count / 10)
			w->sum = 0; /* the first tenth warms up */
		w->stamp = now_ns();
		atomic_store(&w->word, i + 1);
		futex_wake(&w->word);
	}
	pthread_join(w->thread, NULL);
	printf("@wake %d %d %lld\n", waker, wakee,
	       (long long)(w->sum / (count - count / 10)));
}

static void wake(int cpus, int count, uint32_t seed)
{
	for (int waker = 0; waker < cpus; waker++)
		for (int wakee = 0; wakee < cpus; wakee++)
			if (waker != wakee)
				wake_pair(waker, wakee, count, seed);
}

static void *lock_thread(void *arg)
{
	struct worker *w = arg;

	pin(w->index);
	pthread_barrier_wait(&gate);
	for (int i = 0; i < w->count; i++) {
		pthread_spin_lock(&lock);
		execute(200);
		pthread_spin_unlock(&lock);
		execute(2000);
	}
	return NULL;
}

static void lock_test(int cpus, int count)
{
	int64_t start = now_ns();

	pthread_spin_init(&lock, PTHREAD_PROCESS_PRIVATE);
	for (int i = 0; i < cpus; i++)
		workers[i].count = count;
	run_workers(cpus, lock_thread);
	printf("@lock %lld\n", (long long)(now_ns() - start));
}

static void bounce(int a, int b, int count)
{
	int64_t least = INT64_MAX, sum = 0;

	pin(b);
	for (int i = 0; i < count; i++) {
		int64_t start = now_ns(), elapsed;

		pin(i % 2 ? b : a);
		execute(20000);
		elapsed = now_ns() - start;
		sum += elapsed;
		least = elapsed < least ? elapsed : least;
	}
	printf("@bounce %lld %lld\n", (long long)least,
	       (long long)(sum / count));
}

static void timer(int count, int64_t ns)
{
	int64_t sum = 0, max = 0;

	for (int i = 0; i < count; i++) {
		int64_t start = now_ns(), late;

		sleep_ns(ns);
		late = now_ns() - start - ns;
		sum += late;
		max = late > max ? late : max;
	}
	printf("@timer %lld %lld\n", (long long)(sum / count), (long long)max);
}

static void command(char *text)
{
	const char *name = strtok(text, ",");
	long long arg[3] = { 0 };

	for (int i = 0; i < 3; i++) {
		const char *field = strtok(NULL, ",");

		if (!field)
			break;
		arg[i] = atoll(field);
	}
	if (!strcmp(name, "spin"))
		spin(arg[0], arg[1], arg[2]);
	else if (!strcmp(name, "wake"))
		wake(arg[0], arg[1], arg[2]);
	else if (!strcmp(name, "lock"))
		lock_test(arg[0], arg[1]);
	else if (!strcmp(name, "timer"))
		timer(arg[0], arg[1]);
	else if (!strcmp(name, "bounce"))
		bounce(arg[0], arg[1], arg[2]);
	else if (!strcmp(name, "idle"))
		sleep_ns(arg[0]);
}

int main(void)
{
	char *text = getenv("probe");

	prctl(PR_SET_TIMERSLACK, 1);
	printf("@ready %lld %ld\n", (long long)now_ns(),
	       sysconf(_SC_NPROCESSORS_ONLN));
	if (text)
		command(text);
	printf("@done %lld\n", (long long)now_ns());
	fflush(stdout);
	reboot(RB_POWER_OFF);
}

/* SPDX-License-Identifier: GPL-2.0-only */
/* Shared by the files of heddle-calibrate. */
#ifndef CALIBRATE_H
#define CALIBRATE_H

#include <stdbool.h>
#include <stdint.h>

/* How far two CPUs are apart: the nearest level that they share. */
enum distance { SMT, LLC, NODE, REMOTE, DISTANCES };

extern const char *const distance_names[DISTANCES];

struct cpu {
	int number;
	char core[256]; /* CPU lists, as text: equal texts are equal sets */
	char llc[256];
	int node;
};

struct machine {
	struct cpu *cpus;
	int count;
};

/* Reads the CPUs that this process may use; exits if /sys does not tell. */
struct machine read_machine(void);

/* The first two CPUs at a distance; false if there are none. */
bool pair_at(const struct machine *machine, enum distance distance, int *one,
	     int *other);

/* One measurement: returns nanoseconds of one operation, the mean over a short batch. */
typedef double batch(void *context);

/*
 * Repeats a batch until the interval of its low quantile is narrow or the time is over, and prints
 * a JSON object: the quantile, which other load hardly moves, its 95 % interval, least and median.
 */
void measure(const char *name, batch *run, void *context);

/* Sets how long each measurement may take at most. */
void set_budget_ms(double ms);

/* Monotonic clock, ns. */
uint64_t now_ns(void);

/* Pins the calling thread to a CPU. */
void pin(int cpu);

/* Runs the calling thread before ordinary tasks if that is allowed; its measurements are short. */
void outrank(void);

/* Makes the calling thread an ordinary one, of high weight if that is allowed: it is the scheduler that is measured. */
void be_ordinary(void);

/* Measurements on one CPU, and between two. */
void measure_instructions(int cpu);
void measure_kernel_entries(int cpu);
void measure_switches(int cpu);
void measure_timer(int cpu);
void measure_lines(int one, int other, enum distance distance);
void measure_wakeups(int one, int other);

#endif

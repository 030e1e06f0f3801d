/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * heddle-calibrate: measures what a machine's hardware and kernel take, and prints JSON.
 *
 *   heddle-calibrate [MS [ROUNDS]]    at most so many ms for each measurement, so many times;
 *                                     default 1000 and 9
 *
 * A static program without input: it runs where it is copied to, and in a guest.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "calibrate.h"

struct times {
	unsigned long long busy, idle, stolen;
};

/* What all CPUs did since the machine was booted, in ticks (proc_stat(5)). */
static struct times read_times(void)
{
	unsigned long long user = 0, nice = 0, system = 0, idle = 0, iowait = 0,
			   irq = 0, softirq = 0, steal = 0;
	FILE *file = fopen("/proc/stat", "r");

	if (file) {
		if (fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu",
			   &user, &nice, &system, &idle, &iowait, &irq,
			   &softirq, &steal) != 8)
			idle = 0;
		fclose(file);
	}
	return (struct times){ user + nice + system + irq + softirq,
			       idle + iowait, steal };
}

static double load_average(void)
{
	double load[1] = { 0 };

	getloadavg(load, 1);
	return load[0];
}

static void measure_all(const struct machine *machine)
{
	int first = machine->cpus[0].number, one, other;
	bool woken = false;

	measure_instructions(first);
	measure_kernel_entries(first);
	measure_switches(first);
	measure_timer(first);
	for (enum distance distance = SMT; distance < DISTANCES; distance++)
		if (pair_at(machine, distance, &one, &other)) {
			measure_lines(one, other, distance);
			if (distance != SMT && !woken) {
				measure_wakeups(one, other);
				woken = true;
			}
		}
}

int main(int count, char **words)
{
	struct machine machine = read_machine();
	struct times before, after;
	double load = load_average(), all;

	double ms = count > 1 ? atof(words[1]) : 1000;
	int rounds = count > 2 ? atoi(words[2]) : 9;

	if (count > 3 || ms <= 0 || rounds < 1) {
		fprintf(stderr, "usage: heddle-calibrate [MS [ROUNDS]]\n");
		return 2;
	}
	set_budget_ms(ms);
	mlockall(MCL_CURRENT);
	printf("{\"version\": 1, \"cpus\": %d, \"load_average\": %.2f, "
	       "\"measures\": [",
	       machine.count, load);
	before = read_times();
	for (int round = 0; round < rounds; round++)
		measure_all(&machine);
	after = read_times();
	all = (double)(after.busy - before.busy + after.idle - before.idle +
		       after.stolen - before.stolen);
	printf("\n], \"stolen\": %.4f}\n",
	       all > 0 ? (double)(after.stolen - before.stolen) / all : 0.0);
	free(machine.cpus);
	return 0;
}

/* SPDX-License-Identifier: GPL-2.0-only */
/* Which CPUs there are, and how far they are apart: from /sys. */
#define _GNU_SOURCE
#include <err.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "calibrate.h"

#define CPUS "/sys/devices/system/cpu"

const char *const distance_names[DISTANCES] = { "smt", "core", "llc", "node" };

static bool read_line(const char *path, char *text, size_t size)
{
	FILE *file = fopen(path, "r");
	bool found = file && fgets(text, (int)size, file);

	if (file)
		fclose(file);
	if (found)
		text[strcspn(text, "\n")] = '\0';
	return found;
}

/* The CPUs that share the last level of cache; one without caches shares its own with the package. */
static void read_llc(int cpu, char *text, size_t size)
{
	char path[128];

	snprintf(path, sizeof(path), CPUS "/cpu%d/topology/package_cpus_list",
		 cpu);
	if (!read_line(path, text, size))
		snprintf(text, size, "all");
	for (int index = 0; index < 8; index++) {
		snprintf(path, sizeof(path),
			 CPUS "/cpu%d/cache/index%d/shared_cpu_list", cpu,
			 index);
		read_line(path, text, size);
	}
}

static int read_node(int cpu)
{
	char path[128];

	for (int node = 0; node < 1024; node++) {
		snprintf(path, sizeof(path), CPUS "/cpu%d/node%d", cpu, node);
		if (access(path, F_OK) == 0)
			return node;
	}
	return 0;
}

struct machine read_machine(void)
{
	struct machine machine = { 0 };
	size_t size = CPU_ALLOC_SIZE(8192);
	cpu_set_t *allowed = CPU_ALLOC(8192);
	char path[128];

	if (!allowed || sched_getaffinity(0, size, allowed))
		err(1, "which CPUs may be used");
	machine.cpus = calloc((size_t)CPU_COUNT_S(size, allowed),
			      sizeof(*machine.cpus));
	if (!machine.cpus)
		err(1, "memory");
	for (int number = 0; number < 8192; number++) {
		struct cpu *cpu = &machine.cpus[machine.count];

		if (!CPU_ISSET_S(number, size, allowed))
			continue;
		cpu->number = number;
		snprintf(path, sizeof(path),
			 CPUS "/cpu%d/topology/thread_siblings_list", number);
		if (!read_line(path, cpu->core, sizeof(cpu->core)))
			errx(1, "%s cannot be read", path);
		read_llc(number, cpu->llc, sizeof(cpu->llc));
		cpu->node = read_node(number);
		machine.count++;
	}
	CPU_FREE(allowed);
	return machine;
}

static enum distance apart(const struct cpu *one, const struct cpu *other)
{
	if (strcmp(one->core, other->core) == 0)
		return SMT;
	if (strcmp(one->llc, other->llc) == 0)
		return LLC;
	return one->node == other->node ? NODE : REMOTE;
}

bool pair_at(const struct machine *machine, enum distance distance, int *one,
	     int *other)
{
	for (int i = 0; i < machine->count; i++)
		for (int j = i + 1; j < machine->count; j++)
			if (apart(&machine->cpus[i], &machine->cpus[j]) ==
			    distance) {
				*one = machine->cpus[i].number;
				*other = machine->cpus[j].number;
				return true;
			}
	return false;
}

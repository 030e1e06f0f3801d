/* SPDX-License-Identifier: GPL-2.0-only */
/* Repeats a measurement until it is stable, and prints it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "calibrate.h"

#define LEAST 40
#define MOST 4000
#define QUANTILE 0.1
/* An interval of this part of the value is narrow enough. */
#define NARROW 0.01

static double budget_ms;
static bool first = true;

void set_budget_ms(double ms)
{
	budget_ms = ms;
}

uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static int ascending(const void *left, const void *right)
{
	double a = *(const double *)left, b = *(const double *)right;

	return (a > b) - (a < b);
}

/* Ranks between which the quantile lies with 95 % probability: the binomial distribution's, as a normal one. */
static void interval(const double *sorted, int count, double *low, double *high)
{
	double middle = count * QUANTILE,
	       reach = 1.96 * sqrt(count * QUANTILE * (1 - QUANTILE));
	int from = (int)floor(middle - reach), to = (int)ceil(middle + reach);

	*low = sorted[from < 0 ? 0 : from];
	*high = sorted[to >= count ? count - 1 : to];
}

void measure(const char *name, batch *run, void *context)
{
	static double samples[MOST], sorted[MOST];
	uint64_t end = now_ns() + (uint64_t)(budget_ms * 1e6);
	double low = 0, high = 0;
	int count = 0;

	run(context); /* caches and branches are warm from now on */
	while (count < MOST) {
		samples[count++] = run(context);
		if (count % LEAST)
			continue;
		for (int i = 0; i < count; i++)
			sorted[i] = samples[i];
		qsort(sorted, (size_t)count, sizeof(*sorted), ascending);
		interval(sorted, count, &low, &high);
		if (now_ns() >= end ||
		    (count >= 4 * LEAST && high - low <= NARROW * high))
			break;
	}
	printf("%s\n  {\"name\": \"%s\", \"ns\": %.3f, \"low\": %.3f, "
	       "\"high\": %.3f, \"least\": %.3f, "
	       "\"median\": %.3f, \"samples\": %d}",
	       first ? "" : ",", name, sorted[(int)(count * QUANTILE)], low,
	       high, sorted[0], sorted[count / 2], count);
	fflush(stdout);
	first = false;
}

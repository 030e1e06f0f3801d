/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Rescue: tasks whose CPU does not come to run them, while others could.
 *
 * A CPU that would idle looks for work first (pull). Three things may keep it from a task
 * that waits elsewhere, and each has its remedy here:
 *
 *   - it looked in vain, or rests from that. Each tick of the CPU where tasks wait asks an
 *     idle CPU where one of them may run.
 *   - another class has taken the CPU where they wait, for how long nobody knows. It has no
 *     tick of ours, asks for no task, and keeps what was sent there past the queues. A timer
 *     moves its tasks to CPUs that serve us, a few at a time.
 *   - that CPU is on its way out. The core calls ops.dispatch no more from when it is
 *     inactive, but ops.cpu_offline a grace period of RCU later (sched_cpu_deactivate() in
 *     kernel/sched/core.c): more than 11 s were seen. Meanwhile it idles. No callback tells of
 *     it, so each tick looks after one CPU; one that idles beside its queue, and RESCUE_NS
 *     later still, is handed it.
 */
#pragma once

#include "heddle.bpf.h"
#include "bandwidth.bpf.h"
#include "idle.bpf.h"
#include "pull.bpf.h"
#include "release.bpf.h"
#include "runq.bpf.h"
#include "timer.bpf.h"

/* From one look at taken CPUs to the next. */
#define RESCUE_AGAIN_NS 500000ULL

/* Tasks that leave a taken CPU at a time, and how many are looked at. */
#define RESCUE_MOVES 4
#define RESCUE_LOOKS 64

/* CPUs that are tried for each. */
#define RESCUE_TRIES 8

/* How many CPUs have been looked after: the next is it, modulo the number of CPUs. */
u32 looked_after;

/* The CPU that was found idle beside its queue, or NO_CPU. */
#define NO_CPU ((u32) - 1)
u32 stranded_cpu = NO_CPU;

/*
 * ops.update_idle: this CPU has just marked itself idle. A task that was queued after
 * pull_newidle() looked is offered by now, unless its enqueue sees this CPU's idle bit.
 * One that was queued here, as one that is refused a move is, may be offered no more:
 * another CPU, where it may not run, has withdrawn it.
 */
static __always_inline void recheck_offers(s32 cpu)
{
	const struct cpu_ctx *c = cpu_ctx(cpu);

	if (c->nr_queued || (may_pull_from(cpu, c) && !pull_rests(c)))
		kick(cpu, 0);
}

/* @p waits on @cpu: have an idle CPU of @words look for it. Global, as it loops. */
__noinline bool rescue_by_idle(const struct task_struct *p __arg_trusted,
			       u32 cpu, u64 words)
{
	s32 idle_cpu;

	if (p->nr_cpus_allowed == 1)
		return false;
	if (just_began(p, cpu))
		words &= words_within(cpu, REACH_LLC);
	idle_cpu = words ? idle_among(p, cpu, words) : -ENOENT;
	if (idle_cpu < 0)
		return false;
	cpu_ctx(idle_cpu)->pull_asked = true;
	kick(idle_cpu, SCX_KICK_IDLE);
	return true;
}

/*
 * Renew the offer of the tasks that wait on @cpu, this CPU, and wake an idle CPU where
 * one of the first may run. Global, so that the verifier looks at it once.
 */
__noinline int rescue_queue(u32 cpu)
{
	u64 words = words_for_waiter(cpu, REACH_MACHINE);
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct task_struct *p;

	offer(cpu);
	if (!words)
		return 0;
	c->looks = 0;
	bpf_for_each(scx_dsq, p, cpu, 0) {
		if (!may_look(c, PULL_LOOKS_ASKED))
			break;
		if (rescue_by_idle(p, cpu, words)) {
			count_by(wasted_idle_ns, tick_ns);
			break;
		}
	}
	return 0;
}

/* Does @cpu idle although tasks wait for it, or may again that were parked? */
static __always_inline bool is_stranded(u32 cpu)
{
	return idle_state_of(cpu) == STATE_IDLE &&
	       (scx_bpf_dsq_nr_queued(cpu) > 0 || cpu_ctx(cpu)->release);
}

/* ops.tick, of any CPU: look after one */
static __always_inline void rescue_another(void)
{
	u32 cpu = ++looked_after % scx_bpf_nr_cpu_ids();

	if (is_taken(cpu) && scx_bpf_dsq_nr_queued(cpu) > 0) {
		timer_arm(TIMER_RESCUE, RESCUE_NS);
		return;
	}
	if (!is_stranded(cpu))
		return;
	count_by(wasted_idle_ns, tick_ns);
	stranded_cpu = cpu;
	timer_arm(TIMER_RESCUE, RESCUE_NS);
}

/* ops.tick: the task that runs on @cpu goes on while others wait */
static __always_inline void rescue_waiting(u32 cpu)
{
	if (cpu_ctx(cpu)->offered && scx_bpf_dsq_nr_queued(cpu) > 0)
		rescue_queue(cpu);
}

/* May @p, which waits or is parked, go elsewhere? */
static __always_inline bool may_move(const struct task_struct *p)
{
	return p->nr_cpus_allowed > 1 && !is_migration_disabled(p);
}

/*
 * One of those @online that serves us and may run @p, of a few: if one idles, that. Not one
 * where a task waits past the queue: the kernel runs those first, however many they are.
 */
static __always_inline s32 refuge_of(const struct task_struct *p,
				     const struct cpumask *online)
{
	s32 refuge = -EBUSY;
	u32 try;

	bpf_for(try, 0, RESCUE_TRIES) {
		u32 cpu = bpf_cpumask_any_and_distribute(p->cpus_ptr, online);

		if (cpu >= scx_bpf_nr_cpu_ids() || is_taken(cpu) ||
		    cpu_ctx(cpu)->offline ||
		    scx_bpf_dsq_nr_queued(SCX_DSQ_LOCAL_ON | cpu) > 0)
			continue;
		refuge = cpu;
		if (idle_state_of(cpu) == STATE_IDLE)
			break;
	}
	return refuge;
}

/*
 * From now on @p is parked on @cpu, which serves us. Its group may not run yet, and once it
 * may, that may be too short for all parked tasks of a taken CPU to leave it.
 */
static __always_inline void park_elsewhere(struct bpf_iter_scx_dsq *it,
					   struct task_struct *p, u32 cpu)
{
	scx_bpf_dsq_move(it, p, PARK_DSQ + cpu, 0);
	/* Last: @cpu clears it, then looks. */
	cpu_ctx(cpu)->parked = true;
}

/* The timer's counts: in memory, the verifier need not follow them through the loop. */
struct {
	u32 looks, moves;
} evacuated;

/*
 * Move tasks of the queue @dsq_id, whose CPU is taken, to CPUs that serve us. @parked: it is
 * the queue of the parked ones. The verifier takes the programs of timers for sleepable:
 * what needs RCU is inline here.
 */
__noinline int evacuate(u64 dsq_id, bool parked)
{
	const struct cpumask *online;
	struct task_struct *p;

	evacuated.looks = 0;
	evacuated.moves = 0;
	online = scx_bpf_get_online_cpumask();
	bpf_rcu_read_lock();
	bpf_for_each(scx_dsq, p, dsq_id, 0) {
		s32 to;

		if (evacuated.moves == RESCUE_MOVES ||
		    evacuated.looks++ == RESCUE_LOOKS)
			break;
		to = may_move(p) ? refuge_of(p, online) : -EBUSY;
		if (to < 0)
			continue;
		if (is_stopped(p, !parked)) {
			if (parked)
				park_elsewhere(BPF_FOR_EACH_ITER, p, to);
			continue;
		}
		scx_bpf_dsq_move_set_slice(BPF_FOR_EACH_ITER, slice_ns);
		if (scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p,
				     SCX_DSQ_LOCAL_ON | to, 0))
			count(rescued);
		evacuated.moves++;
		kick(to, SCX_KICK_IDLE);
	}
	bpf_rcu_read_unlock();
	scx_bpf_put_cpumask(online);
	return 0;
}

/* Move what waits for the taken @cpu. True: something may be left. */
__noinline bool rescue_from(u32 cpu)
{
	bool waits = scx_bpf_dsq_nr_queued(cpu) > 0;
	bool parked = cgroup_flat && scx_bpf_dsq_nr_queued(PARK_DSQ + cpu) > 0;

	if (!is_taken(cpu))
		return false;
	if (waits)
		evacuate(cpu, false);
	if (parked)
		evacuate(PARK_DSQ + cpu, true);
	return waits || parked;
}

static __always_inline void hand_over_queue(u64 dsq_id, s32 cpu)
{
	struct task_struct *p;

	bpf_for_each(scx_dsq, p, dsq_id, 0)
		scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu,
				 0);
}

/* Put all that waits for @cpu on the CPU itself. The rq lock is not held. */
static __always_inline void hand_over(s32 cpu)
{
	hand_over_queue(cpu, cpu);
	if (cgroup_flat)
		hand_over_queue(PARK_DSQ + cpu, cpu);
}

static int rescue(void *map, u32 *id, struct timer_slot *slot)
{
	u32 cpu, nr_cpus = scx_bpf_nr_cpu_ids();
	bool again = false;

	timer_runs(slot);
	bpf_for(cpu, 0, nr_cpus)
		again |= rescue_from(cpu);
	cpu = __sync_lock_test_and_set(&stranded_cpu, NO_CPU);
	bpf_rcu_read_lock();
	if (cpu != NO_CPU && is_stranded(cpu)) {
		hand_over(cpu);
		/* Older kernels do not wake it for that. */
		kick(cpu, 0);
	}
	bpf_rcu_read_unlock();
	if (again)
		timer_arm(TIMER_RESCUE, RESCUE_AGAIN_NS);
	return 0;
}

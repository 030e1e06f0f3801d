/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Stopping a task in user mode, where it holds no lock of the kernel.
 *
 * A task that an interrupt finds there, and that is preempted as that returns, may be
 * parked for as long as it takes. Three things tell of it:
 *
 *   - at a tick, the registers that the interrupt saved;
 *   - where a task is preempted, the way by which it has entered the kernel: on x86, the
 *     return address below its user registers. By a system call or a fault it may be
 *     anywhere, and hold anything;
 *   - from Linux 6.18 on, the task itself. It is asked to call stop_leaving() as task work:
 *     on its way to user mode, or where a long system call runs such work. A task that stops
 *     in the call may not migrate, and waits for its CPU even if another class takes that. So
 *     the first call only has a timer look for the task a moment later, in user mode. If it
 *     is in the kernel again by then, it stops in the next call.
 */
#pragma once

#include "heddle.bpf.h"
#include "release.bpf.h"

/* The registers of the context that this CPU's interrupt came from. */
extern struct pt_regs *__irq_regs __ksym __weak;

/* Top of the kernel stack of the task that runs on this CPU (from 6.15 on). */
extern unsigned long cpu_current_top_of_stack __ksym __weak;

/* After so many looks in short succession, a millisecond passes from one to the next. */
#define STOP_LOOKS 16

/* Interrupts by which a CPU is asked to schedule: asm/irq_vectors.h. */
#define SCHEDULE_VECTORS 3
static const u8 schedule_vectors[SCHEDULE_VECTORS] = { 0xec /* timer */,
						       0xf6 /* irq_work */,
						       0xfd /* reschedule */ };

/* The kernel's code for each, or 0 where it is not known. */
u64 schedule_entries[SCHEDULE_VECTORS];

/* Such an entry is a dozen instructions. */
#define ENTRY_BYTES 128

/*
 * ops.init: find the entries in the kernel's table of interrupts, which is mapped at the same
 * address on all of x86-64 (asm/cpu_entry_area.h). By name they would be found in
 * /proc/kallsyms alone, and to read that takes as long as half of a load.
 */
static __always_inline void stop_find_entries(void)
{
#if defined(__TARGET_ARCH_x86)
	const struct gate_struct *table = (void *)0xfffffe0000000000ULL;
	struct gate_struct gate;
	u32 i;

	for (i = 0; i < SCHEDULE_VECTORS; i++) {
		if (bpf_probe_read_kernel(&gate, sizeof(gate),
					  &table[schedule_vectors[i]]))
			continue;
		schedule_entries[i] = (u64)gate.offset_high << 32 |
				      (u64)gate.offset_middle << 16 |
				      gate.offset_low;
	}
#endif
}

static __always_inline bool is_schedule_entry(u64 address)
{
	u32 i;

	for (i = 0; i < SCHEDULE_VECTORS; i++)
		if (schedule_entries[i] &&
		    address - schedule_entries[i] < ENTRY_BYTES)
			return true;
	return false;
}

/* Has @p, the current task, come into the kernel by an interrupt that asks to schedule? */
static __always_inline bool came_by_interrupt(const struct task_struct *p)
{
	u64 *top, entered = 0;

	if (p != bpf_get_current_task_btf() || !&cpu_current_top_of_stack)
		return false;
	/* Its requests' completions run on the way to user mode, and may lock. */
	if (p->io_uring)
		return false;
	/* In stop_leaving(), of which it soon comes to an end. */
	if (is_migration_disabled(p))
		return false;
	top = bpf_this_cpu_ptr(&cpu_current_top_of_stack);
	bpf_probe_read_kernel(&entered, sizeof(entered),
			      (void *)(*top -
				       bpf_core_type_size(struct pt_regs) -
				       sizeof(entered)));
	return is_schedule_entry(entered);
}

/* Did this CPU's interrupt, a tick, come while it was in user mode? */
static __always_inline bool tick_hit_user_mode(void)
{
	struct pt_regs **regs, *at;

	if (!&__irq_regs)
		return false;
	regs = bpf_this_cpu_ptr(&__irq_regs);
	at = *regs;
#if defined(__TARGET_ARCH_x86)
	return at && (BPF_CORE_READ(at, cs) & 3) == 3;
#elif defined(__TARGET_ARCH_arm64)
	return at && !(BPF_CORE_READ(at, pstate) & 0xf);
#else
	return false;
#endif
}

/*
 * Is @p, which is preempted on the CPU of @c, on its way to user mode? Only the current task
 * is: what was found of another one may be out of date.
 */
static __always_inline bool is_at_user(const struct cpu_ctx *c,
				       const struct task_struct *p)
{
	return p == bpf_get_current_task_btf() &&
	       (c->at_user == p->pid || came_by_interrupt(p));
}

/* One for each task that has been asked and has not stopped yet, by thread id. */
struct stop_request {
	struct bpf_task_work work;
	bool looked_for; /* it has called, and may be found in user mode */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, s32);
	__type(value, struct stop_request);
} stop_requests SEC(".maps");

/* From 7.0 on the last argument is implied, and the function has the name without _impl. */
typedef int (*stop_callback)(struct bpf_map *map, void *key, void *value);
extern int bpf_task_work_schedule_resume(struct task_struct *task,
					 struct bpf_task_work *work, void *map,
					 stop_callback callback) __ksym __weak;
extern int bpf_task_work_schedule_resume_impl(struct task_struct *task,
					      struct bpf_task_work *work,
					      void *map, stop_callback callback,
					      void *aux) __ksym __weak;

extern void bpf_preempt_disable(void) __ksym __weak;
extern void bpf_preempt_enable(void) __ksym __weak;

/* linux/sched.h */
#define PF_USER_WORKER 0x00004000

/* Can @p be asked to stop? Threads that only work for a process in the kernel do not leave it. */
static __always_inline bool can_stop_leaving(const struct task_struct *p)
{
	bool implied = bpf_ksym_exists(bpf_task_work_schedule_resume);

	/* The verifier refuses the OR of addresses that the compiler would make of it. */
	barrier_var(implied);
	if (p->flags & (PF_IO_WORKER | PF_USER_WORKER))
		return false;
	return implied || bpf_ksym_exists(bpf_task_work_schedule_resume_impl);
}

/* When a task that has called is looked for, ns: the way to user mode takes less. */
#define STOP_SOON_NS 20000

struct stop_timer {
	struct bpf_timer timer;
};

/* By CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct stop_timer);
} stop_timers SEC(".maps");

static int stop_look(void *map, u32 *key, struct stop_timer *slot)
{
	u32 cpu = bpf_get_smp_processor_id();

	if (cpu_ctx(cpu)->stop_looks)
		kick(cpu, SCX_KICK_PREEMPT);
	return 0;
}

static __always_inline void stop_look_soon(u32 cpu)
{
	struct stop_timer *slot = bpf_map_lookup_elem(&stop_timers, &cpu);

	if (slot)
		bpf_timer_start(&slot->timer, STOP_SOON_NS,
				BPF_F_TIMER_CPU_PIN);
}

/* ops.init */
static __always_inline s32 stop_init(u32 cpu)
{
	struct stop_timer *slot = bpf_map_lookup_elem(&stop_timers, &cpu);
	s32 err;

	if (!slot)
		return -ENOENT;
	err = bpf_timer_init(&slot->timer, &stop_timers, CLOCK_MONOTONIC);
	return err ?: bpf_timer_set_callback(&slot->timer, stop_look);
}

/*
 * The task that runs here holds no lock. If it is to stop, a look for it in user mode comes
 * soon, or, where one came before, it is preempted. Not within the kick, where it is a reader
 * of RCU: every grace period would wait. On a CPU that another class takes of late it goes
 * on: it could not leave.
 */
static int stop_leaving(struct bpf_map *map, void *key, void *value)
{
	struct stop_request *request = value;
	u32 cpu = bpf_get_smp_processor_id();
	s32 pid = bpf_get_current_pid_tgid();
	struct cpu_ctx *c = cpu_ctx(cpu);

	if (!c->stop_looks || may_be_kept(cpu))
		return 0;
	if (!request->looked_for) {
		request->looked_for = true;
		stop_look_soon(cpu);
		return 0;
	}
	bpf_map_delete_elem(&stop_requests, &pid);
	c->at_user = pid;
	bpf_preempt_disable();
	kick(cpu, SCX_KICK_PREEMPT);
	bpf_preempt_enable();
	return 0;
}

/* Ask @p to stop, unless it has been asked. False if there is no room for the request. */
static __always_inline bool stop_ask(const struct task_struct *p)
{
	struct task_struct *task = (struct task_struct *)p;
	struct stop_request *request, none = {};
	s32 pid = p->pid;

	request = bpf_map_lookup_elem(&stop_requests, &pid);
	if (!request) {
		bpf_map_update_elem(&stop_requests, &pid, &none, BPF_NOEXIST);
		request = bpf_map_lookup_elem(&stop_requests, &pid);
	}
	if (!request)
		return false;
	if (bpf_ksym_exists(bpf_task_work_schedule_resume))
		bpf_task_work_schedule_resume(task, &request->work,
					      &stop_requests, stop_leaving);
	else if (bpf_ksym_exists(bpf_task_work_schedule_resume_impl))
		bpf_task_work_schedule_resume_impl(task, &request->work,
						   &stop_requests, stop_leaving,
						   NULL);
	return true;
}

/* @p has stopped, or is not ours any more: it need not call. */
static __always_inline void stop_done(const struct task_struct *p)
{
	s32 pid = p->pid;

	if (can_stop_leaving(p))
		bpf_map_delete_elem(&stop_requests, &pid);
}

/* ops.disable */
static __always_inline void stop_exit_task(const struct task_struct *p)
{
	struct cpu_ctx *c = cpu_ctx(cpu_of_task(p));

	if (!cgroup_flat)
		return;
	if (c->at_user == p->pid)
		c->at_user = 0;
	stop_done(p);
}

/* ops.tick: @p, which runs on this CPU, stops here if it is to and is in user mode. */
static __always_inline void stop_tick(struct cpu_ctx *c, struct task_struct *p)
{
	if (!c->stop_looks || p != bpf_get_current_task_btf() ||
	    !tick_hit_user_mode())
		return;
	c->at_user = p->pid;
	scx_bpf_task_set_slice(p, 0);
}

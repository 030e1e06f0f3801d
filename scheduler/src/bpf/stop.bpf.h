/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Stopping a task in user mode, where it holds no lock of the kernel.
 *
 * A task that an interrupt finds there, and that is preempted as that returns, may be
 * parked for as long as it takes. Two things tell of it:
 *
 *   - at a tick, the registers that the interrupt saved;
 *   - where a task is preempted, the way by which it has entered the kernel: on x86, the
 *     return address below its user registers. By a system call or a fault it may be
 *     anywhere, and hold anything.
 */
#pragma once

#include "heddle.bpf.h"

/* The registers of the context that this CPU's interrupt came from. */
extern struct pt_regs *__irq_regs __ksym __weak;

/* Top of the kernel stack of the task that runs on this CPU (from 6.15 on). */
extern unsigned long cpu_current_top_of_stack __ksym __weak;

/* After so many looks in short succession, a millisecond passes from one to the next. */
#define STOP_LOOKS 16

/* Entries of the interrupts by which a CPU is asked to schedule (x86). */
extern const void asm_sysvec_reschedule_ipi __ksym __weak;
extern const void asm_sysvec_apic_timer_interrupt __ksym __weak;
extern const void asm_sysvec_irq_work __ksym __weak;

/* Such an entry is a dozen instructions. */
#define ENTRY_BYTES 128

static __always_inline bool is_within(u64 address, const void *entry)
{
	return entry && address - (u64)entry < ENTRY_BYTES;
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
	top = bpf_this_cpu_ptr(&cpu_current_top_of_stack);
	bpf_probe_read_kernel(&entered, sizeof(entered),
			      (void *)(*top -
				       bpf_core_type_size(struct pt_regs) -
				       sizeof(entered)));
	return is_within(entered, &asm_sysvec_reschedule_ipi) ||
	       is_within(entered, &asm_sysvec_apic_timer_interrupt) ||
	       is_within(entered, &asm_sysvec_irq_work);
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

/* Is @p, which is preempted on the CPU of @c, on its way to user mode? */
static __always_inline bool is_at_user(const struct cpu_ctx *c,
				       const struct task_struct *p)
{
	return c->at_user == p->pid || came_by_interrupt(p);
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

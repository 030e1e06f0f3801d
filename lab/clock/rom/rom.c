// SPDX-License-Identifier: GPL-2.0-only
/*
 * The guest of the clock's exact tests: no kernel, no firmware, so that every
 * instruction between two readings of the TSC (1 tick = 1 virtual ns) is known.
 * All CPUs run the scenarios below in order, with a barrier between them; each
 * prints its facts, "@name number...", on the debug console.
 */
#include <stdbool.h>
#include <stdint.h>

#define MAX_CPUS 64
#define INTERRUPT __attribute__((interrupt, target("general-regs-only")))
#define SCENARIO __attribute__((unused)) static void
#define APIC(reg) (*(volatile uint32_t *)(0xfee00000 + (reg)))
#define EOI 0xb0
#define SPURIOUS 0xf0
#define ICR_LOW 0x300
#define ICR_HIGH 0x310
#define LVT_TIMER 0x320
#define TIMER_COUNT 0x380
#define TIMER_DIVIDE 0x3e0

#define VECTOR_IPI 0x40
#define VECTOR_TIMER 0x41
#define VECTOR_COMPUTE 0x42
#define VECTOR_REARM 0x43
#define VECTOR_SENDERS 0x50

#define WAKES 100
#define TIMERS 300
#define WAITS 100
#define LOCK_NS 2000000
#define COMPUTE_INSNS 1000000
#define TASK 0x5000 /* where a CPU's task is in the segment GS; see guests.py */

struct stat {
	uint32_t count;
	int32_t min, max, sum;
};

struct frame {
	uint32_t ip, cs, flags;
};

static uint64_t idt[256];
static int online;
static volatile int arrived, generation;
static volatile uint64_t stamp; /* when what is waited for was caused */
static volatile int taken; /* interrupts taken */
static volatile bool flag;
static volatile int turn;
static struct stat stat;
static int lock;
static uint32_t acquired[MAX_CPUS];
static uint32_t spent[MAX_CPUS];
static volatile int backwards;
static volatile uint32_t rest; /* ECX when VECTOR_COMPUTE was taken */
static uint32_t seed;

static uint64_t tsc(void)
{
	uint32_t low, high;

	asm volatile("rdtsc" : "=a"(low), "=d"(high) : : "memory");
	return (uint64_t)high << 32 | low;
}

static uint32_t random_below(uint32_t n)
{
	seed = seed * 1664525 + 1013904223;
	return (seed >> 8) % n;
}

/* Two instructions an iteration. */
static void execute(uint32_t insns)
{
	uint32_t n = insns / 2;

	asm volatile("1: dec %0\n\tjnz 1b" : "+r"(n) : : "cc");
}

/* COMPUTE; returns what it leaves in ECX. */
static uint32_t compute(uint32_t insns)
{
	asm volatile(".byte 0x0f, 0x1f, 0x80, 0x63, 0x6f, 0x6d, 0x70"
		     : "+c"(insns)
		     :
		     : "memory");
	return insns;
}

static void outb(uint16_t port, uint8_t value)
{
	asm volatile("outb %0, %1" : : "a"(value), "Nd"(port));
}

static void print(const char *text)
{
	while (*text)
		outb(0xe9, *text++);
}

static void print_number(int32_t value)
{
	char digits[12], *p = digits + sizeof(digits) - 1;
	uint32_t rest = value < 0 ? -(uint32_t)value : (uint32_t)value;

	*p = '\0';
	do {
		*--p = '0' + rest % 10;
		rest /= 10;
	} while (rest);
	if (value < 0)
		*--p = '-';
	print(" ");
	print(p);
}

static void stat_add(int32_t value)
{
	if (!stat.count || value < stat.min)
		stat.min = value;
	if (!stat.count || value > stat.max)
		stat.max = value;
	stat.sum += value;
	stat.count++;
}

static void print_stat(const char *name, int a, int b)
{
	print(name);
	print_number(a);
	print_number(b);
	print_number(stat.min);
	print_number(stat.max);
	print_number(stat.sum / (int32_t)stat.count);
	print("\n");
	stat.count = stat.sum = 0;
}

static INTERRUPT void on_interrupt(struct frame *frame)
{
	stat_add((int32_t)(tsc() - stamp));
	APIC(EOI) = 0;
	taken++;
	(void)frame;
}

void on_compute(void);
asm("on_compute:\n\tmovl %ecx, rest\n\tjmp on_interrupt");

/* Of two senders: when each has sent, and how many of its interrupts are taken. */
static volatile uint64_t sent[2];
static volatile int received[2];

static void receive(int sender)
{
	stat_add((int32_t)(tsc() - sent[sender]));
	APIC(EOI) = 0;
	received[sender]++;
}

static INTERRUPT void on_sender_0(struct frame *frame)
{
	receive(0);
	(void)frame;
}

static INTERRUPT void on_sender_1(struct frame *frame)
{
	receive(1);
	(void)frame;
}

/* A timer of the taker's own, which lets in what waits. */
static INTERRUPT void on_rearm(struct frame *frame)
{
	APIC(EOI) = 0;
	APIC(TIMER_COUNT) = 700;
	(void)frame;
}

static void set_gate(int vector, uint32_t handler)
{
	/* an interrupt gate of the code segment, selector 8 */
	idt[vector] = (uint64_t)((handler & 0xffff0000) | 0x8e00) << 32 |
		      0x80000 | (handler & 0xffff);
}

static void send_vector(int cpu, int vector, volatile uint64_t *when)
{
	APIC(ICR_HIGH) = (uint32_t)cpu << 24;
	*when = tsc();
	APIC(ICR_LOW) = vector;
}

static void send_ipi(int cpu)
{
	send_vector(cpu, VECTOR_IPI, &stamp);
}

static void barrier(void)
{
	int mine = generation;

	if (__atomic_add_fetch(&arrived, 1, __ATOMIC_SEQ_CST) == online) {
		arrived = 0;
		generation = mine + 1;
	}
	while (generation == mine)
		asm volatile("pause" : : : "memory");
}

/* Every CPU executes 2,000,000 instructions: @spin cpu elapsed */
SCENARIO scenario_spin(int cpu)
{
	uint64_t start;

	barrier();
	start = tsc();
	execute(2000000);
	spent[cpu] = tsc() - start;
	barrier();
	for (int i = 0; !cpu && i < online; i++) {
		print("@spin");
		print_number(i);
		print_number(spent[i]);
		print("\n");
	}
}

/*
 * One CPU interrupts another, WAKES times at any phase of the quantum, while
 * the others wait or compute: @name waker wakee min max mean, of the time from
 * before the write of the ICR to the first instruction of the handler.
 */
static void interrupt_pair(int cpu, int waker, int wakee, bool halt, bool load)
{
	if (!cpu)
		taken = 0;
	barrier();
	if (cpu == waker) {
		for (int i = 0; i < WAKES; i++) {
			execute(30000 + random_below(20000));
			send_ipi(wakee);
			while (taken == i)
				execute(100);
		}
	} else if (cpu == wakee) {
		asm volatile("sti");
		while (taken < WAKES) {
			if (halt)
				asm volatile("hlt" : : : "memory");
			else
				execute(100);
		}
		asm volatile("cli");
	} else if (load) {
		while (taken < WAKES)
			execute(100);
	}
	barrier();
	if (!cpu)
		print_stat(!halt  ? "@interrupt"
			   : load ? "@wake_loaded"
				  : "@wake",
			   waker, wakee);
}

SCENARIO scenario_interrupt(int cpu, bool halt, bool load)
{
	for (int waker = 0; waker < online; waker++)
		for (int wakee = 0; wakee < online; wakee++)
			if (waker != wakee)
				interrupt_pair(cpu, waker, wakee, halt, load);
}

/*
 * Two CPUs, one twice as often as the other, interrupt a third one, whose own
 * timer does so as well: @senders taker min max mean, as above.
 */
SCENARIO scenario_senders(int cpu)
{
	for (int taker = 0; taker < online; taker++) {
		int sender = (cpu - taker + online) % online - 1;

		if (!cpu)
			received[0] = received[1] = 0;
		barrier();
		if (sender == 0 || sender == 1) {
			for (int i = 0; i < WAKES; i++) {
				execute(3000 +
					random_below(20000) / (sender + 1));
				send_vector(taker, VECTOR_SENDERS + sender,
					    &sent[sender]);
				while (received[sender] == i)
					execute(100);
			}
		} else if (cpu == taker) {
			APIC(LVT_TIMER) = VECTOR_REARM;
			APIC(TIMER_COUNT) = 700;
			asm volatile("sti");
			while (received[0] < WAKES ||
			       (online > 2 && received[1] < WAKES))
				execute(100);
			asm volatile("cli");
			APIC(TIMER_COUNT) = 0;
			asm volatile(
				"sti; nop; cli"); /* what may be left of the timer */
			APIC(TIMER_COUNT) = 0;
			APIC(LVT_TIMER) = VECTOR_TIMER;
		}
		barrier();
		if (!cpu)
			print_stat("@senders", taker, 2);
	}
}

/* Let an interrupt in, waiting for it if @halt. */
static void take_interrupt(bool halt)
{
	/* One asm each: STI holds interrupts off for one more instruction. */
	if (halt)
		asm volatile("sti; hlt; cli" ::: "memory");
	else
		asm volatile("sti; nop; cli" ::: "memory");
}

/*
 * Each CPU in turn arms its timer, TIMERS times, while the others compute:
 * @timer cpu halted min max mean, of the time from expiry to the handler.
 */
SCENARIO scenario_timer(int cpu, bool halt)
{
	for (int owner = 0; owner < online; owner++) {
		if (!cpu)
			taken = 0;
		barrier();
		for (int i = 0; cpu == owner && i < TIMERS; i++) {
			uint32_t delay = 500 + random_below(30000);

			stamp = tsc() + delay;
			APIC(TIMER_COUNT) = delay;
			while (taken == i)
				take_interrupt(halt);
		}
		while (taken < TIMERS)
			execute(100);
		barrier();
		if (!cpu)
			print_stat("@timer", owner, halt);
	}
}

/*
 * CPU 0 sets a flag after DELAY instructions, another waits for it with PAUSE:
 * @pause cpu delay min max mean, of the time from setting to seeing it.
 */
SCENARIO scenario_pause(int cpu, int32_t delay)
{
	for (int waiter = 1; waiter < online; waiter++) {
		for (int i = 0; i < WAITS; i++) {
			flag = false;
			barrier();
			if (cpu == 0) {
				execute(delay + random_below(5000));
				stamp = tsc();
				flag = true;
			} else if (cpu == waiter) {
				while (!flag)
					asm volatile("pause" : : : "memory");
				stat_add((int32_t)(tsc() - stamp));
			}
			barrier();
		}
		if (!cpu)
			print_stat("@pause", waiter, delay);
	}
}

/* All CPUs take one lock for LOCK_NS: @lock cpu times */
SCENARIO scenario_lock(int cpu)
{
	uint64_t end;

	barrier();
	end = tsc() + LOCK_NS;
	while (tsc() < end) {
		while (__atomic_exchange_n(&lock, 1, __ATOMIC_SEQ_CST))
			asm volatile("pause" : : : "memory");
		execute(300);
		__atomic_store_n(&lock, 0, __ATOMIC_SEQ_CST);
		acquired[cpu]++;
		execute(3000);
	}
	barrier();
	for (int i = 0; !cpu && i < online; i++) {
		print("@lock");
		print_number(i);
		print_number(acquired[i]);
		print("\n");
	}
}

/* The TSC of a CPU never goes back, whatever interrupts it: @backwards count */
SCENARIO scenario_monotonic(int cpu)
{
	uint64_t last = tsc();

	barrier();
	asm volatile("sti");
	for (int i = 0; i < 10000; i++) {
		uint64_t now = tsc();

		if (now < last)
			__atomic_add_fetch(&backwards, 1, __ATOMIC_SEQ_CST);
		last = now;
		if (i % 100 == 0)
			send_ipi((cpu + 1) % online);
	}
	asm volatile("cli");
	barrier();
	if (!cpu) {
		stat.count = stat.sum = 0;
		print("@backwards");
		print_number(backwards);
		print("\n");
	}
}

/*
 * Every CPU executes COMPUTE, for a single instruction up to 200 quanta:
 * @compute cpu insns spent left, which is what ECX was afterwards
 */
SCENARIO scenario_compute(int cpu)
{
	static const uint32_t lengths[] = { 1, 1000, 12345, 2000000 };
	static uint32_t left[MAX_CPUS];

	for (int i = 0; i < 4; i++) {
		uint64_t start;

		barrier();
		start = tsc();
		left[cpu] = compute(lengths[i]);
		spent[cpu] = tsc() - start;
		barrier();
		for (int j = 0; !cpu && j < online; j++) {
			print("@compute");
			print_number(j);
			print_number(lengths[i]);
			print_number(spent[j]);
			print_number(left[j]);
			print("\n");
		}
	}
}

/*
 * Each CPU in turn arms its timer and executes COMPUTE, while the others do:
 * @interrupted cpu delay late left spent, of the time from arming to the
 * handler, how much that was too late, ECX then, and the time to the end.
 */
SCENARIO scenario_interrupted(int cpu)
{
	take_interrupt(false); /* the last of scenario_monotonic() */
	APIC(LVT_TIMER) = VECTOR_COMPUTE;
	for (int owner = 0; owner < online; owner++) {
		for (int i = 0; i < 10; i++) {
			uint32_t delay = 1000 + i * 7001;
			uint64_t start;

			barrier();
			if (cpu != owner) {
				compute(COMPUTE_INSNS);
				barrier();
				continue;
			}
			stat.count = stat.sum = 0;
			start = tsc();
			stamp = start + delay;
			APIC(TIMER_COUNT) = delay;
			asm volatile("sti");
			compute(COMPUTE_INSNS);
			asm volatile("cli");
			spent[cpu] = tsc() - start;
			barrier();
			print("@interrupted");
			print_number(cpu);
			print_number(delay);
			print_number(stat.sum);
			print_number(rest);
			print_number(spent[cpu]);
			print("\n");
		}
	}
	barrier();
	stat.count = stat.sum = 0;
	APIC(LVT_TIMER) = VECTOR_TIMER;
}

/*
 * A task goes from each CPU to the next, and executes COMPUTE there:
 * @move cpu spent
 */
SCENARIO scenario_move(int cpu)
{
	for (int owner = 0; owner < online; owner++) {
		barrier();
		if (cpu == owner) {
			uint64_t start = tsc();

			asm volatile("movl %0, %%gs:%c1"
				     :
				     : "r"(&seed), "i"(TASK)
				     : "memory");
			compute(COMPUTE_INSNS);
			spent[cpu] = tsc() - start;
		}
		barrier();
	}
	for (int i = 0; !cpu && i < online; i++) {
		print("@move");
		print_number(i);
		print_number(spent[i]);
		print("\n");
	}
}

#define LINE_NS 2000000

/* For LINE_NS, add one to a word, and again; returns how often. */
static uint32_t count_up(volatile uint32_t *word)
{
	uint64_t end = tsc() + LINE_NS;
	uint32_t count = 0;

	while (tsc() < end) {
		__atomic_add_fetch(word, 1, __ATOMIC_SEQ_CST);
		count++;
	}
	return count;
}

/*
 * All CPUs count up one word, then each a word of its own line, and then read
 * a line that none writes any more: @shared, @separate, @read cpu count or ns
 */
SCENARIO scenario_lines(int cpu)
{
	static struct {
		volatile uint32_t word;
		uint8_t rest[60];
	} lines[MAX_CPUS + 2] __attribute__((aligned(64)));
	static uint32_t shared[MAX_CPUS], separate[MAX_CPUS], reads[MAX_CPUS];
	uint64_t start;

	barrier();
	shared[cpu] = count_up(&lines[MAX_CPUS].word);
	barrier();
	separate[cpu] = count_up(&lines[cpu].word);
	if (!cpu)
		lines[MAX_CPUS + 1].word = 1;
	barrier();
	execute(50000); /* the barrier's lines are at rest */
	start = tsc();
	for (int i = 0; i < 1000; i++)
		(void)lines[MAX_CPUS + 1].word;
	reads[cpu] = tsc() - start;
	barrier();
	for (int i = 0; !cpu && i < online; i++) {
		print("@lines");
		print_number(i);
		print_number(shared[i]);
		print_number(separate[i]);
		print_number(reads[i]);
		print("\n");
	}
}

#define HANDOFFS 100

/*
 * CPU 0 adds one to a word every 10 us, CPU 1 reads it 5 us later: @handoff cpu ns,
 * the time of all accesses of each
 */
SCENARIO scenario_handoff(int cpu)
{
	static volatile uint32_t word __attribute__((aligned(64)));
	static uint64_t begin __attribute__((aligned(64)));
	uint64_t when;

	if (!cpu)
		begin = tsc() + 100000;
	barrier();
	when = begin + 5000 * cpu;
	spent[cpu] = 0;
	for (int i = 0; cpu < 2 && i < HANDOFFS; i++) {
		uint64_t start;

		when += 10000;
		while (tsc() < when)
			;
		start = tsc();
		if (!cpu)
			word++;
		else
			(void)word;
		spent[cpu] += tsc() - start;
	}
	barrier();
	for (int i = 0; !cpu && i < 2; i++) {
		print("@handoff");
		print_number(i);
		print_number(spent[i]);
		print("\n");
	}
}

/*
 * Execute a loop of two instructions, @turns times, in user mode; returns how long
 * it took. SYSEXIT and SYSENTER take flat segments, whatever the GDT says.
 */
static uint32_t in_user_mode(uint32_t turns)
{
	uint32_t ns;

	asm volatile("movl $0x174, %%ecx\n\tmovl $8, %%eax\n\t"
		     "xorl %%edx, %%edx\n\twrmsr\n\t"
		     "movl $0x175, %%ecx\n\tmovl %%esp, %%eax\n\twrmsr\n\t"
		     "movl $0x176, %%ecx\n\tmovl $3f, %%eax\n\twrmsr\n\t"
		     "movl %%esp, %%ecx\n\tmovl $1f, %%edx\n\tsysexit\n"
		     "1:\trdtsc\n\tmovl %%eax, %%esi\n"
		     "2:\tdec %%ebx\n\tjnz 2b\n\t"
		     "rdtsc\n\tsubl %%esi, %%eax\n\tmovl %%eax, %%edi\n\t"
		     "sysenter\n"
		     "3:"
		     : "+b"(turns), "=D"(ns)
		     :
		     : "eax", "ecx", "edx", "esi", "cc", "memory");
	return ns;
}

static INTERRUPT void on_invalid(struct frame *frame)
{
	frame->ip += 2; /* of UD2 */
}

#define ENTRIES 100

/*
 * Each CPU in turn enters its kernel, ENTRIES times in each way: @entry cpu, and
 * the time for system calls, exceptions, switches of the address space, and
 * interrupts of its own; @mode cpu, and the time of 100,000 instructions in the
 * kernel and in user mode.
 */
SCENARIO scenario_entry(int cpu)
{
	uint64_t times[6];
	uint32_t cr3, user;

	set_gate(6, (uint32_t)on_invalid);
	for (int owner = 0; owner < online; owner++) {
		barrier();
		if (cpu != owner) {
			barrier();
			continue;
		}
		times[0] = tsc();
		for (int i = 0; i < ENTRIES; i++)
			in_user_mode(1);
		times[1] = tsc();
		for (int i = 0; i < ENTRIES; i++)
			asm volatile("ud2");
		times[2] = tsc();
		asm volatile("movl %%cr3, %0" : "=r"(cr3));
		for (int i = 0; i < ENTRIES; i++)
			asm volatile("movl %0, %%cr3" : : "r"(cr3) : "memory");
		times[3] = tsc();
		for (int i = 0; i < ENTRIES; i++) {
			APIC(ICR_LOW) = 0x40000 | VECTOR_IPI; /* to itself */
			take_interrupt(false);
		}
		times[4] = tsc();
		execute(100000);
		times[5] = tsc();
		user = in_user_mode(50000);
		print("@entry");
		print_number(cpu);
		for (int i = 0; i < 4; i++)
			print_number(times[i + 1] - times[i]);
		print("\n@mode");
		print_number(cpu);
		print_number(times[5] - times[4]);
		print_number(user);
		print("\n");
		stat.count = stat.sum = 0;
		barrier();
	}
}

/*
 * CPU 0 sets a flag, another waits for it with MONITOR and MWAIT: @mwait cpu min
 * max mean, of the time from setting to seeing it.
 */
SCENARIO scenario_mwait(int cpu)
{
	for (int waiter = 1; waiter < online; waiter++) {
		for (int i = 0; i < WAITS; i++) {
			flag = false;
			barrier();
			if (cpu == 0) {
				execute(30000 + random_below(5000));
				stamp = tsc();
				flag = true;
			} else if (cpu == waiter) {
				while (!flag) {
					asm volatile("monitor"
						     :
						     : "a"(&flag), "c"(0),
						       "d"(0));
					if (!flag)
						asm volatile("mwait"
							     :
							     : "a"(0), "c"(0)
							     : "memory");
				}
				stat_add((int32_t)(tsc() - stamp));
			}
			barrier();
		}
		if (!cpu)
			print_stat("@mwait", waiter, 0);
	}
}

/*
 * CPU 1 executes MONITOR, then HLT until its timer, 20 us later; meanwhile CPU 0
 * writes to the line: @watch ns, how long it was halted
 */
SCENARIO scenario_watch(int cpu)
{
	flag = false;
	barrier();
	if (cpu == 0) {
		execute(10000);
		flag = true;
	} else if (cpu == 1) {
		uint64_t start;

		asm volatile("monitor" : : "a"(&flag), "c"(0), "d"(0));
		start = tsc();
		APIC(TIMER_COUNT) = 20000;
		take_interrupt(true);
		spent[cpu] = tsc() - start;
	}
	barrier();
	if (!cpu) {
		print("@watch");
		print_number(spent[1]);
		print("\n");
	}
}

static void start_others(void)
{
	set_gate(VECTOR_IPI, (uint32_t)on_interrupt);
	set_gate(VECTOR_TIMER, (uint32_t)on_interrupt);
	set_gate(VECTOR_COMPUTE, (uint32_t)on_compute);
	set_gate(VECTOR_REARM, (uint32_t)on_rearm);
	set_gate(VECTOR_SENDERS, (uint32_t)on_sender_0);
	set_gate(VECTOR_SENDERS + 1, (uint32_t)on_sender_1);
	APIC(ICR_LOW) = 0xc4500; /* INIT to all but self */
	execute(200000);
	APIC(ICR_LOW) = 0xc46f0; /* start-up, vector 0xf0 */
	execute(1000000); /* time for all to count themselves */
}

static void scenarios(int cpu)
{
#ifdef ONLY
	ONLY(cpu);
	return;
#endif
	scenario_spin(cpu);
	scenario_interrupt(cpu, true, false);
	scenario_interrupt(cpu, true, true);
	scenario_interrupt(cpu, false, true);
	scenario_senders(cpu);
	scenario_timer(cpu, true);
	scenario_timer(cpu, false);
	scenario_pause(cpu, 1000);
	scenario_pause(cpu, 100000);
	scenario_lock(cpu);
	scenario_monotonic(cpu);
	scenario_compute(cpu);
	scenario_interrupted(cpu);
	scenario_move(cpu);
	scenario_lines(cpu);
}

void run_cpu(int cpu)
{
	struct {
		uint16_t limit;
		uint32_t base;
	} __attribute__((packed)) idtr = { sizeof(idt) - 1, (uint32_t)idt };

	__atomic_add_fetch(&online, 1, __ATOMIC_SEQ_CST);
	if (!cpu)
		start_others();
	asm volatile("lidt %0" : : "m"(idtr));
	APIC(SPURIOUS) = 0x1ff;
	APIC(TIMER_DIVIDE) = 0xb; /* by 1: the bus clock is 1 GHz */
	APIC(LVT_TIMER) = VECTOR_TIMER;
	if (cpu) /* until CPU 0 has counted */
		while (!turn)
			asm volatile("pause" : : : "memory");
	turn = 1;
	scenarios(cpu);
	if (!cpu) {
		print("@done\n");
		outb(0xf4, 0); /* isa-debug-exit */
	}
	for (;;)
		asm volatile("hlt");
}

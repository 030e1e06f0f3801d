// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A plugin of QEMU that counts the instructions which a guest executes between two
 * marks, by address. `heddle profile` loads it and names the functions.
 *
 * The guest does not notice: virtual time counts its instructions, not the host's. So
 * this sees code that no sampling in the guest does, such as all that runs with
 * interrupts off, and a profiled boot is the same as one that is not.
 *
 *   -plugin instructions.so,out=FILE
 *
 * writes a line "ADDRESS INSTRUCTIONS EXECUTIONS" for each piece of straight code
 * of the kernel, and one for all of user space, whose address is 0. Several lines may
 * begin at one address.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <qemu-plugin.h>

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

/* nopl 0x6c646468(%rax), which no compiler emits: see mark.S. */
static const uint8_t mark[] = { 0x0f, 0x1f, 0x80, 0x68, 0x64, 0x64, 0x6c };

#define KERNEL_SPACE (1ULL << 63)

/* A translated block: straight code. */
struct block {
	uint64_t address;
	uint64_t insns;
	uint64_t executions;
};

static GMutex lock; /* of blocks */
static GPtrArray *blocks;
static char *out;
static bool counting;

/* The vCPUs of a guest on the parallel clock share one thread: a sum needs no lock. */
static void executed(unsigned int vcpu, void *data)
{
	struct block *block = data;

	if (counting)
		block->executions++;
}

static void marked(unsigned int vcpu, void *data)
{
	counting = !counting;
}

static bool is_mark(const struct qemu_plugin_insn *insn)
{
	uint8_t bytes[sizeof(mark)];

	return qemu_plugin_insn_data(insn, bytes, sizeof(bytes)) ==
		       sizeof(bytes) &&
	       !memcmp(bytes, mark, sizeof(mark));
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	struct block *block = g_new0(struct block, 1);
	size_t i;

	block->address = qemu_plugin_tb_vaddr(tb);
	block->insns = qemu_plugin_tb_n_insns(tb);
	g_mutex_lock(&lock);
	g_ptr_array_add(blocks, block);
	g_mutex_unlock(&lock);
	qemu_plugin_register_vcpu_tb_exec_cb(tb, executed,
					     QEMU_PLUGIN_CB_NO_REGS, block);
	for (i = 0; i < block->insns; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);

		if (is_mark(insn))
			qemu_plugin_register_vcpu_insn_exec_cb(
				insn, marked, QEMU_PLUGIN_CB_NO_REGS, NULL);
	}
}

static void ended(qemu_plugin_id_t id, void *data)
{
	FILE *file = fopen(out, "w");
	uint64_t user = 0;
	guint i;

	if (!file) {
		perror(out);
		return;
	}
	for (i = 0; i < blocks->len; i++) {
		const struct block *block = blocks->pdata[i];

		if (!(block->address & KERNEL_SPACE))
			user += block->insns * block->executions;
		else if (block->executions)
			fprintf(file, "%" PRIx64 " %" PRIu64 " %" PRIu64 "\n",
				block->address, block->insns,
				block->executions);
	}
	fprintf(file, "0 %" PRIu64 " 1\n", user);
	if (fclose(file))
		perror(out);
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id,
					   const qemu_info_t *info, int argc,
					   char **argv)
{
	if (argc != 1 || !g_str_has_prefix(argv[0], "out=")) {
		fprintf(stderr, "instructions: out=FILE is missing\n");
		return -1;
	}
	out = g_strdup(argv[0] + strlen("out="));
	blocks = g_ptr_array_new();
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	qemu_plugin_register_atexit_cb(id, ended, NULL);
	return 0;
}

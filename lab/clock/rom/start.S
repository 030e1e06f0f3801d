/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The first and the last bytes of the ROM: from the reset vector, or from a
 * start-up IPI with vector 0xf0, to run_cpu() in 32-bit protected mode.
 */
	.section .head, "ax"
	.code16
	.globl	start
start:					/* offset 0: the APs' CS:IP is f000:0 */
	cli
	lgdtl	%cs:(gdt_pointer - start)
	movl	$1, %eax
	movl	%eax, %cr0
	ljmpl	$8, $start32

	.code32
start32:
	movw	$16, %ax
	movw	%ax, %ds
	movw	%ax, %es
	movw	%ax, %ss
	movl	0xfee00020, %eax	/* local APIC ID */
	shrl	$24, %eax
	movl	%eax, %esp		/* 4 KiB of stack each, from 2 MiB up */
	incl	%esp
	shll	$12, %esp
	addl	$0x200000, %esp
	pushl	%eax
	call	run_cpu
	ud2

	.balign	8
gdt:	.quad	0
	.quad	0x00cf9b000000ffff	/* 8: code, flat */
	.quad	0x00cf93000000ffff	/* 16: data, flat */
gdt_pointer:
	.word	. - gdt - 1
	.long	gdt

	.section .reset, "ax"
	.code16
	.byte	0xe9			/* jmp start, from f000:fff0 */
	.word	0x10000 - 0xfff3
	.fill	13, 1, 0

	.section .note.GNU-stack, "", @progbits

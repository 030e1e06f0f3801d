/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A program for the guest that does nothing but execute a mark: that of instructions.c,
 * or, with a digit as its argument, the clock's mark of this number (lab/clock/README.md).
 */
	.globl _start
_start:
	cmpq $2, (%rsp) /* argc */
	je 1f
	nopl 0x6c646468(%rax)
	jmp 2f
1:	movq 16(%rsp), %rdx /* argv[1] */
	movzbl (%rdx), %eax
	subl $'0', %eax
	nopl 0x50414e53
2:	movl $60, %eax /* exit */
	xorl %edi, %edi
	syscall

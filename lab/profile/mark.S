/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A program for the guest that does nothing but execute the mark of instructions.c. */
	.globl _start
_start:
	nopl 0x6c646468(%rax)
	movl $60, %eax /* exit */
	xorl %edi, %edi
	syscall

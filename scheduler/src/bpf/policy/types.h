/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Integer types for headers that compile both for BPF, where vmlinux.h has
 * them, and for the host, where the tests compile them.
 */
#pragma once

#ifndef __bpf__
#include <stdbool.h>
#include <stdint.h>

typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t s32;
typedef int64_t s64;

#define __noinline __attribute__((noinline))
#ifndef __always_inline /* glibc has it */
#define __always_inline inline __attribute__((always_inline))
#endif
#endif

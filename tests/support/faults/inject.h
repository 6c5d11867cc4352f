/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Faults by the table of system calls: the nth call of one row fails, or moves fewer bytes than
 * asked for, once or from then on. Every row has a stand-in here. What the rows that matter for
 * durability did is kept as a trace of letters.
 */
#ifndef TESTS_SUPPORT_INJECT_H
#define TESTS_SUPPORT_INJECT_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "io/syscalls.h"

enum fault_row {
#define BTH_SYSCALL(result, name, parameters, function) FAULT_##name,
#include "io/syscalls.def"
#undef BTH_SYSCALL
    FAULT_N_ROWS
};

/* In the place of an errno: the call moves half of its bytes. */
#define FAULT_SHORT 100000

extern const char *const fault_row_names[FAULT_N_ROWS];

extern struct fault {
    enum fault_row row;
    unsigned nth; /* 0: none */
    int system_errno;
    bool for_ever;
    atomic_uint n_hits;
    atomic_uint n_calls[FAULT_N_ROWS];
    void (*before)(void); /* instead of a failure: done before the call, which is then made */
} fault;

/* Calls in their order, a letter each: w(rite) t(runcate) s(ync) d(atasync) r(ename) u(nlink). */
extern char fault_trace[4096];

/* Puts the stand-ins in; nth 0: no fault, only counts and the trace. */
void fault_set(enum fault_row row, unsigned nth, int system_errno, bool for_ever);
void fault_clear(void);

/* A row of the table, and what it can give, up to a 0. */
typedef struct fault_kind {
    enum fault_row row;
    int errnos[20];
} fault_kind;

/* A row that was called since fault_set has its errnos among these. */
void check_no_row_is_forgotten(const fault_kind *kinds, size_t n_kinds);

/* The first row that has no stand-in above; NULL: every row has one. After fault_set. */
const char *fault_row_without(void);

/*
 * Prints how many points a line of the table in SAFETY.md got; tools/check adds these up. A test
 * that silently shrinks is a failed test.
 */
void check_points(unsigned line, unsigned n, unsigned least);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What an analyzer that looks at one source at a time cannot see of another one: forced before each
 * source by analysis.sh, after base/error.h, and never built. Only what a comment at the
 * declaration promises.
 */
#ifndef TESTS_CONTRACTS_H
#define TESTS_CONTRACTS_H

#include <stdlib.h>
#include <string.h>

#include "berth.h"

/* Memory is the C library's: so that leaks, and what is used after it was released, are seen. */
static inline void *contract_allocate(size_t nbytes)
{
    return nbytes ? malloc(nbytes) : NULL;
}

static inline char *contract_duplicate(const char *text, size_t n)
{
    char *copy = malloc(n + 1);

    if (!copy)
        return NULL;
    memcpy(copy, text, n);
    copy[n] = 0;
    return copy;
}

#define bth_allocate(nbytes) contract_allocate(nbytes)
#define bth_allocate_zeroed(nbytes) calloc(1, nbytes)
#define bth_reallocate(pointer, nbytes) realloc(pointer, nbytes)
#define bth_release(pointer) free(pointer)
#define bth_duplicate_text(text, n) contract_duplicate(text, n)

/* bth_fail and its kin leave an error behind, and return its code. */
static inline int contract_failed(berth_error *error, int code)
{
    if (code >= 0)
        abort();
    error->code = (berth_status)code;
    return code;
}

#define bth_fail(error, ...) contract_failed(error, (bth_fail)(error, __VA_ARGS__))
#define bth_fail_errno(error, ...) contract_failed(error, (bth_fail_errno)(error, __VA_ARGS__))
#define bth_fail_memory(error, nbytes) contract_failed(error, (bth_fail_memory)(error, nbytes))

/* What is no value is None. */
static inline berth_kind contract_kind(const berth_value *value)
{
    berth_kind kind = (berth_value_kind)(value);

    if (!value && kind != BERTH_KIND_NONE)
        abort();
    return kind;
}

#define berth_value_kind(value) contract_kind(value)

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What an analyzer that looks at one source at a time cannot see of another one: forced before each
 * source by analysis.sh, after config/error.h, and never built. Only what a comment at the
 * declaration promises.
 */
#ifndef TESTS_CONTRACTS_H
#define TESTS_CONTRACTS_H

#include <stdlib.h>

#include "berth.h"

/* berth_fail and its kin leave an error behind, and return its code. */
static inline int contract_failed(berth_error *error, int code)
{
    if (code >= 0)
        abort();
    error->code = (berth_status)code;
    return code;
}

#define berth_fail(error, ...) contract_failed(error, (berth_fail)(error, __VA_ARGS__))
#define berth_fail_errno(error, ...) contract_failed(error, (berth_fail_errno)(error, __VA_ARGS__))
#define berth_fail_memory(error, nbytes) contract_failed(error, (berth_fail_memory)(error, nbytes))

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

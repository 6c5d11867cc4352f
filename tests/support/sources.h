/* SPDX-License-Identifier: BSD-3-Clause */
/* Sources without a variable for each. */
#ifndef BERTH_TESTS_SUPPORT_SOURCES_H
#define BERTH_TESTS_SUPPORT_SOURCES_H

#include "berth.h"

static inline int test_open_fd(int from_fd, const berth_params *params, berth_checkpoint **opened,
                               berth_error *error_out)
{
    const berth_source source = berth_from_fd(from_fd);
    return berth_open_source(&source, params, opened, error_out);
}

static inline int test_open_memory(const void *from_bytes, size_t n, const berth_params *params,
                                   berth_checkpoint **opened, berth_error *error_out)
{
    const berth_source source = berth_from_memory(from_bytes, n);
    return berth_open_source(&source, params, opened, error_out);
}

static inline int test_archive_open_fd(int from_fd, const berth_params *params,
                                       berth_archive **opened, berth_error *error_out)
{
    const berth_source source = berth_from_fd(from_fd);
    return berth_archive_open(&source, params, opened, error_out);
}

static inline int test_archive_open_memory(const void *from_bytes, size_t n,
                                           const berth_params *params, berth_archive **opened,
                                           berth_error *error_out)
{
    const berth_source source = berth_from_memory(from_bytes, n);
    return berth_archive_open(&source, params, opened, error_out);
}

static inline int test_verify(const char *from_path, const berth_params *params,
                              berth_record_function report, void *context, berth_verdict *verdict,
                              berth_error *error_out)
{
    const berth_source source = berth_from_path(from_path);
    return berth_verify(&source, params, report, context, verdict, error_out);
}

#endif

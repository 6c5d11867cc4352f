/* SPDX-License-Identifier: BSD-3-Clause */
/* The I/O method of a save to a file: save.method, or chosen from conditions. */
#ifndef BTH_SAVE_OUTPUT_METHOD_H
#define BTH_SAVE_OUTPUT_METHOD_H

#include "config/options.h"

typedef struct bth_output_method {
    bool is_direct;
    bool is_durable;    /* it will be synced */
    const char *reason; /* static */
} bth_output_method;

/* For a file of nbytes bytes that is open as `fd`. */
bth_output_method bth_output_method_choose(const struct berth_config *config, int fd,
                                           uint64_t nbytes);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* save.method = auto: how a file's bytes should get to it, from facts. */
#ifndef BTH_SAVE_OUTPUT_METHOD_H
#define BTH_SAVE_OUTPUT_METHOD_H

#include "config/options.h"

typedef struct bth_output_method {
    bool is_direct;
    bool is_durable;    /* it will be synced */
    const char *reason; /* static */
} bth_output_method;

/* For a file of nbytes bytes that is open on its file system. */
bth_output_method bth_output_method_choose(const struct berth_config *config, int fd,
                                           uint64_t nbytes);

#endif

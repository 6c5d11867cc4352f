/* SPDX-License-Identifier: BSD-3-Clause */
/* Where the image goes: a file, a descriptor, memory, or a callback of the caller. */
#ifndef BERTH_SAVE_OUTPUT_H
#define BERTH_SAVE_OUTPUT_H

#include "berth.h"

typedef struct berth_output {
    /* Writes all of it, or sets the error. From several threads at once unless in_order. */
    int (*write)(void *context, const void *buffer, size_t nbytes, uint64_t offset,
                 berth_error *error);
    /* Reads what was written; NULL where that cannot be. */
    int (*read)(void *context, void *buffer, size_t nbytes, uint64_t offset, berth_error *error);
    /* How large what is written here can grow; NULL where nobody knows. */
    uint64_t (*room)(void *context);
    void *context;
    bool in_order; /* offsets must follow each other */
    const char *reason;
} berth_output;

/* What a run did. Filled on failure too. */
typedef struct berth_run_facts {
    uint64_t moved_nbytes;
    uint64_t n_requests;
} berth_run_facts;

/* Memory that holds the whole image. */
typedef struct berth_output_memory {
    uint8_t *bytes;
    uint64_t nbytes;
} berth_output_memory;

/* A sink, made into an output. The pointers must live as long as it. */
berth_output berth_output_of_sink(const berth_sink *sink);
berth_output berth_output_of_fd(const int *fd); /* at its own position, in order */
berth_output berth_output_of_memory(berth_output_memory *memory);
berth_output berth_output_of_file(const int *fd); /* positioned */

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* A file of our own as output: through the page cache, or past it. */
#ifndef BTH_SAVE_OUTPUT_FILE_H
#define BTH_SAVE_OUTPUT_FILE_H

#include <stdatomic.h>

#include "io/direct.h"
#include "save/output.h"
#include "save/output_method.h"

typedef struct bth_output_file {
    int fd;
    bth_direct direct;
    atomic_bool is_direct; /* until a request is refused */
    atomic_bool is_early;  /* what is buffered starts its way to the disk at once */
    bool began_direct;
    const char *reason;
} bth_output_file;

/*
 * fd is open for reading and writing and has the file's size. Direct writes that cannot be are
 * buffered, and *file tells why.
 */
bth_output bth_output_file_begin(bth_output_file *file, int fd, uint64_t nbytes,
                                 const bth_output_method *method);
/* When all is written: cuts what was padded. */
int bth_output_file_cut(const bth_output_file *file, uint64_t nbytes, berth_error *error);
/* What happened, for the statistics: static words. */
const char *bth_output_file_method(const bth_output_file *file, const char **reason);
/* Closes what begin opened; fd stays. */
void bth_output_file_end(bth_output_file *file);

/* How large a file can grow: what it has and what is free. UINT64_MAX: nobody knows. */
uint64_t bth_output_file_room(int fd);

#endif

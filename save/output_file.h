/* SPDX-License-Identifier: BSD-3-Clause */
/* A file as output, through the page cache or by direct writes. */
#ifndef BTH_SAVE_OUTPUT_FILE_H
#define BTH_SAVE_OUTPUT_FILE_H

#include <stdatomic.h>

#include "config/options.h"
#include "io/direct.h"
#include "save/output.h"

typedef struct bth_output_file {
    int fd;
    bth_direct direct;     /* the caller closes it at the end, and `fd` */
    atomic_bool is_direct; /* until a request is refused */
    atomic_bool is_early;  /* buffered writes go on to the disk at once */
    bool began_direct;
    const char *reason;
} bth_output_file;

/*
 * `fd` is open for reading and writing, and its file has nbytes bytes. Buffered writes replace
 * direct ones that are impossible, and file->reason says why.
 */
bth_output bth_output_file_begin(bth_output_file *file, int fd, uint64_t nbytes,
                                 const struct berth_config *config);
/* When all is written: cuts the padding. */
int bth_output_file_cut(const bth_output_file *file, uint64_t nbytes, berth_error *error);
/* The method that was used and its reason, for the statistics. Static texts. */
const char *bth_output_file_method(const bth_output_file *file, const char **reason);

/* output_method.c: the I/O method for a file of nbytes bytes that is open as `fd`: save.method, or
 * chosen from conditions. Returns the reason, a static text. */
const char *bth_output_method_choose(const struct berth_config *config, int fd, uint64_t nbytes,
                                     bool *is_direct);

/* RLIMIT_FSIZE. A write beyond it would raise SIGXFSZ, which kills (F5). */
uint64_t bth_output_file_size_limit(void);
/* How large a file can grow: its own room and the free room. UINT64_MAX: not known. */
uint64_t bth_output_file_own_and_free_room(int fd);

#endif

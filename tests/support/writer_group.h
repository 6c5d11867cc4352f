/* SPDX-License-Identifier: BSD-3-Clause */
/* The writers of a joint save as threads of one process, which exchange bytes through memory. */
#ifndef TESTS_SUPPORT_WRITER_GROUP_H
#define TESTS_SUPPORT_WRITER_GROUP_H

#include <berth/joint.h>
#include <pthread.h>

#include "tests/support/support.h"

/* Of elements that are swapped. */
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define OTHER_BYTEORDER "little"
#else
#define OTHER_BYTEORDER "big"
#endif

enum { MAX_GROUP = 8 };

typedef struct writer_group {
    size_t n;
    unsigned breaks_at; /* all calls from this one on fail with EPIPE; 0: none */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t n_waiting;
    unsigned turn;
    bool is_broken;
    bool sizes_differ; /* what one sends and what the other expects */
    unsigned n_calls;  /* of each writer */
    const uint8_t *sent[MAX_GROUP];
    const uint64_t *sent_nbytes[MAX_GROUP];
} writer_group;

/* One writer; the context of group_exchange. */
typedef struct group_seat {
    writer_group *group;
    size_t number;
    unsigned n_calls;
    void *context; /* the test's */
} group_seat;

/* What a writer got. */
typedef struct group_result {
    int status;
    berth_error error;
    void *receipt;
    size_t nbytes;
    berth_stats stats;
    unsigned n_calls; /* of its exchange */
} group_result;

/* Runs `write` in n threads, one a seat. `contexts`: n items of context_nbytes bytes. */
void group_run(writer_group *group, size_t n, void (*write)(group_seat *seat), void *contexts,
               size_t context_nbytes);
/* A berth_exchange_fn. It fails after 20 s of waiting. */
int group_exchange(void *context, const void *send, const uint64_t *send_nbytes, void *receive,
                   const uint64_t *receive_nbytes);
/* berth_joint_write of a seat, with group_exchange. params: what else it is given. */
void group_write(group_seat *seat, const berth_joint_info *info, const berth_slice *slices,
                 size_t n, berth_params params, group_result *out);
/* As a writer must do that ends without an exchange. */
void group_break(writer_group *group);

#endif

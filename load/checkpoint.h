/* SPDX-License-Identifier: BSD-3-Clause */
/* The parts of a berth_checkpoint. Only files of load/ include this. */
#ifndef BTH_LOAD_CHECKPOINT_H
#define BTH_LOAD_CHECKPOINT_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/lock.h"
#include "io/memory_region.h"
#include "load/open/open.h"
#include "load/transfer/transfer.h"

/* What load/ keeps for a storage: its `context`. A view uses only `memory`; its root has the rest.
 */
typedef struct bth_storage_state {
    berth_checkpoint *checkpoint;
    _Atomic(const uint8_t *) memory; /* its bytes in this machine's order; NULL: not loaded yet */
    uint8_t unit;                    /* bytes that are reversed together; 1: none */
    bool is_ambiguous;               /* foreign order, and no single unit */
    const bth_zip_entry *deflated;   /* its record, if that is deflated (Z12); else NULL */
    /* Under the lock: */
    bool is_loading; /* by some thread */
    int n_waiting;   /* threads that will load it next: storages_load.c */
    uint8_t crc32;   /* berth_crc_verdict */
    berth_load_method chosen;
    const char *chosen_by; /* why a rule set the method; NULL: load.method decides. Static */
    const char *method;    /* how it was loaded; NULL: not yet */
    const char *reason;
    uint64_t moved_nbytes;
} bth_storage_state;

/* Memory that holds storages; it lives as long as the checkpoint. */
typedef struct bth_kept_region {
    bth_region region;
    uint64_t nbytes;
    uint64_t n_forks;             /* bth_fork_count() when it was filled */
    struct bth_kept_region *next; /* an earlier one */
} bth_kept_region;

/* Where a root storage is loaded to. */
typedef struct bth_storage_target {
    bth_range_target range; /* address: the caller's; ours is set together with is_there */
    bool is_there;          /* its bytes are on the device */
} bth_storage_target;

/* The input of a checkpoint. */
typedef struct bth_checkpoint_source {
    bth_reader reader;
    bth_access access; /* under the lock */
} bth_checkpoint_source;

/* The storages and their states. */
typedef struct bth_storages {
    size_t n;
    bth_storage_state *stored; /* n of them, in the memory of the tree */

    /* Under the lock: */
    pthread_cond_t finished;  /* some thread has loaded storages or failed */
    uint64_t inflated_nbytes; /* of deflated storages that are loaded or being loaded (Z12) */
    bth_kept_region *regions;
    bth_storage_target *targets; /* n of them; NULL: all go to the host */
    bth_device_memory_list *device_memory;
} bth_storages;

/* All prefetches of one checkpoint. */
typedef struct bth_prefetches {
    bth_lock lock;          /* protects all prefetches */
    pthread_cond_t changed; /* the state of any of them */
    struct berth_prefetch *first;
    struct berth_prefetch *own; /* load.prefetch: opening begins it, closing ends it */
} bth_prefetches;

struct berth_checkpoint {
    bth_checkpoint_source source;
    bth_contents contents;
    bth_storages storages;
    struct berth_config config;
    bth_prefetches prefetches;
    double begin_seconds;     /* clock time when opening began */
    double open_seconds;      /* duration of opening */
    bth_lock lock;            /* locked by bth_checkpoint_lock */
    bool has_lock;            /* lock and storages.finished are initialized */
    _Atomic uint64_t process; /* the process for which the state under the lock is valid (X11) */
    bth_name_text shown_name; /* under the lock: the last texts of berth_tensor_at */
    bth_name_text shown_path;
};

/* ---- the lock ---- */

/* Resets the state in a child process when it takes the lock for the first time. Under the lock. */
void bth_checkpoint_reset_after_fork(berth_checkpoint *checkpoint, bth_lock_state state);

/* Also works in a forked child, even if a thread of the parent held the lock during the fork. */
static inline void bth_checkpoint_lock(berth_checkpoint *checkpoint)
{
    bth_lock_state state = bth_lock_acquire(&checkpoint->lock);

    if (state != BTH_LOCK_OURS)
        bth_checkpoint_reset_after_fork(checkpoint, state);
}

static inline void bth_checkpoint_unlock(berth_checkpoint *checkpoint)
{
    (void)pthread_mutex_unlock(&checkpoint->lock.mutex);
}
/* To be called before state is used without the lock, or freed. */
static inline void bth_checkpoint_reset_if_forked(berth_checkpoint *checkpoint)
{
    if (atomic_load_explicit(&checkpoint->process, memory_order_acquire) ==
        bth_process_unique_number())
        return;
    bth_checkpoint_lock(checkpoint);
    bth_checkpoint_unlock(checkpoint);
}

/* ---- storages ---- */

/* The storage that has the bytes, from `root_offset` on; of a root in a file that is 0. */
static inline const berth_storage *bth_storage_root(const berth_storage *storage)
{
    return storage->root ? storage->root : storage;
}
/* Its memory, or NULL if it is not loaded. Thread-safe. */
static inline const uint8_t *bth_storage_memory_or_null(berth_checkpoint *checkpoint, size_t index)
{
    bth_checkpoint_reset_if_forked(checkpoint);
    return atomic_load(&checkpoint->storages.stored[index].memory);
}

/* ---- the checkpoint's own prefetch ---- */

/* The functions of the wing load/prefetch/. Without it they are NULL. */
typedef struct bth_prefetch_functions {
    /* load.prefetch: starts the checkpoint's own prefetch, of all storages. */
    int (*begin)(berth_checkpoint *checkpoint, berth_error *error);
    void (*end)(struct berth_prefetch *own);
    void (*consume)(struct berth_prefetch *own, const berth_tensor *tensor, int64_t first,
                    int64_t n);
} bth_prefetch_functions;

extern const bth_prefetch_functions bth_wing_prefetch;

/* Elements [first, first + n) of a tensor are used now (n < 0: all): the checkpoint's own prefetch
 * may load more bytes after them. Does not wait. Thread-safe. */
static inline void bth_prefetch_consume(const berth_checkpoint *checkpoint,
                                        const berth_tensor *tensor, int64_t first, int64_t n)
{
    if (checkpoint->prefetches.own)
        bth_wing_prefetch.consume(checkpoint->prefetches.own, tensor, first, n);
}

/* ---- load.c ---- */

/* Checks the arguments of a function that opens a source; `opened` is its out-parameter. */
int bth_source_check_open_arguments(const berth_source *source, const void *opened,
                                    berth_error *error);
/* berth_open_source; `config` NULL: that of the params. */
int bth_checkpoint_open(const berth_source *source, const struct berth_config *config,
                        const berth_params *params, berth_checkpoint **opened, berth_error *error);
/* The configuration of the params, or else the checkpoint's. */
int bth_checkpoint_choose_call_config(const berth_checkpoint *checkpoint,
                                      const berth_params *params, struct berth_config *config,
                                      berth_error *error);
/* Initializes the statistics, if the params have any. So they are set after an early failure, too.
 */
void bth_params_initialize_stats(const berth_params *params);
/* Sets the statistics after opening. */
void bth_params_set_checkpoint_stats(berth_checkpoint *checkpoint, const berth_params *params);

#endif

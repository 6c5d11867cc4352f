/* SPDX-License-Identifier: BSD-3-Clause */
/* The parts of a berth_checkpoint. Only files of load/ include this. */
#ifndef BTH_LOAD_CHECKPOINT_H
#define BTH_LOAD_CHECKPOINT_H

#include <pthread.h>
#include <stdatomic.h>

#include "io/memory_region.h"
#include "load/open/open.h"
#include "load/prefetch/prefetch.h"
#include "load/transfer/sinks.h"
#include "load/transfer/source_access.h"
#include "load/transfer/to_device.h"

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

/* ---- errors_with_names.c: what a caller passes is checked; names, and errors that carry them ----
 */

static inline const berth_storage *bth_storage_root(const berth_storage *storage)
{
    return storage->root ? storage->root : storage;
}

/*
 * Checks that the storage belongs to this checkpoint: only then its context is a bth_storage_state.
 */
int bth_checkpoint_check_caller_storage(const berth_checkpoint *checkpoint,
                                        const berth_storage *storage, berth_error *error);
/*
 * T2: the caller may have made the tensor, as a part of a tensor of the file. It gets the same
 * checks as those. BERTH_E_ARGUMENT: of another checkpoint, or a meta tensor.
 */
int bth_checkpoint_check_caller_tensor(const berth_checkpoint *checkpoint,
                                       const berth_tensor *tensor, berth_error *error);
/* *offset: the byte of the first element in the storage. False: the element begins inside it. */
bool bth_tensor_begins_at_whole_byte(const berth_tensor *tensor, uint64_t *offset);

/* The names of all tensors, made at the first call. NULL after an error. */
const bth_names *bth_checkpoint_names(const berth_checkpoint *checkpoint, berth_error *error);
/* The same with the lock held. */
const bth_names *bth_checkpoint_names_locked(berth_checkpoint *checkpoint, berth_error *error);
/*
 * Writes the name of a tensor that begins at byte `offset` of the storage (BERTH_NO_OFFSET: at any
 * byte). False: there is none. Not under the lock: it is slow.
 */
bool bth_storage_find_tensor_name(const berth_checkpoint *checkpoint, const berth_storage *storage,
                                  uint64_t offset, char *name, size_t name_nbytes);
/*
 * Adds the storage's record (in a legacy file: its key) to the error that is set, and the name of a
 * tensor that views the storage. Returns the code. Not under the lock.
 */
int bth_error_in_storage(const berth_checkpoint *checkpoint, const berth_storage *storage,
                         berth_error *error);
/*
 * Adds the storage's record and the tensor's name to an error that names no record yet. Nothing if
 * there is no error, or if the tensor is NULL or of another checkpoint. Returns the code. Not under
 * the lock.
 */
int bth_error_in_tensor(const berth_checkpoint *checkpoint, const berth_tensor *tensor,
                        berth_error *error);
/*
 * Public functions end with it: adds the file's name to an error, if one is set. Returns the code.
 * The checkpoint may be NULL.
 */
int bth_error_in_checkpoint(const berth_checkpoint *checkpoint, berth_error *error);

/* ---- storage_state.c: the life of a storage ---- */

/* Sets the read hooks of all storages, so that they can be read and saved. Their offsets are set.
 */
int bth_storages_initialize_states(berth_checkpoint *checkpoint, berth_error *error);
void bth_storages_free_memory_and_map(berth_checkpoint *checkpoint);
/* Sets the address of the storage's bytes, in this machine's order and aligned for its dtype. */
int bth_storage_load_and_get_memory(berth_checkpoint *checkpoint, const berth_storage *storage,
                                    const uint8_t **memory, berth_error *error);
/* Copies a range of those bytes without loading the storage. Thread-safe. */
int bth_storage_read(berth_checkpoint *checkpoint, const berth_storage *storage, void *buffer,
                     size_t nbytes, uint64_t offset, berth_error *error);
/* Whether bth_storage_load_and_get_memory reads nothing: it is loaded, or will be mapped.
 * Thread-safe. */
bool bth_storage_is_loaded_or_will_be_mapped(berth_checkpoint *checkpoint,
                                             const berth_storage *storage);
/* The alignment of its address (T5). That of a complex number is that of its parts. */
size_t bth_storage_alignment(const berth_storage *storage);
int bth_storage_fail_ambiguous_swap(const berth_storage *storage, berth_error *error);
/* Its memory, or NULL if it is not loaded. Thread-safe. */
static inline const uint8_t *bth_storage_memory_or_null(berth_checkpoint *checkpoint, size_t index)
{
    bth_checkpoint_reset_if_forked(checkpoint);
    return atomic_load(&checkpoint->storages.stored[index].memory);
}
/* A copy. Its device is NULL if the storage is loaded to the host. Thread-safe. */
bth_storage_target bth_storage_get_target(berth_checkpoint *checkpoint, const berth_storage *root);
/* Under the lock: the I/O method for a storage that is not loaded yet. Respects T5. */
bth_choice bth_storage_choose(berth_checkpoint *checkpoint, const struct berth_config *config,
                              bth_conditions *conditions, const berth_storage *root);
/* Whether that method is map. Thread-safe. */
bool bth_storage_will_be_mapped(berth_checkpoint *checkpoint, const berth_storage *root);
/* Compares the CRC of the whole storage, once, before ranges of it are read. Thread-safe. */
int bth_storage_verify(berth_checkpoint *checkpoint, const berth_storage *root, berth_error *error);
/* The same for a transfer's ranges, which are whole storages and were read, if it has computed
 * CRCs. BERTH_E_CHECKSUM: one differs (Z10). */
int bth_ranges_check_crc32s(berth_checkpoint *checkpoint, const bth_transfer *transfer,
                            berth_error *error);
/* A bth_transfer_calls.name; its context is the checkpoint, the ranges' owners are roots. */
int bth_range_add_storage_to_error(void *context, const bth_range *range, berth_error *error);
/* Adds the statistics of a transfer; `stats` may be NULL. */
void bth_stats_add_transfer(berth_stats *stats, const bth_transfer *transfer);
/* Deflated storages (Z12): */
/* The record of a storage, or of its root, if it is deflated; else NULL. */
const bth_zip_entry *bth_storage_deflated_record(const berth_storage *storage);
/* BERTH_E_UNSUPPORTED: it is deflated, and `what` needs the bytes in the file as they are, or
 * load.inflate=off. `what` NULL: inflating it is enough. */
int bth_storage_check_may_inflate(const berth_checkpoint *checkpoint, const berth_storage *root,
                                  const char *what, berth_error *error);

/* ---- storages_load.c: loads storages, one when its memory is needed, or many at once ---- */

typedef struct bth_load_request {
    const struct berth_config *config; /* load.check=data: CRCs are compared (Z10) */
    const berth_params *params;        /* progress and statistics; or NULL */
    bool at_once; /* true: returns when all bytes are on the host or on devices. False: sets host
                     addresses, mapped bytes are read when touched, devices are an error */
} bth_load_request;

/* Loads all of these roots, or none: each is listed once, in the file's order. Thread-safe. */
int bth_storages_load(berth_checkpoint *checkpoint, const bth_load_request *request,
                      const berth_storage *const *roots, size_t n, berth_error *error);
void bth_kept_region_free(bth_kept_region *kept); /* NULL: nothing */

/* ---- storage_rules.c: the tensors and storages that a berth_selection selects ---- */

/* Called with each tensor. An error ends the visit. */
typedef int (*bth_visit)(void *context, const berth_tensor *tensor, berth_error *error);

/*
 * Visits selected tensors that have bytes. Without pattern and tensors: all, in the list's order.
 * Else those whose name fits the pattern, in the list's order, and then selection->tensors, which
 * are checked (T2). A tensor can be visited twice. BERTH_E_NOT_FOUND: no name fits the pattern.
 */
int bth_selection_visit(berth_checkpoint *checkpoint, const berth_selection *selection,
                        bth_visit visit, void *context, berth_error *error);

/*
 * The storages of these tensors; all storages if everything is selected. Only roots, each once, in
 * the file's order. The caller frees *storages; it is NULL if there are none.
 */
int bth_selection_list_storages(berth_checkpoint *checkpoint, const berth_selection *selection,
                                const berth_storage ***storages, size_t *n, berth_error *error);

/* ---- verify_records.c ---- */

/* Whether the error describes the file's content. If not, verification itself failed. */
bool bth_verify_is_verdict(const berth_error *error);

typedef struct bth_verify_request {
    bth_scan scan;
    bool only_mapped;             /* skips storages that a load reads, so that they are read once */
    berth_record_function report; /* or NULL */
    void *context;
    berth_verdict verdict; /* zeros */
} bth_verify_request;

/*
 * Reads all records. Compares their CRCs, and the headers and descriptors that were not compared
 * before. In the legacy format: reads all storages. Reports all bad records; the error is the first
 * of them in the file's order. The directory is parsed. Not thread-safe.
 */
int bth_verify_checkpoint(berth_checkpoint *checkpoint, bth_verify_request *request,
                          berth_error *error);
/* The same for an archive that is not a checkpoint; its local headers were read. */
int bth_verify_archive(bth_reader *reader, const struct berth_config *config,
                       bth_container *container, bth_verify_request *request, berth_error *error);

/* ---- archive.c ---- */

/* Opens an archive, verifies it, closes it. BERTH_E_NOT_CHECKPOINT: it is none. */
int bth_archive_verify(const berth_source *source, const struct berth_config *config,
                       const berth_params *params, bth_verify_request *request, berth_error *error);

/* ---- tensor_bytes.c ---- */

/* *offset: the byte of the first element in its storage. BERTH_E_UNSUPPORTED: it begins within one.
 */
int bth_tensor_find_first_byte(const berth_tensor *tensor, uint64_t *offset, berth_error *error);

/* Sets the hook for views of all storages, so that they can be saved. */
void bth_storages_set_read_elements(berth_checkpoint *checkpoint);
/* berth_tensor_read with checked arguments. */
int bth_tensor_read(berth_checkpoint *checkpoint, const berth_tensor *tensor, int64_t first,
                    int64_t n, void *buffer, berth_error *error);

/* ---- sparse_indices.c ---- */

/*
 * T6: berth_tensor_check_indices of every sparse tensor. With load.inflate=off those whose indices
 * are deflated are left out.
 */
int bth_checkpoint_check_all_indices(berth_checkpoint *checkpoint, const berth_params *params,
                                     berth_error *error);

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

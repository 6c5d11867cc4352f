/* SPDX-License-Identifier: BSD-3-Clause */
/* What a berth_checkpoint consists of: shared by the files of load/ only. */
#ifndef BTH_LOAD_CHECKPOINT_H
#define BTH_LOAD_CHECKPOINT_H

#include <pthread.h>
#include <stdatomic.h>

#include "io/device.h"
#include "io/region.h"
#include "load/open/open.h"
#include "load/prefetch/prefetch.h"
#include "load/transfer/access.h"
#include "load/transfer/checksum_scan.h"
#include "load/transfer/to_device.h"

/* What load/ knows of a storage: its `context`. For a view only the memory counts; all else is its
 * root's. */
typedef struct bth_stored {
    berth_checkpoint *checkpoint;
    _Atomic(const uint8_t *) memory; /* its bytes in this machine's order; NULL: not loaded yet */
    uint8_t unit;                    /* bytes that are reversed together; 1: none */
    bool is_ambiguous;               /* foreign order, and no single unit */
    /* Under the lock: */
    bool is_loading; /* a thread loads it */
    int n_waiting;   /* threads that will load it next: storages_load.c */
    uint8_t crc32;   /* berth_crc_verdict */
    berth_load_method chosen;
    const char *chosen_by; /* why that method; NULL: load.method decides. All texts are static */
    const char *method;    /* how it was loaded; NULL: not yet */
    const char *reason;
    uint64_t moved_nbytes;
} bth_stored;

/* Memory that holds storages; it lives as long as the checkpoint. */
typedef struct bth_kept_region {
    bth_region region;
    uint64_t nbytes;
    uint64_t n_forks;             /* bth_forks() when it was filled */
    struct bth_kept_region *next; /* an earlier one */
} bth_kept_region;

/* Where a storage that is no view goes. */
typedef struct bth_storage_target {
    bth_range_target range; /* address: the caller's memory, or ours once it is_there */
    bool is_there;          /* its bytes are on the device */
} bth_storage_target;

/* Where the bytes of a checkpoint come from. */
typedef struct bth_checkpoint_source {
    bth_reader reader;
    bth_access access; /* under the lock */
} bth_checkpoint_source;

/* What became of the storages. */
typedef struct bth_storages {
    size_t n;
    bth_stored *stored; /* n of them, in the memory of the tree */

    /* Under the lock: */
    pthread_cond_t finished; /* a thread has loaded storages, or failed to */
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
    double begin_seconds;     /* of a clock: when opening began */
    double open_seconds;      /* how long it took */
    bth_lock lock;            /* locked by bth_checkpoint_lock */
    bool has_lock;            /* lock and storages.finished are initialized */
    _Atomic uint64_t process; /* the process in which the state under the lock is known to be good:
                                 X11 */
    bth_name_text shown_name; /* under the lock: the last texts of berth_tensor_at */
    bth_name_text shown_path;
};

/* ---- checkpoint_lock.c ---- */

/* Under the lock, when a child process locks it for the first time. */
void bth_checkpoint_restart(berth_checkpoint *checkpoint, bth_lock_state state);

/* Works in a child process, too, whatever a thread of its parent was doing at the fork. */
static inline void bth_checkpoint_lock(berth_checkpoint *checkpoint)
{
    bth_lock_state state = bth_lock_acquire(&checkpoint->lock);

    if (state != BTH_LOCK_OURS)
        bth_checkpoint_restart(checkpoint, state);
}

static inline void bth_checkpoint_unlock(berth_checkpoint *checkpoint)
{
    (void)pthread_mutex_unlock(&checkpoint->lock.mutex);
}
/* To be called before state is used without the lock, or freed. */
void bth_checkpoint_restart_if_forked(berth_checkpoint *checkpoint);

/* ---- contents.c: names, and whether a caller's tensor belongs to the file ---- */

static inline const berth_storage *bth_storage_root(const berth_storage *storage)
{
    return storage->root ? storage->root : storage;
}

/* The names of all tensors, made at the first call. NULL: error says why. */
const bth_names *bth_checkpoint_names(const berth_checkpoint *checkpoint, berth_error *error);
/* The same with the lock held. */
const bth_names *bth_contents_names(berth_checkpoint *checkpoint, berth_error *error);
/*
 * Writes the name of a tensor that views the storage from this byte on (BERTH_NO_OFFSET: from any).
 * False: there is none. Not under the lock: it is slow.
 */
bool bth_storage_name(const berth_checkpoint *checkpoint, const berth_storage *storage,
                      uint64_t offset, char *name, size_t name_nbytes);
/* Whether the storage belongs to this checkpoint: its context is then ours. */
int bth_checkpoint_check_storage(const berth_checkpoint *checkpoint, const berth_storage *storage,
                                 berth_error *error);
/*
 * T2: the tensor may be the caller's own struct, a part of one of the file's: it gets the checks
 * that those of the file got. BERTH_E_ARGUMENT: not of this checkpoint, or a meta tensor.
 */
int bth_checkpoint_check_tensor(const berth_checkpoint *checkpoint, const berth_tensor *tensor,
                                berth_error *error);
/* Sets the byte of its first element in its storage, rounded down. False: it begins inside a byte.
 */
bool bth_tensor_begins_at_byte(const berth_tensor *tensor, uint64_t *offset);
/* berth_expect: the value must be a contiguous tensor of this dtype and shape (-1: any size). */
int bth_tensor_check_expected(const berth_tensor *tensor, const char *name, berth_dtype dtype,
                              int32_t rank, const int64_t *shape, berth_error *error);
/*
 * An error has been set: adds the storage's record (of a legacy file, which has none, its key), and
 * the name of a tensor that views it. Returns the code. Not under the lock.
 */
int bth_error_in_storage(const berth_checkpoint *checkpoint, const berth_storage *storage,
                         berth_error *error);
/* At the end of public functions: adds the file's name if an error is set. Returns its code. The
 * checkpoint may be NULL. */
int bth_error_in_checkpoint(const berth_checkpoint *checkpoint, berth_error *error);

/* ---- storages.c: memory of storages, and ranges of them ---- */

/* Sets the read hooks of all storages: they can be read, and saved again. Offsets are set. */
int bth_storages_begin(berth_checkpoint *checkpoint, berth_error *error);
void bth_storages_end(berth_checkpoint *checkpoint);
/* Sets the address of the storage's bytes, in this machine's order and aligned for its dtype. */
int bth_storage_memory(berth_checkpoint *checkpoint, const berth_storage *storage,
                       const uint8_t **memory, berth_error *error);
/* Copies a range of them; the rest is not loaded. Thread-safe. */
int bth_storage_read(berth_checkpoint *checkpoint, const berth_storage *storage, void *buffer,
                     size_t nbytes, uint64_t offset, berth_error *error);
/* Whether bth_storage_memory need not read it: it is loaded, or will be mapped. Thread-safe. */
bool bth_storage_is_available(berth_checkpoint *checkpoint, const berth_storage *storage);

/* ---- storages_load.c: loads storages, one when its memory is needed, or many at once ---- */

typedef struct bth_load_request {
    const struct berth_config *config; /* load.check=data: CRCs are compared (Z10) */
    const berth_params *params;        /* progress and statistics; or NULL */
    bool at_once; /* all bytes are read before it returns, to the host or to devices. Else only host
                     addresses are needed: mapped bytes may come later, devices are an error */
} bth_load_request;

/* Roots, each once, in the file's order. All or nothing. Thread-safe. */
int bth_storages_load(berth_checkpoint *checkpoint, const bth_load_request *request,
                      const berth_storage *const *roots, size_t n, berth_error *error);
void bth_kept_region_free(bth_kept_region *kept); /* NULL: nothing */

/* ---- storage_state.c: one storage ---- */

/* Whether the file does not say what its elements are: bytes, or anything (v3). */
bool bth_storage_is_untyped(const berth_storage *storage);
/* What its address must be a multiple of (T5): a complex number is two of its halves. */
size_t bth_storage_alignment(const berth_storage *storage);
int bth_fail_ambiguous(const berth_storage *storage, berth_error *error);
/* Its memory, or NULL if it is not loaded. Thread-safe. */
const uint8_t *bth_storage_memory_or_null(berth_checkpoint *checkpoint, size_t index);
/* A copy; its device is NULL where the storage goes to the host. Thread-safe. */
bth_storage_target bth_storage_get_target(berth_checkpoint *checkpoint, const berth_storage *root);
/* With the lock held: the I/O method for a storage that is not loaded yet, with regard to T5. */
bth_choice bth_storage_choose(berth_checkpoint *checkpoint, const struct berth_config *config,
                              bth_conditions *conditions, const berth_storage *root);
/* Whether that method is map. Thread-safe. */
bool bth_storage_will_be_mapped(berth_checkpoint *checkpoint, const berth_storage *root);
/*
 * Compares the CRC of nbytes that were read with the directory, which has been read, and keeps the
 * verdict (Z10). BERTH_E_CHECKSUM: a bad one.
 */
/* Compares the CRC of the whole storage, once, before ranges of it are read. Thread-safe. */
int bth_storage_verify(berth_checkpoint *checkpoint, const berth_storage *root, berth_error *error);

int bth_storage_check_crc32(berth_checkpoint *checkpoint, const berth_storage *storage,
                            uint64_t nbytes, uint32_t crc32, berth_error *error);
/* The same for a transfer's ranges, which are whole storages, if it has computed CRCs. */
int bth_ranges_check_crc32s(berth_checkpoint *checkpoint, const bth_transfer *transfer,
                            berth_error *error);
/* A bth_transfer_calls.name; its context is the checkpoint, the ranges' owners are roots. */
int bth_range_name(void *context, const bth_range *range, berth_error *error);
/* Adds what a transfer did; `stats` may be NULL. */
void bth_stats_add_transfer(berth_stats *stats, const bth_transfer *transfer);

/* ---- selection.c: which tensors and storages a berth_selection means ---- */

/* Gets one name of the list, and its tensor, or NULL if that has no bytes. An error ends the visit.
 */
typedef int (*bth_name_visit)(void *context, const berth_tensor *tensor, const char *name,
                              berth_error *error);
/* with_text: else the visit gets NULL for the name. */
int bth_names_visit(berth_checkpoint *checkpoint, bool with_text, bth_name_visit visit,
                    void *context, berth_error *error);

/* Gets one tensor. An error ends the visit. */
typedef int (*bth_visit)(void *context, const berth_tensor *tensor, berth_error *error);

/*
 * Visits the tensors that have bytes: all of the list (no pattern, no tensors), or those whose name
 * fits the pattern, in the list's order, then those named one by one, which are checked (T2). One
 * may come twice. BERTH_E_NOT_FOUND: no name fits the pattern.
 */
int bth_selection_visit(berth_checkpoint *checkpoint, const berth_selection *selection,
                        bth_visit visit, void *context, berth_error *error);

/*
 * The storages of these tensors, or, where everything is meant, all there are: roots of views, each
 * once, in the file's order. *storages is the caller's to release, NULL if there are none.
 */
int bth_selection_storages(berth_checkpoint *checkpoint, const berth_selection *selection,
                           const berth_storage ***storages, size_t *n, berth_error *error);

/* Whether a name fits a glob. */
bool bth_name_fits(const char *pattern, const char *name);

/* ---- verify.c ---- */

/* Whether the error is about the content of the file; else verification itself failed. */
bool bth_verify_is_verdict(const berth_error *error);

typedef struct bth_verify_request {
    bth_scan scan;
    bool only_mapped;             /* leaves out storages that will be read: nothing is read twice */
    berth_record_function report; /* or NULL */
    void *context;
    berth_verdict verdict; /* zeros */
} bth_verify_request;

/*
 * Reads all records and compares their CRCs, and the headers and descriptors that were not compared
 * before; of the legacy format, all storages. All bad records are reported; the first one in the
 * file's order is the error. The directory was read. Not thread-safe.
 */
int bth_verify_data(berth_checkpoint *checkpoint, bth_verify_request *request, berth_error *error);
/* The same for an archive that is no checkpoint; its local headers were read. */
int bth_verify_container(bth_reader *reader, const struct berth_config *config,
                         bth_container *container, bth_verify_request *request, berth_error *error);

/* ---- data.c ---- */

/* berth_tensor_read, of arguments that were checked. */
int bth_tensor_read(berth_checkpoint *checkpoint, const berth_tensor *tensor, int64_t first,
                    int64_t n, void *buffer, berth_error *error);

/* ---- load.c ---- */

/* Checks the arguments of a function that opens a source; `opened` is its out-parameter. */
int bth_source_check(const berth_source *source, const void *opened, berth_error *error);
/* berth_open_source; `config` NULL: that of the params. */
int bth_checkpoint_open(const berth_source *source, const struct berth_config *config,
                        const berth_params *params, berth_checkpoint **opened, berth_error *error);
/* The configuration of the params, or else the checkpoint's. */
int bth_checkpoint_config(const berth_checkpoint *checkpoint, const berth_params *params,
                          struct berth_config *config, berth_error *error);
/* Begins the call's statistics, if it asks for any: so they are set after an early failure, too. */
void bth_stats_begin(const berth_params *params);
/* Sets them after opening. */
void bth_checkpoint_stats(berth_checkpoint *checkpoint, const berth_params *params);

#endif

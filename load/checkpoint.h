/* SPDX-License-Identifier: BSD-3-Clause */
/* What stands behind a berth_checkpoint: shared by the files of load/ only. */
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

/* A storage of the tree, as load/ sees it: its `context`. Index is the tree's. Of a view only the
 * memory counts, all else is its root's. */
typedef struct bth_stored {
    berth_checkpoint *checkpoint;
    _Atomic(const uint8_t *) memory; /* its bytes in this machine's order, once asked for */
    uint8_t unit;                    /* bytes that are reversed together; 1: none */
    bool is_ambiguous;               /* foreign order, and no single unit */
    /* Under the mutex: */
    bool is_coming; /* somebody brings it */
    int n_waiting;  /* so many want it next: bring.c */
    uint8_t crc32;  /* berth_crc_verdict */
    berth_load_method chosen;
    const char *chosen_by; /* who says so; NULL: load.method does. All texts static */
    const char *method;    /* as it became memory; NULL: not yet */
    const char *reason;
    uint64_t moved_nbytes;
} bth_stored;

/* Memory that storages lie in, as long as the checkpoint lives. */
typedef struct bth_kept_region {
    bth_region region;
    uint64_t nbytes;
    uint64_t n_forks;             /* when all was there: bth_forks */
    struct bth_kept_region *next; /* an earlier one */
} bth_kept_region;

/* Where a storage that is no view goes, and is. */
typedef struct bth_placed {
    bth_device_handle *device; /* NULL: the host; all else is 0 then */
    uintptr_t address;         /* the caller's memory, or ours once it is there; 0: none yet */
    unsigned life;             /* of the device, in which that is its memory */
    void *ready;               /* an event, behind which memory of the caller's may be written */
    bool is_there;             /* its bytes are on the device */
} bth_placed;

/* Where the bytes of a checkpoint come from, and what is known of that. */
typedef struct bth_checkpoint_source {
    bth_reader reader;
    bth_access access; /* to the bytes of the reader; under the lock */
} bth_checkpoint_source;

/* What became of the storages. */
typedef struct bth_storages {
    size_t n;
    bth_stored *stored; /* n of them, in the memory of the tree */

    /* Under the lock: */
    pthread_cond_t settled; /* storages that a thread loaded are memory, or the load failed */
    bth_kept_region *regions;
    bth_placed *placed; /* n of them; NULL: all go to the host */
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
    bth_lock lock;            /* taken by bth_checkpoint_lock */
    bool has_lock;            /* and storages.settled */
    _Atomic uint64_t process; /* in which what the lock protects is known to be good (X11) */
    bth_name_text shown_name; /* under the lock: what berth_tensor_at handed out last */
    bth_name_text shown_path;
};

/* ---- lock.c ---- */

/* Under the lock, in a child that has it for the first time. */
void bth_checkpoint_restart(berth_checkpoint *checkpoint, bth_lock_state state);

/* The mutex that stands in comments. Of a child, too, whatever a thread of its parent was at. */
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
/* For who looks at something without the lock, or frees it: takes it once in a child. */
void bth_checkpoint_make_good(berth_checkpoint *checkpoint);
/* Where a storage's bytes are; NULL: not in memory yet. */
const uint8_t *bth_storage_found(berth_checkpoint *checkpoint, size_t index);

/* ---- storages.c: their memory, and ranges of them (storages_load.h: how they are loaded) ---- */

/* Sets the read hooks of all storages: they can be read, and saved again. Offsets are set. */
int bth_storages_begin(berth_checkpoint *checkpoint, berth_error *error);
void bth_storages_end(berth_checkpoint *checkpoint);
/* The storage's bytes in this machine's order, aligned for its dtype. Thread-safe. */
int bth_storage_memory(berth_checkpoint *checkpoint, const berth_storage *storage,
                       const uint8_t **memory, berth_error *error);
/* Copies a range of them, without making memory of the rest. Thread-safe. */
int bth_storage_read(berth_checkpoint *checkpoint, const berth_storage *storage, void *buffer,
                     size_t nbytes, uint64_t offset, berth_error *error);
/* Whether asking for its memory costs no reading of it. Thread-safe. */
bool bth_storage_is_at_hand(berth_checkpoint *checkpoint, const berth_storage *storage);
/* The I/O method of storages that are asked for one by one, and why. Static texts. */
void bth_storages_method(berth_checkpoint *checkpoint, const char **method, const char **reason);
/*
 * Makes sure that a storage, no view, has the CRC that the file records, unless that is known.
 * Reads all of it: before ranges of it are read with load.check=data. Thread-safe.
 */
int bth_verify_storage(berth_checkpoint *checkpoint, const berth_storage *root, berth_error *error);

/* ---- verify.c: every byte ---- */

/* Whether an error is about what the file says; else verification itself failed. */
bool bth_verify_is_verdict(const berth_error *error);

typedef struct bth_verifying {
    bth_scan scan;
    bool only_mapped; /* storages that are read are left for then: nothing is read twice */
    berth_record_function tell; /* NULL: nobody asks */
    void *context;
    berth_verdict verdict; /* of zeros */
} bth_verifying;

/*
 * Reads all records and compares their CRCs, and the headers and descriptors that were not compared
 * before; of the legacy format, all storages. The first bad one in the file's order is the error,
 * all are told. The directory was read. Not thread-safe.
 */
int bth_verify_data(berth_checkpoint *checkpoint, bth_verifying *asked, berth_error *error);
/* Like bth_verify_data, for an archive that is no checkpoint; its local headers were read. */
int bth_verify_container(bth_reader *reader, const struct berth_config *config,
                         bth_container *container, bth_verifying *asked, berth_error *error);

/* ---- contents.c: names, and whether a caller's tensor is one of the file's ---- */

/* The names of all tensors, made at the first call. NULL: error says why. */
const bth_names *bth_checkpoint_names(const berth_checkpoint *checkpoint, berth_error *error);
/* The same with the lock held. */
const bth_names *bth_contents_names(berth_checkpoint *checkpoint, berth_error *error);
/* Whether the storage is one of this checkpoint's: its context is then ours. */
int bth_checkpoint_check_storage(const berth_checkpoint *checkpoint, const berth_storage *storage,
                                 berth_error *error);
/*
 * T2: the tensor may be the caller's own struct, a part of one that was handed out: it is checked
 * as those of the file were. BERTH_E_ARGUMENT: not of this checkpoint, or a meta tensor.
 */
int bth_checkpoint_check_tensor(const berth_checkpoint *checkpoint, const berth_tensor *tensor,
                                berth_error *error);
/* Byte of its first element in its storage. BERTH_E_UNSUPPORTED where that is no whole byte. */
int bth_tensor_first_byte(const berth_tensor *tensor, uint64_t *offset, berth_error *error);
/* The same; false where that is no whole byte: *offset is rounded down. */
bool bth_tensor_begins_at_byte(const berth_tensor *tensor, uint64_t *offset);
/* berth_expect: whether a value is a contiguous tensor of this dtype and shape (-1: any size). */
int bth_tensor_check_expected(const berth_value *value, const char *name, berth_dtype dtype,
                              int32_t rank, const int64_t *shape, berth_error *error);
/* `what` was asked of elements that are less than a byte. */
int bth_fail_subbyte(const berth_tensor *tensor, const char *what, berth_error *error);
/* Names the record of an error; of a legacy file, which has none, the storage. Returns its code. */
int bth_error_in_storage(const berth_checkpoint *checkpoint, const berth_storage *storage,
                         berth_error *error);

/* ---- data.c ---- */

/* berth_tensor_read, of arguments that were checked. */
int bth_tensor_read(berth_checkpoint *checkpoint, const berth_tensor *tensor, int64_t first,
                    int64_t n, void *buffer, berth_error *error);

/* ---- load.c ---- */

/* berth_open_source; `config` NULL: that of the params. */
int bth_checkpoint_open(const berth_source *source, const struct berth_config *config,
                        const berth_params *params, berth_checkpoint **opened, berth_error *error);
/* Clears the call's statistics, if it asks for any: what fails early has some, too. */
void bth_stats_begin(const berth_params *call);
/* Fills them. */
void bth_checkpoint_stats(berth_checkpoint *checkpoint, const berth_params *call);

#endif

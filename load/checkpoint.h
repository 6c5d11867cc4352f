/* SPDX-License-Identifier: BSD-3-Clause */
/* What stands behind a berth_checkpoint: shared by the files of load/ only. */
#ifndef BTH_LOAD_CHECKPOINT_H
#define BTH_LOAD_CHECKPOINT_H

#include <pthread.h>
#include <stdatomic.h>

#include "io/device.h"
#include "io/direct.h"
#include "io/map.h"
#include "io/region.h"
#include "load/open/open.h"
#include "load/prefetch/prefetch.h"
#include "load/transfer/checksum_scan.h"
#include "load/transfer/io_method.h"

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

/* Memory of ours on devices, as long as the checkpoint lives. */
typedef struct bth_device_memory_list {
    bth_device_handle *device;
    unsigned life; /* of the device, in which it was made */
    uintptr_t address;
    struct bth_device_memory_list *next;
} bth_device_memory_list;

/* Where the bytes of a checkpoint come from, and what is known of that. */
typedef struct bth_checkpoint_source {
    bth_reader reader;
    atomic_bool direct_is_refused; /* the kernel refused a direct read */

    /* Under the lock: */
    bth_map map;         /* of the whole file, made when first needed */
    bool map_is_refused; /* the system refused to map it */
    uint64_t sized_at;   /* the tick in which the file's size was last read; 0: never */
    bool file_system_is_known;
    bth_file_system file_system;
    bool direct_is_tried;
    const char *no_direct; /* why direct reads are impossible; NULL: `direct` makes them */
    bth_direct direct;
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
    bth_lock_state state = bth_lock_take(&checkpoint->lock);

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

/* ---- storages.c: where they lie, and ranges of them (bring.h: how they become memory) ---- */

/* Sets the read hooks of all storages: they can be read, and saved again. Offsets are set. */
int bth_storages_begin(berth_checkpoint *checkpoint, berth_error *error);
void bth_storages_end(berth_checkpoint *checkpoint);
void bth_kept_region_free(bth_kept_region *kept); /* NULL: nothing */
/* The storage's bytes in this machine's order, aligned for its dtype. Thread-safe. */
int bth_storage_memory(berth_checkpoint *checkpoint, const berth_storage *storage,
                       const uint8_t **memory, berth_error *error);
/* Copies a range of them, without making memory of the rest. Thread-safe. */
int bth_storage_read(berth_checkpoint *checkpoint, const berth_storage *storage, void *buffer,
                     size_t nbytes, uint64_t offset, berth_error *error);
/* Whether asking for its memory costs no reading of it. Thread-safe. */
bool bth_storage_is_at_hand(berth_checkpoint *checkpoint, const berth_storage *storage);
/* How storages become memory when asked for one by one, and why so. Static texts. */
void bth_storages_method(berth_checkpoint *checkpoint, const char **method, const char **reason);
/* What its address must be a multiple of (T5): a complex number is two of its halves. */
size_t bth_storage_alignment(const berth_storage *storage);
int bth_fail_ambiguous(const berth_storage *storage, berth_error *error);
/* Of a root, as it is now; its device is NULL where it goes to the host. Thread-safe. */
bth_placed bth_storage_placed(berth_checkpoint *checkpoint, const berth_storage *root);
/* BERTH_E_ARGUMENT: its bytes have no address that the host can follow. */
int bth_fail_on_device(const bth_device_handle *device, berth_error *error);
/*
 * Makes sure that a storage, no view, has the CRC that the file says, unless that is known. Reads
 * all of it: before ranges of it are read with load.check=data. Thread-safe.
 */
int bth_verify_storage(berth_checkpoint *checkpoint, const berth_storage *root, berth_error *error);
/* Its CRC against the directory's, which has been read (Z10). BERTH_E_CHECKSUM: a bad one. */
int bth_storage_check_crc32(berth_checkpoint *checkpoint, const berth_storage *storage,
                            uint32_t computed, berth_crc_verdict *verdict, berth_error *error);

/* Under the mutex: what is known of the source at any time; */
void bth_know_source(berth_checkpoint *checkpoint, bth_facts *facts);
/* how a storage becomes memory, T5 considered: direct reads are tried here (facts->no_direct); */
bth_way bth_storage_way(berth_checkpoint *checkpoint, const struct berth_config *config,
                        bth_facts *facts, const berth_storage *root);
/*
 * the address of the source's first byte, mapped when first needed; NULL: it cannot be. The file's
 * size is looked at again unless it was in this very tick of the clock (F1): who asks for many
 * storages one by one does not pay for each. `offset` is what an error names.
 */
int bth_need_map(berth_checkpoint *checkpoint, uint64_t offset, const uint8_t **map,
                 berth_error *error);

/* ---- verify.c: every byte ---- */

typedef struct bth_verifying {
    bth_sweep_order sweep;
    bool only_mapped; /* storages that are read are left for then: nothing is read twice */
    berth_record_function tell; /* NULL: nobody asks */
    void *context;
    berth_verdict verdict; /* of zeros */
} bth_verifying;

/*
 * Reads all records and compares their CRCs, and the headers and descriptors that were not compared
 * before; of a stream, reads all storages. The first bad one in the file's order is the error, all
 * are told. The directory was read. Not thread-safe.
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
/* `what` was asked of elements that are less than a byte. */
int bth_fail_subbyte(const berth_tensor *tensor, const char *what, berth_error *error);
/* Names the record of an error; of a legacy file, which has none, the storage. Returns its code. */
int bth_error_in_storage(const berth_checkpoint *checkpoint, const berth_storage *storage,
                         berth_error *error);

/* ---- load.c ---- */

/* berth_open; `config` NULL: that of the call. */
int bth_checkpoint_open_path(const char *path, const struct berth_config *config,
                             const berth_params *call, berth_checkpoint **opened,
                             berth_error *error);
/* Clears the call's statistics, if it asks for any: what fails early has some, too. */
void bth_stats_begin(const berth_params *call);
/* Fills them. */
void bth_checkpoint_stats(berth_checkpoint *checkpoint, const berth_params *call);

#endif

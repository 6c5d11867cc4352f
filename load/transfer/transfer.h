/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The transfer engine: workers move, sum and swap ranges of a source. It knows neither storages nor
 * records: the caller's functions name them. One call does all, with an access of its own:
 *
 *   bth_transfer_once
 *
 * Or step by step, where the caller has the access, the choices and the memory:
 *
 *   bth_transfer_measure_requests   ranges -> requests: how many, and how much memory they need
 *   bth_transfer_cut       where they go
 *   bth_transfer_run       moves all; or bth_wing_to_device.run, for devices
 *   bth_transfer_end       frees requests and buffers
 */
#ifndef BTH_LOAD_TRANSFER_TRANSFER_H
#define BTH_LOAD_TRANSFER_TRANSFER_H

#include "io/memory_region.h"
#include "load/transfer/requests.h"
#include "load/transfer/source_access.h"

/* The functions of the caller; each may be NULL. Thread-safe. */
typedef struct bth_transfer_calls {
    void *context;
    /* Adds the name of the range's owner to an error. Returns the error's code. */
    int (*name)(void *context, const bth_range *range, berth_error *error);
    /* Bytes [begin, end) of the source are at `bytes`; they hold some of the range. */
    void (*look)(void *context, const bth_range *range, const uint8_t *bytes, uint64_t begin,
                 uint64_t end);
    /* A request with this range failed. 0: the transfer goes on; ranges get is_unread. */
    int (*failed)(void *context, const bth_range *range, berth_error *error);
} bth_transfer_calls;

typedef struct bth_transfer {
    bth_access *access;
    const struct berth_config *config;
    const berth_params *params; /* for its progress; or NULL */
    bth_transfer_calls calls;
    bth_requests requests;   /* the caller sets ranges, n_ranges and use; and chunk_nbytes, or 0:
                                io.chunk_nbytes */
    bool with_crc32;         /* ranges get their CRCs */
    bool is_cold;            /* the ranges are not in the page cache, as far as is known */
    bool is_warm;            /* they are; both false: not known */
    bool is_in_memory;       /* mapped bytes are memory of the library: always present */
    const uint8_t *memory;   /* bth_transfer_once: the source's first byte, if the ranges are
                                mapped or in memory already; NULL: the engine chooses a method */
    uint64_t earlier_nbytes; /* of progress: done before this transfer, */
    uint64_t later_nbytes;   /* and to be done after it */
    /* The engine's: */
    bth_request *list;
    bool is_swapped; /* some range has a unit */
    bool any_late;   /* some range is swapped or moved after all of it is read */
    bool is_advised; /* the system is told which requests are next */
    uint64_t buffer_nbytes;
    unsigned n_workers;
    bth_region *buffers;      /* one for each worker, made when it needs one */
    uint8_t *region;          /* new memory of requests.region_nbytes; NULL: none */
    bth_pages_front front;    /* in the region */
    bth_pages pages;          /* of the region, and of new memory of the caller */
    atomic_bool is_cancelled; /* the caller's progress function has said so */
    /* Results, of all workers: */
    atomic_uint_fast64_t done_nbytes;
    atomic_uint_fast64_t moved_nbytes; /* read */
    atomic_uint_fast64_t n_reads;
    atomic_uint_fast64_t disk_nanoseconds;   /* reading, */
    atomic_uint_fast64_t render_nanoseconds; /* summing and swapping, */
    atomic_uint_fast64_t crc32_nanoseconds;  /* of that: summing */
} bth_transfer;

/* Measures; requests.region_nbytes, n_requests and nbytes are known then. */
int bth_transfer_measure_requests(bth_transfer *transfer, berth_error *error);
/* `region`, `mapped`: as for bth_requests_cut. */
int bth_transfer_cut(bth_transfer *transfer, uint8_t *region, const uint8_t *mapped,
                     berth_error *error);
/* Moves all of it. An error names the owner and the byte. */
int bth_transfer_run(bth_transfer *transfer, berth_error *error);
void bth_transfer_end(bth_transfer *transfer); /* of zeros: nothing */
/* All steps, with one choice for all ranges, which get it, for BTH_USE_CALLER and
 * BTH_USE_CHECKSUMS. Locks nothing. through_cache: load.method=auto leaves the bytes in the page
 * cache. */
int bth_transfer_once(bth_transfer *transfer, bth_reader *reader, bool through_cache,
                      berth_error *error);

/* ---- parts of bth_transfer_run, for workers of another pool; contexts are the transfer ---- */

int bth_transfer_report_progress(void *context);
/* Moves request number `task` to its memory. */
int bth_transfer_run_request(void *context, uint64_t task, unsigned worker, berth_error *error);
/* After all requests: ranges get the CRCs of their parts, and fell_back. */
void bth_transfer_merge_request_results(bth_transfer *transfer);
/* Adds the name of the range's owner to an error. Returns its code. */
int bth_transfer_add_range_to_error(const bth_transfer *transfer, const bth_range *range,
                                    berth_error *error);

/* ---- sinks.c: a long range of a source to the caller's memory, by bth_transfer_once ---- */

/* Whether the range is long enough for workers. */
bool bth_read_is_long(const struct berth_config *config, uint64_t nbytes);
/* The range has its place, and `memory`. Of a deflated record: also `inflated_from` (Z12). All of
 * it is inflated, for its CRC. */
int bth_read_range(bth_reader *reader, const struct berth_config *config, bth_range range,
                   bool through_cache, berth_error *error);
/* The same for bytes that are already at `memory`. is_mapped (F2): if the file was truncated after
 * it was mapped, that is an error, if it is detected in time. */
int bth_copy_range(bth_reader *reader, const struct berth_config *config, const uint8_t *memory,
                   bool is_mapped, uint8_t *buffer, uint64_t nbytes, uint64_t offset,
                   berth_error *error);

/* ---- sinks.c: checksum scans ---- */

/* A scan reads every byte of a source once, in parallel: it sums records, and checks the local
 * headers and descriptors between them. */

/* One record. The array is in the order of the file, and no two overlap. */
typedef struct bth_scan_record {
    uint64_t offset;            /* of the data in the file */
    const bth_zip_entry *entry; /* NULL: a storage of a file without a directory: */
    const berth_storage *storage;
    uint64_t nbytes;       /* of a deflated one: when it is inflated */
    bool is_deflated;      /* `entry` is; its header was checked */
    bool wants_header;     /* the header was not compared yet; `offset` is computed */
    bool wants_descriptor; /* the same */
    bool is_left_out;      /* not scanned; nbytes is 0 */
    /* Results: */
    bool header_is_good;     /* it agrees with entry and offset (Z5). False proves nothing: two
                                requests may share it */
    bool descriptor_is_good; /* the same (Z6) */
    uint32_t crc32;
    bool is_unread; /* a request for bytes of it failed: the other results are not valid */
} bth_scan_record;

/* Options and results of a scan. */
typedef struct bth_scan {
    const berth_params *params; /* for its progress; or NULL */
    bool through_cache;         /* leaves the bytes in the page cache: they are read again soon */
    bool defers_bad;            /* a record that cannot be inflated is only marked as unread: the
                                   caller scans it again, alone, for its error */
    bool goes_on;               /* goes on after a request that the disk cannot read */
    berth_error unread;         /* result: the first such error */
    const char *method;         /* results, static; unchanged if nothing is read */
    const char *reason;
} bth_scan;

/* The disk cannot read these bytes; others it can. */
bool bth_error_is_of_bad_disk(const berth_error *error);
/* Reads and sums all of them. */
int bth_scan_records(bth_reader *reader, const struct berth_config *config, bth_scan *scan,
                     bth_scan_record *records, size_t n_records, berth_error *error);

/* ---- the wing load/device/ ---- */

/*
 * Loads ranges to devices. Requests are read into pinned buffers, and summed and swapped there. The
 * device copies them while the next ones are read. Each worker has some staging slots, and a stream
 * on each device; the device copies from one slot while the worker fills another.
 */

/* The alignment of ranges in memory that is made on a device, as device allocators have it. But
 * small ranges have the same distances as in the file. */
#define BTH_DEVICE_ALIGNMENT 512

/* Memory of the library on devices. */
typedef struct bth_device_memory_list {
    bth_device_handle *device;
    unsigned life; /* of the device, in which it was made */
    uintptr_t address;
    struct bth_device_memory_list *next;
} bth_device_memory_list;

typedef struct bth_to_device {
    bth_transfer transfer; /* of ranges that have devices; prepared and cut */
    /* Results; also on failure: */
    bth_device_memory_list *memory; /* that was made, where a range has no address of its own */
    uint64_t staging_nbytes;
    double device_seconds; /* that workers waited for copies */
} bth_to_device;

/* The functions of the wing, load/device/. Without devices none is called. */
typedef struct bth_to_device_functions {
    /*
     * When it returns, all copies are complete; after a failure none is running. An error of a read
     * names the record and the byte, an error of a device the device.
     */
    int (*run)(bth_to_device *to, berth_error *error);
    void (*free_memory)(bth_device_memory_list *list);
} bth_to_device_functions;

extern const bth_to_device_functions bth_wing_to_device;

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/transfer/source_access.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/seeded_hash.h"
#include "base/trace.h"
#include "io/file.h"
#include "io/page_cache.h"
#include "io/syscalls.h"

/* For fewer bytes, free memory is not measured. */
#define MEASURED_MIN_NBYTES ((uint64_t)16 * 1024 * 1024)

typedef unsigned long long ull;

void bth_access_initialize(bth_access *access, bth_reader *reader)
{
    memset(access, 0, sizeof *access);
    access->reader = reader;
    access->direct.fd = -1;
}

void bth_access_close_direct(bth_access *access)
{
    if (access->direct_is_tried)
        bth_direct_close(&access->direct);
    access->direct_is_tried = false;
}

/* ---- conditions and choice ---- */

void bth_access_set_known_conditions(bth_access *access, bth_conditions *conditions)
{
    const bth_reader *reader = access->reader;

    if (!access->file_system_is_known && reader->fd >= 0)
        access->file_system = bth_file_system_query(reader->fd).kind;
    access->file_system_is_known = true;
    conditions->is_memory = reader->memory != NULL;
    conditions->is_file = reader->fd >= 0;
    conditions->cannot_map = access->map_is_refused;
    conditions->file_system = access->file_system;
}

void bth_access_measure(const bth_access *access, bth_conditions *conditions, uint64_t begin,
                        uint64_t end, uint64_t requested_nbytes)
{
    conditions->at_once = true;
    conditions->requested_nbytes = requested_nbytes;
    conditions->page_cache = BTH_PAGE_CACHE_UNKNOWN;
    conditions->free_nbytes = UINT64_MAX;
    if (requested_nbytes >= MEASURED_MIN_NBYTES && conditions->use != BTH_USE_CHECKSUMS)
        conditions->free_nbytes = bth_free_memory_nbytes("");
    if (!conditions->is_file || conditions->file_system == BTH_REMOTE ||
        conditions->file_system == BTH_IN_MEMORY || begin >= end)
        return;
    double begin_seconds = bth_trace_seconds();
    conditions->page_cache = bth_page_cache_probe(access->reader->fd, begin, end - begin);
    BTH_TRACE(.category = "system", .name = "look into the page cache",
              .begin_seconds = begin_seconds, .end_seconds = bth_seconds());
}

/*
 * The hashes of about 64 files that this process has loaded past the page cache (load.reuse=auto).
 * Each is at its own remainder: two files there replace each other.
 */
#define N_FILES 64
static atomic_uint_fast64_t loaded_files[N_FILES];

bth_choice bth_access_choose(bth_access *access, const struct berth_config *config,
                             bth_conditions *conditions, berth_load_method requested,
                             const char *requested_by)
{
    bth_choice choice = bth_choose(config, conditions, requested, requested_by);

    if (choice.method != BERTH_LOAD_DIRECT || conditions->no_direct)
        return choice;
    if (!access->direct_is_tried) {
        BTH_HOLD_CANCEL(true);
        access->direct.fd = -1;
        if (access->file_system == BTH_IN_MEMORY) /* some accept O_DIRECT, and still copy */
            access->no_direct = "the file system is in memory";
        else if (bth_direct_open(access->reader->fd, O_RDONLY, &access->direct, &access->no_direct))
            access->no_direct = NULL;
        access->direct_n_forks =
            bth_fork_count(); /* after the open; see bth_checkpoint_reset_after_fork */
        atomic_store(&access->direct_is_tried, true);
    }
    if (atomic_load(&access->direct_is_refused))
        access->no_direct = "a direct read was refused";
    conditions->no_direct = access->no_direct;
    if (!conditions->no_direct && requested == BERTH_LOAD_AUTO &&
        config->load_reuse == BTH_REUSE_AUTO && conditions->use != BTH_USE_CHECKSUMS) {
        /* The same inode, unchanged since; false also if the system does not report it. Only direct
         * loads count: after others the file is in the page cache. All of one open are one. */
        bth_reader *reader = access->reader;
        bth_reader_reuse unknown = BTH_READER_REUSE_UNKNOWN;
        struct stat status;
        uint64_t hash = 0;
        if (atomic_compare_exchange_strong(&reader->reuse, &unknown, BTH_READER_FIRST_LOAD) &&
            bth_system.fstat(reader->fd, &status) == 0) {
            const uint64_t fields[] = {(uint64_t)status.st_dev, (uint64_t)status.st_ino,
                                       (uint64_t)status.st_size, (uint64_t)status.st_mtim.tv_sec,
                                       (uint64_t)status.st_mtim.tv_nsec};
            for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
                hash = bth_hash_mix(hash, fields[i]);
            if (atomic_exchange(&loaded_files[hash % N_FILES], hash) == hash)
                atomic_store(&reader->reuse, BTH_READER_LOADED_BEFORE);
        }
        conditions->loaded_before = atomic_load(&reader->reuse) == BTH_READER_LOADED_BEFORE;
    }
    return bth_choose(config, conditions, requested, requested_by);
}

/* ---- the map ---- */

int bth_access_check_size(const bth_reader *reader, uint64_t nbytes, uint64_t offset,
                          berth_error *error)
{
    uint64_t file_nbytes;

    if (bth_file_size(reader->fd, &file_nbytes, error) < 0)
        return error->code;
    if (nbytes <= file_nbytes)
        return 0;
    return bth_fail(error, BERTH_E_TRUNCATED, NULL, offset,
                    "the file had %llu bytes when it was opened, and now has %llu",
                    (ull)reader->nbytes, (ull)file_nbytes);
}

int bth_access_map(bth_access *access, int flags, uint64_t offset, const uint8_t **map,
                   berth_error *error)
{
    const bth_reader *reader = access->reader;
    berth_error refusal;

    *map = reader->memory;
    if (*map || access->map_is_refused)
        return 0;
    uint64_t tick = bth_clock_read_coarse_tick(); /* F1 */
    if (tick != access->sized_at &&
        bth_access_check_size(reader, reader->nbytes, offset, error) < 0)
        return error->code;
    access->sized_at = tick;
    if (!access->map.address) {
        double begin_seconds = bth_trace_seconds();
        bth_error_clear(&refusal);
        int status = bth_map_file(reader->fd, reader->nbytes, flags, &access->map, &refusal);
        BTH_TRACE(.category = "system", .name = "mmap", .begin_seconds = begin_seconds,
                  .end_seconds = bth_seconds());
        /* Some file systems, limits of address space: bytes are read from now on. */
        access->map_is_refused = status < 0;
        if (status < 0)
            bth_log("%s: the file is read, not mapped: %s", reader->name, refusal.message);
    }
    *map = access->map.address;
    return 0;
}

/* ---- advice ---- */

int bth_access_advise_mapped_bytes(const bth_reader *reader, const uint8_t *memory, uint64_t nbytes,
                                   uint64_t offset, int advice, bool *done, berth_error *error)
{
    uintptr_t before = (uintptr_t)memory % (uintptr_t)sysconf(_SC_PAGESIZE);
    void *page = (void *)((uintptr_t)memory - before);
    int result;

    do
        result = bth_system.madvise(page, nbytes + before, advice);
    while (result < 0 && errno == EINTR);
    int failure = result < 0 ? errno : 0;
    *done = failure == 0;
    /* After others the kernel does not know the advice, or lacks resources for it. */
    if (failure != ENOMEM && failure != EFAULT && failure != EIO && failure != EHWPOISON)
        return 0;
    if (bth_access_check_size(reader, offset + nbytes, offset, error) < 0)
        return error->code;
    return bth_fail_errno(error, failure == EFAULT ? EIO : failure, NULL, offset,
                          "%llu bytes cannot be loaded into memory", (ull)nbytes);
}

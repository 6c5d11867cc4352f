/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/output.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/trace.h"
#include "io/file.h"
#include "io/file_system.h"
#include "io/page_cache.h"
#include "io/syscalls.h"
#include "save/image.h"

/* ---- a function of the caller ---- */

#define MIN_CHUNK_NBYTES 4096 /* of a sink */

static int sink_write(void *context, struct iovec *pieces, size_t n_pieces, uint64_t offset,
                      berth_error *error)
{
    const berth_sink *sink = context;

    assert(n_pieces == 1);
    int failure = sink->write(sink->context, pieces->iov_base, pieces->iov_len, offset);
    return failure == 0 ? 0 : bth_sink_fail(error, failure, offset);
}

int bth_sink_fail(berth_error *error, int failure, uint64_t offset)
{
    bth_fail_errno(error, failure < 0 ? -failure : failure, NULL, offset, "the sink failed");
    error->code = BERTH_E_CALLBACK;
    return error->code;
}

int bth_output_begin_sink(bth_output *output, uint64_t nbytes, berth_error *error)
{
    const berth_sink *sink = output->context;
    berth_sink_need need = {0};

    if (!sink->steps || !sink->steps->begin)
        return 0;
    int failure = sink->steps->begin(sink->context, nbytes, &need);
    if (failure != 0)
        return bth_sink_fail(error, failure, BERTH_NO_OFFSET);
    if (need.chunk_nbytes > 0 && need.chunk_nbytes < MIN_CHUNK_NBYTES)
        return bth_fail_argument(error, "the sink needs chunks of %llu bytes, the least is %d",
                                 (unsigned long long)need.chunk_nbytes, MIN_CHUNK_NBYTES);
    output->constraints.tile_nbytes = need.chunk_nbytes;
    output->n_threads = need.n_threads;
    output->n_placed = need.n_chunks;
    if (need.chunk_nbytes > 0 && sink->steps->place)
        output->placing = sink;
    return 0;
}

bth_output bth_output_of_sink(const berth_sink *sink)
{
    return (bth_output){.write = sink_write,
                        .context = (void *)sink,
                        .in_order = sink->in_order,
                        .reason = "a sink of the caller"};
}

/* ---- a descriptor at its own position ---- */

static int fd_write(void *context, struct iovec *pieces, size_t n_pieces, uint64_t offset,
                    berth_error *error)
{
    for (size_t i = 0; i < n_pieces; offset += pieces[i++].iov_len)
        if (bth_file_write(*(const int *)context, pieces[i].iov_base, pieces[i].iov_len,
                           BERTH_NO_OFFSET, error) < 0) {
            error->offset = offset;
            return error->code;
        }
    return 0;
}

bth_output bth_output_of_fd(const int *fd)
{
    return (bth_output){.write = fd_write,
                        .context = (void *)fd,
                        .in_order = true,
                        .constraints.min_zero_copy_nbytes = BTH_MIN_ZERO_COPY_NBYTES,
                        .reason = "a descriptor at its own position"};
}

/* ---- memory ---- */

static int memory_write(void *context, struct iovec *pieces, size_t n_pieces, uint64_t offset,
                        berth_error *error)
{
    (void)error;
    for (size_t i = 0; i < n_pieces; offset += pieces[i++].iov_len)
        memcpy((uint8_t *)context + offset, pieces[i].iov_base, pieces[i].iov_len);
    return 0;
}

static int memory_read(void *context, void *buffer, size_t nbytes, uint64_t offset,
                       berth_error *error)
{
    (void)error;
    memcpy(buffer, (const uint8_t *)context + offset, nbytes);
    return 0;
}

bth_output bth_output_of_memory(uint8_t *memory)
{
    return (bth_output){.write = memory_write,
                        .read = memory_read,
                        .context = memory,
                        .constraints.min_zero_copy_nbytes = BTH_MIN_ZERO_COPY_NBYTES,
                        .reason = "memory"};
}

/* ---- a file, through the page cache or by direct writes ---- */

/*
 * Smaller files go through the page cache: it is as fast, and the next load finds the file there.
 * Durable on ext4, GB/s, medians of 15 interleaved, buffered and direct: 8 MiB 1.7 and 1.7; 32 MiB
 * 1.1 and 0.9; 64 MiB 1.4 and 1.4; 128 MiB 1.2 and 2.1. With 1 GiB both are as fast, but while
 * other programs wrote, buffered fell to a sixth.
 */
#define MIN_DIRECT_NBYTES ((uint64_t)64 * 1024 * 1024)
/* Whole blocks and deferred blocks need this much. */
#define MIN_MEMORY_NBYTES ((int64_t)1024 * 1024)

const char *bth_output_method_choose(const struct berth_config *config, int fd, uint64_t nbytes,
                                     bool *is_direct)
{
    *is_direct = false;
    if (config->save_method == BTH_SAVE_BUFFERED)
        return "save.method=buffered";
    bth_file_system system = bth_file_system_query(fd).kind;
    if (system == BTH_IN_MEMORY) /* tmpfs takes direct writes since Linux 6.6, and copies */
        return "the file system is in memory";
    if (config->io_memory_nbytes > 0 && config->io_memory_nbytes < MIN_MEMORY_NBYTES)
        return "io.memory_nbytes is too little for direct writes";
    *is_direct = config->save_method == BTH_SAVE_DIRECT;
    if (*is_direct)
        return "save.method=direct";
    if (nbytes < MIN_DIRECT_NBYTES)
        return "the file is small";
    /*
     * The kernel would write such a file to the disk before the save ends, and drop other files
     * from the page cache. With save.durability=none smaller files are buffered: the kernel makes
     * the writer wait only for the part above vm.dirty_ratio, direct writes wait for all.
     */
    *is_direct = nbytes > bth_free_memory_nbytes("");
    if (*is_direct)
        return "the file is larger than the memory that is free";
    if (config->save_durability == BTH_DURABILITY_NONE)
        return "save.durability=none does not wait for a disk";
    if (system != BTH_ON_DISK)
        return "direct writes are not measured on this file system";
    *is_direct = true;
    return "the file goes to a disk";
}

uint64_t bth_output_file_size_limit(void)
{
    struct rlimit limit;

    return bth_system.getrlimit(RLIMIT_FSIZE, &limit) < 0 ? UINT64_MAX : limit.rlim_cur;
}

uint64_t bth_output_file_own_and_free_room(int fd)
{
    struct statvfs system;
    struct stat file;

    if (bth_system.fstatvfs(fd, &system) < 0 || system.f_blocks == 0 ||
        bth_system.fstat(fd, &file) < 0)
        return UINT64_MAX; /* some network file systems do not report it */
    return (uint64_t)system.f_bavail * system.f_frsize + (uint64_t)file.st_blocks * 512;
}

int bth_fail_no_space(berth_error *error, int system_errno, const char *record, uint64_t offset,
                      uint64_t room_nbytes, uint64_t nbytes, uint64_t written_nbytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
    const char *what = bth_errno_text(system_errno);
    uint64_t missing_nbytes = nbytes - (room_nbytes < nbytes ? room_nbytes : written_nbytes);
    size_t unit = 0;

    /* "812 MiB": whole units, rounded up, below 10,000. */
    for (; missing_nbytes >= 10000 && unit < sizeof units / sizeof *units - 1; unit++)
        missing_nbytes = missing_nbytes / 1024 + (missing_nbytes % 1024 != 0);
    bth_fail(error, BERTH_E_NO_SPACE, record, offset, "%s (%llu %s missing)",
             what ? what : "no room", (unsigned long long)missing_nbytes, units[unit]);
    error->system_errno = system_errno;
    return error->code;
}

static int output_file_read(void *context, void *buffer, size_t nbytes, uint64_t offset,
                            berth_error *error)
{
    return bth_file_read(((const bth_output_file *)context)->fd, buffer, nbytes, offset, error);
}

static int output_file_write_to(int fd, struct iovec *pieces, size_t n_pieces, uint64_t offset,
                                berth_error *error)
{
    if (n_pieces == 1)
        return bth_file_write(fd, pieces->iov_base, pieces->iov_len, offset, error);
    return bth_file_write_pieces(fd, pieces, n_pieces, offset, error);
}

/*
 * A refused direct request is repeated as a whole through the page cache, and later ones go there
 * at once. Writes of both kinds never share a block.
 */
static int output_file_write(void *context, struct iovec *pieces, size_t n_pieces, uint64_t offset,
                             berth_error *error)
{
    bth_output_file *file = context;
    struct iovec copy[BTH_MAX_PIECES];
    uint64_t nbytes = 0;

    for (size_t i = 0; i < n_pieces; i++)
        nbytes += pieces[i].iov_len;
    if (atomic_load(&file->is_direct)) {
        memcpy(copy, pieces, n_pieces * sizeof *pieces); /* a write uses them up */
        if (output_file_write_to(file->direct.fd, copy, n_pieces, offset, error) == 0 ||
            error->system_errno != EINVAL)
            return error->code;
        bth_error_clear(error);
        if (atomic_exchange(&file->is_direct, false))
            bth_log("a direct write at byte %llu was refused, the rest goes through the page cache",
                    (unsigned long long)offset);
    }
    if (output_file_write_to(file->fd, pieces, n_pieces, offset, error) < 0)
        return error->code;
    /* Starts writing to the disk without waiting, so that the sync at the end has little to do. A
     * failure of the disk fails the save (W2). If the system cannot do this, it is not tried again.
     */
    if (!atomic_load(&file->is_early))
        return 0;
    double begin_seconds = bth_trace_seconds();
    int result =
        bth_system.sync_file_range(file->fd, (off_t)offset, (off_t)nbytes, SYNC_FILE_RANGE_WRITE);
    int failure = result < 0 ? errno : 0;
    BTH_TRACE(.category = "system", .name = "start writeback", .begin_seconds = begin_seconds,
              .end_seconds = bth_seconds(), .offset = offset, .nbytes = nbytes);
    if (failure == EIO || failure == ENOSPC || failure == EDQUOT)
        return bth_fail_errno(error, failure, NULL, offset, "cannot be synced");
    if (failure != 0)
        atomic_store(&file->is_early, false);
    return 0;
}

/*
 * The kernel (6.18, ext4, copy_folio_from_iter_atomic) makes a folio of the page cache as large as
 * the write. Large ones cost much in a virtual machine, whose host must have the memory in one
 * piece. A later sync likes them, so this is only for saves that do not sync.
 */
#define UNSYNCED_TILE_NBYTES ((uint64_t)128 * 1024)

bth_output bth_output_file_begin(bth_output_file *file, int fd, uint64_t nbytes,
                                 const struct berth_config *config)
{
    bool is_direct = false;
    const char *reason = bth_output_method_choose(config, fd, nbytes, &is_direct);

    *file = (bth_output_file){.fd = fd, .direct.fd = -1, .reason = reason};
    bth_output output = {.write = output_file_write,
                         .read = output_file_read,
                         .file = file,
                         .context = file,
                         .constraints.min_zero_copy_nbytes = BTH_MIN_ZERO_COPY_NBYTES};

    if (is_direct && bth_direct_open(fd, O_WRONLY, &file->direct, &file->reason)) {
        /* Direct writes run side by side only within the file's size: it is rounded up, and cut
         * later. */
        uint64_t padded_nbytes = bth_round_up(nbytes, file->direct.block_nbytes);
        if (padded_nbytes > bth_output_file_size_limit())
            file->reason = "the limit of a file's size leaves no room for a whole last block";
        else if (padded_nbytes != nbytes && bth_system.ftruncate(fd, (off_t)padded_nbytes) < 0)
            file->reason = "the last block cannot be padded";
        else
            file->began_direct = true;
        if (!file->began_direct)
            bth_direct_close(&file->direct);
    }
    if (file->began_direct) {
        file->reason = reason;
        output.constraints.block_nbytes = file->direct.block_nbytes;
        output.constraints.memory_alignment = file->direct.memory_alignment;
        output.constraints.large_pages_only = true;
    } else if (config->save_durability == BTH_DURABILITY_NONE)
        output.constraints.tile_nbytes = UNSYNCED_TILE_NBYTES;
    atomic_init(&file->is_direct, file->began_direct);
    atomic_init(&file->is_early, config->save_durability != BTH_DURABILITY_NONE);
    output.reason = file->reason;
    return output;
}

const char *bth_output_file_method(const bth_output_file *file, const char **reason)
{
    *reason = file->reason;
    if (!file->began_direct)
        return "buffered";
    if (atomic_load(&file->is_direct))
        return "direct";
    *reason = "a direct write was refused (EINVAL), the rest was buffered";
    return "direct, then buffered";
}

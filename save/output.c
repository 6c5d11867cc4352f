/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/output.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "io/file.h"

/* ---- a function of the caller ---- */

static int sink_write(void *context, struct iovec *pieces, size_t n_pieces, uint64_t offset,
                      berth_error *error)
{
    const berth_sink *sink = context;

    assert(n_pieces == 1);
    int failure = sink->write(sink->context, pieces->iov_base, pieces->iov_len, offset);
    if (failure == 0)
        return 0;
    bth_fail_errno(error, failure < 0 ? -failure : failure, NULL, offset, "the sink failed");
    error->code = BERTH_E_CALLBACK;
    return error->code;
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
        if (bth_file_write_at_current_offset(*(const int *)context, pieces[i].iov_base,
                                             pieces[i].iov_len, error) < 0) {
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

/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/output.h"

#include <string.h>

#include "config/error.h"
#include "io/file.h"

/* ---- a function of the caller ---- */

static int sink_write(void *context, const void *buffer, size_t nbytes, uint64_t offset,
                      berth_error *error)
{
    const berth_sink *sink = context;
    int failure = sink->write(sink->context, buffer, nbytes, offset);

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

static int fd_write(void *context, const void *buffer, size_t nbytes, uint64_t offset,
                    berth_error *error)
{
    (void)offset; /* tiles come in order */
    return bth_file_append(*(const int *)context, buffer, nbytes, error);
}

bth_output bth_output_of_fd(const int *fd)
{
    return (bth_output){.write = fd_write,
                        .context = (void *)fd,
                        .in_order = true,
                        .takes_any_memory = true,
                        .reason = "a descriptor at its own position"};
}

/* ---- memory ---- */

static int memory_write(void *context, const void *buffer, size_t nbytes, uint64_t offset,
                        berth_error *error)
{
    (void)error;
    const bth_output_memory *memory = context;
    memcpy(memory->bytes + offset, buffer, nbytes);
    return 0;
}

static int memory_read(void *context, void *buffer, size_t nbytes, uint64_t offset,
                       berth_error *error)
{
    (void)error;
    const bth_output_memory *memory = context;
    memcpy(buffer, memory->bytes + offset, nbytes);
    return 0;
}

bth_output bth_output_of_memory(bth_output_memory *memory)
{
    return (bth_output){.write = memory_write,
                        .read = memory_read,
                        .context = memory,
                        .takes_any_memory = true,
                        .reason = "memory"};
}

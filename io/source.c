/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/source.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/trace.h"
#include "config/options.h"
#include "io/file.h"
#include "io/syscalls.h"

const char *bth_source_name(const berth_source *source)
{
    switch (source->kind) {
    case BERTH_SOURCE_PATH:
        return source->path;
    case BERTH_SOURCE_FD:
        return "descriptor";
    case BERTH_SOURCE_MEMORY:
        return "memory";
    default:
        return source->name ? source->name : "source";
    }
}

int bth_reader_open_source(const berth_source *source, bth_reader *reader, berth_error *error)
{
    const char *name = bth_source_name(source);
    char text[32];

    if (BTH_CHECK_RESERVED(berth_source, source, error) < 0)
        return error->code;
    memset(reader, 0, sizeof *reader);
    reader->fd = -1;
    reader->nbytes = source->nbytes;
    reader->has_path = source->kind == BERTH_SOURCE_PATH;
    if (source->kind == BERTH_SOURCE_FD) {
        (void)snprintf(text, sizeof text, "%s %d", name, source->fd);
        name = text;
    }
    reader->name = bth_duplicate_text(name, strlen(name));
    if (reader->name && !reader->has_path && source->path)
        reader->stand_in = bth_duplicate_text(source->path, strlen(source->path));
    if (!reader->name || (!reader->has_path && source->path && !reader->stand_in)) {
        (void)bth_fail_memory(error, strlen(reader->name ? source->path : name) + 1);
        goto fail;
    }
    switch (source->kind) {
    case BERTH_SOURCE_PATH:
        (void)bth_file_open(source->path, &reader->fd, &reader->nbytes, error);
        break;
    case BERTH_SOURCE_FD:
        reader->fd = bth_system.dup(source->fd);
        if (reader->fd < 0)
            (void)bth_fail_system(error, errno, "cannot be duplicated");
        else
            (void)bth_file_size(reader->fd, &reader->nbytes, error);
        break;
    case BERTH_SOURCE_MEMORY:
        if (!source->bytes && reader->nbytes > 0)
            (void)bth_fail_argument(error, "the address of %zu bytes is NULL",
                                    (size_t)reader->nbytes);
        /* Not NULL, even for 0 bytes: NULL means that the source is a file or a function. */
        reader->memory = source->bytes ? source->bytes : (const uint8_t *)"";
        break;
    case BERTH_SOURCE_FUNCTION:
        reader->source = *source;
        reader->source.name = reader->name; /* the caller's text may not outlive this call */
        if (!source->read)
            (void)bth_fail_argument(error, "has no read function");
        break;
    default:
        (void)bth_fail_argument(error, "invalid kind of source: %d", (int)source->kind);
    }
    if (error->code == BERTH_OK)
        return 0;
fail:
    bth_reader_close(reader);
    return error->code;
}

void bth_reader_close(bth_reader *reader)
{
    /* A reader of zeros has no name; its descriptor 0 is not its own. */
    if (reader->name)
        bth_file_close(reader->fd);
    bth_release(reader->name);
    bth_release(reader->stand_in);
    memset(reader, 0, sizeof *reader);
    reader->fd = -1;
}

int bth_reader_file(const bth_reader *reader)
{
    if (reader->fd >= 0 || reader->memory)
        return reader->fd;
    return reader->source.fd > 0 ? reader->source.fd : -1;
}

bool bth_reader_is_near(const bth_reader *reader)
{
    return reader->memory || bth_reader_file(reader) >= 0;
}

void bth_reader_count_request(bth_reader *reader, size_t nbytes)
{
    atomic_fetch_add_explicit(&reader->n_requests, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&reader->moved_nbytes, nbytes, memory_order_relaxed);
}

int bth_reader_read_untraced(bth_reader *reader, void *buffer, size_t nbytes, uint64_t offset,
                             berth_error *error)
{
    assert(reader->name); /* it is open */
    if (offset > reader->nbytes || nbytes > reader->nbytes - offset)
        return bth_fail(error, BERTH_E_TRUNCATED, NULL, offset,
                        "%zu bytes needed, but there are only %llu bytes in all", nbytes,
                        (unsigned long long)reader->nbytes);
    if (nbytes == 0)
        return 0;
    if (reader->memory) {
        memcpy(buffer, reader->memory + offset, nbytes);
    } else if (reader->fd >= 0) {
        if (bth_file_read(reader->fd, buffer, nbytes, offset, error) < 0)
            return error->code;
    } else if (!reader->source.read) {
        return bth_fail_argument(error, "the descriptor was closed: berth_close_descriptors");
    } else {
        int result = reader->source.read(reader->source.context, buffer, nbytes, offset);
        const char *text = result > 0 ? bth_errno_text(result) : NULL;
        char returned[32];
        if (result != 0) {
            (void)snprintf(returned, sizeof returned, "it returned %d", result);
            (void)bth_fail(error, BERTH_E_CALLBACK, NULL, offset,
                           "the source did not read %zu bytes: %s", nbytes, text ? text : returned);
            error->system_errno = text ? result : 0;
            return error->code;
        }
    }
    bth_reader_count_request(reader, nbytes);
    return 0;
}

int bth_reader_read(bth_reader *reader, void *buffer, size_t nbytes, uint64_t offset,
                    berth_error *error)
{
    if (!bth_trace_current())
        return bth_reader_read_untraced(reader, buffer, nbytes, offset, error);
    bth_trace_span request = {.category = "request,read",
                              .name = "read",
                              .begin_seconds = bth_seconds(),
                              .offset = offset};
    bth_trace_begin_request();
    int status = bth_reader_read_untraced(reader, buffer, nbytes, offset, error);
    request.nbytes = status < 0 ? 0 : nbytes;
    request.end_seconds = bth_seconds();
    bth_trace_end_request(&request, false);
    return status;
}

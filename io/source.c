/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/source.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "config/options.h"
#include "io/file.h"
#include "io/syscalls.h"

static int reader_begin(bth_reader *reader, const char *name, berth_error *error)
{
    memset(reader, 0, sizeof *reader);
    reader->fd = -1;
    atomic_init(&reader->n_requests, 0);
    atomic_init(&reader->moved_nbytes, 0);
    reader->name = bth_duplicate(name, strlen(name));
    if (!reader->name)
        return bth_fail_memory(error, strlen(name) + 1);
    return 0;
}

/* For an open that failed: nothing is left to close. */
static int reader_abandon(bth_reader *reader, const berth_error *error)
{
    bth_reader_close(reader);
    return error->code;
}

int bth_reader_open_path(const char *path, bth_reader *reader, berth_error *error)
{
    if (reader_begin(reader, path, error) < 0 ||
        bth_file_open(path, &reader->fd, &reader->nbytes, error) < 0)
        return reader_abandon(reader, error);
    return 0;
}

int bth_reader_open_fd(int fd, bth_reader *reader, berth_error *error)
{
    char name[32];

    (void)snprintf(name, sizeof name, "descriptor %d", fd);
    if (reader_begin(reader, name, error) < 0)
        return reader_abandon(reader, error);
    reader->fd = bth_system.dup(fd);
    if (reader->fd < 0) {
        (void)bth_fail_errno(error, errno, NULL, BERTH_NO_OFFSET, "cannot be duplicated");
        return reader_abandon(reader, error);
    }
    if (bth_file_size(reader->fd, &reader->nbytes, error) < 0)
        return reader_abandon(reader, error);
    return 0;
}

int bth_reader_open_memory(const void *bytes, size_t nbytes, bth_reader *reader, berth_error *error)
{
    if (reader_begin(reader, "memory", error) < 0)
        return reader_abandon(reader, error);
    /* Not NULL, also for no bytes: that is how memory differs from files and functions. */
    reader->memory = bytes ? bytes : (const uint8_t *)"";
    reader->nbytes = nbytes;
    if (!bytes && nbytes > 0) {
        (void)bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "%zu bytes at address NULL",
                       nbytes);
        return reader_abandon(reader, error);
    }
    return 0;
}

static int open_function(const berth_source *source, bth_reader *reader, berth_error *error)
{
    if (reader_begin(reader, source->name ? source->name : "source", error) < 0)
        return reader_abandon(reader, error);
    reader->source = *source;
    reader->source.name = reader->name; /* the caller's text may not outlive this call */
    reader->nbytes = source->nbytes;
    if (!source->read) {
        (void)bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "has no read function");
        return reader_abandon(reader, error);
    }
    return 0;
}

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
    if (BTH_CHECK_RESERVED(berth_source, source, error) < 0)
        return error->code;
    switch (source->kind) {
    case BERTH_SOURCE_PATH:
        return bth_reader_open_path(source->path, reader, error);
    case BERTH_SOURCE_FD:
        return bth_reader_open_fd(source->fd, reader, error);
    case BERTH_SOURCE_MEMORY:
        return bth_reader_open_memory(source->bytes, (size_t)source->nbytes, reader, error);
    case BERTH_SOURCE_FUNCTION:
        return open_function(source, reader, error);
    }
    return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "invalid kind of source: %d",
                    (int)source->kind);
}

void bth_reader_close(bth_reader *reader)
{
    /* A reader of zeros has no name; its descriptor 0 is not its own. */
    if (reader->name)
        bth_file_close(reader->fd);
    bth_release(reader->name);
    memset(reader, 0, sizeof *reader);
    reader->fd = -1;
}

static int fail_callback(berth_error *error, int result, uint64_t offset, size_t nbytes)
{
    const char *text = result > 0 ? strerrordesc_np(result) : NULL;

    if (text)
        (void)bth_fail(error, BERTH_E_CALLBACK, NULL, offset,
                       "the source did not read %zu bytes: %s", nbytes, text);
    else
        (void)bth_fail(error, BERTH_E_CALLBACK, NULL, offset,
                       "the source did not read %zu bytes: it returned %d", nbytes, result);
    error->system_errno = text ? result : 0;
    return error->code;
}

static int reader_fill(bth_reader *reader, void *buffer, size_t nbytes, uint64_t offset,
                       berth_error *error)
{
    if (reader->memory) {
        memcpy(buffer, reader->memory + offset, nbytes);
        return 0;
    }
    if (reader->fd >= 0)
        return bth_file_read(reader->fd, buffer, nbytes, offset, error);
    int result = reader->source.read(reader->source.context, buffer, nbytes, offset);
    return result == 0 ? 0 : fail_callback(error, result, offset, nbytes);
}

void bth_reader_count(bth_reader *reader, size_t nbytes)
{
    atomic_fetch_add_explicit(&reader->n_requests, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&reader->moved_nbytes, nbytes, memory_order_relaxed);
}

int bth_reader_read(bth_reader *reader, void *buffer, size_t nbytes, uint64_t offset,
                    berth_error *error)
{
    assert(reader->name); /* it is open */
    if (offset > reader->nbytes || nbytes > reader->nbytes - offset)
        return bth_fail(error, BERTH_E_TRUNCATED, NULL, offset,
                        "%zu bytes needed, but there are only %llu bytes in all", nbytes,
                        (unsigned long long)reader->nbytes);
    if (nbytes == 0)
        return 0;
    if (reader_fill(reader, buffer, nbytes, offset, error) < 0)
        return error->code;
    bth_reader_count(reader, nbytes);
    return 0;
}

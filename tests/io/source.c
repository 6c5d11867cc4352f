/* SPDX-License-Identifier: BSD-3-Clause */
/* Bytes from a path, a descriptor, memory or the caller: one interface, the same errors. */
#include "io/source.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define NBYTES 5000

#include "io/file.h"
#include "tests/support/io/small_file.h"

static int result_of_read;

static void begin_source(void)
{
    begin_file(NBYTES);
}

TestSuite(source, .init = begin_source, .fini = end_file);

static int read_bytes(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    memcpy(buffer, (const uint8_t *)context + offset, nbytes);
    return result_of_read;
}

static const berth_source of_caller = {
    .nbytes = NBYTES, .name = "store://bucket/model", .read = read_bytes, .context = file_bytes};

static int open_source(berth_source source, bth_reader *reader)
{
    return bth_reader_open_source(&source, reader, &error);
}

/* Opens the same bytes by one of four kinds of sources. */
static int open_by(int kind, bth_reader *reader)
{
    int status, fd;

    switch (kind) {
    case 0:
        return open_source(berth_from_path(path), reader);
    case 1:
        fd = open(path, O_RDONLY | O_CLOEXEC);
        status = open_source(berth_from_fd(fd), reader);
        cr_assert(status < 0 || reader->fd != fd);
        (void)close(fd); /* the reader has its own */
        return status;
    case 2:
        return open_source(berth_from_memory(file_bytes, NBYTES), reader);
    default:
        return open_source(of_caller, reader);
    }
}

Test(source, of_any_kind_gives_the_same_bytes_and_counts)
{
    uint8_t found[NBYTES];
    bth_reader reader;

    for (int kind = 0; kind < 4; kind++) {
        cr_assert_eq(open_by(kind, &reader), 0, "%s", error.message);
        cr_assert_eq(reader.nbytes, NBYTES);
        cr_assert_eq(bth_reader_read(&reader, found, NBYTES, 0, &error), 0);
        cr_assert_arr_eq(found, file_bytes, NBYTES);
        cr_assert_eq(bth_reader_read(&reader, found, 100, NBYTES - 100, &error), 0);
        cr_assert_arr_eq(found, file_bytes + NBYTES - 100, 100);
        cr_assert_eq(bth_reader_read(&reader, NULL, 0, NBYTES, &error), 0);
        cr_assert_eq(reader.n_requests, 2);
        cr_assert_eq(reader.moved_nbytes, NBYTES + 100);
        bth_reader_close(&reader);
        bth_reader_close(&reader);
    }
}

Test(source, never_gives_bytes_beyond_its_end)
{
    uint8_t found[16];
    bth_reader reader;

    for (int kind = 0; kind < 4; kind++) {
        cr_assert_eq(open_by(kind, &reader), 0);
        error = (berth_error){0};
        FAILS(bth_reader_read(&reader, found, 16, NBYTES - 15, &error), BERTH_E_TRUNCATED,
              "at byte 4985: 16 bytes needed, but there are only 5000 bytes in all");
        error = (berth_error){0};
        cr_assert_eq(bth_reader_read(&reader, found, 1, UINT64_MAX, &error), BERTH_E_TRUNCATED);
        error = (berth_error){0};
        cr_assert_eq(bth_reader_read(&reader, found, SIZE_MAX, 1, &error), BERTH_E_TRUNCATED);
        cr_assert_eq(reader.n_requests, 0, "told before anything is read");
        error = (berth_error){0};
        bth_reader_close(&reader);
    }
}

Test(source, has_a_name_for_messages)
{
    bth_reader reader;
    static const berth_source nameless = {.nbytes = 1, .read = read_bytes};
    char name[32];

    cr_assert_eq(open_by(0, &reader), 0);
    cr_assert_str_eq(reader.name, path);
    bth_reader_close(&reader);
    cr_assert_eq(open_source(berth_from_memory("", 1), &reader), 0);
    cr_assert_str_eq(reader.name, "memory");
    bth_reader_close(&reader);
    cr_assert_eq(open_source(of_caller, &reader), 0);
    cr_assert_str_eq(reader.name, "store://bucket/model");
    bth_reader_close(&reader);
    cr_assert_eq(open_source(nameless, &reader), 0);
    cr_assert_str_eq(reader.name, "source");
    bth_reader_close(&reader);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    cr_assert_eq(open_source(berth_from_fd(fd), &reader), 0);
    (void)snprintf(name, sizeof name, "descriptor %d", fd);
    cr_assert_str_eq(reader.name, name);
    bth_reader_close(&reader);
    (void)close(fd);
}

Test(source, of_the_caller_that_fails_is_told_with_its_errno)
{
    uint8_t found[10];
    bth_reader reader;

    cr_assert_eq(open_source(of_caller, &reader), 0);
    result_of_read = ETIMEDOUT;
    FAILS(bth_reader_read(&reader, found, 10, 7, &error), BERTH_E_CALLBACK,
          "at byte 7: the source did not read 10 bytes: Connection timed out");
    cr_assert_eq(error.system_errno, ETIMEDOUT);
    error = (berth_error){0};
    result_of_read = -1;
    FAILS(bth_reader_read(&reader, found, 10, 7, &error), BERTH_E_CALLBACK,
          "at byte 7: the source did not read 10 bytes: it returned -1");
    cr_assert_eq(error.system_errno, 0);
    cr_assert_eq(reader.n_requests, 0);
    bth_reader_close(&reader);
}

Test(source, that_is_truncated_while_read_is_an_error_w9)
{
    uint8_t found[NBYTES];
    bth_reader reader;

    cr_assert_eq(open_by(0, &reader), 0);
    cr_assert_eq(truncate(path, 4000), 0);
    FAILS(bth_reader_read(&reader, found, NBYTES, 0, &error), BERTH_E_TRUNCATED,
          "at byte 4000: the file ends here, 1000 bytes too early");
    bth_reader_close(&reader);
}

Test(source, that_is_replaced_while_read_stays_whole_w9)
{
    uint8_t found[NBYTES];
    bth_reader reader;
    char *other = test_path(folder, "other");

    cr_assert_eq(open_by(0, &reader), 0);
    test_write_file(other, "new", 3);
    cr_assert_eq(rename(other, path), 0);
    cr_assert_eq(bth_reader_read(&reader, found, NBYTES, 0, &error), 0);
    cr_assert_arr_eq(found, file_bytes, NBYTES);
    bth_reader_close(&reader);
    free(other);
}

static void expect_closed(const bth_reader *reader)
{
    cr_assert_null(reader->name);
    cr_assert_eq(reader->fd, -1);
}

Test(source, that_cannot_be_opened_leaves_nothing)
{
    bth_reader reader;
    int ends[2];

    cr_assert_eq(open_source(berth_from_path(folder), &reader), BERTH_E_NOT_CHECKPOINT);
    expect_closed(&reader);
    error = (berth_error){0};
    FAILS(open_source(berth_from_fd(-1), &reader), BERTH_E_SYSTEM,
          "cannot be duplicated: Bad file descriptor");
    expect_closed(&reader);
    cr_assert_eq(pipe(ends), 0);
    error = (berth_error){0};
    FAILS(open_source(berth_from_fd(ends[0]), &reader), BERTH_E_NOT_CHECKPOINT, BTH_FILE_IS_PIPE);
    expect_closed(&reader);
    (void)close(ends[0]);
    (void)close(ends[1]);
    error = (berth_error){0};
    FAILS(open_source(berth_from_memory(NULL, 4), &reader), BERTH_E_ARGUMENT,
          "the address of 4 bytes is NULL");
    error = (berth_error){0};
    FAILS(open_source((berth_source){.nbytes = 4}, &reader), BERTH_E_ARGUMENT,
          "has no read function");
    expect_closed(&reader);
}

Test(source, that_finds_no_memory_says_so_w6)
{
    bth_reader reader;

    test_memory_watch();
    for (int kind = 0; kind < 4; kind++) {
        test_memory_refuse(1, false);
        error = (berth_error){0};
        cr_assert_eq(open_by(kind, &reader), BERTH_E_MEMORY);
        expect_closed(&reader);
    }
    cr_assert_eq(test_memory_seen().live_nbytes, 0);
    test_memory_unwatch();
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Long ranges into the caller's memory: by several workers, as load.method says, never a signal. */
#include "tests/support/io/refusals.h"
#include "tests/support/load/fetch_scene.h"

TestSuite(range, .init = begin_fetch, .fini = end_fetch);

/* Of the long tensor "t3": nothing in it begins or ends where a chunk, a block or a unit does. */
enum { LONG = 3, FIRST = 3, N = 499990 };
#define LONG_NBYTES ((size_t)N * 8)
#define IN_PIECES " io.threads=4 io.chunk_nbytes=65536"

/* ---- who reads, and what ---- */

static atomic_uint n_reads, n_threads, n_odd;
static atomic_size_t most_nbytes;
static _Thread_local bool is_counted;

static ssize_t counting_pread(int fd, void *buffer, size_t nbytes, off_t offset)
{
    size_t most = atomic_load(&most_nbytes);

    n_reads++;
    n_threads += !is_counted;
    is_counted = true;
    n_odd += nbytes % 512 != 0 || offset % 512 != 0 || (uintptr_t)buffer % 512 != 0;
    while (most < nbytes && !atomic_compare_exchange_weak(&most_nbytes, &most, nbytes))
        ;
    (void)usleep(1000); /* time enough for the others to get something */
    return pread(fd, buffer, nbytes, offset);
}

static void count_reads(void)
{
    n_reads = n_threads = n_odd = 0;
    most_nbytes = 0;
    is_counted = false;
    bth_system.pread = counting_pread;
}

static int read_long(uint8_t *buffer)
{
    const berth_tensor *tensor = tensor_at(LONG);

    count_reads();
    int status = berth_tensor_read(checkpoint, tensor, FIRST, N, buffer, &error);
    bth_system_restore();
    return status;
}

static void expect_long(const char *about)
{
    uint8_t *buffer = malloc(LONG_NBYTES + 1);

    buffer[LONG_NBYTES] = 0x5a;
    cr_assert_eq(read_long(buffer), 0, "%s: %s", about, error.message);
    cr_expect_eq(memcmp(buffer, (uint8_t *)elements[LONG] + FIRST * 8, LONG_NBYTES), 0, "%s",
                 about);
    cr_expect_eq(buffer[LONG_NBYTES], 0x5a, "%s", about);
    free(buffer);
}

/* ---- every way ---- */

Test(range, that_is_long_is_read_by_several_workers_in_chunks)
{
    open_as("debug=off load.method=read io.threads=4 io.chunk_nbytes=65536");
    expect_long("read");
    cr_expect_geq(n_reads, LONG_NBYTES / 65536);
    cr_expect_geq(n_threads, 2);
    cr_expect_eq(most_nbytes, 65536);
    cr_expect_not(is_memory(LONG), "the storage is not made memory");
}

Test(range, that_is_short_is_one_request)
{
    open_as("debug=off load.method=read io.threads=4"); /* chunks of 4 MiB */
    expect_long("one");
    cr_expect_eq(n_reads, 1);
}

Test(range, of_direct_reads_goes_past_the_page_cache_through_buffers)
{
    open_as("debug=off load.method=direct io.threads=4 io.chunk_nbytes=65536");
    if (!direct_reads_work())
        cr_skip("no direct reads here");
    expect_long("direct");
    cr_expect_geq(n_reads, LONG_NBYTES / 65536);
    cr_expect_geq(n_threads, 2);
    cr_expect_eq(n_odd, 0, "whole blocks, to whole blocks");
}

Test(range, goes_by_the_method_that_was_chosen_for_its_storage)
{
    const berth_storage_rule rule = {.pattern = "t3", .method = BERTH_LOAD_DIRECT};

    open_as("debug=off load.method=read io.threads=4 io.chunk_nbytes=65536");
    if (!direct_reads_work())
        cr_skip("no direct reads here");
    cr_assert_eq(berth_set_storage_rules(checkpoint, &rule, 1, &error), 0);
    expect_long("by a rule");
    cr_expect_eq(n_odd, 0);
}

/* Two buffers of a chunk have no place: the caller's thread does all, with one. */
Test(range, takes_no_more_memory_than_it_may)
{
    open_as(
        "debug=off load.method=direct io.threads=4 io.chunk_nbytes=65536 io.memory_nbytes=65536");
    if (!direct_reads_work())
        cr_skip("no direct reads here");
    expect_long("little memory");
    cr_expect_eq(n_threads, 1);
    open_as("debug=off load.method=direct io.chunk_nbytes=65536 io.memory_nbytes=65535");
    expect_long("none: straight into the caller's");
    cr_expect_gt(n_odd, 0);
}

Test(range, has_its_bytes_whatever_the_way)
{
    static const char *const ways[] = {
        "load.method=map",
        "load.method=map load.mmap_flags=shared",
        "load.mmap=off",
        "load.method=auto load.prefetch=populate",
        "load.method=read load.check=data",
        "load.method=direct load.check=data",
        "load.method=direct io.memory_nbytes=65536",
        "load.mmap=off load.prefetch=read",
    };

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        for (unsigned n = 1; n <= 3; n += 2) {
            char options[200];
            (void)snprintf(options, sizeof options, "%s io.threads=%u io.chunk_nbytes=%d", ways[i],
                           n, n == 1 ? 65536 : 262144);
            open_as(options);
            expect_long(options);
        }
}

/* T5 */
Test(range, in_the_other_byte_order_is_swapped)
{
    static const char *const ways[] = {"load.method=read" IN_PIECES, "load.method=direct" IN_PIECES,
                                       "load.method=map" IN_PIECES};
    bool is_big = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;

    save_tensors(is_big ? "save.byteorder=little save.storage_alignment=1"
                        : "save.byteorder=big save.storage_alignment=1");
    for (size_t i = 0; i < 3; i++) {
        open_as(ways[i]);
        expect_long(ways[i]);
    }
}

/* A source is asked from several threads, for what is wanted and nothing else. */

static atomic_uint_fast64_t requested_nbytes;

static int counting_read(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    (void)context;
    requested_nbytes += nbytes;
    memcpy(buffer, file + offset, nbytes);
    return 0;
}

Test(range, of_a_source_is_asked_for_in_chunks)
{
    const berth_source source = {.read = counting_read, .nbytes = file_nbytes};
    const berth_params *call = only("io.threads=4 io.chunk_nbytes=65536", NULL);

    assert_ok(berth_open_source(&source, call, &checkpoint, &error));
    requested_nbytes = 0;
    expect_long("source");
    cr_expect_eq(requested_nbytes, LONG_NBYTES);
}

Test(range, of_a_record_is_read_in_the_same_way)
{
    static const char *const ways[] = {"load.method=read" IN_PIECES, "load.method=direct" IN_PIECES,
                                       "" IN_PIECES};
    uint8_t *buffer = malloc(LONG_NBYTES);
    berth_archive *archive;
    berth_record record;

    for (size_t i = 0; i < 3; i++) {
        assert_ok(berth_archive_open(FROM_PATH(path), only(ways[i], NULL), &archive, NULL, &error));
        cr_assert_eq(berth_archive_find(archive, "data/3", &record, &error), 0);
        count_reads();
        cr_expect_eq(berth_archive_read(archive, &record, buffer, LONG_NBYTES, FIRST * 8, &error),
                     0, "%s", error.message);
        bth_system_restore();
        cr_expect_eq(memcmp(buffer, (uint8_t *)elements[LONG] + FIRST * 8, LONG_NBYTES), 0);
        cr_expect_geq(n_threads, 2, "%s", ways[i]);
        cr_expect(n_odd == 0 || i != 1 || !direct_reads_work());
        berth_archive_close(archive);
    }
    free(buffer);
}

/* ---- what is memory already ---- */

Test(range, of_what_was_written_to_has_it)
{
    uint8_t *buffer = malloc(LONG_NBYTES);

    open_as("load.method=map io.threads=4 io.chunk_nbytes=65536");
    uint8_t *data = (uint8_t *)(uintptr_t)berth_tensor_data(checkpoint, tensor_at(LONG), &error);
    cr_assert_not_null(data);
    for (size_t at = 100; at < LONG_NBYTES; at += 100000)
        data[at] ^= 0xff;
    assert_ok(read_long(buffer));
    cr_expect_eq(memcmp(buffer, data + FIRST * 8, LONG_NBYTES), 0);
    cr_expect_eq(n_reads, 0);
    free(buffer);
}

/* ---- what goes wrong ---- */

/* W8 */
Test(range, that_cannot_be_read_names_record_and_byte)
{
    static const char *const ways[] = {"load.method=read" IN_PIECES,
                                       "load.method=direct" IN_PIECES};
    uint8_t *buffer = malloc(LONG_NBYTES);

    for (size_t i = 0; i < 2; i++) {
        open_as(ways[i]);
        const berth_tensor *tensor = tensor_at(LONG);
        n_reads_left = 5;
        bth_system.pread = failing_pread;
        cr_expect_eq(berth_tensor_read(checkpoint, tensor, FIRST, N, buffer, &error),
                     BERTH_E_SYSTEM);
        bth_system_restore();
        cr_expect_eq(error.system_errno, EIO);
        cr_expect_str_eq(error.record, "data/3");
        cr_expect_geq(error.offset, tensor->storage->offset / 4096 * 4096);
        cr_expect_lt(error.offset, tensor->storage->offset + tensor->storage->nbytes);
        cr_expect_not_null(strstr(error.message, path), "%s", error.message);
        expect_long("again");
    }
    free(buffer);
}

/* F2, W9 */
Test(range, of_a_file_that_got_shorter_is_an_error_and_no_signal)
{
    static const char *const ways[] = {"load.method=map" IN_PIECES, "load.method=read" IN_PIECES,
                                       "load.method=direct" IN_PIECES, "load.method=auto" IN_PIECES,
                                       "load.mmap=off" IN_PIECES};
    uint8_t *buffer = malloc(LONG_NBYTES);

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        save_tensors("save.storage_alignment=64");
        open_as(ways[i]);
        cr_assert_leq(berth_tensor_read(checkpoint, tensor_at(0), 0, 1, buffer, &error), 0);
        (void)berth_find_tensor(checkpoint, "t0", NULL);
        if (i == 0 || i == 3) /* it is mapped already, and nobody looks at the size again */
            cr_assert_not_null(berth_tensor_data(checkpoint, tensor_at(LONG), &error));
        cr_assert_eq(truncate(path, 2000000), 0);
        cr_expect_eq(read_long(buffer), BERTH_E_TRUNCATED, "%s: %s", ways[i], error.message);
        cr_expect_str_eq(error.record, "data/3", "%s", ways[i]);
    }
    free(buffer);
}

/* Z10 */
Test(range, of_a_record_with_a_wrong_sum_is_refused)
{
    uint8_t *buffer = malloc(LONG_NBYTES);

    open_as("load.method=read io.threads=4 io.chunk_nbytes=65536 load.check=data");
    file[tensor_at(LONG)->storage->offset + 12345] ^= 1;
    test_write_file(path, file, file_nbytes);
    cr_expect_eq(read_long(buffer), BERTH_E_CHECKSUM, "%s", error.message);
    free(buffer);
}

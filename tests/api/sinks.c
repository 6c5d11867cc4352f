/* SPDX-License-Identifier: BSD-3-Clause */
/* What a sink can do beside writing: its steps. */
#include <berth/config.h>
#include <berth/more.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/support/job_scene.h"

#define SMALL ((size_t)4096)
#define LARGE ((size_t)65536)

static berth_error error;

TestSuite(sinks, .init = begin_jobs, .fini = end_jobs);

/* The file in chunks that lie apart, so that whoever crosses the end of one is seen. */
typedef struct store {
    uint8_t *chunks;
    uint64_t nbytes, chunk_nbytes;
    berth_sink_need need;
    int begin_fails, finish_fails;
    uint64_t has_no_memory_at, fails_at;
    _Atomic uint64_t written_nbytes, copied_nbytes;
    atomic_int n_placed, n_finished, n_aborted;
} store;

static uint8_t *store_address(const store *to, uint64_t offset)
{
    return to->chunks + offset + offset / to->chunk_nbytes * to->chunk_nbytes;
}

static int store_begin(void *context, uint64_t nbytes, berth_sink_need *need)
{
    store *to = context;
    const berth_sink_need none = {0};

    cr_assert_eq(memcmp(need, &none, sizeof none), 0);
    to->nbytes = nbytes;
    to->chunk_nbytes = to->need.chunk_nbytes ? to->need.chunk_nbytes : SMALL;
    to->chunks = calloc(nbytes / to->chunk_nbytes + 1, 2 * to->chunk_nbytes);
    *need = to->need;
    return to->begin_fails;
}

static void *store_place(void *context, uint64_t offset, size_t nbytes)
{
    store *to = context;

    to->n_placed++;
    cr_assert(nbytes > 0 && offset % to->chunk_nbytes + nbytes <= to->chunk_nbytes &&
              offset + nbytes <= to->nbytes);
    return offset <= to->has_no_memory_at && to->has_no_memory_at < offset + nbytes
               ? NULL
               : store_address(to, offset);
}

/* What this thread was told last. */
static _Thread_local struct {
    uint64_t offset;
    size_t nbytes;
    uint32_t crc32;
} told;

static void store_sum(void *context, uint64_t offset, size_t nbytes, uint32_t crc32)
{
    (void)context;
    told.offset = offset;
    told.nbytes = nbytes;
    told.crc32 = crc32;
}

static uint32_t sum_slowly(const uint8_t *bytes, size_t nbytes)
{
    uint32_t crc = UINT32_MAX;

    for (size_t i = 0; i < nbytes; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    return ~crc;
}

static int store_write(void *context, const void *buffer, size_t nbytes, uint64_t offset)
{
    store *to = context;
    const uint8_t *from = buffer;

    if (offset + nbytes > to->fails_at)
        return EIO;
    if (to->n_placed > 0)
        cr_assert(told.offset == offset && told.nbytes == nbytes &&
                      told.crc32 == sum_slowly(from, nbytes),
                  "the sum of %zu bytes at %llu", nbytes, (unsigned long long)offset);
    to->written_nbytes += nbytes;
    if (from == store_address(to, offset))
        return 0;
    to->copied_nbytes += nbytes;
    for (size_t i = 0; i < nbytes; i++)
        *store_address(to, offset + i) = from[i];
    return 0;
}

static int store_finish(void *context)
{
    store *to = context;

    cr_assert_eq(to->written_nbytes, to->nbytes);
    to->n_finished++;
    return to->finish_fails;
}

static void store_abort(void *context)
{
    ((store *)context)->n_aborted++;
}

static const berth_sink_steps all_steps = {store_begin, store_place, store_sum, store_finish,
                                           store_abort};

static store store_new(uint64_t chunk_nbytes)
{
    return (store){.need = {.chunk_nbytes = chunk_nbytes, .n_threads = 5, .n_chunks = 2},
                   .has_no_memory_at = UINT64_MAX,
                   .fails_at = UINT64_MAX};
}

static berth_sink store_sink(store *to, const berth_sink_steps *what)
{
    return (berth_sink){.write = store_write, .context = to, .steps = what};
}

static void check_stored_as(store *to, const uint8_t *bytes, size_t nbytes)
{
    cr_assert_eq(to->nbytes, nbytes);
    for (uint64_t i = 0; i < nbytes; i++)
        cr_assert_eq(*store_address(to, i), bytes[i], "byte %llu", (unsigned long long)i);
    cr_expect_eq(to->n_finished, 1);
    cr_expect_eq(to->n_aborted, 0);
    free(to->chunks);
}

static void check_stored(store *to)
{
    check_stored_as(to, expected, expected_nbytes);
}

/* Only a descriptor that waits for its checksum is copied there. */
Test(sinks, give_memory_in_which_the_file_is_made)
{
    static const char *const options[] = {"io.threads=1", "io.threads=4 io.chunk_nbytes=100",
                                          "io.threads=0", "debug=on"};

    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        for (int in_order = 0; in_order < 2; in_order++) {
            store to = store_new(SMALL);
            berth_sink sink = store_sink(&to, &all_steps);
            berth_stats stats;
            const berth_params params = {.stats = &stats};
            sink.in_order = in_order;
            patch(options[i]);
            assert_ok(berth_save_to(TO_SINK(&sink), OF_VALUE(state), &params, &error));
            cr_expect_lt(to.copied_nbytes, 200, "%s", options[i]);
            cr_expect_geq(to.n_placed, (int)(expected_nbytes / SMALL));
            check_stored(&to);
            berth_config_unpatch(NULL);
        }
}

/* Its first bytes are given when others are written. */
static int read_late(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    const store *to = context;

    while (offset == 0 && to->written_nbytes == 0)
        usleep(100);
    memcpy(buffer, (const uint8_t *)weights + offset, nbytes);
    return 0;
}

/* A chunk with large shares before and behind a descriptor that waits: of one record, of many. */
Test(sinks, know_the_sums_of_what_is_written)
{
    static const char *const options[] = {"io.threads=1", "io.threads=2", "io.threads=6",
                                          "save.compute_crc32=off"};
    berth_new_record records[] = {
        {.name = "data.pkl", .nbytes = 100, .data = weights},
        {.name = "data/0", .nbytes = 80000, .data = weights},
        {.name = "data/1", .nbytes = 20000, .data = (const uint8_t *)weights + 20000},
        {.name = "data/2", .nbytes = 20, .data = weights},
        {.name = "data/3", .nbytes = 17000, .data = (const uint8_t *)weights + 40000},
        {.name = "data/4", .nbytes = 79999, .data = weights}};
    const size_t n = sizeof records / sizeof *records;

    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        store to = store_new(LARGE);
        const berth_sink sink = store_sink(&to, &all_steps);
        size_t nbytes;
        patch(options[i]);
        records[1].read = NULL;
        records[1].data = weights;
        assert_ok(berth_save_to(TO_PATH(path), OF_RECORDS(records, n, 0), NAMED("a"), &error));
        uint8_t *bytes = test_read_file(path, &nbytes);
        if (i == 1 || i == 2) {
            records[1].data = NULL;
            records[1].read = read_late;
            records[1].context = &to;
        }
        assert_ok(berth_save_to(TO_SINK(&sink), OF_RECORDS(records, n, 0), NAMED("a"), &error));
        cr_expect_eq(to.copied_nbytes > 0, i == 1 || i == 2, "%s", options[i]);
        check_stored_as(&to, bytes, nbytes);
        berth_config_unpatch(NULL);
        free(bytes);
    }
}

Test(sinks, have_steps_as_they_like)
{
    static const berth_sink_steps some[] = {
        {.begin = store_begin, .finish = store_finish},
        {.begin = store_begin, .place = store_place, .finish = store_finish}};

    for (size_t i = 0; i < sizeof some / sizeof *some; i++) { /* no chunks: no memory of it */
        store to = store_new(0);
        const berth_sink sink = store_sink(&to, &some[i]);
        assert_ok(berth_save_to(TO_SINK(&sink), OF_VALUE(state), NULL, &error));
        cr_expect_eq(to.n_placed, 0);
        check_stored(&to);
    }
}

Test(sinks, of_a_job_finish_on_its_thread)
{
    store to = store_new(SMALL);
    const berth_sink sink = store_sink(&to, &all_steps);
    berth_job *job;

    assert_ok(
        berth_save_begin(TO_SINK(&sink), OF_VALUE(state), BERTH_SAVE_SNAPSHOT, NULL, &job, &error));
    memset(weights, 0, WEIGHTS_NBYTES);
    check_wait(job, 0);
    berth_job_free(job);
    check_stored(&to);
}

/* The chunks that it holds count for io.memory_nbytes. */
Test(sinks, hold_no_more_than_the_limit)
{
    static const struct {
        const char *options;
        uint64_t n_chunks;
    } cases[] = {{"io.threads=3", 6},
                 {"", 10},
                 {"io.memory_nbytes=32KiB", 6},
                 {"io.memory_nbytes=4KiB io.threads=7", 2}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        store to = store_new(SMALL);
        const berth_sink sink = store_sink(&to, &all_steps);
        berth_stats stats;
        const berth_params params = {.stats = &stats};
        patch(cases[i].options);
        assert_ok(berth_save_to(TO_SINK(&sink), OF_VALUE(state), &params, &error));
        cr_expect_eq(stats.memory_nbytes / SMALL, cases[i].n_chunks, "%s: %llu", cases[i].options,
                     (unsigned long long)stats.memory_nbytes);
        check_stored(&to);
        berth_config_unpatch(NULL);
    }
}

Test(sinks, that_fail_are_told_so_and_the_save_with_them)
{
    static const struct {
        store to;
        const char *sentence;
        int code, number, n_finished;
    } cases[] = {
        {{.begin_fails = EACCES, .has_no_memory_at = UINT64_MAX, .fails_at = UINT64_MAX},
         "the sink failed: Permission denied",
         BERTH_E_CALLBACK,
         EACCES,
         0},
        {{.begin_fails = -EACCES, .has_no_memory_at = UINT64_MAX, .fails_at = UINT64_MAX},
         "the sink failed: Permission denied",
         BERTH_E_CALLBACK,
         EACCES,
         0},
        {{.need.chunk_nbytes = 4095, .has_no_memory_at = UINT64_MAX, .fails_at = UINT64_MAX},
         "the sink needs chunks of 4095 bytes, the least is 4096",
         BERTH_E_ARGUMENT,
         0,
         0},
        {{.need.chunk_nbytes = SMALL, .has_no_memory_at = 3 * SMALL, .fails_at = UINT64_MAX},
         "the sink failed: ",
         BERTH_E_CALLBACK,
         ENOMEM,
         0},
        {{.need.chunk_nbytes = SMALL, .has_no_memory_at = UINT64_MAX, .fails_at = 30000},
         "the sink failed: ",
         BERTH_E_CALLBACK,
         EIO,
         0},
        {{.finish_fails = ESTALE, .has_no_memory_at = UINT64_MAX, .fails_at = UINT64_MAX},
         "the sink failed: Stale file handle",
         BERTH_E_CALLBACK,
         ESTALE,
         1},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        store to = cases[i].to;
        const berth_sink sink = store_sink(&to, &all_steps);
        cr_assert_eq(berth_save_to(TO_SINK(&sink), OF_VALUE(state), NULL, &error), cases[i].code,
                     "%zu: %s", i, error.message);
        cr_expect(strstr(error.message, cases[i].sentence), "%zu: %s", i, error.message);
        cr_expect_eq(error.system_errno, cases[i].number, "%zu", i);
        cr_expect_eq(to.n_finished, cases[i].n_finished, "%zu", i);
        cr_expect_eq(to.n_aborted, 1, "%zu", i);
        free(to.chunks);
    }
}

/* A save that fails before is none of its. */
Test(sinks, are_not_told_of_what_never_began)
{
    store to = store_new(SMALL);
    const berth_sink sink = store_sink(&to, &all_steps);
    const berth_content none = {0};

    cr_assert_lt(berth_save_to(TO_SINK(&sink), &none, NULL, &error), 0);
    cr_expect_eq(to.n_aborted, 0);
}

/* What ends a sink is in the trace: its request counts. */
Test(sinks, are_traced_to_their_end)
{
    char *name = test_path(folder, "trace.json");

    assert_ok(berth_config_set("trace", name, NULL, &error));
    for (int fails = 0; fails < 2; fails++) {
        store to = store_new(SMALL);
        const berth_sink sink = store_sink(&to, &all_steps);
        to.finish_fails = fails ? EIO : 0;
        cr_assert_eq(berth_save_to(TO_SINK(&sink), OF_VALUE(state), NULL, &error),
                     fails ? BERTH_E_CALLBACK : 0);
        free(to.chunks);
    }
    assert_ok(berth_config_set("trace", "", NULL, &error));
    size_t nbytes;
    char *text = (char *)test_read_file(name, &nbytes);
    text = realloc(text, nbytes + 1);
    text[nbytes] = '\0';
    const char *complete = strstr(text, "\"complete\""), *abort = strstr(text, "\"abort\"");
    cr_expect(complete && strstr(complete + 1, "\"complete\""), "of both saves");
    cr_expect(abort && !strstr(abort + 1, "\"abort\""), "of the second one");
    free(text);
    free(name);
}

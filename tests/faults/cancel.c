/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * X13: threads are cancelled in the midst of saves and loads, many times. Each goes on to the end
 * of its call, so that nothing leaks, no temporary is left, no lock stays taken.
 */
#include <berth/config.h>
#include <berth/prefetch.h>
#include <berth/rows.h>
#include <time.h>

#include "tests/support/faults/save_scene.h"

enum { N_THREADS = 4 };

static berth_checkpoint *shared, *table;
static berth_rows *rows;
static unsigned n_cancelled;
static char *paths[N_THREADS], *table_path;
static int nowhere, opened; /* nothing in a thread is a place to be cancelled, but Berth's calls */

static void expect(bool good, const char *what, const berth_error *error)
{
    if (good)
        return;
    fprintf(stderr, "%s: %s\n", what, error->message);
    _exit(1);
}

/* Callbacks wait, too, where the thread could be cancelled. */
static int wait_a_little(void *unused, uint64_t done_nbytes, uint64_t total_nbytes)
{
    (void)unused, (void)done_nbytes, (void)total_nbytes;
    (void)nanosleep(&(struct timespec){.tv_nsec = 10000}, NULL);
    return 0;
}

static int read_slowly(void *file, void *buffer, size_t nbytes, uint64_t offset)
{
    (void)wait_a_little(NULL, 0, 0);
    return pread(*(const int *)file, buffer, nbytes, (off_t)offset) == (ssize_t)nbytes ? 0 : EIO;
}

static int write_slowly(void *file, const void *buffer, size_t nbytes, uint64_t offset)
{
    (void)wait_a_little(NULL, 0, 0);
    return pwrite(*(const int *)file, buffer, nbytes, (off_t)offset) == (ssize_t)nbytes ? 0 : EIO;
}

static void save_in_all_ways(char *to)
{
    const berth_params call = {.progress = wait_a_little};
    const berth_new_record record = {.name = "data.pkl", .nbytes = N_BYTES, .data = bytes};
    berth_error error;
    const berth_sink sink = {.write = write_slowly, .context = &nowhere};

    expect(save_values(to, &error) == 0, "a save", &error);
    expect(berth_save_to(TO_PATH(to), OF_RECORDS(&record, 1, 0), &call, &error) == 0, "records",
           &error);
    expect(berth_save_to(TO_SINK(&sink), OF_RECORDS(&record, 1, 0), NAMED("a"), &error) == 0,
           "sink", &error);
    expect(save_by_job(to, BERTH_SAVE_SNAPSHOT, &error) == 0, "a job", &error);
}

static void read_all(berth_checkpoint *checkpoint)
{
    uint8_t copy[100];
    berth_error error;

    const berth_tensor *bias = berth_find_tensor(checkpoint, "bias", NULL);
    expect(bias && berth_tensor_data(checkpoint, bias, &error), "data", &error);
    expect(berth_tensor_read(checkpoint, bias, 0, 100, copy, &error) == 0, "a copy", &error);
    expect(memcmp(copy, bytes, 100) == 0, "other bytes", &error);
    expect(berth_load(checkpoint, NULL, NULL, &error) == 0, "a fetch", &error);
}

static void load_in_all_ways(void)
{
    const int64_t ids[] = {1, 7};
    const void *pointers[2];
    berth_checkpoint *checkpoint;
    berth_prefetch *prefetch;
    berth_ticket ticket;
    berth_error error;
    size_t nbytes = (size_t)expected_nbytes;
    const berth_source source = {.read = read_slowly, .context = &opened, .nbytes = nbytes};

    expect(berth_open(path, NULL, &checkpoint, &error) == 0, "an open", &error);
    read_all(checkpoint);
    expect(berth_prefetch_begin(checkpoint, NULL, 0, NULL, &prefetch, &error) == 0, "p", &error);
    expect(berth_prefetch_advance(prefetch, NULL, 0, -1, &error) == 0, "a wait", &error);
    berth_prefetch_free(prefetch);
    berth_close(checkpoint);
    expect(berth_open_source(&source, NULL, &checkpoint, &error) == 0, "a source", &error);
    read_all(checkpoint);
    berth_close(checkpoint);
    read_all(shared);
    expect(berth_rows_prefetch(rows, 0, ids, 2, &ticket, &error) == 0, "rows", &error);
    expect(berth_rows_wait(rows, ticket, pointers, &error) == 0, "lookup", &error);
    expect(berth_rows_release(rows, ticket, &error) == 0, "release", &error);
    expect(berth_verify(FROM_PATH(path), NULL, NULL, NULL, NULL, &error) == 0, "verify", &error);
}

static void *work(void *argument)
{
    uintptr_t i = (uintptr_t)argument;

    for (;;) {
        if (i % 2)
            load_in_all_ways();
        else
            save_in_all_ways(paths[i]);
        pthread_testcancel();
    }
    return NULL;
}

static void cancel_all(unsigned round)
{
    pthread_t threads[N_THREADS];
    void *result;

    for (uintptr_t i = 0; i < N_THREADS; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, work, (void *)i), 0);
    (void)nanosleep(&(struct timespec){.tv_nsec = (long)(round * 7919 % 5000) * 1000}, NULL);
    for (int i = 0; i < N_THREADS; i++)
        cr_assert_eq(pthread_cancel(threads[i]), 0);
    for (int i = 0; i < N_THREADS; i++) {
        cr_assert_eq(pthread_join(threads[i], &result), 0);
        n_cancelled += result == PTHREAD_CANCELED;
    }
}

static void save_table(void)
{
    const int64_t shape[] = {100, 64};
    berth_tree *tree = berth_tree_new(NULL);
    const berth_tensor tensor = {.dtype = BERTH_INT8, .rank = 2, .shape = shape, .data = bytes};
    berth_error error;

    expect(berth_save(table_path, berth_make_tensor(tree, &tensor), NULL, &error) == 0, "a table",
           &error);
    berth_tree_free(tree);
}

static void set_up(void)
{
    berth_error error;

    begin_faults();
    for (int i = 0; i < N_THREADS; i++)
        paths[i] = i % 2 ? NULL : test_path(folder, i ? "two.pt" : "zero.pt");
    table_path = test_path(folder, "table.pt");
    expect(save_values(path, &error) == 0, "the file", &error);
    expected = test_read_file(path, &expected_nbytes);
    save_table();
    nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
    opened = open(path, O_RDONLY | O_CLOEXEC);
}

static void tear_down(void)
{
    for (int i = 0; i < N_THREADS; i++)
        free(paths[i]);
    free(table_path);
    (void)close(nowhere);
    (void)close(opened);
    end_faults();
}

/* What the threads share. */
static void begin_round(unsigned round)
{
    static const char *const options[] = {"io.threads=1", "io.threads=2\nio.chunk_nbytes=4096",
                                          "load.method=direct\nload.check=data\nsave.method=direct",
                                          "load.method=read"};
    const berth_rows_limits limits = {.cache_nbytes = 1 << 16};
    berth_named_tensor named;
    berth_error error;
    size_t number;

    cr_assert_eq(berth_config_reset(NULL, NULL), 0);
    cr_assert_eq(berth_config_parse(options[round % 4], NULL, &error), 0, "%s", error.message);
    test_memory_watch();
    expect(berth_open(path, NULL, &shared, &error) == 0, "shared", &error);
    expect(berth_open(table_path, NULL, &table, &error) == 0, "the table's file", &error);
    expect(berth_tensor_at(table, 0, &named, &error) == 0, "the table", &error);
    expect(berth_rows_new(&limits, NULL, &rows, &error) == 0, "rows", &error);
    expect(berth_rows_add(rows, table, named.tensor, &number, &error) == 0, "a table", &error);
}

/* No lock is taken, nothing is left. */
static void end_round(unsigned round)
{
    load_in_all_ways();
    save_in_all_ways(paths[0]);
    berth_rows_free(rows);
    berth_close(table);
    berth_close(shared);
    cr_assert_eq(test_memory_seen().live_nbytes, 0, "round %u: memory leaks", round);
    test_memory_unwatch();
    cr_assert_leq(test_folder_count(folder), 5, "round %u: a temporary is left", round);
}

TestSuite(cancel, .init = set_up, .fini = tear_down, .timeout = 600);

/* X13 */
Test(cancel, of_a_thread_waits_for_the_end_of_a_call)
{
    unsigned n_rounds = test_is_long() ? 2000 : 200;

    for (unsigned round = 0; round < n_rounds; round++) {
        size_t n_open = n_open_files();
        begin_round(round);
        cancel_all(round);
        end_round(round);
        cr_assert_eq(n_open_files(), n_open, "round %u: a descriptor leaks", round);
    }
    cr_assert_eq(n_cancelled, n_rounds * N_THREADS);
}

/* What a worker calls cancels it: then, too, it goes on. */
static int cancel_worker(void *caller, const void *buffer, size_t nbytes, uint64_t offset)
{
    (void)buffer, (void)nbytes, (void)offset;
    if (!pthread_equal(pthread_self(), *(const pthread_t *)caller)) {
        (void)pthread_cancel(pthread_self());
        n_cancelled++;
    }
    return wait_a_little(NULL, 0, 0);
}

Test(cancel, of_a_worker_by_what_it_calls_is_held_off)
{
    const berth_new_record record = {.name = "data.pkl", .nbytes = N_BYTES, .data = bytes};
    pthread_t caller = pthread_self();
    const berth_sink sink = {.write = cancel_worker, .context = &caller};
    berth_error error;

    (void)alarm(20);
    cr_assert_eq(berth_config_parse("io.threads=2\nio.chunk_nbytes=4096", NULL, NULL), 0);
    expect(berth_save_to(TO_SINK(&sink), OF_RECORDS(&record, 1, 0), NAMED("a"), &error) == 0,
           "sink", &error);
    cr_assert_gt(n_cancelled, 0);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Saving as a program sees it: values to paths, descriptors, memory and callbacks. */
#include <berth/config.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/job_scene.h"

static berth_error error;

/* A tensor, one tied to its storage, ints, a number; and an empty tensor. */
static void set_up(void)
{
    begin_jobs();
    add("empty", (berth_tensor){.dtype = BERTH_FLOAT64, .data = steps}, 0);
}

TestSuite(save, .init = set_up, .fini = end_jobs);

/* What all ways of saving must give. */
static uint8_t *save_to_path(size_t *nbytes)
{
    assert_ok(berth_save(path, state, NULL, &error));
    return test_read_file(path, nbytes);
}

static void check_same(const uint8_t *bytes, size_t nbytes)
{
    size_t at_path_nbytes;
    uint8_t *at_path = save_to_path(&at_path_nbytes);

    cr_assert_eq(nbytes, at_path_nbytes);
    cr_assert_eq(memcmp(bytes, at_path, nbytes), 0);
    free(at_path);
}

Test(save, memory_gets_the_same_bytes_as_a_path)
{
    void *bytes;
    size_t nbytes;

    assert_ok(berth_save_to(TO_MEMORY(&bytes, &nbytes), OF_VALUE(state), NULL, &error));
    check_same(bytes, nbytes);
    berth_free(bytes);
}

Test(save, a_descriptor_gets_them_at_its_position)
{
    char *other = test_path(folder, "other.bin");
    int fd = open(other, O_RDWR | O_CREAT, 0666);
    size_t nbytes;

    cr_assert_eq(write(fd, "before", 6), 6);
    patch("io.chunk_nbytes=1000 io.threads=4");
    assert_ok(berth_save_to(TO_FD(fd), OF_VALUE(state), NULL, &error));
    cr_assert_eq(write(fd, "behind", 6), 6, "it stays open");
    close(fd);
    uint8_t *bytes = test_read_file(other, &nbytes);
    cr_assert_eq(memcmp(bytes, "before", 6), 0);
    cr_assert_eq(memcmp(bytes + nbytes - 6, "behind", 6), 0);
    check_same(bytes + 6, nbytes - 12);
    free(bytes);
    free(other);
}

struct drain {
    int fd;
    uint8_t *bytes;
    size_t nbytes;
};

static void *read_pipe(void *context)
{
    struct drain *drain = context;
    uint8_t block[777];
    ssize_t n;

    while ((n = read(drain->fd, block, sizeof block)) > 0) {
        drain->bytes = realloc(drain->bytes, drain->nbytes + (size_t)n);
        memcpy(drain->bytes + drain->nbytes, block, (size_t)n);
        drain->nbytes += (size_t)n;
    }
    return NULL;
}

/* The pipe does not block: a full one is waited for (W3). */
Test(save, a_pipe_gets_them_in_order)
{
    int ends[2];
    struct drain drain = {0};
    pthread_t reader;

    cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
    cr_assert_eq(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
    drain.fd = ends[0];
    cr_assert_eq(pthread_create(&reader, NULL, read_pipe, &drain), 0);
    assert_ok(berth_save_to(TO_FD(ends[1]), OF_VALUE(state), NULL, &error));
    close(ends[1]);
    pthread_join(reader, NULL);
    close(ends[0]);
    check_same(drain.bytes, drain.nbytes);
    free(drain.bytes);
}

Test(save, a_closed_pipe_is_an_error_with_record_and_byte)
{
    int ends[2];

    signal(SIGPIPE, SIG_IGN);
    cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
    close(ends[0]);
    FAILS(berth_save_to(TO_FD(ends[1]), OF_VALUE(state), NULL, &error), BERTH_E_SYSTEM,
          "data.pkl at byte 0: cannot write: Broken pipe");
    cr_assert_eq(error.system_errno, EPIPE);
    close(ends[1]);
}

/* ---- callbacks ---- */

struct collector {
    uint8_t *bytes;
    size_t room;
    uint64_t next; /* where the next write must begin, if in order */
    bool ordered;
    pthread_t thread;
    uint64_t fail_from;
};

static int collect(void *context, const void *buffer, size_t nbytes, uint64_t offset)
{
    struct collector *collector = context;

    if (offset + nbytes > collector->fail_from)
        return ENOSPC;
    if (offset + nbytes > collector->room)
        return EFBIG;
    if (collector->ordered &&
        (offset != collector->next || !pthread_equal(collector->thread, pthread_self())))
        return EINVAL;
    collector->next = offset + nbytes;
    memcpy(collector->bytes + offset, buffer, nbytes);
    return 0;
}

static void check_sink(bool in_order, const char *options)
{
    uint64_t room = 1u << 20;
    struct collector collector = {.bytes = malloc(room),
                                  .room = room,
                                  .ordered = in_order,
                                  .thread = pthread_self(),
                                  .fail_from = UINT64_MAX};
    const berth_sink sink = {.write = collect, .context = &collector, .in_order = in_order};
    berth_stats stats;
    const berth_params call = {.stats = &stats};

    patch(options);
    assert_ok(berth_save_to(TO_SINK(&sink), OF_VALUE(state), &call, &error));
    check_same(collector.bytes, stats.moved_nbytes);
    berth_config_unpatch(NULL);
    free(collector.bytes);
}

Test(save, a_sink_gets_them_in_order_from_one_thread_or_anyhow)
{
    check_sink(true, "io.threads=4 io.chunk_nbytes=100");
    check_sink(false, "io.threads=4 io.chunk_nbytes=100");
    check_sink(false, "io.threads=1 io.chunk_nbytes=1MiB");
}

Test(save, a_sink_that_fails_is_told_with_record_and_byte)
{
    struct collector collector = {.bytes = malloc(1u << 20), .room = 1u << 20, .fail_from = 8192};
    const berth_sink sink = {.write = collect, .context = &collector};

    patch("io.threads=1 io.chunk_nbytes=4096");
    FAILS(berth_save_to(TO_SINK(&sink), OF_VALUE(state), NULL, &error), BERTH_E_CALLBACK,
          "data/0 at byte 8192: the sink failed: No space left on device");
    cr_assert_eq(error.system_errno, ENOSPC);
    cr_assert_eq(error.offset, 8192);
    cr_assert_str_eq(error.record, "data/0");
    free(collector.bytes);
}

/* ---- plans ---- */

Test(save, a_plan_tells_exactly_what_is_then_written)
{
    size_t nbytes;
    uint8_t *file = save_to_path(&nbytes);
    berth_plan_info info;
    berth_plan *plan = berth_plan_new(TO_PATH(path), OF_VALUE(state), NULL, &info, &error);
    berth_record record;
    bool seen = false;

    cr_assert(plan, "%s", error.message);
    cr_assert_eq(info.nbytes, nbytes);
    for (size_t i = 0; i < info.n_records; i++) {
        cr_assert_eq(berth_plan_at(plan, i, &record), 0);
        cr_assert_eq(memcmp(file + record.header_offset, "PK\3\4", 4), 0);
        if (strcmp(record.name, "data/0") == 0) {
            cr_assert_eq(record.nbytes, WEIGHTS_NBYTES);
            cr_assert_eq(memcmp(file + record.offset, weights, record.nbytes), 0);
            seen = true;
        }
    }
    cr_assert(seen);
    cr_assert_eq(info.n_records, 9, "tied tensors share a record");
    berth_plan_free(plan);
    berth_plan_free(NULL);
    free(file);
}

/* A part of a checkpoint, saved from another tree: no byte is read before the save reads it. */
static void check_part_of_a_checkpoint(const char *options)
{
    uint8_t *file = save_to_path(&(size_t){0});
    char *part_path = test_path(folder, "part.pt");
    berth_checkpoint *whole, *part;

    free(file);
    cr_assert_eq(berth_config_patch(options, &error), 0);
    assert_ok(berth_open(path, NULL, &whole, &error));
    berth_tree *other = berth_tree_new(NULL);
    berth_value *dict = berth_make_dict(other, BERTH_KIND_DICT);
    berth_dict_set(dict, "tied",
                   berth_value_copy(other, berth_find(whole, "tied", NULL), BERTH_COPY_COMPACT));
    assert_ok(berth_save(part_path, dict, NULL, &error));
    berth_tree_free(other);
    berth_close(whole);
    assert_ok(berth_open(part_path, NULL, &part, &error));
    const berth_tensor *tied = berth_find_tensor(part, "tied", NULL);
    cr_assert_eq(berth_storage_get_info(tied->storage)->nbytes, berth_tensor_nbytes(tied));
    cr_assert_eq(
        memcmp(berth_tensor_data(part, tied, &error), weights + 500, berth_tensor_nbytes(tied)), 0);
    berth_close(part);
    berth_config_unpatch(NULL);
    free(part_path);
}

Test(save, a_checkpoint_is_edited_in_five_lines)
{
    char *edited = test_path(folder, "edited.pt");
    berth_checkpoint *opened;
    int64_t epoch;

    free(save_to_path(&(size_t){0}));
    assert_ok(berth_open(path, NULL, &opened, &error));
    berth_tree *other = berth_tree_new(NULL);

    berth_value *root = berth_make_dict(other, BERTH_KIND_DICT);
    berth_dict_set(root, "model", berth_value_copy(other, berth_root(opened), 0));
    berth_dict_set(root, "epoch", berth_make_int(other, 7));
    assert_ok(berth_save(edited, root, NULL, &error));

    berth_tree_free(other);
    berth_close(opened);
    assert_ok(berth_open(edited, NULL, &opened, &error));
    cr_expect(berth_as_int(berth_find(opened, "epoch", NULL), &epoch) && epoch == 7);
    const berth_tensor *tied = berth_find_tensor(opened, "model.tied", NULL);
    cr_expect_gt(berth_storage_get_info(tied->storage)->nbytes, berth_tensor_nbytes(tied),
                 "it stays whole");
    cr_expect_eq(
        memcmp(berth_tensor_data(opened, tied, &error), weights + 500, berth_tensor_nbytes(tied)),
        0);
    berth_close(opened);
    free(edited);
}

Test(save, a_part_of_a_checkpoint_is_saved_compactly)
{
    check_part_of_a_checkpoint("load.mmap=on");
    check_part_of_a_checkpoint("load.mmap=off io.threads=4 io.chunk_nbytes=100");
}

/* ---- what a call tells ---- */

struct progress {
    uint64_t last, total;
    unsigned n;
    pthread_t thread;
    bool odd;
};

static int note_progress(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    struct progress *progress = context;

    progress->odd = progress->odd || done_nbytes < progress->last || done_nbytes > total_nbytes ||
                    !pthread_equal(progress->thread, pthread_self());
    progress->last = done_nbytes;
    progress->total = total_nbytes;
    progress->n++;
    return 0;
}

Test(save, progress_comes_from_the_callers_thread_and_ends_with_all)
{
    static const char *const options[] = {"io.threads=1", "io.threads=4 io.chunk_nbytes=100"};

    for (int i = 0; i < 2; i++) {
        struct progress progress = {.thread = pthread_self()};
        const berth_params call = {.progress = note_progress, .progress_context = &progress};
        struct stat status;
        patch(options[i]);
        assert_ok(berth_save(path, state, &call, &error));
        cr_assert_eq(stat(path, &status), 0);
        cr_assert_eq(progress.last, (uint64_t)status.st_size);
        cr_assert_eq(progress.total, (uint64_t)status.st_size);
        cr_assert_not(progress.odd);
        berth_config_unpatch(NULL);
    }
}

Test(save, statistics_are_filled_on_success_and_on_failure)
{
    berth_stats stats;
    const berth_params call = {.stats = &stats};
    struct stat status;

    assert_ok(berth_save(path, state, &call, &error));
    cr_assert_eq(stat(path, &status), 0);
    cr_assert_eq(stats.moved_nbytes, (uint64_t)status.st_size);
    cr_assert_geq(stats.requested_nbytes, WEIGHTS_NBYTES);
    cr_assert_lt(stats.requested_nbytes, stats.moved_nbytes);
    cr_assert_eq(stats.n_records, 9);
    cr_assert_eq(stats.n_storages, 3);
    cr_assert_geq(stats.n_requests, 1);
    cr_assert(stats.memory_nbytes > 0 && stats.memory_nbytes <= 64u << 20);
    cr_assert_str_eq(stats.method, "buffered");
    cr_assert(stats.total_seconds > 0 && stats.total_seconds >= stats.sync_seconds);
    cr_assert(stats.reason && *stats.reason);
    memset(&stats, 0x55, sizeof stats);
    cr_assert_lt(berth_save("/nowhere/model.pt", state, &call, NULL), 0);
    cr_assert_eq(stats.moved_nbytes, 0);
    cr_assert_eq(stats.n_records, 9);
    cr_assert(stats.method && stats.reason);
}

/* ---- options ---- */

Test(save, a_configuration_of_the_call_decides_over_the_threads)
{
    berth_config *config = berth_config_new(&error);
    const berth_params call = {.config = config};
    size_t nbytes, other_nbytes;

    cr_assert_eq(berth_config_apply(config, "save.storage_alignment=4096", &error), 0);
    uint8_t *file = save_to_path(&nbytes);
    assert_ok(berth_save(path, state, &call, &error));
    uint8_t *other = test_read_file(path, &other_nbytes);
    cr_assert_gt(other_nbytes, nbytes);
    cr_assert_eq(memcmp(other + 4096, "\x80\x02", 2), 0, "data.pkl begins at the alignment");
    free(file), free(other);
    berth_config_free(config);
}

Test(save, debug_reads_back_what_was_written)
{
    static const char *const options[] = {"debug=on", "debug=on save.compute_crc32=off",
                                          "debug=on io.chunk_nbytes=64 io.threads=4"};

    for (int i = 0; i < 3; i++) {
        patch(options[i]);
        assert_ok(berth_save(path, state, NULL, &error));
        berth_config_unpatch(NULL);
    }
}

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define OTHER_ORDER "save.byteorder=big"
#else
#define OTHER_ORDER "save.byteorder=little"
#endif

Test(save, the_other_byte_order_swaps_elements)
{
    size_t nbytes;
    berth_record record;

    patch(OTHER_ORDER " io.chunk_nbytes=1001 io.threads=3");
    uint8_t *file = save_to_path(&nbytes);
    berth_plan *plan = berth_plan_new(TO_PATH(path), OF_VALUE(state), NULL, NULL, &error);
    cr_assert_eq(berth_plan_at(plan, 4, &record), 0);
    cr_assert_str_eq(record.name, "data/0");
    for (size_t i = 0; i < N_WEIGHTS; i++) {
        uint32_t plain, swapped;
        memcpy(&plain, &weights[i], 4);
        memcpy(&swapped, file + record.offset + 4 * i, 4);
        cr_assert_eq(swapped, __builtin_bswap32(plain));
    }
    berth_plan_free(plan);
    free(file);
}

Test(save, dtypes_that_pytorch_would_not_swap_back_are_refused)
{
    static const uint16_t data[] = {1, 2, 3};

    add("odd", (berth_tensor){.dtype = BERTH_UINT16, .data = data}, 3);
    assert_ok(berth_save(path, state, NULL, &error));
    patch(OTHER_ORDER);
    FAILS_SAYING(berth_save(path, state, NULL, &error), BERTH_E_UNSUPPORTED, "uint16");
}

/* ---- arguments ---- */

/* And NULL: nothing.c. */
Test(save, arguments_that_are_none_are_errors)
{
    void *bytes;
    size_t nbytes;
    const berth_sink no_write = {0};

    FAILS(berth_save(NULL, state, NULL, &error), BERTH_E_ARGUMENT, "the path is NULL");
    FAILS_SAYING(berth_save(path, NULL, NULL, &error), BERTH_E_ARGUMENT,
                 "archive.pt: the value is NULL");
    cr_assert_eq(berth_save_to(TO_SINK(NULL), OF_VALUE(state), NULL, &error), BERTH_E_ARGUMENT);
    cr_assert_eq(berth_save_to(TO_SINK(&no_write), OF_VALUE(state), NULL, &error),
                 BERTH_E_ARGUMENT);
    cr_assert_eq(berth_save_to(TO_FD(-1), OF_VALUE(state), NULL, &error), BERTH_E_ARGUMENT);
    cr_assert_eq(berth_save_to(TO_MEMORY(&bytes, &nbytes), OF_VALUE(state), NAMED("a/b"), &error),
                 BERTH_E_ARGUMENT);
    cr_assert_null(bytes);
    berth_plan_info info = {.nbytes = 1, .n_records = 1};
    cr_assert_null(berth_plan_new(NULL, OF_VALUE(NULL), NULL, &info, &error));
    cr_assert(info.nbytes == 0 && info.n_records == 0);
    berth_target target = berth_to_memory(&bytes, &nbytes);
    target.reserved[3] = 1;
    FAILS_SAYING(berth_save_to(&target, OF_VALUE(state), NULL, &error), BERTH_E_ARGUMENT,
                 "berth_target: reserved[3] is not 0");
    target = (berth_target){.fd = 1};
    FAILS(berth_save_to(&target, OF_VALUE(state), NULL, &error), BERTH_E_ARGUMENT,
          "invalid kind of target");
    berth_content content = {.value = state};
    FAILS_SAYING(berth_save_to(TO_PATH(path), &content, NULL, &error), BERTH_E_ARGUMENT,
                 ": invalid kind of content");
    content = berth_of_value(state);
    content.flags = 0xff;
    FAILS_SAYING(berth_save_to(TO_PATH(path), &content, NULL, &error), BERTH_E_ARGUMENT,
                 "unknown flags 0xff");
    cr_assert_eq(test_folder_count(folder), 0);
}

Test(save, a_value_of_a_failed_tree_fails_with_the_trees_error)
{
    berth_error first;

    berth_dict_set(state, "nothing", NULL);
    cr_assert_lt(berth_tree_error(tree, &first), 0);
    cr_assert_eq(berth_save(path, state, NULL, &error), (int)first.code);
    cr_assert(strstr(error.message, first.message), "%s", error.message);
    cr_assert_eq(test_folder_count(folder), 0);
}

static unsigned n_told;

static void count_line(void *context, const char *message)
{
    n_told += strcmp(message, context) == 0;
}

/* Two of them: once a save. */
Test(save, nested_tensors_are_told_to_the_log)
{
    static char wanted[] =
        "many: PyTorch 2.15 loads the nested tensors in it with weights_only=False alone";
    static const int64_t lengths[] = {2, 1, 3}, zeros[3], two_one[] = {2, 1};
    berth_value *sizes = test_tensor(tree, BERTH_INT64, lengths, 2, two_one);
    berth_value *parts[] = {test_vector(tree, BERTH_FLOAT32, weights, 5), sizes, sizes,
                            test_vector(tree, BERTH_INT64, zeros, 2)};
    void *bytes;
    size_t nbytes;

    berth_set_log(count_line, wanted);
    assert_ok(berth_save_to(TO_MEMORY(&bytes, &nbytes), OF_VALUE(state), NAMED("many"), &error));
    cr_expect_eq(n_told, 0);
    berth_free(bytes);
    berth_dict_set(state, "nested", berth_make_nested(tree, parts));
    berth_dict_set(state, "another", berth_make_nested(tree, parts));
    assert_ok(berth_save_to(TO_MEMORY(&bytes, &nbytes), OF_VALUE(state), NAMED("many"), &error));
    cr_expect_eq(n_told, 1);
    berth_set_log(NULL, NULL);
    berth_free(bytes);
}

/* W6; also of the check of debug mode, to which headers come in shares. */
Test(save, no_memory_is_a_clean_error_wherever_it_happens)
{
    static const char *const options[] = {"debug=off", "debug=on io.threads=1 io.chunk_nbytes=64"};
    berth_storage_stats stats;
    const berth_params params = {.storage_stats = &stats, .n_storage_stats = 1};

    for (size_t i = 0; i < 2; i++) {
        struct test_refusals each = {0};
        patch(options[i]);
        while (test_refuse_next(&each)) {
            void *bytes;
            size_t nbytes;
            int status =
                berth_save_to(TO_MEMORY(&bytes, &nbytes), OF_VALUE(state), &params, &error);
            if (status == 0)
                berth_free(bytes);
            cr_assert(status == 0 || (status == BERTH_E_MEMORY && test_memory_refused()), "%s: %s",
                      options[i], error.message);
        }
        cr_assert_eq(berth_config_unpatch(NULL), 0);
        printf("fault points tried: %u\n", (unsigned)each.nth - 1);
        cr_assert_gt(each.nth, 8);
    }
}

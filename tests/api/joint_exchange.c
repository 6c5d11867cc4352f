/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Joint saves whose slices lie in short runs, with an exchange (J1): the file is that of one
 * process, whatever is sharded along which dimension. If one writer fails, all of them return an
 * error, and none waits (J8).
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/joint_scene.h"
#include "tests/support/scene.h"
#include "tests/support/shards_scene.h"
#include "tests/support/writer_group.h"

static berth_error error;
static berth_joint *joint;
static berth_joint_info info;
static writer_group group;

static group_result results[MAX_GROUP];

TestSuite(joint_exchange, .init = begin_joint_scene, .fini = end_joint_scene);

/* ---- writers ---- */

/* A patch is its thread's. */

static void write_slices(group_seat *seat, const berth_slice *slices, size_t n)
{
    group_write(seat, &info, slices, n, (berth_params){.config = joint_config}, seat->context);
}

static void run(size_t n, void (*write)(group_seat *seat))
{
    memset(results, 0, sizeof results);
    group_run(&group, n, write, results, sizeof *results);
    cr_assert(!group.sizes_differ);
}

static void free_receipts(void)
{
    for (size_t i = 0; i < MAX_GROUP; i++)
        berth_free(results[i].receipt);
}

static void finish(size_t n)
{
    for (size_t i = n; i-- > 0;) {
        cr_assert_eq(results[i].status, 0, "writer %zu: %s", i, results[i].error.message);
        assert_ok(berth_joint_add_receipt(joint, results[i].receipt, results[i].nbytes, &error));
    }
    free_receipts();
}

/* ---- the same file ---- */

static void write_shards(group_seat *seat)
{
    writer_shards shards;

    shards_take(&shards, seat->group->n, seat->number);
    write_slices(seat, shards.slices, shards.n);
    shards_free(&shards);
}

static void save_shards(size_t n, const char *way)
{
    berth_tree *tree = berth_tree_new(NULL);
    char what[200];

    snprintf(what, sizeof what, "%zu writers, %s", n, way);
    test_write_file(path, "old", 3);
    assert_ok(
        berth_joint_begin(path, shards_state_new(tree, true), n, NULL, &joint, &info, &error));
    run(n, write_shards);
    cr_assert(test_file_holds(path, "old", 3));
    finish(n);
    assert_ok(berth_joint_finish(joint, &error));
    berth_tree_free(tree);
    check_joint_file(what);
}

static const char *const ways[] = {
    "save.method=direct",
    "save.method=buffered save.storage_alignment=64",
    "save.method=direct save.storage_alignment=4096",
    "save.method=buffered save.storage_alignment=1 save.compute_crc32=off",
    "save.method=direct debug=on",
    "save.method=direct save.byteorder=big",
    "save.method=buffered save.byteorder=big io.memory_nbytes=65536",
};

Test(joint_exchange, the_file_is_that_of_one_process)
{
    static const size_t n_writers[] = {1, 2, 3, 4, 7};

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        berth_tree *tree = berth_tree_new(NULL);
        char options[200];
        snprintf(options, sizeof options, "save.durability=none io.threads=2 %s", ways[i]);
        set_joint_options(options);
        assert_ok(berth_save(expected_path, shards_state_new(tree, false), NULL, &error));
        berth_tree_free(tree);
        /* All numbers of writers in the first way, then two of them in turn. */
        for (size_t j = 0; j < 5; j++)
            if (i < 1 || (i + j) % 3 == 0)
                save_shards(n_writers[j], ways[i]);
        unset_joint_options();
    }
}

/* ---- uneven: many steps for one window, little memory ---- */

enum { MIB = 1 << 20, LONG_ROWS = 60, LONG_COLUMNS = 175000, LAST_COLUMNS = 3 };

static uint32_t *uneven;

static berth_value *uneven_state(berth_tree *tree, const void *bytes)
{
    const int64_t shape[] = {LONG_ROWS, LONG_COLUMNS};
    berth_value *value = berth_make_dict(tree, BERTH_KIND_DICT);

    berth_dict_set(value, "w", test_tensor(tree, BERTH_FLOAT32, bytes, 2, shape));
    return value;
}

/* Writer 0 has the last columns, writer 1 all others. */
static void write_uneven(group_seat *seat)
{
    const int64_t n[] = {LAST_COLUMNS, LONG_COLUMNS - LAST_COLUMNS}, width = n[seat->number];
    const int64_t starts[] = {0, seat->number == 0 ? n[1] : 0};
    const int64_t lengths[] = {LONG_ROWS, width};
    uint32_t *copy = malloc((size_t)(LONG_ROWS * width) * sizeof *copy + 1);

    for (int64_t row = 0; row < LONG_ROWS; row++)
        memcpy(copy + row * width, uneven + row * LONG_COLUMNS + starts[1],
               (size_t)width * sizeof *copy);
    const berth_slice slice = berth_slice_of("w", starts, lengths, copy);
    write_slices(seat, &slice, 1);
    free(copy);
}

Test(joint_exchange, one_writer_has_nearly_all)
{
    uneven = malloc(LONG_ROWS * LONG_COLUMNS * sizeof *uneven);
    for (size_t i = 0; i < LONG_ROWS * LONG_COLUMNS; i++)
        uneven[i] = (uint32_t)i * 2654435761U;
    /* Elements are swapped: none may be cut where a message is full. */
    set_joint_options("save.durability=none io.threads=2 save.byteorder=big");
    berth_tree *tree = berth_tree_new(NULL);
    assert_ok(berth_save(expected_path, uneven_state(tree, uneven), NULL, &error));
    assert_ok(berth_joint_begin(path, uneven_state(tree, BERTH_ELSEWHERE), 2, NULL, &joint, &info,
                                &error));
    run(2, write_uneven);
    /* Three rounds, the first two of two steps. */
    cr_assert_geq(group.n_calls, 1 + 5 * 2 + 1);
    cr_assert_eq(results[0].stats.requested_nbytes,
                 (uint64_t)LONG_ROWS * LAST_COLUMNS * sizeof *uneven);
    /* Windows 0, 2 and 4, and windows 1, 3 and 5, of which the last holds little. */
    cr_assert_gt(results[0].stats.moved_nbytes, 23 * MIB);
    cr_assert_gt(results[1].stats.moved_nbytes, 15 * MIB);
    finish(2);
    assert_ok(berth_joint_finish(joint, &error));
    check_joint_file("uneven");
    berth_tree_free(tree);
    free(uneven);
    unset_joint_options();
}

Test(joint_exchange, takes_little_memory)
{
    uneven = calloc(LONG_ROWS * LONG_COLUMNS, sizeof *uneven);
    test_memory_watch();
    berth_tree *tree = berth_tree_new(NULL);
    set_joint_options("save.durability=none io.threads=2");
    assert_ok(berth_joint_begin(path, uneven_state(tree, BERTH_ELSEWHERE), 2, NULL, &joint, &info,
                                &error));
    run(2, write_uneven);
    finish(2);
    assert_ok(berth_joint_finish(joint, &error));
    berth_tree_free(tree);
    unset_joint_options();
    /* Of two writers; beside it each has two windows of 8 MiB, and messages of 9 MiB from and to
     * all, which are mapped. */
    cr_assert_lt(test_memory_seen().peak_nbytes, 2 * (64 - 2 * (8 + 9)) * (uint64_t)MIB);
    cr_assert_eq(test_memory_seen().live_nbytes, 0);
    test_memory_unwatch();
    free(uneven);
}

/* ---- errors ---- */

enum { N = 3, SIDE = 64 };

static float w[SIDE * SIDE];

static berth_value *square_outline(berth_tree *tree)
{
    const int64_t shape[] = {SIDE, SIDE};
    berth_value *value = berth_make_dict(tree, BERTH_KIND_DICT);

    berth_dict_set(value, "w", test_tensor(tree, BERTH_FLOAT32, BERTH_ELSEWHERE, 2, shape));
    return value;
}

static berth_tree *outline_tree;

static void begin_square(void)
{
    outline_tree = berth_tree_new(NULL);
    assert_ok(
        berth_joint_begin(path, square_outline(outline_tree), N, NULL, &joint, &info, &error));
}

static void end_square(void)
{
    free_receipts();
    berth_joint_abort(joint);
    berth_tree_free(outline_tree);
    cr_assert(test_file_holds(path, "old", 3));
    cr_assert_eq(test_folder_count(folder), 1);
}

/* What each writer gives: columns [begin, end); end 0: nothing. */
static struct {
    int64_t begin[N], end[N];
    berth_slice more;              /* of writer 2 */
    const berth_joint_info *other; /* whose ticket writer 2 has; or NULL */
    unsigned cancel_at;            /* a report of writer 1 */
} given;

static int cancel(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    unsigned *n_reports = context;

    cr_assert_leq(done_nbytes, total_nbytes);
    return ++*n_reports == given.cancel_at;
}

static void write_given(group_seat *seat)
{
    size_t i = seat->number;
    unsigned n_reports = 0;
    const int64_t starts[] = {0, given.begin[i]}, lengths[] = {SIDE, given.end[i] - starts[1]};
    const berth_slice slices[] = {berth_slice_of("w", starts, lengths, w), given.more};
    const size_t first = given.end[i] == 0, n = i == 2 && given.more.name ? 2 : 1;
    const berth_params params = {.progress = i == 1 && given.cancel_at ? cancel : NULL,
                                 .progress_context = &n_reports};

    group_write(seat, i == 2 && given.other ? given.other : &info, slices + first, n - first,
                params, seat->context);
}

/* That writer has this error, and all others know whose it is. */
static void check_failed(size_t writer, int status, const char *sentence)
{
    char told[100];

    snprintf(told, sizeof told, "model.pt: writer %zu has failed with %s, and says why", writer,
             berth_status_name(status));
    for (size_t i = 0; i < N; i++) {
        const group_result *got = &results[i];
        cr_assert_eq(got->status, i == writer ? status : BERTH_E_PEER, "writer %zu: %s", i,
                     got->error.message);
        cr_assert(strstr(got->error.message, i == writer ? sentence : told), "writer %zu: %s", i,
                  got->error.message);
        cr_assert_null(got->receipt);
    }
}

static const int64_t all_rows[] = {SIDE, 1}, beyond[] = {0, SIDE}, none[] = {0, 0};

static const struct {
    int64_t begin[N], end[N];
    berth_slice more;
    size_t writer;
    int status;
    const char *sentence;
} failures[] = {
    {{0, 20, 40},
     {20, 40, 64},
     {.kind = BERTH_SLICE_BOX, .name = "w", .data = w, .starts = beyond, .lengths = all_rows},
     2,
     BERTH_E_ARGUMENT,
     "w: 1 elements from 64 on are not in dimension 1 of 64"},
    {{0, 20, 40},
     {20, 40, 64},
     {.kind = BERTH_SLICE_WHOLE, .name = "x", .data = w},
     2,
     BERTH_E_NOT_FOUND,
     "x: slice 1: the outline has no such tensor"},
    {{0, 20, 40},
     {20, 40, 64},
     {.kind = BERTH_SLICE_BOX, .name = "w", .starts = none, .lengths = all_rows},
     2,
     BERTH_E_ARGUMENT,
     "w: the data are NULL"},
    /* Writer 0 owns the only window. */
    {{0, 20, 39},
     {20, 40, 64},
     {0},
     0,
     BERTH_E_ARGUMENT,
     "w: writer 2 has byte 156 of its storage, and so has another slice"},
    {{0, 20, 40},
     {20, 40, 64},
     {.kind = BERTH_SLICE_BOX, .name = "w", .data = w, .starts = none, .lengths = all_rows},
     0,
     BERTH_E_ARGUMENT,
     "w: writer 2 has byte 0 of its storage, and so has another slice"},
};

Test(joint_exchange, if_one_writer_fails_all_fail)
{
    begin_square();
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
        memcpy(given.begin, failures[i].begin, sizeof given.begin);
        memcpy(given.end, failures[i].end, sizeof given.end);
        given.more = failures[i].more;
        run(N, write_given);
        check_failed(failures[i].writer, failures[i].status, failures[i].sentence);
    }
    end_square();
}

static void give_thirds(void)
{
    memset(&given, 0, sizeof given);
    for (size_t i = 0; i < N; i++) {
        given.begin[i] = (int64_t)i * 20;
        given.end[i] = i == N - 1 ? SIDE : given.begin[i] + 20;
    }
}

Test(joint_exchange, progress_cancels_all_writers)
{
    begin_square();
    give_thirds();
    given.cancel_at = 1;
    run(N, write_given);
    check_failed(1, BERTH_E_CANCELLED, "model.pt: cancelled");
    end_square();
}

Test(joint_exchange, writers_of_two_saves_do_not_mix)
{
    berth_joint *other;
    berth_joint_info other_info;
    char *other_path = test_path(folder, "other.pt");

    begin_square();
    assert_ok(berth_joint_begin(other_path, square_outline(outline_tree), N, NULL, &other,
                                &other_info, &error));
    give_thirds();
    given.other = &other_info;
    run(N, write_given);
    for (size_t i = 0; i < N; i++) {
        cr_assert_eq(results[i].status, BERTH_E_ARGUMENT);
        cr_assert(strstr(results[i].error.message, i == 2
                                                       ? "writer 0 has the ticket of another save"
                                                       : "writer 2 has the ticket of another save"),
                  "%s", results[i].error.message);
    }
    berth_joint_abort(other);
    free(other_path);
    end_square();
}

/* It begins with 1; the calls are: hello, words, messages, the end. */
Test(joint_exchange, an_exchange_that_breaks_fails_all)
{
    begin_square();
    give_thirds();
    for (group.breaks_at = 1; group.breaks_at <= 4; group.breaks_at++) {
        run(N, write_given);
        for (size_t i = 0; i < N; i++) {
            cr_assert_eq(results[i].status, BERTH_E_CALLBACK, "%s", results[i].error.message);
            cr_assert(strstr(results[i].error.message, "model.pt: the exchange has failed"), "%s",
                      results[i].error.message);
            cr_assert_null(results[i].receipt);
        }
    }
    run(N, write_given);
    cr_assert_eq(group.n_calls, 4);
    for (size_t i = 0; i < N; i++)
        cr_assert_eq(results[i].status, 0, "%s", results[i].error.message);
    end_square();
}

Test(joint_exchange, without_short_runs_nothing_but_two_words_is_exchanged)
{
    begin_square();
    memset(&given, 0, sizeof given);
    given.end[1] = SIDE;
    run(N, write_given);
    cr_assert_eq(group.n_calls, 2);
    finish(N);
    assert_ok(berth_joint_finish(joint, &error));
    berth_tree_free(outline_tree);
}

/* J3 */
Test(joint_exchange, what_nobody_or_two_gave_is_found_at_the_end)
{
    begin_square();
    give_thirds();
    given.end[1] = 39;
    run(N, write_given);
    finish(N);
    FAILS_SAYING(berth_joint_finish(joint, &error), BERTH_E_ARGUMENT,
                 "model.pt: data/0: no writer has written its bytes 156 to 160 (tensor 'w')");
    berth_tree_free(outline_tree);
    begin_square();
    give_thirds();
    given.more = berth_slice_bytes("w", 8, 8, w);
    run(N, write_given);
    finish(N);
    cr_assert_eq(berth_joint_finish(joint, &error), BERTH_E_ARGUMENT);
    cr_assert(strstr(error.message, "data/0: writers 2 and 0 have both written its byte 8") ||
                  strstr(error.message, "data/0: writers 0 and 2 have both written its byte 8"),
              "%s", error.message);
    berth_tree_free(outline_tree);
}

/* ---- slices that are refused, of one writer ---- */

enum { MANY_ROWS = 40001 }; /* so that "floats" lies across words, in both byte orders */

static uint8_t two_columns[MANY_ROWS];

static berth_value *refused_outline(berth_tree *tree)
{
    const int64_t packed[] = {4, 8}, many[] = {MANY_ROWS, 2}, floats[] = {4, 4};
    berth_value *value = berth_make_dict(tree, BERTH_KIND_DICT);
    const berth_tensor tensor = {.dtype = BERTH_QUINT4X2,
                                 .rank = 2,
                                 .shape = packed,
                                 .qscheme = BERTH_PER_TENSOR_AFFINE,
                                 .scale = 0.5,
                                 .data = BERTH_ELSEWHERE};

    berth_dict_set(value, "packed", berth_make_tensor(tree, &tensor));
    berth_dict_set(value, "many", test_tensor(tree, BERTH_UINT8, BERTH_ELSEWHERE, 2, many));
    berth_dict_set(value, "floats", test_tensor(tree, BERTH_FLOAT32, BERTH_ELSEWHERE, 2, floats));
    return value;
}

static const struct {
    const char *name, *sentence;
    int64_t starts[2], lengths[2];
} refused[] = {
    {"packed", "packed: the slice cuts an item of several elements", {0, 1}, {4, 2}},
    {"packed", "packed: the slice cuts an item of several elements", {0, 0}, {4, 3}},
    {"floats", "floats: save.byteorder swaps its bytes, and an element is cut", {0, 0}, {4, 2}},
    {"many",
     "many: its short slices leave more than 16384 gaps, one of them before byte 32770 of its "
     "storage: no writer has given all of them",
     {0, 0},
     {MANY_ROWS, 1}},
};

static size_t n_refused;

static void write_refused(group_seat *seat)
{
    const berth_slice slice = berth_slice_of(refused[n_refused].name, refused[n_refused].starts,
                                             refused[n_refused].lengths, two_columns);

    write_slices(seat, &slice, 1);
}

Test(joint_exchange, refuses_what_cannot_be_written)
{
    berth_tree *tree = berth_tree_new(NULL);

    set_joint_options("save.byteorder=" OTHER_BYTEORDER " save.storage_alignment=1");
    assert_ok(berth_joint_begin(path, refused_outline(tree), 1, NULL, &joint, &info, &error));
    for (n_refused = 0; n_refused < sizeof refused / sizeof *refused; n_refused++) {
        run(1, write_refused);
        cr_assert_eq(results[0].status, BERTH_E_ARGUMENT, "%zu", n_refused);
        cr_assert(strstr(results[0].error.message, refused[n_refused].sentence), "%s",
                  results[0].error.message);
    }
    berth_joint_abort(joint);
    berth_tree_free(tree);
    unset_joint_options();
}

/* W6: each allocation of the group fails once. */
Test(joint_exchange, without_memory_all_writers_fail_and_nothing_leaks)
{
    size_t n_failed = 0;

    test_memory_watch();
    set_joint_options("save.durability=none io.threads=1");
    begin_square();
    give_thirds();
    for (uint64_t nth = 1;; nth++) {
        uint64_t live_nbytes = test_memory_seen().live_nbytes;
        test_memory_refuse(nth, false);
        run(N, write_given);
        if (results[0].status == 0)
            break;
        n_failed++;
        for (size_t i = 0; i < N; i++) {
            cr_assert_lt(results[i].status, 0, "allocation %zu: writer %zu is well", (size_t)nth,
                         i);
            cr_assert_null(results[i].receipt);
        }
        cr_assert_eq(test_memory_seen().live_nbytes, live_nbytes);
    }
    cr_assert_gt(n_failed, 50);
    test_memory_refuse(0, false);
    end_square();
    unset_joint_options();
    cr_assert_eq(test_memory_seen().live_nbytes, 0);
    test_memory_unwatch();
}

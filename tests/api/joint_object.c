/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Joint saves to an object store: each part is sent once, whole, and together they are the file of
 * one process, whatever is sharded along which dimension, whatever size the parts have. If one
 * writer fails, all do, and none waits (J8).
 */
#include <berth/more.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <stdatomic.h>
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

TestSuite(joint_object, .init = begin_joint_scene, .fini = end_joint_scene);

/* ---- a store ---- */

static struct {
    uint8_t *bytes;
    uint64_t nbytes, part_nbytes;
    atomic_uint n_of_part[4096], n_of_writer[MAX_GROUP], n_wrong, n_now, most_now;
    unsigned fails_at; /* the number of a part from 1 on; 0: none */
} store;

static int store_write(void *context, const void *buffer, size_t nbytes, uint64_t offset)
{
    const group_seat *seat = context;
    const uint64_t i = offset / store.part_nbytes, left = store.nbytes - offset;
    unsigned now = ++store.n_now, most = store.most_now;

    while (most < now && !atomic_compare_exchange_weak(&store.most_now, &most, now))
        ;
    if (offset % store.part_nbytes != 0 ||
        nbytes != (left < store.part_nbytes ? left : store.part_nbytes))
        store.n_wrong++;
    else
        memcpy(store.bytes + offset, buffer, nbytes);
    store.n_of_part[i]++;
    store.n_of_writer[seat->number]++;
    store.n_now--;
    return store.fails_at == i + 1 ? EDQUOT : 0;
}

static void store_begin(uint64_t part_nbytes)
{
    free(store.bytes);
    memset(&store, 0, sizeof store);
    store.nbytes = info.nbytes;
    store.part_nbytes = part_nbytes;
    store.bytes = malloc((size_t)info.nbytes);
}

static unsigned other_size; /* of the parts of writer 1, more */

static void send_slices(group_seat *seat, const berth_slice *slices, size_t n)
{
    group_result *out = seat->context;
    const berth_joint_object object = {.sink = {.write = store_write, .context = seat},
                                       .part_nbytes =
                                           store.part_nbytes + (seat->number == 1 ? other_size : 0),
                                       .joint = seat->number == 0 ? joint : NULL};
    const berth_params params = {.config = joint_config,
                                 .stats = &out->stats,
                                 .base = expected_path,
                                 .exchange = group_exchange,
                                 .exchange_context = seat};

    out->status = berth_joint_send(info.ticket, info.ticket_nbytes, seat->number, slices, n,
                                   &object, &params, &out->error);
    cr_assert(out->status < 0 || !strcmp(out->stats.base_reason, "only a file that is saved to a "
                                                                 "path shares blocks"));
    out->n_calls = seat->n_calls;
    if (out->status < 0 && seat->n_calls == 0)
        group_break(seat->group);
}

static void run(size_t n, void (*write)(group_seat *seat))
{
    memset(results, 0, sizeof results);
    group_run(&group, n, write, results, sizeof *results);
    cr_assert(!group.sizes_differ);
}

/* ---- the same bytes ---- */

static void send_shards(group_seat *seat)
{
    writer_shards shards;

    shards_take(&shards, seat->group->n, seat->number);
    send_slices(seat, shards.slices, shards.n);
    shards_free(&shards);
}

enum { OWN = 700000 };
static float own[OWN];

/* The shards' state, and tensors that the coordinator has. */
static berth_value *state_new(berth_tree *tree, bool is_outline)
{
    const int64_t many[] = {OWN}, few[] = {3};
    berth_value *value = shards_state_new(tree, is_outline);

    berth_dict_set(value, "own", test_tensor(tree, BERTH_FLOAT32, own, 1, many));
    berth_dict_set(value, "own few", test_tensor(tree, BERTH_FLOAT32, own + 7, 1, few));
    berth_dict_set(value, "step", berth_make_int(tree, 7));
    return value;
}

Test(joint_object, parts_are_those_of_the_file_of_one_process)
{
    static const uint64_t part_nbytes[] = {1 << 20, 999983, 5 << 20, 1 << 30};
    static const char *const ways[] = {"save.storage_alignment=64", "save.storage_alignment=4096",
                                       "save.storage_alignment=1 save.compute_crc32=off",
                                       "debug=on"};
    static const size_t n_writers[] = {4, 1, 2, 3, 7};

    for (size_t i = 0; i < OWN; i++)
        own[i] = (float)i;
    for (size_t i = 0; i < 4; i++) {
        size_t nbytes, n = n_writers[0];
        set_joint_options(ways[i]);
        berth_tree *tree = berth_tree_new(NULL), *outline = berth_tree_new(NULL);
        assert_ok(berth_save(expected_path, state_new(tree, false), NULL, &error));
        uint8_t *expected = test_read_file(expected_path, &nbytes);
        for (size_t j = 0; j < 5; j++) {
            if (i > 0 && (i + j) % 3 != 0)
                continue;
            n = n_writers[j];
            assert_ok(berth_joint_begin_object("s3://bucket/model.pt", state_new(outline, true), n,
                                               NULL, &joint, &info, &error));
            cr_assert_eq(info.nbytes, nbytes);
            store_begin(part_nbytes[(i + j) % 4]);
            run(n, send_shards);
            for (size_t k = 0; k < n; k++)
                cr_assert_eq(results[k].status, 0, "%zu of %zu, %s: %s", k, n, ways[i],
                             results[k].error.message);
            uint64_t n_parts = (nbytes - 1) / store.part_nbytes + 1;
            for (uint64_t k = 0; k < n_parts; k++)
                cr_assert_eq(store.n_of_part[k], 1, "part %zu was sent %u times", (size_t)k,
                             store.n_of_part[k]);
            cr_assert_eq(store.n_wrong, 0);
            cr_assert(memcmp(store.bytes, expected, nbytes) == 0, "%zu writers, parts of %zu, %s",
                      n, (size_t)store.part_nbytes, ways[i]);
            berth_joint_abort(joint);
        }
        free(expected);
        berth_tree_free(tree);
        berth_tree_free(outline);
        unset_joint_options();
    }
}

/* ---- who sends what ---- */

enum { N = 4, SIDE = 1024, COUNT = N * SIDE * SIDE }; /* 4 MiB for each writer */
static uint32_t *numbers;

static berth_value *numbers_outline(berth_tree *tree)
{
    const int64_t shape[] = {COUNT};
    berth_value *value = berth_make_dict(tree, BERTH_KIND_DICT);

    if (!numbers)
        numbers = malloc(COUNT * sizeof *numbers);
    for (uint32_t i = 0; i < COUNT; i++)
        numbers[i] = i * 2654435761U;
    berth_dict_set(value, "n", test_tensor(tree, BERTH_UINT32, BERTH_ELSEWHERE, 1, shape));
    return value;
}

/* Where the slice of each writer begins and ends, in elements; the same of a second one. */
static int64_t begins[N], ends[N], more_begins[N], more_ends[N];

static void give_quarters(void)
{
    for (int64_t i = 0; i < N; i++) {
        begins[i] = i * SIDE * SIDE;
        ends[i] = begins[i] + SIDE * SIDE;
        more_begins[i] = more_ends[i] = 0;
    }
}

static void send_numbers(group_seat *seat)
{
    const size_t i = seat->number;
    const int64_t lengths[] = {ends[i] - begins[i]}, more[] = {more_ends[i] - more_begins[i]};
    const berth_slice slices[] = {
        berth_slice_of("n", &begins[i], lengths, numbers + begins[i]),
        berth_slice_of("n", &more_begins[i], more, numbers + more_begins[i]),
    };

    send_slices(seat, slices, 2);
}

static berth_tree *begin_numbers(uint64_t part_nbytes)
{
    berth_tree *tree = berth_tree_new(NULL);

    assert_ok(berth_joint_begin_object("s3://bucket/model.pt", numbers_outline(tree), N, NULL,
                                       &joint, &info, &error));
    store_begin(part_nbytes);
    return tree;
}

static void end_numbers(berth_tree *tree)
{
    berth_joint_abort(joint);
    berth_tree_free(tree);
}

Test(joint_object, who_has_more_than_half_of_a_part_sends_it)
{
    berth_tree *tree = begin_numbers(1 << 20);

    set_joint_options("io.threads=2");
    give_quarters();
    run(N, send_numbers);
    for (size_t i = 0; i < N; i++) /* 4 parts each; the coordinator has the end, too */
        cr_assert_eq(store.n_of_writer[i], i == 0 ? 5 : 4, "%zu: %u", i, store.n_of_writer[i]);
    cr_assert_leq(store.most_now, 2 * N);
    end_numbers(tree);
    /* One has nearly all, and sends nearly all. */
    tree = begin_numbers(1 << 20);
    for (size_t i = 0; i < N; i++) {
        begins[i] = i == 2 ? 0 : COUNT - 3 + (int64_t)(i - (i > 2));
        ends[i] = i == 2 ? COUNT - 3 : begins[i] + 1;
    }
    run(N, send_numbers);
    for (size_t i = 0; i < N; i++)
        cr_assert_eq(results[i].status, 0, "%s", results[i].error.message);
    cr_assert_eq(store.n_of_writer[2], 16, "%u", store.n_of_writer[2]);
    end_numbers(tree);
    unset_joint_options();
}

/* ---- what fails ---- */

/* One returns `code`, and says `sentence`; all others BERTH_E_PEER. */
static void check_failed(berth_status code, const char *sentence)
{
    size_t n_causes = 0;

    for (size_t i = 0; i < N; i++) {
        cr_assert(results[i].status == (int)code || results[i].status == BERTH_E_PEER,
                  "writer %zu: %s", i, results[i].error.message);
        if (results[i].status == (int)code) {
            n_causes++;
            cr_assert(strstr(results[i].error.message, sentence), "%s", results[i].error.message);
        }
    }
    cr_assert_geq(n_causes, 1, "%s", sentence);
}

/* J3, J8 */
Test(joint_object, one_that_fails_ends_all)
{
    static const struct {
        const char *sentence;
        unsigned fails_at, other_size;
        int64_t end_of_1, more_begin, more_end;
    } faults[] = {
        {"s3://bucket/model.pt: at byte", 1, 0, 0, 0, 0},
        {"s3://bucket/model.pt: at byte", 8, 0, 0, 0, 0},
        {"s3://bucket/model.pt: at byte", 17, 0, 0, 0, 0}, /* the last one */
        {"s3://bucket/model.pt: writer 1 has parts of another size", 0, 4096, 0, 0, 0},
        {"n: no writer has given byte 8388604 of its storage", 0, 0, -1, 0, 0},
        {"n: writer 1 has byte 12800000 of its storage, and so has another slice", 0, 0, 0, 3200000,
         3200008},
        {"n: 2 elements from 4194303 on are not in dimension 0", 0, 0, 0, COUNT - 1, COUNT + 1},
    };

    set_joint_options("io.threads=2");
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        berth_tree *tree = begin_numbers(1 << 20);
        give_quarters();
        store.fails_at = faults[i].fails_at;
        other_size = faults[i].other_size;
        ends[1] += faults[i].end_of_1;
        more_begins[1] = faults[i].more_begin;
        more_ends[1] = faults[i].more_end;
        run(N, send_numbers);
        bool is_size = other_size > 0; /* each finds that of another one */
        for (size_t j = 0; is_size && j < N; j++)
            cr_assert_eq(results[j].status, BERTH_E_ARGUMENT);
        if (!is_size)
            check_failed(faults[i].fails_at ? BERTH_E_CALLBACK : BERTH_E_ARGUMENT,
                         faults[i].sentence);
        other_size = 0;
        end_numbers(tree);
    }
    unset_joint_options();
}

Test(joint_object, an_exchange_that_breaks_ends_all)
{
    set_joint_options("io.threads=2");
    for (bool is_well = false; !is_well; group.breaks_at++) {
        berth_tree *tree = begin_numbers(5 << 20);
        group.breaks_at += group.breaks_at == 0;
        give_quarters();
        run(N, send_numbers);
        is_well = results[0].status == 0;
        for (size_t i = 0; i < N; i++)
            cr_assert_eq(results[i].status, is_well ? 0 : BERTH_E_CALLBACK, "%u: %s",
                         group.breaks_at, results[i].error.message);
        end_numbers(tree);
    }
    cr_assert_gt(group.breaks_at, 10);
    group.breaks_at = 0;
    unset_joint_options();
}

/* W6: each allocation of the group fails once. */
Test(joint_object, without_memory_all_writers_fail_and_nothing_leaks)
{
    size_t n_failed = 0;

    set_joint_options("io.threads=1");
    give_quarters();
    begins[0] = 5; /* so that each part has bytes of two */
    more_ends[3] = 5;
    test_memory_watch();
    for (uint64_t nth = 1;; nth++) {
        berth_tree *tree = begin_numbers(3 << 20);
        uint64_t live_nbytes = test_memory_seen().live_nbytes;
        (void)live_nbytes;
        test_memory_refuse(nth, false);
        run(N, send_numbers);
        test_memory_refuse(0, false);
        bool is_well = results[0].status == 0;
        for (size_t i = 0; i < N; i++)
            cr_assert(is_well == (results[i].status == 0), "allocation %zu: writer %zu: %s",
                      (size_t)nth, i, results[i].error.message);
        end_numbers(tree);
        cr_assert_eq(test_memory_seen().live_nbytes, 0);
        if (is_well)
            break;
        n_failed++;
    }
    cr_assert_gt(n_failed, 50);
    test_memory_unwatch();
    unset_joint_options();
}

Test(joint_object, what_does_not_fit)
{
    const berth_joint_object none = {.part_nbytes = 1 << 20};
    berth_params params = {.exchange = group_exchange};
    void *receipt;
    size_t nbytes;
    berth_tree *tree = begin_numbers(1 << 20);

    cr_assert_eq(berth_joint_write(info.ticket, info.ticket_nbytes, 0, NULL, 0, NULL, &receipt,
                                   &nbytes, &error),
                 BERTH_E_ARGUMENT);
    cr_assert(strstr(error.message, "the ticket is of an object"), "%s", error.message);
    cr_assert_eq(berth_joint_add_receipt(joint, "", 0, &error), BERTH_E_ARGUMENT);
    cr_assert(strstr(error.message, "it is of an object, which has no receipts"), "%s",
              error.message);
    cr_assert_eq(
        berth_joint_send(info.ticket, info.ticket_nbytes, N, NULL, 0, &none, &params, &error),
        BERTH_E_ARGUMENT);
    cr_assert(strstr(error.message, "there is no writer 4"), "%s", error.message);
    params.exchange = NULL;
    cr_assert_eq(
        berth_joint_send(info.ticket, info.ticket_nbytes, 0, NULL, 0, &none, &params, &error),
        BERTH_E_ARGUMENT);
    cr_assert_eq(berth_joint_finish(joint, &error), BERTH_E_ARGUMENT);
    cr_assert(strstr(error.message, "it is of an object, which has no receipts"), "%s",
              error.message);
    berth_tree_free(tree);
}

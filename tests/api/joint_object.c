/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Joint saves to an object store: each part is sent once, whole, and together they are the file of
 * one process, whatever is sharded along which dimension, whatever size the parts have. If one
 * writer fails, all do, and none waits (J8).
 */
#include <berth/config.h>
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
static berth_config *config; /* a patch is its thread's */

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
    const berth_params params = {.config = config,
                                 .stats = &out->stats,
                                 .exchange = group_exchange,
                                 .exchange_context = seat};

    out->status = berth_joint_send(info.ticket, info.ticket_nbytes, seat->number, slices, n,
                                   &object, &params, &out->error);
    out->n_calls = seat->n_calls;
}

static void run(size_t n, void (*write)(group_seat *seat))
{
    memset(results, 0, sizeof results);
    group_run(&group, n, write, results, sizeof *results);
    cr_assert(!group.sizes_differ);
}

static void set_options(const char *options)
{
    patch(options);
    config = berth_config_new(&error);
    assert_ok(berth_config_apply(config, options, &error));
}

static void unset_options(void)
{
    berth_config_free(config);
    assert_ok(berth_config_unpatch(&error));
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
        set_options(ways[i]);
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
        unset_options();
    }
}

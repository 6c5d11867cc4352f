/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Writers with many whole tensors that lie next to each other (J1): they write what lies between
 * them, too, and the file is that of one process, whoever has which tensor.
 */
#include <berth/config.h>
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/joint_scene.h"
#include "tests/support/scene.h"

enum { N_TENSORS = 80, MAX_BYTES = 30000, MAX_WRITERS = 4, NAME_NBYTES = 16 };

static berth_error error;
static uint8_t bytes[MAX_BYTES + N_TENSORS];
static char names[N_TENSORS][NAME_NBYTES];
static uint32_t state;

TestSuite(joint_chains, .init = begin_joint_scene, .fini = end_joint_scene);

static uint32_t random_below(uint32_t n)
{
    state = state * 1664525 + 1013904223;
    return (state >> 8) % n;
}

/* ---- a model, and who has what of it ---- */

typedef struct model {
    int64_t nbytes[N_TENSORS];
    unsigned owner[N_TENSORS];
    bool is_split[N_TENSORS]; /* its second half is the next writer's */
    bool is_here[N_TENSORS];  /* the coordinator has it */
} model;

static model model_of(uint32_t seed, unsigned n_writers)
{
    static const int64_t usual[] = {1, 2, 4, 7, 8, 9, 100, 1000, 4000, 4096, 5000, 8192, 20000, 0};
    model made;
    unsigned owner = 0;

    state = seed;
    for (size_t i = 0; i < N_TENSORS; i++) {
        made.nbytes[i] = usual[random_below(sizeof usual / sizeof *usual)];
        if (random_below(6) == 0)
            owner = random_below(n_writers);
        made.owner[i] = owner;
        made.is_split[i] = random_below(12) == 0;
        made.is_here[i] = random_below(20) == 0;
    }
    return made;
}

static berth_value *value_of(berth_tree *tree, const model *made, bool is_outline)
{
    berth_value *value = berth_make_dict(tree, BERTH_KIND_DICT);

    for (size_t i = 0; i < N_TENSORS; i++) {
        bool is_elsewhere = is_outline && !made->is_here[i] && made->nbytes[i] > 0;
        snprintf(names[i], NAME_NBYTES, "t%zu", i);
        /* Elements of 4 bytes where they are whole, so that save.byteorder swaps some. */
        berth_dtype dtype = made->nbytes[i] % 4 == 0 ? BERTH_INT32 : BERTH_UINT8;
        const int64_t shape[] = {dtype == BERTH_INT32 ? made->nbytes[i] / 4 : made->nbytes[i]};
        const void *at = is_elsewhere ? BERTH_ELSEWHERE : (const void *)(bytes + i);
        berth_dict_set(value, names[i], test_tensor(tree, dtype, at, 1, shape));
    }
    return value;
}

static size_t slices_of(const model *made, unsigned n_writers, unsigned writer,
                        berth_slice slices[N_TENSORS])
{
    size_t n = 0;

    for (size_t i = 0; i < N_TENSORS; i++) {
        uint64_t nbytes = (uint64_t)made->nbytes[i], half = made->is_split[i] ? nbytes / 8 * 4 : 0;
        if (made->is_here[i] || nbytes == 0)
            continue;
        if (made->owner[i] == writer)
            slices[n++] = half > 0 ? berth_slice_bytes(names[i], 0, half, bytes + i)
                                   : berth_slice_whole(names[i], bytes + i);
        if (half > 0 && (made->owner[i] + 1) % n_writers == writer)
            slices[n++] = berth_slice_bytes(names[i], half, nbytes - half, bytes + i + half);
    }
    return n;
}

/* Backwards: a writer's slices are in any order. */
static void reverse(berth_slice *slices, size_t n)
{
    for (size_t i = 0; i < n / 2; i++) {
        berth_slice kept = slices[i];
        slices[i] = slices[n - 1 - i];
        slices[n - 1 - i] = kept;
    }
}

typedef struct progress {
    uint64_t done_nbytes, total_nbytes;
    uint64_t before_nbytes; /* what was done in the call before the last one */
} progress;

static int note_progress(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    progress *told = context;

    *told = (progress){done_nbytes, total_nbytes, told->done_nbytes};
    return 0;
}

/* Returns the bytes of the receipt. */
static size_t write_as(berth_joint *joint, const berth_joint_info *info, const model *made,
                       unsigned n_writers, unsigned writer)
{
    berth_slice slices[2 * N_TENSORS];
    progress told = {0};
    const berth_params params = {.progress = note_progress, .progress_context = &told};
    size_t n = slices_of(made, n_writers, writer, slices);

    if (writer % 2 == 1)
        reverse(slices, n);
    size_t nbytes = joint_write_and_tell(joint, info, writer, slices, n, &params);
    cr_assert_eq(told.done_nbytes, told.total_nbytes, "writer %u", writer);
    return nbytes;
}

static void save_as_one(berth_tree *tree, const model *made)
{
    assert_ok(berth_save(expected_path, value_of(tree, made, false), NULL, &error));
}

static void save_jointly(berth_tree *tree, const model *made, unsigned n_writers, const char *what)
{
    berth_joint *joint;
    berth_joint_info info;

    test_write_file(path, "old", 3);
    assert_ok(berth_joint_begin(path, value_of(tree, made, true), n_writers, NULL, &joint, &info,
                                &error));
    for (unsigned i = 0; i < n_writers; i++)
        (void)write_as(joint, &info, made, n_writers, i);
    assert_ok(berth_joint_finish(joint, &error));
    check_joint_file(what);
}

static void fill(void)
{
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 2654435761U >> 13);
}

static const char *const ways[] = {
    "save.method=direct",
    "save.method=buffered",
    "save.method=direct save.storage_alignment=4096",
    "save.method=buffered save.storage_alignment=1 save.compute_crc32=off",
    "save.method=buffered save.storage_alignment=32768",
    "save.method=direct debug=on",
    "save.method=buffered debug=on save.byteorder=big",
    "save.method=direct io.threads=4 io.chunk_nbytes=4096",
};

Test(joint_chains, the_file_is_that_of_one_process)
{
    char options[200], what[250];

    fill();
    for (unsigned i = 0; i < 10 * sizeof ways / sizeof *ways; i++) {
        unsigned n_writers = 1 + i % MAX_WRITERS;
        model made = model_of(i, n_writers);
        berth_tree *tree = berth_tree_new(&error);
        snprintf(options, sizeof options, "save.durability=none io.threads=2 %s",
                 ways[i % (sizeof ways / sizeof *ways)]);
        snprintf(what, sizeof what, "seed %u, %u writers, %s", i, n_writers, options);
        patch(options);
        save_as_one(tree, &made);
        save_jointly(tree, &made, n_writers, what);
        assert_ok(berth_config_unpatch(&error));
        berth_tree_free(tree);
    }
}

/* ---- what it is for ---- */

/* One writer has all: the coordinator writes the file's begin and end, whatever the alignment. */
Test(joint_chains, the_coordinator_writes_no_block_between_them)
{
    static const char *const alignments[] = {"save.storage_alignment=64",
                                             "save.storage_alignment=4096"};
    char options[200];

    fill();
    for (size_t i = 0; i < 2; i++) {
        berth_tree *tree = berth_tree_new(&error);
        berth_stats stats;
        progress told = {0};
        const berth_params params = {
            .stats = &stats, .progress = note_progress, .progress_context = &told};
        model made = {.nbytes = {0}};
        berth_joint *joint;
        berth_joint_info info;
        for (size_t j = 0; j < N_TENSORS; j++)
            made.nbytes[j] = 5000;
        snprintf(options, sizeof options, "save.durability=none io.threads=1 %s", alignments[i]);
        patch(options);
        save_as_one(tree, &made);
        assert_ok(berth_joint_begin(path, value_of(tree, &made, true), 1, &params, &joint, &info,
                                    &error));
        size_t receipt_nbytes = write_as(joint, &info, &made, 1, 0);
        cr_assert_lt(receipt_nbytes, N_TENSORS * 32 + 2 * 4096 + 100, "fragments are in it");
        assert_ok(berth_joint_finish(joint, &error));
        cr_assert_leq(stats.n_requests, 4, "%llu requests", (unsigned long long)stats.n_requests);
        /* The last call only says that the file is in its place. */
        cr_assert_eq(told.before_nbytes, told.total_nbytes, "what lies between is not counted");
        check_joint_file(options);
        assert_ok(berth_config_unpatch(&error));
        berth_tree_free(tree);
    }
}

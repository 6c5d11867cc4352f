/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * X11: a checkpoint in a child that was forked while a thread of the parent had its lock. What that
 * thread left half changed is set here as it could be: pointers to nowhere, numbers of nothing.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "load/checkpoint.h"
#include "tests/support/opened.h"

static uint8_t bytes[3][5000];
static const char *const names[] = {"a", "b", "c"};

static void set_up(void)
{
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);

    begin_model_scene();
    for (int i = 0; i < 3; i++) {
        memset(bytes[i], 17 * i + 1, sizeof bytes[i]);
        berth_dict_set(root, names[i], test_vector(tree, BERTH_INT8, bytes[i], 5000));
    }
    cr_assert_eq(berth_save(path, root, NULL, NULL), 0);
    berth_tree_free(tree);
}

TestSuite(forked, .init = set_up, .fini = end_scene);

static const uint8_t *data_of(int i)
{
    const uint8_t *data =
        berth_tensor_data(checkpoint, berth_find_tensor(checkpoint, names[i], NULL), &error);

    if (!data)
        (void)fprintf(stderr, "%s\n", error.message);
    return data;
}

static bool is_right(int i)
{
    const uint8_t *data = data_of(i);

    return data && memcmp(data, bytes[i], sizeof bytes[i]) == 0;
}

static int read_all(void)
{
    berth_named_tensor named;
    berth_info info;

    (void)alarm(120);
    for (size_t i = 0; i < 3; i++)
        if (berth_tensor_at(checkpoint, i, &named, &error) < 0 || strcmp(named.name, names[i]) != 0)
            return 1;
    if (berth_get_info(checkpoint, &info, &error) < 0 || info.n_tensors != 3 || info.n_records != 9)
        return 2;
    for (int i = 0; i < 3; i++)
        if (!is_right(i))
            return 3 + i;
    if (berth_load(checkpoint, NULL, NULL, &error) < 0)
        return 6;
    close_opened();
    return 0;
}

/* What is half changed must not be freed. */
static int close_at_once(void)
{
    (void)alarm(120);
    close_opened();
    return 0;
}

/* By a thread that the child has not. */
static void leave_half_changed(berth_checkpoint *with)
{
    static char freed[8];

    bth_checkpoint_lock(with);
    with->shown_name.text = with->shown_path.text = freed;
    with->shown_name.capacity = with->shown_path.capacity = 1000000;
    with->source.access.map.address = freed;
    with->source.access.map.address = freed;
    with->contents.counts = (bth_record_counts){.known = true, .n_records = 77};
    with->source.access.direct_is_tried = true;
    with->source.access.direct.fd = 999;
    with->source.access.direct.block_nbytes = 4096;
    if (!with->contents.container.known)
        with->contents.container.directory.entries = (bth_zip_entry *)(void *)freed;
    for (size_t i = 0; i < with->storages.n; i++)
        with->storages.stored[i].is_loading = true;
    with->storages.stored[0].n_waiting = 3;
}

static void make_good(berth_checkpoint *with, const berth_checkpoint *before)
{
    with->shown_name = before->shown_name;
    with->shown_path = before->shown_path;
    with->source.access.map = before->source.access.map;
    with->contents.counts = before->contents.counts;
    with->source.access.direct_is_tried = before->source.access.direct_is_tried;
    with->source.access.direct = before->source.access.direct;
    with->contents.container = before->contents.container;
    for (size_t i = 0; i < with->storages.n; i++)
        with->storages.stored[i].is_loading = false;
    with->storages.stored[0].n_waiting = 0;
    bth_checkpoint_unlock(with);
}

/* X11 */
Test(forked, what_was_half_changed_is_made_anew)
{
    static const char *const ways[] = {"load.method=map", "load.method=read",
                                       "load.method=direct load.check=none",
                                       "load.check=data load.mmap=off"};

    for (int i = 0; i < 4; i++) {
        open_as(ways[i]);
        if (i % 2)
            cr_assert(is_right(1));
        berth_checkpoint before = *checkpoint;
        leave_half_changed(checkpoint);
        test_in_child(read_all);
        test_in_child(close_at_once);
        make_good(checkpoint, &before);
        test_in_child(read_all);
        cr_assert_eq(read_all(), 0);
    }
}

static const uint8_t *before[3];

static int finds_the_latest_anew(void)
{
    return data_of(0) == before[0] && is_right(0) && is_right(1) && is_right(2) ? 0 : 1;
}

/*
 * A device may write to the parent's page when the child's copy was made already: what was there
 * only after the fork had begun is not trusted; what was there before is where it was.
 */
Test(forked, memory_that_came_meanwhile_is_brought_again)
{
    bth_kept_region *kept;

    open_as("load.method=read");
    for (int i = 0; i < 3; i++)
        before[i] = data_of(i);
    for (kept = checkpoint->storages.regions; kept && kept->region.bytes != before[2];
         kept = kept->next)
        ;
    cr_assert(kept);
    cr_assert_eq(kept, checkpoint->storages.regions);
    kept->n_forks = bth_fork_count() + 1;
    memset(kept->region.bytes, 0, sizeof bytes[2]);
    test_in_child(finds_the_latest_anew);
    close_opened();
}

/* The kernel copies the table of descriptors before memory: the child has only the number. */
Test(forked, a_descriptor_that_was_opened_meanwhile_is_not_used)
{
    open_as("load.method=direct load.check=none");
    bth_access *access = &checkpoint->source.access, were = *access;
    access->direct_is_tried = true;
    access->no_direct = NULL;
    access->direct = (bth_direct){.fd = 999, .block_nbytes = 4096, .memory_alignment = 4096};
    access->direct_n_forks = bth_fork_count() + 1;
    test_in_child(read_all);
    *access = were;
    cr_assert_eq(read_all(), 0);
}

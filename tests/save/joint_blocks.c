/* SPDX-License-Identifier: BSD-3-Clause */
/* J2: no block of a joint save's file is written by two processes, whatever the slices are. */
#include <berth/config.h>
#include <berth/joint.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/error.h"
#include "io/syscalls.h"
#include "tests/support/joint_scene.h"
#include "tests/support/save/records.h"
#include "tests/support/scene.h"

enum { BLOCK_NBYTES = 4096, MAX_BLOCKS = 8192, COORDINATOR = 100, NOBODY = 0 };

static berth_error error;
static uint8_t writer_of[MAX_BLOCKS]; /* who wrote each block */
static _Atomic uint8_t now;           /* who writes */
static atomic_size_t n_shared, n_written;

TestSuite(joint_blocks, .init = begin_model_scene, .fini = end_scene);

static void note(off_t offset, size_t nbytes)
{
    for (off_t i = offset / BLOCK_NBYTES; i * BLOCK_NBYTES < offset + (off_t)nbytes; i++) {
        if (writer_of[i] != NOBODY && writer_of[i] != now)
            atomic_fetch_add(&n_shared, 1);
        writer_of[i] = now;
        atomic_fetch_add(&n_written, 1);
    }
}

static ssize_t noted_pwrite(int fd, const void *buffer, size_t nbytes, off_t offset)
{
    note(offset, nbytes);
    return pwrite(fd, buffer, nbytes, offset);
}

static ssize_t noted_pwritev(int fd, const struct iovec *pieces, int n, off_t offset)
{
    size_t nbytes = 0;

    for (int i = 0; i < n; i++)
        nbytes += pieces[i].iov_len;
    note(offset, nbytes);
    return pwritev(fd, pieces, n, offset);
}

/* The coordinator's seal is not counted: its first block is its own. */
static void save_noted(size_t n_writers, const char *options)
{
    joint_state outline = joint_state_new(true);
    berth_joint_info info;
    berth_joint *joint;
    void *receipt;
    size_t nbytes;

    patch(options);
    memset(writer_of, NOBODY, sizeof writer_of);
    n_shared = n_written = 0;
    now = COORDINATOR;
    bth_system.pwrite = noted_pwrite;
    bth_system.pwritev = noted_pwritev;
    assert_ok(berth_joint_begin(path, outline.value, n_writers, NULL, &joint, &info, &error));
    cr_assert_lt(info.nbytes, (uint64_t)MAX_BLOCKS * BLOCK_NBYTES);
    for (size_t i = 0; i < n_writers; i++) {
        now = (uint8_t)(i + 1);
        assert_ok(joint_write_share(info.ticket, info.ticket_nbytes, n_writers, i, &receipt,
                                    &nbytes, &error));
        now = COORDINATOR;
        assert_ok(berth_joint_add_receipt(joint, receipt, nbytes, &error));
        berth_free(receipt);
    }
    assert_ok(berth_joint_finish(joint, &error));
    bth_system_restore();
    berth_tree_free(outline.tree);
    assert_ok(berth_config_unpatch(&error));
}

Test(joint_blocks, have_one_writer)
{
    static const char *const options[] = {
        "save.durability=none io.threads=2 save.method=direct",
        "save.durability=none io.threads=2 save.method=buffered",
        "save.durability=none io.threads=2 save.method=direct save.storage_alignment=4096",
        "save.durability=none io.threads=2 save.method=buffered save.storage_alignment=1",
    };

    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        for (size_t n = 2; n <= 7; n += 5) {
            save_noted(n, options[i]);
            cr_assert_eq(n_shared, 0, "%zu blocks, %s", (size_t)n_shared, options[i]);
            cr_assert_gt(n_written, 4000);
        }
}

/* ---- a host where direct writes need larger blocks ---- */

#ifdef STATX_DIOALIGN
static int large_statx(int from, const char *name, int flags, unsigned mask, struct statx *status)
{
    int result = statx(from, name, flags, mask, status);

    if (mask & STATX_DIOALIGN) {
        status->stx_mask |= STATX_DIOALIGN;
        status->stx_dio_offset_align = 4 * BLOCK_NBYTES;
        status->stx_dio_mem_align = BLOCK_NBYTES;
    }
    return result;
}

Test(joint_blocks, larger_ones_are_not_used)
{
    const int64_t n = 100000;
    static float elements[100000];
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *outline = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_slice slice = berth_slice_whole("w", elements);
    berth_stats stats;
    const berth_params params = {.stats = &stats};
    berth_joint_info info;
    berth_joint *joint;
    void *receipt;
    size_t nbytes;

    patch("save.durability=none save.method=direct");
    berth_dict_set(outline, "w", test_vector(tree, BERTH_FLOAT32, BERTH_ELSEWHERE, n));
    assert_ok(berth_joint_begin(path, outline, 1, NULL, &joint, &info, &error));
    for (int is_large = 0; is_large < 2; is_large++) {
        if (is_large)
            bth_system.statx = large_statx;
        assert_ok(berth_joint_write(info.ticket, info.ticket_nbytes, 0, &slice, 1, &params,
                                    &receipt, &nbytes, &error));
        cr_assert_str_eq(stats.method, is_large ? "buffered" : "direct", "%s", stats.reason);
        if (!is_large)
            berth_free(receipt);
    }
    cr_assert_str_eq(stats.reason, "direct writes here need larger blocks than the save has");
    bth_system_restore();
    cr_assert_eq(stats.requested_nbytes, sizeof elements);
    cr_assert_gt(stats.moved_nbytes, sizeof elements - 2 * BLOCK_NBYTES);
    cr_assert_lt(nbytes, 2 * BLOCK_NBYTES + 200);
    assert_ok(berth_joint_add_receipt(joint, receipt, nbytes, &error));
    assert_ok(berth_joint_finish(joint, &error));
    assert_ok(berth_verify(FROM_PATH(path), NULL, NULL, NULL, NULL, &error));
    berth_free(receipt);
    berth_tree_free(tree);
}
#endif

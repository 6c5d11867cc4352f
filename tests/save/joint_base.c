/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * W12, J1: a joint save with a base is the file of one without. Here a stand-in for the ioctl
 * copies the bytes; tests/python/dcp_bases.py has file systems that share blocks.
 */
#include <berth/config.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "io/syscalls.h"
#include "tests/support/joint_scene.h"
#include "tests/support/save/records.h"
#include "tests/support/scene.h"

enum { N_TENSORS = 6, N_WRITERS = 3, BLOCK_NBYTES = 4096, NBYTES = 73 * BLOCK_NBYTES };

static const char *const names[] = {"t0", "t1", "t2", "t3", "t4", "t5"};
static berth_error error;
static uint8_t *bytes, *here; /* of the tensors; of one that the coordinator has */
static berth_tree *tree;
static berth_value *outline;
static berth_stats stats[N_WRITERS + 1];

static berth_value *make_value(bool is_outline)
{
    berth_value *value = berth_make_dict(tree, BERTH_KIND_DICT);

    for (size_t i = 0; i < N_TENSORS; i++)
        berth_dict_set(
            value, names[i],
            test_vector(tree, BERTH_INT32,
                        is_outline ? BERTH_ELSEWHERE : (const void *)(bytes + i * NBYTES),
                        NBYTES / 4));
    berth_dict_set(value, "here", test_vector(tree, BERTH_INT32, here, NBYTES / 4));
    return value;
}

static void set_up(void)
{
    begin_joint_scene();
    tree = berth_tree_new(NULL);
    bth_system.ioctl = test_clone_by_copying;
    bytes = sample_bytes((size_t)N_TENSORS * NBYTES + NBYTES);
    here = bytes + (size_t)N_TENSORS * NBYTES;
    outline = make_value(true);
}

static void tear_down(void)
{
    bth_system_restore();
    berth_tree_free(tree);
    free(bytes);
    end_joint_scene();
}

TestSuite(joint_base, .init = set_up, .fini = tear_down);

static void save_alone(const char *to)
{
    const berth_params params = {.base = ""};

    assert_ok(berth_save(to, make_value(false), &params, &error));
}

/* Two tensors and a half of a third one, which are a chain and a part; the rest of these; one. */
static size_t slices_of(size_t writer, berth_slice slices[N_TENSORS])
{
    const uint8_t *half = bytes + (size_t)2 * NBYTES;
    size_t n = 0;

    if (writer == 0)
        slices[n++] = berth_slice_bytes(names[2], 0, NBYTES / 2, half);
    if (writer == 1)
        slices[n++] = berth_slice_bytes(names[2], NBYTES / 2, NBYTES / 2, half + NBYTES / 2);
    for (size_t i = 0; i < N_TENSORS; i++)
        if (writer == (i < 2 ? 0 : i < 5 ? 1 : 2) && i != 2)
            slices[n++] = berth_slice_whole(names[i], bytes + i * NBYTES);
    return n;
}

static int write_part(const berth_joint_info *info, size_t writer, const char *base, void **receipt,
                      size_t *nbytes)
{
    const berth_params params = {.base = base, .stats = &stats[writer]};
    berth_slice slices[N_TENSORS];
    size_t n = slices_of(writer, slices);

    return berth_joint_write(info->ticket, info->ticket_nbytes, writer, slices, n, &params, receipt,
                             nbytes, &error);
}

/* The base of each writer, and of the coordinator behind them; 0 or what failed. */
static int save_together(const char *const bases[N_WRITERS + 1])
{
    const berth_params params = {.base = bases[N_WRITERS], .stats = &stats[N_WRITERS]};
    berth_joint_info info;
    berth_joint *joint;
    int status = berth_joint_begin(path, outline, N_WRITERS, &params, &joint, &info, &error);

    for (size_t i = 0; i < N_WRITERS && status == 0; i++) {
        void *receipt;
        size_t nbytes;
        status = write_part(&info, i, bases[i], &receipt, &nbytes);
        if (status == 0)
            status = berth_joint_add_receipt(joint, receipt, nbytes, &error);
        berth_free(receipt);
    }
    if (status == 0)
        status = berth_joint_finish(joint, &error);
    else
        berth_joint_abort(joint);
    return status;
}

static void change(size_t at, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++)
        bytes[at + i] ^= 0x55;
}

Test(joint_base, gives_the_file_of_a_save_without_one)
{
    static const char *const options[] = {
        "save.method=buffered io.threads=1",
        "save.method=direct io.threads=2 io.chunk_nbytes=65536",
        "save.method=direct save.storage_alignment=4096 debug=on",
        "save.method=buffered save.storage_alignment=4096 io.memory_nbytes=300000",
        "save.storage_alignment=4096 save.byteorder=big",
        "save.storage_alignment=32768",
    };
    static const struct {
        size_t at, nbytes;            /* that change */
        size_t shared[N_WRITERS + 1]; /* tensors, times two, at most; one in ten is less */
    } cases[] = {{0, 0, {5, 5, 2, 2}},
                 {NBYTES, NBYTES, {3, 5, 2, 2}},
                 {(size_t)2 * NBYTES, NBYTES, {4, 4, 2, 2}},
                 {(size_t)3 * NBYTES, (size_t)4 * NBYTES, {5, 1, 0, 0}}};
    const char *const bases[] = {path, path, path, path};

    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        for (size_t j = 0; j < sizeof cases / sizeof *cases; j++) {
            set_joint_options(options[i]);
            save_alone(path);
            change(cases[j].at, cases[j].nbytes);
            save_alone(expected_path);
            assert_ok(save_together(bases));
            check_joint_file(options[i]);
            for (size_t k = 0; k <= N_WRITERS; k++) {
                uint64_t most = (uint64_t)cases[j].shared[k] * NBYTES / 2;
                cr_assert_leq(stats[k].shared_nbytes, most, "%s, case %zu, %zu", options[i], j, k);
                cr_assert_geq(stats[k].shared_nbytes, most / 10 * 9, "%s, case %zu, %zu: %s",
                              options[i], j, k, stats[k].base_reason);
                cr_assert_eq(stats[k].base_reason == NULL, most > 0);
            }
            unset_joint_options();
        }
}

/* Each says why; the file is whole in any case. */
Test(joint_base, that_one_has_not_is_shared_by_the_others)
{
    char *other = test_path(folder, "missing");
    const char *const bases[] = {path, other, "", path};

    patch("save.storage_alignment=4096");
    save_alone(path);
    save_alone(expected_path);
    assert_ok(save_together(bases));
    check_joint_file("some have no base");
    cr_assert_gt(stats[0].shared_nbytes, 2 * NBYTES);
    cr_assert_str_eq(stats[1].base_reason, "the base does not exist");
    cr_assert_eq(stats[1].shared_nbytes + stats[2].shared_nbytes, 0);
    cr_assert_null(stats[2].base_reason);
    assert_ok(berth_config_unpatch(&error));
    free(other);
}

/* One tensor before the others has another size: those that lie elsewhere are found by their names.
 */
Test(joint_base, of_another_layout_gives_the_same_file)
{
    const char *const bases[] = {path, path, path, path};
    berth_value *value = make_value(false);

    patch("save.storage_alignment=4096");
    berth_dict_set(value, "t0", test_vector(tree, BERTH_INT32, bytes, NBYTES / 4 - 1));
    assert_ok(berth_save(path, value, NULL, &error));
    save_alone(expected_path);
    assert_ok(save_together(bases));
    check_joint_file("another layout");
    cr_assert_geq(stats[0].shared_nbytes, NBYTES);
    cr_assert_lt(stats[0].shared_nbytes, 2 * NBYTES);
    cr_assert_eq(stats[2].shared_nbytes, NBYTES);
    assert_ok(berth_config_unpatch(&error));
}

/* ---- failures ---- */

static unsigned n_calls, failing_call;

static int fail_to_clone(int fd, unsigned long request, void *argument)
{
    if (++n_calls != failing_call)
        return test_clone_by_copying(fd, request, argument);
    errno = EOPNOTSUPP;
    return -1;
}

Test(joint_base, a_refused_clone_is_no_failure)
{
    const char *const bases[] = {path, path, path, path};

    save_alone(expected_path);
    bth_system.ioctl = fail_to_clone;
    for (failing_call = n_calls = 1; failing_call <= n_calls; failing_call++) {
        save_alone(path);
        n_calls = 0;
        assert_ok(save_together(bases));
        check_joint_file("a refused clone");
    }
    cr_assert_gt(failing_call, 12);
}

static unsigned n_told, cancelling_call;

static int cancel_once(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    (void)context, (void)done_nbytes, (void)total_nbytes;
    return ++n_told == cancelling_call;
}

Test(joint_base, a_cancel_that_is_told_once_counts)
{
    const berth_params params = {.base = path, .progress = cancel_once};
    const berth_params mine = {.base = path};
    berth_slice slices[N_TENSORS];
    berth_joint_info info;
    berth_joint *joint;
    void *receipt;
    size_t nbytes;

    patch("save.storage_alignment=4096 io.threads=1");
    save_alone(path);
    for (n_told = cancelling_call = 1; n_told + 1 >= cancelling_call; cancelling_call++) {
        n_told = 0;
        assert_ok(berth_joint_begin(path, outline, N_WRITERS, &mine, &joint, &info, &error));
        int status = berth_joint_write(info.ticket, info.ticket_nbytes, 0, slices,
                                       slices_of(0, slices), &params, &receipt, &nbytes, &error);
        cr_assert_eq(status, n_told < cancelling_call ? 0 : BERTH_E_CANCELLED, "call %u",
                     cancelling_call);
        berth_free(receipt);
        berth_joint_abort(joint);
    }
    cr_assert_gt(cancelling_call, 4, "%u", cancelling_call);
    cr_assert_eq(test_folder_count(folder), 1);
    assert_ok(berth_config_unpatch(&error));
}

/* W6, J6 */
Test(joint_base, without_memory_is_saved_or_leaves_the_old_file)
{
    const char *const bases[] = {path, path, path, path};
    struct test_refusals each = {0};
    size_t nbytes;
    unsigned n = 0;

    patch("save.storage_alignment=4096 io.threads=1");
    save_alone(path);
    uint8_t *old = test_read_file(path, &nbytes);
    change(NBYTES, NBYTES);
    save_alone(expected_path);
    for (; test_refuse_next(&each); n++) {
        int status = save_together(bases);
        cr_assert(status == BERTH_E_MEMORY || status == 0, "%s", error.message);
        if (status == 0)
            check_joint_file("without memory");
        else
            cr_assert(test_file_holds(path, old, nbytes));
        test_write_file(path, old, nbytes);
    }
    cr_assert_gt(n, 60);
    assert_ok(berth_config_unpatch(&error));
    free(old);
}

static int never_reserve(int fd, int mode, off_t offset, off_t nbytes)
{
    (void)fd, (void)mode, (void)offset, (void)nbytes;
    errno = ENOSPC;
    return -1;
}

/* W1: what is not shared is reserved before it is written. */
Test(joint_base, on_a_full_disk_leaves_the_old_file)
{
    const char *const bases[] = {path, path, path, path};
    size_t nbytes;

    save_alone(path);
    uint8_t *old = test_read_file(path, &nbytes);
    change(0, NBYTES);
    bth_system.fallocate = never_reserve;
    cr_assert_eq(save_together(bases), BERTH_E_NO_SPACE);
    cr_assert(test_file_holds(path, old, nbytes));
    cr_assert_eq(test_folder_count(folder), 1);
    free(old);
}

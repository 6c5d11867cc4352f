/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * J1, beyond 4 GiB: a tensor of 5 GiB, and behind it small ones of the last writer, whose headers
 * are longer there. Most of it are zeros that take no memory. The file of one process is not
 * written: its bytes are compared with the file as they come. The short form has 7 MiB.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/joint_scene.h"
#include "tests/support/scene.h"

enum { N_SMALL = 3, SMALL = 3000 };
#define ROW_NBYTES ((size_t)1 << 20)

static berth_error error;
static const size_t n_writers[] = {1, 2, 3, 4, 7}; /* of one, all is a chain */
static int64_t shape[] = {7, (int64_t)(ROW_NBYTES / sizeof(float))};

static size_t whole_nbytes(void)
{
    return (size_t)shape[0] * ROW_NBYTES;
}

/* Zeros, but for the ends of each GiB. */
static uint8_t *large_new(void)
{
    uint8_t *bytes = mmap(NULL, whole_nbytes(), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    cr_assert_neq(bytes, MAP_FAILED);
    for (size_t at = (size_t)1 << 30; at < whole_nbytes(); at += (size_t)1 << 30)
        memset(bytes + at - 100, (int)(at >> 30), 200);
    bytes[0] = bytes[whole_nbytes() - 1] = 9;
    return bytes;
}

static berth_value *state_new(berth_tree *tree, const uint8_t *bytes)
{
    static const int64_t small[] = {SMALL};
    static const char *const names[N_SMALL] = {"x", "y", "z"};
    berth_value *value = berth_make_dict(tree, BERTH_KIND_DICT);
    const void *data = bytes ? bytes : BERTH_ELSEWHERE;

    berth_dict_set(value, "w", test_tensor(tree, BERTH_FLOAT32, data, 2, shape));
    for (size_t i = 0; i < N_SMALL; i++)
        berth_dict_set(value, names[i], test_tensor(tree, BERTH_FLOAT32, data, 1, small));
    return value;
}

static void write_rows(const berth_joint_info *info, berth_joint *joint, const uint8_t *bytes,
                       size_t writer)
{
    const int64_t first = shape[0] * (int64_t)writer / (int64_t)info->n_writers;
    const int64_t behind = shape[0] * (int64_t)(writer + 1) / (int64_t)info->n_writers;
    const int64_t starts[] = {first, 0}, lengths[] = {behind - first, shape[1]};
    const berth_slice slices[] = {
        berth_slice_of("w", starts, lengths, bytes + (size_t)first * ROW_NBYTES),
        berth_slice_whole("x", bytes), berth_slice_whole("y", bytes),
        berth_slice_whole("z", bytes)};

    (void)joint_write_and_tell(joint, info, writer, slices,
                               writer == info->n_writers - 1 ? 1 + N_SMALL : 1, NULL);
}

static void save_jointly(const uint8_t *bytes, size_t n)
{
    berth_tree *tree = berth_tree_new(&error);
    berth_joint *joint;
    berth_joint_info info;

    assert_ok(berth_joint_begin(path, state_new(tree, NULL), n, NULL, &joint, &info, &error));
    for (size_t i = 0; i < n; i++)
        write_rows(&info, joint, bytes, i);
    assert_ok(berth_joint_finish(joint, &error));
    berth_tree_free(tree);
}

typedef struct comparison {
    int fd;
    uint64_t nbytes;
} comparison;

/* A sink: 0 if the file has these bytes there. */
static int compare_bytes(void *context, const void *bytes, size_t nbytes, uint64_t offset)
{
    static uint8_t found[(size_t)1 << 16];
    comparison *compared = context;

    for (size_t at = 0; at < nbytes;) {
        size_t n = nbytes - at < sizeof found ? nbytes - at : sizeof found;
        if (pread(compared->fd, found, n, (off_t)(offset + at)) != (ssize_t)n ||
            memcmp(found, (const uint8_t *)bytes + at, n) != 0)
            return EIO;
        at += n;
    }
    compared->nbytes += nbytes;
    return 0;
}

static void compare_with_one_process(const uint8_t *bytes)
{
    comparison compared = {.fd = open(path, O_RDONLY)};
    const berth_sink sink = {.write = compare_bytes, .context = &compared, .in_order = true};
    const berth_params params = {.archive_name = "model"};
    berth_tree *tree = berth_tree_new(&error);

    assert_ok(berth_save_to(TO_SINK(&sink), OF_VALUE(state_new(tree, bytes)), &params, &error));
    cr_assert_eq(compared.nbytes, (uint64_t)lseek(compared.fd, 0, SEEK_END));
    cr_assert_gt(compared.nbytes, whole_nbytes());
    close(compared.fd);
    berth_tree_free(tree);
}

Test(joint_large, five_gib_by_one_to_seven_writers, .init = begin_model_scene, .fini = end_scene,
     .timeout = 600)
{
    if (test_is_long())
        shape[0] = 5 * 1024 + 7;
    uint8_t *bytes = large_new();

    patch("save.durability=none");
    for (size_t i = 0; i < sizeof n_writers / sizeof *n_writers; i++) {
        save_jointly(bytes, n_writers[i]);
        compare_with_one_process(bytes);
    }
    munmap(bytes, whole_nbytes());
}

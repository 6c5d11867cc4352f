/* SPDX-License-Identifier: BSD-3-Clause */
/* Joint saves that are refused, and with which sentence. The path keeps its old file. */
#include <berth/config.h>
#include <berth/joint.h>
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/scene.h"

enum { N = 3000, N_WRITERS = 3, COLUMNS = 1 << 19 };

static berth_error error;
static float w[N], v[2][3], wide[2 * COLUMNS];
static berth_tree *tree;
static berth_value *outline;
static berth_joint *joint;
static berth_joint_info info;

static berth_value *elsewhere(berth_dtype dtype, int32_t rank, const int64_t *shape,
                              const int64_t *stride)
{
    berth_tensor tensor = {
        .dtype = dtype, .rank = rank, .shape = shape, .stride = stride, .data = BERTH_ELSEWHERE};

    if (dtype == BERTH_QUINT4X2)
        tensor.qscheme = BERTH_PER_TENSOR_AFFINE;
    return berth_make_tensor(tree, &tensor);
}

static void set_up(void)
{
    const int64_t n[] = {N}, few[] = {2, 3}, columns[] = {2, COLUMNS}, turned[] = {1, 2};

    begin_model_scene();
    test_write_file(path, "old", 3);
    tree = berth_tree_new(NULL);
    outline = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_dict_set(outline, "w", elsewhere(BERTH_FLOAT32, 1, n, NULL));
    berth_dict_set(outline, "v", elsewhere(BERTH_FLOAT32, 2, few, NULL));
    berth_dict_set(outline, "wide", elsewhere(BERTH_FLOAT32, 2, columns, NULL));
    berth_dict_set(outline, "turned", elsewhere(BERTH_FLOAT32, 2, few, turned));
    berth_dict_set(outline, "packed", elsewhere(BERTH_QUINT4X2, 1, n, NULL));
    berth_dict_set(outline, "mine", test_vector(tree, BERTH_FLOAT32, w, N));
}

static void tear_down(void)
{
    cr_assert(test_file_holds(path, "old", 3));
    cr_assert_eq(test_folder_count(folder), 1);
    berth_tree_free(tree);
    end_scene();
}

TestSuite(joint_refused, .init = set_up, .fini = tear_down);

static void begin(void)
{
    assert_ok(berth_joint_begin(path, outline, N_WRITERS, NULL, &joint, &info, &error));
}

static int write_slices(size_t writer, const berth_slice *slices, size_t n, void **receipt,
                        size_t *nbytes)
{
    return berth_joint_write(info.ticket, info.ticket_nbytes, writer, slices, n, NULL, receipt,
                             nbytes, &error);
}

/* ---- slices ---- */

static const int64_t zeros[2], beyond[] = {1, 1}, negative[] = {-1, 0}, minus[] = {1, -1};
static const int64_t whole[] = {2, 3}, half[] = {2, COLUMNS / 4}, odd[] = {3, 0}, one[] = {1, 0};

#define WHOLE(n, d)                                                                                \
    {                                                                                              \
        .kind = BERTH_SLICE_WHOLE, .name = n, .data = d                                            \
    }
#define BOX(n, d, s, l)                                                                            \
    {                                                                                              \
        .kind = BERTH_SLICE_BOX, .name = n, .data = d, .starts = s, .lengths = l                   \
    }
#define BYTES(n, d, at, size)                                                                      \
    {                                                                                              \
        .kind = BERTH_SLICE_BYTES, .name = n, .data = d, .offset = at, .nbytes = size              \
    }

static const struct {
    berth_slice slices[2];
    size_t n;
    int status;
    const char *sentence;
} refused[] = {
    {{{.kind = BERTH_SLICE_WHOLE, .data = w}}, 1, BERTH_E_NOT_FOUND, "slice 0: the outline has no"},
    {{WHOLE("x", w)}, 1, BERTH_E_NOT_FOUND, "x: slice 0: the outline has no such"},
    {{WHOLE("mine", w)}, 1, BERTH_E_NOT_FOUND, "mine: slice 0: the outline has no"},
    {{{.name = "w", .data = w}}, 1, BERTH_E_ARGUMENT, "w: invalid kind of slice"},
    {{{.kind = BERTH_SLICE_WHOLE, .name = "w", .data = w, .reserved = {1}}},
     1,
     BERTH_E_ARGUMENT,
     "slice 0: "},
    {{WHOLE("w", NULL)}, 1, BERTH_E_ARGUMENT, "w: the data are NULL"},
    {{BYTES("v", NULL, 0, 8)}, 1, BERTH_E_ARGUMENT, "v: the data are NULL"},
    {{BOX("v", v, NULL, whole)}, 1, BERTH_E_ARGUMENT, "v: starts or lengths are NULL"},
    {{BOX("v", v, beyond, whole)},
     1,
     BERTH_E_ARGUMENT,
     "v: 2 elements from 1 on are not in dimension 0 of 2"},
    {{BOX("v", v, negative, whole)}, 1, BERTH_E_ARGUMENT, "2 elements from -1 on"},
    {{BOX("v", v, zeros, minus)}, 1, BERTH_E_ARGUMENT, "-1 elements from 0 on"},
    {{BYTES("v", v, 25, 0)},
     1,
     BERTH_E_ARGUMENT,
     "v: bytes 25 to 25 are not in its storage of 24 bytes"},
    {{BYTES("v", v, 8, UINT64_MAX)}, 1, BERTH_E_ARGUMENT, "v: bytes 8 to"},
    {{WHOLE("turned", v)}, 1, BERTH_E_ARGUMENT, "turned: it is not contiguous"},
    {{BOX("packed", w, one, one)},
     1,
     BERTH_E_ARGUMENT,
     "packed: the slice cuts an item of several elements"},
    {{BOX("packed", w, zeros, odd)}, 1, BERTH_E_ARGUMENT, "packed: the slice cuts"},
    {{BOX("wide", wide, zeros, half)},
     1,
     BERTH_E_UNSUPPORTED,
     "model.pt: wide: the slice lies in pieces of 524288 bytes, and pieces shorter than 1048576 "
     "are not written side by side: slice the first dimension, give the whole tensor to one "
     "writer, or give all writers an exchange (berth_params)"},
    {{WHOLE("w", w), BYTES("w", w, 11999, 1)},
     2,
     BERTH_E_ARGUMENT,
     "w: two slices have byte 11999 of its storage"},
};

Test(joint_refused, slices)
{
    void *receipt = w;
    size_t nbytes = 1;

    begin();
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        FAILS_SAYING(write_slices(0, refused[i].slices, refused[i].n, &receipt, &nbytes),
                     refused[i].status, refused[i].sentence);
        cr_assert(!receipt && nbytes == 0);
    }
    FAILS_SAYING(write_slices(0, NULL, 1, &receipt, &nbytes), BERTH_E_ARGUMENT,
                 "the slices are NULL");
    FAILS_SAYING(write_slices(N_WRITERS, NULL, 0, &receipt, &nbytes), BERTH_E_ARGUMENT,
                 "there is no writer 3, the save has 3 writers");
    FAILS_SAYING(write_slices(0, NULL, 0, NULL, &nbytes), BERTH_E_ARGUMENT, "receipt");
    FAILS_SAYING(write_slices(0, NULL, 0, &receipt, NULL), BERTH_E_ARGUMENT, "receipt");
    FAILS_SAYING(berth_joint_write(NULL, 0, 0, NULL, 0, NULL, &receipt, &nbytes, &error),
                 BERTH_E_ARGUMENT, "the ticket is NULL");
    berth_joint_abort(joint);
}

/* What is swapped is not cut within elements. */
Test(joint_refused, bytes_that_cut_an_element_to_swap)
{
    const berth_slice slices[] = {BYTES("v", v, 0, 10), BYTES("v", v, 2, 8)};
    void *receipt;
    size_t nbytes;

    patch(__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? "save.byteorder=little" : "save.byteorder=big");
    begin();
    for (size_t i = 0; i < 2; i++)
        FAILS_SAYING(write_slices(0, &slices[i], 1, &receipt, &nbytes), BERTH_E_ARGUMENT,
                     "v: save.byteorder swaps its bytes, and an element is cut");
    berth_joint_abort(joint);
    cr_assert_eq(berth_config_unpatch(NULL), 0);
}

/* ---- receipts (J3) ---- */

/* All that the outline needs, of `i` slices less. */
static const berth_slice complete[] = {WHOLE("w", w), WHOLE("v", v), WHOLE("packed", w),
                                       BYTES("turned", v, 0, 24), WHOLE("wide", wide)};

static int give(size_t writer, const berth_slice *slices, size_t n)
{
    void *receipt;
    size_t nbytes;

    assert_ok(write_slices(writer, slices, n, &receipt, &nbytes));
    int status = berth_joint_add_receipt(joint, receipt, nbytes, &error);
    berth_free(receipt);
    return status;
}

Test(joint_refused, a_receipt_that_is_missing)
{
    begin();
    cr_assert_eq(give(0, complete, 5), 0);
    cr_assert_eq(give(2, NULL, 0), 0);
    FAILS_SAYING(berth_joint_finish(joint, &error), BERTH_E_ARGUMENT,
                 "model.pt: writer 1 of 3 has given no receipt");
}

Test(joint_refused, a_receipt_that_arrives_twice)
{
    begin();
    cr_assert_eq(give(1, complete, 1), 0);
    FAILS_SAYING(give(1, complete, 5), BERTH_E_ARGUMENT,
                 "model.pt: writer 1 has given its receipt already");
    berth_joint_abort(joint);
}

static void finish_with(const berth_slice *slices, size_t n, const char *sentence)
{
    begin();
    cr_assert_eq(give(0, NULL, 0), 0);
    cr_assert_eq(give(1, slices, n), 0);
    cr_assert_eq(give(2, complete + 1, 4), 0);
    FAILS_SAYING(berth_joint_finish(joint, &error), BERTH_E_ARGUMENT, sentence);
}

Test(joint_refused, bytes_that_nobody_or_two_writers_wrote)
{
    const berth_slice head[] = {berth_slice_bytes("w", 0, 5000, w)};
    const berth_slice hole[] = {berth_slice_bytes("w", 0, 5000, w),
                                berth_slice_bytes("w", 6000, 6000, w)};
    const berth_slice both[] = {berth_slice_whole("w", w), berth_slice_bytes("packed", 10, 20, w)};

    finish_with(NULL, 0,
                "model.pt: data/0: no writer has written its bytes 0 to 12000 (tensor 'w')");
    finish_with(head, 1, "data/0: no writer has written its bytes 5000 to 12000 (tensor 'w')");
    finish_with(hole, 2, "data/0: no writer has written its bytes 5000 to 6000 (tensor 'w')");
    finish_with(both, 2, "data/4: writers 2 and 1 have both written its byte 10 (tensor 'packed')");
}

/* ---- another save (J4, J5) ---- */

Test(joint_refused, a_ticket_or_a_receipt_of_another_save)
{
    void *ticket, *receipt;
    size_t nbytes, ticket_nbytes;

    begin();
    ticket_nbytes = info.ticket_nbytes;
    ticket = malloc(ticket_nbytes);
    memcpy(ticket, info.ticket, ticket_nbytes);
    assert_ok(write_slices(0, complete, 5, &receipt, &nbytes));
    berth_joint_abort(joint);
    begin(); /* its temporary has the same name */
    FAILS_SAYING(berth_joint_add_receipt(joint, receipt, nbytes, &error), BERTH_E_ARGUMENT,
                 "model.pt: the receipt of writer 0 is of another save");
    berth_free(receipt);
    FAILS_SAYING(
        berth_joint_write(ticket, ticket_nbytes, 0, complete, 5, NULL, &receipt, &nbytes, &error),
        BERTH_E_ARGUMENT, "the ticket is of another save than the one that writes .berth-");
    berth_joint_abort(joint);
    FAILS_SAYING(
        berth_joint_write(ticket, ticket_nbytes, 0, complete, 5, NULL, &receipt, &nbytes, &error),
        BERTH_E_NOT_FOUND, "the save of this ticket has ended: its temporary .berth-");
    free(ticket);
}

/* ---- begin ---- */

Test(joint_refused, what_cannot_begin)
{
    char fd_path[64];
    int fd = memfd_create("model", 0);

    snprintf(fd_path, sizeof fd_path, "/proc/self/fd/%d", fd);
    cr_assert_eq(write(fd, "content", 7), 7);
    FAILS_SAYING(berth_joint_begin(fd_path, outline, 1, NULL, &joint, &info, &error),
                 BERTH_E_ARGUMENT, "it has no name, so other processes cannot write to it");
    cr_assert_null(joint);
    cr_assert_null(info.ticket);
    cr_assert_eq(lseek(fd, 0, SEEK_END), 7, "its content is lost");
    FAILS_SAYING(berth_joint_begin(path, outline, 0, NULL, &joint, NULL, &error), BERTH_E_ARGUMENT,
                 "0 writers, there can be 1 to 1048576");
    FAILS_SAYING(berth_joint_begin(NULL, outline, 1, NULL, &joint, NULL, &error), BERTH_E_ARGUMENT,
                 "the path is NULL");
    FAILS_SAYING(berth_joint_begin(path, NULL, 1, NULL, &joint, NULL, &error), BERTH_E_ARGUMENT,
                 "the value is NULL");
    FAILS_SAYING(berth_joint_begin(path, outline, 1, NULL, NULL, NULL, &error), BERTH_E_ARGUMENT,
                 "joint is NULL");
    berth_storage *storage = berth_storage_new(tree, BERTH_FLOAT32, BERTH_ELSEWHERE, 16, NULL);
    berth_dict_set(outline, "storage", berth_make_storage(tree, storage));
    FAILS_SAYING(berth_joint_begin(path, outline, 1, NULL, &joint, NULL, &error), BERTH_E_ARGUMENT,
                 "data/6: no tensor of the outline is on it: its bytes must be in the outline");
    FAILS_SAYING(berth_joint_add_receipt(NULL, "", 0, &error), BERTH_E_ARGUMENT, "is NULL");
    FAILS_SAYING(berth_joint_finish(NULL, &error), BERTH_E_ARGUMENT, "is NULL");
    berth_joint_abort(NULL);
    close(fd);
}

Test(joint_refused, an_outline_is_no_value_to_save)
{
    const berth_content turned = berth_of_safetensors(berth_dict_get(outline, "turned"), NULL, 0);

    FAILS_SAYING(berth_save(path, outline, NULL, &error), BERTH_E_ARGUMENT,
                 ": the storage has no bytes");
    int status = berth_save_to(TO_PATH(path), &turned, NULL, &error);
    if (status != BERTH_E_UNAVAILABLE) /* of a build without jansson */
        FAILS_SAYING(status, BERTH_E_ARGUMENT, "the storage has no bytes");
}

/* X11 */
Test(joint_refused, a_child_leaves_its_parents_joint_save_alone)
{
    int status;

    begin();
    pid_t child = fork();
    if (child == 0) {
        bool refuses = berth_joint_add_receipt(joint, "", 0, &error) == BERTH_E_ARGUMENT &&
                       strstr(error.message, "belongs to the parent process") &&
                       berth_joint_finish(joint, &error) == BERTH_E_ARGUMENT;
        _exit(refuses ? 0 : 1);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    cr_assert_eq(test_folder_count(folder), 2, "the child has removed it");
    cr_assert_eq(give(0, complete, 5), 0);
    berth_joint_abort(joint);
}

static int cancel(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    (void)context;
    return done_nbytes == total_nbytes;
}

Test(joint_refused, progress_cancels_a_writer_and_the_coordinator)
{
    const berth_params params = {.progress = cancel};
    void *receipt;
    size_t nbytes;

    assert_ok(berth_joint_begin(path, outline, 1, &params, &joint, &info, &error));
    FAILS_SAYING(berth_joint_write(info.ticket, info.ticket_nbytes, 0, complete, 5, &params,
                                   &receipt, &nbytes, &error),
                 BERTH_E_CANCELLED, "model.pt: cancelled");
    cr_assert_eq(give(0, complete, 5), 0);
    FAILS_SAYING(berth_joint_finish(joint, &error), BERTH_E_CANCELLED, "model.pt: cancelled");
}

/* Every allocation fails once, in the coordinator and in a writer; nothing leaks (W6). */
Test(joint_refused, nothing_leaks_without_memory, .timeout = 60)
{
    size_t nbytes, n_failed = 0;
    void *receipt;
    int status = -1;

    tear_down();
    test_memory_watch();
    for (uint64_t nth = 1; status < 0; nth++) {
        set_up();
        test_memory_refuse(nth, false);
        joint = NULL;
        status = berth_tree_error(tree, &error) ? -1 : 0;
        if (status == 0)
            status = berth_joint_begin(path, outline, 1, NULL, &joint, &info, &error);
        if (status == 0)
            status = write_slices(0, complete, 5, &receipt, &nbytes);
        if (status == 0) {
            status = berth_joint_add_receipt(joint, receipt, nbytes, &error);
            berth_free(receipt);
        }
        cr_assert(status == 0 || error.code == BERTH_E_MEMORY, "%s", error.message);
        n_failed += status < 0;
        if (status < 0)
            berth_joint_abort(joint);
        else if ((status = berth_joint_finish(joint, &error)) < 0)
            n_failed++;
        test_memory_refuse(0, false);
        if (status == 0)
            test_write_file(path, "old", 3);
        tear_down();
        cr_assert_eq(test_memory_seen().live_nbytes, 0);
    }
    cr_assert_gt(n_failed, 30);
    test_memory_unwatch();
    set_up();
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <berth/joint.h>

#include "tests/support/joint_scene.h"

#include <berth/config.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/scene.h"

enum {
    MAX_SLICES = 64, /* of one writer */
    N_SMALL = 20,
    ROWS = 1001,
    COLUMNS = 301,
    WIDE = 4 << 20, /* so that a seventh of a row of 2 bytes is more than 1 MiB */
    REPLICA = 300000,
    HALF = 5000,
    PACKED = 20001
};

static struct {
    float embedding[ROWS * COLUMNS];
    uint16_t wide[2 * WIDE];
    int64_t replica[REPLICA];
    float halves[2 * HALF];
    float crossed[97 * 53];
    uint8_t packed[(PACKED + 1) / 2];
    double scalar;
    float own[3000];
    uint8_t small[N_SMALL][N_SMALL * 613];
    bool is_filled;
} data;

/* ---- the files ---- */

char *expected_path;
berth_config *joint_config;
static char *expected_folder;

void begin_joint_scene(void)
{
    begin_model_scene();
    expected_folder = test_folder_new();
    expected_path = test_path(expected_folder, "model.pt");
    test_write_file(path, "old", 3);
}

void end_joint_scene(void)
{
    end_scene();
    test_folder_remove(expected_folder);
    free(expected_path);
}

void set_joint_options(const char *options)
{
    berth_error error;

    patch(options);
    joint_config = berth_config_new(&error);
    assert_ok(berth_config_apply(joint_config, options, &error));
}

void unset_joint_options(void)
{
    berth_error error;

    berth_config_free(joint_config);
    joint_config = NULL;
    assert_ok(berth_config_unpatch(&error));
}

void check_joint_file(const char *what)
{
    size_t nbytes, nbytes_expected, at = 0;
    uint8_t *file = test_read_file(path, &nbytes);
    uint8_t *bytes = test_read_file(expected_path, &nbytes_expected);

    cr_assert_eq(nbytes, nbytes_expected, "%s", what);
    while (at < nbytes && file[at] == bytes[at])
        at++;
    cr_assert_eq(at, nbytes, "%s: byte %zu of %zu differs", what, at, nbytes);
    cr_assert_eq(test_folder_count(folder), 1);
    free(file);
    free(bytes);
}

/* ---- bytes ---- */

static void fill(void)
{
    uint32_t state = 7;
    uint8_t *at = (uint8_t *)&data;

    if (data.is_filled)
        return;
    for (size_t i = 0; i < offsetof(__typeof__(data), is_filled); i++) {
        state = state * 1664525 + 1013904223;
        at[i] = (uint8_t)(state >> 24);
    }
    /* As a descriptor begins, so that the id of the file depends on them. */
    memcpy(data.wide, "PK\7\10wide", 8);
    memcpy(data.replica, "PK\7\10same", 8);
    data.is_filled = true;
}

/* ---- the state ---- */

static berth_value *tensor_of(const joint_state *state, bool is_outline, berth_dtype dtype,
                              const void *bytes, int32_t rank, const int64_t *shape)
{
    return test_tensor(state->tree, dtype, is_outline ? BERTH_ELSEWHERE : bytes, rank, shape);
}

static void set(const joint_state *state, const char *key, berth_value *value)
{
    berth_dict_set(state->value, key, value);
}

/* Two tensors on one storage, and one whose elements are not in row-major order. */
static void add_views(const joint_state *state, bool is_outline)
{
    const int64_t shape[] = {HALF}, crossed[] = {53, 97}, stride[] = {1, 53};
    const void *bytes = is_outline ? BERTH_ELSEWHERE : data.halves;
    berth_storage *storage =
        berth_storage_new(state->tree, BERTH_FLOAT32, bytes, sizeof data.halves, NULL);
    berth_tensor tensor = {.dtype = BERTH_FLOAT32,
                           .rank = 1,
                           .shape = shape,
                           .storage = storage,
                           .storage_offset = HALF};

    set(state, "second", berth_make_tensor(state->tree, &tensor));
    tensor.storage_offset = 0;
    set(state, "first", berth_make_tensor(state->tree, &tensor));
    bytes = is_outline ? BERTH_ELSEWHERE : data.crossed;
    set(state, "crossed",
        berth_make_tensor(state->tree, &(berth_tensor){.dtype = BERTH_FLOAT32,
                                                       .rank = 2,
                                                       .shape = crossed,
                                                       .stride = stride,
                                                       .data = bytes}));
}

static void add_small(const joint_state *state, bool is_outline)
{
    berth_value *list = berth_make_list(state->tree);

    for (int64_t i = 0; i < N_SMALL; i++) {
        const int64_t shape[] = {i * 613};
        berth_list_append(list, tensor_of(state, is_outline, BERTH_UINT8, data.small[i], 1, shape));
    }
    set(state, "small", list);
}

joint_state joint_state_new(bool is_outline)
{
    const int64_t embedding[] = {ROWS, COLUMNS}, wide[] = {2, WIDE}, empty[] = {0, 5};
    const int64_t replica[] = {REPLICA}, own[] = {3000}, packed[] = {PACKED};
    joint_state state = {.tree = berth_tree_new(NULL)};
    bool out = is_outline;

    fill();
    state.value = berth_make_dict(state.tree, BERTH_KIND_ORDERED_DICT);
    set(&state, "epoch", berth_make_int(state.tree, 12));
    berth_value *weight = tensor_of(&state, out, BERTH_FLOAT32, data.embedding, 2, embedding);
    set(&state, "embedding", berth_make_parameter(state.tree, weight, true));
    set(&state, "own", tensor_of(&state, false, BERTH_FLOAT32, data.own, 1, own));
    set(&state, "wide", tensor_of(&state, out, BERTH_BFLOAT16, data.wide, 2, wide));
    set(&state, "empty", tensor_of(&state, out, BERTH_FLOAT32, data.own, 2, empty));
    set(&state, "scalar", tensor_of(&state, out, BERTH_FLOAT64, &data.scalar, 0, NULL));
    berth_value *tensor = tensor_of(&state, out, BERTH_INT64, data.replica, 1, replica);
    set(&state, "replica", tensor);
    set(&state, "tied", tensor);
    add_views(&state, out);
    set(&state, "packed",
        berth_make_tensor(state.tree,
                          &(berth_tensor){.dtype = BERTH_QUINT4X2,
                                          .rank = 1,
                                          .shape = packed,
                                          .qscheme = BERTH_PER_TENSOR_AFFINE,
                                          .scale = 0.5,
                                          .data = out ? BERTH_ELSEWHERE : data.packed}));
    add_small(&state, out);
    return state;
}

/* ---- shares ---- */

/* What one writer has, and what was allocated for it. */
typedef struct joint_share {
    berth_slice slices[MAX_SLICES];
    size_t n;
    void *kept[3 * MAX_SLICES];
    size_t n_kept;
} joint_share;

static void add(joint_share *share, berth_slice slice)
{
    if (share->n == MAX_SLICES)
        test_give_up("too many slices");
    share->slices[share->n++] = slice;
}

/* Returns what was allocated. */
static void *keep(joint_share *share, void *allocated)
{
    if (!allocated || share->n_kept == sizeof share->kept / sizeof *share->kept)
        test_give_up("no memory, or too much of it");
    return share->kept[share->n_kept++] = allocated;
}

static int64_t *numbers(joint_share *share, int64_t a, int64_t b)
{
    int64_t *kept = keep(share, malloc(2 * sizeof *kept));

    kept[0] = a;
    kept[1] = b;
    return kept;
}

/* Uneven shares of rows: writer 1, if there are three, has none. */
static void add_rows(joint_share *share, size_t n, size_t i)
{
    int64_t begin = (int64_t)(ROWS * i / n), end = (int64_t)(ROWS * (i + 1) / n);

    if (n >= 3 && i == 1)
        end = begin;
    if (n >= 3 && i == 2)
        begin = (int64_t)(ROWS / n);
    add(share,
        berth_slice_of("embedding", numbers(share, begin, 0), numbers(share, end - begin, COLUMNS),
                       data.embedding + begin * COLUMNS));
}

/* Columns, which a process has as a tensor of its own. */
static void add_columns(joint_share *share, size_t n, size_t i)
{
    int64_t begin = (int64_t)((size_t)WIDE * i / n), end = (int64_t)((size_t)WIDE * (i + 1) / n);
    int64_t width = end - begin;
    uint16_t *mine = keep(share, malloc(2 * (size_t)width * sizeof *mine + 1));

    memcpy(mine, data.wide + begin, (size_t)width * sizeof *mine);
    memcpy(mine + width, data.wide + WIDE + begin, (size_t)width * sizeof *mine);
    add(share, berth_slice_of("wide", numbers(share, 0, begin), numbers(share, 2, width), mine));
}

static void add_dealt(joint_share *share, size_t n, size_t i)
{
    uint64_t offset, nbytes;

    berth_deal_bytes(1, sizeof data.replica, n, i, &offset, &nbytes);
    add(share, berth_slice_bytes("tied", offset, nbytes, (uint8_t *)data.replica + offset));
    berth_deal_bytes(2, sizeof data.crossed, n, i, &offset, &nbytes);
    add(share, berth_slice_bytes("crossed", offset, nbytes, (uint8_t *)data.crossed + offset));
}

/* Four neighbours at a time, so that they are a chain. */
static void add_small_of(joint_share *share, size_t n, size_t i)
{
    for (size_t j = 0; j < N_SMALL; j++) {
        char *name;
        if (j / 4 % n != i)
            continue;
        if (asprintf(&name, "small.%zu", j) < 0)
            test_give_up("out of memory");
        (void)keep(share, name);
        if (j > 0)
            add(share, berth_slice_whole(name, data.small[j]));
    }
}

static void share_of(joint_share *share, size_t n_writers, size_t writer)
{
    size_t i = writer, n = n_writers;

    fill();
    add_columns(share, n, i);
    add_rows(share, n, i);
    add_dealt(share, n, i);
    if (i == 0)
        add(share, berth_slice_whole("first", data.halves));
    if (i == n - 1) {
        add(share, berth_slice_whole("scalar", &data.scalar));
        add(share, berth_slice_whole("second", data.halves + HALF));
    }
    if (i == n / 2) {
        add(share, berth_slice_of("packed", numbers(share, 10000, 0),
                                  numbers(share, PACKED - 10000, 0), data.packed + 5000));
        add(share,
            berth_slice_of("packed", numbers(share, 0, 0), numbers(share, 10000, 0), data.packed));
    }
    add_small_of(share, n, i);
}

size_t joint_write_and_tell(berth_joint *joint, const berth_joint_info *info, size_t writer,
                            const berth_slice *slices, size_t n, const berth_params *params)
{
    berth_error error;
    void *receipt;
    size_t nbytes;

    assert_ok(berth_joint_write(info->ticket, info->ticket_nbytes, writer, slices, n, params,
                                &receipt, &nbytes, &error));
    assert_ok(berth_joint_add_receipt(joint, receipt, nbytes, &error));
    berth_free(receipt);
    return nbytes;
}

int joint_write_share(const void *ticket, size_t ticket_nbytes, size_t n_writers, size_t writer,
                      void **receipt, size_t *receipt_nbytes, berth_error *error)
{
    joint_share share = {0};

    share_of(&share, n_writers, writer);
    int code = berth_joint_write(ticket, ticket_nbytes, writer, share.slices, share.n, NULL,
                                 receipt, receipt_nbytes, error);
    while (share.n_kept > 0)
        free(share.kept[--share.n_kept]);
    return code;
}

/* ---- processes ---- */

static char *receipt_path(const joint_receipts *receipts, size_t writer)
{
    char name[32];

    snprintf(name, sizeof name, "%zu", writer);
    return test_path(receipts->folder, name);
}

static int write_in_child(const joint_receipts *receipts, const void *ticket, size_t ticket_nbytes,
                          size_t writer)
{
    berth_error error;
    void *receipt;
    size_t nbytes;

    if (joint_write_share(ticket, ticket_nbytes, receipts->n, writer, &receipt, &nbytes, &error) <
        0)
        test_give_up("writer %zu: %s", writer, error.message);
    test_write_file(receipt_path(receipts, writer), receipt, nbytes);
    return 0;
}

joint_receipts joint_write_in_processes(const void *ticket, size_t ticket_nbytes, size_t n_writers)
{
    joint_receipts receipts = {test_folder_new(), n_writers};
    int status;

    (void)fflush(NULL);
    for (size_t i = 0; i < n_writers; i++) {
        pid_t child = fork();
        if (child < 0)
            test_give_up("fork: %s", strerror(errno));
        if (child == 0)
            _exit(write_in_child(&receipts, ticket, ticket_nbytes, i));
    }
    for (size_t i = 0; i < n_writers; i++)
        if (wait(&status) < 0 || status != 0)
            test_give_up("a writer ended with status %x", (unsigned)status);
    return receipts;
}

uint8_t *joint_receipt_of(const joint_receipts *receipts, size_t writer, size_t *nbytes)
{
    char *name = receipt_path(receipts, writer);
    uint8_t *bytes = test_read_file(name, nbytes);

    free(name);
    return bytes;
}

void joint_receipts_end(joint_receipts *receipts)
{
    test_folder_remove(receipts->folder);
}

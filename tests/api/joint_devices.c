/* SPDX-License-Identifier: BSD-3-Clause */
/* Joint saves of slices that lie on devices: the file is that of one process; or why not. */
#include <berth/device.h>
#include <berth/joint.h>
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/support/scene.h"

enum { ROWS = 700, COLUMNS = 517, CUT = 200, PACKED = 999 };

static berth_error error;
static float matrix[ROWS][COLUMNS], left[ROWS][CUT], right[ROWS][COLUMNS - CUT];
static uint8_t packed[PACKED / 2 + 1];
static double scalar = 2.5;
static berth_tree *tree;
static berth_joint *joint;
static berth_joint_info info;
static void *receipt;
static size_t receipt_nbytes;

static void set_up(void)
{
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++)
            matrix[i][j] = (float)(i * 1000 + j);
    for (int i = 0; i < ROWS; i++) {
        memcpy(left[i], matrix[i], sizeof left[i]);
        memcpy(right[i], matrix[i] + CUT, sizeof right[i]);
    }
    for (size_t i = 0; i < sizeof packed; i++)
        packed[i] = (uint8_t)(i * 7);
    begin_model_scene();
    test_write_file(path, "old", 3);
    tree = berth_tree_new(NULL);
}

static void tear_down(void)
{
    berth_tree_free(tree);
    end_scene();
}

TestSuite(joint_devices, .init = set_up, .fini = tear_down);

/* ---- the state ---- */

static void set(berth_value *state, const char *name, berth_dtype dtype, int32_t rank,
                const void *data, bool is_outline)
{
    const int64_t shape[] = {ROWS, COLUMNS}, one[] = {PACKED};
    berth_tensor tensor = {.dtype = dtype,
                           .rank = rank,
                           .shape = rank == 1 ? one : shape,
                           .data = is_outline ? BERTH_ELSEWHERE : data};

    if (dtype == BERTH_QUINT4X2)
        tensor.qscheme = BERTH_PER_TENSOR_AFFINE;
    berth_dict_set(state, name, berth_make_tensor(tree, &tensor));
}

static berth_value *state_new(bool is_outline)
{
    berth_value *state = berth_make_dict(tree, BERTH_KIND_DICT);

    set(state, "rows", BERTH_FLOAT32, 2, matrix, is_outline);
    set(state, "columns", BERTH_FLOAT32, 2, matrix, is_outline);
    set(state, "bytes", BERTH_FLOAT32, 2, matrix, is_outline);
    set(state, "packed", BERTH_QUINT4X2, 1, packed, is_outline);
    set(state, "scalar", BERTH_FLOAT64, 0, &scalar, is_outline);
    return state;
}

static void begin(void)
{
    assert_ok(berth_joint_begin(path, state_new(true), 1, NULL, &joint, &info, &error));
}

/* ---- the writer ---- */

/* Of one writer. */
static int exchange(void *context, const void *send, const uint64_t *send_nbytes, void *receive,
                    const uint64_t *receive_nbytes)
{
    (void)context;
    cr_assert_eq(send_nbytes[0], receive_nbytes[0]);
    if (send_nbytes[0] > 0)
        memcpy(receive, send, (size_t)send_nbytes[0]);
    return 0;
}

static int write_slices(const berth_slice *slices, size_t n)
{
    const berth_params params = {.exchange = exchange};

    return berth_joint_write(info.ticket, info.ticket_nbytes, 0, slices, n, &params, &receipt,
                             &receipt_nbytes, &error);
}

/* The same slice, with its bytes on a device. */
static berth_slice moved(berth_slice slice, const char *device, const void *bytes, size_t nbytes)
{
    uintptr_t address;

    assert_ok(berth_device_memory_new(device, nbytes, &address, &error));
    assert_ok(berth_device_memory_copy(device, address, (void *)(uintptr_t)bytes, nbytes,
                                       BERTH_TO_DEVICE, &error));
    slice.data = (const void *)address; /* NOLINT(performance-no-int-to-ptr): as CUDA's users do */
    slice.device = device;
    return slice;
}

Test(joint_devices, all_kinds_of_slices_give_the_file_of_one_process)
{
    static const int64_t zeros[2], top[] = {100, COLUMNS}, below[] = {100, 0},
                                   rest[] = {ROWS - 100, COLUMNS}, from_cut[] = {0, CUT},
                                   some[] = {ROWS, CUT}, others[] = {ROWS, COLUMNS - CUT};
    const size_t half = sizeof matrix / 2;
    const char *first = "simulated:0", *second = "simulated:1";
    size_t nbytes;

    assert_ok(berth_save(path, state_new(false), NULL, &error));
    uint8_t *expected = test_read_file(path, &nbytes);
    begin();
    const berth_slice slices[] = {
        moved(berth_slice_of("rows", zeros, top, NULL), first, matrix, sizeof matrix[0] * 100),
        moved(berth_slice_of("rows", below, rest, NULL), second, matrix[100],
              sizeof matrix[0] * (ROWS - 100)),
        moved(berth_slice_of("columns", zeros, some, NULL), first, left, sizeof left),
        moved(berth_slice_of("columns", from_cut, others, NULL), second, right, sizeof right),
        moved(berth_slice_bytes("bytes", 0, half, NULL), first, matrix, half),
        berth_slice_bytes("bytes", half, half, (const uint8_t *)matrix + half),
        moved(berth_slice_whole("packed", NULL), first, packed, sizeof packed),
        moved(berth_slice_whole("scalar", NULL), second, &scalar, sizeof scalar)};
    assert_ok(write_slices(slices, sizeof slices / sizeof *slices));
    assert_ok(berth_joint_add_receipt(joint, receipt, receipt_nbytes, &error));
    assert_ok(berth_joint_finish(joint, &error));
    cr_expect(test_file_holds(path, expected, nbytes));
    berth_free(receipt);
    free(expected);
}

/* The coordinator's own tensor, on a device: no writer has bytes of it. */
Test(joint_devices, what_the_coordinator_has_on_a_device)
{
    const int64_t one[] = {1};
    const berth_slice own = berth_slice_whole("own", &scalar);
    berth_value *outline = berth_make_dict(tree, BERTH_KIND_DICT);
    uintptr_t address;

    assert_ok(berth_device_memory_new("simulated:0", sizeof scalar, &address, &error));
    assert_ok(berth_device_memory_copy("simulated:0", address, &scalar, sizeof scalar,
                                       BERTH_TO_DEVICE, &error));
    const berth_tensor tensor = {.dtype = BERTH_FLOAT64,
                                 .rank = 1,
                                 .shape = one,
                                 .storage =
                                     berth_device_storage_new(tree, BERTH_FLOAT64, address,
                                                              sizeof scalar, "simulated:0", NULL)};
    berth_dict_set(outline, "own", berth_make_tensor(tree, &tensor));
    set(outline, "scalar", BERTH_FLOAT64, 0, NULL, true);
    assert_ok(berth_joint_begin(path, outline, 1, NULL, &joint, &info, &error));
    cr_expect_eq(write_slices(&own, 1), BERTH_E_NOT_FOUND, "%s", error.message);
    const berth_slice slice = berth_slice_whole("scalar", &scalar);
    assert_ok(write_slices(&slice, 1));
    assert_ok(berth_joint_add_receipt(joint, receipt, receipt_nbytes, &error));
    assert_ok(berth_joint_finish(joint, &error));
    berth_free(receipt);
}

/* ---- refusals ---- */

static void check_refused(const berth_slice *slice, int status, const char *expected)
{
    begin();
    cr_expect_eq(write_slices(slice, 1), status);
    cr_expect_not_null(strstr(error.message, expected), "%s, not %s", error.message, expected);
    cr_expect_null(receipt);
    berth_joint_abort(joint);
    cr_expect(test_file_holds(path, "old", 3));
}

Test(joint_devices, memory_of_another_device_or_of_none)
{
    berth_slice slice =
        moved(berth_slice_whole("scalar", NULL), "simulated:0", &scalar, sizeof scalar);

    slice.device = "simulated:1";
    check_refused(&slice, BERTH_E_ARGUMENT, "model.pt: scalar: simulated:1: 8 bytes at 0x");
    check_refused(&slice, BERTH_E_ARGUMENT, " are memory of simulated:0");
    slice.device = "cpu";
    check_refused(&slice, BERTH_E_ARGUMENT, "model.pt: scalar: ");
    slice.device = NULL; /* not named: the host cannot touch it */
    check_refused(&slice, BERTH_E_ARGUMENT, "model.pt: scalar: 8 bytes at 0x");
    check_refused(&slice, BERTH_E_ARGUMENT,
                  " are not memory that the host can read: if they lie on a device, name it in "
                  "berth_slice.device");
    slice = berth_slice_whole("scalar", &scalar);
    slice.device = "simulated:0";
    check_refused(&slice, BERTH_E_ARGUMENT, " are not this device's memory, or not any more");
    slice = moved(berth_slice_bytes("rows", 0, 1 << 30, NULL), "simulated:0", packed, 9);
    check_refused(&slice, BERTH_E_ARGUMENT, "bytes 0 to 1073741824 are not in its storage of ");
}

/* W6: the first allocations of a writer; one of them is the slice's copy in the host's memory. */
Test(joint_devices, without_memory_for_a_copy)
{
    const berth_slice slice =
        moved(berth_slice_whole("scalar", NULL), "simulated:0", &scalar, sizeof scalar);
    int status = -1;

    begin();
    test_memory_watch();
    for (uint64_t nth = 1; status < 0; nth++) {
        test_memory_refuse(nth, false);
        status = write_slices(&slice, 1);
        test_memory_refuse(0, false);
        cr_assert(status == 0 ? nth > 3 : status == BERTH_E_MEMORY, "%s", error.message);
    }
    berth_free(receipt);
    test_memory_unwatch();
    berth_joint_abort(joint);
}

/* An address of CUDA is reserved in the process, but cannot be read: so is a page without rights.
 */
Test(joint_devices, memory_whose_begin_or_end_cannot_be_read)
{
    uint8_t *pages =
        mmap(NULL, 2 * 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    cr_assert_neq(pages, MAP_FAILED);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(mprotect(pages, 2 * 65536, PROT_READ | PROT_WRITE), 0);
        cr_assert_eq(mprotect(pages + 65536 * i, 65536, PROT_NONE), 0);
        const berth_slice slice = berth_slice_whole("scalar", pages + 65536 - (i ? 4 : 2));
        check_refused(&slice, BERTH_E_ARGUMENT, " are not memory that the host can read");
    }
}

/* The page of clocks, which the system maps as drivers do: it can be read, but not from outside. */
static const void *mapped_as_by_a_driver(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    uintptr_t address = 0;

    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "[vvar]"))
            address = (uintptr_t)strtoull(line, NULL, 16);
    if (maps)
        (void)fclose(maps);
    return (const void *)address; /* NOLINT(performance-no-int-to-ptr) */
}

Test(joint_devices, memory_that_a_driver_maps_can_be_read)
{
    const berth_slice slice = berth_slice_whole("scalar", mapped_as_by_a_driver());

    if (!slice.data)
        cr_skip_test("this system maps no page of clocks");
    begin();
    cr_expect_eq(write_slices(&slice, 1), 0, "%s", error.message);
    berth_free(receipt);
    berth_joint_abort(joint);
}

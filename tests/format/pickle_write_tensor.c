/* SPDX-License-Identifier: BSD-3-Clause */
/* Tensors and storages are written as torch.save writes them, byte for byte (FORMAT.md 6). */
#include "tests/support/format/pickle_written.h"

#include <stdio.h>

#include "tests/format/pickle_write_tensor_expected.h"
#include "tests/support/support.h"
#include "tests/support/tree_scene.h"

static const uint8_t zeros[256];

TestSuite(pickle_write_tensor, .init = begin_tree, .fini = end_tree);

/* A tensor of a storage, contiguous. */
static berth_tensor view(berth_storage *storage, berth_dtype dtype, int32_t rank,
                         const int64_t *shape)
{
    return (berth_tensor){.dtype = dtype, .rank = rank, .shape = shape, .storage = storage};
}

/* A contiguous tensor over zeros, of one dimension. */
static berth_value *vector(berth_dtype dtype, int64_t n)
{
    berth_tensor tensor = {.dtype = dtype, .rank = 1, .shape = &n, .data = zeros};
    return berth_make_tensor(tree, &tensor);
}

static berth_value *flagged(berth_dtype dtype, int64_t n, uint32_t flags)
{
    berth_tensor tensor = {.dtype = dtype, .rank = 1, .shape = &n, .data = zeros, .flags = flags};
    return berth_make_tensor(tree, &tensor);
}

static const int64_t two_three[] = {2, 3};
static const int64_t three_two[] = {3, 2};

/* ---- strided ---- */

Test(pickle_write_tensor, tensors)
{
    berth_tensor tensor = {.dtype = BERTH_FLOAT32, .rank = 2, .shape = two_three, .data = zeros};
    berth_tensor number = {.dtype = BERTH_INT64, .data = zeros};
    berth_tensor meta = {
        .dtype = BERTH_FLOAT32, .rank = 1, .shape = (int64_t[]){2}, .flags = BERTH_META};
    check_pickle(berth_make_tensor(tree, &tensor), expected_tensor);
    check_pickle(berth_make_tensor(tree, &number), expected_scalar_tensor);
    check_pickle(berth_make_tensor(tree, &meta), expected_meta);
    check_pickle(flagged(BERTH_FLOAT64, 2, BERTH_REQUIRES_GRAD), expected_gradient);
    check_pickle(LIST(vector(BERTH_UINT16, 2), vector(BERTH_FLOAT8_E5M2, 3)), expected_new_dtypes);
    check_pickle(LIST(flagged(BERTH_COMPLEX64, 2, BERTH_CONJ),
                      flagged(BERTH_COMPLEX64, 2, BERTH_CONJ | BERTH_NEG),
                      flagged(BERTH_FLOAT32, 2, BERTH_NEG)),
                 expected_conjugate);
}

Test(pickle_write_tensor, views_share_a_storage)
{
    berth_storage *storage = berth_storage_new(tree, BERTH_FLOAT32, zeros, 24, NULL);
    berth_tensor base = view(storage, BERTH_FLOAT32, 2, two_three);
    berth_tensor row = view(storage, BERTH_FLOAT32, 1, (int64_t[]){3});
    row.storage_offset = 3;
    berth_tensor transposed = view(storage, BERTH_FLOAT32, 2, three_two);
    transposed.stride = (int64_t[]){1, 3};
    berth_value *first = berth_make_tensor(tree, &base);
    check_pickle(LIST(first, berth_make_tensor(tree, &row), berth_make_tensor(tree, &transposed),
                      first, make_text("0"), make_text("cpu")),
                 expected_views);
}

Test(pickle_write_tensor, twelve_storages_tied_twice)
{
    berth_value *list = berth_make_list(tree);
    berth_storage *storages[12];
    for (size_t i = 0; i < 24; i++) {
        if (i < 12)
            storages[i] = berth_storage_new(tree, BERTH_FLOAT32, zeros, 4, NULL);
        berth_tensor tensor = view(storages[i % 12], BERTH_FLOAT32, 1, (int64_t[]){1});
        berth_list_append(list, berth_make_tensor(tree, &tensor));
    }
    check_pickled_sum(list, 12, storage_sums[0].nbytes, storage_sums[0].crc32);
}

Test(pickle_write_tensor, storages_are_numbered_as_they_are_met)
{
    berth_storage *late = berth_storage_new(tree, BERTH_INT8, zeros, 1, NULL);
    berth_storage *early = berth_storage_new(tree, BERTH_FLOAT64, zeros, 16, NULL);
    berth_storage_new(tree, BERTH_INT8, zeros, 1, NULL); /* met nowhere */
    berth_value *list = LIST(berth_make_storage(tree, early), berth_make_storage(tree, late));
    bth_pickled pickled = must_write(list);
    cr_assert_eq(pickled.n_storages, 2);
    cr_expect_eq(pickled.storages[0], early);
    cr_expect_eq(pickled.storages[1], late);
    cr_expect_eq(pickled.dtypes[0], BERTH_FLOAT64);
    cr_expect_eq(pickled.dtypes[1], BERTH_INT8);
    bth_pickled_free(&pickled);
}

Test(pickle_write_tensor, bare_storages)
{
    berth_value *floats =
        berth_make_storage(tree, berth_storage_new(tree, BERTH_FLOAT32, zeros, 8, NULL));
    berth_value *bytes =
        berth_make_storage(tree, berth_storage_new(tree, BERTH_DTYPE_NONE, zeros, 8, NULL));
    check_pickle(LIST(floats, bytes, bytes), expected_storages);
}

/* torch puts 'cuda:0' together for each tensor anew, while 'cpu' is a constant. */
Test(pickle_write_tensor, a_device_location_is_a_new_string_each_time)
{
    berth_storage *storage = berth_storage_new(tree, BERTH_INT8, zeros, 1, "cuda:0");
    berth_value *value = berth_make_storage(tree, storage);
    check_pickle(LIST(value, value), "\x80\x02]q\000(("
                                     "X\007\000\000\000storageq\001ctorch\nCharStorage\nq\002X\001"
                                     "\000\000\0000q\003X\006\000\000\000cuda:0q\004K\001tq\005Q("
                                     "h\001h\002h\003X\006\000\000\000cuda:0q\006K\001tq\007Qe.");
}

/*
 * A view of a storage, from a stream before 1.6, is written on the storage itself, so that
 * they go on sharing memory.
 */
Test(pickle_write_tensor, storage_views_become_offsets)
{
    berth_storage *root = berth_storage_new(tree, BERTH_FLOAT32, zeros, 24, NULL);
    berth_storage *part = berth_storage_new(tree, BERTH_FLOAT32, zeros, 12, NULL);
    part->root = root;
    part->root_offset = 8;
    berth_tensor moved = view(part, BERTH_FLOAT32, 1, (int64_t[]){2});
    moved.storage_offset = 1;
    berth_tensor same = view(root, BERTH_FLOAT32, 1, (int64_t[]){2});
    same.storage_offset = 3;
    bth_pickled on_part = must_write(berth_make_tensor(tree, &moved));
    bth_pickled on_root = must_write(berth_make_tensor(tree, &same));
    cr_assert_eq(on_part.n_storages, 1);
    cr_expect_eq(on_part.storages[0], root);
    cr_assert_eq(on_part.nbytes, on_root.nbytes);
    cr_expect_arr_eq(on_part.bytes, on_root.bytes, on_root.nbytes);
    bth_pickled_free(&on_part);
    bth_pickled_free(&on_root);
}

/* ---- Parameters, attributes ---- */

Test(pickle_write_tensor, parameters_and_attributes)
{
    berth_value *parameter = berth_make_parameter(tree, vector(BERTH_FLOAT32, 2), true);
    berth_value *plain = berth_make_parameter(tree, vector(BERTH_FLOAT32, 2), false);
    berth_value *text = berth_make_dict(tree, BERTH_KIND_DICT),
                *number = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_dict_set(text, "tag", make_text("x"));
    berth_dict_set(number, "tag", berth_make_int(tree, 1));
    berth_value *tensor = berth_make_subclass(tree, vector(BERTH_FLOAT32, 2), number);
    check_pickle(LIST(parameter, parameter), expected_parameter);
    check_pickle(berth_make_subclass(tree, plain, text), expected_parameter_with_state);
    check_pickle(LIST(tensor, tensor), expected_attributes);
}

/* nn.Parameter(t).data is an object of its own and never requires grad. */
Test(pickle_write_tensor, a_parameters_tensor_is_written_detached)
{
    berth_value *tensor = flagged(BERTH_FLOAT32, 2, BERTH_REQUIRES_GRAD);
    berth_value *parameter = berth_make_parameter(tree, tensor, true);
    check_pickle(LIST(parameter, parameter), expected_parameter);
    bth_pickled alone = must_write(LIST(parameter));
    bth_pickled both = must_write(LIST(parameter, tensor));
    cr_expect_gt(both.nbytes, alone.nbytes + 20, "the tensor itself is another object");
    bth_pickled_free(&alone);
    bth_pickled_free(&both);
}

Test(pickle_write_tensor, a_tensor_that_is_its_own_attribute_is_refused)
{
    berth_value *state = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_value *tensor = berth_make_subclass(tree, vector(BERTH_FLOAT32, 2), state);
    berth_dict_set(state, "self", tensor);
    check_write_refused(tensor, false, BERTH_E_UNSUPPORTED,
                        "data.pkl: a tensor with attributes contains itself: "
                        "torch.load(weights_only=True) cannot read that");
}

/* ---- quantized, sparse, nested ---- */

Test(pickle_write_tensor, quantized_per_tensor)
{
    const int64_t n = 3;
    berth_tensor tensor = {.dtype = BERTH_QINT8,
                           .rank = 1,
                           .shape = &n,
                           .data = zeros,
                           .qscheme = BERTH_PER_TENSOR_AFFINE,
                           .scale = 0.5,
                           .zero_point = 3};
    check_pickle(berth_make_tensor(tree, &tensor), expected_quantized);
}

/* As torch does: what is on meta is asked first, and has no quantizer. */
Test(pickle_write_tensor, a_quantized_meta_tensor_is_written_as_any_on_meta)
{
    static const berth_qscheme schemes[] = {BERTH_PER_TENSOR_AFFINE, BERTH_PER_CHANNEL_AFFINE,
                                            BERTH_PER_CHANNEL_AFFINE_FLOAT_QPARAMS};
    const int64_t n = 2;
    berth_tensor tensor = {.dtype = BERTH_QINT8, .rank = 1, .shape = &n, .flags = BERTH_META};
    bth_pickled plain = must_write(berth_make_tensor(tree, &tensor));
    tensor.scale = 0.5;
    tensor.scales = tensor.zero_points = vector(BERTH_FLOAT32, 2);
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        tensor.qscheme = schemes[i];
        bth_pickled quantized = must_write(berth_make_tensor(tree, &tensor));
        cr_assert_eq(quantized.nbytes, plain.nbytes);
        cr_expect_arr_eq(quantized.bytes, plain.bytes, plain.nbytes);
        bth_pickled_free(&quantized);
    }
    bth_pickled_free(&plain);
}

static berth_value *per_channel(berth_qscheme qscheme)
{
    berth_tensor tensor = {.dtype = BERTH_QUINT8,
                           .rank = 2,
                           .shape = three_two,
                           .data = zeros,
                           .qscheme = qscheme,
                           .scales = vector(BERTH_FLOAT32, 3),
                           .zero_points = vector(BERTH_FLOAT32, 3)};
    return berth_make_tensor(tree, &tensor);
}

Test(pickle_write_tensor, quantized_per_channel)
{
    check_pickle(per_channel(BERTH_PER_CHANNEL_AFFINE_FLOAT_QPARAMS), expected_per_channel);
    check_pickle(per_channel(BERTH_PER_CHANNEL_AFFINE),
                 expected_per_channel); /* one name for both */
}

Test(pickle_write_tensor, symmetric_quantization_is_refused)
{
    const int64_t n = 3;
    berth_tensor tensor = {.dtype = BERTH_QINT8,
                           .rank = 1,
                           .shape = &n,
                           .data = zeros,
                           .qscheme = BERTH_PER_TENSOR_SYMMETRIC,
                           .scale = 0.5};
    check_write_refused(
        berth_make_tensor(tree, &tensor), false, BERTH_E_UNSUPPORTED,
        "data.pkl: symmetrically quantized tensors cannot be saved: PyTorch cannot load them");
    check_write_refused(
        per_channel(BERTH_PER_CHANNEL_SYMMETRIC), false, BERTH_E_UNSUPPORTED,
        "data.pkl: symmetrically quantized tensors cannot be saved: PyTorch cannot load them");
}

static const int64_t two_two[] = {2, 2};

static berth_value *on_storage(berth_storage *storage, berth_dtype dtype, int32_t rank,
                               const int64_t *shape, int64_t offset)
{
    berth_tensor tensor = view(storage, dtype, rank, shape);
    tensor.storage_offset = offset;
    return berth_make_tensor(tree, &tensor);
}

Test(pickle_write_tensor, sparse_coordinates)
{
    berth_storage *indices = berth_storage_new(tree, BERTH_INT64, zeros, 32, NULL);
    berth_value *parts[] = {on_storage(indices, BERTH_INT64, 2, two_two, 0),
                            vector(BERTH_FLOAT32, 2)};
    check_pickle(berth_make_sparse(tree, BERTH_SPARSE_COO, two_two, 2, parts, true),
                 expected_sparse_coo);
}

Test(pickle_write_tensor, sparse_rows)
{
    /* Torch's column indices happen to be a view of a larger storage. */
    berth_storage *columns = berth_storage_new(tree, BERTH_INT64, zeros, 32, NULL);
    berth_value *parts[] = {vector(BERTH_INT64, 3),
                            on_storage(columns, BERTH_INT64, 1, (int64_t[]){2}, 2),
                            vector(BERTH_FLOAT32, 2)};
    check_pickle(berth_make_sparse(tree, BERTH_SPARSE_CSR, two_two, 2, parts, false),
                 expected_sparse_csr);
}

Test(pickle_write_tensor, nested)
{
    const int64_t two_one[] = {2, 1};
    berth_tensor sizes = {.dtype = BERTH_INT64, .rank = 2, .shape = two_one, .data = zeros};
    berth_value *parts[] = {vector(BERTH_FLOAT32, 5), berth_make_tensor(tree, &sizes),
                            berth_make_tensor(tree, &sizes), vector(BERTH_INT64, 2)};
    check_pickle(berth_make_nested(tree, parts), expected_nested);
}

/* ---- refusals ---- */

Test(pickle_write_tensor, one_storage_under_two_classes_is_refused_T3)
{
    berth_storage *storage = berth_storage_new(tree, BERTH_DTYPE_NONE, zeros, 8, NULL);
    berth_tensor floats = view(storage, BERTH_FLOAT32, 1, (int64_t[]){2});
    berth_tensor integers = view(storage, BERTH_INT32, 1, (int64_t[]){2});
    check_write_refused(LIST(berth_make_tensor(tree, &floats), berth_make_tensor(tree, &integers)),
                        false, BERTH_E_UNSUPPORTED,
                        "data.pkl: one storage is used as FloatStorage and as IntStorage: PyTorch "
                        "cannot load such a file");
    berth_tensor shorts = view(storage, BERTH_UINT16, 1, (int64_t[]){4}); /* in an UntypedStorage */
    check_write_refused(LIST(berth_make_tensor(tree, &floats), berth_make_tensor(tree, &shorts)),
                        false, BERTH_E_UNSUPPORTED,
                        "data.pkl: one storage is used as FloatStorage and as UntypedStorage: "
                        "PyTorch cannot load such a file");
    check_write_refused(LIST(berth_make_tensor(tree, &shorts), berth_make_tensor(tree, &floats)),
                        false, BERTH_E_UNSUPPORTED,
                        "data.pkl: one storage is used as UntypedStorage and as FloatStorage: "
                        "PyTorch cannot load such a file");
}

Test(pickle_write_tensor, bytes_and_untyped_or_nothing_at_all_are_no_two_classes_T3)
{
    berth_storage *storage = berth_storage_new(tree, BERTH_DTYPE_NONE, zeros, 8, NULL);
    berth_storage *empty = berth_storage_new(tree, BERTH_DTYPE_NONE, zeros, 0, NULL);
    berth_tensor shorts = view(storage, BERTH_UINT16, 1, (int64_t[]){4});
    berth_tensor bytes = view(storage, BERTH_UINT8, 1, (int64_t[]){8});
    berth_tensor floats = view(empty, BERTH_FLOAT32, 1, (int64_t[]){0});
    berth_tensor integers = view(empty, BERTH_INT32, 1, (int64_t[]){0});
    bth_pickled pickled =
        must_write(LIST(berth_make_tensor(tree, &shorts), berth_make_tensor(tree, &bytes),
                        berth_make_tensor(tree, &floats), berth_make_tensor(tree, &integers)));
    cr_expect_eq(pickled.n_storages, 2);
    bth_pickled_free(&pickled);
}

Test(pickle_write_tensor, what_pytorch_would_not_swap_is_refused_in_the_other_byte_order_T5)
{
    check_write_refused(vector(BERTH_UINT32, 2), true, BERTH_E_UNSUPPORTED,
                        "data.pkl: torch.uint32 cannot be saved in the other byte order: PyTorch "
                        "would not swap it back");
    berth_storage *odd = berth_storage_new(tree, BERTH_DTYPE_NONE, zeros, 7, NULL);
    berth_tensor tensor = view(odd, BERTH_FLOAT32, 1, (int64_t[]){1});
    check_write_refused(berth_make_tensor(tree, &tensor), true, BERTH_E_UNSUPPORTED,
                        "data.pkl: a storage of 7 bytes, not a multiple of torch.float32, cannot "
                        "be saved in the other byte order");
}

Test(pickle_write_tensor, what_pytorch_swaps_or_has_nothing_to_swap_passes_T5)
{
    berth_error error;
    bth_pickled pickled;
    bth_error_clear(&error);
    berth_value *list =
        LIST(vector(BERTH_COMPLEX128, 2), vector(BERTH_FLOAT8_E4M3FN, 2), vector(BERTH_BOOL, 2));
    assert_ok(bth_pickle_write(list, true, &pickled, &error));
    cr_expect_eq(pickled.dtypes[0], BERTH_COMPLEX128);
    cr_expect_eq(pickled.dtypes[1], BERTH_DTYPE_NONE);
    bth_pickled_free(&pickled);
}

/* ---- W6 ---- */

/* A new tree, whose memory is counted from now on. */
static void begin_again(void)
{
    berth_tree_free(tree);
    test_memory_unwatch();
    test_memory_watch();
    begin_tree();
}

/* Enough of everything to make every table of the writer grow. */
static berth_value *large_value(void)
{
    berth_value *root = berth_make_list(tree);
    berth_value *inner = root;
    for (int i = 0; i < 100; i++) {
        char name[16];
        int n = snprintf(name, sizeof name, "C%d", i);
        berth_value *class = bth_global_new(tree, "a.b", 3, name, (size_t)n, false);
        berth_list_append(inner, LIST(class, class, vector(BERTH_INT8, 2)));
        berth_value *next = berth_make_list(tree);
        berth_list_append(inner, next);
        inner = next;
    }
    return root;
}

Test(pickle_write_tensor, a_class_named_again_is_fetched_however_many_there_are)
{
    berth_value *root = berth_make_list(tree);
    for (int i = 0; i < 200; i++) {
        char name[16];
        int n = snprintf(name, sizeof name, "C%03d", i % 100);
        berth_list_append(root, bth_global_new(tree, "a.b", 3, name, (size_t)n, false));
    }
    bth_pickled pickled = must_write(root);
    /* PROTO, list, MARK, APPENDS, STOP; 100 GLOBALs of 10 bytes with BINPUT; 100 BINGETs. */
    cr_expect_eq(pickled.nbytes, 2 + 3 + 1 + 1 + 1 + 100 * (10 + 2) + 100 * 2);
    bth_pickled_free(&pickled);
}

Test(pickle_write_tensor, every_refused_allocation_is_a_clean_failure_W6)
{
    for (int for_ever = 0; for_ever < 2; for_ever++) {
        uint64_t n_points = 0;
        for (int code = BERTH_E_MEMORY; code == BERTH_E_MEMORY; n_points++) {
            begin_again();
            berth_value *value = large_value();
            uint64_t held = test_memory_seen().live_nbytes;
            test_memory_refuse(n_points + 1, for_ever);
            berth_error error;
            bth_pickled pickled;
            bth_error_clear(&error);
            code = bth_pickle_write(value, false, &pickled, &error);
            cr_assert(code == 0 || code == BERTH_E_MEMORY, "%s", error.message);
            bth_pickled_free(&pickled);
            cr_expect_eq(test_memory_seen().live_nbytes, held, "point %lu",
                         (unsigned long)n_points);
        }
        cr_expect_gt(n_points, 12, "only %lu fault points tried", (unsigned long)n_points);
    }
    berth_tree_free(tree);
    test_memory_unwatch();
    begin_tree();
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* The tensors that a benchmark saves: those of a file, or of sizes that were given. */
#include <berth/device.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/bench/bench.h"
#include "tools/common/options.h"
#include "tools/common/progress.h"
#include "tools/common/report.h"

static int bench_tensors_allocate_items(bench_tensors *tensors, size_t n)
{
    tensors->items = calloc(n + 1, sizeof *tensors->items);
    return tensors->items ? 0 : print_trouble("out of memory (%zu tensors)", n);
}

static int bench_tensors_add(bench_tensors *tensors, size_t index, const char *name,
                             const berth_tensor *like)
{
    bench_tensor *tensor = &tensors->items[tensors->n++];
    size_t n = (size_t)like->rank;

    *tensor = (bench_tensor){.index = index,
                             .name = strdup(name),
                             .dtype = like->dtype,
                             .rank = like->rank,
                             .shape = calloc(n + 1, sizeof *tensor->shape),
                             .nbytes = (size_t)berth_tensor_nbytes(like)};
    tensors->nbytes += tensor->nbytes;
    if (!tensor->name || !tensor->shape)
        return print_trouble("out of memory");
    if (n)
        memcpy(tensor->shape, like->shape, n * sizeof *tensor->shape);
    return 0;
}

int bench_tensors_list_equal_sizes(bench_tensors *tensors, uint64_t n, uint64_t nbytes)
{
    const uint64_t usual = UINT64_C(64) << 20;
    char name[32];

    if (!n)
        n = nbytes < usual ? 1 : nbytes / usual;
    const int64_t shape = (int64_t)(nbytes / n / 4);
    if (shape < 1)
        return print_trouble("%" PRIu64 " bytes are too few for %" PRIu64 " tensors", nbytes, n);
    int code = bench_tensors_allocate_items(tensors, (size_t)n);
    for (uint64_t i = 0; i < n && code == 0; i++) {
        snprintf(name, sizeof name, "tensor.%" PRIu64, i);
        code =
            bench_tensors_add(tensors, (size_t)i, name,
                              &(berth_tensor){.dtype = BERTH_FLOAT32, .rank = 1, .shape = &shape});
    }
    return code;
}

int bench_tensors_list_table(bench_tensors *tensors, uint64_t n_rows, uint64_t row_nbytes)
{
    const int64_t shape[] = {(int64_t)n_rows, (int64_t)(row_nbytes / 4)};
    int code = bench_tensors_allocate_items(tensors, 1);

    return code ? code
                : bench_tensors_add(
                      tensors, 0, "table",
                      &(berth_tensor){.dtype = BERTH_FLOAT32, .rank = 2, .shape = shape});
}

int bench_tensors_list_file(bench_tensors *tensors, const char *path)
{
    berth_named_tensor named;
    berth_error error;

    if (berth_open(path, NULL, &tensors->checkpoint, &error) < 0)
        return fail(&error);
    size_t n = berth_tensor_count(tensors->checkpoint);
    int code = bench_tensors_allocate_items(tensors, n);
    for (size_t i = 0; i < n && code == 0; i++) {
        if (berth_tensor_at(tensors->checkpoint, i, &named, &error) < 0)
            return fail(&error);
        if (!named.tensor || !named.tensor->storage || named.tensor->qscheme != BERTH_NOT_QUANTIZED)
            continue;
        code = bench_tensors_add(tensors, i, named.name ? named.name : named.path, named.tensor);
    }
    return code || tensors->n ? code : print_trouble("%s: there is no tensor to save", path);
}

/* ---- bytes ---- */

/* Fast, and without a pattern that a disk or device could compress (xorshift64). */
static void bytes_fill_random(void *data, size_t nbytes, uint64_t *random)
{
    uint64_t x = *random;
    char *at = data;

    while (nbytes) {
        size_t n = nbytes < sizeof x ? nbytes : sizeof x;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(at, &x, n);
        at += n;
        nbytes -= n;
    }
    *random = x;
}

static int tensor_fill_from_checkpoint(const bench_tensors *tensors, const bench_tensor *tensor)
{
    berth_named_tensor named;
    berth_error error;

    if (berth_tensor_at(tensors->checkpoint, tensor->index, &named, &error) < 0 ||
        berth_tensor_read(tensors->checkpoint, named.tensor, 0, berth_tensor_numel(named.tensor),
                          tensor->data, &error) < 0)
        return fail(&error);
    return 0;
}

/* Gives a tensor its bytes in main memory. */
static int tensor_allocate_and_fill_on_host(const bench_tensors *tensors, bench_tensor *tensor,
                                            uint64_t *random)
{
    enum { AT_ONCE = 64 << 20 };

    /* 64: as PyTorch aligns. Large tensors then begin within a page, as PyTorch's do. */
    if (posix_memalign(&tensor->data, 64, tensor->nbytes) != 0)
        return print_trouble("out of memory (%zu bytes)", tensor->nbytes);
    if (tensors->checkpoint)
        return tensor_fill_from_checkpoint(tensors, tensor);
    for (size_t at = 0; at < tensor->nbytes && !caught_signal_code_or(0); at += AT_ONCE) {
        size_t left = tensor->nbytes - at;
        bytes_fill_random((char *)tensor->data + at, left < AT_ONCE ? left : AT_ONCE, random);
    }
    return 0;
}

static int tensor_move_to_device(const bench_tensors *tensors, bench_tensor *tensor)
{
    berth_error error;
    int code = berth_device_memory_copy(tensors->device, tensor->address, tensor->data,
                                        tensor->nbytes, BERTH_TO_DEVICE, &error);

    free(tensor->data);
    tensor->data = NULL;
    return code < 0 ? fail(&error) : 0;
}

/* One memory for all, the tensors as far apart in it as PyTorch's allocator for CUDA has them. */
static int bench_tensors_allocate_on_device(bench_tensors *tensors, const char *device)
{
    enum { APART = 512 };
    uint64_t nbytes = 0;
    berth_error error;

    for (size_t i = 0; i < tensors->n; i++) {
        tensors->items[i].address = (uintptr_t)nbytes;
        nbytes += (tensors->items[i].nbytes + APART - 1) / APART * APART;
    }
    if (berth_device_memory_new(device, (size_t)nbytes, &tensors->memory, &error) < 0)
        return fail(&error);
    tensors->device = device;
    for (size_t i = 0; i < tensors->n; i++)
        tensors->items[i].address += tensors->memory;
    return 0;
}

int bench_tensors_allocate_and_fill(bench_tensors *tensors, const char *device)
{
    uint64_t random = UINT64_C(88172645463325252), available = available_memory_nbytes();
    char needed[32], there[32];
    int code = 0;

    if (device)
        code = bench_tensors_allocate_on_device(tensors, device);
    else if (tensors->nbytes > available)
        code = print_trouble(
            "%s of tensors do not fit into memory (%s available): choose less with --size",
            human_nbytes(tensors->nbytes, needed), human_nbytes(available, there));
    for (size_t i = 0; i < tensors->n && code == 0; i++) {
        code = tensor_allocate_and_fill_on_host(tensors, &tensors->items[i], &random);
        if (code == 0 && device)
            code = tensor_move_to_device(tensors, &tensors->items[i]);
        if (code == 0 && caught_signal_code_or(0))
            code = print_trouble("cancelled");
    }
    berth_close(tensors->checkpoint);
    tensors->checkpoint = NULL;
    return code;
}

void bench_tensors_free(bench_tensors *tensors)
{
    for (size_t i = 0; i < tensors->n; i++) {
        free(tensors->items[i].name);
        free(tensors->items[i].shape);
        free(tensors->items[i].data);
    }
    if (tensors->device)
        berth_device_memory_free(tensors->device, tensors->memory);
    berth_close(tensors->checkpoint);
    free(tensors->items);
    *tensors = (bench_tensors){0};
}

/* ---- saving ---- */

berth_value *bench_tensors_value(const bench_tensors *tensors, berth_tree *tree)
{
    berth_value *state = berth_make_dict(tree, BERTH_KIND_ORDERED_DICT);

    for (size_t i = 0; i < tensors->n; i++) {
        const bench_tensor *tensor = &tensors->items[i];
        berth_storage *storage = NULL;
        if (tensors->device)
            storage = berth_device_storage_new(tree, tensor->dtype, tensor->address, tensor->nbytes,
                                               tensors->device, NULL);
        berth_dict_set(state, tensor->name,
                       berth_make_tensor(tree, &(berth_tensor){.dtype = tensor->dtype,
                                                               .rank = tensor->rank,
                                                               .shape = tensor->shape,
                                                               .storage = storage,
                                                               .data = tensor->data}));
    }
    return state;
}

int bench_tensors_make_file(bench_tensors *tensors, bench_folder *folder, const common *options)
{
    berth_stats unused;
    berth_error error;
    berth_params params;
    progress bar;
    int code = bench_folder_make(folder);

    if (code == 0)
        code = bench_tensors_allocate_and_fill(tensors, NULL);
    if (code != 0)
        return code;
    berth_tree *tree = berth_tree_new(&error);
    if (!tree)
        return fail(&error);
    berth_value *value = bench_tensors_value(tensors, tree);
    progress_begin(&bar, "making the file", options, &params, &unused);
    code = berth_save(folder->path, value, &params, &error);
    progress_finish(&bar);
    berth_tree_free(tree);
    return code < 0 ? fail(&error) : 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The checkpoints that benchmarks save: tensors of one size, those of a Llama-like model, many
 * small ones, one large one. tools/bench/shapes.py makes the same ones for PyTorch.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench.h"

static const uint64_t GIB = UINT64_C(1) << 30, MIB = UINT64_C(1) << 20;

bool parse_nbytes(const char *text, uint64_t *nbytes)
{
    static const char units[] = "BKMGT";
    char *end;

    errno = 0;
    uint64_t number = strtoull(text, &end, 10);
    if (end == text || *text == '-' || errno)
        return false;
    const char *unit = *end ? strchr(units, *end) : units;
    if (!unit)
        return false;
    if (*end && strcmp(end + 1, "") != 0 && strcmp(end + 1, "iB") != 0)
        return false;
    unsigned shift = 10 * (unsigned)(unit - units);
    if (number > UINT64_MAX >> shift)
        return false;
    *nbytes = number << shift;
    return true;
}

/* Room for n tensors more. */
static int reserve(bench_tensors *tensors, uint64_t n)
{
    if (n > 50000000)
        return trouble("%" PRIu64 " tensors are more than this benchmark makes", n);
    tensors->items = calloc((size_t)n, sizeof *tensors->items);
    return tensors->items ? 0 : trouble("out of memory (%" PRIu64 " tensors)", n);
}

static bench_tensor *add(bench_tensors *tensors, berth_dtype dtype, int64_t rows, int64_t columns)
{
    bench_tensor *tensor = &tensors->items[tensors->n++];

    tensor->dtype = dtype;
    tensor->rank = columns ? 2 : 1;
    tensor->shape[0] = rows;
    tensor->shape[1] = columns;
    tensor->nbytes = (size_t)rows * (size_t)(columns ? columns : 1) * berth_dtype_nbytes(dtype);
    tensors->nbytes += tensor->nbytes;
    return tensor;
}

/* n tensors of the same size, float32; by itself 64 MiB each. */
static int list_uniform(const bench_shape *shape, bench_tensors *tensors)
{
    uint64_t nbytes = shape->nbytes ? shape->nbytes : 2 * GIB;
    uint64_t n = shape->n_tensors;

    if (!n)
        n = nbytes < 64 * MIB ? 1 : nbytes / (64 * MIB);
    if (nbytes / n < 4)
        return trouble("%" PRIu64 " bytes are too few for %" PRIu64 " tensors", nbytes, n);
    if (reserve(tensors, n) != 0)
        return EXIT_TROUBLE;
    for (uint64_t i = 0; i < n; i++) {
        bench_tensor *tensor = add(tensors, BERTH_FLOAT32, (int64_t)(nbytes / n / 4), 0);
        snprintf(tensor->name, sizeof tensor->name, "tensor.%" PRIu64, i);
    }
    return 0;
}

static int list_one(const bench_shape *shape, bench_tensors *tensors)
{
    bench_shape one = {.nbytes = shape->nbytes, .n_tensors = 1};

    if (shape->n_tensors > 1)
        return trouble("--shape one has one tensor");
    return list_uniform(&one, tensors);
}

/* Tensors of 1 to 4 KiB; by itself 100,000. */
static int list_small(const bench_shape *shape, bench_tensors *tensors)
{
    uint64_t n = shape->n_tensors ? shape->n_tensors : 100000;
    uint32_t random = 1;

    if (shape->nbytes && !shape->n_tensors)
        n = shape->nbytes < 2560 ? 1 : shape->nbytes / 2560;
    if (shape->nbytes && shape->n_tensors)
        return trouble("--shape small takes --size or --tensors, not both");
    if (reserve(tensors, n) != 0)
        return EXIT_TROUBLE;
    for (uint64_t i = 0; i < n; i++) {
        random = random * UINT32_C(1664525) + UINT32_C(1013904223);
        bench_tensor *tensor = add(tensors, BERTH_FLOAT32, 256 + (random >> 16) % 769, 0);
        snprintf(tensor->name, sizeof tensor->name, "tensor.%" PRIu64, i);
    }
    return 0;
}

/* One layer of the model: name, rows, columns (0: a vector). */
static const struct layer_row {
    const char *name;
    int64_t rows, columns;
} layer_rows[] = {
    {"self_attn.q_proj", 2048, 2048},      {"self_attn.k_proj", 256, 2048},
    {"self_attn.v_proj", 256, 2048},       {"self_attn.o_proj", 2048, 2048},
    {"mlp.gate_proj", 5632, 2048},         {"mlp.up_proj", 5632, 2048},
    {"mlp.down_proj", 2048, 5632},         {"input_layernorm", 2048, 0},
    {"post_attention_layernorm", 2048, 0},
};

enum { LAYERS = 22, ROWS_A_LAYER = sizeof layer_rows / sizeof layer_rows[0] };
static const uint64_t LLAMA_NBYTES = UINT64_C(2200096768);

/* Rows in proportion to the size that is wanted, never none. */
static int64_t scaled(const bench_shape *shape, int64_t rows)
{
    double part = shape->nbytes ? (double)shape->nbytes / (double)LLAMA_NBYTES : 1;
    int64_t n = (int64_t)((double)rows * part);

    return n ? n : 1;
}

/* The tensors of a 1.1 billion parameter Llama in bfloat16; another size has other row counts. */
static int list_llama(const bench_shape *shape, bench_tensors *tensors)
{
    if (shape->n_tensors)
        return trouble("--shape llama has the tensors of that model: --tensors does not apply");
    if (reserve(tensors, LAYERS * ROWS_A_LAYER + 3) != 0)
        return EXIT_TROUBLE;
    strcpy(add(tensors, BERTH_BFLOAT16, scaled(shape, 32000), 2048)->name,
           "model.embed_tokens.weight");
    for (int layer = 0; layer < LAYERS; layer++)
        for (int i = 0; i < ROWS_A_LAYER; i++) {
            const struct layer_row *row = &layer_rows[i];
            bench_tensor *tensor =
                add(tensors, BERTH_BFLOAT16, scaled(shape, row->rows), row->columns);
            snprintf(tensor->name, sizeof tensor->name, "model.layers.%d.%s.weight", layer,
                     row->name);
        }
    strcpy(add(tensors, BERTH_BFLOAT16, scaled(shape, 2048), 0)->name, "model.norm.weight");
    strcpy(add(tensors, BERTH_BFLOAT16, scaled(shape, 32000), 2048)->name, "lm_head.weight");
    return 0;
}

static const struct shape_row {
    const char *name;
    int (*list)(const bench_shape *shape, bench_tensors *tensors);
} shape_rows[] = {
    {"uniform", list_uniform}, {"llama", list_llama}, {"small", list_small}, {"one", list_one}};

int bench_tensors_list(const bench_shape *shape, bench_tensors *tensors)
{
    *tensors = (bench_tensors){0};
    for (size_t i = 0; i < sizeof shape_rows / sizeof shape_rows[0]; i++)
        if (!strcmp(shape->name, shape_rows[i].name))
            return shape_rows[i].list(shape, tensors);
    return trouble("there is no shape '%s'; there are uniform, llama, small and one", shape->name);
}

/* Fast, and without a pattern that compression would find (xorshift64). */
static void fill(void *data, size_t nbytes, uint64_t *random)
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

static const uint64_t FIRST_RANDOM = UINT64_C(88172645463325252);

static int fill_host(bench_tensors *tensors)
{
    enum { AT_ONCE = 64 << 20 };
    uint64_t random = FIRST_RANDOM, available = available_nbytes();
    char needed[32], there[32];

    if (available && tensors->nbytes > available)
        return trouble("%s of tensors do not fit the memory (%s are available); --size sets less",
                       human_nbytes(tensors->nbytes, needed), human_nbytes(available, there));
    for (size_t i = 0; i < tensors->n; i++) {
        bench_tensor *tensor = &tensors->items[i];
        /* 64: as PyTorch aligns; large ones then lie as its do, in the middle of a page. */
        if (posix_memalign(&tensor->data, 64, tensor->nbytes) != 0)
            return trouble("out of memory (%zu bytes)", tensor->nbytes);
        for (size_t at = 0; at < tensor->nbytes; at += AT_ONCE) {
            size_t left = tensor->nbytes - at;
            fill((char *)tensor->data + at, left < AT_ONCE ? left : AT_ONCE, &random);
            if (signal_code(0))
                return trouble("cancelled");
        }
    }
    return 0;
}

/* Places them one after the other, as far apart as PyTorch's allocator for CUDA has them; bytes. */
static uint64_t place_on_device(bench_tensors *tensors)
{
    enum { APART = 512 };
    uint64_t at = 0;

    for (size_t i = 0; i < tensors->n; i++) {
        tensors->items[i].address = (uintptr_t)at; /* counted from the first, as yet */
        at += (tensors->items[i].nbytes + APART - 1) / APART * APART;
    }
    return at;
}

/* Fills all of the memory from one block of the host's, gaps too. */
static int fill_memory(const bench_tensors *tensors, uint64_t nbytes)
{
    enum { AT_ONCE = 16 << 20 };
    uint64_t random = FIRST_RANDOM;
    void *block = malloc(AT_ONCE);
    berth_error error;
    int code = block ? 0 : trouble("out of memory");

    for (uint64_t at = 0; at < nbytes && code == 0; at += AT_ONCE) {
        size_t n = nbytes - at < AT_ONCE ? (size_t)(nbytes - at) : AT_ONCE;
        fill(block, n, &random);
        if (berth_device_memory_write(tensors->device, tensors->memory + (uintptr_t)at, block, n,
                                      &error) < 0)
            code = fail(&error);
        else if (signal_code(0))
            code = trouble("cancelled");
    }
    free(block);
    return code;
}

static int fill_device(bench_tensors *tensors)
{
    uint64_t nbytes = place_on_device(tensors);
    berth_error error;

    if (berth_device_memory_new(tensors->device, (size_t)nbytes, &tensors->memory, &error) < 0)
        return fail(&error);
    for (size_t i = 0; i < tensors->n; i++)
        tensors->items[i].address += tensors->memory;
    return fill_memory(tensors, nbytes);
}

int bench_tensors_fill(bench_tensors *tensors, const char *device)
{
    tensors->device = device;
    return device ? fill_device(tensors) : fill_host(tensors);
}

void bench_tensors_free(bench_tensors *tensors)
{
    for (size_t i = 0; i < tensors->n; i++)
        free(tensors->items[i].data);
    if (tensors->device)
        berth_device_memory_free(tensors->device, tensors->memory);
    free(tensors->items);
    *tensors = (bench_tensors){0};
}

berth_value *bench_tensors_value(const bench_tensors *tensors, berth_tree *tree)
{
    berth_value *state = berth_make_ordered_dict(tree);

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

int bench_tensors_save(const bench_tensors *tensors, const char *path, const common *options)
{
    berth_stats unused;
    berth_error error;
    berth_params call;
    progress bar;

    berth_tree *tree = berth_tree_new(&error);
    if (!tree)
        return fail(&error);
    berth_value *value = bench_tensors_value(tensors, tree);
    progress_begin(&bar, "making the file", options, &call, &unused);
    int code = berth_save(path, value, &call, &error);
    progress_end(&bar);
    berth_tree_free(tree);
    return code < 0 ? fail(&error) : 0;
}

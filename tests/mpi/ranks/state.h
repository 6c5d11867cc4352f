/* SPDX-License-Identifier: BSD-3-Clause */
/* The tensors that the ranks of ranks.c save and load, and who has which part. */
#ifndef TESTS_MPI_RANKS_STATE_H
#define TESTS_MPI_RANKS_STATE_H

#include <stdint.h>
#include <stdlib.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

typedef enum deal { ROWS, COLUMNS, NARROW_COLUMNS, SHARED, LAST, FIRST, NOBODY } deal;

static const struct {
    const char *name;
    deal dealing;
    int32_t rank;
    int64_t shape[2];
} TENSORS[] = {
    {"rows", ROWS, 2, {1003, 257}}, /* uneven, and no whole blocks */
    {"few", ROWS, 2, {2, 5}},       /* more ranks than rows: empty parts */
    {"wide", COLUMNS, 2, {2, (1 << 20) + 4}},
    {"narrow", NARROW_COLUMNS, 2, {4001, 1003}}, /* short runs, in two windows */
    {"thin", NARROW_COLUMNS, 2, {500, 3}},       /* more ranks than columns */
    {"usual", NARROW_COLUMNS, 2, {256, 4096}},   /* rows as long as those of a model */
    {"same", SHARED, 1, {900000}},               /* 3.4 MiB: four shares */
    {"small", SHARED, 1, {17}},
    {"scalar", SHARED, 0, {0}},
    {"last", LAST, 2, {33, 3}},
    {"first", FIRST, 1, {50}}, /* rank 0's value has its bytes */
    {"empty", NOBODY, 2, {0, 4}},
};
enum { N_TENSORS = COUNT(TENSORS) };

typedef struct box {
    int64_t starts[2];
    int64_t lengths[2];
} box;

static int64_t numel(int32_t rank, const int64_t *lengths)
{
    int64_t n = 1;

    for (int32_t d = 0; d < rank; d++)
        n *= lengths[d];
    return n;
}

static int32_t element(size_t tensor, int64_t row, int64_t column)
{
    return (int32_t)(((uint64_t)(row * 1048583 + column) * 2654435761U) >> 7) + (int32_t)tensor;
}

/* The elements of a part, in row-major order. */
static int32_t *make_part(size_t tensor, const box *part)
{
    int64_t rows = TENSORS[tensor].rank == 2 ? part->lengths[0] : 1;
    int64_t columns = TENSORS[tensor].rank == 0 ? 1 : part->lengths[TENSORS[tensor].rank - 1];
    int64_t first_row = TENSORS[tensor].rank == 2 ? part->starts[0] : 0;
    int64_t first_column = TENSORS[tensor].rank == 0 ? 0 : part->starts[TENSORS[tensor].rank - 1];
    int32_t *made = malloc((size_t)(rows * columns) * sizeof *made + 1);

    for (int64_t row = 0; made && row < rows; row++)
        for (int64_t column = 0; column < columns; column++)
            made[row * columns + column] = element(tensor, first_row + row, first_column + column);
    return made;
}

static box whole_of(size_t tensor)
{
    return (box){{0, 0}, {TENSORS[tensor].shape[0], TENSORS[tensor].shape[1]}};
}

/* Part number i of n, along the dimension that is dealt out. */
static box part_of(size_t tensor, deal dealing, int i, int n)
{
    box part = whole_of(tensor);
    int d = dealing != ROWS;

    if (dealing == ROWS || dealing == COLUMNS || dealing == NARROW_COLUMNS) {
        part.starts[d] = TENSORS[tensor].shape[d] * i / n;
        part.lengths[d] = TENSORS[tensor].shape[d] * (i + 1) / n - part.starts[d];
    }
    return part;
}

/* Part number i of n in both dimensions: a third of the rows, and another third of the columns. */
static box block_of(size_t tensor, int i, int n)
{
    const box rows = part_of(tensor, ROWS, i, n), columns = part_of(tensor, COLUMNS, n - 1 - i, n);

    return (box){{rows.starts[0], columns.starts[1]}, {rows.lengths[0], columns.lengths[1]}};
}

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Rows: takes batches of rows of an embedding table through a cache that is much smaller than the
 * table. While one batch is in use, the next one is being read.
 *
 * usage: rows FILE    (the file is made, and removed)
 */
#include <berth.h>
#include <berth/rows.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_ROWS = 20000, N_COLUMNS = 64, N_BATCHES = 10, BATCH = 100 };

static void die(const berth_error *error)
{
    fprintf(stderr, "%s\n", error->message);
    exit(1);
}

/* A table whose row i has the number i in each column. */
static void make_table(const char *path)
{
    static float elements[N_ROWS][N_COLUMNS];
    static const int64_t shape[] = {N_ROWS, N_COLUMNS};
    berth_tensor tensor = {.dtype = BERTH_FLOAT32, .rank = 2, .shape = shape, .data = elements};
    berth_error error;
    berth_tree *tree = berth_tree_new(&error);

    for (int i = 0; i < N_ROWS; i++)
        for (int j = 0; j < N_COLUMNS; j++)
            elements[i][j] = (float)i;
    if (!tree)
        die(&error);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_dict_set(root, "embedding", berth_make_tensor(tree, &tensor));
    if (berth_save(path, root, NULL, &error) < 0)
        die(&error);
    berth_tree_free(tree);
}

static berth_ticket request(berth_rows *rows, size_t table, int batch)
{
    int64_t ids[BATCH];
    berth_error error;
    berth_ticket ticket;

    for (int i = 0; i < BATCH; i++)
        ids[i] = (int64_t)(batch * 7919 + i * 104729) % N_ROWS;
    if (berth_rows_prefetch(rows, table, ids, BATCH, &ticket, &error) < 0)
        die(&error);
    return ticket;
}

static double use(berth_rows *rows, berth_ticket ticket)
{
    const void *pointers[BATCH];
    berth_error error;
    double sum = 0;

    if (berth_rows_wait(rows, ticket, pointers, &error) < 0)
        die(&error);
    for (int i = 0; i < BATCH; i++)
        sum += (double)((const float *)pointers[i])[N_COLUMNS - 1];
    berth_rows_release(rows, ticket, NULL); /* the pointers end here */
    return sum;
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "rows.pt";
    const berth_rows_limits limits = {.cache_nbytes = 256 * 1024}; /* the table has 5 MB */
    berth_checkpoint *model;
    berth_rows *rows;
    berth_error error;
    size_t table;
    double sum = 0, expected = 0;

    make_table(path);
    if (berth_open(path, NULL, &model, &error) < 0 ||
        berth_rows_new(&limits, NULL, &rows, &error) < 0 ||
        berth_rows_add(rows, model, berth_find_tensor(model, "embedding", NULL), &table, &error) <
            0)
        die(&error);
    berth_ticket next = request(rows, table, 0);
    for (int batch = 0; batch < N_BATCHES; batch++) {
        berth_ticket ticket = next;
        next = batch + 1 < N_BATCHES ? request(rows, table, batch + 1) : 0;
        sum += use(rows, ticket);
        for (int i = 0; i < BATCH; i++)
            expected += (double)((batch * 7919 + i * 104729) % N_ROWS);
    }
    berth_rows_free(rows);
    berth_close(model);
    remove(path);
    printf("sum of %d rows: %.0f\n", N_BATCHES * BATCH, sum);
    return sum == expected ? 0 : 1;
}

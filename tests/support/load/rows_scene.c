/* SPDX-License-Identifier: BSD-3-Clause */
#include <berth/config.h>

#include "tests/support/load/rows_scene.h"
#include "tests/support/support.h"

float table_element(int64_t row, int64_t column)
{
    return (float)row + (float)column / 256;
}

static int source_read(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    struct source *source = context;

    pthread_mutex_lock(&source->lock);
    source->n_reads++;
    source->read_nbytes += nbytes;
    while (source->is_shut)
        pthread_cond_wait(&source->changed, &source->lock);
    bool fails = source->is_broken;
    if (++source->n_at_once > source->most_at_once)
        source->most_at_once = source->n_at_once;
    pthread_mutex_unlock(&source->lock);
    if (source->is_slow)
        usleep(1000);
    if (!fails)
        memcpy(buffer, source->bytes + offset, nbytes);
    pthread_mutex_lock(&source->lock);
    source->n_at_once--;
    pthread_mutex_unlock(&source->lock);
    return fails ? EIO : 0;
}

void set_shut(struct source *source, bool is_shut)
{
    pthread_mutex_lock(&source->lock);
    source->is_shut = is_shut;
    pthread_cond_broadcast(&source->changed);
    pthread_mutex_unlock(&source->lock);
}

void make_source(struct source *source, int64_t n_rows, int64_t n_columns, const char *options)
{
    const int64_t shape[] = {n_rows, n_columns};
    float *elements = malloc((size_t)(n_rows * n_columns) * sizeof *elements + 1);
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    void *saved;

    for (int64_t i = 0; i < n_rows * n_columns; i++)
        elements[i] = table_element(i / n_columns, i % n_columns);
    berth_dict_set(root, "other", berth_make_str(tree, "x", 1));
    berth_dict_set(root, "table", test_tensor(tree, BERTH_FLOAT32, elements, 2, shape));
    patch(options);
    assert_ok(berth_save_to(TO_MEMORY(&saved, &source->nbytes), OF_VALUE(root), NULL, &error));
    cr_assert_eq(berth_config_unpatch(NULL), 0);
    source->bytes = malloc(source->nbytes);
    memcpy(source->bytes, saved, source->nbytes);
    berth_free(saved);
    berth_tree_free(tree);
    free(elements);
    pthread_mutex_init(&source->lock, NULL);
    pthread_cond_init(&source->changed, NULL);
}

berth_checkpoint *open_source(struct source *source)
{
    const berth_source from = {
        .nbytes = source->nbytes, .name = "counted", .read = source_read, .context = source};
    berth_checkpoint *opened;

    assert_ok(berth_open_source(&from, NULL, &opened, &error));
    return opened;
}

/* A cache of one set of `ways` lines and `n_slots` slots, for rows of 16 columns: 64 bytes. */
static berth_rows_limits limits_of(unsigned ways, unsigned n_slots)
{
    return (berth_rows_limits){.cache_nbytes = ways * (64 + BTH_ROWS_LINE_NOTES),
                               .scratch_nbytes = n_slots * (64 + BTH_ROWS_SCRATCH_NOTES),
                               .ways = ways};
}

struct scene *scene;

void begin_rows_with(const berth_rows_limits *limits, int64_t n_rows, int64_t n_columns,
                     const char *saved_with, const char *options)
{
    end_rows();
    scene = calloc(1, sizeof *scene);

    scene->n_columns = n_columns;
    make_source(&scene->source, n_rows, n_columns, saved_with);
    scene->checkpoint = open_source(&scene->source);
    patch(options);
    assert_ok(berth_rows_new(limits, NULL, &scene->rows, &error));
    cr_assert_eq(berth_config_unpatch(NULL), 0);
    assert_ok(berth_rows_add(scene->rows, scene->checkpoint,
                             berth_find_tensor(scene->checkpoint, "table", NULL), &scene->table,
                             &error));
    scene->source.n_reads = 0;
    scene->source.read_nbytes = 0;
}

void begin_rows(unsigned ways, unsigned n_slots, const char *options)
{
    const berth_rows_limits limits = limits_of(ways, n_slots);
    char all[100];

    /* A scratch of nothing but slots. */
    (void)snprintf(all, sizeof all, "%s io.chunk_nbytes=1", options);
    begin_rows_with(&limits, 1000, 16, "", all);
}

void end_rows(void)
{
    if (!scene)
        return;
    berth_rows_free(scene->rows);
    berth_close(scene->checkpoint);
    free(scene->source.bytes);
    free(scene);
    scene = NULL;
}

berth_ticket prefetch_rows(struct scene *of, const int64_t *ids, size_t n)
{
    berth_ticket ticket;

    assert_ok(berth_rows_prefetch(of->rows, of->table, ids, n, &ticket, &error));
    cr_assert_neq(ticket, 0);
    return ticket;
}

void expect_rows(struct scene *of, berth_ticket ticket, const int64_t *ids, size_t n)
{
    const void **pointers = malloc((n + 1) * sizeof *pointers);

    assert_ok(berth_rows_wait(of->rows, ticket, pointers, &error));
    for (size_t i = 0; i < n; i++) {
        const float *row = pointers[i];
        cr_assert_eq((uintptr_t)row % 4, 0);
        for (int64_t k = 0; k < of->n_columns; k++)
            cr_assert_eq(row[k], table_element(ids[i], k), "id %d, column %d: %g", (int)ids[i],
                         (int)k, (double)row[k]);
    }
    free(pointers);
}

void release_rows(struct scene *of, berth_ticket ticket)
{
    assert_ok(berth_rows_release(of->rows, ticket, &error));
}

void use_rows(struct scene *of, const int64_t *ids, size_t n)
{
    berth_ticket ticket = prefetch_rows(of, ids, n);

    expect_rows(of, ticket, ids, n);
    release_rows(of, ticket);
}

berth_rows_stats rows_stats_of(struct scene *of)
{
    berth_rows_stats stats;

    cr_assert_eq(berth_rows_get_stats(of->rows, &stats, NULL), 0);
    return stats;
}

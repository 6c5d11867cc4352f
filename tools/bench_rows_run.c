/* SPDX-License-Identifier: BSD-3-Clause */
/* Ways to take rows of a table: berth's cache, one read a row, a map. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/bench_rows.h"

static uint64_t sum_of(const uint8_t *row, size_t nbytes)
{
    uint64_t sum = 0, word;

    for (; nbytes >= sizeof word; row += sizeof word, nbytes -= sizeof word) {
        memcpy(&word, row, sizeof word);
        sum += word;
    }
    while (nbytes-- > 0)
        sum += *row++;
    return sum;
}

/* Adds what has passed since the last call to a phase. */
static void lap(rows_round *round, int phase, double *since)
{
    double time = seconds_now();

    round->phases[phase] += time - *since;
    *since = time;
}

static int tell_progress(const rows_subject *subject, const berth_params *call, size_t batch)
{
    uint64_t batch_nbytes = (uint64_t)subject->n_ids * subject->row_nbytes;

    return call->progress(call->progress_context, (batch + 1) * batch_nbytes,
                          subject->n_batches * batch_nbytes)
               ? EXIT_TROUBLE
               : 0;
}

/* ---- the cache ---- */

typedef struct caching {
    const rows_subject *subject;
    berth_rows *rows;
    const void **pointers;
    size_t table;
    berth_ticket ticket, next; /* of the batch in use, and of the one after it */
} caching;

static int ask(caching *c, size_t batch)
{
    const rows_subject *subject = c->subject;
    berth_error error;

    c->next = 0;
    if (batch == subject->n_batches)
        return 0;
    if (berth_rows_prefetch(c->rows, c->table, subject->ids + batch * subject->n_ids,
                            subject->n_ids, &c->next, &error) < 0)
        return fail(&error);
    return 0;
}

/* The next batch is asked for before this one is used. */
static int take_batch(caching *c, size_t batch, rows_round *round, double *since)
{
    const rows_subject *subject = c->subject;
    berth_error error;

    c->ticket = c->next;
    int code = ask(c, batch + 1);
    lap(round, ROWS_ASK, since);
    if (code != 0)
        return code;
    if (berth_rows_lookup(c->rows, c->ticket, c->pointers, &error) < 0)
        return fail(&error);
    lap(round, ROWS_WAIT, since);
    for (size_t i = 0; i < subject->n_ids; i++)
        round->sum += sum_of(c->pointers[i], subject->row_nbytes);
    berth_rows_release(c->rows, c->ticket, NULL);
    lap(round, ROWS_USE, since);
    return 0;
}

static int through_cache(const rows_subject *subject, const berth_params *call, rows_round *round)
{
    /* An eighth as much is scratch. */
    const berth_rows_limits limits = {.cache_nbytes = subject->cache_nbytes / 9 * 8};
    caching c = {.subject = subject};
    berth_error error;
    int code = 0;

    double since = seconds_now();
    c.pointers = calloc(subject->n_ids, sizeof *c.pointers);
    if (!c.pointers)
        return trouble("out of memory");
    if (berth_rows_new(&limits, NULL, &c.rows, &error) < 0 ||
        berth_rows_add(c.rows, subject->checkpoint, subject->tensor, &c.table, &error) < 0)
        code = fail(&error);
    if (code == 0)
        code = ask(&c, 0);
    for (size_t i = 0; i < subject->n_batches && code == 0; i++) {
        code = take_batch(&c, i, round, &since);
        code = code ? code : tell_progress(subject, call, i);
    }
    if (c.rows)
        berth_rows_get_stats(c.rows, &round->stats, NULL);
    berth_rows_free(c.rows);
    free(c.pointers);
    return code;
}

/* ---- one read a row ---- */

static int read_batch(const rows_subject *subject, int fd, size_t batch, uint8_t *row,
                      rows_round *round)
{
    const int64_t *ids = subject->ids + batch * subject->n_ids;

    for (size_t i = 0; i < subject->n_ids; i++) {
        uint64_t offset = subject->offset + (uint64_t)ids[i] * subject->row_nbytes;
        ssize_t n = pread(fd, row, subject->row_nbytes, (off_t)offset);
        if (n < 0 || (size_t)n != subject->row_nbytes)
            return trouble("%s: %s", subject->path, n < 0 ? strerror(errno) : "it ends too early");
        round->sum += sum_of(row, subject->row_nbytes);
    }
    return 0;
}

static int by_pread(const rows_subject *subject, const berth_params *call, rows_round *round)
{
    int fd = open(subject->path, O_RDONLY | O_CLOEXEC), code = 0;
    uint8_t *row = malloc(subject->row_nbytes);

    double since = seconds_now();
    if (fd < 0)
        code = trouble("%s: %s", subject->path, strerror(errno));
    else if (!row)
        code = trouble("out of memory");
    for (size_t i = 0; i < subject->n_batches && code == 0; i++) {
        code = read_batch(subject, fd, i, row, round);
        code = code ? code : tell_progress(subject, call, i);
    }
    lap(round, ROWS_USE, &since);
    free(row);
    if (fd >= 0)
        close(fd);
    return code;
}

/* ---- a map ---- */

static int take_mapped(const rows_subject *subject, const berth_params *call, int advice,
                       rows_round *round)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), start = subject->offset / page * page;
    size_t nbytes =
        (size_t)(subject->offset - start + (uint64_t)subject->n_rows * subject->row_nbytes);
    int fd = open(subject->path, O_RDONLY | O_CLOEXEC), code = 0;

    double since = seconds_now();
    if (fd < 0)
        return trouble("%s: %s", subject->path, strerror(errno));
    void *map = mmap(NULL, nbytes, PROT_READ, MAP_PRIVATE, fd, (off_t)start);
    close(fd);
    if (map == MAP_FAILED)
        return trouble("%s: %s", subject->path, strerror(errno));
    (void)madvise(map, nbytes, advice);
    const uint8_t *rows = (const uint8_t *)map + (subject->offset - start);
    for (size_t batch = 0; batch < subject->n_batches && code == 0; batch++) {
        const int64_t *ids = subject->ids + batch * subject->n_ids;
        for (size_t i = 0; i < subject->n_ids; i++)
            round->sum +=
                sum_of(rows + (uint64_t)ids[i] * subject->row_nbytes, subject->row_nbytes);
        code = tell_progress(subject, call, batch);
    }
    lap(round, ROWS_USE, &since);
    munmap(map, nbytes);
    return code;
}

static int by_map(const rows_subject *subject, const berth_params *call, rows_round *round)
{
    return take_mapped(subject, call, MADV_NORMAL, round);
}

static int by_random_map(const rows_subject *subject, const berth_params *call, rows_round *round)
{
    return take_mapped(subject, call, MADV_RANDOM, round);
}

static const struct way_row {
    const char *name;
    rows_way way;
} way_rows[] = {
    {"cache", through_cache}, {"pread", by_pread}, {"map", by_map}, {"random", by_random_map}};

rows_way find_rows_way(const char *name)
{
    for (size_t i = 0; i < sizeof way_rows / sizeof way_rows[0]; i++)
        if (!strcmp(name, way_rows[i].name))
            return way_rows[i].way;
    return NULL;
}

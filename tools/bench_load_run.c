/* SPDX-License-Identifier: BSD-3-Clause */
/* One load, by phases. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/bench_load.h"

typedef struct load_piece {
    const berth_storage *storage;
    const uint8_t *data;
    uint64_t nbytes;
} load_piece;

int load_look_at(load_subject *subject)
{
    berth_checkpoint *checkpoint;
    berth_archive *archive;
    berth_record record;
    berth_error error;
    berth_info info;

    if (berth_open(subject->path, NULL, &checkpoint, &error) < 0)
        return fail(&error);
    int code = berth_checkpoint_info(checkpoint, &info, &error) < 0 ? fail(&error) : 0;
    berth_close(checkpoint);
    if (code != 0)
        return code;
    subject->nbytes = info.storages_nbytes;
    subject->file_nbytes = info.nbytes;
    subject->n_tensors = info.n_tensors;
    subject->n_storages = info.n_storages;
    if (berth_archive_open(subject->path, NULL, &archive, NULL) == 0) {
        if (berth_archive_find(archive, "data.pkl", &record, NULL) == 0)
            subject->pickle_nbytes = record.nbytes;
        berth_archive_close(archive);
    }
    return 0;
}

/* ---- phases ---- */

static int list_pieces(load_round *round)
{
    size_t n = berth_tensor_count(round->checkpoint);
    berth_named_tensor named;
    berth_error error;

    round->pieces = calloc(n + 1, sizeof *round->pieces);
    if (!round->pieces)
        return trouble("out of memory (%zu tensors)", n);
    for (size_t i = 0; i < n; i++) {
        if (berth_tensor_at(round->checkpoint, i, &named, &error) < 0)
            return fail(&error);
        if (!named.tensor || !named.tensor->storage)
            continue; /* meta: it has no bytes */
        load_piece *piece = &round->pieces[round->n_pieces++];
        piece->storage = named.tensor->storage;
        piece->nbytes = berth_storage_nbytes(named.tensor->storage);
    }
    return 0;
}

/* Asks for the memory of all storages. */
static int bring_pieces(load_round *round, const berth_call *call)
{
    uint64_t total = 0, done = 0;
    berth_error error;

    for (size_t i = 0; i < round->n_pieces; i++)
        total += round->pieces[i].nbytes;
    for (size_t i = 0; i < round->n_pieces; i++) {
        load_piece *piece = &round->pieces[i];
        piece->data = berth_storage_data(round->checkpoint, piece->storage, &error);
        if (!piece->data)
            return fail(&error);
        done += piece->nbytes;
        if (call->progress(call->progress_context, done, total))
            return EXIT_TROUBLE;
    }
    return 0;
}

static int compare_pieces(const void *left, const void *right)
{
    const load_piece *a = left, *b = right;

    return (a->data > b->data) - (a->data < b->data);
}

/* Looks at every byte; eight sums, so that memory is what it waits for. */
static uint64_t sum_of(const uint8_t *bytes, size_t nbytes)
{
    uint64_t sums[8] = {0}, words[8];

    for (; nbytes >= sizeof words; bytes += sizeof words, nbytes -= sizeof words) {
        memcpy(words, bytes, sizeof words);
        for (int i = 0; i < 8; i++)
            sums[i] += words[i];
    }
    for (; nbytes > 0; nbytes--)
        sums[0] += *bytes++;
    return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

/* In the order of addresses, which in a map is that of the file; each storage once. */
static int touch_pieces(load_round *round, const berth_call *call, uint64_t total)
{
    enum { AT_ONCE = 16 << 20 };
    const uint8_t *last = NULL;
    uint64_t done = 0;

    if (round->n_pieces)
        qsort(round->pieces, round->n_pieces, sizeof *round->pieces, compare_pieces);
    for (size_t i = 0; i < round->n_pieces; i++) {
        const load_piece *piece = &round->pieces[i];
        for (uint64_t at = 0; piece->data != last && at < piece->nbytes; at += AT_ONCE) {
            uint64_t left = piece->nbytes - at;
            size_t n = left < AT_ONCE ? (size_t)left : AT_ONCE;
            round->sum += sum_of(piece->data + at, n);
            done += n;
            if (call->progress(call->progress_context, done, total))
                return EXIT_TROUBLE;
        }
        last = piece->data;
    }
    return 0;
}

/* ---- all of it ---- */

static double lap(double *since)
{
    double time = seconds_now(), seconds = time - *since;

    *since = time;
    return seconds;
}

static bool is_mapped(const load_round *round)
{
    return round->method && !strcmp(round->method, "map");
}

int load_run(const load_subject *subject, const berth_call *call, bool only_open, load_round *round)
{
    berth_call own = *call;
    double since = seconds_now();
    berth_error error;

    *round = (load_round){0};
    own.stats = &round->open;
    int code = berth_open(subject->path, &own, &round->checkpoint, &error);
    round->phases[LOAD_OPEN] = lap(&since);
    round->method = round->open.method;
    round->reason = round->open.reason;
    if (code < 0)
        return fail(&error);
    code = list_pieces(round);
    round->phases[LOAD_NAMES] = lap(&since);
    if (code == 0 && (!only_open || is_mapped(round)))
        code = bring_pieces(round, call);
    round->phases[LOAD_TRANSFER] = lap(&since);
    if (code == 0 && !only_open && is_mapped(round))
        code = touch_pieces(round, call, subject->nbytes);
    round->phases[LOAD_TOUCH] = lap(&since);
    return code;
}

void load_round_end(load_round *round)
{
    free(round->pieces);
    round->pieces = NULL;
    berth_close(round->checkpoint);
    round->checkpoint = NULL;
}

static int open_memory(const void *bytes, size_t nbytes, double *seconds)
{
    berth_checkpoint *checkpoint = NULL;
    berth_error error;
    berth_config *config = berth_config_new(&error);

    if (!config || berth_config_apply(config, "load.check=none", &error) < 0) {
        berth_config_free(config);
        return fail(&error);
    }
    const berth_call call = {.config = config};
    *seconds = seconds_now();
    int code = berth_open_memory(bytes, nbytes, &call, &checkpoint, &error);
    *seconds = seconds_now() - *seconds;
    berth_close(checkpoint);
    berth_config_free(config);
    return code < 0 ? fail(&error) : 0;
}

int load_parse(const load_subject *subject, double *seconds)
{
    size_t nbytes = (size_t)subject->file_nbytes;
    int fd = open(subject->path, O_RDONLY | O_CLOEXEC);
    int code;

    if (fd < 0)
        return trouble("%s: %s", subject->path, strerror(errno));
    void *map = mmap(NULL, nbytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) {
        code = trouble("%s: %s", subject->path, strerror(errno));
    } else {
        /* Once for the pages, once for the figure. */
        code = open_memory(map, nbytes, seconds);
        code = code ? code : open_memory(map, nbytes, seconds);
        munmap(map, nbytes);
    }
    close(fd);
    return code;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Sources that lie: a callback that tells more bytes than there are, or fewer, fails now and then,
 * and gives other bytes the second time. Nothing outside what it told is asked of it, and memory
 * grows with what it gave, not with what it told (P3).
 *
 * An input is a lie of LIE_NBYTES bytes, and a file.
 */
#include <berth/config.h>

#include "tests/support/fuzz/archive.h"

#include <errno.h>

#define LIE_NBYTES 8
#define MAX_GIVEN_NBYTES ((size_t)16 << 20)
#define MAX_STORAGE_NBYTES 65536

struct liar {
    const uint8_t *bytes;
    size_t nbytes;
    uint64_t told_nbytes;
    unsigned n_reads;
    unsigned fails_at;   /* this read fails; 0: none */
    unsigned changes_at; /* from this read on it gives other bytes; 0: none */
    bool is_filled;      /* what there is not is zeros; else an error */
    size_t given_nbytes;
};

static int give(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    struct liar *liar = context;
    uint8_t *out = buffer;

    MUST(offset <= liar->told_nbytes && nbytes <= liar->told_nbytes - offset,
         "%zu bytes at %llu of %llu are asked for", nbytes, (unsigned long long)offset,
         (unsigned long long)liar->told_nbytes);
    liar->n_reads++;
    if (liar->n_reads == liar->fails_at || nbytes > MAX_GIVEN_NBYTES - liar->given_nbytes)
        return EIO;
    if (!liar->is_filled && (offset > liar->nbytes || nbytes > liar->nbytes - offset))
        return ENODATA;
    size_t there = offset < liar->nbytes ? liar->nbytes - (size_t)offset : 0;
    there = there < nbytes ? there : nbytes;
    memset(buffer, 0, nbytes);
    if (there > 0)
        memcpy(buffer, liar->bytes + offset, there);
    if (liar->changes_at && liar->n_reads >= liar->changes_at && nbytes > 0)
        out[(liar->n_reads * 7919u) % nbytes] ^= 0x55;
    liar->given_nbytes += nbytes;
    return 0;
}

static struct liar liar_of(const uint8_t *bytes, size_t nbytes)
{
    struct liar liar = {.bytes = bytes + LIE_NBYTES, .nbytes = nbytes - LIE_NBYTES};
    uint64_t number = u16_at(bytes + 1);

    switch (bytes[0] % 8) {
    case 0:
        liar.told_nbytes = liar.nbytes + number;
        break;
    case 1:
        liar.told_nbytes = liar.nbytes - (number < liar.nbytes ? number : liar.nbytes);
        break;
    case 2:
        liar.told_nbytes = UINT64_C(1) << number % 64;
        break;
    case 3:
        liar.told_nbytes = UINT64_MAX - number;
        break;
    case 4:
        liar.told_nbytes = (uint64_t)INT64_MAX - number;
        break;
    default:
        liar.told_nbytes = liar.nbytes;
    }
    liar.fails_at = bytes[3] < 32 ? bytes[3] : 0;
    liar.changes_at = bytes[4] < 32 ? bytes[4] : 0;
    liar.is_filled = bytes[5] % 2;
    return liar;
}

/* A head of its usual length is a megabyte that is cleared each time, and nearly all of the work.
 */
#define HEAD "load.head_nbytes=100000"

static const char *options_of(const uint8_t *bytes)
{
    static const char *const options[] = {
        "load.check=directory " HEAD,
        "load.check=none load.unknown_globals=inert " HEAD,
        "load.check=headers load.calculate_storage_offsets=off " HEAD,
        "load.check=data load.unknown_globals=inert " HEAD,
        "load.check=headers load.head_nbytes=1",
        "load.check=none load.calculate_storage_offsets=off load.head_nbytes=64",
        "load.check=data load.head_nbytes=1000",
        "load.check=directory load.mmap=off load.head_nbytes=1",
    };

    return bytes[6] == UINT8_MAX ? "load.check=directory" : options[bytes[6] % 8];
}

/* All that is asked of a checkpoint is given, or refused with a sentence. */
static void ask(berth_checkpoint *checkpoint)
{
    static uint8_t element[16];
    berth_named_tensor named;
    berth_info info;
    berth_error error;

    (void)berth_get_info(checkpoint, &info, &error);
    for (size_t i = 0; i < berth_tensor_count(checkpoint); i++) {
        if (berth_tensor_at(checkpoint, i, &named, &error) < 0 || !named.tensor->storage ||
            berth_storage_get_info(named.tensor->storage)->nbytes > MAX_STORAGE_NBYTES)
            continue;
        if (!is_subbyte(named.tensor) && berth_tensor_numel(named.tensor) > 0) {
            int result = berth_tensor_read(checkpoint, named.tensor, 0, 1, element, &error);
            MUST((result < 0) == (error.message[0] != 0) && is_clean_text(error.message), "%s",
                 error.message);
        }
        const void *data = berth_tensor_data(checkpoint, named.tensor, &error);
        MUST((data == NULL) == (error.message[0] != 0) && is_clean_text(error.message), "%s",
             error.message);
    }
}

static void check_checkpoint(struct liar liar, const berth_params *call)
{
    berth_error error;
    berth_checkpoint *checkpoint;
    const berth_source source = {
        .nbytes = liar.told_nbytes, .name = "liar", .read = give, .context = &liar};

    size_t before_nbytes = live_nbytes;
    most_nbytes = live_nbytes;
    int result = berth_open_source(&source, call, &checkpoint, &error);
    MUST((result < 0) == (checkpoint == NULL) && is_clean_text(error.message) &&
             (result < 0) == (error.message[0] != 0),
         "%d: %s", result, error.message);
    MUST(most_nbytes - before_nbytes <= MEMORY_PER_BYTE * liar.given_nbytes + MEMORY_FIXED * 16,
         "P3: %zu bytes of memory after %zu were given", most_nbytes - before_nbytes,
         liar.given_nbytes);
    if (checkpoint)
        ask(checkpoint);
    berth_close(checkpoint);
}

static void check_records(struct liar liar, const berth_params *call)
{
    static uint8_t piece[256];
    berth_archive *archive;
    berth_record record;
    berth_error error;
    const berth_source source = {
        .nbytes = liar.told_nbytes, .name = "liar", .read = give, .context = &liar};

    int result = berth_archive_open(&source, call, &archive, NULL, &error);
    MUST((result < 0) == (archive == NULL) && is_clean_text(error.message), "%s", error.message);
    for (size_t i = 0; berth_archive_at(archive, i, &record) == 0; i++) {
        MUST(record.offset <= liar.told_nbytes, "%s", record.name);
        size_t n = record.nbytes < sizeof piece ? (size_t)record.nbytes : sizeof piece;
        result = berth_archive_read(archive, &record, piece, n, record.nbytes - n, &error);
        MUST(result <= 0 && is_clean_text(error.message), "%s", error.message);
    }
    berth_archive_close(archive);
}

/* Who does not lie is read as memory is. */
static void check_honest(struct liar liar, const char *options)
{
    berth_checkpoint *checkpoint, *pieces;
    berth_error error, other_error;
    struct span span = {liar.bytes, liar.nbytes};

    (void)open_span_as(liar.bytes, liar.nbytes, NULL, options, &checkpoint, &error);
    (void)open_span_as(liar.bytes, liar.nbytes, &span, options, &pieces, &other_error);
    if (checkpoint && pieces) {
        check_same_reading(checkpoint, pieces);
        check_as_plain(pieces, liar.bytes, liar.nbytes, options);
    }
    berth_close(checkpoint);
    berth_close(pieces);
}

void check_input(const uint8_t *bytes, size_t nbytes)
{
    if (nbytes < LIE_NBYTES)
        return;
    struct liar liar = liar_of(bytes, nbytes);
    berth_error error;
    count_memory_from_now();
    size_t before_nbytes = live_nbytes;
    double since = processor_seconds();
    berth_config *config = berth_config_new(&error);
    const berth_params call = {.config = config};
    MUST(config && berth_config_apply(config, "io.threads=1", &error) == 0 &&
             berth_config_apply(config, options_of(bytes), &error) == 0,
         "%s", error.message);
    if (IS_CHECKED(bytes[7] % 2, 0))
        check_checkpoint(liar, &call);
    if (IS_CHECKED(bytes[7] % 2, 1))
        check_records(liar, &call);
    berth_config_free(config);
    if (liar.told_nbytes == liar.nbytes && !liar.fails_at && !liar.changes_at)
        check_honest(liar, options_of(bytes));
    check_time(since, nbytes);
    MUST(live_nbytes == before_nbytes, "%zu bytes leak", live_nbytes - before_nbytes);
}

size_t mutate(uint8_t *bytes, size_t nbytes, size_t most, unsigned number)
{
    nbytes = start_over(bytes, nbytes, most);
    if (nbytes <= LIE_NBYTES || random_below(4) == 0) {
        for (size_t i = 0; i < LIE_NBYTES && i < nbytes; i++)
            if (random_below(3) == 0)
                bytes[i] = (uint8_t)random_below(random_below(2) ? 256 : 12);
        return nbytes;
    }
    return LIE_NBYTES +
           mutate_archive(bytes + LIE_NBYTES, nbytes - LIE_NBYTES, most - LIE_NBYTES, number);
}

/* ---- seeds ---- */

/* A file of PyTorch's with each of some lies before it. */
static void seed_lies(const char *path, const char *name)
{
    static const uint8_t lies[][LIE_NBYTES] = {
        {7, 0, 0, 0, 0, 0, 0, 0}, {7, 0, 0, 3, 0, 0, 4, 0}, {7, 0, 0, 0, 2, 0, 2, 0},
        {0, 0, 1, 0, 0, 1, 0, 0}, {1, 9, 0, 0, 0, 0, 1, 0}, {2, 60, 0, 0, 0, 1, 5, 0},
        {3, 0, 0, 0, 0, 1, 3, 0}, {4, 0, 0, 0, 0, 0, 6, 0}, {7, 0, 0, 9, 9, 0, 7, 0}};
    static uint8_t bytes[MAX_FILE_NBYTES];
    FILE *file = fopen(path, "rb");

    MUST(file, "%s does not open", path);
    size_t n = fread(bytes + LIE_NBYTES, 1, sizeof bytes - LIE_NBYTES, file);
    fclose(file);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        char whole[64];
        memcpy(bytes, lies[i], LIE_NBYTES);
        bytes[LIE_NBYTES - 1] = i % 2;
        snprintf(whole, sizeof whole, "%s-%zu", name, i);
        seed(whole, bytes, n + LIE_NBYTES);
    }
}

void make_seeds(void)
{
    seed_lies("tests/data/torch/small.pt", "small");
    seed_lies("tests/data/torch/scalar.pt", "scalar");
    seed_lies("tests/data/torch/deflated-pickle.pt", "deflated-pickle");
    seed_lies("tests/data/old/views-1.13-stream.pth", "stream");
    seed_folder("tests/fuzz/found/source", "");
}

#ifndef BERTH_FUZZER

Test(sources_that_lie, keep_all_properties)
{
    cr_assert_geq(replay_seeds(60), 36);
}
#endif

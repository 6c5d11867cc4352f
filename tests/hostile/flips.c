/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Every single bit of small files is flipped, of headers, descriptors, directory, end records and
 * pickle as of elements; at every level of checking, by offsets computed and told, as an archive
 * and by verification. It is detected, when opening or when elements are read, or nothing changes:
 * the values are the same to the last bit
 * (One reading). Only elements may change, and only where no CRC is looked at; with load.check=data
 * every bit under a CRC is detected (Z10). load.check=none is blind to the directory's own bits,
 * and so are its values.
 *
 * In short, files other than the first are tried at every so many bits; BERTH_LONG=1 tries all.
 * Byte order is assumed to be the other one, so that a record that tells it cannot get lost.
 */
#include <berth/config.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/hostile/recipe.h"
#include "tests/support/scene.h"

/* ---- files ---- */

enum meaning {
    STRUCTURE, /* whatever is no record's data: it may be detected */
    UNSUMMED,  /* data without a CRC */
    ELEMENTS,  /* a storage's */
    RECORD     /* another record's */
};

struct subject {
    const char *name;
    uint8_t *bytes; /* the C library's, so that the sanitizer sees a read beyond */
    uint8_t *file;  /* the same, mapped: what is flipped here is flipped for who opens the path */
    size_t nbytes;
    uint8_t *meanings;
    uint64_t directory_at;
    uint32_t values; /* a sum of all that can be read */
    uint32_t records;
};

static void set_up(void)
{
    begin_scene("flipped.pt");
}

TestSuite(flips, .init = set_up, .fini = end_scene, .timeout = 3600);

static uint8_t *by_recipe(const char *const *lines, size_t *nbytes)
{
    struct recipe recipe;

    begin_recipe(&recipe);
    for (; *lines; lines++)
        follow(&recipe, *lines);
    render(&recipe);
    uint8_t *bytes = malloc(recipe.file.n);
    memcpy(bytes, recipe.file.bytes, recipe.file.n);
    *nbytes = recipe.file.n;
    end_recipe(&recipe);
    return bytes;
}

/* As Berth saves what PyTorch saved: tensors of many kinds that share storages, with CRCs. */
static uint8_t *saved_again(const char *from, size_t *nbytes)
{
    berth_checkpoint *checkpoint;
    berth_error error;
    void *made;

    cr_assert_eq(berth_open(from, NULL, &checkpoint, &error), 0, "%s", error.message);
    cr_assert_eq(berth_save_to(TO_MEMORY(&made, nbytes), OF_VALUE(berth_root(checkpoint)),
                               NAMED("m"), &error),
                 0, "%s", error.message);
    uint8_t *bytes = malloc(*nbytes);
    memcpy(bytes, made, *nbytes);
    berth_free(made);
    berth_close(checkpoint);
    return bytes;
}

static const char *const as_it_is[] = {NULL};
static const char *const older[] = {"drop .format_version", "drop .storage_alignment", NULL};
static const char *const foreign[] = {"foreign", NULL};
static const char *const deflated[] = {"foreign",
                                       "version data deflate:'3\\x0a'",
                                       "version method 8",
                                       "version compressed 7",
                                       "version size 2",
                                       "add empty zeros:0",
                                       "add folder zeros:0",
                                       "folder name 'sample/folder/'",
                                       NULL};
static const char *const wide[] = {"version central.size 0xffffffff",
                                   "version central.compressed 0xffffffff",
                                   "version central.extra u16:1 u16:16 u64:2 u64:2",
                                   "version descriptor.width 8",
                                   "version local.extra u16:1 u16:16 u64:0 u64:0",
                                   "end entries 65535",
                                   "end here 65535",
                                   "end offset 0xffffffff",
                                   "end comment 'mine'",
                                   NULL};

static const struct {
    const char *name;
    const char *const *recipe;
    const char *from; /* or this file saved again */
} files[] = {
    {"of PyTorch", as_it_is, NULL},
    {"of PyTorch before 2.7", older, NULL},
    {"of another tool", foreign, NULL},
    {"of another tool, with a deflated, an empty record and a folder", deflated, NULL},
    {"with zip64 fields and a comment", wide, NULL},
    {"with views of many kinds", NULL, "tests/data/torch/small.pt"},
};
#define N_FILES (sizeof files / sizeof *files)

/* ---- what is read of one ---- */

/* Levels of checking, of values and of archives. */
static const char *const levels[] = {
    "load.check=none",
    "load.check=directory",
    "load.check=headers",
    "load.check=data",
    "load.calculate_storage_offsets=off load.check=none",
    "load.calculate_storage_offsets=off load.check=directory",
    "load.calculate_storage_offsets=off load.check=headers",
    "load.calculate_storage_offsets=off load.check=data",
    "an archive's load.check=headers",
    "an archive's load.check=data",
    "verify",
};
enum { N_LEVELS = sizeof levels / sizeof *levels, ARCHIVES_FROM = 8, VERIFIES = 10 };

static berth_config *configs[N_LEVELS];

static void configure(void)
{
    for (size_t i = 0; i < N_LEVELS; i++) {
        const char *options = strstr(levels[i], "load.");
        configs[i] = berth_config_new(NULL);
        cr_assert_eq(berth_config_apply(configs[i], "debug=off", NULL), 0);
        cr_assert_eq(berth_config_apply(configs[i], "io.threads=1 load.endianness=big", NULL), 0);
        cr_assert_eq(berth_config_apply(configs[i], options ? options : "", NULL), 0);
    }
}

/*
 * A sum of all values, as they are saved again; < 0: an error, with its sentence. What opens, and
 * then cannot be saved, was detected only if reading its elements was refused: not because
 * something else was read that nobody can save.
 */
static int sum_values(const struct subject *subject, const berth_params *call, uint32_t *sum,
                      berth_error *error)
{
    berth_checkpoint *checkpoint;
    void *saved = NULL;
    size_t nbytes;

    if (berth_open_source(FROM_MEMORY(subject->bytes, subject->nbytes), call, &checkpoint, error) <
        0)
        return error->code;
    if (berth_save_to(TO_MEMORY(&saved, &nbytes), OF_VALUE(berth_root(checkpoint)), call, error) ==
        0)
        *sum = bth_crc32(0, saved, nbytes);
    else
        cr_expect_not_null(strstr(error->message, ": its bytes have CRC "), "%s: opens, and: %s",
                           subject->name, error->message);
    berth_free(saved);
    berth_close(checkpoint);
    return error->code;
}

static int sum_records(const struct subject *subject, const berth_params *call, uint32_t *sum,
                       berth_error *error)
{
    berth_archive *archive;
    berth_record record;
    uint8_t bytes[4096];

    if (berth_archive_open(FROM_MEMORY(subject->bytes, subject->nbytes), call, &archive, NULL,
                           error) < 0)
        return error->code;
    *sum = 0;
    for (size_t i = 0; error->code == 0 && berth_archive_at(archive, i, &record) == 0; i++) {
        cr_assert_leq(record.nbytes, sizeof bytes);
        if (berth_archive_read(archive, &record, bytes, record.nbytes, 0, error) < 0)
            continue;
        *sum = bth_crc32(*sum, record.name, strlen(record.name) + 1);
        *sum = bth_crc32(*sum, bytes, record.nbytes);
    }
    berth_archive_close(archive);
    return error->code;
}

/* True: detected. Else *changed tells whether something else is read than of the whole file. */
static bool is_detected(const struct subject *subject, size_t level, bool *changed)
{
    berth_params call = {.config = configs[level], .archive_name = "m"};
    berth_error error;
    uint32_t sum = level < ARCHIVES_FROM ? subject->values : subject->records;
    int result;

    if (level < ARCHIVES_FROM)
        result = sum_values(subject, &call, &sum, &error);
    else if (level < VERIFIES)
        result = sum_records(subject, &call, &sum, &error);
    else
        result = berth_verify(FROM_PATH(path), &call, NULL, NULL, NULL, &error);
    *changed = sum != (level < ARCHIVES_FROM ? subject->values : subject->records);
    if (result < 0) {
        cr_expect_neq(error.code, BERTH_E_MEMORY, "%s: %s", subject->name, error.message);
        cr_expect_gt(strlen(error.message), strlen("memory: ") + 12, "%s: \"%s\"", subject->name,
                     error.message);
    }
    return result < 0;
}

/* ---- which bytes mean what ---- */

static void mark_records(struct subject *subject)
{
    berth_archive *archive;
    berth_record record;
    berth_error error;
    uint64_t end = 0;

    cr_assert_eq(berth_archive_open(FROM_MEMORY(subject->bytes, subject->nbytes), NULL, &archive,
                                    NULL, &error),
                 0, "%s", error.message);
    for (size_t i = 0; berth_archive_at(archive, i, &record) == 0; i++) {
        uint8_t meaning = record.crc32 == 0                       ? UNSUMMED
                          : strncmp(record.name, "data/", 5) == 0 ? ELEMENTS
                                                                  : RECORD;
        /* Deflated ones lie there with a compressed size that is not told here. */
        if (record.method == 0)
            memset(subject->meanings + record.offset, meaning, record.nbytes);
        end = record.offset + record.nbytes > end ? record.offset + record.nbytes : end;
    }
    berth_archive_close(archive);
    const uint8_t *directory = memmem(subject->bytes + end, subject->nbytes - end, "PK\1\2", 4);
    cr_assert_not_null(directory);
    subject->directory_at = (uint64_t)(directory - subject->bytes);
}

static void begin_subject(struct subject *subject, size_t which)
{
    uint8_t *bytes = files[which].recipe ? by_recipe(files[which].recipe, &subject->nbytes)
                                         : saved_again(files[which].from, &subject->nbytes);

    subject->name = files[which].name;
    subject->bytes = bytes;
    test_write_file(path, bytes, subject->nbytes);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    cr_assert_geq(fd, 0);
    subject->file = mmap(NULL, subject->nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cr_assert_neq(subject->file, MAP_FAILED);
    (void)close(fd);
    subject->meanings = calloc(subject->nbytes, 1);
    mark_records(subject);
    berth_params call = {.config = configs[3], .archive_name = "m"};
    berth_error error;
    cr_assert_eq(sum_values(subject, &call, &subject->values, &error), 0, "%s: %s", subject->name,
                 error.message);
    cr_assert_eq(sum_records(subject, &call, &subject->records, &error), 0, "%s: %s", subject->name,
                 error.message);
}

static void end_subject(struct subject *subject)
{
    (void)munmap(subject->file, subject->nbytes);
    free(subject->bytes);
    free(subject->meanings);
}

/* ---- flipping ---- */

struct counts {
    uint64_t n_detected;
    uint64_t n_unchanged;
    uint64_t n_elements; /* changed, where no CRC is looked at */
};

static bool checks_data(size_t level)
{
    return level == VERIFIES || strstr(levels[level], "=data") != NULL;
}

static void flip(struct subject *subject, size_t level, size_t bit, struct counts *counts)
{
    size_t at = bit / 8;
    uint8_t meaning = subject->meanings[at];
    uint8_t whole = subject->bytes[at];
    bool changed;

    subject->bytes[at] = subject->file[at] = (uint8_t)(whole ^ (1 << bit % 8));
    bool detected = is_detected(subject, level, &changed);
    subject->bytes[at] = subject->file[at] = whole;
    counts->n_detected += detected;
    counts->n_unchanged += !detected && !changed;
    counts->n_elements += !detected && changed;
    if (checks_data(level) && (meaning == ELEMENTS || meaning == RECORD))
        cr_expect(detected, "%s, %s: bit %zu of byte %zu is under a CRC", subject->name,
                  levels[level], bit % 8, at);
    if (!detected && changed)
        cr_expect(!checks_data(level) && (meaning == ELEMENTS || level >= ARCHIVES_FROM) &&
                      meaning != STRUCTURE,
                  "%s, %s: bit %zu of byte %zu changes what is read", subject->name, levels[level],
                  bit % 8, at);
    if (level == 0 && strcmp(subject->name, files[0].name) == 0 && at >= subject->directory_at)
        cr_expect(!detected, "load.check=none looks at byte %zu of the directory", at);
}

static void add_counts(struct counts *sum, const struct counts *counts)
{
    sum->n_detected += counts->n_detected;
    sum->n_unchanged += counts->n_unchanged;
    sum->n_elements += counts->n_elements;
}

static struct counts flip_all(struct subject *subject, size_t level, size_t step)
{
    struct counts counts = {0};

    for (size_t bit = level % step; bit < 8 * subject->nbytes; bit += step)
        flip(subject, level, bit, &counts);
    return counts;
}

static bool is_long(void)
{
    const char *text = getenv("BERTH_LONG");

    return text && strcmp(text, "1") == 0;
}

Test(flips, of_any_bit_are_detected_or_change_nothing)
{
    struct counts sum = {0};

#ifdef __SANITIZE_ADDRESS__
    const size_t slower = 4;
#else
    const size_t slower = 1;
#endif
    configure();
    for (size_t which = 0; which < N_FILES; which++) {
        struct subject subject;
        begin_subject(&subject, which);
        for (size_t level = 0; level < N_LEVELS; level++) {
            size_t step = is_long() ? 1 : which == 0 ? slower : 11 * slower;
            struct counts counts = flip_all(&subject, level, step);
            if (is_long())
                printf("  %s, %s: %llu detected, %llu unchanged, %llu elements changed\n",
                       subject.name, levels[level], (unsigned long long)counts.n_detected,
                       (unsigned long long)counts.n_unchanged,
                       (unsigned long long)counts.n_elements);
            add_counts(&sum, &counts);
        }
        end_subject(&subject);
    }
    for (size_t i = 0; i < N_LEVELS; i++)
        berth_config_free(configs[i]);
    printf("bit flips: %llu detected, %llu unchanged, %llu elements changed where no CRC is "
           "looked at; %zu files\n",
           (unsigned long long)sum.n_detected, (unsigned long long)sum.n_unchanged,
           (unsigned long long)sum.n_elements, N_FILES);
    cr_expect_gt(sum.n_detected, sum.n_unchanged / 8);
}

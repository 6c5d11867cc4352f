/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/fuzz/target.h"
#include <dirent.h>

/* ---- numbers that look random, the same ones each time ---- */

static uint64_t random_state = 1;

void random_begin(unsigned number)
{
    random_state = number * UINT64_C(0x9E3779B97F4A7C15) + 1;
}

size_t random_below(size_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return n ? (size_t)(random_state >> 11) % n : 0;
}

/* ---- what was accepted ---- */

/* Seconds of a processor that all properties of an input may take. */
#define MAX_SECONDS 5

/* Of what a fuzzer keeps nearly all is refused, and most changes of that are refused as well. */
#define N_KEPT 64
#define MAX_KEPT_NBYTES 8192

static struct kept {
    uint8_t bytes[MAX_KEPT_NBYTES];
    size_t nbytes;
} all_kept[N_KEPT];
static size_t n_kept;

/* The first ones, which are seeds, for good; then the latest. */
static void keep(const uint8_t *bytes, size_t nbytes)
{
    size_t at = n_kept < N_KEPT ? n_kept : N_KEPT / 2 + n_kept % (N_KEPT / 2);

    if (nbytes == 0 || nbytes > MAX_KEPT_NBYTES)
        return;
    memcpy(all_kept[at].bytes, bytes, nbytes);
    all_kept[at].nbytes = nbytes;
    n_kept++;
}

size_t start_over(uint8_t *bytes, size_t nbytes, size_t most)
{
    const struct kept *other = &all_kept[random_below(n_kept < N_KEPT ? n_kept : N_KEPT)];

    if (n_kept == 0 || other->nbytes > most || random_below(2))
        return nbytes;
    memcpy(bytes, other->bytes, other->nbytes);
    return other->nbytes;
}

/* ---- one input ---- */

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes)
{
    double since = processor_seconds();

    is_accepted = false;
    check_input(bytes, nbytes);
    if (is_accepted)
        keep(bytes, nbytes);
    double seconds = processor_seconds() - since;
    MUST(seconds <= MAX_SECONDS, "P3: %.3f seconds for %zu bytes", seconds, nbytes);
    return 0;
}

/* ---- files ---- */

/* An existing file as a seed. */
static void seed_file(const char *path, const char *name)
{
    static uint8_t bytes[MAX_FILE_NBYTES];
    FILE *file = fopen(path, "rb");

    MUST(file, "%s does not open", path);
    size_t nbytes = fread(bytes, 1, sizeof bytes, file);
    MUST(nbytes < sizeof bytes, "%s is longer than any seed", path);
    fclose(file);
    seed(name, bytes, nbytes);
}

void seed_folder(const char *folder, const char *part)
{
    DIR *opened = opendir(folder);
    struct dirent *entry;

    while (opened && (entry = readdir(opened))) {
        char path[600];
        if (entry->d_name[0] == '.' || !strstr(entry->d_name, part))
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        seed_file(path, entry->d_name);
    }
    if (opened)
        closedir(opened);
}

#ifdef BERTH_FUZZER

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t nbytes, size_t most, unsigned number);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static const char *seeds_folder;

void seed(const char *name, const void *bytes, size_t nbytes)
{
    char path[600];

    snprintf(path, sizeof path, "%s/%s", seeds_folder, name);
    FILE *file = fopen(path, "wb");
    MUST(file && fwrite(bytes, 1, nbytes, file) == nbytes && fclose(file) == 0, "%s", path);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    seeds_folder = getenv("BERTH_FUZZ_SEEDS");
    if (seeds_folder) {
        make_seeds();
        exit(0);
    }
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t nbytes, size_t most, unsigned number)
{
    random_begin(number);
    return mutate(bytes, nbytes, most, number);
}

#else

/* In the place of libFuzzer's: a few bytes overwritten, inserted or cut out. */
size_t LLVMFuzzerMutate(uint8_t *bytes, size_t nbytes, size_t most)
{
    static const uint8_t telling[] = {0, 1, 0x7f, 0x80, 0xff, '.', '(', 't', 'R', '=', '\n', '"'};
    size_t at = random_below(nbytes), n = 1 + random_below(4);

    switch (random_below(4)) {
    case 0:
        if (nbytes + n > most)
            return nbytes;
        memmove(bytes + at + n, bytes + at, nbytes - at);
        for (size_t i = 0; i < n; i++)
            bytes[at + i] = telling[random_below(sizeof telling)];
        return nbytes + n;
    case 1:
        n = n < nbytes - at ? n : nbytes - at;
        memmove(bytes + at, bytes + at + n, nbytes - at - n);
        return nbytes - n;
    case 2:
        if (nbytes > 0)
            bytes[at] = telling[random_below(sizeof telling)];
        return nbytes;
    default:
        if (nbytes > 0)
            bytes[at] = (uint8_t)(bytes[at] ^ 1u << random_below(8));
        return nbytes;
    }
}

static size_t n_seeds;
size_t n_changes_of_each;

void replay(const uint8_t *bytes, size_t nbytes)
{
    uint8_t *copy = malloc(nbytes + (nbytes == 0));

    memcpy(copy, bytes, nbytes);
    (void)LLVMFuzzerTestOneInput(copy, nbytes);
    free(copy);
}

void seed(const char *name, const void *bytes, size_t nbytes)
{
    size_t most = 2 * nbytes + 256, n = nbytes;
    uint8_t *changed = malloc(most);

    (void)name;
    n_seeds++;
    replay(bytes, nbytes);
    memcpy(changed, bytes, nbytes);
    for (unsigned i = 0; i < n_changes_of_each; i++) {
        random_begin((unsigned)n_seeds * 1000003u + i);
        /* Now and then from the beginning: changes of changes of changes get nowhere. */
        if (i % 4 == 0) {
            memcpy(changed, bytes, nbytes);
            n = nbytes;
        }
        n = mutate(changed, n, most, i);
        replay(changed, n);
    }
    free(changed);
}

size_t replay_seeds(size_t changes_of_each)
{
    n_seeds = 0;
    n_changes_of_each = changes_of_each;
    make_seeds();
    return n_seeds;
}

#endif

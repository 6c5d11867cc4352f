/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Repacked files (Z13): a checkpoint that another tool wrote again, by a recipe, and with lies. An
 * honest one is read, and as what it was; one with lies is refused, or read in one way.
 */
#include <berth/config.h>

#include "tests/support/fuzz/repack.h"

#include "tests/support/fuzz/target.h"
#include "tests/support/support.h"

/* ---- what holds of an honest one ---- */

/* Whatever BERTH_SERIALIZATION_DEBUG says. */
#define OFF "debug=off "

static const char *const levels[] = {OFF "load.check=directory", OFF "load.check=headers",
                                     OFF "load.check=data",
                                     OFF "load.calculate_storage_offsets=off load.check=data",
                                     OFF "load.check=directory load.head_nbytes=1"};
#define N_LEVELS (sizeof levels / sizeof *levels)

static berth_checkpoint *open_or_stop(const uint8_t *bytes, size_t nbytes, const char *options)
{
    berth_checkpoint *checkpoint;
    berth_error error;

    (void)open_memory_with(bytes, nbytes, options, &checkpoint, &error);
    MUST(checkpoint, "%s: %s", options, error.message);
    return checkpoint;
}

/* Z13: debug mode and load.repacked=refuse refuse it, and say what reads it. */
static void check_refused_on_request(const struct repacked *file)
{
    static const char *const options[] = {"debug=on", OFF "load.repacked=refuse"};
    berth_checkpoint *checkpoint;
    berth_error error;

    for (size_t i = 0; i < 2; i++) {
        (void)open_memory_with(file->bytes, file->nbytes, options[i], &checkpoint, &error);
        MUST(!checkpoint, "%s: it opens", options[i]);
        MUST(strstr(error.message, "load.calculate_storage_offsets=off"), "%s: %s", options[i],
             error.message);
    }
}

static void check_verified(const struct repacked *file)
{
    berth_error error;
    berth_config *config = berth_config_new(&error);
    berth_params params = {.config = config};

    MUST(config && berth_config_apply(config, OFF, &error) == 0, "%s", error.message);
    MUST(berth_verify(FROM_MEMORY(file->bytes, file->nbytes), &params, NULL, NULL, NULL, &error) ==
             0,
         "%s", error.message);
    berth_config_free(config);
}

static void check_honest(const struct repacked *file, const char *options)
{
    berth_checkpoint *original = open_or_stop(file->original, file->original_nbytes, OFF);
    berth_checkpoint *again = open_or_stop(file->bytes, file->nbytes, options);
    berth_info info;

    check_same_tensors(original, again);
    MUST(berth_get_info(again, &info, NULL) == 0, "no facts");
    berth_close(original);
    berth_close(again);
    if (info.repacked)
        check_refused_on_request(file);
    check_verified(file);
}

/* ---- what holds of all ---- */

enum kind { HONEST, ANY_READINGS = N_LEVELS, BY_READS, PLAIN_BY_READS, DATA, DIRECTORY, N_KINDS };

static void check_any(const uint8_t *bytes, size_t nbytes, unsigned kind)
{
    static const char plain[] = OFF "load.check=headers load.calculate_storage_offsets=off";

    if (IS_CHECKED(kind, ANY_READINGS))
        check_readings(bytes, nbytes, OFF "load.unknown_globals=refuse");
    if (IS_CHECKED(kind, BY_READS))
        check_by_reads(bytes, nbytes, OFF "load.check=directory");
    if (IS_CHECKED(kind, PLAIN_BY_READS))
        check_by_reads(bytes, nbytes, plain);
    if (IS_CHECKED(kind, DATA))
        (void)check_opening(bytes, nbytes, OFF "load.check=data");
    if (IS_CHECKED(kind, DIRECTORY))
        (void)check_opening(bytes, nbytes, OFF "load.check=directory");
}

void check_input(const uint8_t *bytes, size_t nbytes)
{
    static struct repacked file;
    unsigned kind = kind_of(bytes, nbytes, N_KINDS);

    if (!repack(bytes, nbytes, &file))
        return;
    /* A block of its own: the sanitizer sees a read beyond. */
    uint8_t *own = malloc(file.nbytes);
    memcpy(own, file.bytes, file.nbytes);
    for (unsigned i = 0; file.is_honest && i < N_LEVELS; i++)
        if (IS_CHECKED(kind, HONEST + i))
            check_honest(&file, levels[i]);
    check_any(own, file.nbytes, kind);
    free(own);
}

/* ---- recipes ---- */

/* A step more, less, or changed: bytes of a recipe mean nothing by their neighbours. */
size_t mutate(uint8_t *bytes, size_t nbytes, size_t most, unsigned number)
{
    (void)number;
    nbytes = start_over(bytes, nbytes, most);
    size_t n_steps = nbytes > 0 ? (nbytes - 1) / RECIPE_STEP_NBYTES : 0;
    uint8_t *step = bytes + 1 + random_below(n_steps) * RECIPE_STEP_NBYTES;

    switch (random_below(8)) {
    case 0:
        return LLVMFuzzerMutate(bytes, nbytes, most);
    case 1:
        bytes[0] = (uint8_t)random_below(256);
        return nbytes > 0 ? nbytes : 1;
    case 2:
        return nbytes > RECIPE_STEP_NBYTES ? nbytes - RECIPE_STEP_NBYTES : nbytes;
    case 3:
    case 4:
        if (step + RECIPE_STEP_NBYTES <= bytes + nbytes)
            step[random_below(RECIPE_STEP_NBYTES)] = (uint8_t)random_below(256);
        return nbytes;
    default:
        if (nbytes == 0 || nbytes + RECIPE_STEP_NBYTES > most)
            return nbytes;
        for (size_t i = 0; i < RECIPE_STEP_NBYTES; i++)
            bytes[nbytes++] = (uint8_t)random_below(256);
        return nbytes;
    }
}

/* Each checkpoint as zipfile, zip and PyTorch write it, and in another order. */
void make_seeds(void)
{
    /* Local and central extra fields of zip for all; all as PyTorch; the first two in turn. */
    static const uint8_t zip[] = {5, RECIPE_ALL, 2, 0, 8, RECIPE_ALL, 2, 0, 11, RECIPE_ALL, 3, 30};
    static const uint8_t pytorch[] = {9, RECIPE_ALL, 0, 0, 17, RECIPE_ALL, 1, 0};
    static const uint8_t reordered[] = {0, 0, 1, 0, 1, 0, 1, 0};
    static const struct {
        const char *name;
        const uint8_t *steps;
        size_t nbytes;
    } recipes[] = {{"zipfile", zip, 0},
                   {"zip", zip, sizeof zip},
                   {"pytorch", pytorch, sizeof pytorch},
                   {"reordered", reordered, sizeof reordered}};
    uint8_t recipe[32];
    char name[64];

    for (size_t i = 0; i < 4 * repack_n_checkpoints(); i++) {
        size_t k = i % 4;
        recipe[0] = (uint8_t)(i / 4);
        memcpy(recipe + 1, recipes[k].steps, recipes[k].nbytes);
        (void)snprintf(name, sizeof name, "%s-%zu", recipes[k].name, i / 4);
        seed(name, recipe, 1 + recipes[k].nbytes);
    }
    seed_folder("tests/fuzz/found/repacked", "");
}

#ifndef BERTH_FUZZER

Test(repacked, keep_all_properties)
{
    cr_assert_geq(replay_seeds(40), 32);
}
#endif

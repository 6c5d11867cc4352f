/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * There and back: whatever is accepted, a file, or a pickle in an archive around it, is saved again
 * in every form, and read back equal; compact, with equal elements in no more bytes.
 */
#include "tests/support/fuzz/archive.h"
#include "tests/support/fuzz/saves.h"
#include "tests/support/fuzz/wrap.h"

static const char *const forms[] = {
    "io.threads=1", "save.byteorder=big", "save.storage_alignment=1",
    "save.storage_alignment=4096 save.compute_crc32=off", "io.threads=1 io.chunk_nbytes=29"};
#define N_FORMS 5
#define COMPACT N_FORMS

static void there_and_back(const uint8_t *bytes, size_t nbytes, unsigned kind)
{
    berth_checkpoint *checkpoint;
    berth_error error;

    count_memory_from_now();
    size_t before_nbytes = live_nbytes;
    if (open_memory_with(bytes, nbytes, "load.unknown_globals=inert load.check=directory",
                         &checkpoint, &error) < 0)
        return;
    for (unsigned i = 0; i < N_FORMS; i++)
        if (IS_CHECKED(kind, i))
            check_saves_again(checkpoint, forms[i]);
    if (IS_CHECKED(kind, COMPACT))
        check_compact(checkpoint, nbytes);
    berth_close(checkpoint);
    MUST(live_nbytes == before_nbytes, "%zu bytes leak", live_nbytes - before_nbytes);
}

void check_input(const uint8_t *bytes, size_t nbytes)
{
    static struct memory_file file;
    unsigned kind = kind_of(bytes, nbytes, COMPACT + 1);
    bth_pickle_rules rules = {.inert = true, .record = "data.pkl"};
    berth_value *root = NULL;
    berth_error error;

    if (nbytes == 0 || bytes[0] != 0x80) {
        there_and_back(bytes, nbytes, kind);
        return;
    }
    count_memory_from_now();
    berth_tree *tree = berth_tree_new(&error);
    bool wrapped = bth_pickle_read(bytes, nbytes, &rules, tree, &root, &error) == 0 &&
                   wrap(bytes, nbytes, tree, &file);
    berth_tree_free(tree);
    if (wrapped)
        there_and_back(file.bytes, file.nbytes, kind);
}

size_t mutate(uint8_t *bytes, size_t nbytes, size_t most, unsigned number)
{
    nbytes = start_over(bytes, nbytes, most);
    return nbytes > 0 && bytes[0] == 0x80 ? mutate_pickle(bytes, nbytes, most, number)
                                          : mutate_archive(bytes, nbytes, most, number);
}

void make_seeds(void)
{
    seed_written();
    seed_usual();
    seed_calls();
    seed_bombs(500);
    seed_folder("tests/data/torch", ".pt");
    seed_folder("tests/data/old", ".pt");
    seed_folder("tests/fuzz/found/roundtrip", "");
}

#ifndef BERTH_FUZZER

Test(what_is_read, is_saved_and_read_back_equal)
{
    cr_assert_geq(replay_seeds(6), 150);
}
#endif

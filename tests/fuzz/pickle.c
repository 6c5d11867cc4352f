/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Pickles: any bytes as the data.pkl of an archive that has just the storages that they name, so
 * that whatever the pickle reader accepts goes all the way.
 */
#include "tests/fuzz/pickles.h"
#include "tests/fuzz/wrap.h"

/* ---- the reader by itself ---- */

/* The same pickle without short cuts: the same refusal, or the same value. */
static void check_one_by_one(const uint8_t *bytes, size_t nbytes, berth_pickle_rules rules,
                             const berth_value *root, const berth_error *told)
{
    berth_pickled quick = {0}, slow = {0};
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *other = NULL;
    berth_error error;

    berth_error_clear(&error);
    rules.one_by_one = true;
    int code = berth_pickle_read(bytes, nbytes, &rules, tree, &other, &error);
    MUST(code == told->code && strcmp(error.message, told->message) == 0, "%s; one by one: %s",
         told->message, error.message);
    if (code == 0) {
        int written = berth_pickle_write(root, false, &quick, &error);
        MUST(written == berth_pickle_write(other, false, &slow, &error) &&
                 quick.nbytes == slow.nbytes && quick.n_storages == slow.n_storages &&
                 (written < 0 || memcmp(quick.bytes, slow.bytes, quick.nbytes) == 0),
             "one by one it is another value");
        berth_pickled_free(&quick);
        berth_pickled_free(&slow);
    }
    berth_tree_free(tree);
}

/* The tree, or NULL with a sentence. */
static berth_tree *read_pickle(const uint8_t *bytes, size_t nbytes, bool inert)
{
    berth_pickle_rules rules = {.inert = inert, .record = "data.pkl"};
    berth_pickle_survey survey = {0};
    size_t before_nbytes;
    berth_value *root = NULL;
    berth_error error;

    count_memory_from_now();
    before_nbytes = live_nbytes;
    berth_tree *tree = berth_tree_new(&error);
    int result = berth_pickle_read(bytes, nbytes, &rules, tree, &root, &error);
    MUST(most_nbytes - before_nbytes <= MEMORY_PER_BYTE * nbytes + 65536,
         "P3: %zu bytes of memory for a pickle of %zu", most_nbytes - before_nbytes, nbytes);
    MUST((result < 0) == (error.message[0] != 0) && (result < 0 || root), "%s", error.message);
    check_one_by_one(bytes, nbytes, rules, root, &error);
    if (result == 0) {
        MUST(berth_pickle_look(bytes, nbytes, &rules, &survey, &error) == 0 &&
                 survey.extent == nbytes,
             "its end is at %zu of %zu: %s", survey.extent, nbytes, error.message);
        return tree;
    }
    berth_tree_free(tree);
    MUST(live_nbytes == before_nbytes, "%zu bytes leak", live_nbytes - before_nbytes);
    return NULL;
}

/* In an archive around it, it is read as by itself. */
static void check_wrapped(const struct memory_file *file, bool is_plain, unsigned kind)
{
    if (IS_CHECKED(kind, 0))
        MUST(check_opening(file->bytes, file->nbytes, "load.unknown_globals=inert"),
             "the pickle is read, the archive around it is not");
    if (IS_CHECKED(kind, 1))
        MUST(check_opening(file->bytes, file->nbytes, "load.unknown_globals=refuse") == is_plain,
             "read by itself and in an archive, not the same");
    if (IS_CHECKED(kind, 2))
        check_readings(file->bytes, file->nbytes, "load.unknown_globals=inert");
}

static void check_input(const uint8_t *bytes, size_t nbytes)
{
    static struct memory_file file;
    unsigned kind = kind_of(bytes, nbytes, 12);
    berth_tree *inert = read_pickle(bytes, nbytes, true);
    /* What is refused with unknown globals is refused without: that is looked at now and then. */
    bool is_read_twice = inert || IS_CHECKED(kind % 4, 0);
    berth_tree *tree = is_read_twice ? read_pickle(bytes, nbytes, false) : NULL;

    MUST(!tree || inert, "what is read without unknown globals is read with them");
    if (inert && wrap(bytes, nbytes, inert, &file))
        check_wrapped(&file, tree != NULL, kind / 4);
    berth_tree_free(inert);
    berth_tree_free(tree);
}

static size_t mutate(uint8_t *bytes, size_t nbytes, size_t most, unsigned number)
{
    return mutate_pickle(bytes, nbytes, most, number);
}

static void make_seeds(void)
{
    seed_written();
    seed_usual();
    seed_calls();
    seed_bombs(500);
    seed_folder("tests/fuzz/found/pickle", "");
}

#ifndef BERTH_FUZZER

Test(pickles, keep_all_properties)
{
    cr_assert_geq(replay_seeds(40), 130);
}

Test(pickles, keep_all_properties_when_deep)
{
    replay_seeds(0);
    n_changes_of_each = 0;
    seed_bombs(100000);
}

static void cut_everywhere(const uint8_t *bytes, size_t nbytes)
{
    for (size_t n = 0; n <= nbytes; n++)
        replay(bytes, n);
}

static void flip_every_bit(uint8_t *bytes, size_t nbytes)
{
    for (size_t i = 0; i < 8 * nbytes; i++) {
        bytes[i / 8] ^= (uint8_t)(1u << i % 8);
        replay(bytes, nbytes);
        bytes[i / 8] ^= (uint8_t)(1u << i % 8);
    }
}

Test(pickles, keep_all_properties_cut_at_every_byte_and_with_any_bit_flipped)
{
    for (unsigned i = 0; i < 6; i++) {
        struct fragment fragment = {.nbytes = 0};

        random_begin(1000 + i);
        say(&fragment, "\x80\x02]");
        say_anything(&fragment);
        say(&fragment, "a");
        say_tensor(&fragment);
        say(&fragment, "a.");
        cut_everywhere(fragment.bytes, fragment.nbytes);
        flip_every_bit(fragment.bytes, fragment.nbytes);
    }
}
#endif

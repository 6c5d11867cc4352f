/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Pickles: any bytes as the data.pkl of an archive that has just the storages that they name, so
 * that whatever the pickle reader accepts goes all the way.
 */
#include "tests/support/fuzz/pickles.h"
#include "tests/support/fuzz/wrap.h"

/* ---- the reader by itself ---- */

static void check_same_storages(const berth_tree *a, const berth_tree *b)
{
    MUST(bth_tree_n_storages(a) == bth_tree_n_storages(b), "%zu storages and %zu",
         bth_tree_n_storages(a), bth_tree_n_storages(b));
    for (size_t i = 0; i < bth_tree_n_storages(a); i++) {
        const berth_storage *x = bth_tree_storage(a, i), *y = bth_tree_storage(b, i);
        MUST(strcmp(x->key, y->key) == 0 && strcmp(x->location, y->location) == 0 &&
                 x->dtype == y->dtype && x->element == y->element && x->nbytes == y->nbytes,
             "one by one %s is another storage", x->key);
    }
}

/* The sum of what two values are when they are written again: the same. */
static uint32_t check_same_values(const berth_value *a, const berth_value *b)
{
    bth_pickled x = {0}, y = {0};
    berth_error error, other;

    bth_error_clear(&error);
    bth_error_clear(&other);
    int written = bth_pickle_write(a, false, &x, &error);
    MUST(written == bth_pickle_write(b, false, &y, &other) &&
             strcmp(error.message, other.message) == 0,
         "written again: %s; one by one: %s", error.message, other.message);
    MUST(x.nbytes == y.nbytes && x.n_storages == y.n_storages &&
             (written < 0 || memcmp(x.bytes, y.bytes, x.nbytes) == 0),
         "one by one it is another value");
    uint32_t sum = written < 0 ? 0 : bth_crc32(0, x.bytes, x.nbytes);
    bth_pickled_free(&x);
    bth_pickled_free(&y);
    return sum;
}

struct reading {
    berth_tree *tree; /* NULL: it is refused */
    uint32_t sum;     /* of what it is when it is written again */
    bool loses;       /* it is refused because a key would take the place of an equal one */
};

/* The same pickle without short cuts: the same refusal, or the same value. */
static uint32_t check_one_by_one(const uint8_t *bytes, size_t nbytes, bth_pickle_rules rules,
                                 const berth_tree *tree, const berth_value *root,
                                 const berth_error *told)
{
    bth_pickle_survey survey = {0}, other_survey = {0};
    berth_tree *other = berth_tree_new(NULL);
    berth_value *other_root = NULL;
    berth_error error, unasked;
    uint32_t sum = 0;

    bth_error_clear(&unasked);
    (void)bth_pickle_find_end_and_fetches(bytes, nbytes, &rules, &survey, &unasked);
    rules.one_by_one = true;
    (void)bth_pickle_find_end_and_fetches(bytes, nbytes, &rules, &other_survey, &unasked);
    MUST(memcmp(&survey, &other_survey, sizeof survey) == 0, "one by one others are fetched");
    rules.survey = &other_survey;
    bth_error_clear(&error);
    int code = bth_pickle_read(bytes, nbytes, &rules, other, &other_root, &error);
    MUST(code == told->code && strcmp(error.message, told->message) == 0 &&
             error.offset == told->offset,
         "%s; one by one: %s", told->message, error.message);
    if (code == 0) {
        MUST(survey.extent == nbytes, "its end is at %zu of %zu", survey.extent, nbytes);
        check_same_storages(tree, other);
        MUST(berth_tree_error(tree, NULL) == BERTH_OK, "an error is left");
        sum = check_same_values(root, other_root);
    }
    berth_tree_free(other);
    return sum;
}

static struct reading read_pickle(const uint8_t *bytes, size_t nbytes, bool inert)
{
    bth_pickle_rules rules = {.inert = inert, .record = "data.pkl"};
    size_t before_nbytes;
    berth_value *root = NULL;
    berth_error error;

    count_memory_from_now();
    before_nbytes = live_nbytes;
    berth_tree *tree = berth_tree_new(&error);
    int result = bth_pickle_read(bytes, nbytes, &rules, tree, &root, &error);
    MUST(most_nbytes - before_nbytes <= MEMORY_PER_BYTE * nbytes + 65536,
         "P3: %zu bytes of memory for a pickle of %zu", most_nbytes - before_nbytes, nbytes);
    MUST((result < 0) == (error.message[0] != 0) && (result < 0 || root), "%s", error.message);
    uint32_t sum = check_one_by_one(bytes, nbytes, rules, tree, root, &error);
    if (result == 0)
        return (struct reading){.tree = tree, .sum = sum};
    berth_tree_free(tree);
    MUST(live_nbytes == before_nbytes, "%zu bytes leak", live_nbytes - before_nbytes);
    return (struct reading){.loses = strstr(error.message, "has a key twice")};
}

/* What a refusal names is the same each time; what is read names nothing else. */
static void check_found_global(const uint8_t *bytes, size_t nbytes, bool is_read)
{
    bth_found_global found, again;

    count_memory_from_now();
    size_t before_nbytes = live_nbytes;
    bth_pickle_find_global(bytes, nbytes, false, &found);
    bth_pickle_find_global(bytes, nbytes, false, &again);
    MUST(most_nbytes == before_nbytes, "P3: it allocates");
    MUST(strcmp(found.words, again.words) == 0, "%s; again: %s", found.words, again.words);
    MUST(!is_read || !*found.words, "it is read, and names %s", found.words);
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

void check_input(const uint8_t *bytes, size_t nbytes)
{
    static struct memory_file file;
    unsigned kind = kind_of(bytes, nbytes, 12);
    struct reading inert = read_pickle(bytes, nbytes, true), plain = {.tree = NULL};

    /* What is refused with unknown globals is refused without: that is looked at now and then. */
    if (inert.tree || IS_CHECKED(kind % 4, 0))
        plain = read_pickle(bytes, nbytes, false);
    MUST(!plain.tree || inert.loses || (inert.tree && inert.sum == plain.sum),
         "what is read without unknown globals is read with them, and the same");
    if (inert.tree && wrap(bytes, nbytes, inert.tree, &file))
        check_wrapped(&file, plain.tree != NULL, kind / 4);
    check_found_global(bytes, nbytes, plain.tree != NULL);
    berth_tree_free(inert.tree);
    berth_tree_free(plain.tree);
}

size_t mutate(uint8_t *bytes, size_t nbytes, size_t most, unsigned number)
{
    return mutate_pickle(bytes, nbytes, most, number);
}

void make_seeds(void)
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

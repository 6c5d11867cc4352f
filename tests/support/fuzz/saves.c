/* SPDX-License-Identifier: BSD-3-Clause */
#include <berth/config.h>

#include "tests/support/fuzz/saves.h"
#include "tests/support/support.h"

/* Bytes of memory that a compact value may cost per byte of the file: shared ints are made anew. */
#define COMPACT_MEMORY_PER_BYTE 256

/* But for the numbers by which objects that are keys are named: <module class 29>. */
static bool is_same_path(const char *a, const char *b)
{
    while (*a && *a == *b) {
        a++;
        b++;
        size_t n = strspn(a, "0123456789"), n_other = strspn(b, "0123456789");
        if (a[n] == '>' && b[n_other] == '>') {
            a += n;
            b += n_other;
        }
    }
    return *a == *b;
}

/* Elements alone: where they lie may differ. */
static void check_same_elements(berth_checkpoint *a, berth_checkpoint *b)
{
    static uint8_t ours[MAX_ELEMENTS * 16], theirs[MAX_ELEMENTS * 16];
    berth_named_tensor our, their;
    size_t n = berth_tensor_count(a), nbytes, other_nbytes;

    MUST(n == berth_tensor_count(b), "%zu tensors, compact %zu", n, berth_tensor_count(b));
    for (size_t i = 0; i < n; i++) {
        if (berth_tensor_at(a, i, &our, NULL) < 0 || berth_tensor_at(b, i, &their, NULL) < 0 ||
            !read_first(a, our.tensor, ours, &nbytes))
            continue;
        MUST(is_same_path(our.path, their.path), "%s and %s", our.path, their.path);
        MUST(read_first(b, their.tensor, theirs, &other_nbytes) && nbytes == other_nbytes &&
                 memcmp(ours, theirs, nbytes) == 0,
             "%s has other elements", our.path);
    }
}

/* The pickles of two readings: as identity is kept in them, equal bytes are equal values. */
static void check_same_pickle(berth_checkpoint *a, berth_checkpoint *b, const char *how)
{
    bth_pickled ours, theirs;
    berth_error error = {0};

    if (bth_pickle_write(berth_root(a), false, &ours, &error) < 0)
        return;
    MUST(bth_pickle_write(berth_root(b), false, &theirs, &error) == 0, "%s: %s", how,
         error.message);
    MUST(ours.nbytes == theirs.nbytes && memcmp(ours.bytes, theirs.bytes, ours.nbytes) == 0 &&
             ours.n_storages == theirs.n_storages,
         "%s: other values", how);
    bth_pickled_free(&ours);
    bth_pickled_free(&theirs);
}

/*
 * All bytes of all storages, those that no tensor uses too; but for those behind the last whole
 * element of an UntypedStorage that became one of elements, as torch.save writes them: false.
 */
static bool check_same_storages(berth_checkpoint *a, berth_checkpoint *b)
{
    berth_named_tensor ours, theirs;
    berth_error error;
    bool is_same = true;

    for (size_t i = 0; i < berth_tensor_count(a); i++) {
        if (berth_tensor_at(a, i, &ours, &error) < 0 || !ours.tensor->storage)
            continue;
        MUST(berth_tensor_at(b, i, &theirs, &error) == 0, "%s", error.message);
        const void *our = berth_storage_data(a, ours.tensor->storage, &error);
        const void *their = berth_storage_data(b, theirs.tensor->storage, &error);
        uint64_t nbytes = berth_storage_get_info(theirs.tensor->storage)->nbytes;
        uint64_t left = berth_storage_get_info(ours.tensor->storage)->nbytes - nbytes;
        is_same = is_same && left == 0;
        if (!our)
            continue;
        MUST(their &&
                 left < berth_dtype_nbytes(berth_storage_get_info(theirs.tensor->storage)->dtype) &&
                 memcmp(our, their, nbytes) == 0,
             "%s: its storage has other bytes", ours.path);
    }
    return is_same;
}

/*
 * What was saved opens, with every check. Only the indices of a sparse tensor may be refused: the
 * file was opened with load.check=directory, which takes them unchecked, and saved as they are.
 * Returns the check that it opens with.
 */
static const char *open_saved(const void *bytes, size_t nbytes, const char *how,
                              berth_checkpoint **opened)
{
    berth_error error;

    if (open_memory_with(bytes, nbytes, "load.check=data load.unknown_globals=inert", opened,
                         &error) == 0)
        return "load.check=data";
    MUST(error.code == BERTH_E_TENSOR &&
             strstr(error.message, "load.check=directory opens it unchecked"),
         "saved again (%s), it does not open: %s", how, error.message);
    MUST(open_memory_with(bytes, nbytes, "load.check=directory load.unknown_globals=inert", opened,
                          &error) == 0,
         "saved again (%s), it does not open: %s", how, error.message);
    return "load.check=directory";
}

void check_saves_again(berth_checkpoint *checkpoint, const char *options)
{
    void *once = NULL, *twice = NULL;
    size_t once_nbytes = 0, twice_nbytes = 0;
    berth_checkpoint *reopened;
    berth_error error;

    MUST(berth_config_patch(options, &error) == 0, "%s", error.message);
    bool is_saved = berth_save_to(TO_MEMORY(&once, &once_nbytes), OF_VALUE(berth_root(checkpoint)),
                                  NAMED("again"), &error) == 0;
    MUST(is_saved == (error.message[0] == 0), "%s: %s", options, error.message);
    if (is_saved) {
        const char *check = open_saved(once, once_nbytes, options, &reopened);
        check_as_plain(reopened, once, once_nbytes, check);
        check_same_pickle(checkpoint, reopened, options);
        check_same_elements(checkpoint, reopened);
        bool is_same = strstr(options, "byteorder") || check_same_storages(checkpoint, reopened);
        MUST(berth_save_to(TO_MEMORY(&twice, &twice_nbytes), OF_VALUE(berth_root(reopened)),
                           NAMED("again"), &error) == 0,
             "%s", error.message);
        MUST(!is_same || (once_nbytes == twice_nbytes && memcmp(once, twice, once_nbytes) == 0),
             "saved twice (%s), %zu bytes and %zu", options, once_nbytes, twice_nbytes);
        berth_close(reopened);
    }
    MUST(berth_config_unpatch(NULL) == 0, "%s", options);
    berth_free(once);
    berth_free(twice);
}

void check_compact(berth_checkpoint *checkpoint, size_t nbytes)
{
    void *whole = NULL, *bytes = NULL;
    size_t whole_nbytes = 0, compact_nbytes = 0, before_nbytes = live_nbytes;
    berth_checkpoint *reopened;
    berth_error error;

    most_nbytes = live_nbytes;
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *compact = berth_value_copy(tree, berth_root(checkpoint), BERTH_COPY_COMPACT);
    MUST(compact, "%s", (berth_tree_error(tree, &error), error.message));
    MUST(most_nbytes - before_nbytes <= COMPACT_MEMORY_PER_BYTE * nbytes + MEMORY_FIXED,
         "P3: %zu bytes of memory for a compact value of %zu", most_nbytes - before_nbytes, nbytes);
    if (berth_save_to(TO_MEMORY(&whole, &whole_nbytes), OF_VALUE(berth_root(checkpoint)),
                      NAMED("a"), NULL) == 0) {
        MUST(berth_save_to(TO_MEMORY(&bytes, &compact_nbytes), OF_VALUE(compact), NAMED("a"),
                           &error) == 0,
             "%s", error.message);
        MUST(compact_nbytes <= whole_nbytes, "%zu bytes became %zu", whole_nbytes, compact_nbytes);
        (void)open_saved(bytes, compact_nbytes, "compact", &reopened);
        check_same_elements(checkpoint, reopened);
        berth_close(reopened);
    }
    berth_free(whole);
    berth_free(bytes);
    berth_tree_free(tree);
}

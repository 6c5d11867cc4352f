/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The tensors of slices in a ticket. A ticket can have many more tensors than a writer has slices:
 * the slices' names are put into a hash table, and the tensors are read once, in their order.
 */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/seeded_hash.h"
#include "save/joint/joint_ticket.h"

/* A short name is TEXT_NAME. The path ['a'] is kept as the key "a", so that one hash finds both. */
typedef enum text_kind { TEXT_NAME, TEXT_PATH, TEXT_KEY } text_kind;

typedef struct tensor_text {
    const char *bytes;
    size_t nbytes;
    text_kind kind;
    uint32_t hash; /* of the bytes: the same for all kinds */
} tensor_text;

/* What a slice wants. */
typedef struct wanted_tensor {
    tensor_text text;
    size_t first; /* slice that wants the same */
    size_t at;    /* of the first slice: where its tensor begins */
} wanted_tensor;

typedef struct wanted_table {
    wanted_tensor *wanted; /* one for each slice */
    size_t *slots;         /* by hash: a slice + 1; 0: free */
    size_t mask;
    uint64_t seed;
    size_t n_left; /* tensors that are not found yet */
} wanted_table;

/* ---- texts ---- */

static tensor_text text_make(const wanted_table *table, const char *text, bool is_path)
{
    size_t nbytes = strlen(text);
    text_kind kind = is_path ? TEXT_PATH : TEXT_NAME;

    if (is_path && nbytes >= 4 && memcmp(text, "['", 2) == 0 &&
        memcmp(text + nbytes - 2, "']", 2) == 0) {
        text += 2;
        nbytes -= 4;
        kind = TEXT_KEY;
    }
    return (tensor_text){text, nbytes, kind, bth_hash(table->seed, text, nbytes)};
}

/* ---- the table ---- */

/* The slot of an equal text, or the free one where it belongs. */
static size_t *table_find_slot(const wanted_table *table, const tensor_text *text)
{
    for (size_t slot = text->hash & table->mask;; slot = (slot + 1) & table->mask) {
        size_t *found = &table->slots[slot];
        if (*found == 0)
            return found;
        const tensor_text *other = &table->wanted[*found - 1].text;
        if (other->kind == text->kind && other->nbytes == text->nbytes &&
            memcmp(other->bytes, text->bytes, text->nbytes) == 0)
            return found;
    }
}

/* The seed is random, and made after the names: they cannot have been chosen to collide. */
static int table_allocate(wanted_table *table, const bth_ticket *ticket, size_t n,
                          berth_error *error)
{
    size_t n_slots = 4;

    memcpy(&table->seed, ticket->identity, sizeof table->seed);
    while (n_slots / 2 < n)
        n_slots *= 2;
    table->mask = n_slots - 1;
    table->wanted =
        bth_allocate_zeroed(bth_array_nbytes((size_t)bth_max(n, 1), sizeof *table->wanted));
    table->slots = bth_allocate_zeroed(bth_array_nbytes(n_slots, sizeof *table->slots));
    if (!table->wanted || !table->slots)
        return bth_fail_memory(error, bth_array_nbytes(n_slots, sizeof *table->slots));
    return 0;
}

static void table_add_wanted(wanted_table *table, size_t i, const char *name)
{
    wanted_tensor *wanted = &table->wanted[i];

    *wanted = (wanted_tensor){.first = i, .at = BTH_NO_TENSOR};
    if (!name)
        return;
    wanted->text = text_make(table, name, bth_name_is_path(name));
    size_t *slot = table_find_slot(table, &wanted->text);
    if (*slot > 0)
        wanted->first = *slot - 1;
    else {
        *slot = i + 1;
        table->n_left++;
    }
}

/* A tensor that begins at `at` has this text. */
static void table_fill_if_wanted(wanted_table *table, const tensor_text *text, size_t at)
{
    size_t found = *table_find_slot(table, text);

    if (found == 0 || table->wanted[found - 1].at != BTH_NO_TENSOR)
        return;
    table->wanted[found - 1].at = at;
    table->n_left--;
}

int bth_ticket_find_tensors_of_slices(const bth_ticket *ticket, const berth_slice *slices, size_t n,
                                      size_t **at, berth_error *error)
{
    size_t here = ticket->tensors_at, behind = here;
    size_t nbytes = bth_array_nbytes((size_t)bth_max(n, 1), sizeof **at);
    wanted_table table = {0};
    bth_ticket_tensor tensor;

    *at = bth_allocate(nbytes);
    if (!*at)
        (void)bth_fail_memory(error, nbytes);
    else if (table_allocate(&table, ticket, n, error) == 0) {
        for (size_t i = 0; i < n; i++)
            table_add_wanted(&table, i, slices[i].name);
        for (; table.n_left > 0 && bth_ticket_next_tensor(ticket, &behind, &tensor);
             here = behind) {
            tensor_text text = text_make(&table, tensor.name, bth_name_is_path(tensor.name));
            table_fill_if_wanted(&table, &text, here);
            if (tensor.path[0])
                text = text_make(&table, tensor.path, true);
            else if (text.kind == TEXT_NAME)
                text.kind = TEXT_KEY;
            else
                continue;
            table_fill_if_wanted(&table, &text, here);
        }
        for (size_t i = 0; i < n; i++)
            (*at)[i] = table.wanted[table.wanted[i].first].at;
    }
    bth_release(table.wanted);
    bth_release(table.slots);
    return error->code;
}

/* ---- ambiguous paths ---- */

int bth_ticket_check_paths(const bth_ticket *ticket, berth_error *error)
{
    size_t n = 0, here = ticket->tensors_at, behind = here;
    bth_ticket_tensor tensor, first;
    wanted_table table = {0};

    while (bth_ticket_next_tensor(ticket, &behind, &tensor))
        n += bth_name_is_path(tensor.name);
    if (n > 1)
        (void)table_allocate(&table, ticket, n, error);
    behind = here;
    for (size_t i = 0; i < n && table.wanted && error->code == BERTH_OK; here = behind) {
        (void)bth_ticket_next_tensor(ticket, &behind, &tensor);
        if (!bth_name_is_path(tensor.name))
            continue;
        table_add_wanted(&table, i, tensor.name);
        wanted_tensor *wanted = &table.wanted[table.wanted[i].first];
        if (wanted == &table.wanted[i++])
            wanted->at = here;
        size_t at = wanted->at;
        (void)bth_ticket_next_tensor(ticket, &at, &first);
        if (tensor.storage != first.storage || tensor.offset != first.offset ||
            tensor.dtype != first.dtype || tensor.is_contiguous != first.is_contiguous ||
            tensor.rank != first.rank ||
            memcmp(tensor.shape, first.shape, (size_t)first.rank * sizeof *first.shape) != 0)
            (void)bth_fail(error, BERTH_E_AMBIGUOUS, tensor.name, BERTH_NO_OFFSET,
                           "two tensors of the outline have this path, so that no slice could name "
                           "them: their keys are written alike");
    }
    bth_release(table.wanted);
    bth_release(table.slots);
    return error->code;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "config/patch.h"

#include <pthread.h>

#include "base/error.h"
#include "base/memory.h"

typedef struct patch {
    struct patch *outer;
    bth_layer values;             /* with those of the outer patches */
    bool is_own[BTH_MAX_OPTIONS]; /* this patch set it, not an outer one */
} patch;

static pthread_once_t patch_once = PTHREAD_ONCE_INIT;
static pthread_key_t patch_key;
static bool patch_key_made;

/* At the end of a thread, also if it did not undo its patches. */
static void patch_free_all(void *innermost)
{
    patch *inner = innermost;

    while (inner) {
        patch *outer = inner->outer;
        bth_release(inner);
        inner = outer;
    }
}

static void patch_make_key(void)
{
    patch_key_made = pthread_key_create(&patch_key, patch_free_all) == 0;
}

static patch *patch_innermost(void)
{
    (void)pthread_once(&patch_once, patch_make_key);
    return patch_key_made ? pthread_getspecific(patch_key) : NULL;
}

const bth_layer *bth_patch_values(void)
{
    const patch *inner = patch_innermost();

    return inner ? &inner->values : NULL;
}

int bth_patch_begin(const bth_layer *values, berth_error *error)
{
    patch *outer = patch_innermost();
    patch *inner = bth_allocate_zeroed(sizeof *inner);

    if (!inner)
        return bth_fail_memory(error, sizeof *inner);
    inner->outer = outer;
    if (outer)
        inner->values = outer->values;
    bth_layer_merge(&inner->values, values);
    for (size_t i = 0; i < BTH_MAX_OPTIONS; i++)
        inner->is_own[i] = values->source[i] != NULL;
    if (!patch_key_made || pthread_setspecific(patch_key, inner) != 0) {
        bth_release(inner);
        return bth_fail_status(error, BERTH_E_MEMORY, "out of memory for thread-local values");
    }
    return 0;
}

bool bth_patch_end(void)
{
    patch *inner = patch_innermost();

    if (!inner)
        return false;
    (void)pthread_setspecific(patch_key, inner->outer); /* cannot fail: the key is in use */
    bth_release(inner);
    return true;
}

/* Patches inside the one that has the option hold copies of its value. */
bool bth_patch_set_value(const bth_option_row *row, int64_t value)
{
    size_t i = bth_option_index(row);
    patch *at = patch_innermost();

    if (!at || !at->values.source[i])
        return false;
    for (bool is_owner = false; !is_owner; at = at->outer) {
        *bth_option_field(&at->values.values, row) = value;
        is_owner = at->is_own[i];
    }
    return true;
}

static _Thread_local struct {
    unsigned n;
    berth_error error;
} refused_scopes;

void bth_patch_begin_refused_scope(const berth_error *error)
{
    if (refused_scopes.n++ == 0)
        refused_scopes.error = *error;
}

void bth_patch_end_refused_scope(void)
{
    refused_scopes.n--;
}

void bth_patch_check_scopes(berth_error *error)
{
    if (refused_scopes.n > 0)
        *error = refused_scopes.error;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* berth_list_globals: what the pickles of a file name. Nothing of them is made. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "config/options.h"
#include "format/pickle/pickle.h"
#include "format/zip/zip.h"
#include "load/checkpoint.h"

/* Different globals that are listed: far more than any program has classes in its files. */
enum { FIRST_GLOBALS = 16, MAX_GLOBALS = 4096, N_SLOTS = 2 * MAX_GLOBALS };

/* So much of a file without a directory is looked at, and the first step towards it. */
enum { MAX_HEAD_NBYTES = 64 << 20, FIRST_HEAD_NBYTES = 1 << 20 };

typedef struct listed_global {
    char module[BTH_GLOBAL_SHOWN_NBYTES + 1], name[BTH_GLOBAL_SHOWN_NBYTES + 1];
    bool is_allowed;
} listed_global;

/* Each global once, in the order in which they are met. */
typedef struct global_list {
    listed_global *globals; /* memory for `capacity` */
    size_t capacity;
    bool is_short;           /* of memory */
    uint16_t slots[N_SLOTS]; /* 0: empty; else an index + 1 */
    size_t n;
} global_list;

static void list_add(void *context, const char *module, const char *name, bool is_allowed)
{
    global_list *list = context;
    uint64_t hash = 14695981039346656037u; /* FNV-1a; a full table is small */
    const char *texts[] = {module, name};

    for (int i = 0; i < 2; i++)
        for (const char *at = texts[i]; *at; at++)
            hash = (hash ^ (uint8_t)*at) * 1099511628211u;
    size_t slot = (size_t)(hash ^ hash >> 32) % N_SLOTS;
    for (; list->slots[slot]; slot = (slot + 1) % N_SLOTS) {
        const listed_global *global = &list->globals[list->slots[slot] - 1];
        if (strcmp(global->module, module) == 0 && strcmp(global->name, name) == 0)
            return;
    }
    if (list->n == MAX_GLOBALS || list->is_short)
        return;
    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : FIRST_GLOBALS;
        listed_global *globals = bth_allocate(capacity * sizeof *globals);
        list->is_short = !globals;
        if (!globals)
            return;
        if (list->n > 0)
            memcpy(globals, list->globals, list->n * sizeof *globals);
        bth_release(list->globals);
        list->globals = globals;
        list->capacity = capacity;
    }
    listed_global *global = &list->globals[list->n++];
    (void)snprintf(global->module, sizeof global->module, "%s", module);
    (void)snprintf(global->name, sizeof global->name, "%s", name);
    global->is_allowed = is_allowed;
    list->slots[slot] = (uint16_t)list->n;
}

/* ---- where pickles are ---- */

/* Pickles from an offset on: the head is read further until they end. */
static int list_from_head(global_list *list, bth_head_cache *cache, uint64_t offset,
                          size_t n_pickles, berth_error *error)
{
    bool is_whole = false;

    for (uint64_t nbytes = FIRST_HEAD_NBYTES; !is_whole && nbytes <= MAX_HEAD_NBYTES; nbytes *= 4) {
        if (bth_head_cache_extend_head(cache, offset + nbytes, error) < 0)
            return error->code;
        if (offset >= cache->head_nbytes ||
            bth_pickle_list_globals(cache->head + offset, (size_t)(cache->head_nbytes - offset),
                                    n_pickles, list_add, list, &is_whole, error) < 0 ||
            cache->head_nbytes == cache->reader->nbytes)
            break;
    }
    return error->code;
}

static bool name_is_pickle(const char *name, size_t nbytes)
{
    static const char end[] = ".pkl";
    size_t n = sizeof end - 1;

    return nbytes > n && memcmp(name + nbytes - n, end, n) == 0;
}

static int list_from_zip(global_list *list, bth_head_cache *cache, berth_error *error)
{
    bth_container container = {0};
    berth_error broken; /* what is wrong with the file is told by others, except a lack of memory */
    bool is_whole;

    bth_error_clear(&broken);
    if (bth_container_read(&container, cache, BTH_ZIP_TAIL_NBYTES, &broken) < 0) {
        /* Without a good directory: the pickle that torch.save writes first. */
        const uint8_t *head = cache->head;
        size_t n = (size_t)head[26] | (size_t)head[27] << 8;
        size_t extra = (size_t)head[28] | (size_t)head[29] << 8;
        if (broken.code != BERTH_E_MEMORY && (head[8] | head[9]) == 0 &&
            n <= cache->head_nbytes - BTH_ZIP_LOCAL_NBYTES &&
            name_is_pickle((const char *)head + BTH_ZIP_LOCAL_NBYTES, n))
            (void)list_from_head(list, cache, BTH_ZIP_LOCAL_NBYTES + n + extra, 1, error);
    }
    for (size_t i = 0; container.known && error->code == 0 && i < container.directory.n_entries;
         i++) {
        const bth_zip_entry *entry = bth_container_entry_in_file_order(&container, i);
        const uint8_t *bytes;
        uint8_t *owned = NULL;
        if (!name_is_pickle(entry->record, strlen(entry->record)))
            continue;
        bth_error_clear(&broken);
        if (bth_container_check_entry(&container, cache, i, &broken) == 0 &&
            bth_entry_read_data(entry, cache, &bytes, &owned, &broken) == 0)
            (void)bth_pickle_list_globals(bytes, (size_t)entry->nbytes, 1, list_add, list,
                                          &is_whole, error);
        bth_release(owned);
        if (broken.code == BERTH_E_MEMORY)
            break;
    }
    if (broken.code == BERTH_E_MEMORY)
        *error = broken;
    bth_container_free(&container);
    return error->code;
}

int berth_list_globals(const berth_source *source, berth_global_function report, void *context,
                       berth_error *error)
{
    global_list list = {0};
    bth_found_global found = {0};
    bth_head_cache cache;
    bth_reader reader;

    BTH_ERROR_BEGIN(error);
    if (!report)
        return bth_fail_argument(error, "berth_list_globals needs a function");
    if (bth_source_check_open_arguments(source, &list, error) < 0)
        return error->code;
    if (bth_reader_open_source(source, &reader, error) < 0)
        return bth_error_prefix(error, bth_source_name(source));
    bth_head_cache_initialize(&cache, &reader, BTH_LARGE_PAGES_OFF);
    if (bth_head_cache_extend_head(&cache, BTH_HEAD_MIN_NBYTES, error) == 0) {
        size_t n = (size_t)cache.head_nbytes;
        bool is_pickle = n > 2 && cache.head[0] == 0x80 && cache.head[1] <= 5;
        if (n > BTH_ZIP_LOCAL_NBYTES && memcmp(cache.head, "PK\3\4", 4) == 0) {
            (void)list_from_zip(&list, &cache, error);
        } else {
            /* A bare one, or the legacy format in another protocol, shows in its first bytes. */
            if (!is_pickle && !bth_is_legacy(cache.head, n))
                bth_pickle_find_global(cache.head, n, false, &found);
            if (is_pickle || bth_is_legacy(cache.head, n) || found.is_pickle)
                (void)list_from_head(&list, &cache, 0, BTH_LEGACY_N_PICKLES, error);
        }
    }
    bth_head_cache_free(&cache);
    if (error->code == 0 && list.is_short)
        (void)bth_fail_memory(error, 2 * list.capacity * sizeof *list.globals);
    if (error->code < 0)
        (void)bth_error_prefix(error, reader.name);
    bth_reader_close(&reader);
    for (size_t i = 0; error->code == 0 && i < list.n; i++)
        report(context, list.globals[i].module, list.globals[i].name, list.globals[i].is_allowed);
    bth_release(list.globals);
    return error->code;
}

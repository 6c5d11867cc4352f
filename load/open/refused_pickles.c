/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a pickle is that is no checkpoint, and what a refused pickle names. A file that names a
 * function gets no command that would run it.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "format/pickle/pickle.h"
#include "load/open/refusal.h"

#define NAMES "; it names %s, which Berth never calls"

/* Behind the byte at which a file in the legacy format is refused, its pickles are looked at so
 * far, however many bytes an open has read. */
#define LEGACY_NBYTES (64 << 10)

/* So much of the .metadata in a folder is looked at. */
#define METADATA_NBYTES (64 << 10)

/* Refuses the kind, or what it is without its command, and the global that was found. */
static void kind_refuse(const bth_file_kind *kind, const bth_head_cache *cache,
                        const bth_found_global *found, berth_error *error)
{
    const bth_file_kind what = {.what = kind->what};

    (void)bth_file_kind_refuse(*found->words ? &what : kind, cache->reader, error);
    if (*found->words)
        (void)bth_error_append(error, NAMES, found->words);
}

/* ---- tar archives ---- */

/* Octal digits. A number that is cut short is too small, which does no harm. */
static uint64_t tar_member_nbytes(const uint8_t *header)
{
    uint64_t nbytes = 0;

    for (size_t i = 124; i < 136; i++)
        if (header[i] >= '0' && header[i] <= '7')
            nbytes = nbytes << 3 | (uint64_t)(header[i] - '0');
    return nbytes;
}

/* In the members that begin in these bytes. */
static void tar_find_global(const uint8_t *bytes, uint64_t nbytes, bth_found_global *found)
{
    enum { BLOCK_NBYTES = 512 };
    uint64_t at = 0;

    *found = (bth_found_global){0};
    while (nbytes - at > BLOCK_NBYTES && !*found->words) {
        uint64_t left = nbytes - at - BLOCK_NBYTES, member = tar_member_nbytes(bytes + at);
        at += BLOCK_NBYTES;
        bth_pickle_find_global(bytes + at, (size_t)(member < left ? member : left), false, found);
        if (member > left - left % BLOCK_NBYTES)
            return;
        at += (member + BLOCK_NBYTES - 1) / BLOCK_NBYTES * BLOCK_NBYTES;
    }
}

void bth_head_refuse_tar(const bth_head_cache *cache, berth_error *error)
{
    static const char *const members[] = {"sys_info", "pickle", "tensors", "storages"};
    static const bth_file_kind other = {"a tar archive, not a PyTorch checkpoint",
                                        {"tar -xf ", "", "unpacks it", NULL, false}};
    const char *first = (const char *)cache->head;
    bth_found_global found;

    if (cache->head_nbytes < 262 || memcmp(cache->head + 257, "ustar", 5) != 0)
        return;
    tar_find_global(cache->head, cache->head_nbytes, &found);
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        if (strncmp(first, members[i], 100) != 0)
            continue;
        (void)bth_fail_status(error, BERTH_E_NOT_CHECKPOINT,
                              "a tar file, as PyTorch wrote them before 2017");
        if (*found.words)
            (void)bth_error_append(error, NAMES, found.words);
        else
            (void)bth_error_append(error,
                                   ": load it with PyTorch (weights_only=False) and save it again");
        return;
    }
    (void)bth_file_kind_refuse(&other, cache->reader, error);
}

/* ---- the legacy format, bare pickles ---- */

static const bth_step resave_by_pytorch = {BTH_RESAVE_BY_PYTORCH, "", BTH_RESAVE_DOES,
                                           "PyTorch (weights_only=False) " BTH_RESAVE_DOES, false};

/* The legacy format in another protocol than 2 and 3: its first pickle is the magic number. */
static const char *head_find_other_legacy_protocol(const bth_head_cache *cache)
{
    static const char line[] = "L119547037146038801333356L\n."; /* protocols 0 and 1 */
    static const char number[] = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
    enum { PROTO_AND_FRAME_NBYTES = 11 };

    if (cache->head_nbytes >= sizeof line - 1 && memcmp(cache->head, line, sizeof line - 1) == 0)
        return "0 (whose tensors nobody can read) or 1";
    if (cache->head_nbytes < PROTO_AND_FRAME_NBYTES + sizeof number - 1 || cache->head[0] != 0x80 ||
        memcmp(cache->head + PROTO_AND_FRAME_NBYTES, number, sizeof number - 1) != 0)
        return NULL;
    return cache->head[1] == 4 ? "4" : cache->head[1] == 5 ? "5" : NULL;
}

void bth_head_refuse_legacy_protocol(const bth_head_cache *cache, berth_error *error)
{
    const char *protocol = head_find_other_legacy_protocol(cache);
    char what[160];
    const bth_file_kind kind = {what, resave_by_pytorch};
    bth_found_global found;

    if (!protocol)
        return;
    (void)snprintf(what, sizeof what,
                   "in the legacy format, saved with pickle_protocol=%s" BTH_REFUSED_FOR_PROTOCOL,
                   protocol);
    bth_pickle_find_global(cache->head, (size_t)cache->head_nbytes, false, &found);
    kind_refuse(&kind, cache, &found, error);
}

/* Whether these are PyTorch's classes of a checkpoint in a directory. */
static bool head_is_distributed_metadata(const bth_head_cache *cache)
{
    static const char module[] = "torch.distributed.checkpoint.metadata";

    return memmem(cache->head, (size_t)cache->head_nbytes, module, sizeof module - 1) != NULL;
}

void bth_head_refuse_pickle(const bth_head_cache *cache, berth_error *error)
{
    static const bth_file_kind bare = {.what = "a bare pickle, not a PyTorch checkpoint"};
    const bth_file_kind metadata = {"the .metadata of a checkpoint of torch.distributed.checkpoint",
                                    bth_dcp_to_torch};
    bool has_protocol = cache->head_nbytes >= 2 && cache->head[0] == 0x80;
    bool is_distributed = has_protocol && head_is_distributed_metadata(cache);
    bth_found_global found;

    if (has_protocol && cache->head[1] > 5)
        return;
    bth_pickle_find_global(cache->head, (size_t)cache->head_nbytes, is_distributed, &found);
    if (!has_protocol && !found.is_pickle)
        return;
    kind_refuse(is_distributed && !*found.words ? &metadata : &bare, cache, &found, error);
}

int bth_folder_explain(const berth_source *source, berth_error *error)
{
    char place[4096];
    berth_error found;
    bth_reader reader;
    bth_head_cache cache;

    if (error->code != BERTH_E_NOT_CHECKPOINT || source->kind != BERTH_SOURCE_PATH ||
        snprintf(place, sizeof place, "%s/.metadata", source->path) >= (int)sizeof place)
        return error->code;
    const berth_source metadata = berth_from_path(place);
    bth_error_clear(&found);
    if (bth_reader_open_source(&metadata, &reader, &found) < 0)
        return error->code;
    bth_head_cache_initialize(&cache, &reader, BTH_LARGE_PAGES_OFF);
    if (bth_head_cache_extend_head(&cache, METADATA_NBYTES, &found) == 0)
        bth_head_refuse_pickle(&cache, &found);
    if (found.code == BERTH_E_NOT_CHECKPOINT)
        (void)bth_error_append(error, "; in it is %s", found.message);
    bth_head_cache_free(&cache);
    bth_reader_close(&reader);
    return error->code;
}

/* ---- pickles of checkpoints ---- */

/* The codes of the reader of pickles; none has failed of a file or of memory. */
static bool error_is_refusal(const berth_error *error)
{
    static const berth_status codes[] = {BERTH_E_FORBIDDEN, BERTH_E_PICKLE, BERTH_E_UNSUPPORTED,
                                         BERTH_E_TENSOR, BERTH_E_TRUNCATED};

    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (error->code == codes[i])
            return true;
    return false;
}

static bool error_ends_with(const berth_error *error, const char *end)
{
    size_t n = strlen(error->message), n_end = strlen(end);

    return n > n_end && strcmp(error->message + n - n_end, end) == 0;
}

/* Protocols 4 and 5, if the file is no legacy file. */
static bool pickle_is_read_inert(const uint8_t *bytes, size_t nbytes)
{
    return nbytes > 2 && bytes[0] == 0x80 && bytes[1] >= 4;
}

int bth_pickle_explain_refusal(const uint8_t *bytes, size_t nbytes, const bth_reader *reader,
                               berth_error *error)
{
    static const bth_step convert = {BTH_CONVERT_INERT, " NEW.pt",
                                     "saves it again without running anything", NULL, false};
    static const bth_step list = {"berth ls --set load.unknown_globals=inert ", "", "", "", false};
    bth_found_global found;

    if (!error_is_refusal(error))
        return error->code;
    bth_pickle_find_global(bytes, nbytes, false, &found);
    if (error_ends_with(error, BTH_REFUSED_FOR_PROTOCOL) && pickle_is_read_inert(bytes, nbytes))
        (void)bth_error_append_step(error, ": ", &convert, reader);
    if (*found.words && !strstr(error->message, found.words + sizeof "the " - 1))
        return bth_error_append(error, NAMES, found.words);
    if (error_ends_with(error, BTH_REFUSED_FOR_GLOBAL))
        return bth_error_append_step(error, ": ", &list, reader);
    if (!*found.words && error_ends_with(error, BTH_REFUSED_FOR_PROTOCOL))
        return bth_error_append_step(error, ": ", &resave_by_pytorch, reader);
    return error->code;
}

int bth_legacy_explain_refusal(bth_head_cache *cache, berth_error *error)
{
    uint64_t nbytes = LEGACY_NBYTES;
    berth_error ignored;

    bth_error_clear(&ignored);
    if (error->offset != BERTH_NO_OFFSET && error->offset < cache->reader->nbytes)
        nbytes += error->offset;
    if (nbytes > cache->reader->nbytes)
        nbytes = cache->reader->nbytes;
    if (!error_is_refusal(error) || bth_head_cache_extend_head(cache, nbytes, &ignored) < 0)
        return error->code;
    return bth_pickle_explain_refusal(cache->head, (size_t)nbytes, cache->reader, error);
}

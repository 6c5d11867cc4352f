/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * From a source to values whose storages have offsets. One read of the head, and arithmetic where
 * the file follows the layout; the directory where it does not, or where load.check asks for it.
 */
#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/layout.h"
#include "format/pickle/pickle.h"
#include "format/pickle/stream_read.h"
#include "io/pages.h"
#include "load/checkpoint.h"

/* What the directory may list besides storages, in the guess of its size. */
#define OTHERS_NBYTES 4096
/* So much more than that is read with it: a request costs more. */
#define REST_NBYTES (1 << 20)

/* ---- what kind of file it is ---- */

static bool is_tar(const uint8_t *head, uint64_t nbytes)
{
    return nbytes >= 262 && memcmp(head + 257, "ustar", 5) == 0;
}

/* A safetensors file: the length of a JSON object, and the object. */
static bool is_safetensors(const uint8_t *head, uint64_t nbytes, uint64_t file_nbytes)
{
    uint64_t length = 0;

    for (size_t i = 8; nbytes > 8 && i > 0; i--)
        length = length << 8 | head[i - 1];
    return length >= 2 && length <= file_nbytes - 8 && head[8] == '{';
}

int bth_refuse_kind(const uint8_t *head, uint64_t nbytes, uint64_t file_nbytes, berth_error *error)
{
    char begin[24] = "";
    const char *text = NULL;

    if (nbytes == 0)
        text = "the file is empty";
    else if (nbytes >= 4 && memcmp(head, "PK\5\6", 4) == 0)
        text = "a zip archive without any record";
    else if (is_tar(head, nbytes))
        text = "a tar file, as PyTorch wrote them before 2017: load it with PyTorch "
               "(weights_only=False) and save it again";
    else if (is_safetensors(head, nbytes, file_nbytes))
        text = "a safetensors file, not a PyTorch checkpoint: `berth convert` makes one of it";
    else if (nbytes >= 2 && head[0] == 0x1f && head[1] == 0x8b)
        text = "compressed by gzip: unpack it first";
    else if (nbytes >= 2 && head[0] == 0x80 && head[1] <= 5)
        text = "a bare pickle, not a PyTorch checkpoint";
    if (text)
        return bth_fail(error, BERTH_E_NOT_CHECKPOINT, NULL, BERTH_NO_OFFSET, "%s", text);
    for (size_t i = 0; i < 4 && i < nbytes; i++) {
        static const char digits[] = "0123456789abcdef";
        begin[3 * i] = ' ';
        begin[3 * i + 1] = digits[head[i] >> 4];
        begin[3 * i + 2] = digits[head[i] & 15];
    }
    return bth_fail(error, BERTH_E_NOT_CHECKPOINT, NULL, BERTH_NO_OFFSET,
                    "neither a zip archive nor a PyTorch stream: it begins with%s", begin);
}

/* Zips of PyTorch that are no checkpoints; told by names only. */
static int refuse_archive(const bth_container *container, berth_error *error)
{
    bool has_code = false;

    for (size_t i = 0; i < container->directory.n_entries && !has_code; i++)
        has_code = strncmp(container->directory.entries[i].record, "code/", 5) == 0;
    if (has_code && bth_container_find(container, "constants.pkl"))
        return bth_fail(error, BERTH_E_NOT_CHECKPOINT, NULL, BERTH_NO_OFFSET,
                        "a TorchScript archive (code/, constants.pkl): a program, which is never "
                        "run; its records can be listed, but it has no values to read");
    if (bth_container_find(container, "data.pkl"))
        return 0;
    if (bth_container_find(container, ".data/extern_modules"))
        return bth_fail(error, BERTH_E_NOT_CHECKPOINT, NULL, BERTH_NO_OFFSET,
                        "a torch.package archive (.data/extern_modules, no data.pkl): a program, "
                        "which is never run; its records can be listed, but it has no values to "
                        "read");
    return bth_fail(error, BERTH_E_NOT_CHECKPOINT, NULL, BERTH_NO_OFFSET,
                    "a zip archive without data.pkl: not a PyTorch checkpoint");
}

/* ---- the steps ---- */

/*
 * Values take some five times the bytes of their pickle, and each page of them costs more than what
 * is written to it: large ones, where there are many. Without this memory all works as well.
 */
static void give_memory(berth_checkpoint *checkpoint, size_t pickle_nbytes)
{
    uint64_t n_pages = 5 * (uint64_t)pickle_nbytes / BTH_LARGE_PAGE_NBYTES;
    uint64_t nbytes = n_pages * BTH_LARGE_PAGE_NBYTES;
    berth_error unasked;

    bth_error_clear(&unasked);
    if (n_pages > 0 &&
        bth_region_new(nbytes, 4096, false, &checkpoint->contents.values, &unasked) == 0)
        bth_tree_give(checkpoint->contents.tree, checkpoint->contents.values.bytes, (size_t)nbytes);
}

static int read_values(berth_checkpoint *checkpoint, const uint8_t *bytes, size_t nbytes,
                       uint64_t offset, const bth_pickle_survey *survey, berth_error *error)
{
    bth_pickle_rules rules = {.survey = survey,
                              .inert = checkpoint->config.load_unknown_globals == BTH_UNKNOWN_INERT,
                              .record = bth_small_names[BTH_DATA_PKL],
                              .base_offset = offset};

    give_memory(checkpoint, nbytes);
    if (bth_pickle_read(bytes, nbytes, &rules, checkpoint->contents.tree,
                        &checkpoint->contents.root, error) < 0)
        return error->code;
    checkpoint->storages.n = bth_tree_n_storages(checkpoint->contents.tree);
    return 0;
}

/* Local headers and descriptors against the directory, as far as load.check goes (Z5 to Z7). */
static int check_headers(berth_checkpoint *checkpoint, bth_window *window, berth_error *error)
{
    bool all = checkpoint->config.load_check >= BTH_CHECK_HEADERS;

    if (bth_container_check_headers(&checkpoint->contents.container, window, 0, all, error) < 0)
        return error->code;
    if (checkpoint->config.load_check >= BTH_CHECK_DIRECTORY)
        return bth_zip_check_ranges(&checkpoint->contents.container.directory,
                                    &checkpoint->contents.container.end, 0, 0, error);
    return 0;
}

static void say_fallback(const berth_checkpoint *checkpoint, const char *reason)
{
    bth_log("%s: storages are found through the directory, not by calculated offsets: %s",
            checkpoint->source.reader.name, reason);
}

/* ---- by arithmetic ---- */

/*
 * What directory and end records take, if they list just what they must; or all that lies behind
 * the storages, where that is little more: their records' headers are looked at, too.
 */
static uint64_t guess_tail(const berth_checkpoint *checkpoint)
{
    uint64_t guess = checkpoint->contents.central_nbytes + OTHERS_NBYTES + BTH_ZIP_END_NBYTES;
    uint64_t rest = checkpoint->source.reader.nbytes - checkpoint->contents.layout_end;

    return rest > guess && rest - guess <= REST_NBYTES ? rest : guess;
}

/* What the layout does not know, which lies behind all that it does. */
static int check_rest(berth_checkpoint *checkpoint, bth_window *window, berth_error *error)
{
    size_t n_known = checkpoint->storages.n;

    for (int which = 0; which < BTH_N_SMALL; which++)
        n_known += checkpoint->contents.small[which].present;
    return bth_container_check_rest(&checkpoint->contents.container, window, n_known, error);
}

/* FORMAT.md 6: PyTorch's own rare file, whose calculated offsets are wrong. */
static int take_longer_record(berth_checkpoint *checkpoint, bth_window *window, berth_error *error)
{
    if (check_headers(checkpoint, window, error) < 0 ||
        bth_check_small_listed(checkpoint, error) < 0 || bth_take_offsets(checkpoint, error) < 0)
        return error->code;
    checkpoint->contents.calculated_offsets = false;
    say_fallback(checkpoint, "a record is longer than its elements");
    return 0;
}

/*
 * The layout against the directory alone, so that a difference is told as what it is; then, where
 * local headers are asked for, again with them: they may show one in an earlier record.
 */
static int compare_layout(berth_checkpoint *checkpoint, bth_window *window, berth_error *error)
{
    berth_error unasked;

    if (bth_check_layout(checkpoint, error) != BERTH_E_OFFSETS ||
        checkpoint->config.load_check < BTH_CHECK_HEADERS)
        return error->code;
    bth_error_clear(&unasked);
    (void)bth_container_check_headers(&checkpoint->contents.container, window, 0, false, &unasked);
    bth_error_clear(error);
    return bth_check_layout(checkpoint, error);
}

/* load.check from directory upwards: what was computed against what is told. */
static int compare_computed(berth_checkpoint *checkpoint, bth_window *window, berth_error *error)
{
    bth_container *container = &checkpoint->contents.container;
    const uint8_t *directory;

    if (bth_container_fetch(container, window, guess_tail(checkpoint), &directory, error) < 0)
        return error->code;
    if (checkpoint->config.load_check < BTH_CHECK_HEADERS &&
        !checkpoint->contents.keeps_directory &&
        bth_listing_take_rendered(checkpoint, directory, window, error) < 0)
        return error->code;
    if (checkpoint->contents.listing.known)
        return 0;
    if (bth_container_parse(container, directory, error) < 0 ||
        refuse_archive(container, error) < 0 || bth_check_storages(checkpoint, error) < 0)
        return error->code;
    if (checkpoint->contents.has_longer_record)
        return take_longer_record(checkpoint, window, error);
    if (compare_layout(checkpoint, window, error) < 0)
        return error->code;
    if (checkpoint->config.load_check < BTH_CHECK_HEADERS)
        return check_rest(checkpoint, window, error);
    if (check_headers(checkpoint, window, error) < 0)
        return error->code;
    return bth_check_layout(checkpoint, error);
}

static int read_computed(berth_checkpoint *checkpoint, bth_window *window, uint64_t cursor,
                         berth_error *error)
{
    const bth_small *pickle = &checkpoint->contents.small[BTH_DATA_PKL];

    if (bth_check_small_layout(checkpoint, cursor, error) < 0 ||
        read_values(checkpoint, window->head + pickle->data_offset, pickle->nbytes,
                    pickle->data_offset, &checkpoint->contents.survey, error) < 0 ||
        bth_compute_offsets(checkpoint, cursor, error) < 0)
        return error->code;
    checkpoint->contents.calculated_offsets = true;
    /* The directory first: it can name both offsets. */
    if (checkpoint->config.load_check >= BTH_CHECK_DIRECTORY &&
        compare_computed(checkpoint, window, error) < 0)
        return error->code;
    if (!checkpoint->contents.calculated_offsets)
        return 0;
    return bth_check_first_storage(checkpoint, cursor, window, error);
}

/* ---- through the directory ---- */

static int take_small(berth_checkpoint *checkpoint, bth_window *window, int which,
                      berth_error *error)
{
    const char *record = bth_small_names[which];
    const bth_zip_entry *entry = bth_container_find(&checkpoint->contents.container, record);
    const uint8_t *bytes;
    uint8_t *owned;

    if (!entry)
        return 0;
    if (bth_container_bytes(entry, window, &bytes, &owned, error) < 0)
        return error->code;
    checkpoint->contents.small[which] = (bth_small){.present = true,
                                                    .header_offset = entry->header_offset,
                                                    .data_offset = entry->data_offset,
                                                    .nbytes = entry->nbytes,
                                                    .crc32 = entry->crc32,
                                                    .flags = entry->flags};
    if (which == BTH_DATA_PKL)
        (void)read_values(checkpoint, bytes, entry->nbytes, entry->data_offset, NULL, error);
    else
        (void)bth_small_take(checkpoint, which, bytes, entry->nbytes, entry->data_offset, error);
    bth_release(owned);
    return error->code;
}

/*
 * A file that claims the layout (.format_version) is read by PyTorch with calculated offsets, so it
 * must follow it; or someone says load.calculate_storage_offsets=off, and no reading but the
 * directory's is meant. Debug mode then still tells the difference.
 */
static int compare_listed(berth_checkpoint *checkpoint, berth_error *error)
{
    bool is_off = !checkpoint->config.load_calculate_storage_offsets;

    if (checkpoint->contents.format_version < 1 || checkpoint->contents.has_longer_record ||
        checkpoint->config.load_check < BTH_CHECK_DIRECTORY ||
        (is_off && !checkpoint->config.debug))
        return 0;
    if (bth_check_layout(checkpoint, error) == 0 || !is_off || error->code == BERTH_E_MEMORY)
        return error->code;
    bth_log("%s: %s", checkpoint->source.reader.name, error->message);
    bth_error_clear(error);
    return 0;
}

static int read_listed(berth_checkpoint *checkpoint, bth_window *window, const char *reason,
                       berth_error *error)
{
    bth_container *container = &checkpoint->contents.container;

    if (bth_container_read(container, window, BTH_ZIP_TAIL_NBYTES, error) < 0 ||
        refuse_archive(container, error) < 0 || check_headers(checkpoint, window, error) < 0)
        return error->code;
    bth_release(checkpoint->contents.archive);
    checkpoint->contents.archive =
        bth_duplicate(container->directory.archive, container->directory.archive_nbytes);
    if (!checkpoint->contents.archive)
        return bth_fail_memory(error, container->directory.archive_nbytes);
    for (int which = BTH_N_SMALL; which-- > 0;) /* data.pkl last */
        if (take_small(checkpoint, window, which, error) < 0)
            return error->code;
    if (bth_check_storages(checkpoint, error) < 0 || compare_listed(checkpoint, error) < 0)
        return error->code;
    say_fallback(checkpoint, reason);
    return bth_take_offsets(checkpoint, error);
}

static int read_zip(berth_checkpoint *checkpoint, bth_window *window, berth_error *error)
{
    const char *reason = "load.calculate_storage_offsets=off";
    uint64_t cursor = 0;

    if (checkpoint->config.load_calculate_storage_offsets &&
        bth_head_read(checkpoint, window, &cursor, &reason, error) < 0)
        return error->code;
    if (!reason)
        return read_computed(checkpoint, window, cursor, error);
    /* Nothing that was found on the way counts. */
    memset(checkpoint->contents.small, 0, sizeof checkpoint->contents.small);
    checkpoint->contents.format_version = checkpoint->contents.storage_alignment = 0;
    return read_listed(checkpoint, window, reason, error);
}

/* ---- all of it ---- */

/* What is assumed until a byteorder record tells (FORMAT.md 7). */
static bool assumes_big(const struct berth_config *config)
{
    if (config->load_endianness == BTH_BYTEORDER_NATIVE)
        return __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;
    return config->load_endianness == BTH_BYTEORDER_BIG;
}

static int read_any(berth_checkpoint *checkpoint, bth_window *window, berth_error *error)
{
    uint64_t head_nbytes = (uint64_t)checkpoint->config.load_head_nbytes;
    uint64_t file_nbytes = checkpoint->source.reader.nbytes;

    if (head_nbytes < BTH_LEAST_HEAD_NBYTES)
        head_nbytes = BTH_LEAST_HEAD_NBYTES;
    if (bth_window_grow_head(window, head_nbytes, error) < 0)
        return error->code;
    checkpoint->contents.is_big = assumes_big(&checkpoint->config);
    if (window->head_nbytes >= 4 && memcmp(window->head, "PK\3\4", 4) == 0)
        return read_zip(checkpoint, window, error);
    if (bth_stream_is(window->head, window->head_nbytes))
        return bth_checkpoint_read_stream(checkpoint, window, error);
    return bth_refuse_kind(window->head, window->head_nbytes, file_nbytes, error);
}

int bth_checkpoint_read(berth_checkpoint *checkpoint, berth_error *error)
{
    bth_window window;

    checkpoint->contents.tree = berth_tree_new(error);
    if (!checkpoint->contents.tree)
        return error->code;
    bth_window_begin(&window, &checkpoint->source.reader);
    (void)read_any(checkpoint, &window, error);
    bth_window_free(&window);
    return error->code;
}

int bth_checkpoint_need_directory(berth_checkpoint *checkpoint, berth_error *error)
{
    bth_window window;

    if (checkpoint->contents.is_stream || checkpoint->contents.container.known)
        return 0;
    bth_window_begin(&window, &checkpoint->source.reader);
    (void)bth_container_read(&checkpoint->contents.container, &window, guess_tail(checkpoint),
                             error);
    bth_window_free(&window);
    return error->code;
}

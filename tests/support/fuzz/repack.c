/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/fuzz/repack.h"

#include "tests/support/fuzz/repack_archive.h"

#define MAX_DATA_NBYTES 65536

/* The data of what is added. */
static const uint8_t zeros[256];

/* ---- the checkpoints ---- */

static const char *const paths[] = {
    "tests/data/torch/small.pt",           "tests/data/torch/many.pt",
    "tests/data/torch/scalar.pt",          "tests/data/torch/unaligned.pt",
    "tests/data/torch/zipped-again.pt",    "tests/data/old/views-1.13-zip.pth",
    "tests/data/torch/deflated-pickle.pt", "tests/data/old/rare-1.13-zip.pth",
};
#define N_PATHS (sizeof paths / sizeof *paths)

size_t repack_n_checkpoints(void)
{
    return N_PATHS;
}

static const uint8_t *checkpoint_bytes(size_t i, size_t *nbytes)
{
    static struct {
        uint8_t bytes[MAX_DATA_NBYTES];
        size_t nbytes;
    } kept[N_PATHS];

    if (kept[i].nbytes == 0) {
        FILE *file = fopen(paths[i], "rb");
        MUST(file, "%s does not open", paths[i]);
        kept[i].nbytes = fread(kept[i].bytes, 1, sizeof kept[i].bytes, file);
        MUST(kept[i].nbytes < sizeof kept[i].bytes && fclose(file) == 0, "%s", paths[i]);
    }
    *nbytes = kept[i].nbytes;
    return kept[i].bytes;
}

/* Its entries, as zipfile would write them. */
static void archive_begin(struct repack_archive *archive, const uint8_t *bytes, size_t nbytes)
{
    static struct parts parts;

    *archive = (struct repack_archive){.is_honest = true};
    MUST(take_apart(bytes, nbytes, &parts) && parts.is_whole, "a checkpoint");
    for (size_t i = 0; i < parts.n; i++) {
        const struct part *part = &parts.list[i];
        struct repack_entry *entry = &archive->entries[archive->n];
        memcpy(entry->name, part->name, part->name_nbytes);
        entry->name_nbytes = part->name_nbytes;
        entry->data = part->data;
        entry->nbytes = part->nbytes;
        entry->n = part->n;
        entry->crc32 = part->crc32;
        entry->method = part->method;
        archive->listed[archive->n] = (uint8_t)archive->n;
        archive->n++;
    }
}

/* ---- steps ---- */

static void swap(struct repack_entry *a, struct repack_entry *b)
{
    struct repack_entry kept = *a;

    *a = *b;
    *b = kept;
}

/* Behind all others, unless there is one of this name, or no room. `attributes`: of a folder. */
static void entry_add(struct repack_archive *archive, const char *record, size_t nbytes,
                      uint32_t attributes)
{
    const struct repack_entry *first = &archive->entries[0];
    size_t top = (size_t)((const char *)memchr(first->name, '/', first->name_nbytes) - first->name);
    struct repack_entry made = {0};

    int n = snprintf(made.name, sizeof made.name, "%.*s/%s", (int)top, first->name, record);
    if (archive->n == REPACK_MAX_ENTRIES || n < 0 || (size_t)n >= sizeof made.name)
        return;
    made.name_nbytes = (uint32_t)n;
    for (size_t i = 0; i < archive->n; i++)
        if (strcasecmp(archive->entries[i].name, made.name) == 0)
            return;
    made.data = zeros;
    made.nbytes = made.n = (uint32_t)nbytes;
    made.crc32 = bth_crc32(0, made.data, made.nbytes);
    made.attributes = attributes;
    archive->listed[archive->n] = (uint8_t)archive->n;
    archive->entries[archive->n++] = made;
}

static bool entry_is(const struct repack_entry *entry, const char *record)
{
    size_t n = strlen(record);

    return entry->name_nbytes > n && memcmp(entry->name + entry->name_nbytes - n, record, n) == 0 &&
           memchr(entry->name, '/', entry->name_nbytes) == entry->name + entry->name_nbytes - n - 1;
}

/* What can be left out without a change of what is read. */
static bool entry_is_needless(const struct repack_entry *entry)
{
    return entry_is(entry, ".data/serialization_id") || entry_is(entry, ".format_version") ||
           entry_is(entry, ".storage_alignment") || entry_is(entry, "byteorder");
}

/* As PyTorch writes it: what has bytes has a descriptor, and data are aligned. */
static void entry_as_pytorch(struct repack_entry *entry)
{
    entry->flags = REPACK_UTF8 | (entry->nbytes > 0 ? REPACK_DESCRIPTOR : 0);
    entry->is_told_late = true;
    entry->descriptor = 0;
    entry->alignment = 64;
    entry->local_extra = entry->central_extra = entry->wide_central = 0;
    entry->is_wide_local = false;
}

/* Two entries with each other's names: what is listed differs from what it was. */
static void names_swap(struct repack_entry *a, struct repack_entry *b)
{
    const struct repack_entry kept = *a;

    memcpy(a->name, b->name, sizeof a->name);
    a->name_nbytes = b->name_nbytes;
    memcpy(b->name, kept.name, sizeof kept.name);
    b->name_nbytes = kept.name_nbytes;
}

static void lie_set(uint8_t *lie, uint8_t at, uint8_t by)
{
    lie[0] = at;
    lie[1] = by ? by : 1;
}

enum { N_HONEST_STEPS = 19, N_STEPS = 27 };
#define FOLDER_ATTRIBUTES ((uint32_t)0040755 << 16 | 0x10)

static void honest_step(struct repack_archive *archive, struct repack_entry *entry, uint8_t step,
                        uint8_t how, uint8_t more)
{
    static const char *const folders[] = {"", "data/", ".data/", "data/more/", "notes/"};
    static const char *const foreign[] = {".DS_Store",   "data/.DS_Store", "README.md",
                                          "data/0 (1)",  "data/Thumbs.db", "._version",
                                          "notes/today", "data.pkl.orig",  "data/00"};
    static const uint32_t alignments[] = {0, 1, 2, 8, 64, 64, 64, 100, 512, 4096};
    static const char *const tops[] = {"m", "archive", "my model (1)", "data", "a-long-name-of-it"};
    bool is_folder = entry->name[entry->name_nbytes - 1] == '/';
    uint8_t *listed = &archive->listed[entry - archive->entries], kept = *listed;

    switch (step) {
    case 0:
        swap(entry, &archive->entries[how % archive->n]);
        break;
    case 1:
        *listed = archive->listed[how % archive->n];
        archive->listed[how % archive->n] = kept;
        break;
    case 2:
        entry_add(archive, folders[how % 5], 0, more & 1 ? 0x10 : FOLDER_ATTRIBUTES);
        break;
    case 3:
        entry_add(archive, foreign[how % 9], more, 0);
        break;
    case 4:
        entry->is_dropped |= entry_is_needless(entry);
        break;
    case 5:
        entry->local_extra = how % 8;
        break;
    case 6:
        entry->alignment = alignments[how % 10];
        break;
    case 7:
        entry->flags |= is_folder ? 0 : REPACK_DESCRIPTOR;
        entry->descriptor = how % 4;
        entry->is_told_late = !is_folder && more & 1;
        break;
    case 8:
        entry->central_extra = how % 8;
        break;
    case 9:
        entry_as_pytorch(entry);
        break;
    case 10:
        entry->time = (uint32_t)how << 24 | (uint32_t)more << 8;
        break;
    case 11: /* what made it, and on which system */
        entry->made_by = (uint32_t)how << 8 | more;
        entry->attributes = is_folder ? FOLDER_ATTRIBUTES : (uint32_t)0100644 << 16;
        break;
    case 12:
        entry->comment_nbytes = how % 64;
        break;
    case 13:
        entry->flags = (entry->flags & ~REPACK_UTF8) | (how & 1 ? REPACK_UTF8 : 0);
        break;
    case 14: /* Z10: it was not computed */
        entry->crc32 = 0;
        break;
    case 15:
        entry->is_wide_local = how & 1;
        break;
    case 16:
        entry->wide_central = how % 8;
        break;
    case 17:
        archive->has_wide_end = how & 1;
        archive->comment_nbytes = more % 128;
        break;
    default:
        (void)snprintf(archive->top, sizeof archive->top, "%s", tops[how % 5]);
    }
}

static void lying_step(struct repack_archive *archive, struct repack_entry *entry, uint8_t step,
                       uint8_t how, uint8_t more)
{
    archive->is_honest = false;
    switch (step) {
    case 19:
        lie_set(entry->local_lie, how % (30 + 64), more);
        break;
    case 20:
        lie_set(entry->central_lie, how % (46 + 64), more);
        break;
    case 21:
        lie_set(entry->descriptor_lie, how % 24, more);
        break;
    case 22:
        lie_set(archive->end_lie, how % 98, more);
        break;
    case 23: /* any byte of the file */
        archive->image_lie[0] = (uint8_t)(entry - archive->entries);
        lie_set(archive->image_lie + 1, how, more);
        break;
    case 24:
        entry->gap = how;
        break;
    case 25: /* it lies there, and no directory lists it */
        entry->is_hidden = true;
        break;
    default:
        names_swap(entry, &archive->entries[how % archive->n]);
    }
}

/* To one entry, or to all. */
static void archive_follow(struct repack_archive *archive, const uint8_t *step)
{
    uint8_t which = step[0] % N_STEPS;
    bool is_for_all = step[1] >= RECIPE_ALL;
    size_t n = archive->n;

    for (size_t i = is_for_all ? 0 : step[1] % n; i < n; i++) {
        (which < N_HONEST_STEPS ? honest_step : lying_step)(archive, &archive->entries[i], which,
                                                            step[2], step[3]);
        if (!is_for_all)
            return;
    }
}

bool repack(const uint8_t *recipe, size_t nbytes, struct repacked *file)
{
    static struct repack_archive archive;
    struct image out = {.bytes = file->bytes, .most = sizeof file->bytes};
    const uint8_t *step = recipe + 1, *end = recipe + nbytes;

    if (nbytes == 0)
        return false;
    file->original = checkpoint_bytes(recipe[0] % N_PATHS, &file->original_nbytes);
    archive_begin(&archive, file->original, file->original_nbytes);
    for (size_t i = 0; i < RECIPE_MAX_STEPS && end - step >= RECIPE_STEP_NBYTES; i++) {
        archive_follow(&archive, step);
        step += RECIPE_STEP_NBYTES;
    }
    repack_archive_write(&archive, &out);
    file->nbytes = out.nbytes;
    file->is_honest = archive.is_honest;
    return !out.is_full;
}

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

/* ---- honest steps ---- */

static void entries_swap(struct repack_archive *archive, struct repack_entry *entry, uint8_t how,
                         uint8_t more)
{
    struct repack_entry *other = &archive->entries[how % archive->n], kept = *entry;

    (void)more;
    *entry = *other;
    *other = kept;
}

static void listed_swap(struct repack_archive *archive, struct repack_entry *entry, uint8_t how,
                        uint8_t more)
{
    size_t i = (size_t)(entry - archive->entries), k = how % archive->n;
    uint8_t kept = archive->listed[i];

    (void)more;
    archive->listed[i] = archive->listed[k];
    archive->listed[k] = kept;
}

/* Behind all others. False: there is one of this name, or no room. */
static struct repack_entry *entry_add(struct repack_archive *archive, const char *record,
                                      size_t nbytes)
{
    const struct repack_entry *first = &archive->entries[0];
    size_t top = (size_t)((const char *)memchr(first->name, '/', first->name_nbytes) - first->name);
    struct repack_entry *entry = &archive->entries[archive->n], made = {0};

    int n = snprintf(made.name, sizeof made.name, "%.*s/%s", (int)top, first->name, record);
    if (archive->n == REPACK_MAX_ENTRIES || n < 0 || (size_t)n >= sizeof made.name)
        return NULL;
    made.name_nbytes = (uint32_t)n;
    for (size_t i = 0; i < archive->n; i++)
        if (strcasecmp(archive->entries[i].name, made.name) == 0)
            return NULL;
    made.data = zeros;
    made.nbytes = made.n = (uint32_t)nbytes;
    made.crc32 = bth_crc32(0, made.data, made.nbytes);
    *entry = made;
    archive->listed[archive->n] = (uint8_t)archive->n;
    archive->n++;
    return entry;
}

static void folder_add(struct repack_archive *archive, struct repack_entry *entry, uint8_t how,
                       uint8_t more)
{
    static const char *const names[] = {"", "data/", ".data/", "data/more/", "notes/"};
    struct repack_entry *made = entry_add(archive, names[how % 5], 0);

    (void)entry;
    if (made)
        made->attributes = more & 1 ? 0x10 : (uint32_t)0040755 << 16 | 0x10;
}

static void foreign_add(struct repack_archive *archive, struct repack_entry *entry, uint8_t how,
                        uint8_t more)
{
    static const char *const names[] = {".DS_Store",   "data/.DS_Store", "README.md",
                                        "data/0 (1)",  "data/Thumbs.db", "._version",
                                        "notes/today", "data.pkl.orig",  "data/00"};

    (void)entry;
    (void)entry_add(archive, names[how % 9], more);
}

static bool entry_is(const struct repack_entry *entry, const char *record)
{
    size_t n = strlen(record);

    return entry->name_nbytes > n && memcmp(entry->name + entry->name_nbytes - n, record, n) == 0 &&
           memchr(entry->name, '/', entry->name_nbytes) == entry->name + entry->name_nbytes - n - 1;
}

/* What can be left out without a change of what is read. */
static void entry_drop(struct repack_archive *archive, struct repack_entry *entry, uint8_t how,
                       uint8_t more)
{
    static const char *const needless[] = {".data/serialization_id", ".format_version",
                                           ".storage_alignment", "byteorder"};

    (void)archive, (void)how, (void)more;
    for (size_t i = 0; i < sizeof needless / sizeof *needless; i++)
        if (entry_is(entry, needless[i]))
            entry->is_dropped = true;
}

static void local_extra_set(struct repack_archive *archive, struct repack_entry *entry, uint8_t how,
                            uint8_t more)
{
    (void)archive, (void)more;
    entry->local_extra = how % 8;
}

static void central_extra_set(struct repack_archive *archive, struct repack_entry *entry,
                              uint8_t how, uint8_t more)
{
    (void)archive, (void)more;
    entry->central_extra = how % 8;
}

static void alignment_set(struct repack_archive *archive, struct repack_entry *entry, uint8_t how,
                          uint8_t more)
{
    static const uint32_t alignments[] = {0, 1, 2, 8, 64, 64, 64, 100, 512, 4096};

    (void)archive, (void)more;
    entry->alignment = alignments[how % 10];
}

static void descriptor_set(struct repack_archive *archive, struct repack_entry *entry, uint8_t how,
                           uint8_t more)
{
    (void)archive;
    if (entry->name[entry->name_nbytes - 1] == '/')
        return;
    entry->flags |= REPACK_DESCRIPTOR;
    entry->descriptor = how % 4;
    entry->is_told_late = more & 1;
}

/* As PyTorch writes it: what has bytes has a descriptor, and data are aligned. */
static void entry_as_pytorch(struct repack_archive *archive, struct repack_entry *entry,
                             uint8_t how, uint8_t more)
{
    (void)archive, (void)how, (void)more;
    entry->flags = REPACK_UTF8 | (entry->nbytes > 0 ? REPACK_DESCRIPTOR : 0);
    entry->is_told_late = true;
    entry->descriptor = 0;
    entry->alignment = 64;
    entry->local_extra = entry->central_extra = entry->wide_central = 0;
    entry->is_wide_local = false;
}

static void time_set(struct repack_archive *archive, struct repack_entry *entry, uint8_t how,
                     uint8_t more)
{
    (void)archive;
    entry->time = (uint32_t)how << 24 | (uint32_t)more << 8;
}

/* What made it, and on which system. */
static void maker_set(struct repack_archive *archive, struct repack_entry *entry, uint8_t how,
                      uint8_t more)
{
    bool is_folder = entry->name[entry->name_nbytes - 1] == '/';

    (void)archive;
    entry->made_by = (uint32_t)how << 8 | more;
    entry->attributes = is_folder ? (uint32_t)0040755 << 16 | 0x10 : (uint32_t)0100644 << 16;
}

static void comment_set(struct repack_archive *archive, struct repack_entry *entry, uint8_t how,
                        uint8_t more)
{
    (void)archive, (void)more;
    entry->comment_nbytes = how % 64;
}

static void utf8_set(struct repack_archive *archive, struct repack_entry *entry, uint8_t how,
                     uint8_t more)
{
    (void)archive, (void)more;
    entry->flags = (entry->flags & ~REPACK_UTF8) | (how & 1 ? REPACK_UTF8 : 0);
}

/* Z10: it was not computed. */
static void sum_leave_out(struct repack_archive *archive, struct repack_entry *entry, uint8_t how,
                          uint8_t more)
{
    (void)archive, (void)how, (void)more;
    entry->crc32 = 0;
}

static void local_widen(struct repack_archive *archive, struct repack_entry *entry, uint8_t how,
                        uint8_t more)
{
    (void)archive, (void)more;
    entry->is_wide_local = how & 1;
}

static void central_widen(struct repack_archive *archive, struct repack_entry *entry, uint8_t how,
                          uint8_t more)
{
    (void)archive, (void)more;
    entry->wide_central = how % 8;
}

static void end_set(struct repack_archive *archive, struct repack_entry *entry, uint8_t how,
                    uint8_t more)
{
    (void)entry;
    archive->has_wide_end = how & 1;
    archive->comment_nbytes = more % 128;
}

static void top_rename(struct repack_archive *archive, struct repack_entry *entry, uint8_t how,
                       uint8_t more)
{
    static const char *const tops[] = {"m", "archive", "my model (1)", "data", "a-long-name-of-it"};

    (void)entry, (void)more;
    (void)snprintf(archive->top, sizeof archive->top, "%s", tops[how % 5]);
}

/* ---- lies ---- */

static void lie_set(uint8_t *lie, uint8_t at, uint8_t by)
{
    lie[0] = at;
    lie[1] = by ? by : 1;
}

static void local_lie(struct repack_archive *archive, struct repack_entry *entry, uint8_t how,
                      uint8_t more)
{
    archive->is_honest = false;
    lie_set(entry->local_lie, how % (30 + 64), more);
}

static void central_lie(struct repack_archive *archive, struct repack_entry *entry, uint8_t how,
                        uint8_t more)
{
    archive->is_honest = false;
    lie_set(entry->central_lie, how % (46 + 64), more);
}

static void descriptor_lie(struct repack_archive *archive, struct repack_entry *entry, uint8_t how,
                           uint8_t more)
{
    archive->is_honest = false;
    lie_set(entry->descriptor_lie, how % 24, more);
}

static void end_lie(struct repack_archive *archive, struct repack_entry *entry, uint8_t how,
                    uint8_t more)
{
    (void)entry;
    archive->is_honest = false;
    lie_set(archive->end_lie, how % 98, more);
}

/* Any byte of the file. */
static void image_lie(struct repack_archive *archive, struct repack_entry *entry, uint8_t how,
                      uint8_t more)
{
    archive->is_honest = false;
    archive->image_lie[0] = (uint8_t)(entry - archive->entries);
    archive->image_lie[1] = how;
    archive->image_lie[2] = more ? more : 1;
}

static void gap_lie(struct repack_archive *archive, struct repack_entry *entry, uint8_t how,
                    uint8_t more)
{
    (void)more;
    archive->is_honest = false;
    entry->gap = how;
}

/* It lies there, and no directory lists it. */
static void entry_hide(struct repack_archive *archive, struct repack_entry *entry, uint8_t how,
                       uint8_t more)
{
    (void)how, (void)more;
    archive->is_honest = false;
    entry->is_hidden = true;
}

/* Two entries with each other's names: what is listed differs from what it was. */
static void names_swap(struct repack_archive *archive, struct repack_entry *entry, uint8_t how,
                       uint8_t more)
{
    struct repack_entry *other = &archive->entries[how % archive->n], kept = *entry;

    (void)more;
    archive->is_honest = false;
    memcpy(entry->name, other->name, sizeof entry->name);
    entry->name_nbytes = other->name_nbytes;
    memcpy(other->name, kept.name, sizeof kept.name);
    other->name_nbytes = kept.name_nbytes;
}

typedef void repack_step(struct repack_archive *archive, struct repack_entry *entry, uint8_t how,
                         uint8_t more);

static repack_step *const steps[] = {
    entries_swap,    listed_swap,    folder_add,     foreign_add,       entry_drop,
    local_extra_set, alignment_set,  descriptor_set, central_extra_set, entry_as_pytorch,
    time_set,        maker_set,      comment_set,    utf8_set,          sum_leave_out,
    local_widen,     central_widen,  end_set,        top_rename,        local_lie,
    central_lie,     descriptor_lie, end_lie,        image_lie,         gap_lie,
    entry_hide,      names_swap,
};

/* To one entry, or to all. */
static void archive_follow(struct repack_archive *archive, const uint8_t *step)
{
    repack_step *follow = steps[step[0] % (sizeof steps / sizeof *steps)];
    bool is_for_all = step[1] >= RECIPE_ALL;
    size_t n = archive->n;

    if (!is_for_all)
        follow(archive, &archive->entries[step[1] % n], step[2], step[3]);
    for (size_t i = 0; is_for_all && i < n; i++)
        follow(archive, &archive->entries[i], step[2], step[3]);
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

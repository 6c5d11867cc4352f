/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/hostile/recipe.h"
#include "tests/support/load/archive.h"

/* What is true of a record: what its headers tell where the recipe says nothing. */
struct truth {
    uint16_t flags;
    uint16_t method;
    uint32_t crc32;
    uint64_t compressed_nbytes;
    uint64_t nbytes;
};

static struct edit *find_edit(struct recipe *recipe, const char *target, const char *field,
                              struct edit *after)
{
    for (struct edit *edit = after ? after + 1 : recipe->edits;
         edit < recipe->edits + recipe->n_edits; edit++)
        if (strcmp(edit->target, target) == 0 && strcmp(edit->field, field) == 0) {
            edit->is_used = true;
            return edit;
        }
    return NULL;
}

static uint64_t number_of(struct recipe *recipe, const char *target, const char *field,
                          uint64_t computed)
{
    for (struct edit *edit = NULL; (edit = find_edit(recipe, target, field, edit)) != NULL;)
        computed = change_number(recipe, edit->value, computed);
    return computed;
}

/* A fact as a record has it, and then as one of its headers tells it: "method", "local.method". */
static uint64_t told(struct recipe *recipe, const char *target, const char *header,
                     const char *field, uint64_t computed)
{
    char own[64];

    (void)snprintf(own, sizeof own, "%s.%s", header, field);
    return number_of(recipe, target, own, number_of(recipe, target, field, computed));
}

/* Adds bytes as computed, or as the recipe says; returns how many. */
static size_t add_told(struct recipe *recipe, struct bytes *to, const char *target,
                       const char *field, const void *computed, size_t n)
{
    struct edit *edit = find_edit(recipe, target, field, NULL);
    const struct bytes before = {.bytes = (uint8_t *)(uintptr_t)computed, .n = n};
    size_t begin = to->n;

    if (!edit)
        add_bytes(to, computed, n);
    for (const char *text = edit ? edit->value : ""; *text; text += strspn(text, " "))
        text = add_item(recipe, to, text, &before);
    return to->n - begin;
}

static struct truth truth_of(struct recipe *recipe, const struct piece *piece)
{
    const char *label = piece->label;
    bool has_descriptor = !recipe->is_foreign && piece->data.n > 0;

    return (struct truth){
        .flags = (uint16_t)number_of(recipe, label, "flags", has_descriptor ? 0x808 : 0x800),
        .method = (uint16_t)number_of(recipe, label, "method", 0),
        .crc32 = (uint32_t)number_of(recipe, label, "crc",
                                     bth_crc32(0, piece->data.bytes, piece->data.n)),
        .compressed_nbytes = number_of(recipe, label, "compressed", piece->data.n),
        .nbytes = number_of(recipe, label, "size", piece->data.n)};
}

/* The full name that a header tells. */
static void add_name(struct recipe *recipe, struct bytes *to, const char *target, const char *label,
                     const char *field)
{
    struct bytes name = {0};

    add_bytes(&name, "sample/", 7);
    add_bytes(&name, label, strlen(label));
    struct bytes both = {0};
    add_told(recipe, &both, target, "name", name.bytes, name.n);
    add_told(recipe, to, target, field, both.bytes, both.n);
    free(name.bytes);
    free(both.bytes);
}

/* What the recipe adds, and PyTorch's padding, so that data begin where the layout has them. */
static void add_local_extra(struct recipe *recipe, struct bytes *to, const char *label,
                            size_t name_nbytes)
{
    size_t n = add_told(recipe, to, label, "local.extra", "", 0);
    uint64_t begin = recipe->file.n + BTH_ZIP_LOCAL_NBYTES + name_nbytes + n + 4;
    uint64_t padding = number_of(recipe, label, "padding", -begin & 63);

    if (recipe->is_foreign && !find_edit(recipe, label, "padding", NULL))
        return;
    add_number(to, BTH_ZIP_EXTRA_PADDING, 2);
    add_number(to, padding, 2);
    for (uint64_t i = 0; i < padding; i++)
        add_bytes(to, "Z", 1);
}

static void add_local(struct recipe *recipe, struct piece *piece, const struct truth *truth)
{
    struct bytes *to = &recipe->file, name = {0}, extra = {0};
    const char *label = piece->label;
    bool later = (truth->flags & BTH_ZIP_FLAG_DESCRIPTOR) != 0;

    add_name(recipe, &name, label, label, "local.name");
    add_local_extra(recipe, &extra, label, name.n);
    add_number(to, number_of(recipe, label, "local.signature", BTH_ZIP_LOCAL_SIGNATURE), 4);
    add_number(to, told(recipe, label, "local", "version", 0), 2);
    add_number(to, number_of(recipe, label, "local.flags", truth->flags), 2);
    add_number(to, number_of(recipe, label, "local.method", truth->method), 2);
    add_number(to, told(recipe, label, "local", "time", 0), 4);
    add_number(to, number_of(recipe, label, "local.crc", later ? 0 : truth->crc32), 4);
    add_number(
        to, number_of(recipe, label, "local.compressed", later ? 0 : truth->compressed_nbytes), 4);
    add_number(to, number_of(recipe, label, "local.size", later ? 0 : truth->nbytes), 4);
    add_number(to, number_of(recipe, label, "local.name_nbytes", name.n), 2);
    add_number(to, number_of(recipe, label, "local.extra_nbytes", extra.n), 2);
    add_bytes(to, name.bytes, name.n);
    add_bytes(to, extra.bytes, extra.n);
    free(name.bytes);
    free(extra.bytes);
}

static void add_descriptor(struct recipe *recipe, const char *label, const struct truth *truth)
{
    struct bytes *to = &recipe->file;
    size_t width = (size_t)number_of(recipe, label, "descriptor.width", 4);
    bool there = (truth->flags & BTH_ZIP_FLAG_DESCRIPTOR) != 0;

    if (!number_of(recipe, label, "descriptor.there", there))
        return;
    if (number_of(recipe, label, "descriptor.signed", 1))
        add_number(
            to, number_of(recipe, label, "descriptor.signature", BTH_ZIP_DESCRIPTOR_SIGNATURE), 4);
    add_number(to, number_of(recipe, label, "descriptor.crc", truth->crc32), 4);
    add_number(to, number_of(recipe, label, "descriptor.compressed", truth->compressed_nbytes),
               width);
    add_number(to, number_of(recipe, label, "descriptor.size", truth->nbytes), width);
}

static void add_piece(struct recipe *recipe, struct piece *piece)
{
    struct truth truth = truth_of(recipe, piece);

    add_told(recipe, &recipe->file, piece->label, "gap", "", 0);
    piece->header_at = recipe->file.n;
    if (!number_of(recipe, piece->label, "local.there", 1))
        return;
    add_local(recipe, piece, &truth);
    piece->data_at = recipe->file.n;
    add_told(recipe, &recipe->file, piece->label, "data", piece->data.bytes, piece->data.n);
    add_descriptor(recipe, piece->label, &truth);
}

static void add_central(struct recipe *recipe, struct piece *piece, const char *target)
{
    struct bytes *to = &recipe->file, name = {0}, extra = {0}, comment = {0};
    struct truth truth = truth_of(recipe, piece);

    add_name(recipe, &name, target, piece->label, "central.name");
    add_told(recipe, &extra, target, "central.extra", "", 0);
    add_told(recipe, &comment, target, "central.comment", "", 0);
    add_number(to, number_of(recipe, target, "central.signature", BTH_ZIP_CENTRAL_SIGNATURE), 4);
    add_number(to, number_of(recipe, target, "central.made", 0), 2);
    add_number(to, told(recipe, target, "central", "version", 0), 2);
    add_number(to, number_of(recipe, target, "central.flags", truth.flags), 2);
    add_number(to, number_of(recipe, target, "central.method", truth.method), 2);
    add_number(to, told(recipe, target, "central", "time", 0), 4);
    add_number(to, number_of(recipe, target, "central.crc", truth.crc32), 4);
    add_number(to, number_of(recipe, target, "central.compressed", truth.compressed_nbytes), 4);
    add_number(to, number_of(recipe, target, "central.size", truth.nbytes), 4);
    add_number(to, number_of(recipe, target, "central.name_nbytes", name.n), 2);
    add_number(to, number_of(recipe, target, "central.extra_nbytes", extra.n), 2);
    add_number(to, number_of(recipe, target, "central.comment_nbytes", comment.n), 2);
    add_number(to, number_of(recipe, target, "central.disk", 0), 2);
    add_number(to, number_of(recipe, target, "central.attributes", 0), 2);
    add_number(to, number_of(recipe, target, "central.system_attributes", 0), 4);
    add_number(to, number_of(recipe, target, "central.offset", piece->header_at), 4);
    add_bytes(to, name.bytes, name.n);
    add_bytes(to, extra.bytes, extra.n);
    add_bytes(to, comment.bytes, comment.n);
    free(name.bytes);
    free(extra.bytes);
    free(comment.bytes);
}

static const char *target_of(char target[80], size_t which, const char *name)
{
    (void)snprintf(target, 80, "%s%s", listing_prefix[which], name);
    return target;
}

static void add_directory(struct recipe *recipe, size_t which)
{
    struct listing *listing = &recipe->listings[which];
    char target[80];
    bool is_reversed = number_of(recipe, target_of(target, which, "directory"), "reversed", 0) != 0;

    *listing = (struct listing){.at = recipe->file.n};
    for (size_t i = 0; i < recipe->n_pieces; i++) {
        struct piece *piece = &recipe->pieces[is_reversed ? recipe->n_pieces - 1 - i : i];
        target_of(target, which, piece->label);
        if (!number_of(recipe, target, "central.there", 1))
            continue;
        add_central(recipe, piece, target);
        listing->n_entries++;
    }
    listing->nbytes = recipe->file.n - listing->at;
}

static void add_end64(struct recipe *recipe, size_t which)
{
    struct listing *listing = &recipe->listings[which];
    struct bytes *to = &recipe->file, extra = {0};
    char name[80];
    const char *target = target_of(name, which, "end64");

    add_told(recipe, &extra, target, "extra", "", 0);
    listing->end64_at = to->n;
    add_number(to, number_of(recipe, target, "signature", BTH_ZIP_END64_SIGNATURE), 4);
    add_number(to, number_of(recipe, target, "size", 44 + extra.n), 8);
    add_number(to, number_of(recipe, target, "made", 0x31e), 2);
    add_number(to, number_of(recipe, target, "version", 45), 2);
    add_number(to, number_of(recipe, target, "disk", 0), 4);
    add_number(to, number_of(recipe, target, "directory_disk", 0), 4);
    add_number(to, number_of(recipe, target, "here", listing->n_entries), 8);
    add_number(to, number_of(recipe, target, "entries", listing->n_entries), 8);
    add_number(to, number_of(recipe, target, "nbytes", listing->nbytes), 8);
    add_number(to, number_of(recipe, target, "offset", listing->at), 8);
    add_bytes(to, extra.bytes, extra.n);
    free(extra.bytes);
}

static void add_locator(struct recipe *recipe, size_t which)
{
    struct bytes *to = &recipe->file;
    char name[80];
    const char *target = target_of(name, which, "locator");

    add_number(to, number_of(recipe, target, "signature", BTH_ZIP_LOCATOR_SIGNATURE), 4);
    add_number(to, number_of(recipe, target, "disk", 0), 4);
    add_number(to, number_of(recipe, target, "offset", recipe->listings[which].end64_at), 8);
    add_number(to, number_of(recipe, target, "disks", 1), 4);
}

static void add_end(struct recipe *recipe, size_t which)
{
    const struct listing *listing = &recipe->listings[which];
    struct bytes *to = &recipe->file;
    char name[80];
    const char *target = target_of(name, which, "end");

    add_number(to, number_of(recipe, target, "signature", BTH_ZIP_END_SIGNATURE), 4);
    add_number(to, number_of(recipe, target, "disk", 0), 2);
    add_number(to, number_of(recipe, target, "directory_disk", 0), 2);
    add_number(to, number_of(recipe, target, "here", listing->n_entries), 2);
    add_number(to, number_of(recipe, target, "entries", listing->n_entries), 2);
    add_number(to, number_of(recipe, target, "nbytes", listing->nbytes), 4);
    add_number(to, number_of(recipe, target, "offset", listing->at), 4);
    size_t length_at = to->n;
    add_number(to, 0, 2);
    size_t n = add_told(recipe, to, target, "comment", "", 0);
    bth_put_u16(to->bytes + length_at, number_of(recipe, target, "comment_nbytes", n));
}

void add_listing_item(struct recipe *recipe, const char *item, size_t n)
{
    if (is_word(item, n, "alt.directory"))
        add_directory(recipe, 1);
    else if (is_word(item, n, "alt.end64"))
        add_end64(recipe, 1);
    else if (is_word(item, n, "alt.locator"))
        add_locator(recipe, 1);
    else {
        cr_assert(is_word(item, n, "alt.end"), "no item: %s", item);
        add_end(recipe, 1);
    }
}

static void add_part(struct recipe *recipe, const char *target,
                     void (*add)(struct recipe *, size_t), bool usually)
{
    add_told(recipe, &recipe->file, target, "gap", "", 0);
    if (number_of(recipe, target, "there", usually))
        add(recipe, 0);
}

void render(struct recipe *recipe)
{
    add_told(recipe, &recipe->file, "file", "head", "", 0);
    for (size_t i = 0; i < recipe->n_pieces; i++)
        add_piece(recipe, &recipe->pieces[i]);
    add_part(recipe, "directory", add_directory, true);
    add_part(recipe, "end64", add_end64, !recipe->is_foreign);
    add_part(recipe, "locator", add_locator, !recipe->is_foreign);
    add_part(recipe, "end", add_end, true);
    add_told(recipe, &recipe->file, "file", "tail", "", 0);
    recipe->file.n -= (size_t)number_of(recipe, "file", "cut", 0);
    for (size_t i = 0; i < recipe->n_edits && !recipe->is_lenient; i++)
        cr_assert(recipe->edits[i].is_used, "nothing is told by %s %s", recipe->edits[i].target,
                  recipe->edits[i].field);
}

static struct piece *find_piece(struct recipe *recipe, const char *label)
{
    for (size_t i = 0; i < recipe->n_pieces; i++)
        if (strcmp(recipe->pieces[i].label, label) == 0)
            return &recipe->pieces[i];
    cr_assert_fail("there is no record %s", label);
    return NULL;
}

static struct piece *add_new_piece(struct recipe *recipe, const char *label)
{
    struct piece *piece = &recipe->pieces[recipe->n_pieces++];

    cr_assert_leq(recipe->n_pieces, MAX_PIECES);
    *piece = (struct piece){0};
    (void)snprintf(piece->label, sizeof piece->label, "%s", label);
    return piece;
}

static void drop_piece(struct recipe *recipe, const char *label)
{
    struct piece *piece = find_piece(recipe, label);

    free(piece->data.bytes);
    recipe->n_pieces--;
    memmove(piece, piece + 1, (size_t)(recipe->pieces + recipe->n_pieces - piece) * sizeof *piece);
}

static void swap_pieces(struct recipe *recipe, const char *a, const char *b)
{
    struct piece *first = find_piece(recipe, a), *second = find_piece(recipe, b);
    struct piece kept = *first;

    *first = *second;
    *second = kept;
}

void begin_recipe(struct recipe *recipe)
{
    *recipe = (struct recipe){0};
    begin_sample();
    for (size_t i = 0; i < sample.n; i++) {
        const struct record *record = &sample.records[i];
        add_bytes(&add_new_piece(recipe, record->name)->data, record->bytes,
                  (size_t)record->nbytes);
    }
    end_sample();
}

void end_recipe(struct recipe *recipe)
{
    for (size_t i = 0; i < recipe->n_pieces; i++)
        free(recipe->pieces[i].data.bytes);
    free(recipe->file.bytes);
}

void follow(struct recipe *recipe, const char *line)
{
    char first[64] = "", second[64] = "";
    int at = 0;

    cr_assert_geq(sscanf(line, "%63s %63s %n", first, second, &at), 1, "%s", line);
    const char *rest = at > 0 ? line + at : "";
    if (strcmp(first, "foreign") == 0) {
        recipe->is_foreign = true;
        drop_piece(recipe, ".format_version");
        drop_piece(recipe, ".storage_alignment");
    } else if (strcmp(first, "repacked") == 0) {
        recipe->is_foreign = true;
    } else if (strcmp(first, "drop") == 0) {
        drop_piece(recipe, second);
    } else if (strcmp(first, "swap") == 0) {
        swap_pieces(recipe, second, rest);
    } else if (strcmp(first, "add") == 0) {
        struct piece *piece = add_new_piece(recipe, second);
        for (; *rest; rest += strspn(rest, " "))
            rest = add_item(recipe, &piece->data, rest, &(struct bytes){0});
    } else {
        struct edit *edit = &recipe->edits[recipe->n_edits++];
        cr_assert_leq(recipe->n_edits, MAX_EDITS);
        memcpy(edit->target, first, sizeof first);
        (void)snprintf(edit->field, sizeof edit->field, "%.39s", second);
        (void)snprintf(edit->value, sizeof edit->value, "%s", rest);
    }
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* The plan of a safetensors file: the header, and the tensors one after the other (FORMAT.md 8). */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/json/safetensors.h"
#include "format/names/names.h"
#include "format/values/value.h"
#include "save/plan.h"

static const char metadata_name[] = "__metadata__";

/* A tensor of the value, and its name. */
typedef struct named_tensor {
    char *name; /* owned */
    const berth_tensor *tensor;
} named_tensor;

/* What the file will hold. */
typedef struct selection {
    berth_plan *plan;
    uint32_t flags;
    named_tensor *tensors;
    size_t n_tensors;
    bth_safetensors_entry *entries; /* the tensors that are written, in the file's order */
    size_t n_entries;
    bth_safetensors_text *texts; /* of __metadata__ */
    size_t n_texts;
    bool has_metadata;
    berth_error *error;
} selection;

/* ---- what the format can hold ---- */

/* Leaves the value out, or refuses it. */
static int selection_leave_out_or_refuse(selection *s, const char *name, const char *why)
{
    const char *quote = name[0] == '[' ? "" : "\""; /* a path has brackets */

    s->plan->n_left_out++;
    if (s->flags & BERTH_TENSORS_ONLY)
        return 0;
    return bth_fail_status(s->error, BERTH_E_UNSUPPORTED, "%s%.100s%s%s: %s", quote, name,
                           strlen(name) > 100 ? "..." : "", quote, why);
}

/* Containers are no values of their own, whether they are empty or not. */
static int selection_enter_value(void *context, const berth_walk *walk, const berth_value *value)
{
    selection *s = context;
    berth_kind kind = berth_value_kind(value);
    char why[80];

    if (berth_as_tensor(value))
        return BERTH_WALK_SKIP;
    if (kind >= BERTH_KIND_LIST && kind <= BERTH_KIND_SET)
        return 0;
    (void)snprintf(why, sizeof why, "safetensors cannot hold %s", bth_kind_phrase(kind));
    const char *path = s->flags & BERTH_TENSORS_ONLY ? "" : berth_walk_path(walk);
    return selection_leave_out_or_refuse(s, path[0] ? path : "the root", why) < 0 ? 1
                                                                                  : BERTH_WALK_SKIP;
}

/* NULL: the format can hold it. `text` is room for the sentence. */
static const char *tensor_why_safetensors_cannot_hold(const berth_tensor *tensor, const char *name,
                                                      char *text, size_t nbytes)
{
    if (tensor->qscheme != BERTH_NOT_QUANTIZED)
        return "safetensors cannot hold quantized tensors";
    if (tensor->flags & BERTH_META)
        return "a tensor on the meta device has no elements";
    if (strcmp(name, metadata_name) == 0)
        return "the name is reserved in safetensors";
    if (!bth_safetensors_dtype_name(tensor->dtype)) {
        (void)snprintf(text, nbytes, "safetensors has no dtype for %s",
                       berth_dtype_name(tensor->dtype));
        return text;
    }
    /* F4 and F6: the last dimension counts elements. It must exist, and must not overflow. */
    int64_t per_item = bth_safetensors_elements_per_item(tensor->dtype);
    if (per_item > 1 && tensor->rank == 0) {
        (void)snprintf(text, nbytes, "safetensors holds %s with at least one dimension",
                       berth_dtype_name(tensor->dtype));
        return text;
    }
    if (per_item > 1 && tensor->shape[tensor->rank - 1] > INT64_MAX / per_item)
        return "its last dimension is too large for safetensors";
    return NULL;
}

static int selection_add_tensors(selection *s, const berth_value *value)
{
    size_t names_nbytes = 0;   /* of all names: they must fit the header (P3) */
    bool has_root_keys = true; /* all are items of the root, by keys that are names: no path */
    bth_names *names = NULL;

    if (bth_names_new(value, &names, s->error) < 0)
        return s->error->code;
    size_t n = bth_names_tensor_count(names);
    size_t nbytes = bth_array_nbytes(n + 1, sizeof *s->tensors);
    s->tensors = bth_allocate_zeroed(nbytes);
    if (!s->tensors)
        (void)bth_fail_memory(s->error, nbytes);
    for (size_t i = 0; i < n && has_root_keys; i++)
        has_root_keys = bth_names_tensor_root_key(names, i, true) != NULL;
    for (size_t i = 0; i < n && s->error->code == 0; i++) {
        const berth_tensor *tensor = berth_as_tensor(bth_names_tensor_value(names, i));
        char *name, *path, text[96];
        if (bth_names_allocate_tensor_name_and_path(names, i, &name, &path, s->error) < 0)
            break;
        /* A part of a sparse or nested tensor is none: that is refused itself. The path of a part
         * ends in a word, "['a'].indices"; the path of a whole tensor ends in "]". */
        size_t path_nbytes = strlen(path);
        bool is_part = path_nbytes > 0 && path[path_nbytes - 1] != ']';
        bth_release(path);
        /* A key of the root is a name as it is, as in the package. Other names never are like it:
         * if they began with a dot, were empty, or shared, they would be paths, and if there is one
         * a key that begins like a path is written as its own path. */
        const char *key = is_part ? NULL : bth_names_tensor_root_key(names, i, has_root_keys);
        if (key && strcmp(key, name) != 0) {
            bth_release(name);
            name = bth_duplicate_text(key, strlen(key));
            if (!name) {
                (void)bth_fail_memory(s->error, strlen(key) + 1);
                break;
            }
        }
        const char *why =
            is_part ? NULL : tensor_why_safetensors_cannot_hold(tensor, name, text, sizeof text);
        if (why)
            (void)selection_leave_out_or_refuse(s, name, why);
        if (is_part || why) {
            bth_release(name);
            continue;
        }
        s->tensors[s->n_tensors++] = (named_tensor){name, tensor};
        names_nbytes += strlen(name);
        if (names_nbytes > BTH_SAFETENSORS_MAX_HEADER_NBYTES)
            (void)bth_fail_status(s->error, BERTH_E_UNSUPPORTED,
                                  "the names of its tensors are longer than a safetensors header "
                                  "may be: %d bytes",
                                  BTH_SAFETENSORS_MAX_HEADER_NBYTES);
    }
    bth_names_free(names);
    return s->error->code;
}

/* ---- order and ties ---- */

static int compare_by_dtype_and_name(const void *left, const void *right)
{
    const bth_safetensors_entry *a = left, *b = right;
    size_t a_position = bth_safetensors_dtype_position(a->tensor->dtype);
    size_t b_position = bth_safetensors_dtype_position(b->tensor->dtype);

    if (a_position != b_position)
        return a_position < b_position ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* 0: the same elements of one storage. */
static int compare_elements(const berth_tensor *a, const berth_tensor *b)
{
    const uint32_t bits = BERTH_CONJ | BERTH_NEG;
    int64_t a_offset, b_offset;
    uintptr_t a_storage = (uintptr_t)bth_tensor_saved_storage(a, &a_offset);
    uintptr_t b_storage = (uintptr_t)bth_tensor_saved_storage(b, &b_offset);

    assert(a && b); /* for analyzers */
    const uint64_t numbers[][2] = {{a_storage, b_storage},
                                   {(uint64_t)a_offset, (uint64_t)b_offset},
                                   {(uint64_t)a->dtype, (uint64_t)b->dtype},
                                   {a->flags & bits, b->flags & bits},
                                   {(uint64_t)a->rank, (uint64_t)b->rank}};

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i][0] != numbers[i][1])
            return numbers[i][0] < numbers[i][1] ? -1 : 1;
    size_t nbytes = (size_t)a->rank * sizeof *a->shape;
    int order = nbytes > 0 ? memcmp(a->shape, b->shape, nbytes) : 0;
    return order != 0 || nbytes == 0 ? order : memcmp(a->stride, b->stride, nbytes);
}

static int compare_by_elements_and_name(const void *left, const void *right)
{
    const named_tensor *a = left, *b = right;
    int order = compare_elements(a->tensor, b->tensor);

    return order != 0 ? order : strcmp(a->name, b->name);
}

/* The entries that are written, and a text for each other name of one. */
static int selection_divide_into_entries_and_texts(selection *s)
{
    size_t n = s->n_tensors;
    bool ties = !(s->flags & BERTH_COPY_TIES);

    s->entries = bth_allocate_zeroed((n + 1) * sizeof *s->entries);
    if (!s->entries)
        return bth_fail_memory(s->error, (n + 1) * sizeof *s->entries);
    s->texts = bth_allocate((n + 1) * sizeof *s->texts);
    if (!s->texts)
        return bth_fail_memory(s->error, (n + 1) * sizeof *s->texts);
    if (ties)
        qsort(s->tensors, n, sizeof *s->tensors, compare_by_elements_and_name);
    for (size_t i = 0; i < n; i++) {
        const named_tensor *named = &s->tensors[i];
        const bth_safetensors_entry *last = s->n_entries > 0 ? &s->entries[s->n_entries - 1] : NULL;
        /* An empty tensor is tied to none. "format" is a text that means something else. */
        if (ties && last && berth_tensor_numel(named->tensor) > 0 &&
            strcmp(named->name, "format") != 0 &&
            compare_elements(last->tensor, named->tensor) == 0)
            s->texts[s->n_texts++] = (bth_safetensors_text){named->name, last->name};
        else
            s->entries[s->n_entries++] = (bth_safetensors_entry){named->name, named->tensor};
    }
    qsort(s->entries, s->n_entries, sizeof *s->entries, compare_by_dtype_and_name);
    return 0;
}

/* ---- __metadata__ ---- */

/* The texts that both, of one kind, begin with: their names or keys. */
static int compare_first_texts(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Texts of the caller, or the usual one; then the ties, which are sorted by name. Where ties are
 * written, a text for a name that a tensor has now would be misread as its tie. */
static int selection_make_texts(selection *s, const berth_value *metadata)
{
    const bool has_ties = !(s->flags & BERTH_COPY_TIES);
    bth_safetensors_text *ties = s->texts;
    size_t n_ties = s->n_texts, n = berth_value_count(metadata) + 1 + n_ties;

    qsort(ties, n_ties, sizeof *ties, compare_first_texts);
    s->n_texts = 0;
    s->texts = bth_allocate(n * sizeof *s->texts);
    if (!s->texts)
        (void)bth_fail_memory(s->error, n * sizeof *s->texts);
    else if (!metadata)
        s->texts[s->n_texts++] = (bth_safetensors_text){"format", "pt"};
    if (metadata)
        qsort(s->tensors, s->n_tensors, sizeof *s->tensors, compare_first_texts);
    for (size_t i = 0; i < berth_value_count(metadata) && s->error->code == 0; i++) {
        berth_value *key, *value;
        (void)berth_dict_at(metadata, i, &key, &value);
        const char *name = berth_as_text(key, NULL), *text = berth_as_text(value, NULL);
        const named_tensor wanted = {(char *)(uintptr_t)name, NULL};
        if (!name || !text)
            (void)bth_fail_argument(s->error, "the metadata are no dict of texts");
        else if (!has_ties ||
                 !bsearch(&wanted, s->tensors, s->n_tensors, sizeof wanted, compare_first_texts))
            s->texts[s->n_texts++] = (bth_safetensors_text){name, text};
    }
    if (s->error->code == 0 && n_ties > 0)
        memcpy(s->texts + s->n_texts, ties, n_ties * sizeof *ties);
    s->n_texts += n_ties;
    s->has_metadata = s->n_texts > 0 || berth_value_kind(metadata) == BERTH_KIND_DICT;
    bth_release(ties);
    return s->error->code;
}

/* ---- the bytes of a tensor ---- */

/* A berth_storage.read of a view whose context is the tensor: its elements in row-major order, with
 * conjugate and negative bits applied. A tile can cut an element. */
static int view_read(const berth_storage *view, void *buffer, size_t nbytes, uint64_t offset,
                     berth_error *error)
{
    const berth_tensor *tensor = view->context;
    const berth_storage *storage = tensor->storage;
    uint64_t at = 0;
    const berth_storage *bottom = bth_storage_resolve_view(storage, &at);
    size_t item = berth_dtype_nbytes(tensor->dtype), cut = (size_t)(offset % item);
    uint8_t *out = buffer, element[16] = {0};

    while (nbytes > 0) {
        int64_t first = (int64_t)(offset / item), n = (int64_t)(nbytes / item);
        bool is_part = cut > 0 || n == 0;
        size_t now = is_part ? bth_min(nbytes, item - cut) : (size_t)n * item;
        uint8_t *to = is_part ? element : out;
        assert(item <= sizeof element);
        n = is_part ? 1 : n;
        if (bottom->data)
            bth_tensor_gather(tensor, (const uint8_t *)bottom->data + at, first, n, to);
        else if (!storage->read_elements)
            return bth_fail_status(error, BERTH_E_ARGUMENT, "the storage has no bytes");
        else if (storage->read_elements(storage, tensor, first, n, to, error) < 0)
            return error->code;
        if (bth_tensor_resolve_bits(tensor, n, to, error) < 0)
            return error->code;
        if (is_part)
            memcpy(out, element + cut, now);
        out += now;
        offset += now;
        nbytes -= now;
        cut = 0;
    }
    return 0;
}

/* ---- the plan ---- */

/* The header, and the tensors behind it. */
static int plan_add_selection(berth_plan *plan, const selection *s, berth_error *error)
{
    const bth_safetensors_new contents = {s->entries, s->n_entries, s->texts, s->n_texts,
                                          s->has_metadata};
    bool is_big = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__; /* the file is little-endian */
    size_t views_nbytes = bth_array_nbytes(s->n_entries + 1, sizeof *plan->views), nbytes = 0;

    if (bth_safetensors_write(&contents, &plan->header, &nbytes, error) < 0)
        return error->code;
    const bth_plan_record header = {.data = plan->header, .swap_nbytes = 1};
    if (bth_plan_add(plan, "header", nbytes, &header, error) < 0)
        return error->code;
    plan->views = bth_allocate(views_nbytes);
    if (!plan->views)
        return bth_fail_memory(error, views_nbytes);
    for (size_t i = 0; i < s->n_entries; i++) {
        const bth_safetensors_entry *entry = &s->entries[i];
        const berth_tensor *tensor = entry->tensor;
        const berth_storage *storage = tensor->storage;
        berth_storage *view = &plan->views[i]; /* a storage that has just the tensor's bytes */
        bth_plan_record content = {.storage = view,
                                   .swap_nbytes =
                                       is_big ? (uint8_t)bth_dtype_swap_nbytes(tensor->dtype) : 1};
        uint64_t at = 0;
        *view = (berth_storage){.tree = storage ? storage->tree : NULL,
                                .key = "",
                                .location = "cpu",
                                .dtype = tensor->dtype,
                                .nbytes = berth_tensor_nbytes(tensor),
                                .offset = BERTH_NO_OFFSET};
        bool has_bytes = view->nbytes > 0 && storage;
        if (has_bytes && berth_tensor_is_contiguous(tensor) &&
            !(tensor->flags & (BERTH_CONJ | BERTH_NEG))) { /* they are a range of the storage's */
            view->root = storage;
            view->root_offset =
                (uint64_t)tensor->storage_offset * berth_dtype_nbytes(tensor->dtype);
        } else if (has_bytes && bth_storage_resolve_view(storage, &at)->device)
            return bth_fail(error, BERTH_E_UNSUPPORTED, entry->name, BERTH_NO_OFFSET,
                            "it is not contiguous in the memory of the device: make a contiguous "
                            "copy");
        else if (has_bytes) {
            view->read = view_read;
            view->context = (void *)(uintptr_t)tensor;
        }
        if (bth_plan_add_device_of_storage(plan, view, &content.device, error) < 0)
            return bth_error_add_record(error, entry->name);
        if (bth_plan_add(plan, entry->name, view->nbytes, &content, error) < 0)
            return error->code;
    }
    return 0;
}

int bth_plan_add_safetensors(berth_plan *plan, const berth_content *content, berth_error *error)
{
    selection s = {.plan = plan, .flags = content->flags, .error = error};
    const berth_walker walker = {
        .flags = BERTH_WALK_ITEMS, .enter = selection_enter_value, .context = &s};
    berth_error walk_error;
    uint64_t sum = 0;

    plan->is_plain = true;
    plan->compute_crc32 = false;
    if (berth_value_walk(content->value, &walker, &walk_error) < 0 && error->code == 0)
        *error = walk_error;
    if (error->code == 0 && selection_add_tensors(&s, content->value) == 0 &&
        selection_divide_into_entries_and_texts(&s) == 0)
        (void)selection_make_texts(&s, content->metadata);
    /* An expanded tensor can be larger than any disk; the sum of several can overflow (T1). */
    for (size_t i = 0; i < s.n_entries && error->code == 0; i++)
        if (!bth_try_add(sum, berth_tensor_nbytes(s.entries[i].tensor), &sum) ||
            sum > INT64_MAX - BTH_SAFETENSORS_MAX_HEADER_NBYTES)
            (void)bth_fail_status(error, BERTH_E_UNSUPPORTED,
                                  "its tensors, views written out in full, are too large for a "
                                  "file");
    if (error->code == 0)
        (void)plan_add_selection(plan, &s, error);
    for (size_t i = 0; i < s.n_tensors; i++)
        bth_release(s.tensors[i].name);
    bth_release(s.tensors);
    bth_release(s.entries);
    bth_release(s.texts);
    return error->code;
}

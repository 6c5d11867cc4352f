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
    size_t names_nbytes;            /* of all names: they must fit the header (P3) */
    bool has_root_keys;             /* see names_are_root_keys */
    bth_safetensors_entry *entries; /* the tensors that are written, in the file's order */
    size_t n_entries;
    bth_safetensors_text *texts; /* of __metadata__ */
    size_t n_texts;
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

static int selection_check_other_values(selection *s, const berth_value *value)
{
    const berth_walker walker = {
        .flags = BERTH_WALK_ITEMS, .enter = selection_enter_value, .context = s};
    berth_error walk_error;

    if (berth_value_walk(value, &walker, &walk_error) < 0 && s->error->code == 0)
        *s->error = walk_error;
    return s->error->code;
}

/* NULL: the format can hold it. `text` is room for the sentence. */
static const char *tensor_why_not(const berth_tensor *tensor, const char *name, char *text,
                                  size_t nbytes)
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
    /* F4 doubles the last dimension, which must exist and must not overflow. */
    if (tensor->dtype == BERTH_FLOAT4_E2M1FN_X2 && tensor->rank == 0)
        return "safetensors holds float4_e2m1fn_x2 with at least one dimension";
    if (tensor->dtype == BERTH_FLOAT4_E2M1FN_X2 && tensor->shape[tensor->rank - 1] > INT64_MAX / 2)
        return "its last dimension is too large for safetensors";
    return NULL;
}

/*
 * Whether it is a part of a sparse or nested tensor, which is refused itself. The path of a part
 * ends in a word, "['a'].indices"; the path of a whole tensor ends in "]".
 */
static bool path_is_of_part(const char *path)
{
    size_t n = strlen(path);

    return n > 0 && path[n - 1] != ']';
}

/* Takes the name, or releases it. */
static int selection_add_tensor(selection *s, char *name, const berth_tensor *tensor)
{
    char text[96];
    const char *why = tensor_why_not(tensor, name, text, sizeof text);

    if (why) {
        (void)selection_leave_out_or_refuse(s, name, why);
        bth_release(name);
        return s->error->code;
    }
    s->tensors[s->n_tensors++] = (named_tensor){name, tensor};
    s->names_nbytes += strlen(name);
    if (s->names_nbytes > BTH_SAFETENSORS_MAX_HEADER_NBYTES)
        return bth_fail_status(s->error, BERTH_E_UNSUPPORTED,
                               "the names of its tensors are longer than a safetensors header may "
                               "be: %d bytes",
                               BTH_SAFETENSORS_MAX_HEADER_NBYTES);
    return 0;
}

/* Whether all tensors are items of the root, by keys that are names: no name is a path. */
static bool names_are_root_keys(const bth_names *names)
{
    for (size_t i = 0; i < bth_names_tensor_count(names); i++)
        if (!bth_names_tensor_root_key(names, i, true))
            return false;
    return true;
}

/* A key of the root is a name as it is, as in the package. Other names never are like it: if they
 * began with a dot, were empty, or shared, they would be paths, and if there is one a key that
 * begins like a path is written as its own path. */
static int selection_use_root_key(selection *s, const bth_names *names, size_t i, char **name)
{
    const char *key = bth_names_tensor_root_key(names, i, s->has_root_keys);

    if (!key || strcmp(key, *name) == 0)
        return 0;
    bth_release(*name);
    *name = bth_duplicate_text(key, strlen(key));
    return *name ? 0 : bth_fail_memory(s->error, strlen(key) + 1);
}

static int selection_add_tensor_at(selection *s, const bth_names *names, size_t i)
{
    char *name, *path;

    if (bth_names_allocate_tensor_name_and_path(names, i, &name, &path, s->error) < 0)
        return s->error->code;
    bool is_part = path_is_of_part(path);
    bth_release(path);
    if (!is_part && selection_use_root_key(s, names, i, &name) == 0)
        return selection_add_tensor(s, name, berth_as_tensor(bth_names_tensor_value(names, i)));
    bth_release(name);
    return 0;
}

static int selection_add_tensors(selection *s, const berth_value *value)
{
    bth_names *names = NULL;

    if (bth_names_new(value, &names, s->error) < 0)
        return s->error->code;
    size_t n = bth_names_tensor_count(names);
    size_t nbytes = bth_array_nbytes(n + 1, sizeof *s->tensors);
    s->tensors = bth_allocate_zeroed(nbytes);
    if (!s->tensors)
        (void)bth_fail_memory(s->error, nbytes);
    s->has_root_keys = names_are_root_keys(names);
    for (size_t i = 0; i < n && s->error->code == 0; i++)
        (void)selection_add_tensor_at(s, names, i);
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

static int compare_numbers(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

/* 0: the same elements of one storage. */
static int compare_elements(const berth_tensor *a, const berth_tensor *b)
{
    int64_t a_offset, b_offset;
    const berth_storage *a_storage = bth_tensor_saved_storage(a, &a_offset);
    const berth_storage *b_storage = bth_tensor_saved_storage(b, &b_offset);
    int order = compare_numbers((uintptr_t)a_storage, (uintptr_t)b_storage);

    assert(a && b); /* for analyzers */
    if (order == 0)
        order = compare_numbers((uint64_t)a_offset, (uint64_t)b_offset);
    if (order == 0)
        order = compare_numbers((uint64_t)a->dtype, (uint64_t)b->dtype);
    if (order == 0)
        order = compare_numbers(a->flags & (BERTH_CONJ | BERTH_NEG),
                                b->flags & (BERTH_CONJ | BERTH_NEG));
    if (order == 0)
        order = compare_numbers((uint64_t)a->rank, (uint64_t)b->rank);
    if (order == 0 && a->rank > 0)
        order = memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape);
    if (order == 0 && a->rank > 0)
        order = memcmp(a->stride, b->stride, (size_t)a->rank * sizeof *a->stride);
    return order;
}

static int compare_by_elements_and_name(const void *left, const void *right)
{
    const named_tensor *a = left, *b = right;
    int order = compare_elements(a->tensor, b->tensor);

    return order != 0 ? order : strcmp(a->name, b->name);
}

/* An empty tensor is tied to none. "format" is a text that means something else. */
static bool tensor_is_tied_to_last(const selection *s, const named_tensor *named)
{
    return !(s->flags & BERTH_COPY_TIES) && s->n_entries > 0 &&
           berth_tensor_numel(named->tensor) > 0 && strcmp(named->name, "format") != 0 &&
           compare_elements(s->entries[s->n_entries - 1].tensor, named->tensor) == 0;
}

/* The entries that are written, and a text for each other name of one. */
static int selection_divide_into_entries_and_texts(selection *s)
{
    size_t n = s->n_tensors;

    s->entries = bth_allocate_zeroed((n + 1) * sizeof *s->entries);
    if (!s->entries)
        return bth_fail_memory(s->error, (n + 1) * sizeof *s->entries);
    if (!(s->flags & BERTH_COPY_TIES))
        qsort(s->tensors, n, sizeof *s->tensors, compare_by_elements_and_name);
    for (size_t i = 0; i < n; i++) {
        const named_tensor *named = &s->tensors[i];
        if (tensor_is_tied_to_last(s, named))
            s->texts[s->n_texts++] =
                (bth_safetensors_text){named->name, s->entries[s->n_entries - 1].name};
        else
            s->entries[s->n_entries++] = (bth_safetensors_entry){named->name, named->tensor};
    }
    qsort(s->entries, s->n_entries, sizeof *s->entries, compare_by_dtype_and_name);
    return 0;
}

/* ---- __metadata__ ---- */

static int compare_texts(const void *left, const void *right)
{
    const bth_safetensors_text *a = left, *b = right;

    return strcmp(a->key, b->key);
}

static int compare_names(const void *left, const void *right)
{
    const named_tensor *a = left, *b = right;

    return strcmp(a->name, b->name);
}

/* A text for a name that a tensor has now would be misread as its tie. `tensors` are sorted. */
static bool selection_has_name(const selection *s, const char *name)
{
    const named_tensor wanted = {(char *)(uintptr_t)name, NULL};

    return bsearch(&wanted, s->tensors, s->n_tensors, sizeof wanted, compare_names) != NULL;
}

static int selection_add_caller_texts(selection *s, const berth_value *metadata)
{
    qsort(s->tensors, s->n_tensors, sizeof *s->tensors, compare_names);
    for (size_t i = 0; i < berth_value_count(metadata); i++) {
        berth_value *key, *value;
        (void)berth_dict_at(metadata, i, &key, &value);
        const char *name = berth_as_text(key, NULL), *text = berth_as_text(value, NULL);
        if (!name || !text)
            return bth_fail_argument(s->error, "the metadata are no dict of texts");
        if (!selection_has_name(s, name))
            s->texts[s->n_texts++] = (bth_safetensors_text){name, text};
    }
    return 0;
}

/* Texts of the caller, or the usual one; then the ties, which are sorted by name. */
static int selection_make_texts(selection *s, const berth_value *metadata)
{
    bth_safetensors_text *ties = s->texts;
    size_t n_ties = s->n_texts, n = berth_value_count(metadata) + 1 + n_ties;

    qsort(ties, n_ties, sizeof *ties, compare_texts);
    s->n_texts = 0;
    s->texts = bth_allocate(n * sizeof *s->texts);
    if (!s->texts)
        (void)bth_fail_memory(s->error, n * sizeof *s->texts);
    else if (metadata)
        (void)selection_add_caller_texts(s, metadata);
    else
        s->texts[s->n_texts++] = (bth_safetensors_text){"format", "pt"};
    if (s->error->code == 0 && n_ties > 0)
        memcpy(s->texts + s->n_texts, ties, n_ties * sizeof *ties);
    s->n_texts += n_ties;
    bth_release(ties);
    return s->error->code;
}

/* ---- the bytes of a tensor ---- */

/* Elements in row-major order, with conjugate and negative bits applied. */
static int tensor_read_elements(const berth_tensor *tensor, int64_t first, int64_t n, void *buffer,
                                berth_error *error)
{
    uint64_t offset = 0;
    const berth_storage *storage = tensor->storage;
    const berth_storage *bottom = bth_storage_resolve_view(storage, &offset);

    if (bottom->data)
        bth_tensor_gather(tensor, (const uint8_t *)bottom->data + offset, first, n, buffer);
    else if (!storage->read_elements)
        return bth_fail_status(error, BERTH_E_ARGUMENT, "the storage has no bytes");
    else if (storage->read_elements(storage, tensor, first, n, buffer, error) < 0)
        return error->code;
    return bth_tensor_resolve_bits(tensor, n, buffer, error);
}

/* A berth_storage.read of a view whose context is the tensor. A tile can cut an element. */
static int view_read(const berth_storage *view, void *buffer, size_t nbytes, uint64_t offset,
                     berth_error *error)
{
    const berth_tensor *tensor = view->context;
    size_t item = berth_dtype_nbytes(tensor->dtype), cut = (size_t)(offset % item);
    uint8_t *out = buffer, element[16] = {0};

    while (nbytes > 0) {
        int64_t first = (int64_t)(offset / item), n = (int64_t)(nbytes / item);
        bool is_part = cut > 0 || n == 0;
        size_t now = is_part ? bth_min(nbytes, item - cut) : (size_t)n * item;
        assert(item <= sizeof element);
        if (tensor_read_elements(tensor, first, is_part ? 1 : n, is_part ? element : out, error) <
            0)
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

/* Whether the bytes of the tensor are a range of its storage's. */
static bool tensor_is_range(const berth_tensor *tensor)
{
    return berth_tensor_is_contiguous(tensor) && !(tensor->flags & (BERTH_CONJ | BERTH_NEG));
}

/* A storage that has just the tensor's bytes. */
static int view_make(const bth_safetensors_entry *entry, berth_storage *view, berth_error *error)
{
    const berth_tensor *tensor = entry->tensor;
    uint64_t at = 0;

    *view = (berth_storage){.tree = tensor->storage ? tensor->storage->tree : NULL,
                            .key = "",
                            .location = "cpu",
                            .dtype = tensor->dtype,
                            .nbytes = berth_tensor_nbytes(tensor),
                            .offset = BERTH_NO_OFFSET};
    if (view->nbytes == 0 || !tensor->storage)
        return 0;
    if (tensor_is_range(tensor)) {
        view->root = tensor->storage;
        view->root_offset = (uint64_t)tensor->storage_offset * berth_dtype_nbytes(tensor->dtype);
        return 0;
    }
    if (bth_storage_resolve_view(tensor->storage, &at)->device)
        return bth_fail(error, BERTH_E_UNSUPPORTED, entry->name, BERTH_NO_OFFSET,
                        "it is not contiguous in the memory of the device: make a contiguous copy");
    view->read = view_read;
    view->context = (void *)(uintptr_t)tensor;
    return 0;
}

/* ---- the plan ---- */

static int plan_add_header(berth_plan *plan, const selection *s, berth_error *error)
{
    const bth_safetensors_new contents = {s->entries, s->n_entries, s->texts, s->n_texts};
    size_t nbytes = 0;

    if (bth_safetensors_write(&contents, &plan->header, &nbytes, error) < 0)
        return error->code;
    const bth_plan_record content = {.data = plan->header, .swap_nbytes = 1};
    return bth_plan_add_plain(plan, "header", nbytes, &content, error);
}

static int plan_add_tensors(berth_plan *plan, const selection *s, berth_error *error)
{
    bool is_big = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__; /* the file is little-endian */
    size_t nbytes = bth_array_nbytes(s->n_entries + 1, sizeof *plan->views);

    plan->views = bth_allocate(nbytes);
    if (!plan->views)
        return bth_fail_memory(error, nbytes);
    for (size_t i = 0; i < s->n_entries; i++) {
        const bth_safetensors_entry *entry = &s->entries[i];
        bth_plan_record content = {
            .storage = &plan->views[i],
            .swap_nbytes = is_big ? (uint8_t)bth_dtype_swap_nbytes(entry->tensor->dtype) : 1};
        if (view_make(entry, &plan->views[i], error) < 0)
            return error->code;
        if (bth_plan_add_device_of_storage(plan, &plan->views[i], &content.device, error) < 0)
            return bth_error_add_record(error, entry->name);
        if (bth_plan_add_plain(plan, entry->name, plan->views[i].nbytes, &content, error) < 0)
            return error->code;
    }
    return 0;
}

/* An expanded tensor can be larger than any disk; the sum of several can overflow (T1). */
static int selection_check_sum(const selection *s)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < s->n_entries; i++)
        if (!bth_try_add(sum, berth_tensor_nbytes(s->entries[i].tensor), &sum) ||
            sum > INT64_MAX - BTH_SAFETENSORS_MAX_HEADER_NBYTES)
            return bth_fail_status(s->error, BERTH_E_UNSUPPORTED,
                                   "its tensors, views written out in full, are too large for a "
                                   "file");
    return 0;
}

static int selection_make(selection *s, const berth_content *content)
{
    if (selection_check_other_values(s, content->value) < 0 ||
        selection_add_tensors(s, content->value) < 0)
        return s->error->code;
    s->texts = bth_allocate((s->n_tensors + 1) * sizeof *s->texts);
    if (!s->texts)
        return bth_fail_memory(s->error, (s->n_tensors + 1) * sizeof *s->texts);
    if (selection_divide_into_entries_and_texts(s) < 0 ||
        selection_make_texts(s, content->metadata) < 0)
        return s->error->code;
    return selection_check_sum(s);
}

int bth_plan_add_safetensors(berth_plan *plan, const berth_content *content, berth_error *error)
{
    selection s = {.plan = plan, .flags = content->flags, .error = error};

    plan->is_plain = true;
    plan->compute_crc32 = false;
    if (selection_make(&s, content) == 0 && plan_add_header(plan, &s, error) == 0)
        (void)plan_add_tensors(plan, &s, error);
    for (size_t i = 0; i < s.n_tensors; i++)
        bth_release(s.tensors[i].name);
    bth_release(s.tensors);
    bth_release(s.entries);
    bth_release(s.texts);
    return error->code;
}

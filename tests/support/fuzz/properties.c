/* SPDX-License-Identifier: BSD-3-Clause */
#include <berth/config.h>

#include "tests/support/fuzz/properties.h"
#include "tests/support/support.h"

/* No more memory at a time, whatever a file asks for. */
#define MAX_MEMORY ((size_t)256 << 20)

/* P3: seconds of a processor that opening may cost beside a fixed part: what a sanitizer's program
 * needs on a machine that is busy with others. What grows faster than the file needs more. */
#define SECONDS_PER_BYTE 2e-5

#define SECONDS_FIXED 0.5

#define COUNT_NBYTES 16 /* before each block, its size */

size_t live_nbytes, most_nbytes;
bool is_accepted;

unsigned kind_of(const uint8_t *bytes, size_t nbytes, unsigned n)
{
    return bth_crc32(0, bytes, nbytes) % n;
}

void *count_memory(void *context, void *pointer, size_t nbytes)
{
    char *block = pointer ? (char *)pointer - COUNT_NBYTES : NULL;
    size_t old_nbytes = 0;

    (void)context;
    if (block)
        memcpy(&old_nbytes, block, sizeof old_nbytes);
    if (nbytes == 0) {
        live_nbytes -= old_nbytes;
        free(block);
        return NULL;
    }
    if (nbytes > MAX_MEMORY || !(block = realloc(block, nbytes + COUNT_NBYTES)))
        return NULL;
    memcpy(block, &nbytes, sizeof nbytes);
    live_nbytes += nbytes - old_nbytes;
    if (live_nbytes > most_nbytes)
        most_nbytes = live_nbytes;
    return block + COUNT_NBYTES;
}

void count_memory_from_now(void)
{
    static const berth_allocator counting = {count_memory, NULL};

    berth_set_allocator(&counting);
    most_nbytes = live_nbytes;
}

double processor_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

void check_time(double since, size_t nbytes)
{
    double seconds = processor_seconds() - since;

    MUST(seconds <= SECONDS_FIXED + SECONDS_PER_BYTE * (double)nbytes,
         "P3: %.3f seconds for %zu bytes", seconds, nbytes);
}

bool is_clean_text(const char *text)
{
    static bool is_set;
    const char *at = text;

    is_set = is_set || setlocale(LC_CTYPE, "C.UTF-8");
    for (const char *byte = text; *byte; byte++)
        if ((unsigned char)*byte < ' ' || *byte == 0x7f)
            return false;
    return !is_set || mbsrtowcs(NULL, &at, 0, &(mbstate_t){0}) != (size_t)-1;
}

static int read_span(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    const struct span *span = context;

    MUST(offset <= span->nbytes && nbytes <= span->nbytes - offset, "a read beyond the file");
    memcpy(buffer, span->bytes + offset, nbytes);
    return 0;
}

int open_span_as(const uint8_t *bytes, size_t nbytes, struct span *span, const char *options,
                 berth_checkpoint **opened, berth_error *error)
{
    berth_config *config = berth_config_new(error);
    berth_params call = {.config = config};

    *opened = NULL;
    MUST(config && berth_config_apply(config, "io.threads=1", error) == 0 &&
             berth_config_apply(config, options, error) == 0,
         "%s", error->message);
    berth_source source = {.nbytes = nbytes, .name = "memory", .read = read_span, .context = span};
    int result = span ? berth_open_source(&source, &call, opened, error)
                      : berth_open_source(FROM_MEMORY(bytes, nbytes), &call, opened, error);
    berth_config_free(config);
    is_accepted = is_accepted || (result == 0 && !strstr(options, "load.check=none"));
    /* F5: a failure is a sentence of one line; a success leaves none. */
    MUST((result < 0) == (*opened == NULL) && result == (int)error->code, "%d", result);
    MUST((result < 0) == (error->message[0] != 0), "%s", error->message);
    MUST(is_clean_text(error->message), "not one line of UTF-8: %s", error->message);
    return result;
}

int open_memory_with(const uint8_t *bytes, size_t nbytes, const char *options,
                     berth_checkpoint **opened, berth_error *error)
{
    return open_span_as(bytes, nbytes, NULL, options, opened, error);
}

static void check_bytes(const berth_named_tensor *named, const uint8_t *data, const uint8_t *read,
                        int64_t n)
{
    const berth_tensor *tensor = named->tensor;
    size_t item = berth_dtype_nbytes(tensor->dtype);

    if (berth_tensor_is_contiguous(tensor))
        MUST(memcmp(data, read, (size_t)n * item) == 0, "%s: read and data differ", named->path);
    else if (n > 0)
        MUST(memcmp(data, read, item) == 0, "%s: the first elements differ", named->path);
}

/* T2: the last element, too, lies in its storage, and in the file. */
static void check_last_element(const berth_named_tensor *named, int64_t numel, size_t nbytes)
{
    const berth_tensor *tensor = named->tensor;
    uint64_t last = 0, item = berth_dtype_nbytes(tensor->dtype), end;

    for (int32_t i = 0; i < tensor->rank && numel > 0; i++) {
        uint64_t step;
        MUST(!__builtin_mul_overflow((uint64_t)tensor->shape[i] - 1, (uint64_t)tensor->stride[i],
                                     &step) &&
                 !__builtin_add_overflow(last, step, &last),
             "%s: its extent does not fit a number", named->path);
    }
    if (numel == 0 || is_subbyte(tensor))
        return;
    MUST(!__builtin_mul_overflow((uint64_t)tensor->storage_offset + last + 1, item, &end) &&
             end <= berth_storage_get_info(tensor->storage)->nbytes,
         "%s: its last element ends at byte %llu of a storage of %llu", named->path,
         (unsigned long long)end,
         (unsigned long long)berth_storage_get_info(tensor->storage)->nbytes);
    MUST(named->offset == BERTH_NO_OFFSET || (last + 1) * item <= nbytes - named->offset,
         "%s: its last element ends behind the file's %zu bytes", named->path, nbytes);
}

/* T2, T5: a tensor's elements lie in the file, and reading gives the same as looking. */
static void check_tensor(berth_checkpoint *checkpoint, const berth_named_tensor *named,
                         size_t nbytes)
{
    static uint8_t buffer[MAX_ELEMENTS * 16];
    const berth_tensor *tensor = named->tensor;
    int64_t numel = berth_tensor_numel(tensor);
    int64_t n = numel < MAX_ELEMENTS ? numel : MAX_ELEMENTS;
    berth_error error;

    MUST(tensor->rank >= 0 && tensor->rank <= BERTH_MAX_RANK && numel >= 0, "%s", named->path);
    const uint8_t *data = berth_tensor_data(checkpoint, tensor, &error);
    if (tensor->flags & BERTH_META) {
        MUST(!data && named->offset == BERTH_NO_OFFSET, "%s: a meta tensor's bytes", named->path);
        return;
    }
    if (named->offset == BERTH_NO_OFFSET) { /* Z12 */
        MUST(berth_storage_get_info(tensor->storage)->nbytes <= 1032 * (uint64_t)nbytes,
             "Z12: %s: unfolds to %llu bytes", named->path,
             (unsigned long long)berth_storage_get_info(tensor->storage)->nbytes);
    } else
        MUST(named->offset <= nbytes && berth_storage_get_info(tensor->storage)->nbytes <= nbytes,
             "%s: at byte %llu of %zu", named->path, (unsigned long long)named->offset, nbytes);
    if (!is_subbyte(tensor) && numel > 0 && named->offset != BERTH_NO_OFFSET)
        MUST(storage_at(named) <= nbytes &&
                 berth_storage_get_info(tensor->storage)->nbytes <= nbytes - storage_at(named),
             "T2: %s: its storage ends behind the file", named->path);
    check_last_element(named, numel, nbytes);
    if (!data || is_subbyte(tensor))
        return;
    size_t item = berth_dtype_nbytes(tensor->dtype);
    const uint8_t *storage = berth_storage_data(checkpoint, tensor->storage, &error);
    uint64_t storage_nbytes = berth_storage_get_info(tensor->storage)->nbytes;
    berth_tensor stored = *tensor;
    (void)storage, (void)item;
    stored.flags = 0; /* no bit is applied */
    MUST(berth_tensor_read(checkpoint, &stored, 0, n, buffer, &error) == 0, "%s", error.message);
    check_bytes(named, data, buffer, n);
    /* The last ones too: that is where a wrong bound shows. */
    MUST(berth_tensor_read(checkpoint, &stored, numel - n, n, buffer, &error) == 0, "%s",
         error.message);
    MUST(numel == 0 || item <= storage_nbytes, "%s", named->path);
}

static void check_names(berth_checkpoint *checkpoint, const berth_named_tensor *named)
{
    berth_error error;
    const berth_value *value = named->value;
    char *path = strdup(named->path), *name = strdup(named->name);

    const berth_value *found = path[0] ? berth_find(checkpoint, path, &error) : value;
    MUST(found == value || (!found && error.code == BERTH_E_AMBIGUOUS), "%s finds %p, not %p: %s",
         path, (const void *)found, (const void *)value, found ? "" : error.message);
    found = name[0] ? berth_find(checkpoint, name, &error) : value;
    MUST(found == value || (!found && error.code == BERTH_E_AMBIGUOUS) ||
             (!found && strcmp(name, path) != 0),
         "%s finds another value", name);
    free(path);
    free(name);
}

/* Everything that can be asked of a checkpoint. */
static void walk(berth_checkpoint *checkpoint, size_t nbytes)
{
    size_t n = berth_tensor_count(checkpoint);
    berth_named_tensor named;
    berth_info info;
    berth_error error;

    MUST(berth_get_info(checkpoint, &info, &error) == 0 || error.message[0], "no sentence");
    for (size_t i = 0; i < n; i++) {
        if (berth_tensor_at(checkpoint, i, &named, &error) < 0) {
            MUST(error.message[0], "no sentence");
            continue;
        }
        if (i < 64 || i + 64 > n)
            check_names(checkpoint, &named);
        MUST(berth_tensor_at(checkpoint, i, &named, &error) == 0, "%s", error.message);
        check_tensor(checkpoint, &named, nbytes);
    }
    (void)berth_find(checkpoint, "a.0", &error);
}

bool read_first(berth_checkpoint *checkpoint, const berth_tensor *tensor, uint8_t *buffer,
                size_t *nbytes)
{
    int64_t numel = berth_tensor_numel(tensor);
    int64_t n = numel < MAX_ELEMENTS || is_subbyte(tensor) ? numel : MAX_ELEMENTS;

    if (tensor->flags & BERTH_META || n > MAX_ELEMENTS)
        return false;
    *nbytes = (size_t)n * berth_dtype_nbytes(tensor->dtype);
    return berth_tensor_read(checkpoint, tensor, 0, n, buffer, NULL) == 0;
}

/* What two tensors say of themselves, and, where both have bytes, their elements. */
static void check_same_tensor(berth_checkpoint *a, const berth_tensor *our, berth_checkpoint *b,
                              const berth_tensor *their, const char *path)
{
    static uint8_t ours[MAX_ELEMENTS * 16], theirs[MAX_ELEMENTS * 16];
    size_t nbytes, other_nbytes;

    MUST(our->dtype == their->dtype && our->rank == their->rank && our->flags == their->flags &&
             our->storage_offset == their->storage_offset && our->qscheme == their->qscheme,
         "%s: other facts", path);
    MUST(our->rank == 0 ||
             (memcmp(our->shape, their->shape, (size_t)our->rank * sizeof *our->shape) == 0 &&
              memcmp(our->stride, their->stride, (size_t)our->rank * sizeof *our->stride) == 0),
         "%s: another shape", path);
    if (read_first(a, our, ours, &nbytes) && read_first(b, their, theirs, &other_nbytes))
        MUST(nbytes == other_nbytes && memcmp(ours, theirs, nbytes) == 0, "%s: other elements",
             path);
}

void check_same_tensors(berth_checkpoint *a, berth_checkpoint *b)
{
    size_t n = berth_tensor_count(a);
    berth_named_tensor ours, theirs;
    berth_error error;

    MUST(n == berth_tensor_count(b), "%zu tensors and %zu", n, berth_tensor_count(b));
    for (size_t i = 0; i < n; i++) {
        if (berth_tensor_at(a, i, &ours, &error) < 0 || berth_tensor_at(b, i, &theirs, &error) < 0)
            continue;
        MUST(strcmp(ours.path, theirs.path) == 0, "%s and %s", ours.path, theirs.path);
        check_same_tensor(a, ours.tensor, b, theirs.tensor, ours.path);
    }
}

void check_same_reading(berth_checkpoint *a, berth_checkpoint *b)
{
    berth_named_tensor ours, theirs;

    check_same_tensors(a, b);
    for (size_t i = 0, n = berth_tensor_count(a); i < n; i++)
        if (berth_tensor_at(a, i, &ours, NULL) == 0 && berth_tensor_at(b, i, &theirs, NULL) == 0)
            MUST(ours.offset == theirs.offset, "%s: at byte %llu and %llu", ours.path,
                 (unsigned long long)ours.offset, (unsigned long long)theirs.offset);
}

/* T6: what a level that looks at indices accepted has good ones; else they are, or a sentence says
 * what is wrong. Both take time in proportion to the file. */
static void check_indices(berth_checkpoint *checkpoint, size_t nbytes, const char *options)
{
    double since = processor_seconds();
    berth_error error;
    int result = berth_tensor_check_indices(checkpoint, berth_root(checkpoint), NULL, &error);

    check_time(since, nbytes);
    MUST(result == 0 || error.message[0], "no sentence");
    MUST(is_clean_text(error.message), "not one line of UTF-8: %s", error.message);
    MUST(result == 0 || !strstr(options, "load.check=data"), "%s: %s", options, error.message);
}

/* Whether a directory's entry says that its record is deflated. */
static bool has_deflated_record(const uint8_t *bytes, size_t nbytes)
{
    for (size_t i = 0; i + 12 <= nbytes; i++)
        if (memcmp(bytes + i, "PK\1\2", 4) == 0 && bytes[i + 10] == 8)
            return true;
    return false;
}

/* P3, Z12: with load.check=data an opening inflates the indices of sparse tensors (T6). */
static size_t max_memory(const uint8_t *bytes, size_t nbytes, const char *options)
{
    bool inflates = strstr(options, "load.check=data") && has_deflated_record(bytes, nbytes);

    return (MEMORY_PER_BYTE + (inflates ? (size_t)2 * 1032 : 0)) * nbytes + MEMORY_FIXED;
}

bool check_opening(const uint8_t *bytes, size_t nbytes, const char *options)
{
    size_t before_nbytes;
    berth_checkpoint *checkpoint;
    berth_error error;

    count_memory_from_now();
    before_nbytes = live_nbytes;
    double since = processor_seconds();
    bool opened = open_memory_with(bytes, nbytes, options, &checkpoint, &error) == 0;
    if (opened)
        (void)berth_tensor_count(checkpoint);
    check_time(since, nbytes);
    MUST(most_nbytes - before_nbytes <= max_memory(bytes, nbytes, options),
         "%s: %zu bytes of memory for a file of %zu", options, most_nbytes - before_nbytes, nbytes);
    if (opened) {
        walk(checkpoint, nbytes);
        check_indices(checkpoint, nbytes, options);
        check_as_plain(checkpoint, bytes, nbytes, options);
    }
    berth_close(checkpoint);
    MUST(live_nbytes == before_nbytes, "%zu bytes leak", live_nbytes - before_nbytes);
    return opened;
}

void check_by_reads(const uint8_t *bytes, size_t nbytes, const char *options)
{
    struct span span = {bytes, nbytes};
    berth_checkpoint *whole, *pieces;
    berth_error error, other_error;
    char text[256];

    snprintf(text, sizeof text, "%s load.head_nbytes=1", options);
    (void)open_memory_with(bytes, nbytes, options, &whole, &error);
    (void)open_span_as(bytes, nbytes, &span, text, &pieces, &other_error);
    if (strstr(options, "load.check=headers"))
        MUST(strcmp(error.message, other_error.message) == 0, "%s, by reads: %s", error.message,
             other_error.message);
    if (whole && pieces) {
        check_same_reading(whole, pieces);
        walk(pieces, nbytes);
    }
    berth_close(whole);
    berth_close(pieces);
}

void check_readings(const uint8_t *bytes, size_t nbytes, const char *options)
{
    static const char *const others[] = {"load.calculate_storage_offsets=off load.check=headers",
                                         "load.check=directory", "load.check=none"};
    berth_checkpoint *computed, *other;
    berth_error error;
    berth_info info = {0};
    char text[256];

    snprintf(text, sizeof text, "%s load.check=headers", options);
    if (open_memory_with(bytes, nbytes, text, &computed, &error) < 0)
        return;
    (void)berth_get_info(computed, &info, &error);
    check_as_plain(computed, bytes, nbytes, text);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        snprintf(text, sizeof text, "%s %s", options, others[i]);
        (void)open_memory_with(bytes, nbytes, text, &other, &error);
        bool is_blind = i == 2 && !info.calculated_offsets;
        MUST(other || is_blind, "%s refuses it: %s", text, error.message);
        if (other && !is_blind)
            check_same_reading(computed, other);
        berth_close(other);
    }
    berth_close(computed);
}

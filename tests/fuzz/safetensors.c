/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Safetensors: any bytes as a file of them, converted to a checkpoint, and back: the same tensors.
 * A checkpoint (what begins as a zip archive does) is converted to safetensors, and what that
 * writes is read, with the same elements.
 */
#include "format/values/value.h"
#include "tests/support/fuzz/archive.h"
#include "tests/support/support.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/shared.h"

/* ---- what is told on stderr ---- */

static FILE *told, *real_stderr;
static char *told_text;
static size_t told_nbytes;

static void listen(void)
{
    if (!told)
        MUST(told = open_memstream(&told_text, &told_nbytes), "no memory");
    rewind(told);
    real_stderr = stderr;
    stderr = told;
}

/* A failure is told in one line, a success in none. */
static void check_told(int code)
{
    fputc('\0', told);
    fflush(told);
    stderr = real_stderr;
    size_t n = strlen(told_text);
    MUST(code == EXIT_YES || code == EXIT_NO || code == EXIT_TROUBLE, "%d", code);
    if (code == EXIT_YES && n == 0)
        return;
    MUST(n > 1 && told_text[n - 1] == '\n', "told: %s", told_text);
    told_text[n - 1] = '\0';
    MUST(strncmp(told_text, "berth: ", 7) == 0 && !strchr(told_text, '\n'), "told: %s", told_text);
}

/* ---- memory of the JSON parser, counted with ours ---- */

static void *count_malloc(size_t nbytes)
{
    return count_memory(NULL, NULL, nbytes);
}

static void count_free(void *pointer)
{
    if (pointer)
        count_memory(NULL, pointer, 0);
}

/* ---- from safetensors ---- */

/* T1: every tensor's bytes are bytes of the file, one after the other without gap or overlap. */
static void check_views(const berth_value *dict, const uint8_t *bytes, size_t nbytes)
{
    uint64_t sum = 0, header = 0;

    for (int i = 0; i < 8; i++)
        header |= (uint64_t)bytes[i] << 8 * i;
    for (size_t i = 0; i < berth_value_count(dict); i++) {
        const berth_tensor *tensor = berth_as_tensor(bth_value_item(dict, i));
        MUST(tensor, "no tensor");
        uint64_t n = berth_tensor_nbytes(tensor);
        const uint8_t *data = tensor->storage->data;
        MUST(n <= nbytes && n == berth_storage_get_info(tensor->storage)->nbytes &&
                 data >= bytes + 8 + header && n <= (uint64_t)(bytes + nbytes - data),
             "%llu bytes at %td", (unsigned long long)n, data - bytes);
        sum += n;
    }
    MUST(sum == nbytes - 8 - header, "%llu bytes of tensors in %zu", (unsigned long long)sum,
         nbytes);
}

static bool read_values(const uint8_t *bytes, size_t nbytes, berth_tree *tree, berth_value *dict)
{
    listen();
    json_set_alloc_funcs(count_malloc, count_free);
    int code = safetensors_read_bytes_into_dict("a.safetensors", bytes, nbytes, tree, dict);
    json_set_alloc_funcs(malloc, free);
    check_told(code);
    return code == EXIT_YES;
}

/* Tensor i of both: name, dtype, shape, bytes. */
static void check_same(const berth_value *dict, berth_checkpoint *checkpoint, size_t i)
{
    const berth_value *root = berth_root(checkpoint);
    const berth_tensor *our = berth_as_tensor(bth_value_item(dict, i));
    const berth_tensor *their = berth_as_tensor(bth_value_item(root, i));
    size_t n, their_n;
    const char *name = berth_as_text(bth_value_key(dict, i), &n);
    const char *their_name = berth_as_text(bth_value_key(root, i), &their_n);
    berth_error error;

    MUST(n == their_n && memcmp(name, their_name, n) == 0, "%s became %s", name, their_name);
    MUST(our && their && our->dtype == their->dtype && our->rank == their->rank &&
             (our->rank == 0 ||
              memcmp(our->shape, their->shape, (size_t)our->rank * sizeof *our->shape) == 0),
         "%s: other facts", name);
    const void *bytes = berth_tensor_data(checkpoint, their, &error);
    MUST(bytes || berth_tensor_nbytes(our) == 0, "%s: %s", name, error.message);
    MUST(berth_tensor_nbytes(our) == 0 ||
             memcmp(our->storage->data, bytes, berth_tensor_nbytes(our)) == 0,
         "%s: other bytes", name);
}

/* What is saved of them, and read back, is the same. */
static void check_saved(const berth_value *dict)
{
    berth_checkpoint *checkpoint;
    void *saved;
    size_t nbytes;
    berth_error error;

    if (berth_save_to(TO_MEMORY(&saved, &nbytes), OF_VALUE(dict), NAMED("a"), &error) < 0) {
        MUST(is_clean_text(error.message) && error.message[0], "no sentence");
        return;
    }
    MUST(open_memory_with(saved, nbytes, "load.check=data", &checkpoint, &error) == 0, "%s",
         error.message);
    size_t n = berth_value_count(berth_root(checkpoint));
    MUST(n == berth_value_count(dict), "%zu", n);
    for (size_t i = 0; i < n; i++)
        check_same(dict, checkpoint, i);
    berth_close(checkpoint);
    berth_free(saved);
}

static void from_safetensors(const uint8_t *bytes, size_t nbytes)
{
    berth_error error;

    double since = processor_seconds();
    size_t before_nbytes = live_nbytes;
    most_nbytes = live_nbytes;
    berth_tree *tree = berth_tree_new(&error);
    berth_value *dict = berth_make_dict(tree);
    bool is_read = read_values(bytes, nbytes, tree, dict);
    check_time(since, nbytes);
    MUST(most_nbytes - before_nbytes <= MEMORY_PER_BYTE * nbytes + MEMORY_FIXED,
         "P3: %zu bytes of memory for %zu", most_nbytes - before_nbytes, nbytes);
    if (is_read) {
        check_views(dict, bytes, nbytes);
        check_saved(dict);
    }
    berth_tree_free(tree);
}

/* ---- to safetensors ---- */

static char folder[64], out_path[80];

static void remove_folder(void)
{
    (void)rmdir(folder);
}

static void need_folder(void)
{
    if (folder[0])
        return;
    snprintf(folder, sizeof folder, "%s/berth-fuzz-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    MUST(mkdtemp(folder), "%s", folder);
    snprintf(out_path, sizeof out_path, "%s/a.safetensors", folder);
    atexit(remove_folder);
}

/* What was written: read again, and gone. */
static void check_written(void)
{
    static uint8_t bytes[4 << 20];
    berth_error error;
    FILE *file = fopen(out_path, "rb");

    MUST(file, "%s was not written", out_path);
    size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    unlink(out_path);
    if (n == sizeof bytes)
        return;
    berth_tree *tree = berth_tree_new(&error);
    berth_value *dict = berth_make_dict(tree);
    MUST(read_values(bytes, n, tree, dict), "what was written is refused: %s", told_text);
    check_views(dict, bytes, n);
    berth_tree_free(tree);
}

/*
 * Expanded tensors are written in full: no more than so many bytes of them. What does not open is
 * converted, to be refused, now and then.
 */
static bool is_converted(const uint8_t *bytes, size_t nbytes)
{
    berth_checkpoint *checkpoint;
    berth_named_tensor named;
    berth_error error;
    uint64_t sum = 0;

    if (open_memory_with(bytes, nbytes, "", &checkpoint, &error) < 0)
        return IS_CHECKED(kind_of(bytes, nbytes, 8), 0);
    for (size_t i = 0; i < berth_tensor_count(checkpoint) && sum < 1 << 20; i++)
        if (berth_tensor_at(checkpoint, i, &named, &error) == 0 &&
            __builtin_add_overflow(sum, berth_tensor_nbytes(named.tensor), &sum))
            sum = 1 << 20;
    berth_close(checkpoint);
    return sum < 1 << 20;
}

static void to_safetensors(const uint8_t *bytes, size_t nbytes)
{
    const common options = {.quiet = true};
    int fd = memfd_create("a.pt", MFD_CLOEXEC);
    char in[64];

    need_folder();
    MUST(fd >= 0 && write(fd, bytes, nbytes) == (ssize_t)nbytes, "no file");
    snprintf(in, sizeof in, "/proc/self/fd/%d", fd);
    listen();
    int code = convert_to_safetensors(in, out_path, bytes[nbytes / 2] % 2, &options);
    check_told(code);
    if (code == EXIT_YES)
        check_written();
    MUST(access(out_path, F_OK) < 0, "%s is left", out_path);
    close(fd);
}

void check_input(const uint8_t *bytes, size_t nbytes)
{
    count_memory_from_now();
    size_t before_nbytes = live_nbytes;
    if (nbytes > 4 && memcmp(bytes, "PK", 2) == 0) {
        if (is_converted(bytes, nbytes))
            to_safetensors(bytes, nbytes);
    } else {
        from_safetensors(bytes, nbytes);
    }
    MUST(live_nbytes == before_nbytes, "%zu bytes leak", live_nbytes - before_nbytes);
}

/* ---- changed: the header's length is made right again ---- */

static size_t mutate_header(uint8_t *bytes, size_t nbytes, size_t most)
{
    static const char *const telling[] = {"{",
                                          "}",
                                          "[",
                                          "]",
                                          "[0]",
                                          "[0,0]",
                                          "\"F32\"",
                                          "\"BF16\"",
                                          "\"shape\":",
                                          "\"dtype\":\"U8\"",
                                          "0",
                                          "4",
                                          "9223372036854775807",
                                          "-1",
                                          "1e3",
                                          ",",
                                          "\"a\":",
                                          "\"__metadata__\":{}",
                                          "\"data_offsets\":[0,0]"};
    uint64_t n = bth_little_u32(bytes);

    if (n > nbytes - 8)
        n = nbytes - 8;
    size_t left = most - (nbytes - (size_t)n) - 8, changed;
    uint8_t *header = malloc(left + 1);
    memcpy(header, bytes + 8, n < left ? n : left);
    if (random_below(3)) {
        const char *word = telling[random_below(sizeof telling / sizeof *telling)];
        size_t at = random_below((size_t)n + 1), cut = random_below(2) ? random_below(4) : 0;
        cut = cut < n - at ? cut : (size_t)n - at;
        changed = put_between(header, (size_t)n, left, at, cut, word, strlen(word));
    } else {
        changed = LLVMFuzzerMutate(header, (size_t)n, left);
    }
    nbytes = put_between(bytes, nbytes, most, 8, (size_t)n, header, changed);
    bth_put_u64(bytes, changed);
    free(header);
    return nbytes;
}

size_t mutate(uint8_t *bytes, size_t nbytes, size_t most, unsigned number)
{
    if (nbytes > 2 && memcmp(bytes, "PK", 2) == 0)
        return mutate_archive(bytes, nbytes, most, number);
    if (nbytes < 16 || most < nbytes + 64 || random_below(6) == 0)
        return LLVMFuzzerMutate(bytes, nbytes, most);
    return mutate_header(bytes, nbytes, most);
}

/* ---- seeds ---- */

static void seed_text(const char *name, const char *header, size_t data_nbytes)
{
    uint8_t bytes[4096] = {0};
    size_t n = strlen(header);

    bth_put_u64(bytes, n);
    memcpy(bytes + 8, header, n);
    seed(name, bytes, 8 + n + data_nbytes);
}

void make_seeds(void)
{
    seed_text("empty", "{}", 0);
    seed_text("metadata", "{\"__metadata__\":{\"format\":\"pt\",\"by\":\"me\"}}", 0);
    seed_text("two",
              "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
              "\"b.c\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[24,32]}}",
              32);
    seed_text("none",
              "{\"z\":{\"dtype\":\"U8\",\"shape\":[0,9223372036854775807],"
              "\"data_offsets\":[0,0]},\"a\\u0041\":{\"dtype\":\"BOOL\",\"shape\":[1],"
              "\"data_offsets\":[0,1]}}",
              1);
    seed_text("large",
              "{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[4611686018427387904,4],"
              "\"data_offsets\":[0,16]}}",
              16);
    seed_text("overlap",
              "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
              "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[6,8]}}",
              8);
    seed_text("gap",
              "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
              "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[6,8]}}",
              8);
    seed_folder("tests/data/torch", ".pt");
    seed_folder("tests/data/old", "zip.pth");
    seed_folder("tests/fuzz/found/safetensors", "");
}

#ifndef BERTH_FUZZER

Test(safetensors, keep_all_properties)
{
    cr_assert_geq(replay_seeds(100), 21);
}
#endif

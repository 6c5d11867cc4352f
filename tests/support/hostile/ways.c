/* SPDX-License-Identifier: BSD-3-Clause */
#include <berth/config.h>

#include "tests/support/hostile/ways.h"

static const char repacked_mark[] = ", repacked";
/* What was opened so, and then could not be read: deflated storages (Z12). */
static const char opened_mark[] = " (opened, repacked)";

bool is_read(const char *text)
{
    return strncmp(text, "read", 4) == 0;
}

bool is_repacked(const char *text)
{
    return is_read(text) ? strstr(text, repacked_mark) != NULL : is_opened_only(text);
}

bool is_opened_only(const char *text)
{
    return strstr(text, opened_mark) != NULL;
}

void remove_opened_mark(said text)
{
    char *mark = strstr(text, opened_mark);

    if (mark)
        *mark = '\0';
}

static void mark_repacked(said text, const berth_stats *stats, bool is_opened)
{
    const char *mark = is_read(text) ? repacked_mark : opened_mark;

    if (stats->repacked && is_opened)
        (void)snprintf(text + strlen(text), sizeof(said) - strlen(text), "%s", mark);
}

/* Leaves out the next step: only what has a path has one that can be pasted. */
static void say_no_step(said text)
{
    static const char *const steps[] = {": `", ": debug=off and ", ": unpacked by `"};

    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        char *found = strstr(text, steps[i]);
        if (found)
            *found = '\0';
    }
}

/* The error's sentence without the names of what was opened and of a tensor. */
static void say(said text, const char *name, const berth_error *error)
{
    size_t n = strlen(name);
    bool is_named =
        strncmp(error->message, name, n) == 0 && strncmp(error->message + n, ": ", 2) == 0;

    cr_expect(is_named, "%s is not named: %s", name, error->message);
    const char *sentence = error->message + (is_named ? n + 2 : 0);
    const char *record = *sentence == '"' ? strstr(sentence, "\": ") : NULL;
    (void)snprintf(text, sizeof(said), "%s", record ? record + 3 : sentence);
    say_no_step(text);
}

static berth_config *configured(const char *options, const char *more, bool debug)
{
    berth_config *config = berth_config_new(NULL);

    cr_assert_eq(berth_config_apply(config, debug ? "debug=on" : "debug=off", NULL), 0);
    cr_assert_eq(berth_config_apply(config, options, NULL), 0);
    cr_assert_eq(berth_config_apply(config, more, NULL), 0);
    return config;
}

/* Sums that are looked at when bytes are read say so only then. False: an error. */
static bool read_tensors(berth_checkpoint *checkpoint, berth_error *error)
{
    berth_named_tensor named;
    uint8_t elements[64];

    for (size_t i = 0; i < berth_tensor_count(checkpoint); i++) {
        if (berth_tensor_at(checkpoint, i, &named, error) < 0)
            return false;
        int64_t n = berth_tensor_numel(named.tensor);
        cr_assert_leq(berth_tensor_nbytes(named.tensor), sizeof elements);
        if (berth_tensor_read(checkpoint, named.tensor, 0, n, elements, error) < 0)
            return false;
    }
    return true;
}

/* What was opened under a name, and is closed here. */
static void tell_values(said text, berth_checkpoint *checkpoint, const char *name)
{
    berth_error error;

    if (!read_tensors(checkpoint, &error)) {
        say(text, name, &error);
    } else {
        char *values = describe(checkpoint);
        bool same = strcmp(values, sample_text) == 0;
        (void)snprintf(text, sizeof(said), same ? "read" : "read OTHERWISE");
        free(values);
    }
    berth_close(checkpoint);
}

/* Memory; "" or more options. */
void verdict_on_bytes(said text, const uint8_t *bytes, size_t nbytes, const char *options,
                      const char *more, bool debug)
{
    berth_config *config = configured(options, more, debug);
    berth_stats stats = {0};
    berth_params call = {.config = config, .stats = &stats};
    berth_checkpoint *checkpoint;
    berth_error error;

    bool is_opened = berth_open_source(FROM_MEMORY(bytes, nbytes), &call, &checkpoint, &error) == 0;
    if (is_opened)
        tell_values(text, checkpoint, "memory");
    else
        say(text, "memory", &error);
    mark_repacked(text, &stats, is_opened);
    berth_config_free(config);
}

void verdict_on_file(said text, const char *path, const char *options, bool debug)
{
    berth_config *config = configured(options, "load.method=read", debug);
    berth_stats stats = {0};
    berth_params call = {.config = config, .stats = &stats};
    berth_checkpoint *checkpoint;
    berth_error error;

    bool is_opened = berth_open(path, &call, &checkpoint, &error) == 0;
    if (is_opened)
        tell_values(text, checkpoint, path);
    else
        say(text, path, &error);
    mark_repacked(text, &stats, is_opened);
    berth_config_free(config);
}

struct shelf {
    const uint8_t *bytes;
    size_t nbytes;
};

static int read_shelf(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    const struct shelf *shelf = context;

    cr_assert(offset <= shelf->nbytes && nbytes <= shelf->nbytes - offset, "a read outside");
    memcpy(buffer, shelf->bytes + offset, nbytes);
    return 0;
}

/* By reads of as little at a time as can be. */
void verdict_on_pieces(said text, const uint8_t *bytes, size_t nbytes, const char *options,
                       bool debug)
{
    struct shelf shelf = {bytes, nbytes};
    berth_source source = {.nbytes = nbytes, .name = "shelf", .read = read_shelf};
    berth_config *config = configured(options, "load.head_nbytes=1", debug);
    berth_stats stats = {0};
    berth_params call = {.config = config, .stats = &stats};
    berth_checkpoint *checkpoint;
    berth_error error;

    source.context = &shelf;
    bool is_opened = berth_open_source(&source, &call, &checkpoint, &error) == 0;
    if (is_opened)
        tell_values(text, checkpoint, "shelf");
    else
        say(text, "shelf", &error);
    mark_repacked(text, &stats, is_opened);
    berth_config_free(config);
}

/* All that can be seen of an archive, as one sum. */
static void tell_records(said text, berth_archive *archive, const berth_archive_info *info)
{
    uint8_t bytes[4096];
    berth_record record;
    berth_error error = {0};

    uint32_t sum = bth_crc32(0, info->name, strlen(info->name));
    for (size_t i = 0; berth_archive_at(archive, i, &record) == 0; i++) {
        cr_assert_leq(record.nbytes, sizeof bytes, "%s", record.name);
        if (berth_archive_read(archive, &record, bytes, record.nbytes, 0, &error) < 0) {
            (void)snprintf(text, sizeof(said), "no record: %.700s", error.message);
            return;
        }
        sum = bth_crc32(sum, record.name, strlen(record.name) + 1);
        sum = bth_crc32(sum, bytes, record.nbytes);
    }
    (void)snprintf(text, sizeof(said), "read, %zu records, all 0x%08lx", info->n_records,
                   (unsigned long)sum);
}

void verdict_on_archive(said text, const uint8_t *bytes, size_t nbytes, const char *options,
                        bool debug)
{
    berth_config *config = configured(options, "", debug);
    berth_params call = {.config = config};
    berth_archive *archive;
    berth_archive_info info;
    berth_error error;

    if (berth_archive_open(FROM_MEMORY(bytes, nbytes), &call, &archive, &info, &error) < 0)
        say(text, "memory", &error);
    else
        tell_records(text, archive, &info);
    berth_archive_close(archive);
    berth_config_free(config);
}

static void verify_file(said text, const char *path, bool debug)
{
    berth_config *config = configured("", "", debug);
    berth_stats stats = {0};
    berth_params call = {.config = config, .stats = &stats};
    berth_error error;

    (void)snprintf(text, sizeof(said), "read");
    if (berth_verify(FROM_PATH(path), &call, NULL, NULL, NULL, &error) < 0)
        say(text, path, &error);
    mark_repacked(text, &stats, is_read(text));
    berth_config_free(config);
}

/* Any way. */
void ask_way(said text, enum way way, const uint8_t *bytes, size_t nbytes, const char *path)
{
    static const char off[] = "load.calculate_storage_offsets=off";
    const char *check = check_options[way % 4];

    if (way < OFF_NONE)
        verdict_on_bytes(text, bytes, nbytes, check, "", false);
    else if (way < ARCHIVE_NONE)
        verdict_on_bytes(text, bytes, nbytes, check, off, false);
    else if (way < VERIFY)
        verdict_on_archive(text, bytes, nbytes, check, false);
    else
        verify_file(text, path, way == VERIFY_DEBUG);
}

const char *command_path(void)
{
    static char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 16);

    for (int up = 0; n > 0 && up < 3; up++)
        while (n > 0 && path[--n] != '/')
            continue;
    (void)snprintf(path + (n > 0 ? n : 0), 16, "/berth");
    return access(path, X_OK) == 0 ? path : "";
}

int run_command(said text, const char *words, const char *path, const char *more, bool debug)
{
    char line[8192], output[4096] = "", name[512];

    (void)snprintf(line, sizeof line, "BERTH_SERIALIZATION_DEBUG=%d exec %s %s %s %s 2>&1", debug,
                   command_path(), words, path, more);
    FILE *pipe = popen(line, "r");
    cr_assert_not_null(pipe);
    size_t n = fread(output, 1, sizeof output - 1, pipe);
    output[n] = 0;
    int status = pclose(pipe);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) <= 2, "%s: %s", line, output);
    (void)snprintf(name, sizeof name, "%s: ", path);
    /* Of a bad record verify does not name the file, but the tensors in it. */
    if (strncmp(output, "repacked: ", 10) == 0 && strchr(output, '\n'))
        memmove(output, strchr(output, '\n') + 1, strlen(strchr(output, '\n')));
    const char *sentence = strstr(output, name);
    sentence = sentence ? sentence + strlen(name) : output;
    const char *tensors = strstr(sentence, "; in it: ");
    if (tensors)
        output[tensors - output] = '\0';
    if (WEXITSTATUS(status) == 0)
        (void)snprintf(text, sizeof(said), "read");
    else
        (void)snprintf(text, sizeof(said), "%.*s", (int)strcspn(sentence, "\n"), sentence);
    say_no_step(text);
    return WEXITSTATUS(status);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* What a file is that is no checkpoint and no zip archive: by its first bytes. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "load/open/refusal.h"

/* The kind is in these first bytes of the file, however many an open has read. */
#define KIND_NBYTES (64 << 10)
/* A file of words is no longer. */
#define WORDS_MAX_NBYTES 512

/* ---- sentences, and next steps ---- */

static bool name_is_word(const char *name)
{
    for (const char *at = name; *at; at++)
        if ((uint8_t)*at <= ' ' || (uint8_t)*at >= 0x7f || strchr("'\"`\\$&|;<>()*?[]{}#!~", *at))
            return false;
    return true;
}

/* Shown as it is. */
static bool name_can_be_quoted(const char *name)
{
    size_t n = strlen(name);

    return berth_show_text(name, n, BERTH_TEXT_PLAIN, NULL, 0) == n;
}

/* A file or a folder as a word of a command line; "": it cannot be one. */
typedef struct file_word {
    char text[BTH_WORD_NBYTES + 12];
} file_word;

/* In single quotes; one in the name stands outside of them: '\''. */
static file_word name_quote(const char *name)
{
    file_word word = {"'"};
    size_t n = 1;

    for (; *name; name++) {
        const char *piece = *name == '\'' ? "'\\''" : (const char[2]){*name, '\0'};
        if (n + strlen(piece) + 2 > sizeof word.text)
            return (file_word){""};
        n += (size_t)snprintf(word.text + n, sizeof word.text - n, "%s", piece);
    }
    word.text[n] = '\'';
    return word;
}

static file_word word_make(const char *name)
{
    file_word word = {""};
    char beside[BTH_WORD_NBYTES + 3];

    if (strlen(name) > BTH_WORD_NBYTES || !name_can_be_quoted(name))
        return word;
    if (*name == '-') { /* no option */
        (void)snprintf(beside, sizeof beside, "./%s", name);
        name = beside;
    }
    if (!name_is_word(name))
        return name_quote(name);
    (void)snprintf(word.text, sizeof word.text, "%s", name);
    return word;
}

static file_word folder_word_make(const char *path)
{
    const char *slash = strrchr(path, '/');
    size_t n = !slash ? 0 : slash > path ? (size_t)(slash - path) : 1;
    char name[BTH_WORD_NBYTES + 2] = ".";

    if (n > BTH_WORD_NBYTES)
        return (file_word){""};
    if (n > 0) {
        memcpy(name, path, n);
        name[n] = '\0';
    }
    return word_make(name);
}

/* What the command of a step takes. */
static file_word step_word_make(const bth_step *step, const bth_reader *reader)
{
    static const char ours[] = "berth ";

    if (reader->has_path)
        return step->of_folder ? folder_word_make(reader->name) : word_make(reader->name);
    if (reader->stand_in && !step->of_folder && strncmp(step->before, ours, sizeof ours - 1) == 0)
        return word_make(reader->stand_in);
    return (file_word){""};
}

int bth_error_append_step(berth_error *error, const char *lead, const bth_step *step,
                          const bth_reader *reader)
{
    file_word word = step_word_make(step, reader);
    size_t n = strlen(step->before);

    if (*word.text)
        return bth_error_append(error, "%s`%s%s%s`%s%s", lead, step->before, word.text, step->after,
                                *step->does ? " " : "", step->does);
    if (step->without)
        return *step->without ? bth_error_append(error, "%s%s", lead, step->without) : error->code;
    while (n > 0 && step->before[n - 1] == ' ')
        n--;
    return bth_error_append(error, "%s`%.*s` %s", lead, (int)n, step->before, step->does);
}

const bth_step bth_dcp_to_torch = {"berth convert ", " NEW.pt",
                                   "makes a checkpoint of its directory", NULL, true};

int bth_error_append_leaves_out(berth_error *error, uint64_t nbytes, const char *after,
                                const bth_reader *reader)
{
    char before[40];
    const bth_step step = {before, after, "leaves them out", NULL, false};

    (void)snprintf(before, sizeof before, "head -c %llu ", (unsigned long long)nbytes);
    return bth_error_append_step(error, ": ", &step, reader);
}

int bth_file_kind_refuse(const bth_file_kind *kind, const bth_reader *reader, berth_error *error)
{
    (void)bth_fail_status(error, BERTH_E_NOT_CHECKPOINT, "%s", kind->what);
    return kind->step.before ? bth_error_append_step(error, ": ", &kind->step, reader)
                             : error->code;
}

/* ---- the first bytes: signatures ---- */

#define OF_SEVERAL_FILES                                                                           \
    " of a zip archive in several files: `zip -s 0 NAME.zip --out NEW.zip` joins them"
#define NO_CHECKPOINT ", not a checkpoint"
#define GGML(name) "a ggml file (" name "), the format of llama.cpp before GGUF" NO_CHECKPOINT
#define TORCH7                                                                                     \
    "a file of Torch7 (Lua), not a checkpoint of PyTorch, which read such files before 1.0"
#define UNPACKS(command)                                                                           \
    {                                                                                              \
        command " -dc ", " >NEW.pt", "unpacks it", NULL, false                                     \
    }
#define NO_STEP                                                                                    \
    {                                                                                              \
        NULL, NULL, NULL, NULL, false                                                              \
    }

static const struct signature {
    const char *bytes;
    size_t nbytes;
    bth_file_kind kind;
} signatures[] = {
    {"PK\5\6", 4, {"a zip archive without any record", NO_STEP}},
    {"\x1f\x8b", 2, {"compressed by gzip", UNPACKS("gzip")}},
    {"\xfd"
     "7zXZ\0",
     6,
     {"compressed by xz", UNPACKS("xz")}},
    {"\x28\xb5\x2f\xfd", 4, {"compressed by zstd", UNPACKS("zstd")}},
    {"\x04\x22\x4d\x18", 4, {"compressed by lz4", UNPACKS("lz4")}},
    {"BZh", 3, {"compressed by bzip2", UNPACKS("bzip2")}},
    {"\x1f\x9d", 2, {"compressed by compress", UNPACKS("gzip")}},
    {"\x5d\0\0", 3, {"compressed by lzma", UNPACKS("xz")}},
    {"UEsD", 4, {"a zip archive in base64", {"base64 -d ", " >NEW.pt", "decodes it", NULL, false}}},
    {"Salted__", 8, {"encrypted by openssl: `openssl enc -d` decrypts it", NO_STEP}},
    {"PK\7\10", 4, {"a part" OF_SEVERAL_FILES, NO_STEP}},
    {"HTTP/",
     5,
     {"a download with the server's header in front of it: `curl` without `-i` leaves that out",
      NO_STEP}},
    {"7z\xbc\xaf\x27\x1c", 6, {"a 7z archive", {"7z x ", "", "unpacks it", NULL, false}}},
    {"Rar!\x1a\x07", 6, {"a rar archive", {"unrar x ", "", "unpacks it", NULL, false}}},
    {"GGUF",
     4,
     {"a GGUF file, the format of llama.cpp, not of PyTorch",
      {"gguf-dump ", "", "(of Python's package gguf) lists it", NULL, false}}},
    {"\x89HDF\r\n\x1a\n",
     8,
     {"an HDF5 file, as Keras and h5py write them, not PyTorch",
      {"h5ls -r ", "", "lists it", NULL, false}}},
    {"\x93NUMPY",
     6,
     {"an array of NumPy (.npy), not a PyTorch checkpoint",
      {BTH_RESAVES("torch.from_numpy(numpy.load(sys.argv[1]))"), "",
       "makes one of it if it holds numbers in this machine's byte order",
       "torch.from_numpy(numpy.load(f)) is its tensor if it holds numbers in this machine's byte "
       "order",
       false}}},
    {"lmgg", 4, {GGML("ggml"), NO_STEP}},
    {"fmgg", 4, {GGML("ggmf"), NO_STEP}},
    {"tjgg", 4, {GGML("ggjt"), NO_STEP}},
    {"\4\0\0\0\1\0\0\0", 8, {TORCH7, NO_STEP}}, /* an object of it */
    {"\3\0\0\0\1\0\0\0", 8, {TORCH7, NO_STEP}}, /* a table */
    {"\x89PNG\r\n\x1a\n", 8, {"a PNG picture" NO_CHECKPOINT, NO_STEP}},
    {"\xff\xd8\xff", 3, {"a JPEG picture" NO_CHECKPOINT, NO_STEP}},
    {"\x7f"
     "ELF",
     4,
     {"an ELF program or library" NO_CHECKPOINT, NO_STEP}},
    {"%PDF-", 5, {"a PDF document" NO_CHECKPOINT, NO_STEP}},
    {"SQLite format 3", 16, {"an SQLite database" NO_CHECKPOINT, NO_STEP}},
    {"PAR1", 4, {"a Parquet table" NO_CHECKPOINT, NO_STEP}},
};

/* FlatBuffers have the name of their format there. */
enum { FLATBUFFER_AT = 4 };

static const struct signature flatbuffers[] = {
    {"TFL3", 4, {"a TensorFlow Lite model" NO_CHECKPOINT, NO_STEP}},
    {"ET12", 4, {"a program of ExecuTorch (.pte)" NO_CHECKPOINT, NO_STEP}},
};

static bool head_has_at(const bth_head_cache *cache, size_t at, const char *bytes, size_t nbytes)
{
    return cache->head_nbytes >= at + nbytes && memcmp(cache->head + at, bytes, nbytes) == 0;
}

static bool head_begins_with(const bth_head_cache *cache, const char *bytes, size_t nbytes)
{
    return head_has_at(cache, 0, bytes, nbytes);
}

static void head_refuse_by(const struct signature *known, size_t n, size_t at,
                           const bth_head_cache *cache, berth_error *error)
{
    for (size_t i = 0; i < n && error->code == 0; i++)
        if (head_has_at(cache, at, known[i].bytes, known[i].nbytes))
            (void)bth_file_kind_refuse(&known[i].kind, cache->reader, error);
}

static void head_refuse_by_signature(const bth_head_cache *cache, berth_error *error)
{
    head_refuse_by(signatures, sizeof signatures / sizeof *signatures, 0, cache, error);
    head_refuse_by(flatbuffers, sizeof flatbuffers / sizeof *flatbuffers, FLATBUFFER_AT, cache,
                   error);
}

/* ---- the first bytes: formats without a signature ---- */

/*
 * ONNX is a protobuf message without a signature. Field 1 is the version of its format, then field
 * 2 the name of the program that made it, and its other fields.
 */
static void head_refuse_onnx(const bth_head_cache *cache, berth_error *error)
{
    static const uint8_t other_fields[] = {0x1a, 0x22, 0x28, 0x32, 0x3a, 0x42, 0x72};
    const uint8_t *head = cache->head;
    size_t n = cache->head_nbytes > 4 ? head[3] : 0;

    if (!head_begins_with(cache, "\x08", 1) || n == 0 || n > BTH_SHOWN_NBYTES ||
        n + 5 > cache->head_nbytes || head[1] == 0 || head[1] > 30 || head[2] != 0x12 ||
        !memchr(other_fields, head[4 + n], sizeof other_fields))
        return;
    for (size_t i = 0; i < n; i++)
        if (head[4 + i] < ' ' || head[4 + i] >= 0x7f)
            return;
    (void)bth_fail_status(error, BERTH_E_NOT_CHECKPOINT,
                          "an ONNX model, made by '%.*s': a program; the checkpoint is what it was "
                          "exported from",
                          (int)n, (const char *)head + 4);
}

/* ---- the first bytes: texts ---- */

/* A text in the head. */
typedef struct text_view {
    const char *at;
    size_t nbytes;
} text_view;

static bool char_is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Without a byte order mark and spaces. */
static text_view head_text(const bth_head_cache *cache)
{
    size_t skipped = head_begins_with(cache, "\xef\xbb\xbf", 3) ? 3 : 0;

    while (skipped < cache->head_nbytes && char_is_space((char)cache->head[skipped]))
        skipped++;
    return (text_view){(const char *)cache->head + skipped, (size_t)cache->head_nbytes - skipped};
}

/* Where `wanted`, in lower case, ends in the text; 0: nowhere. */
static size_t text_find_end_of(text_view text, const char *wanted)
{
    size_t n = strlen(wanted);

    for (size_t i = 0; i + n <= text.nbytes; i++)
        if (strncasecmp(text.at + i, wanted, n) == 0)
            return i + n;
    return 0;
}

static bool text_begins_with(text_view text, const char *wanted)
{
    return text.nbytes >= strlen(wanted) && strncasecmp(text.at, wanted, strlen(wanted)) == 0;
}

/* What follows `wanted` in the text. */
static text_view text_after(text_view text, const char *wanted)
{
    size_t end = text_find_end_of(text, wanted);

    return end ? (text_view){text.at + end, text.nbytes - end} : (text_view){text.at, 0};
}

/* Cuts the text before the first `c`. */
static text_view text_before(text_view text, char c)
{
    const char *found = text.nbytes ? memchr(text.at, c, text.nbytes) : NULL;

    return (text_view){text.at, found ? (size_t)(found - text.at) : text.nbytes};
}

/* Up to the end of its line, as Unix or Windows writes it. */
static text_view text_line(text_view text)
{
    return text_before(text_before(text, '\n'), '\r');
}

/* "what, not a checkpoint", and what the text says, if anything: the first BTH_SHOWN_NBYTES, in one
 * line. */
static void text_refuse(const char *what, text_view says, berth_error *error)
{
    char shown[BTH_SHOWN_NBYTES + 1];
    size_t n = 0;

    for (size_t i = 0; i < says.nbytes && n < BTH_SHOWN_NBYTES; i++)
        if (!char_is_space(says.at[i]))
            shown[n++] = says.at[i];
        else if (n > 0 && shown[n - 1] != ' ')
            shown[n++] = ' ';
    shown[n] = '\0';
    if (n == 0)
        (void)bth_fail_status(error, BERTH_E_NOT_CHECKPOINT,
                              "%s, not a checkpoint: a download that failed?", what);
    else
        (void)bth_fail_status(error, BERTH_E_NOT_CHECKPOINT,
                              "%s, not a checkpoint: a download that failed? It says: %s", what,
                              shown);
}

static void head_refuse_git_lfs_pointer(const bth_head_cache *cache, berth_error *error)
{
    text_view text = head_text(cache);
    text_view oid = text_line(text_after(text, "\noid "));
    text_view size = text_line(text_after(text, "\nsize "));

    if (text_begins_with(text, "version https://git-lfs.github.com/") && oid.nbytes > 0 &&
        oid.nbytes <= BTH_SHOWN_NBYTES && size.nbytes > 0 && size.nbytes <= 20)
        (void)bth_fail_status(
            error, BERTH_E_NOT_CHECKPOINT,
            "a Git LFS pointer, not the file itself, which has %.*s bytes (%.*s): "
            "`git lfs pull` fetches it",
            (int)size.nbytes, size.at, (int)oid.nbytes, oid.at);
}

/* Without the comments and spaces that it begins with. */
static text_view text_after_comments(text_view text)
{
    while (text.nbytes > 0 && (char_is_space(*text.at) || text_begins_with(text, "<!--")))
        text = char_is_space(*text.at) ? (text_view){text.at + 1, text.nbytes - 1}
                                       : text_after(text, "-->");
    return text;
}

static void head_refuse_web_page(const bth_head_cache *cache, berth_error *error)
{
    text_view text = text_after_comments(head_text(cache));

    if (text_begins_with(text, "<!doctype html") || text_begins_with(text, "<html"))
        text_refuse("a web page (HTML)",
                    text_before(text_after(text_after(text, "<title"), ">"), '<'), error);
    else if (text_begins_with(text, "<?xml") || text_begins_with(text, "<error>"))
        text_refuse("an XML text", text_before(text_after(text, "<message>"), '<'), error);
}

/* Cuts the text before the quote that ends a JSON string. */
static text_view text_before_quote(text_view text)
{
    size_t n = 0;

    while (n < text.nbytes && text.at[n] != '"')
        n += text.at[n] == '\\' ? 2 : 1;
    return (text_view){text.at, n < text.nbytes ? n : text.nbytes};
}

/* The text of the first of these keys. */
static text_view json_find_reason(text_view text)
{
    static const char *const keys[] = {"\"error\"", "\"message\"", "\"detail\""};
    text_view reason = {text.at, 0};

    for (size_t i = 0; i < sizeof keys / sizeof *keys && reason.nbytes == 0; i++) {
        reason = text_after(text, keys[i]);
        while (reason.nbytes > 0 && (char_is_space(*reason.at) || *reason.at == ':'))
            reason = (text_view){reason.at + 1, reason.nbytes - 1};
        if (reason.nbytes == 0 || *reason.at != '"')
            reason.nbytes = 0;
        else
            reason = text_before_quote((text_view){reason.at + 1, reason.nbytes - 1});
    }
    return reason;
}

static void head_refuse_json(const bth_head_cache *cache, berth_error *error)
{
    text_view text = head_text(cache);

    if (text.nbytes < 2 || *text.at != '{' ||
        (!char_is_space(text.at[1]) && text.at[1] != '"' && text.at[1] != '}'))
        return;
    if (text_find_end_of(text, "\"weight_map\""))
        (void)bth_fail_status(error, BERTH_E_NOT_CHECKPOINT,
                              "the index of a checkpoint in several files (JSON): open the files "
                              "that its weight_map names");
    else
        text_refuse("a JSON text", json_find_reason(text), error);
}

/* A server's answer without any form ("Entry not found"): the whole file is a few words. */
static void head_refuse_words(const bth_head_cache *cache, berth_error *error)
{
    text_view text = head_text(cache);
    bool has_space = false;

    if (cache->reader->nbytes > cache->head_nbytes || cache->head_nbytes > WORDS_MAX_NBYTES)
        return;
    for (size_t i = 0; i < text.nbytes; i++) {
        if ((uint8_t)text.at[i] >= 0x7f || (text.at[i] < ' ' && !char_is_space(text.at[i])))
            return;
        has_space = has_space || text.at[i] == ' ';
    }
    if (has_space)
        text_refuse("a text", text, error);
}

static void head_refuse_zeros(const bth_head_cache *cache, berth_error *error)
{
    static const uint8_t zeros[512];

    if (head_begins_with(cache, (const char *)zeros, sizeof zeros))
        (void)bth_fail_status(error, BERTH_E_TRUNCATED,
                              "it begins with zeros: a download or a copy that did not end?");
}

/* ---- the last bytes ---- */

/* The last part of an archive in several files begins with any bytes; its end record says its
 * number. */
static int tail_refuse_last_part(bth_head_cache *cache, berth_error *error)
{
    uint64_t nbytes = cache->reader->nbytes;
    const uint8_t *end;

    if (nbytes < BTH_ZIP_END_RECORD_NBYTES)
        return 0;
    if (bth_head_cache_get_or_read(cache, nbytes - BTH_ZIP_END_RECORD_NBYTES,
                                   BTH_ZIP_END_RECORD_NBYTES, 0, &end, error) < 0)
        return error->code;
    if (memcmp(end, "PK\5\6", 4) != 0 || (end[4] | end[5]) == 0)
        return 0;
    return bth_fail_status(error, BERTH_E_NOT_CHECKPOINT, "the last part" OF_SEVERAL_FILES);
}

/* ---- all kinds ---- */

int bth_refuse_kind(bth_head_cache *cache, berth_error *error)
{
    static void (*const refusals[])(const bth_head_cache *,
                                    berth_error *) = {head_refuse_by_signature,
                                                      bth_head_refuse_tar,
                                                      head_refuse_onnx,
                                                      head_refuse_git_lfs_pointer,
                                                      head_refuse_web_page,
                                                      head_refuse_json,
                                                      bth_head_refuse_legacy_protocol,
                                                      bth_head_refuse_pickle,
                                                      head_refuse_words,
                                                      head_refuse_zeros};
    bth_head_cache first;
    char begin[24] = "";

    if (bth_head_cache_extend_head(cache, KIND_NBYTES, error) < 0)
        return error->code;
    first = *cache;
    if (first.head_nbytes > KIND_NBYTES)
        first.head_nbytes = KIND_NBYTES;
    if (first.head_nbytes == 0)
        return bth_fail_status(error, BERTH_E_TRUNCATED, "the file is empty" BTH_CUT_OFF);
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals && error->code == 0; i++)
        refusals[i](&first, error);
    for (size_t i = 0; i < 4 && i < first.head_nbytes; i++)
        (void)snprintf(begin + 3 * i, sizeof begin - 3 * i, " %02x", first.head[i]);
    if (error->code == 0)
        (void)tail_refuse_last_part(cache, error);
    return error->code ? error->code
                       : bth_fail_status(error, BERTH_E_NOT_CHECKPOINT,
                                         "neither a zip archive nor PyTorch's legacy format: it "
                                         "begins with%s",
                                         begin);
}
